"""Track which lines of a log were passed on: drop repeats, find gaps, and fill them where possible.

After a lost connection the log is asked for again from a whole second (the API knows no finer), a little before the last line
that was seen. What comes then was partly seen. Events have their number; for other lines the last few seconds are remembered
as a multiset of (stamp, text): two equal lines of one nanosecond are two lines. If the first line that comes again was not seen,
the place where we stopped is no longer in the log: it was rotated away, and lines between are missing, whether or not they were
events. Only hashes are kept, so a log of any length takes a few megabytes.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from stackmark.events import EVENT_PREFIX, is_for_people
from stackmark.kubernetes.log.lines import Number, Record, event_number, event_within, second_before, unix_second

# Asked again are the last two seconds in which there were lines, and the one before them: the runtime stamps the two streams
# each for itself, so that stamps may be out of order by a little, also across a second's end.
KEPT_SECONDS, ASKED_SECONDS = 4, 2
# Lines that begin as an event and are none wait for the next event, which tells whether they are the ruins of one.
HELD_LINES = 100
# A program's print may look like an event of the far future each time: so often we look on the node in vain.
FRUITLESS_MENDS = 5


class SeenLines:
    """The lines seen in the last few seconds of the log."""

    def __init__(self) -> None:
        self._seconds: dict[str, Counter[int]] = {}
        self._repeats: dict[str, Counter[int]] = {}

    def __bool__(self) -> bool:
        return any(self._seconds.values())

    @property
    def since(self) -> str | None:
        """Return the second from which the log must be requested again; None at its beginning."""
        last = min(list(self._seconds)[-ASKED_SECONDS:], key=unix_second, default=None)
        return second_before(last) if last else None

    def again(self) -> None:
        """Start a new reading: remembered records may come again."""
        self._repeats = {second: counted.copy() for second, counted in self._seconds.items()}

    def is_repeat(self, record: Record) -> bool:
        expected = self._repeats.get(record.second)
        key = hash((record.stamp, record.text))
        if expected is None or expected[key] <= 0:
            return False
        expected[key] -= 1
        return True

    def add(self, record: Record) -> None:
        self.touch(record)[hash((record.stamp, record.text))] += 1

    def touch(self, record: Record) -> Counter[int]:
        """Return the memory of the record's second, which becomes the newest."""
        second = record.second
        counted = self._seconds.pop(second, None)
        if counted is None:
            counted = Counter()
            while len(self._seconds) >= KEPT_SECONDS:
                del self._seconds[next(iter(self._seconds))]
        self._seconds[second] = counted
        return counted


@dataclass(frozen=True)
class Gap:
    """Missing lines: from the second `since` on, up to the received line `until`; None: to the log's end."""

    since: str | None
    until: Record | None
    # Only events are missing: their neighbours were seen, if not in one piece.
    events_only: bool = False


Mend = Callable[[Gap, Callable[[Record], bool]], bool]
"""Reads what is missing from elsewhere, record by record, until told to stop; whether there was an elsewhere."""


