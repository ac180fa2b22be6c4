"""A saved log of one of our own workers: its event lines, whatever else stands between them, and whatever passed them on.

`kubectl logs` gives both of a container's streams in one, so that an event may also stand behind the first part of a line of
the other. Each worker begins with `hello`; a second one in the same log is the next run, unless it is the same event again (a
log that was followed, lost and followed again). The events are kept as they are and go through what a live worker's go through:
they are the output of a program that nobody here has seen.
"""

import json
import re

from stackmark.events import EVENT_PREFIX, is_for_people
from stackmark.ledger.importers.found import Found, Line, ResultLines
from stackmark.model import ValidationError
from stackmark.spec import Spec

FORMAT = "stackmark"
TITLE = "a worker of stackmark (its event lines)"
MARK = re.compile(r'\{"event":"[a-z]{1,40}","seq":[0-9]{1,15},"rank":')
# A day of telemetry is 20 MiB, and the lines of a file are held in memory.
LARGEST_BYTES = 256 * 1024**2

_KIND = re.compile(r'\{"event":"([a-z]{1,40})",')
# An event behind other text, on one line.
_WITHIN = re.compile(r'\{"event":"[a-z]{1,40}","seq":[0-9]{1,15},')
# What only a worker that measures says; one that was asked to choose parameters, or what the machine is, ends without it.
_OF_A_RUN = frozenset({"result", "failed", "steps", "row", "sample", "metric"})
_ENDS_AN_ANSWER = ('"subject":"environment"', '"subject":"stackmark"')


class OwnWorkerImporter:
    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._kept = ResultLines()
        self._events: list[str] = []
        self._kinds: set[str] = set()
        self._greetings: dict[int, tuple[object, object]] = {}
        self._ranks = 1
        self._spec: Spec | None = None
        self._answered = False

    def feed(self, line: Line) -> list[Found]:
        text = _event_in(line.text)
        if text is None:
            if not is_for_people(line.text):  # the events say the same
                self._kept.add(line)
            return []
        kind = match[1] if (match := _KIND.match(text)) else ""
        ended: list[Found] = []
        if kind == "hello":
            ended = self._greeted(text)
        elif kind == "probe":
            self._spec = self._spec or _spec_in(text)
        elif kind == "facts" and any(last in text for last in _ENDS_AN_ANSWER):
            self._answered = True
        self._kinds.add(kind)
        self._events.append(text)
        return ended

    def _greeted(self, text: str) -> list[Found]:
        """Take in a `hello`: what ended before it, where it is of another process than the one before."""
        said = _object(text)
        rank, who = said.get("rank", 0), (said.get("time_unix_s"), said.get("pid"))
        rank = rank if isinstance(rank, int) else 0
        ended = self.end() if self._greetings.get(rank, who) != who else []
        self._greetings.setdefault(rank, who)
        ranks = said.get("ranks")
        self._ranks = ranks if isinstance(ranks, int) and ranks > 0 else 1
        self._spec = self._spec or _spec_in(text)
        return ended

    def end(self) -> list[Found]:
        """Return the run that was read; nothing where the worker was only asked something."""
        events, kinds, spec, ranks, answered = self._events, self._kinds, self._spec, self._ranks, self._answered
        lines = self._kept.taken()
        self._forget()
        if not events or (answered and not kinds & _OF_A_RUN and ("probe" in kinds or "phase" not in kinds)):
            return []
        return [
            Found(
                workload=spec.workload if spec else None,
                params=dict(spec.params) if spec else {},
                program=FORMAT,
                ranks=spec.ranks if spec else ranks,
                events=tuple(events),
                spec=spec,
                lines=lines,
            )
        ]


def _event_in(text: str) -> str | None:
    if text.startswith(EVENT_PREFIX):
        return text
    match = _WITHIN.search(text)
    return text[match.start() :] if match and text.endswith("}") else None


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _spec_in(text: str) -> Spec | None:
    """The spec that an event names; one that cannot be is none."""
    try:
        spec = _object(text).get("spec")
        return Spec.model_validate(spec) if isinstance(spec, dict) else None
    except (ValidationError, ValueError):
        return None
