"""Parse the lines of a pod's log: bytes become (stamp, text), and an event line gives its number in the stream.

Two forms. The API's, with `timestamps=true`: `STAMP text`, both of the container's streams mixed, long lines put together again
by the kubelet. The runtime's own files on the node: `STAMP stdout F text`, where P instead of F marks a part of a line (16 KiB
with containerd, whatever a read gave with CRI-O). The stamp has nanoseconds and tells two equal lines apart; the runtime cuts
its trailing zeros and the kubelet does not, so it is written out here. A stamp is kept as text: a float has no room for it.
"""

import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from stackmark.events import EVENT_PREFIX, LINE_LIMIT_BYTES
from stackmark.failures import LOG_INCOMPLETE, PlaceFailure
from stackmark.spec import Task

# Longer than a stamp with its time zone: what a line without an end may have more than its text.
_STAMP_ROOM = 64
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")
_CRI = re.compile(rb"(stdout|stderr) ([A-Z:]+) ?")


class Record(NamedTuple):
    """One line, or a piece of one that is too long. `stamp` is empty where there was none: the kubelet's own messages."""

    stamp: str
    text: str
    stream: str = ""

    @property
    def second(self) -> str:
        """Return the stamp's second in the API's format: `2026-11-15T12:30:09Z`."""
        return self.stamp[:19] + self.stamp[29:]


class ApiLines:
    """Turns bytes of the API's log into records. A line without an end is passed on in pieces of one size, however its
    bytes come, so that the pieces are the same when they come again."""

    def __init__(self) -> None:
        self._rest = b""
        # Of the line whose pieces are being handed on.
        self._stamp: str | None = None

    @property
    def unfinished(self) -> Record | None:
        """Return the line that has begun and not ended."""
        return self._record(self._rest) if self._rest and self._stamp is None else None

    def feed(self, data: bytes) -> Iterator[Record]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield from self._whole(line)
        while len(self._rest) > LINE_LIMIT_BYTES + _STAMP_ROOM:
            yield self._piece()

    def finish(self) -> Iterator[Record]:
        """Return what has no newline at the log's end."""
        rest, self._rest = self._rest, b""
        if rest:
            yield from self._whole(rest)

    def _whole(self, line: bytes) -> Iterator[Record]:
        self._rest, kept = line, self._rest
        while len(self._rest) > LINE_LIMIT_BYTES + _STAMP_ROOM:
            yield self._piece()
        if self._rest or self._stamp is None:
            yield self._record(self._rest)
        self._rest, self._stamp = kept, None

    def _piece(self) -> Record:
        begun = self._record(self._rest[:_STAMP_ROOM]) if self._stamp is None else None
        start = _after_stamp(self._rest) if begun else 0
        piece = self._record(self._rest[: start + LINE_LIMIT_BYTES])
        self._rest = self._rest[start + LINE_LIMIT_BYTES :]
        self._stamp = piece.stamp
        return piece

    def _record(self, line: bytes) -> Record:
        if self._stamp is not None:
            return Record(self._stamp, _text(line))
        return stamped(line)


class NodeLines:
    """Turns bytes of the runtime's own file into whole lines, joining the parts of each stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._begun: dict[str, tuple[str, bytearray]] = {}

    def feed(self, data: bytes) -> Iterator[Record]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > 4 * LINE_LIMIT_BYTES:
            self._rest = b""  # no runtime writes such a line: this is not a log
        for line in lines:
            head = _STAMP.match(line)
            kind = _CRI.match(line, head.end()) if head else None
            if head and kind:
                yield from self._part(_stamp(head), kind[1].decode(), kind[2] == b"P", line[kind.end() :])

    def _part(self, stamp: str, stream: str, partial: bool, part: bytes) -> Iterator[Record]:
        began, text = self._begun.get(stream) or (stamp, bytearray())
        text += part
        while len(text) > LINE_LIMIT_BYTES:
            yield Record(began, _text(bytes(text[:LINE_LIMIT_BYTES])), stream)
            del text[:LINE_LIMIT_BYTES]
        if partial:
            self._begun[stream] = began, text
            return
        self._begun.pop(stream, None)
        yield Record(began, _text(bytes(text)), stream)


def stamped(line: bytes) -> Record:
    head = _STAMP.match(line)
    if head is None:
        # An empty line has its stamp and no blank behind it where something trimmed it.
        head = _STAMP.match(line.rstrip(b"\r") + b" ")
    return Record(_stamp(head), _text(line[head.end() :])) if head else Record("", _text(line))


@lru_cache(maxsize=64)
def unix_second(second: str) -> float:
    """Return the moment of a record's second; 0 where it is invalid (a log can contain anything)."""
    try:
        return datetime.fromisoformat(second).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def second_before(second: str) -> str | None:
    """Return the second before it in the API's format; None where it is invalid."""
    try:
        return (datetime.fromisoformat(second) - timedelta(seconds=1)).isoformat()
    except (ValueError, OverflowError):
        return None


