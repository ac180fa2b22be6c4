"""What a check found, in a terminal: the verdict first and last, between them a line for each workload and what stands behind it.

A sentence that holds for several workloads is printed once. Changes are those of the figure itself: a latency that doubles is
+100 %. The ratio in `--json` is of rates, so that more is better.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from stackmark.errors import Exit
from stackmark.experiments.check import RULES, Checked, Rate
from stackmark.figures import figure_fields, figure_unit
from stackmark.schemas import schema_name
from stackmark.show.junit import Case, Outcome
from stackmark.show.safe import cut_middle
from stackmark.show.terminal import Column, Line, is_screen, print_grid, print_table
from stackmark.show.verdict import COLOURS as WORD_COLOURS
from stackmark.show.verdict import comparison_json
from stackmark.show.wording import say_in_own_terms
from stackmark.units import counted
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import FactDifference

FAILED, INCOMPARABLE, NOT_COUNTED = "FAILED", "NOT COMPARABLE", "not counted"
COLOURS = {**WORD_COLOURS, FAILED: "bold red", INCOMPARABLE: "bold yellow", NOT_COUNTED: "dim"}
LINE_STYLES = {"failed": "red", "alarm": "bold red", "refused": "yellow", "note": "yellow", "next": "dim"}
COLUMNS = (
    Column("workload", style="cyan"),
    Column("before", right=True, drop=2),
    Column("now", right=True, drop=3),
    Column("change", right=True),
    Column("90 % interval"),
    Column("series", drop=1),
    Column("verdict"),
)
# What a table of 60 columns leaves to a label next to the change, its interval and the word.
NEXT_TO_LABEL, SHORTEST_LABEL = 45, 15
# The order in which a person asks.
PROOF = "to prove it"
KINDS = ("failed", "alarm", "refused", PROOF, "differs", "note", "needed")
NO_CHANGE = "nothing of driver, firmware, kernel and versions"
NOT_SEEN = "not known: nothing was measured"
DIFFERENCES_SHOWN = 3
# Below this weight a difference explains little, or speaks against itself; --json has them all.
WORTH_SHOWING = 20
# The worst first: so the summary of a check names them.
SEVERITY = (
    FAILED, INCOMPARABLE, "SLOWER", "WORSE", "LIKELY SLOWER", "LIKELY WORSE", "INCONCLUSIVE", "FASTER", "BETTER",
    "LIKELY FASTER", "LIKELY BETTER", "EQUIVALENT",
)  # fmt: skip
# At most this many workloads are named in the summary, and none whose word asks for nothing.
NAMED, QUIET = 4, "EQUIVALENT"


def word_of(one: Checked) -> str:
    """Return the word of today's verdict, or why there is none: it failed, or it was refused."""
    if one.comparison:
        return one.comparison.word
    return FAILED if has_failed(one) else INCOMPARABLE


def has_failed(one: Checked) -> bool:
    return one.trouble is not None and one.trouble.code != Exit.WRONG_USE


def print_check(checked: Sequence[Checked], console: Console, again: str) -> None:
    """`again` is the command that checks once more."""
    verdict: Line = ("verdict", summary(checked))
    styles = {**LINE_STYLES, "verdict": COLOURS[_worst(checked)]} if checked else LINE_STYLES
    nothing = NO_CHANGE if any(one.now for one in checked) else NOT_SEEN
    changed: list[Line] = [("changed", change) for change in stack_changed(checked) or [nothing]]
    print_grid(console, [verdict, *changed], styles)
    room = max(console.width - NEXT_TO_LABEL, SHORTEST_LABEL) if is_screen(console) else None
    rows = [(cells, word) for one in checked for cells, word in _rows(one, room)]
    print_table(console, COLUMNS, [cells for cells, _ in rows], [COLOURS[word] for _, word in rows])
    behind = _behind(checked, again)
    # What would prove a likely word names the command already.
    following: list[Line] = [("next", again)] if all(name != PROOF for name, _ in behind) else []
    print_grid(console, [*behind, *following, verdict], styles)


def _worst(checked: Sequence[Checked]) -> str:
    return min((word_of(one) for one in checked), key=SEVERITY.index)


