"""Two sides of stored runs row by row: a table in a terminal, Markdown, JUnit and JSON.

The summary stands first and last, what else differs between chips before the numbers, as in a single verdict.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic import JsonValue
from rich.console import Console

from stackmark.experiments.group_tables import GroupTable, TableRow, say_runs
from stackmark.schemas import with_schema
from stackmark.show.junit import Case, render_junit
from stackmark.show.result import figure_json
from stackmark.show.safe import LABEL_AT_MOST, cut_middle, safe_line
from stackmark.show.sections import Sections, differences_worth
from stackmark.show.terminal import Column, Line, is_screen, print_named, print_table
from stackmark.show.verdict import comparison_json, plain_json
from stackmark.show.verdict_summary import COLOURS, COMMANDS, STYLES, WORTH_SHOWING, coloured
from stackmark.show.wording import say_change
from stackmark.units import counted, say_multiple
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import ExaminedArm
from stackmark.verdict.family import HOLM_NOTE
from stackmark.verdict.needed import percent
from stackmark.verdict.unpaired import say_by_factor
from stackmark.workloads.command.definition import metric_name

# From here on a factor is easier to read than a percentage.
FACTOR_FROM = 2.0
NOTES_SHOWN, DIFFERENCES_SHOWN = 4, 6


def print_group_table(table: GroupTable, console: Console, *, details: bool = False) -> None:
    """Print the summary, what else differs, the rows, and the summary again; with `details` a sentence for each row."""
    said = summary(table)
    before = _differences(table)
    lines = [*(_sentences(table) if details else []), *_below(table, details)]
    columns = _columns(table)
    cells = [_cells(row) for row in table.rows]
    styles = [COLOURS.get(row.comparison.word, "") if row.comparison else "yellow" for row in table.rows]
    if not is_screen(console):
        print_named(console, [("verdict", said), *before], STYLES)
        print_table(console, columns, cells, styles)
        print_named(console, [*lines, ("verdict", said)], STYLES)
        return
    console.print(coloured(safe_line(said)))
    print_named(console, before, STYLES)
    print_table(console, columns, cells, styles)
    print_named(console, lines, STYLES, COMMANDS)
    console.print(coloured(safe_line(said)))


def summary(table: GroupTable) -> str:
    """`V100 against P100 by precision: 2 FASTER`; of undated logs, what they say by themselves."""
    words = Counter(_word(row) for row in table.rows)
    counts = ", ".join(f"{count} {word}" for word, count in words.items())
    ratios = sorted(one.ratio for one in table.comparisons)
    spread = say_factor(ratios[0]) + (f" to {say_factor(ratios[-1])}" if len(ratios) > 1 else "")
    return f"{counts} at {percent(table.margin)}: {table.b} against {table.a} by {', '.join(table.by)}: {spread}"


def _word(row: TableRow) -> str:
    one = row.comparison
    if one is None:
        return "not comparable"
    return f"{one.word} (in these logs {one.word_in_logs})" if one.word_in_logs else one.word


# --- the rows -----------------------------------------------------------------------------------------------------------


def _columns(table: GroupTable) -> list[Column]:
    labels = [cut_middle(label, LABEL_AT_MOST // 2) for label in (table.b, table.a)]
    return [
        *(Column(key, style="cyan") for key in table.by),
        *(Column(label, right=True, drop=2) for label in labels),
        Column("ratio", right=True),
        Column("90 % interval"),
        Column("runs", right=True, drop=1),
        Column("verdict"),
    ]


def _cells(row: TableRow) -> list[str]:
    figures = [_figure(row.examined.arms[side]) for side in (1, 0)]
    one = row.comparison
    if one is None:
        return [*row.values, *figures, "–", "–", say_runs(row), f"not comparable: {row.reason}"]
    return [*row.values, *figures, say_factor(one.ratio), _interval(one), say_runs(row), _word(row)]


def _figure(arm: ExaminedArm) -> str:
    rate = arm.throughput
    return arm.figure_unit.scaled(rate.rate_per_s).say(rate.rate_per_s) if rate else "–"


def _interval(one: Comparison) -> str:
    if one.interval_90 is None:
        return "none"
    assumed = " (assumed)" if one.assumed else ""
    low, high = one.interval_90.low, one.interval_90.high
    if all(1 / FACTOR_FROM < end < FACTOR_FROM for end in (low, high)):
        return f"{say_change(low)} to {say_change(high)}{assumed}"
    return f"×{say_multiple(low)} to ×{say_multiple(high)}{assumed}"


def say_factor(ratio: float) -> str:
    """`+3.2 %`, or `×2.05` from a factor of two on, in either direction."""
    if 1 / FACTOR_FROM < ratio < FACTOR_FROM:
        return say_change(ratio)
    return f"×{say_multiple(ratio)}"


# --- around them --------------------------------------------------------------------------------------------------------


def _differences(table: GroupTable) -> list[Line]:
    """What else differs, each once, over all rows."""
    lines: dict[Line, None] = {}
    for row in table.rows:
        for one in differences_worth(Sections(row.examined).differences, WORTH_SHOWING):
            if one.fact.key not in (*table.by, *table.selected_by):
                lines[("differs", f"{one.fact.subject}.{one.fact.key}: {' | '.join(one.fact.values)}")] = None
    shown = list(lines)[:DIFFERENCES_SHOWN]
    if more := len(lines) - len(shown):
        shown.append(("differs", f"and {more} more: --why"))
    unknown = dict.fromkeys(said for row in table.rows for said in row.examined.not_held if not row.reason)
    return [*shown, *(("unknown", str(said)) for said in list(unknown)[:NOTES_SHOWN])]


def _sentences(table: GroupTable) -> list[Line]:
    return [
        ("row", f"{' '.join(row.values)}: {row.comparison.sentence if row.comparison else row.reason}")
        for row in table.rows
    ]


def _below(table: GroupTable, details: bool) -> list[Line]:
    compared = table.comparisons
    lines: list[Line] = [("left out", said) for said in table.left_out]
    if any(note.startswith(HOLM_NOTE) for one in compared for note in one.notes):
        lines.append(("rows", f"Holm decided over {len(compared)} rows; the intervals are not adjusted"))
    notes = Counter(note for one in compared for note in one.notes if not note.startswith(HOLM_NOTE))
    shown = notes.most_common(None if details else NOTES_SHOWN)
    for note, count in shown:
        rows = "" if count == len(compared) or len(compared) == 1 else f" ({counted(count, 'row')})"
        lines.append(("note", f"{note}{rows}"))
    if factors := [one.chance_factor for one in compared if one.chance_factor and one.word == "INCONCLUSIVE"]:
        least = say_by_factor(min(factors)) + (" or more" if len(factors) > 1 else "")
        lines.append(
            ("chance", f"for the open ratios to be chance, one run would have to differ from the next by {least}")
        )
    lines.append(("scope", table.scope))
    if not details and table.command:
        again = f"stackmark verdict {table.experiment_id}" if table.experiment_id else table.command
        lines.append(("more", f"{again} --why"))
    return lines


def table_markdown(table: GroupTable) -> str:
    """The summary and the rows as Markdown."""
    columns = [replace(one, style="") for one in _columns(table)]
    lines = [f"**{_escaped(summary(table))}**", ""]
    lines.append(f"| {' | '.join(_escaped(one.name) for one in columns)} |")
    lines.append(f"|{'|'.join('---:' if one.right else '---' for one in columns)}|")
    lines += [f"| {' | '.join(_escaped(cell) for cell in _cells(row))} |" for row in table.rows]
    lines += ["", *(f"- {name}: {_escaped(text)}" for name, text in [*_differences(table), *_below(table, True)])]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return safe_line(text).replace("|", "\\|")


def table_junit(table: GroupTable, is_failure: Callable[[Comparison], bool]) -> str:
    """A case for each row; a row that cannot be compared is an error."""
    cases = [_case(table, row, is_failure) for row in table.rows]
    properties = [("command", table.command), ("margin", f"{table.margin:g}"), ("scope", table.scope)]
    return render_junit(f"stackmark verdict {table.b} against {table.a}", cases, properties)


def _case(table: GroupTable, row: TableRow, is_failure: Callable[[Comparison], bool]) -> Case:
    name = f"{table.b} against {table.a}: {' '.join(row.values)}"
    one = row.comparison
    if one is None:
        return Case(name, 0.0, "error", "NO VERDICT", row.reason)
    return Case(name, 0.0, "failure" if is_failure(one) else "passed", one.word, one.sentence)


# --- for programs -------------------------------------------------------------------------------------------------------


def table_json(table: GroupTable) -> dict[str, JsonValue]:
    made = {
        "experiment": table.experiment_id or None,
        "a": table.a,
        "b": table.b,
        "by": table.by,
        "selected_by": table.selected_by,
        "margin": table.margin,
        "rows": [_row_json(table.by, row) for row in table.rows],
        "left_out": table.left_out,
        "scope": table.scope,
        "command": table.command,
    }
    plain = plain_json(with_schema("verdict-table", made))
    assert isinstance(plain, dict)
    return plain


def _row_json(by: Sequence[str], row: TableRow) -> dict[str, object]:
    examined = row.examined
    return {
        "values": dict(zip(by, row.values, strict=True)),
        "arms": [
            {
                "label": arm.label,
                "chip": arm.chip,
                "figure": figure_json(arm.throughput, arm.unit, metric_name(arm.params)),
                "runs": [run.run_id for run in examined.runs if run.arm == arm.index],
            }
            for arm in examined.arms
        ],
        "comparison": comparison_json(row.comparison),
        "not_comparable": row.reason or None,
        "differences": [
            {"subject": one.subject, "key": one.key, "values": one.values, "why": one.why}
            for one in examined.differences
        ],
        "not_held": examined.not_held,
    }
