"""How far a list has come in the run at hand: for a bar, and for lines in a log."""

import time
from collections.abc import Callable

from stackmark.events import OpRow, Row
from stackmark.units import counted, say_rate
from stackmark.verdict.operators import row_of


def say_row(row: OpRow) -> str:
    """`0.812 TFLOP/s`, from its samples."""
    result = row_of([row])
    return f"{say_rate(result.rate)} {result.unit}" if result.rate else ""


class RowsSeen:
    """How far a list has come in the run at hand."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.done = self.failed = 0

    def take(self, event: Row) -> float:
        """One more; about how many seconds the others take, as the ones before did."""
        self.done, self.failed = event.done, self.failed + bool(event.row.failure_kind)
        return (self._clock() - self._began) / event.done * max(event.of - event.done, 0)

    def __str__(self) -> str:
        if not self.done:
            return ""
        return counted(self.done, "row") + (f", {self.failed} failed" if self.failed else "")
