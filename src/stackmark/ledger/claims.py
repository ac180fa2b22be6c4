"""A driver's claim on an experiment: only one driver at a time adds runs to it.

A claim is a row with a random token and an end. Its driver renews it from a thread while it waits for workers, and with every
run that it starts (`Ledger.start`), in the transaction that adds the run: a driver that was suspended while another one took
over cannot add a run any more. Between machines the lease decides; a driver whose process can be seen is believed to be alive
or dead by that alone, so that no process waits for the lease of a killed one.
"""

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sqlalchemy import Connection, delete, insert, select, text, update

from stackmark.errors import LedgerError
from stackmark.frozen import Frozen
from stackmark.ledger.schema import claims, experiments

if TYPE_CHECKING:
    from stackmark.ledger.store import Ledger

# A lease outlives three missed renewals: a locked file or a server that restarts must not cost a driver its experiment.
LEASE_S = 60.0
RENEW_EVERY_S = 15.0


class Driver(Frozen):
    """The identity of a driver's process."""

    host: str
    machine_id: str
    boot_id: str
    pid_namespace: int | None
    driver_pid: int
    driver_start_ticks: int | None


# Whether a driver lives: None where its process cannot be seen from here.
Sees = Callable[[Driver], bool | None]


class Claim:
    """The claim of one driver on one experiment, from `with` to its end. Raises LedgerError where another driver has it."""

    def __init__(self, ledger: "Ledger", experiment_id: str, driver: Driver, sees: Sees) -> None:
        self._ledger, self._experiment_id, self._driver, self._sees = ledger, experiment_id, driver, sees
        self._token = secrets.token_hex(16)
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._renew, name="claim", daemon=True)

    def __enter__(self) -> Self:
        self._ledger.writing(self._take)
        self._ledger.claimed[self._experiment_id] = self._token
        self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._heart.join()
        del self._ledger.claimed[self._experiment_id]
        mine = delete(claims).where(claims.c.experiment_id == self._experiment_id, claims.c.token == self._token)
        with suppress(LedgerError):  # the next driver sees that this process is gone, or waits for the lease
            self._ledger.writing(lambda connection: connection.execute(mine), patient=False)

    def _take(self, connection: Connection) -> None:
        # Locks the experiment, so that of two drivers the second finds the first one's claim.
        found = select(experiments.c.id).where(experiments.c.id == self._experiment_id).with_for_update()
        if connection.execute(found).first() is None:
            raise LedgerError(f"the experiment {self._experiment_id} is no longer in the ledger {self._ledger.where}")
        now = clock(connection)
        held = (
            connection.execute(select(claims).where(claims.c.experiment_id == self._experiment_id)).mappings().first()
        )
        if held is not None:
            holder = Driver.model_validate({name: held[name] for name in Driver.model_fields})
            alive = self._sees(holder)
            left_s = held["expires_unix_s"] - now
            if held["token"] != self._token and (alive or (alive is None and left_s > 0)):
                raise _held(self._experiment_id, holder, None if alive else left_s)
            connection.execute(delete(claims).where(claims.c.experiment_id == self._experiment_id))
        row = {
            **self._driver.model_dump(),
            "experiment_id": self._experiment_id,
            "token": self._token,
            "taken_unix_s": now,
            "expires_unix_s": now + LEASE_S,
        }
        connection.execute(insert(claims).values(row))

    def _renew(self) -> None:
        """One small transaction now and then. What goes wrong is left to the next run's own renewal, which is waited for."""
        while not self._ended.wait(RENEW_EVERY_S):
            with suppress(LedgerError):
                self._ledger.writing(
                    lambda connection: renew(connection, self._experiment_id, self._token), patient=False
                )


def renew(connection: Connection, experiment_id: str, token: str) -> bool:
    """Extend a claim; False where it is another driver's now. A lease that ran out unnoticed is simply extended."""
    change = update(claims).where(claims.c.experiment_id == experiment_id, claims.c.token == token)
    return connection.execute(change.values(expires_unix_s=clock(connection) + LEASE_S)).rowcount == 1


def lost(experiment_id: str) -> LedgerError:
    return LedgerError(
        f"another stackmark took over {experiment_id} while this one did not answer: no further run is started",
        hint="see the result when the other has ended: stackmark verdict " + experiment_id,
    )


def clock(connection: Connection) -> float:
    """Return the time by the database server's clock, which all its drivers share; a file has this machine's."""
    if connection.dialect.name != "postgresql":
        return time.time()
    return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())


def _held(experiment_id: str, holder: Driver, left_s: float | None) -> LedgerError:
    who = f"process {holder.driver_pid} on {holder.host}"
    if left_s is None:
        return LedgerError(
            f"{experiment_id} is already being run by {who}", hint="wait for it, or end that process first"
        )
    return LedgerError(
        f"{experiment_id} is already being run by {who}, which is not visible from here",
        hint=f"wait for it; if that process has ended, its claim expires in {max(1, round(left_s))} s",
    )