def summary(checked: Sequence[Checked]) -> str:
    """Say the verdict of a whole check in a line: `1 of 2 workloads LIKELY SLOWER: train/resnet20 −60.1 %; 1 EQUIVALENT`."""
    by_word: dict[str, list[Checked]] = {}
    for one in sorted(checked, key=lambda one: SEVERITY.index(word_of(one))):
        by_word.setdefault(word_of(one), []).append(one)
    parts = []
    for number, (word, those) in enumerate(by_word.items()):
        count = f"{len(those)} of {counted(len(checked), 'workload')} " if not number else f"{len(those)} "
        named = word != QUIET or len(checked) == 1
        figures = _from_to(checked[0]) if len(checked) == 1 else ""
        parts.append(f"{count if len(checked) > 1 else ''}{word}{_named(those) if named else ''}{figures}")
    later = [one for one in checked if _is_slower_lately(one)]
    if later:
        assert later[0].lately_comparison
        parts.append(f"{later[0].lately_comparison.word} with the earlier checks{_named(later, lately=True)}")
    if ringing := [one.label for one in checked if one.alarm and one.alarm.rings]:
        parts.append(f"alarm: {_listed(ringing)}")
    return "; ".join(parts)


def _from_to(one: Checked) -> str:
    """Say both figures: a narrow screen has no room for them in the table."""
    if one.comparison is None or one.before is None or one.now is None:
        return ""
    unit = figure_unit(one.unit)
    return f", from {unit.number(one.before.rate_per_s)} to {unit.say(one.now.rate_per_s)}"


def _is_slower_lately(one: Checked) -> bool:
    """Tell whether only today's check and the earlier ones together show that it is slower."""
    return bool(
        one.lately_comparison and one.lately_comparison.is_slower and not (one.comparison and one.comparison.is_slower)
    )


def _named(those: Sequence[Checked], *, lately: bool = False) -> str:
    said = []
    for one in those:
        seen = one.lately_comparison if lately else one.comparison
        said.append(f"{one.label} {figure_unit(one.unit).say_shift(seen.ratio)[0]}" if seen else one.label)
    return f": {_listed(said)}"


def _listed(said: Sequence[str]) -> str:
    more = f" and {len(said) - NAMED} more" if len(said) > NAMED else ""
    return f"{', '.join(said[:NAMED])}{more}"


def stack_changed(checked: Sequence[Checked]) -> list[str]:
    """Return what changed in the stack; with the workloads that saw it, where others did not (an image of its own)."""
    seen = [one for one in checked if one.now]
    about: dict[str, list[str]] = {}
    for one in seen:
        for change in one.stack_changed:
            about.setdefault(str(change), []).append(one.label)
    return [text if len(of) == len(seen) else f"{text} ({', '.join(of)})" for text, of in about.items()]


def _rows(one: Checked, room: int | None) -> list[tuple[list[str], str]]:
    """Make a workload's line and those of its earlier checks, each with its word."""
    label = cut_middle(one.label, room) if room else one.label
    word, lately, unit = word_of(one), one.lately_comparison, figure_unit(one.unit)
    rows = [(_cells(label, one, one.now, one.comparison, word), word)]
    if (same := one.same_series) and one.before:
        change = unit.say_shift(same.rate_per_s / one.before.rate_per_s)[0]
        checks = f"same, {counted(same.checks, 'check')}"
        cells = ["  earlier", "", unit.say(same.rate_per_s), change, "", checks, NOT_COUNTED]
        rows.append((cells, NOT_COUNTED))
    if lately:
        checks = f"  + {lately.count_b - 1} earlier"
        rows.append((_cells(checks, one, one.lately, lately, lately.word), lately.word))
    return rows


def _cells(label: str, one: Checked, rate: Rate | None, seen: Comparison | None, word: str) -> list[str]:
    unit = figure_unit(one.unit)
    before = unit.number(one.before.rate_per_s) if one.before else ""
    now = unit.say(rate.rate_per_s) if rate else ""
    if seen is None:
        return [label, before, now, "", "", "", word]
    counts = f"{seen.count_b} against {one.before.series if one.before else 0}"
    bounds = (seen.interval_90.low, seen.interval_90.high) if seen.interval_90 else None
    change, interval = unit.say_shift(seen.ratio, bounds)
    return [label, before, now, change, interval or "no interval", counts, word]


def _behind(checked: Sequence[Checked], again: str) -> list[Line]:
    """Say what the table has no room for. The sentence of a verdict says what the table does; JSON and JUnit have it."""
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
        if any(pair and _is_telling(pair) for pair in (seen, lately)):
            found += [("differs", one.label, text) for text in say_differences(one.changed)]
        notes = (*one.doubts, *seen.notes, *(lately.notes if lately else ()))
        found += [("note", one.label, text) for text in dict.fromkeys(notes)]
        # What the checks together decide needs no forecast for today's alone.
        last = lately or seen
        if last.is_likely:
            found += [(PROOF, one.label, text) for text in say_proof(last, again)]
        elif last.needed:
            found.append(("needed", one.label, _say_needed(last)))
    return _said_once(found, len(checked))