class Number(NamedTuple):
    rank: int
    seq: int


def event_number(text: str) -> Number | None:
    """Return the event's number in its rank's stream; None where the line begins as an event but is not one."""
    try:
        data = json.loads(text)
        seq, rank = data.get("seq"), data.get("rank", 0)
    except (ValueError, RecursionError, AttributeError):
        return None
    if type(seq) is not int or type(rank) is not int or seq < 0 or rank < 0:
        return None
    return Number(rank, seq)


def event_within(text: str) -> str | None:
    """Return an event that follows the first part of a line of the other stream, which the kubelet puts on one line."""
    at = text.find(EVENT_PREFIX, 1)
    return text[at:] if at > 0 and event_number(text[at:]) else None


def _after_stamp(line: bytes) -> int:
    head = _STAMP.match(line)
    return head.end() if head else 0


def _stamp(head: re.Match[bytes]) -> str:
    return f"{head[1].decode()}.{(head[2] or b'').decode():0<9}{head[3].decode()}"


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")


# The end of a worker's stream

_RESULT, _FAILED, _FACTS = (f'{EVENT_PREFIX}"{name}"' for name in ("result", "failed", "facts"))
# A probe ends with its facts, the last of which are about these; older workers have no facts about stackmark.
_LAST_SUBJECTS = ('"subject":"environment"', '"subject":"stackmark"')


class Closing:
    """Looks in a worker's lines for the events that close its stream. A log that the API server calls whole may lack its end.

    The container runtime writes the log. What a container prints while containerd is down waits in a pipe, and is lost if the
    container ends before containerd is back: the pod's status then says that it ended with code 0, and nothing says that lines
    are missing. A worker that ends with code 0 has always closed its stream, so a stream without its closing event is the sign.
    """

    def __init__(self, task: Task | None, ranks: int | None = None) -> None:
        """`ranks` is how many of the run's ranks print into this log, where that is not all of them."""
        asked = (task.spec or task.request) if task else None
        self._measures = task is not None and task.do == "run"
        # Each rank of a run gives its own result.
        self._missing = (ranks or asked.ranks) if asked and self._measures else 1

    @classmethod
    def of(cls, task: Task | None, lines: Iterable[str], ranks: int | None = None) -> "Closing":
        made = cls(task, ranks)
        for text in lines:
            made.line(text)
        return made

    def line(self, text: str) -> None:
        if text.startswith(_FAILED):
            self._missing = 0
        elif text.startswith(_RESULT if self._measures else _FACTS):
            self._missing -= self._measures or any(subject in text for subject in _LAST_SUBJECTS)

    @property
    def seen(self) -> bool:
        return self._missing <= 0

    def failure(self, exit_code: int | None, node: str | None, runtime: str | None) -> PlaceFailure | None:
        """Return the failure of a worker that ended with code 0 but without its last event; None where there is none."""
        if exit_code != 0 or self.seen:
            return None
        where = f"the node {node} (container runtime {runtime or 'unknown'})" if node else "its node"
        return PlaceFailure(
            LOG_INCOMPLETE,
            f"the pod ended with code 0, but its log on {where} has no closing event: the last lines are missing",
            "run it again; a container runtime that is down or restarted when a container ends loses its last output "
            "(see the runtime's log on the node). If it happens every time, check that the image runs stackmark's worker.",
        )
