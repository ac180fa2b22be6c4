"""Turn a program's output into lines that can be searched and stored, whatever it is: a hundred megabytes, binary, a
progress bar that never ends its line.

A carriage return begins the line again, as on a screen: each state of a progress bar is searched, and the last one is kept.
Colours and other escape sequences are taken out. Of a long line the beginning is looked at, of many lines the first ones
and the last ones are kept, so that neither can fill the memory.
"""

import codecs
import errno
import math
import os
import re
import signal
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, median
from types import FrameType

from stackmark.events import LARGEST, SMALLEST, Figure
from stackmark.figures import UNKNOWN_UNIT
from stackmark.secrets_masking import MASK
from stackmark.spec import SCRATCH_VARIABLE
from stackmark.workloads.command.definition import WALL_TIME as WALL_TIME
from stackmark.workloads.command.definition import CommandParams, compile_metric, metric_name
from stackmark.workloads.workload import WorkloadFailure

# Long enough for a result in one line of JSON. What is kept of a line is less: an event holds 8 KiB.
LINE_CHARACTERS = 16_384
KEPT_CHARACTERS = 2_000
FIRST_LINES, LAST_LINES = 300, 300
# A shorter value is no secret worth the name, and hiding it would take digits out of figures.
SHORTEST_HIDDEN = 6
# A sentence about a failure shows this many of the last lines, and so much of each.
SHOWN_LINES, SHOWN_CHARACTERS = 3, 160

# CSI (colours, cursor), OSC (titles, links) and the escapes of two characters.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


class Lines:
    """One of a program's two streams. `feed` returns every state of every line; `take` gets what is stored of a line."""

    def __init__(self, take: Callable[[str], None], hidden: Sequence[str] = ()) -> None:
        """`hidden` are texts that must not be kept: values of variables that the program got as arguments."""
        self._take = take
        self._hidden = [text for text in hidden if len(text) >= SHORTEST_HIDDEN]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._part = ""
        self._overwritten = ""
        self._too_long = False
        self.last = ""
        self.cut = 0

    def feed(self, data: bytes, end: bool = False) -> list[str]:
        """Return the lines, and states of a line, that these bytes complete."""
        text = self._decoder.decode(data, end)
        *pieces, rest = text.split("\n") if "\r" not in text else re.split(r"(?<=\r)|\n", text)
        found = []
        for piece in pieces:
            self._add(piece.removesuffix("\r"))
            found.append(self._state())
            if piece.endswith("\r"):
                self._overwritten = found[-1] or self._overwritten
            else:
                self._keep(found[-1])
        self._add(rest)
        if end and (self._part or self._overwritten):
            found.append(self._state())
            self._keep(found[-1])
        return [state for state in found if state]

    def _add(self, piece: str) -> None:
        room = LINE_CHARACTERS - len(self._part)
        self._too_long |= len(piece) > room
        self._part += piece[:room]

    def _state(self) -> str:
        state, self._part = self._part, ""
        self.cut, self._too_long = self.cut + self._too_long, False
        state = _ESCAPES.sub("", state) if "\x1b" in state else state
        for text in self._hidden:
            state = state.replace(text, MASK)
        return state

    def _keep(self, state: str) -> None:
        # `100 %\r\n`, and a bar that was wiped away at the end: what stood there last is what a person remembers.
        line, self._overwritten = state or self._overwritten, ""
        if line.strip():
            self.last = line
        self._take(line[:KEPT_CHARACTERS])


