"""The figure of a program, from a pattern over what it prints.

Numbers are read strictly: `1,234.5` is refused and not taken for 1. A pattern that is somebody's may backtrack without an
end; Python's own engine looks for signals while it does, so a timer of CPU time ends it (a thread could not: the engine
holds the interpreter).
"""

import math
import re
import signal
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean, median
from types import FrameType

from stackmark.events import LARGEST, SMALLEST, Figure
from stackmark.workloads.command.definition import CommandParams, compile_metric
from stackmark.workloads.command.impl.output import short
from stackmark.workloads.workload import WorkloadFailure

# CPU seconds for what was read at once, at most 64 KiB: a sensible pattern takes a thousandth of that.
SEARCH_LIMIT_S = 2.0
# A figure for each step of a long run; more is a pattern that matches everything.
MOST_MATCHES = 1_000_000
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class _TooSlow(Exception):
    pass


class Finder:
    """Collects the matches of a pattern, one number each; what is no number is remembered, and only counts if it is used."""

    def __init__(self, params: CommandParams) -> None:
        self._params = params
        self._pattern = compile_metric(params.metric)
        self._values = array("d")
        # The last match that was no number: what the group held, and its line.
        self._odd = ("", "")

    def search(self, lines: list[str]) -> None:
        try:
            with _limited():
                for line in lines:
                    self._search(line)
        except _TooSlow:
            raise WorkloadFailure(
                "no_figure",
                f"the pattern {self._params.metric!r} was not through with the program's output after {SEARCH_LIMIT_S:g} s",
                "a repetition within a repetition, like (a+)+, has no end: write a plainer --metric",
            ) from None

    def _search(self, line: str) -> None:
        for match in self._pattern.finditer(line):
            text = (match[1] or "").strip()
            number = float(text) if _NUMBER.fullmatch(text) else math.nan
            if not SMALLEST <= number <= LARGEST:
                self._odd = (text, line)
            self._values.append(number)
        if len(self._values) > MOST_MATCHES:
            raise WorkloadFailure(
                "no_figure",
                f"the pattern {self._params.metric!r} matched more than {MOST_MATCHES:,} times",
                "write a --metric that matches the program's result and not all that it prints",
            )

    def figure(self, ending: str) -> Figure:
        """The figure, when the program has ended; `ending` is what it printed last."""
        params, found = self._params, self._values
        if not found:
            looked = f"its output ended with: {ending}" if ending else "it printed nothing"
            raise WorkloadFailure(
                "no_figure",
                f"no line of the program's output matched {params.metric!r}; {looked}",
                "each line is searched by itself, as Python's re.search does; all of them: stackmark show RUN --log",
            )
        used = found[params.metric_skip :]
        if not used:
            raise WorkloadFailure(
                "no_figure",
                f"the pattern matched {len(found)} times, and --metric-skip {params.metric_skip} leaves none of them",
                "skip fewer, or let the program run longer",
            )
        if params.metric_take == "last":
            used = used[-1:]
        if not all(SMALLEST <= value <= LARGEST for value in used):
            raise WorkloadFailure(
                "no_figure",
                f"{self._odd[0]!r} is no number between {SMALLEST:g} and {LARGEST:g}; it was found in: {short(self._odd[1])}",
                "a number is like 1234.5 or 1.2e3, without separators of thousands: let the group hold just that",
            )
        take = {"last": lambda values: values[-1], "median": median, "mean": fmean}[params.metric_take]
        return Figure(
            name="metric",
            value=take(used),
            unit=params.metric_unit or "units",
            higher_is_better=not params.metric_lower,
        )


@contextmanager
def _limited() -> Iterator[None]:
    """Raises _TooSlow after so many seconds of this process's own CPU time; in the main thread only."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
