"""The answer of `compare`, `noise`, `resume` and `verdict`: the word first and last, and in between what it rests on.

The word with one plain sentence a pair, the picture, a line an arm, what to beware of, the differences that may matter, how to
see more, and the verdict again: on a screen of 80 columns and 24 lines it is visible when the command ends. Everything else is
behind `--details` and `verdict --why` (verdict.py). In a pipe every line begins with its name.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from stackmark.remarks import MIXED_RUNS
from stackmark.show.forest import forest
from stackmark.show.lists import list_ratio_lines
from stackmark.show.run_summary import FAILURES_SHOWN, UNUSABLE, say_more, warning_lines
from stackmark.show.safe import LABEL_AT_MOST, cut_middle, safe_line, short_id
from stackmark.show.scaling import point_lines, print_scaling_bars, print_scaling_table, refusals, scaling_lines
from stackmark.show.sections import ArmRow, FailureRow, Sections, differences_worth
from stackmark.show.serving import compared_lines
from stackmark.show.terminal import GAP, Column, Line, is_screen, print_named, print_table
from stackmark.show.wording import say_arm_rate, say_change, say_changes, say_took
from stackmark.units import counted, say_seconds
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.needed import percent
from stackmark.verdict.noise import MarginCost, noise_floor

# The first that a sentence holds is coloured, so LIKELY SLOWER stands before SLOWER.
COLOURS = {
    "LIKELY SLOWER": "bold red",
    "LIKELY FASTER": "bold cyan",
    "LIKELY WORSE": "bold red",
    "LIKELY BETTER": "bold cyan",
    "INCONCLUSIVE": "bold yellow",
    "EQUIVALENT": "bold green",
    "SLOWER": "bold red",
    "FASTER": "bold cyan",
    "WORSE": "bold red",
    "BETTER": "bold cyan",
    "SCALES": "bold green",
    "FALLS SHORT": "bold red",
}
OTHER_HEADS = {
    UNUSABLE: "bold red",
    "NOT FINISHED": "bold yellow",
    "NOT WHOLE": "bold yellow",
    "NO VERDICT": "bold red",
    "NO EFFICIENCY": "bold yellow",
    "NOISE FLOOR": "bold cyan",
}
STYLES = {
    UNUSABLE: "bold red",
    "failed": "red",
    "warning": "yellow",
    "unknown": "yellow",
    "scope": "dim",
    "took": "dim",
    "more": "dim",
    "next": "dim",
}
COMMANDS = ("more", "next")
ONE_LINE = ("scope",)
DIFFERENCES_SHOWN = 3
# Of two chips, where what else differs is the first thing to know.
ELSE_SHOWN = 6
# Pairs in the picture: a screen has room for these and for their table.
DRAWN = 6
# Below this weight a difference is counted, not shown: known_causes.py has nothing to say for it.
WORTH_SHOWING = 10
# Of a label next to its numbers on a narrow screen.
LABEL_AT_LEAST = 8
# An arm's interval is never dropped: without it its rate says nothing.
ARM_COLUMNS = (
    Column("arm", style="cyan"),
    Column("rate", right=True),
    Column("95 %"),
    Column("runs", right=True, drop=2),
    Column("set-up", right=True, drop=1),
    Column("steadiness", drop=3),
)
PAIR_COLUMNS = (
    Column("pair", style="cyan"),
    Column("change", right=True, drop=2),
    Column("90 % interval"),
    Column("blocks", right=True, drop=1),
    Column("verdict"),
)


def print_summary(sections: Sections, console: Console, commands: Sequence[str], ledger: str = "") -> None:
    """Print the answer; `commands` are what one would type next, and `ledger` the option that names it there."""
    lines, last = _behind(sections, commands, ledger), answers(sections)
    else_differs = what_else_differs(sections)
    if not is_screen(console):
        head = [*_state_lines(sections), *(("verdict", said) for said in last), *else_differs]
        print_named(console, [*head, *_arm_lines(sections), *lines, ("verdict", last[-1])], STYLES)
        return
    for said in [*(said for _, said in _state_lines(sections)), *last]:
        console.print(coloured(safe_line(said)))
    print_named(console, else_differs, STYLES)
    print_picture(sections, console)
    print_arms(sections, console)
    if sections.is_summed_up and not sections.examined.scaling:
        print_pairs(sections, console)
    print_named(console, lines, STYLES, COMMANDS, ONE_LINE)
    for said in last:
        console.print(coloured(safe_line(said)))


# --- the answer -------------------------------------------------------------------------------------------------------------


def answers(sections: Sections) -> list[str]:
    """Return the word with its sentence, one for each pair; what there is instead where no pair is compared."""
    examined = sections.examined
    found = examined.comparisons
    if examined.kind == "noise":
        return [noise_headline(sections)]
    if (
        not found
        and len(examined.arms) < 2
        and any(getattr(one, "kind", "") == MIXED_RUNS for one in examined.warnings)
    ):
        done = sum(run.counted for run in examined.runs)
        return [f"NO VERDICT: {counted(done, 'run')} of different settings, which no single rate describes"]
    if not found and len(examined.arms) < 2:
        return [f"{arm.label}: {say_arm_rate(arm)}" for arm in examined.arms]
    refused = refusals(examined.scaling) if examined.scaling else []
    if not found and refused:
        return refused
    if not found:
        return [f"NO VERDICT: {sections.why_no_verdict}"]
    if sections.is_summed_up:
        what = "rank counts against one rank" if examined.scaling else f"pairs of {len(examined.arms)} arms"
        return [f"{len(found)} {what}: {sections.words}", *refused]
    return [*(sections.answer(c) for c in found), *refused]


def coloured(text: str) -> Text:
    """The word of the verdict in its colour; the sentence around it plain."""
    made = Text(text)
    for word, style in (COLOURS | OTHER_HEADS).items():
        if found := re.search(rf"\b{word}\b", text):
            made.stylize(style, found.start(), found.end())
            break
    return made


def _state_lines(sections: Sections) -> list[Line]:
    examined = sections.examined
    heads = {"open": "NOT FINISHED", "short": "NOT WHOLE"}
    if examined.state not in heads:
        return []
    return [("state", f"{heads[examined.state]}: {examined.state_sentence}")]


def noise_headline(sections: Sections) -> str:
    """`NOISE FLOOR: 4 blocks can decide a margin of 0.575 %; blocks spread by 0.143 %`."""
    floor = noise_floor(sections.examined)
    if floor is None:
        return "NOISE FLOOR: not known; it takes two whole blocks or more"
    spread = f"blocks of {sections.examined.workload} against itself spread by {percent(floor.sd_blocks)}"
    if floor.sd_blocks_planned is None:
        return f"NOISE FLOOR: {spread}; what that can decide is known from four blocks on"
    if floor.smallest_margin is None:
        return f"NOISE FLOOR: {spread}; {floor.blocks} blocks can decide no margin that `compare` accepts"
    return f"NOISE FLOOR: {floor.blocks} blocks can decide a margin of {percent(floor.smallest_margin)}; {spread}"


# --- picture and tables ------------------------------------------------------------------------------------------------------


def print_picture(sections: Sections, console: Console) -> None:
    if sections.examined.scaling:
        print_scaling_bars(sections.examined.scaling, console)
        return
    drawn = forest(sections.examined.comparisons[:DRAWN], console.width, ascii_only=console.options.ascii_only)
    for line in drawn:
        console.print(Text(line), no_wrap=True, crop=True)


def print_arms(sections: Sections, console: Console) -> None:
    if sections.examined.scaling:
        print_scaling_table(sections.examined, console, COLOURS)
        return
    columns = [replace(one, name=sections.figure_name) if one.name == "rate" else one for one in ARM_COLUMNS]
    rows = [arm_cells(one) for one in sections.arms]
    print_table(console, columns, _with_room(console, columns, rows), note=False)


def print_pairs(sections: Sections, console: Console) -> None:
    pairs = sections.examined.comparisons
    rows = [pair_cells(c) for c in pairs]
    print_table(
        console, PAIR_COLUMNS, _with_room(console, PAIR_COLUMNS, rows), [COLOURS[c.word] for c in pairs], note=False
    )


def _with_room(console: Console, columns: Sequence[Column], rows: list[list[str]]) -> list[list[str]]:
    """Shorten the names in the first column so far that the columns that are never dropped fit next to them."""
    if not is_screen(console) or not rows:
        return rows
    kept = [index for index, column in enumerate(columns) if index and not column.drop]
    taken = sum(max(cell_len(columns[i].name), *(cell_len(row[i]) for row in rows)) + GAP for i in kept)
    room = max(LABEL_AT_LEAST, console.width - taken)
    return [[cut_middle(safe_line(row[0]), room), *row[1:]] for row in rows]


def arm_cells(one: ArmRow) -> list[str]:
    label = cut_middle(one.arm.label, LABEL_AT_MOST)
    if not one.figure:
        why = "target not reached" if one.arm.missed_target else "no run counts"
        return [label, why, "", "0", one.setup, one.steadiness]
    steady = ", ".join(filter(None, (UNUSABLE if one.arm.unusable else "", one.steadiness)))
    return [label, one.figure, one.spread or "one run", str(one.runs), one.setup, steady]


def pair_cells(c: Comparison) -> list[str]:
    blocks = str(c.count_b) if c.count_a in (0, c.count_b) else f"{c.count_b} against {c.count_a}"
    pair = f"{cut_middle(c.b, LABEL_AT_MOST // 2)} / {cut_middle(c.a, LABEL_AT_MOST // 2)}"
    sure = say_changes(c.interval_90.low, c.interval_90.high) if c.interval_90 else "none"
    return [pair, say_change(c.ratio), sure, blocks, c.word]


def _arm_lines(sections: Sections) -> list[Line]:
    """In a pipe, a line for each arm."""
    lines: list[Line] = []
    for one in sections.arms:
        parts = [say_arm_rate(one.arm)]
        parts += [counted(one.runs, "run")] if one.figure else []
        parts += [one.steadiness] if one.steadiness else []
        parts += [f"set-up {one.setup}"] if one.setup else []
        lines.append(("arm", f"{one.arm.label}: {'; '.join(parts)}"))
    return [*lines, *(point_lines(sections.examined.scaling) if sections.examined.scaling else [])]


# --- what stands under them --------------------------------------------------------------------------------------------------


def _behind(sections: Sections, commands: Sequence[str], ledger: str) -> list[Line]:
    examined = sections.examined
    why = f"{_details(sections)}{f' {ledger}' if ledger and examined.experiment_id else ''}"
    lines: list[Line] = []
    if examined.kind == "noise":
        lines += margin_lines(sections)
    lines += scaling_lines(examined.scaling, all_of_them=False) if examined.scaling else []
    lines += [line for line in sections.quality if line[0] == "target"]
    lines += compared_lines(examined)
    lines += _advice(sections)
    lines += warning_lines(sections.cautions)
    if sections.family > 1:
        lines.append(("pairs", f"Holm decided over {sections.family} comparisons; the intervals are not adjusted"))
    lines += [("bad runs", said) for said in sections.bad_run_shares]
    lines += _failures(sections.failures, why)
    lines += list_ratio_lines(examined.lists)[:DIFFERENCES_SHOWN]
    # Rank counts differ by what a group needs: that is not what explains them.
    lines += _differences(sections) if not examined.is_about_chips and not examined.scaling else []
    lines.append(("scope", examined.scope))
    # Runs that were picked by hand may lie years apart.
    if examined.experiment_id and (took := say_took(examined)):
        blocks = f" for {counted(examined.blocks_whole, 'block')}" if examined.blocks_planned else ""
        lines.append(("took", f"{took}{blocks}"))
    lines.append(("more", f"{say_more(sections.cautions)}{why}"))
    return [*lines, *(("next", command) for command in commands)]


def _details(sections: Sections) -> str:
    examined = sections.examined
    if not examined.experiment_id:  # runs that were picked by hand are in no experiment
        return f"{examined.command} --why"
    return f"stackmark verdict {short_id(examined.experiment_id)} --why"


def _advice(sections: Sections) -> list[Line]:
    """Of what is open, the first thing to do: the cheapest."""
    if sections.examined.kind == "noise":
        return []
    lines: list[Line] = []
    several = len(sections.examined.comparisons) > 1
    for c in sections.undecided[: 1 if sections.is_summed_up else None]:
        assert c.needed
        ways = [one.words for one in c.needed.advice if one.kind != "not-by-blocks"]
        which = f"{c.b} / {c.a}: " if several else ""
        if said := ways[0] if ways else c.needed.sentence:
            more = f" (or: {counted(len(ways) - 1, 'other way')})" if len(ways) > 1 else ""
            lines.append(("to decide", f"{which}{said}{more}"))
    return lines


def margin_lines(sections: Sections) -> list[Line]:
    """What the usual margins cost on this machine; those that more blocks cannot decide are one line, with what may."""
    floor = noise_floor(sections.examined)
    costs = floor.costs if floor else ()
    beyond = [percent(cost.margin) for cost in costs if not cost.is_practical]
    lines: list[Line] = [("margin", say_cost(cost)) for cost in costs if cost.is_practical]
    if beyond:
        ways = "free the machine, or measure longer runs"
        lines.append(("margin", f"{', '.join(beyond)}: more blocks do not decide it here; {ways}"))
    return lines


def say_cost(cost: MarginCost) -> str:
    """Nine experiments of ten reach a verdict with this many blocks, where there is no difference."""
    took = f", about {say_seconds(cost.seconds)}" if cost.seconds is not None else ""
    if cost.is_practical:
        return f"{percent(cost.margin)} takes {cost.blocks} blocks{took}"
    many = f"{cost.blocks:,} blocks{took}" if cost.blocks is not None else "more blocks than can be counted"
    return f"{percent(cost.margin)} cannot be decided on this machine by more blocks: it would take {many}"


def _failures(failures: Sequence[FailureRow], why: str) -> list[Line]:
    lines: list[Line] = [
        ("failed", f"{short_id(one.run.run_id)} ({one.label}): {one.kind}: {one.message}")
        for one in failures[:FAILURES_SHOWN]
    ]
    if (more := len(failures) - FAILURES_SHOWN) > 0:
        lines.append(("failed", f"and {counted(more, 'more run')}: {why}"))
    return lines


def what_else_differs(sections: Sections) -> list[Line]:
    """Where another chip is the question: in what else the sides differ, and what is not known of them."""
    if not sections.examined.is_about_chips:
        return []
    lines = _differences(sections, most=ELSE_SHOWN) or [("differs", "nothing else that was recorded")]
    return [*lines, *(("unknown", said) for said in sections.examined.not_held)]


def _differences(sections: Sections, most: int = DIFFERENCES_SHOWN) -> list[Line]:
    """The facts that may matter, three at most; what is known to be without effect is counted."""
    found = sections.differences
    shown = differences_worth(found, WORTH_SHOWING)[:most]
    lines: list[Line] = [
        (
            "differs",
            f"{one.fact.subject}.{one.fact.key}: {' | '.join(one.fact.values)}{' (effect seen)' * one.fact.shows_effect}",
        )
        for one in shown
    ]
    if not shown and found:
        return [("differs", f"nothing that is known to matter ({counted(len(found), 'fact')} differ)")]
    return lines
