"""What a check found, in a terminal: what changed in the stack first, then one line a workload, then what stands behind it.

A sentence that holds for several workloads is said once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from stackmark.show.console import is_screen
from stackmark.show.lines import NAME_WIDTH, Line, grid
from stackmark.show.report.wording import say_interval, say_ratio
from stackmark.show.safe import safe_line
from stackmark.show.table import Column, print_table
from stackmark.show.verdict import COLOURS as WORD_COLOURS
from stackmark.units import counted, say_rate
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import FactDifference

FAILED, INCOMPARABLE = "FAILED", "NOT COMPARABLE"
COLOURS = {**WORD_COLOURS, FAILED: "bold red", INCOMPARABLE: "bold yellow"}
LINE_STYLES = {"failed": "red", "alarm": "bold red", "refused": "yellow", "note": "yellow", "next": "dim"}
COLUMNS = (
    Column("workload", style="cyan"),
    Column("before", right=True, drop=3),
    Column("now", right=True, drop=2),
    Column("ratio", right=True),
    Column("90 % interval"),
    Column("series", drop=1),
    Column("verdict"),
)
# The order in which a person asks.
KINDS = ("failed", "alarm", "refused", "verdict", "differs", "note", "needed")
NO_CHANGE = "nothing of driver, firmware, kernel and versions"
NOT_SEEN = "not known: nothing was measured"
DIFFERENCES_SHOWN = 3
# Below this weight a difference explains little, or speaks against itself; --json has them all.
WORTH_SHOWING = 20


@dataclass(frozen=True)
class CheckLine:
    """One workload. Rates are per second in `unit`; `series` is how many the baseline has.

    `now` is of today's series alone; `lately` of today's and the earlier checks since the rate last changed.
    """

    label: str
    unit: str
    before: float | None
    now: float | None
    comparison: Comparison | None
    series: int
    differs: Sequence[FactDifference] = ()
    doubts: Sequence[str] = ()
    trouble: str = ""
    hint: str = ""
    # Whether there is no comparison because it failed, or because it was refused.
    failed: bool = False
    lately: float | None = None
    lately_comparison: Comparison | None = None
    alarm: str = ""

    @property
    def word(self) -> str:
        if self.comparison:
            return self.comparison.word
        return FAILED if self.failed else INCOMPARABLE


def print_check(lines: Sequence[CheckLine], changed: Sequence[str], console: Console, again: str) -> None:
    """`changed` is the stack's; `again` the command that checks once more."""
    nothing = NO_CHANGE if any(line.now for line in lines) else NOT_SEEN
    _print_lines(console, [("changed", change) for change in changed or [nothing]])
    rows = [(cells, word) for line in lines for cells, word in _rows(line)]
    print_table(console, COLUMNS, [cells for cells, _ in rows], [COLOURS[word] for _, word in rows])
    _print_lines(console, [*_behind(lines), ("next", again)])


def _rows(line: CheckLine) -> list[tuple[list[str], str]]:
    """Make a workload's line, and a second one where earlier checks add to it; each with its word."""
    before = say_rate(line.before) if line.before else ""
    rows = [(_cells(line.label, before, line.now, line.unit, line.series, line.comparison, line.word), line.word)]
    lately = line.lately_comparison
    if lately:
        label = f"  with {counted(lately.count_b - 1, 'earlier check')}"
        rows.append((_cells(label, before, line.lately, line.unit, line.series, lately, lately.word), lately.word))
    return rows


def _cells(
    label: str, before: str, rate: float | None, unit: str, series: int, seen: Comparison | None, word: str
) -> list[str]:
    now = f"{say_rate(rate)} {unit}" if rate else ""
    if seen is None:
        return [label, before, now, "", "", "", word]
    counts = f"{seen.count_b} against {series}"
    return [label, before, now, say_ratio(seen.ratio), say_interval(seen.interval_90), counts, word]


def _behind(lines: Sequence[CheckLine]) -> list[Line]:
    """What the table has no room for."""
    found: list[tuple[str, str, str]] = []
    for line in lines:
        if line.trouble:
            hint = f"; {line.hint}" if line.hint else ""
            found.append(("failed" if line.failed else "refused", line.label, f"{line.trouble}{hint}"))
        seen, lately = line.comparison, line.lately_comparison
        if seen is None:
            continue
        if line.alarm:
            found.append(("alarm", line.label, line.alarm))
        if telling := [one for one in (seen, lately) if one and _is_telling(one)]:
            found += [("verdict", line.label, one.sentence) for one in telling]
            found += [("differs", line.label, text) for text in say_differences(line.differs)]
        notes = (*line.doubts, *seen.notes, *(lately.notes if lately else ()))
        found += [("note", line.label, text) for text in dict.fromkeys(notes)]
        # What the checks together decide needs no forecast for today's alone.
        last = lately or seen
        if last.needed:
            found.append(("needed", line.label, last.needed.sentence))
    return _said_once(found, len(lines))


def _is_telling(seen: Comparison) -> bool:
    return seen.is_slower or seen.is_faster or seen.difference is not None


def say_differences(differs: Sequence[FactDifference]) -> list[str]:
    """The few that matter most."""
    shown = [one for one in differs if one.weight >= WORTH_SHOWING][:DIFFERENCES_SHOWN]
    return [f"{one.subject}.{one.key}: {' | '.join(one.values)} ({one.why})" for one in shown]


def _said_once(found: Sequence[tuple[str, str, str]], lines: int) -> list[Line]:
    """With the workloads that it is about, where it is not about all of them."""
    about: dict[tuple[str, str], list[str]] = {}
    for name, label, text in found:
        about.setdefault((name, text), []).append(label)
    ordered = sorted(about.items(), key=lambda item: KINDS.index(item[0][0]))
    return [
        (name, text if len(labels) == lines else f"{', '.join(labels)}: {text}") for (name, text), labels in ordered
    ]


def _print_lines(console: Console, lines: Sequence[Line]) -> None:
    if not is_screen(console):
        for name, text in lines:
            print(f"{name:<{NAME_WIDTH}}{safe_line(text)}".rstrip(), file=console.file)
        return
    console.print(grid(lines, LINE_STYLES))
