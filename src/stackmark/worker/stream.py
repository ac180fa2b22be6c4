"""Guard the worker's descriptor 1, and write the events on it.

Libraries print: NCCL, cuDNN, MKL and OpenMP write to descriptor 1 from C, where replacing `sys.stdout` does not help. So
the real standard output is moved to a descriptor of its own and number 1 is pointed at standard error: whatever else in
the process writes there cannot break an event.

One thread of its own numbers and writes the events. Writing where they arise was tried: a signal becomes an exception in
the main thread, and between two bytecodes of a write it tore a line, or left an event written and not counted, so that the
last word had the number of the one before and was dropped as a repeat. Now a blocked reader, too, blocks nobody but this
thread, in any part of a run.
"""

import errno
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any

from stackmark import events
from stackmark.errors import StackmarkError
from stackmark.histogram import Histogram
from stackmark.model import JsonValue

# How many steps fit into an event: the bytes of the longest step (a day, in nanoseconds) and of the longest value that
# was read at one (its index, and a number of 17 digits with an exponent), and the room that the event's own keys leave.
STEP_BYTES = 19
VALUE_BYTES = 40
STEPS_ROOM_BYTES = 7600
STEPS_PER_EVENT = STEPS_ROOM_BYTES // STEP_BYTES
# Of a histogram: a time in nanoseconds has at most 15 digits, a cell with its count somewhat more than two numbers of that kind.
NUMBERS_PER_EVENT = 400
# How long the last word waits for a blocked reader, and the rest of the process for its end when the reader is gone.
LAST_WORD_S = 1.0
# Texts by which an event is known or its numbers are understood: never cut.
_NEVER_CUT = {"event", "phase", "state", "kind", "subject", "spec", "name", "unit", "sample"}


def guard_stdout() -> int:
    """Move standard output away and return its new descriptor; number 1 is standard error from now on."""
    sys.stdout.flush()
    private = os.dup(1)
    os.set_inheritable(private, False)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return private


