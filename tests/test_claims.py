"""One driver at a time adds runs to an experiment: real processes, on both databases."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from asking import COMMAND, Answer
from experiment_asking import empty_ledger
from ledger_runs import complete
from stackmark.errors import Exit
from stackmark.experiments.driver import claim
from stackmark.ledger import claims
from stackmark.ledger.rows import RunDetail
from stackmark.ledger.store import Ledger
from worker_process import eventually

QUICK = ("trick/calm", "--steps", "2", "--warmup-steps", "0", "--no-primers")


@pytest.fixture(autouse=True)
def _tricks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_ledger(tmp_path, monkeypatch)


@contextmanager
def driver(*arguments: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A command in a process of its own, which is gone afterwards."""
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answer(*arguments: str) -> Answer:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=os.environ, timeout=120)
    return Answer(done.returncode, done.stdout, done.stderr)


def rows(book: Ledger) -> list[RunDetail]:
    newest = book.runs(limit=1)
    return book.runs_of(newest[0].experiment_id) if newest else []


def done(book: Ledger) -> list[RunDetail]:
    return [row for row in rows(book) if row.status == "done"]


def test_a_second_driver_is_refused_during_a_pause_and_goes_on_after_the_first_was_killed(ledger_url: str) -> None:
    arms = ("--arm", "host", "--arm", "host", "--blocks", "2", "--pause", "10min", "--ledger", ledger_url)
    with Ledger.open(ledger_url) as book, driver("compare", *QUICK, *arms) as first:
        eventually(lambda: done(book))
        (row,) = rows(book)
        refused = answer("resume", row.experiment_id, "--ledger", ledger_url)
        assert refused.code == Exit.LEDGER_FAILED
        assert f"process {first.pid} on " in refused.err
        assert len(rows(book)) == 1
        first.kill()
        first.wait()
        # The lease of the first is not over: that it is dead can be seen here.
        with driver("resume", row.experiment_id, "--ledger", ledger_url) as second:
            eventually(lambda: len(done(book)) == 2)
            second.send_signal(signal.SIGTERM)
            assert second.wait() == Exit.TERMINATED
        with claim(book, row.experiment_id):
            pass  # what ended in order has given its claim back


def test_a_driver_that_slept_while_another_took_over_stops_and_its_run_does_not_count(ledger_url: str) -> None:
    arms = ("--arm", "host", "--arm", "host", "--blocks", "2", "--step-s", "2", "--ledger", ledger_url)
    with Ledger.open(ledger_url) as book, driver("compare", *QUICK, *arms) as first:
        eventually(lambda: rows(book) and rows(book)[0].handle.get("pid"))
        first.send_signal(signal.SIGSTOP)
        (row,) = rows(book)
        # As a driver elsewhere looks that has not been heard of for longer than its lease.
        book.writing(
            lambda connection: connection.execute(text("UPDATE claims SET machine_id = 'x', expires_unix_s = 1"))
        )
        with claim(book, row.experiment_id):
            first.send_signal(signal.SIGCONT)
            _, said = first.communicate(timeout=60)
        assert first.returncode == Exit.LEDGER_FAILED
        assert b"another stackmark took over" in said
        (only,) = rows(book)
        assert (only.status, only.failure_kind, only.rate_per_s) == ("failed", "lost", None)


def test_a_claim_is_renewed_while_nothing_else_is_written(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RENEW_EVERY_S", 0.05)
    with Ledger.open(ledger_url) as book:
        experiment_id = book.run(complete(book)).experiment_id
        with claim(book, experiment_id):
            book.writing(lambda connection: connection.execute(text("UPDATE claims SET expires_unix_s = 1")))
            ends = text("SELECT expires_unix_s FROM claims")
            eventually(lambda: book.reading(lambda connection: connection.execute(ends).scalar_one()) > 1)
        assert book.reading(lambda connection: connection.execute(ends).first()) is None


def test_a_driver_elsewhere_keeps_its_claim_until_its_lease_ends(ledger_url: str) -> None:
    arms = ("--arm", "host", "--arm", "host", "--blocks", "2", "--ledger", ledger_url)
    with Ledger.open(ledger_url) as book:
        assert answer("compare", *QUICK, *arms).code == Exit.DONE
        before = rows(book)
        book.delete([before[-1].id])
        experiment_id = before[0].experiment_id
        with claim(book, experiment_id):
            book.writing(
                lambda connection: connection.execute(text("UPDATE claims SET machine_id = 'x', host = 'node-7'"))
            )
            refused = answer("resume", experiment_id, "--ledger", ledger_url)
            assert refused.code == Exit.LEDGER_FAILED
            assert "node-7" in refused.err
            book.writing(lambda connection: connection.execute(text("UPDATE claims SET expires_unix_s = 1")))
            assert answer("resume", experiment_id, "--ledger", ledger_url).code == Exit.DONE
        assert len(done(book)) == 4