class OutputLines:
    """The stored lines of a program: the first ones go out as they come, the last ones at the end."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._recent: deque[str] = deque(maxlen=SHOWN_LINES)
        self.count = 0

    def take(self, line: str) -> None:
        self.count += 1
        if line.strip():
            self._recent.append(line)
        if self.count <= FIRST_LINES:
            self._log(line)
        else:
            self._last.append(line)

    def close(self) -> None:
        left_out = self.count - FIRST_LINES - len(self._last)
        if left_out > 0:
            self._log(f"… {left_out:,} lines of the program's output left out …")
        while self._last:
            self._log(self._last.popleft())

    def ending(self) -> str:
        """Return the last lines with text, for a sentence."""
        return " ⏎ ".join(short(line) for line in self._recent)


def short(line: str) -> str:
    """Shorten a line for a sentence and escape what does not print."""
    line = "".join(
        sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line[:KEPT_CHARACTERS].strip()
    )
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"


# --- the figure -------------------------------------------------------------------------------------------------------
#
# The figure of a program, from a pattern over what it prints.
#
# Numbers are read strictly: `1,234.5` is refused and not taken for 1. A pattern that is somebody's may backtrack without an
# end; Python's own engine looks for signals while it does, so a timer of CPU time ends it (a thread could not: the engine
# holds the interpreter).


# CPU seconds for what was read at once, at most 64 KiB: a sensible pattern takes a thousandth of that.
SEARCH_LIMIT_S = 2.0
# A figure for each step of a long run; more is a pattern that matches everything.
MOST_MATCHES = 1_000_000
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class _TooSlow(Exception):
    pass


class Finder:
    """Collects the matches of a pattern, one number each; an invalid number is remembered and only counts if it is used."""

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
                f"searching the program's output for {self._params.metric!r} took more than {SEARCH_LIMIT_S:g} s",
                "nested repetitions like (a+)+ take too long: write a simpler --metric",
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
                "write a --metric that matches only the program's result",
            )

    def figure(self, ending: str) -> Figure:
        """Return the figure after the program has ended; `ending` is its last output."""
        params, found = self._params, self._values
        if not found:
            looked = f"its output ended with: {ending}" if ending else "it printed nothing"
            raise WorkloadFailure(
                "no_figure",
                f"no line of the program's output matched {params.metric!r}; {looked}",
                "each line is searched separately, by Python's re.search; see the output: stackmark show RUN --log",
            )
        used = found[params.metric_skip :]
        if not used:
            raise WorkloadFailure(
                "no_figure",
                f"the pattern matched {len(found)} times, and --metric-skip {params.metric_skip} ignores all of them",
                "skip fewer, or let the program run longer",
            )
        if params.metric_take == "last":
            used = used[-1:]
        if not all(SMALLEST <= value <= LARGEST for value in used):
            raise WorkloadFailure(
                "no_figure",
                f"a figure must be above 0 and below {LARGEST:g}; {self._odd[0]!r} was found in: {short(self._odd[1])}",
                "let the group match only a number like 1234.5 or 1.2e3, without thousands separators",
            )
        takes: dict[str, Callable[[array[float]], float]] = {
            "last": lambda values: values[-1], "median": median, "mean": fmean,
        }  # fmt: skip
        take = takes[params.metric_take]
        return Figure(
            name=metric_name(params.model_dump()),
            value=take(used),
            unit=params.metric_unit or UNKNOWN_UNIT,
            higher_is_better=not params.metric_lower,
        )


@contextmanager
def _limited() -> Iterator[None]:
    """Raise _TooSlow after this many seconds of this process's own CPU time; only the main thread can be stopped like this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


# --- all of it together -----------------------------------------------------------------------------------------------

# What a shell says by these exit codes, and people often see.
_CODES = {126: "it cannot be executed", 127: "a program in it was not found"}


class ProgramOutput:
    """All output of a program, on its way to the log and to the figure: two streams, and the search for the pattern."""

    def __init__(self, params: CommandParams, log: Callable[[str], None], hidden: Sequence[str] = ()) -> None:
        self._kept = OutputLines(log)
        self._out, self._err = Lines(self._kept.take, hidden), Lines(self._kept.take, hidden)
        self._finder = Finder(params) if params.metric else None
        self._searching = self._finder is not None

    def out(self, data: bytes, end: bool = False) -> None:
        """Take in bytes of standard output; raise WorkloadFailure where the pattern cannot be searched for."""
        self._take(self._out, data, end)

    def err(self, data: bytes, end: bool = False) -> None:
        """Take in bytes of standard error."""
        self._take(self._err, data, end)

    def _take(self, lines: Lines, data: bytes, end: bool) -> None:
        found = lines.feed(data, end)
        if self._finder and self._searching:
            # Where it fails, what the program still says while it is ended is kept, and not searched again.
            self._searching = False
            self._finder.search(found)
            self._searching = True

    def close(self) -> None:
        """Hand on the last lines that are kept."""
        self._kept.close()

    def flags(self) -> list[str]:
        cut = self._out.cut + self._err.cut
        if not self._finder or not cut:
            return []
        return [f"long-lines: {cut} long lines of the program's output were searched only at their beginning"]

    def figure(self, wall_s: float) -> Figure:
        """Return the figure of a program that has ended well: what the pattern found, or else its time."""
        if self._finder:
            return self._finder.figure(self._kept.ending())
        return Figure(name=WALL_TIME, value=wall_s, unit="s", higher_is_better=False)

    def failure(self, code: int) -> WorkloadFailure:
        """Say how a program ended that did not end well; a negative code is the signal that ended it."""
        if code < 0:
            known = {int(number) for number in signal.Signals}
            how = f"was ended by {signal.Signals(-code).name if -code in known else f'signal {-code}'}"
        else:
            how = f"ended with code {code}" + (f" ({_CODES[code]})" if code in _CODES else "")
        last = self._err.last or self._out.last
        said = f"; its last output was: {short(last)}" if last else "; it printed nothing"
        hint = "see its output: stackmark show RUN --log"
        if os.strerror(errno.EROFS).lower() in last.lower():
            hint = (
                f"in a container the program's folder is read-only: write to ${SCRATCH_VARIABLE}, which is deleted after "
                "the run, or to a folder that is mounted writable: --mount SRC:DST:rw"
            )
        return WorkloadFailure("command_failed", f"the program {how}{said}", hint)
