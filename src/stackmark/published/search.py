"""Search published rows by a few words: `resnet50 V100`, `8x H200 llama2`, `bert amp NVIDIA 2023`.

Every word has to fit a row. A chip is not compared letter by letter but taken apart as everywhere else, so that `V100` finds
what was measured on a `Tesla V100-SXM2-16GB`, and `H100` also finds the PCIe card, behind the plain one. Everything else is
compared without case and punctuation, since one source writes `resnet50v1.5` and the other `resnet50_v1.5`.

A full-text index was considered: ten thousand rows are read through in a tenth of a second, because most of their cells are
the same few texts, and an index ranks by how rare a word is, which says nothing about how near a number is.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from stackmark.errors import SpecError, nearest_names
from stackmark.published.chips import Chip, parse_chip
from stackmark.published.table import PRECISIONS, TASKS, UNIT_SPELLINGS, UNITS, Published
from stackmark.units import counted

# Words of one query that are tried together as the name of one chip: "RTX PRO 6000 Blackwell Max-Q" has five.
_CHIP_WORDS = 6
# More words than anybody types; each is compared with every row.
MOST_WORDS = 20
_WORDS = re.compile(r"[^0-9a-z]+")
# What people call a precision.
_PRECISIONS = {
    "amp": ("mixed",), "half": ("mixed", "bf16", "fp16"), "float16": ("fp16",), "bfloat16": ("bf16",),
    "float32": ("fp32",), "float": ("fp32",), "single": ("fp32",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query: the chip and the number of them where the words name one, and the other words."""

    words: tuple[str, ...]
    chip: Chip | None
    count: int | None
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching row and its score: higher is better; only for ranking."""

    row: Published
    score: float


def understand(text: str, rows: Iterable[Published], *, unit: str | None = None) -> Query:
    """Parse a query. A word is a chip only if some row has that chip."""
    words = [part for word in text.split() for part in _split_count(word)]
    if len(words) > MOST_WORDS:
        raise SpecError(f"at most {MOST_WORDS} words can be searched for, got {len(words)}")
    count = None
    rest: list[str] = []
    for word in words:
        if counted := re.fullmatch(r"(\d{1,9})[x×]|[x×](\d{1,9})", word, re.I):
            count = int(counted[1] or counted[2])
        else:
            rest.append(word)
    chips = {_chip(name) for name in {row.chip for row in rows}}
    for length in range(min(_CHIP_WORDS, len(rest)), 0, -1):
        for start in range(len(rest) - length + 1):
            chip = _asked_chip(" ".join(rest[start : start + length]), chips)
            if chip is not None:
                return Query(tuple(rest[:start] + rest[start + length :]), chip, count, read_unit(unit))
    return Query(tuple(rest), None, count, read_unit(unit))


def _split_count(word: str) -> list[str]:
    """`8xH200` is two words."""
    found = re.fullmatch(r"(\d{1,9}[x×])([^\W\d_]\S*)", word, re.I)
    return [found[1], found[2]] if found else [word]


def _asked_chip(text: str, chips: Iterable[Chip]) -> Chip | None:
    for spelled in (text, text.upper()):
        asked = parse_chip(spelled)
        if asked.kind != "unknown" and any(_is(asked, chip) for chip in chips):
            return asked
    return None


def _is(asked: Chip, chip: Chip) -> bool:
    """Whether a chip is what was asked for: what was not said (memory, PCIe) may be anything."""
    return (
        (asked.kind, asked.vendor, asked.model) == (chip.kind, chip.vendor, chip.model)
        and asked.memory in ("", chip.memory)
        and asked.variant in ("", chip.variant)
    )


_chip = cache(parse_chip)


def read_unit(text: str | None) -> str | None:
    """Parse a unit; raise a sentence with similar ones for a unit that no row can have."""
    if text is None:
        return None
    unit = UNIT_SPELLINGS.get(text.strip(), text.strip())
    by_case = {known.lower(): known for known in UNITS}
    if unit.lower() not in by_case:
        near = nearest_names(unit, sorted(UNITS))
        raise SpecError(f"unknown unit {text!r}{near}", hint=f"units are {', '.join(sorted(UNITS))}")
    return by_case[unit.lower()]


def search(rows: Sequence[Published], query: Query) -> list[Hit]:
    """Find the rows that match everything, the best first: the exact name, fewer devices, the newest."""
    hits = [Hit(row, score) for row in rows if (score := _score(query, row)) is not None]
    hits.sort(key=lambda hit: hit.row.date, reverse=True)
    hits.sort(key=lambda hit: (-hit.score, hit.row.count))  # stable: the newest stay first among equals
    return hits


def _score(query: Query, row: Published) -> float | None:
    if query.unit is not None and row.unit != query.unit:
        return None
    if query.count is not None and row.count != query.count:
        return None
    score = 0.0
    if query.chip is not None:
        chip = _chip(row.chip)
        if not _is(query.chip, chip):
            return None
        score += 1.0 if query.chip.variant == chip.variant else 0.0
    for word in query.words:
        fits = _fit(word, row)
        if fits == 0.0:
            return None
        score += fits
    return score


def _fit(word: str, row: Published) -> float:
    """How well a word fits a row: 3 its model, its precision or a whole word of it, less for a part of one, 0 not at all."""
    plain = _squash(word)
    if not plain:
        return 1.0  # punctuation
    if plain in _PRECISIONS or plain in PRECISIONS:
        return 3.0 if row.precision in _PRECISIONS.get(plain, (plain,)) else 0.0  # "amp" is also a part of "samples"
    names = [_squash(row.workload.partition("/")[2]), _squash(row.model.partition(" @")[0]), _squash(row.workload)]
    names.append(_squash(str(row.extra.get("network", ""))))
    if plain in names:
        return 3.0
    if len(plain) > 2 and any(name.startswith(plain) for name in names):
        return 2.5
    said = _said(row)
    if any(plain in _words(text) for text in said):
        return 2.0
    if row.date.startswith(word):
        return 2.0
    # A letter or two are in everything.
    if len(plain) < 3:
        return 0.0
    return 1.0 if any(plain in name for name in names) or any(plain in _joined(text) for text in said) else 0.0


def _said(row: Published) -> tuple[str, ...]:
    """The cells that words are looked for in."""
    more = (str(row.extra.get(name, "")) for name in _MORE)
    return (
        row.workload,
        row.model,
        row.task,
        row.chip,
        row.system,
        row.framework,
        row.source,
        row.data,
        row.unit,
        *more,
    )


_MORE = ("submitter", "scenario", "place", "compiler", "layout", "system")


@cache
def _words(text: str) -> frozenset[str]:
    """Of one cell: its words without punctuation, and their parts."""
    words = text.split()
    return frozenset(
        {_squash(word) for word in words} | {part for word in words for part in _WORDS.split(word.lower())}
    )


@cache
def _joined(text: str) -> str:
    return " ".join(_words(text))


@cache
def _squash(text: str) -> str:
    return _WORDS.sub("", text.lower())


def why_nothing(rows: Sequence[Published], query: Query) -> str:
    """Say what would have been found, where nothing was."""
    unknown = [word for word in query.words if not any(_fit(word, row) for row in rows)]
    if unknown:
        known = _vocabulary(rows)
        said = [f"{word!r}{nearest_names(_squash(word), known).rstrip('?')}" for word in unknown]
        return f"no row has {' or '.join(said)}" + ("?" if "did you mean" in said[-1] else "")
    alone = [(repr(word), sum(bool(_fit(word, row)) for row in rows)) for word in query.words]
    if query.chip is not None:
        alone.append((str(query.chip), sum(_is(query.chip, _chip(row.chip)) for row in rows)))
    if query.count is not None:
        alone.append((f"{query.count} devices", sum(row.count == query.count for row in rows)))
    if query.unit is not None:
        alone.append((query.unit, sum(row.unit == query.unit for row in rows)))
    counts = ", ".join(f"{name} {counted(number, 'row')}" for name, number in alone)
    return f"no row has all words; separately: {counts}"


def _vocabulary(rows: Iterable[Published]) -> list[str]:
    """Names that somebody may have meant, as short as people type them."""
    names: set[str] = set(PRECISIONS | TASKS)
    for row in rows:
        names |= {row.workload.partition("/")[2], _chip(row.chip).short.lower(), row.source.split()[0].lower()}
        names |= {word.lower() for word in _chip(row.chip).short.split()} | {row.framework.split(" ")[0].lower()}
        if row.task != "operator":  # whose model is its shape
            names.add(row.model.partition(" @")[0].lower())
    return sorted(filter(None, names))
