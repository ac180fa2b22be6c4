"""A request as pages see it, and their answer; the mistakes of an address are sentences."""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import TypeVar

from stackmark.api.browsing import Cursor, Edge
from stackmark.api.ledgers import Ledger
from stackmark.errors import SpecError
from stackmark.show.report.markup import NOTHING, Markup

T = TypeVar("T")
# Of a value in an address: longer than any name that is stored.
MOST_VALUE = 300
# Pages that take long to make are kept while nothing changes: as many, and as large together, as this.
MOST_KEPT, MOST_KEPT_CHARACTERS = 64, 64 << 20
_EDGE = re.compile(r"(before|after)~(-?\d{1,12}(?:\.\d{1,9})?)~([rx]-[0-9a-z]{26})")


class NotFound(SpecError):
    """The address names something that this ledger does not have."""


@dataclass(frozen=True)
class Answer:
    """What a page shows; a `fragment` is a part of one, which a script puts into place."""

    title: str
    body: Markup = NOTHING
    here: str = ""
    status: int = 200
    fragment: bool = False
    # A file instead: its content, its type and its name.
    file: tuple[bytes, str, str] | None = None


class KeptPages:
    """Results that took long to compute, by what they were computed from. The ones that were not used for long go first."""

    def __init__(self) -> None:
        self._found: OrderedDict[object, Markup] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def get(self, key: object, make: Callable[[], Markup]) -> Markup:
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
                return found
        made = make()
        with self._lock:
            if key not in self._found:
                self._found[key] = made
                self._size += len(made)
            while self._found and (len(self._found) > MOST_KEPT or self._size > MOST_KEPT_CHARACTERS):
                _, old = self._found.popitem(last=False)
                self._size -= len(old)
        return made

    def peek(self, key: object) -> Markup | None:
        with self._lock:
            return self._found.get(key)


@dataclass(frozen=True)
class Ask:
    """One request: the open ledger, what the address says, and who asks."""

    book: Ledger
    values: Mapping[str, str]
    where: Mapping[str, str] = field(default_factory=dict)
    # What forms of this session carry; empty where no action is allowed.
    secret: str = ""
    actions: bool = False
    kept: KeptPages = field(default_factory=KeptPages)

    def get(self, name: str) -> str:
        return self.values.get(name, "").strip()[:MOST_VALUE]

    def one_of(self, name: str, allowed: Mapping[str, object] | tuple[str, ...]) -> str:
        """Return a value that must be one of these; empty where it is not given."""
        value = self.get(name)
        if value and value not in allowed:
            raise SpecError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        return value

    def day(self, name: str, *, end: bool = False) -> float | None:
        """Return the beginning of a day in this machine's time zone, or with `end` that of the day after."""
        value = self.get(name)
        if not value:
            return None
        try:
            day = datetime.strptime(value, "%Y-%m-%d")
            return day.timestamp() + (86_400 if end else 0)
        except (ValueError, OverflowError, OSError) as error:
            raise SpecError(f"{name} must be a day like {time.strftime('%Y-%m-%d')}, got {value!r}") from error

    def edge(self) -> Edge | None:
        """Return where the page of a list begins."""
        value = self.get("from")
        if not value:
            return None
        found = _EDGE.fullmatch(value)
        if found is None:
            raise SpecError("the address of this page of the list is not complete", hint="begin with its first page")
        return Edge(Cursor(float(found[2]), found[3]), older=found[1] == "before")


def edge_text(edge: Edge | None) -> str:
    """Write where a page begins, as `Ask.edge` reads it; empty where there is none, or its row has no proper id."""
    if edge is None:
        return ""
    said = f"{'before' if edge.older else 'after'}~{edge.cursor.started_unix_s!r}~{edge.cursor.id}"
    return said if _EDGE.fullmatch(said) else ""


def as_glob(text: str) -> str:
    """Read what a person typed as the name of a workload: without a wildcard it may stand anywhere in it."""
    return text if not text or any(sign in text for sign in "*?[") else f"*{text}*"
