"""What a check found, in a terminal: what changed in the stack first, then one line a workload, then what stands behind it.

A sentence that holds for several workloads is said once.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from stackmark.errors import Exit
from stackmark.experiments.check import RULES, Checked, Rate
from stackmark.figures import figure_fields, figure_unit
from stackmark.show.junit import Case, Outcome
from stackmark.show.terminal import Column, Line, print_grid, print_table
from stackmark.show.verdict import COLOURS as WORD_COLOURS
from stackmark.show.verdict import comparison_json
from stackmark.show.wording import say_in_own_terms, say_interval, say_ratio
from stackmark.units import counted
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import FactDifference

# 2: series instead of sittings; `now` and `verdict` are of today's series alone, `lately` has the earlier checks too.
SCHEMA = 2
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


def word_of(one: Checked) -> str:
    """Return the word of today's verdict, or why there is none: it failed, or it was refused."""
    if one.comparison:
        return one.comparison.word
    return FAILED if has_failed(one) else INCOMPARABLE


def has_failed(one: Checked) -> bool:
    return one.trouble is not None and one.trouble.code != Exit.WRONG_USE


def print_check(checked: Sequence[Checked], console: Console, again: str) -> None:
    """`again` is the command that checks once more."""
    nothing = NO_CHANGE if any(one.now for one in checked) else NOT_SEEN
    print_grid(console, [("changed", change) for change in stack_changed(checked) or [nothing]], LINE_STYLES)
    rows = [(cells, word) for one in checked for cells, word in _rows(one)]
    print_table(console, COLUMNS, [cells for cells, _ in rows], [COLOURS[word] for _, word in rows])
    print_grid(console, [*_behind(checked), ("next", again)], LINE_STYLES)


def stack_changed(checked: Sequence[Checked]) -> list[str]:
    """Return what changed in the stack; with the workloads that saw it, where others did not (an image of its own)."""
    seen = [one for one in checked if one.now]
    about: dict[str, list[str]] = {}
    for one in seen:
        for change in one.stack_changed:
            about.setdefault(str(change), []).append(one.label)
    return [text if len(of) == len(seen) else f"{text} ({', '.join(of)})" for text, of in about.items()]


def _rows(one: Checked) -> list[tuple[list[str], str]]:
    """Make a workload's line, and a second one where earlier checks add to it; each with its word."""
    word, lately = word_of(one), one.lately_comparison
    rows = [(_cells(one.label, one, one.now, one.comparison, word), word)]
    if lately:
        label = f"  with {counted(lately.count_b - 1, 'earlier check')}"
        rows.append((_cells(label, one, one.lately, lately, lately.word), lately.word))
    return rows


def _cells(label: str, one: Checked, rate: Rate | None, seen: Comparison | None, word: str) -> list[str]:
    unit = figure_unit(one.unit)
    before = unit.number(one.before.rate_per_s) if one.before else ""
    now = unit.say(rate.rate_per_s) if rate else ""
    if seen is None:
        return [label, before, now, "", "", "", word]
    counts = f"{seen.count_b} against {one.before.series if one.before else 0}"
    return [label, before, now, say_ratio(seen.ratio), say_interval(seen.interval_90), counts, word]


def _behind(checked: Sequence[Checked]) -> list[Line]:
    """Say what the table has no room for."""
    found: list[tuple[str, str, str]] = []
    for one in checked:
        if one.trouble:
            hint = f"; {one.trouble.hint}" if one.trouble.hint else ""
            found.append(("failed" if has_failed(one) else "refused", one.label, f"{one.trouble.message}{hint}"))
        seen, lately = one.comparison, one.lately_comparison
        if seen is None:
            continue
        if one.alarm and one.alarm.rings:
            found.append(("alarm", one.label, one.alarm.sentence))
        if telling := [pair for pair in (seen, lately) if pair and _is_telling(pair)]:
            unit = figure_unit(one.unit)
            found += [("verdict", one.label, say_in_own_terms(pair, unit)) for pair in telling]
            found += [("differs", one.label, text) for text in say_differences(one.changed)]
        notes = (*one.doubts, *seen.notes, *(lately.notes if lately else ()))
        found += [("note", one.label, text) for text in dict.fromkeys(notes)]
        # What the checks together decide needs no forecast for today's alone.
        last = lately or seen
        if last.needed:
            found.append(("needed", one.label, last.needed.sentence))
    return _said_once(found, len(checked))


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


# --- for programs -------------------------------------------------------------------------------------------------------


def junit_case(one: Checked, *, failed: bool) -> Case:
    """Make the test case of a workload; `failed` tells whether --fail-on names its verdict."""
    stored = [f"experiment: {one.experiment_id}"] if one.experiment_id else []
    stored += [f"changed: {change}" for change in one.stack_changed]
    seen = one.comparison
    if seen is None:
        assert one.trouble
        return Case(one.label, one.seconds, "error", word_of(one), one.trouble.message, [one.trouble.hint, *stored])
    unit = figure_unit(one.unit)
    sides = (("before", one.before), ("now", one.now))
    numbers = [f"{name}: {unit.say(rate.rate_per_s)}{unit.direction}" for name, rate in sides if rate]
    numbers.append(f"ratio: {seen.ratio:.6f}")
    if seen.interval_90:
        numbers.append(f"90 % interval: {seen.interval_90.low:.6f} to {seen.interval_90.high:.6f}")
    outcome: Outcome = "failure" if failed else "passed"
    if seen.is_slower or seen.is_faster:
        stored += [f"differs: {text}" for text in say_differences(one.changed)]
    if one.lately_comparison:
        stored.append(f"lately: {one.lately_comparison.sentence}")
    if one.alarm and one.alarm.rings:
        stored.append(f"alarm: {one.alarm.sentence}")
    notes = [f"note: {note}" for note in (*one.doubts, *seen.notes)]
    return Case(one.label, one.seconds, outcome, seen.word, say_in_own_terms(seen, unit), [*numbers, *stored, *notes])


def _rate_json(rate: Rate | None, unit: str) -> dict[str, Any] | None:
    return asdict(rate) | figure_fields(rate.rate_per_s, unit) if rate else None


def check_json(name: str, margin: float, checked: Sequence[Checked]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "rules": RULES,
        "baseline": name,
        "margin": margin,
        "stack_changed": stack_changed(checked),
        "workloads": [
            {
                "workload": one.workload,
                "label": one.label,
                "place": one.place,
                "experiment": one.experiment_id or None,
                "unit": one.unit,
                "seconds": one.seconds,
                "before": _rate_json(one.before, one.unit),
                "now": _rate_json(one.now, one.unit),
                "verdict": comparison_json(one.comparison),
                "lately": _rate_json(one.lately, one.unit),
                "lately_verdict": comparison_json(one.lately_comparison),
                "alarm": {**asdict(one.alarm), "rings": one.alarm.rings} if one.alarm else None,
                "stack_changed": [asdict(change) for change in one.stack_changed],
                "changed": [asdict(difference) for difference in one.changed],
                "doubts": list(one.doubts),
                "failed": has_failed(one),
                "error": one.trouble.message if one.trouble else None,
                "hint": one.trouble.hint or None if one.trouble else None,
            }
            for one in checked
        ],
    }
