"""Publish how far the run at hand is, so that other processes can watch it through the ledger.

A thread of the driver writes one small row when something changed, at most once a second. The workload runs in another process
and is not asked; where the ledger is busy the news is left out.
"""

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from stackmark.errors import LedgerError
from stackmark.events import Evaluation, Event, Failed, Phase, Result, Row, Steps, say_evaluation
from stackmark.ledger import progress
from stackmark.ledger.progress import RunProgress
from stackmark.ledger.store import Ledger
from stackmark.spec import Spec
from stackmark.workloads.op.definition import say_problem
from stackmark.workloads.registry import known

WRITE_EVERY_S = 1.0
# A name of a problem or an evaluation in words: a screen shows no more.
LONGEST_TEXT = 300
BETWEEN_RUNS = "between runs"


class Publisher:
    """Follows the runs of one experiment, from `with` to its end, and keeps its row of progress."""

    def __init__(self, ledger: Ledger, experiment_id: str) -> None:
        self._ledger, self._experiment_id = ledger, experiment_id
        self._changed, self._ended = threading.Event(), threading.Event()
        self._writer: threading.Thread | None = None
        # The run at hand: replaced whole by the driver's thread, and read whole by the writer.
        self.told: RunProgress | None = None
        self._ends_s: float | None = None
        self._batch = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._writer is None:
            return
        self._ended.set()
        self._changed.set()
        self._writer.join()

    def run_begins(self, run_id: str, number: int, of: int, spec: Spec, *, label: str, block: int | None) -> None:
        definition, batch = known(spec.workload), spec.params.get("batch")
        self._batch = batch if isinstance(batch, int) else 0
        self._ends_s = None
        self._set(
            RunProgress(
                run_id=run_id,
                workload=spec.workload,
                number=number,
                of=max(number, of),
                label=label,
                block=block,
                began_unix_s=time.time(),
                rate_unit=f"{definition.samples}/s" if definition and self._batch else None,
            )
        )
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, name="progress", daemon=True)
            self._writer.start()

    def event(self, event: Event) -> None:
        """Take in an event of the first rank."""
        if isinstance(event, Phase) and event.state == "begin":
            self._phase(event)
        elif isinstance(event, Row):
            self._change(rows_done=event.done, rows_of=event.of, said=say_problem(event.row.op, event.row.shape))
        elif isinstance(event, Evaluation):
            self._change(said=say_evaluation(event))
        elif isinstance(event, Steps) and event.step_s:
            self._steps(event)
        elif isinstance(event, Result | Failed):
            self._change(phase="ending")

    def run_ended(self) -> None:
        self._ends_s = None
        self._change(phase=BETWEEN_RUNS)

    def _phase(self, event: Phase) -> None:
        measured = event.phase == "measure"
        if measured and event.expected_s is not None:
            self._ends_s = time.monotonic() + event.expected_s
        self._change(
            phase=event.phase,
            steps_done=0,
            steps_expected=event.expected_steps if measured else None,
            rows_done=0,
            rows_of=None,
            rate_per_s=None,
            said="",
        )

    def _steps(self, event: Steps) -> None:
        now, seconds = self.told, sum(event.step_s)
        if now is None or seconds <= 0:
            return
        done = now.steps_done + len(event.step_s)
        if now.steps_expected:
            left = max(0, now.steps_expected - done) * seconds / len(event.step_s)
            self._ends_s = time.monotonic() + left
        rate = self._batch * len(event.step_s) / seconds if self._batch else None
        self._change(steps_done=done, rate_per_s=rate)

    def _change(self, **fields: object) -> None:
        if self.told is not None:
            self._set(self.told.model_copy(update=fields))

    def _set(self, now: RunProgress) -> None:
        self.told = now
        self._changed.set()

    def _write_all(self) -> None:
        with self._ledger.for_news() as book:
            while True:
                self._changed.wait()
                if self._ended.is_set():
                    break
                self._changed.clear()
                with suppress(LedgerError, ValueError):
                    progress.write(book, self._experiment_id, self._as_of_now())
                self._ended.wait(WRITE_EVERY_S)
            with suppress(LedgerError):  # what is left is recognised: nobody has the claim
                progress.clear(book, self._experiment_id)

    def _as_of_now(self) -> RunProgress:
        assert self.told is not None
        ends_s = self._ends_s
        left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
        now = self.told.model_copy(update={"left_s": left_s, "said": self.told.said[:LONGEST_TEXT]})
        return RunProgress.model_validate(now.model_dump())