def say_proof(likely: Comparison, again: str) -> list[str]:
    """Say what would turn a likely word into a verdict, with the commands."""
    stays = f"to see whether it stays {likely.word.removeprefix('LIKELY ').lower()}"
    return [_say_needed(likely), f"{stays}, check again after an hour or on another day: {again}"]


def _say_needed(seen: Comparison) -> str:
    assert seen.needed
    by_series = seen.kind == "series" and seen.sd_log is None
    return f"{seen.needed.sentence}: stackmark baseline save {seen.a}" if by_series else seen.needed.sentence


def _is_telling(seen: Comparison) -> bool:
    return seen.is_slower or seen.is_faster or seen.difference is not None


def say_differences(differs: Sequence[FactDifference]) -> list[str]:
    """Say the few that matter most."""
    shown = [one for one in differs if one.weight >= WORTH_SHOWING][:DIFFERENCES_SHOWN]
    return [f"{one.subject}.{one.key}: {' | '.join(one.values)} ({one.why})" for one in shown]


def _said_once(found: Sequence[tuple[str, str, str]], lines: int) -> list[Line]:
    """Print each sentence once, with the workloads that it is about where it is not about all of them."""
    about: dict[tuple[str, str], list[str]] = {}
    for name, label, text in found:
        about.setdefault((name, text), []).append(label)
    ordered = sorted(about.items(), key=lambda item: KINDS.index(item[0][0]))
    return [
        (name, text if len(labels) == lines else f"{', '.join(labels)}: {text}") for (name, text), labels in ordered
    ]


# --- for programs -------------------------------------------------------------------------------------------------------


def junit_case(one: Checked, *, failed: bool, again: str) -> Case:
    """Make the test case of a workload; `failed` tells whether --fail-on names its verdict, `again` is the command."""
    stored = [f"experiment: {one.experiment_id}"] if one.experiment_id else []
    stored += [f"changed: {change}" for change in one.stack_changed]
    seen = one.comparison
    if seen is None:
        assert one.trouble
        return Case(one.label, one.seconds, "error", word_of(one), one.trouble.message, [one.trouble.hint, *stored])
    unit = figure_unit(one.unit)
    sides = (("before", one.before), ("now", one.now))
    numbers = [f"{name}: {unit.say(rate.rate_per_s)}{unit.direction}" for name, rate in sides if rate]
    numbers.append(f"change: {unit.say_shift(seen.ratio)[0]}")
    numbers.append(f"ratio: {seen.ratio:.6f}")
    if seen.interval_90:
        numbers.append(f"90 % interval: {seen.interval_90.low:.6f} to {seen.interval_90.high:.6f}")
    outcome: Outcome = "failure" if failed else "passed"
    if seen.is_slower or seen.is_faster:
        stored += [f"differs: {text}" for text in say_differences(one.changed)]
    if one.same_series:
        same = one.same_series
        checks = counted(same.checks, "check")
        stored.append(
            f"earlier in this series, not counted: {unit.say(same.rate_per_s)} ({checks}, {counted(same.runs, 'run')})"
        )
    if one.lately_comparison:
        stored.append(f"lately: {one.lately_comparison.sentence}")
    if one.alarm and one.alarm.rings:
        stored.append(f"alarm: {one.alarm.sentence}")
    notes = [f"note: {note}" for note in (*one.doubts, *seen.notes)]
    proof = [f"{PROOF}: {text}" for text in say_proof(seen, again)] if seen.is_likely else []
    output = [*numbers, *stored, *proof, *notes]
    return Case(one.label, one.seconds, outcome, seen.word, say_in_own_terms(seen, unit), output)


def _rate_json(rate: Rate | None, unit: str) -> dict[str, Any] | None:
    return asdict(rate) | figure_fields(rate.rate_per_s, unit) if rate else None


def _same_series_json(one: Checked) -> dict[str, Any] | None:
    same = one.same_series
    return asdict(same) | figure_fields(same.rate_per_s, one.unit) if same else None


def check_json(name: str, margin: float, checked: Sequence[Checked]) -> dict[str, Any]:
    return {
        "schema": schema_name("check"),
        "rules": RULES,
        "baseline": name,
        "margin": margin,
        "summary": summary(checked),
        "stack_changed": stack_changed(checked),
        "workloads": [
            {
                "workload": one.workload,
                "label": one.label,
                "place": one.place,
                "experiment": one.experiment_id or None,
                "unit": one.unit,
                "metric": one.metric or None,
                "seconds": one.seconds,
                "before": _rate_json(one.before, one.unit),
                "now": _rate_json(one.now, one.unit),
                "verdict": comparison_json(one.comparison),
                "lately": _rate_json(one.lately, one.unit),
                "lately_verdict": comparison_json(one.lately_comparison),
                "same_series": _same_series_json(one),
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