class Emitter:
    """Takes events from any thread and writes them in that order.

    When they cannot be written, the process has no purpose any more: `leave` is called with its exit code.
    """

    def __init__(
        self,
        descriptor: int,
        rank: int = 0,
        leave: Callable[[int], object] | None = None,
        copy: str | None = None,
    ) -> None:
        self.rank = rank
        self._descriptor = descriptor
        self._leave = leave
        # A file that is written first: where the reader is gone, or stands still, it has what the reader has not.
        self._copy = copy
        # Makes the lines for people that follow an event (readable.py); set before the first event.
        self.people: Callable[[events.Event], Iterable[str]] | None = None
        self._begin = time.monotonic()
        self._queue: SimpleQueue[events.Event | threading.Event | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write_all, name="events", daemon=True)
        self._writer.start()

    def __call__(self, kind: type[events.Event], /, **fields: Any) -> None:
        # Its number is given by the writer. The call is one `put`, which a signal's exception cannot cut in two.
        self._queue.put(kind(seq=0, rank=self.rank, t=round(self.now(), 6), **fields))

    def now(self) -> float:
        """Return the time of the events, in seconds since the worker began."""
        return time.monotonic() - self._begin

    def since(self, monotonic_s: float) -> float:
        """Return a moment that another process of this machine read from the same clock, as the events have it."""
        return round(max(0.0, monotonic_s - self._begin), 3)

    def last(self, kind: type[events.Event], /, **fields: Any) -> None:
        """Write the last event. It does not wait long for a blocked reader."""
        self(kind, **fields)
        self.close(LAST_WORD_S)

    def rest(self) -> None:
        """Let the writer catch up, so that it is idle while the next steps are timed; do not wait for a blocked reader."""
        reached = threading.Event()
        self._queue.put(reached)
        reached.wait(LAST_WORD_S)

    def close(self, timeout_s: float = math.inf) -> None:
        """Wait until everything is written; what comes later is not."""
        self._queue.put(None)
        deadline = time.monotonic() + timeout_s
        # In small waits: the main thread must hear a signal in between, in every version of Python.
        while self._writer.is_alive() and (left := deadline - time.monotonic()) > 0:
            self._writer.join(min(left, 0.2))

    def _write_all(self) -> None:
        seq = 0
        while (event := self._queue.get()) is not None:
            if isinstance(event, threading.Event):
                event.set()
                continue
            try:
                line = _line(event.model_copy(update={"seq": seq}))
                self._write_copy(line)
                self._write(line)
                seq += 1
                for text in self._for_people(event):
                    self._write(text.encode("utf-8", "replace") + b"\n")
            except OSError as error:
                with suppress(OSError):  # who reads no events may read no errors either
                    print(f"the events cannot be written: {error}", file=sys.stderr, flush=True)
                # The lifeline may end in the same moment, and whoever watches it has more to clean up than we.
                time.sleep(LAST_WORD_S)
                kind = "lost_driver" if error.errno == errno.EPIPE else "bad_output"
                if self._leave:
                    self._leave(events.FAILURE_EXIT_CODES[kind])
                return

    def _write(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._descriptor, line) :]

    def _for_people(self, event: events.Event) -> list[str]:
        """Return the lines for people. Their failure costs these lines, never an event."""
        if self.people is None:
            return []
        try:
            return list(self.people(event))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, StackmarkError) as error:
            self.people = None
            with suppress(OSError):
                print(f"the lines for people stopped: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return []

    def _write_copy(self, line: bytes) -> None:
        """A disk that is full costs the copy, not the run."""
        if self._copy is None:
            return
        try:
            with open(self._copy, "ab", buffering=0) as file:
                file.write(line)
        except OSError as error:
            self._copy = None
            with suppress(OSError):
                print(f"the copy of the events stopped: {error}", file=sys.stderr, flush=True)

    def steps(self, phase: str, first: int, step_s: list[float], values: list[tuple[int, dict[str, float]]]) -> None:
        """Step seconds in as many events as they need; `values` are what was read at some of the steps."""
        for start, end in _pieces(first, len(step_s), values):
            low, high = first + start, first + end
            read = {
                name: [(i, v[key]) for i, v in values if low <= i < high and key in v and math.isfinite(v[key])]
                for name, key in (("losses", "loss"), ("top_1", "top_1"), ("top_5", "top_5"))
            }
            self(events.Steps, phase=phase, first=low, step_s=[round(s, 9) for s in step_s[start:end]], **read)

    def histogram(self, histogram: Histogram) -> None:
        """A histogram of times in as many events as it needs."""
        for piece in histogram.pieces(NUMBERS_PER_EVENT):
            self(events.Latencies, name=histogram.name, **vars(piece))

    @contextmanager
    def part(self, name: str, note: str = "", expected_s: float | None = None) -> Iterator[None]:
        """Announce a part of the run, and its seconds when it ends well."""
        self(events.Phase, phase=name, state="begin", note=note, expected_s=expected_s)
        begin = time.perf_counter()
        yield
        self(events.Phase, phase=name, state="end", seconds=round(time.perf_counter() - begin, 6), note=note)


def _pieces(first: int, steps: int, values: list[tuple[int, dict[str, float]]]) -> Iterator[tuple[int, int]]:
    """Where to cut, so that each piece fits into an event."""
    read = {index: len(found) for index, found in values}
    start, room = 0, STEPS_ROOM_BYTES
    for place in range(steps):
        size = STEP_BYTES + VALUE_BYTES * read.get(first + place, 0)
        if size > room:
            yield start, place
            start, room = place, STEPS_ROOM_BYTES
        room -= size
    if start < steps:
        yield start, steps


def _line(event: events.Event) -> bytes:
    """An event past the limit loses the end of its longest texts; numbers are never cut."""
    line = events.write_event(event)
    longest = events.EVENT_LIMIT_BYTES
    while len(line) + 1 > events.EVENT_LIMIT_BYTES and longest > 32:
        longest //= 2
        line = events.write_event(type(event).model_validate(_shortened(event.model_dump(mode="json"), longest)))
    return line.encode() + b"\n"


def _shortened(value: JsonValue, longest: int) -> Any:
    if isinstance(value, dict):
        return {name: part if name in _NEVER_CUT else _shortened(part, longest) for name, part in value.items()}
    if isinstance(value, list):
        return [_shortened(part, longest) for part in value]
    return f"{value[:longest]} …(cut)" if isinstance(value, str) and len(value) > longest else value