@dataclass
class InOrder:
    """Takes the records of several readings, and passes each event and each other line on once."""

    line: Callable[[str], None]
    other: Callable[[str], None]
    mend: Mend
    # The log is of a program that is not ours: whatever its lines look like, none is an event.
    plain: bool = False
    seen: SeenLines = field(default_factory=SeenLines)
    # Events of a rank that never came, as half-open ranges.
    missing: list[tuple[int, int, int]] = field(default_factory=list)
    # Lines that were new, and those of them that came from elsewhere.
    taken: int = 0
    mended: int = 0
    # Lines that are no events may be missing too: the log was rotated while it was not read, and its older part cannot be had.
    torn: bool = False
    _next: dict[int, int] = field(default_factory=dict)
    _held: list[str] = field(default_factory=list)
    _glued: deque[str] = field(default_factory=lambda: deque(maxlen=8))
    _mending: bool = False
    _fruitless: int = 0
    _first: bool = False
    # The second of the very first line, and of each rank's last event: outside of what is remembered, these tell old from new.
    _origin: str | None = None
    _event_second: dict[int, str] = field(default_factory=dict)

    def begin(self) -> None:
        """Start a reading, from `seen.since`."""
        self.seen.again()
        self._first = bool(self.seen)

    def take(self, record: Record) -> None:
        first, self._first = self._first, False
        if self.seen.is_repeat(record):
            return
        if first:
            self._mend(Gap(self.seen.since, record))
        self._origin = self._origin or record.second
        self.taken += 1
        self.seen.add(record)
        self._hand_on(record.text, record)

    def read_to_end(self) -> None:
        """End a reading. One that had to repeat something and did not has lost its place."""
        if self._first:
            self._first = False
            self._mend(Gap(self.seen.since, None))

    def finish(self) -> None:
        """Finish: no more records come."""
        if self._held:
            before = dict(self._next)
            self._mend(Gap(self._event_second.get(0), None, events_only=True))
            self._let_go(ruins=self._next != before)

    def lost_of(self) -> str:
        """Describe the missing events; empty where none is missing."""
        ranges = [f"{first}" if last == first + 1 else f"{first} to {last - 1}" for _, first, last in self.missing]
        return f"the events {', '.join(ranges[:5])}{' …' if len(ranges) > 5 else ''}" if ranges else ""

    def _hand_on(self, text: str, record: Record) -> None:
        if self.plain:
            self.other(text)
            return
        if not text.startswith(EVENT_PREFIX) or record.stream == "stderr":
            within = event_within(text) if EVENT_PREFIX in text and not record.stream else None
            if within:
                self._glued.append(within)
            if not is_for_people(text):  # the events say the same
                self.other(text)
            return
        number = event_number(text)
        if number is None:
            self._held.append(text)
            if len(self._held) > HELD_LINES:
                self._let_go(ruins=False)
            return
        self._event(text, number, record)

    def _event(self, text: str, number: Number, record: Record) -> None:
        expected = self._next.get(number.rank, 0)
        if number.seq < expected:
            if self._was_missing(number):
                self.line(text)
            return
        ruins = self._mending  # the node had whole what came broken
        if number.seq > expected:
            self._find(number, record)
            expected = self._next.get(number.rank, 0)
            if number.seq < expected:
                return  # mended beyond it
            ruins = number.seq == expected
        if number.seq > expected:
            self.missing.append((number.rank, expected, number.seq))
        self._let_go(ruins)
        self._say(text, number, record)

    def _find(self, number: Number, record: Record) -> None:
        """Looks for the events before this one: in lines that swallowed them, else on the node."""
        for text in list(self._glued):
            within = event_number(text)
            if within and within == Number(number.rank, self._next.get(number.rank, 0)):
                self._say(text, within, record)
        if self._next.get(number.rank, 0) < number.seq:
            self._mend(Gap(self._event_second.get(number.rank), record, events_only=bool(self._held)))

    def _mend(self, gap: Gap) -> None:
        if self._mending or self._fruitless >= FRUITLESS_MENDS:
            return
        before, self._mending = self.mended, True
        until = event_number(gap.until.text) if gap.until and gap.until.text.startswith(EVENT_PREFIX) else None
        from_s = unix_second(gap.since) if gap.since else 0.0
        origin_s = unix_second(self._origin) if self._origin else inf
        window_s = unix_second(self.seen.since) if self.seen.since else 0.0
        self.seen.again()

        def take(record: Record) -> bool:
            """Take a record and return whether more is wanted."""
            moment_s = unix_second(record.second)
            if moment_s < from_s:
                return True
            event = event_number(record.text) if record.text.startswith(EVENT_PREFIX) else None
            if gap.until and (
                record[:2] == gap.until[:2] or (until and event and event.rank == until.rank and event >= until)
            ):
                return False
            # A line that is not an event, older than what is remembered and younger than our first, was seen long ago.
            long_seen = gap.events_only or origin_s <= moment_s < window_s
            if self.seen.is_repeat(record) or (long_seen and not event):
                return True
            self.seen.add(record)
            self.mended += 1
            self._hand_on(record.text, record)
            return True

        try:
            found = self.mend(gap, take)
        finally:
            self._mending = False
        self._fruitless = 0 if self.mended > before else self._fruitless + 1
        self.torn = self.torn or (not found and not gap.events_only)
        # Should the reading that goes on show what was mended, it is known.
        self.seen.again()

    def _was_missing(self, number: Number) -> bool:
        for at, (rank, first, last) in enumerate(self.missing):
            if rank == number.rank and first <= number.seq < last:
                left = [(rank, first, number.seq), (rank, number.seq + 1, last)]
                self.missing[at : at + 1] = [one for one in left if one[1] < one[2]]
                return True
        return False

    def _say(self, text: str, number: Number, record: Record) -> None:
        self._next[number.rank] = number.seq + 1
        self._event_second[number.rank] = record.second
        self._glued.clear()
        self.line(text)

    def _let_go(self, ruins: bool) -> None:
        """Lines that began as events: `ruins` of ones that were found whole are no more than somebody's text."""
        held, self._held = self._held, []
        for text in held:
            (self.other if ruins else self.line)(text)
