"""What an experiment shows, in a terminal and for programs: the short answer (verdict_summary.py), or everything.

With `--details` or `verdict --why` all that the short answer leaves out is printed: whole sentences with their intervals, all
conditions, what was held equal, the scope. On a screen the word has a colour, the ratio is drawn, and arms stand in a table; in
a pipe everything is lines that begin with their name, so that `grep verdict` and `grep differs` find them whole. Nothing is said
by colour alone.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from pydantic import JsonValue
from rich.console import Console
from rich.text import Text

from stackmark.schemas import with_schema
from stackmark.show.lists import list_ratio_lines
from stackmark.show.quality import quality_json
from stackmark.show.result import figure_json
from stackmark.show.safe import safe_line
from stackmark.show.scaling import point_lines, refusals, scaling_lines
from stackmark.show.sections import MOST_HEADLINES as SENTENCES
from stackmark.show.sections import FailureRow, Sections
from stackmark.show.serving import compared_lines
from stackmark.show.stacks import say_stack_lines
from stackmark.show.telemetry import telemetry_json
from stackmark.show.terminal import NAME_WIDTH, Line, answer_last, grid, is_screen
from stackmark.show.verdict_summary import COLOURS as COLOURS
from stackmark.show.verdict_summary import (
    WORTH_SHOWING,
    answers,
    coloured,
    noise_headline,
    print_arms,
    print_pairs,
    print_picture,
    print_summary,
    say_cost,
)
from stackmark.show.wording import bad_runs, say_arm_rate, say_change, say_interval, say_ratio
from stackmark.units import counted, say_rate, say_seconds
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined, FactDifference
from stackmark.verdict.family import HOLM_NOTE
from stackmark.verdict.needed import percent
from stackmark.verdict.noise import NoiseFloor, noise_floor
from stackmark.verdict.sequential import MOST_BLOCKS
from stackmark.workloads.command.definition import metric_name

LINE_STYLES = {
    "failed": "red",
    "note": "yellow",
    "warning": "yellow",
    "not equal": "yellow",
    "scope": "dim",
    "stored": "dim",
    "rules": "dim",
}
BELOW = "\n  "
# Lines of what else differs between two chips, which stand right under the word.
ELSE = ("differs", "not equal")
DIFFERENCES_SHOWN, FAILURES_SHOWN, PUBLISHED_SHOWN = 5, 5, 2


def print_verdict(
    examined: Examined, console: Console, ledger: str = "", *, reported: bool = False, details: bool = False
) -> None:
    """Print the answer of `compare`, `resume`, `noise` and `verdict`; with `details` everything that it rests on.

    `ledger` is the option that names it, as it was typed. `reported`: the same command writes the report.
    """
    commands = next_commands(examined, ledger, reported=reported)
    sections = Sections(examined)
    if not details:
        print_summary(sections, console, commands, ledger)
        return
    if is_screen(console):
        _on_screen(sections, console, commands)
        return
    for name, text in verdict_lines(examined):
        print(f"{safe_line(name):<{NAME_WIDTH}}{safe_line(text)}".rstrip(), file=console.file)
    for command in commands:
        print(f"{'next':<{NAME_WIDTH}}{safe_line(command)}", file=console.file)


def verdict_lines(examined: Examined) -> list[Line]:
    """Return everything as lines. A line stays a line: what is folded under it on a screen follows it here."""
    sections = Sections(examined)
    lines = [*_head_lines(sections), *_arm_lines(sections), *_pair_lines(sections), *_rest(sections)]
    return [(name, text.replace(BELOW, "; ")) for name, text in lines]


def _on_screen(sections: Sections, console: Console, commands: Sequence[str]) -> None:
    def answer() -> None:
        for said in answers(sections):
            console.print(coloured(safe_line(said)))

    with answer_last(console, answer):
        head = _head_lines(sections)
        for _, text in (line for line in head if line[0] not in ELSE):
            console.print(coloured(safe_line(text)))
        if rest := [line for line in head if line[0] in ELSE]:
            console.print(grid(rest, LINE_STYLES))
        console.print()
        print_picture(sections, console)
        console.print()
        print_arms(sections, console)
        if len(sections.examined.comparisons) > 1 and not sections.examined.scaling:
            console.print()
            print_pairs(sections, console)
        console.print()
        console.print(grid(_rest(sections), LINE_STYLES))
        for command in commands:
            console.print(Text(f"next: {safe_line(command)}", style="dim"), soft_wrap=True)


def _head_lines(sections: Sections) -> list[Line]:
    examined = sections.examined
    lines: list[Line] = []
    if examined.state == "open":
        lines.append(("state", f"NOT FINISHED: {examined.state_sentence}"))
    elif examined.state == "short":
        lines.append(("state", f"NOT WHOLE: {examined.state_sentence}"))
    if examined.kind == "noise":
        lines.append(("noise", noise_headline(sections)))
    lines += [("verdict", sentence) for sentence in _sentences(sections)]
    if examined.is_about_chips:
        lines += _differences(sections) or [("differs", "nothing else that was recorded")]
        lines += [("not equal", sentence) for sentence in examined.not_held]
    return lines


def _sentences(sections: Sections) -> Iterator[str]:
    examined = sections.examined
    found = examined.comparisons
    refused = refusals(examined.scaling) if examined.scaling else []
    yield from refused
    if not found and refused:
        return
    if not found and len(examined.arms) < 2:
        yield from (f"{arm.label}: {say_arm_rate(arm)}" for arm in examined.arms)
    elif not found:
        yield f"NO VERDICT: {sections.why_no_verdict}"
    elif examined.kind == "noise":
        yield f"the two equal arms: {headline(found[0], sections.sentence(found[0]))}"
    elif sections.is_summed_up:
        yield f"{len(found)} pairs of {len(examined.arms)} arms: {sections.words}"
    else:
        yield from (headline(c, sections.sentence(c)) for c in found)


def headline(comparison: Comparison, said: str) -> str:
    """The sentence, with the word in it."""
    return said if comparison.word in said else f"{comparison.word}: {said}"


def _arm_lines(sections: Sections) -> list[Line]:
    lines: list[Line] = []
    for one in sections.arms:
        parts = [say_arm_rate(one.arm)]
        if one.figure:
            parts.append(counted(one.runs, "run"))
        if one.steadiness:
            parts.append(one.steadiness)
        if one.setup:
            parts.append(f"set-up {one.setup}")
        lines.append(("arm", f"{one.arm.label}: {'; '.join(parts)}"))
    return [*lines, *(point_lines(sections.examined.scaling) if sections.examined.scaling else [])]


def _pair_lines(sections: Sections) -> list[Line]:
    lines: list[Line] = []
    for c in sections.examined.comparisons:
        wide = f", 95 % {say_interval(c.interval_95)}" if c.interval_95 else ""
        text = f"{c.b} / {c.a}: {c.word} at {percent(c.margin)}, {say_ratio(c.ratio)} ({say_change(c.ratio)})"
        narrow = f"90 % interval {say_interval(c.interval_90)}" if c.interval_90 else "no interval"
        lines.append(("ratio", f"{text}, {narrow}{wide}"))
    return lines


def _rest(sections: Sections) -> list[Line]:
    """What stands under the numbers, in the order in which a person asks."""
    examined = sections.examined
    lines = noise_lines(examined) if examined.kind == "noise" else []
    lines += scaling_lines(examined.scaling) if examined.scaling else []
    lines += sections.quality
    lines += compared_lines(examined)
    if sections.family > 1:
        lines.append(("pairs", f"Holm decided over {sections.family} comparisons; the intervals are not adjusted"))
    for c in sections.undecided[:SENTENCES] if examined.kind != "noise" else ():
        which = f"{c.b} / {c.a}: " if len(examined.comparisons) > 1 else ""
        lines.append(("needed", f"{which}{c.needed.sentence if c.needed else ''}"))
    notes = dict.fromkeys(note for c in examined.comparisons for note in c.notes)
    lines += [("note", note) for note in notes if sections.family == 1 or not note.startswith(HOLM_NOTE)]
    lines += [("bad runs", said) for said in sections.bad_run_shares]
    lines += [("warning", one.text) for one in sections.cautions]
    lines += list_ratio_lines(examined.lists)
    lines += _differences(sections) if not examined.is_about_chips else []
    lines += _conditions(sections)
    lines += [("conditions", sentence) for sentence in examined.associations]
    lines += [("failed", _say_failure(one)) for one in sections.failures[:FAILURES_SHOWN]]
    if (more := len(sections.failures) - FAILURES_SHOWN) > 0:
        lines.append(("failed", f"and {more} more; {_all_of_it(examined)}"))
    lines += [("not equal", sentence) for sentence in examined.not_held if not examined.is_about_chips]
    for near in examined.published[:PUBLISHED_SHOWN]:
        differs = f"; differs: {', '.join(near.differs)}" if near.differs else ""
        said = f"{say_rate(near.value)} {near.unit}  {near.what} ({near.source}, {near.date})"
        lines.append(("published", f"{said}; {near.arm} has {_share(near.ratio)} of it{differs}"))
    if examined.published_pairs:
        lines += [("stacks", said) for said in say_stack_lines(examined.published_pairs[0].stack)]
    lines.append(("scope", examined.scope))
    # Runs that were picked by hand are no experiment.
    stored = f"{examined.experiment_id}: " if examined.experiment_id else ""
    lines.append(("stored", f"{stored}{_how_many(examined)}"))
    if examined.rules_made is not None and examined.rules_made != examined.rules:
        lines.append(("rules", sections.rules))
    return lines


def _share(ratio: float) -> str:
    return f"{ratio:#.3g}".rstrip(".")  # 1.00 of it, not 1 of it


def _all_of_it(examined: Examined) -> str:
    command = f"stackmark verdict {examined.experiment_id}" if examined.experiment_id else examined.command
    return f"all of it: {command} --json"


def _how_many(examined: Examined) -> str:
    made = [run for run in examined.runs if run.role == "measured"]
    blocks = f" in {counted(examined.blocks_whole, 'whole block')}" if examined.blocks_planned else ""
    again = f", {counted(examined.blocks_repeated, 'block')} repeated" if examined.blocks_repeated else ""
    return f"{counted(len(made), 'run')}{blocks}{again}"


def _differences(sections: Sections) -> list[Line]:
    found = sections.differences
    if not found:
        return []
    shown = [one for one in found if one.fact.weight >= WORTH_SHOWING][:DIFFERENCES_SHOWN]
    lines: list[Line] = [("differs", _say_difference(one.fact)) for one in shown]
    rest = len(found) - len(shown)
    more = _all_of_it(sections.examined)
    if not shown:
        lines.append(("differs", f"nothing that is known to matter; {counted(rest, 'other fact')} differ; {more}"))
    elif rest:
        lines.append(("differs", f"and {rest} more that matter less; {more}"))
    return lines


def _say_difference(one: FactDifference) -> str:
    effect = "effect seen: " if one.shows_effect else ""
    return f"{one.subject}.{one.key}: {' | '.join(one.values)}{BELOW}{effect}{one.why}"


def _conditions(sections: Sections) -> list[Line]:
    found = sections.conditions
    if not found or len(sections.examined.arms) < 2:
        return []
    told = [(one.words, one.remark) for one in found if one.remark]
    if not told:
        alike = counted(len(found), "covariate")
        return [("conditions", f"{alike} (clock, heat, load …): no clear difference between the arms and no drift")]
    return [("conditions", f"{words}: {remark}") for words, remark in told]


def _say_failure(one: FailureRow) -> str:
    run = one.run
    where = f"block {run.block + 1}" if run.block is not None else "primer" if run.role == "primer" else run.status
    said = f"{run.run_id} ({one.label}, {where}): {one.kind}: {one.message}"
    return f"{said}{BELOW}{one.hint}" if one.hint else said


def next_commands(examined: Examined, ledger: str = "", *, reported: bool = False) -> list[str]:
    """What one would type next: go on, or more blocks, or look into the failure; and the report, unless it is written."""
    there = f" {ledger}" if ledger else ""
    commands = [f"{command}{there}" for command in examined.instead]
    if examined.state == "open":
        commands.append(f"stackmark resume {examined.experiment_id}{there}")
    failed = bad_runs(examined)
    if failed and examined.state == "short":
        commands.append(f"stackmark show {failed[-1].run_id} --log{there}")
        commands.append(examined.command)  # again: its repetitions are used up, and there is nothing to resume
    wanted = max((c.needed.count or 0 for c in examined.comparisons if c.needed and c.needed.practical), default=0)
    if wanted and examined.state == "done" and examined.kind in ("compare", "scale") and examined.blocks_planned:
        commands.append(with_blocks(examined.command, wanted))
    if examined.comparisons and examined.state == "done" and examined.experiment_id and not reported:
        commands.append(f"stackmark report {examined.experiment_id} -o report.html{there}")
    return commands


def with_blocks(command: str, blocks: int) -> str:
    """Return the command with this many blocks. It makes a new experiment: one that is looked at and then made longer lies."""
    without = re.sub(r" --blocks(?:=| +)\d+", "", command)
    most = MOST_BLOCKS if "--until-decided" in command else blocks
    return f"{without} --blocks {min(blocks, most)}"


# --- the noise floor ----------------------------------------------------------------------------------------------------


def noise_lines(examined: Examined) -> list[Line]:
    floor = noise_floor(examined)
    if floor is None:
        return []
    lines: list[Line] = []
    if floor.sd_runs is not None:
        lines.append(
            ("runs", f"one run differs from the next by {percent(floor.sd_runs)} (standard deviation of the rate)")
        )
    lines.append(("blocks", _blocks(floor)))
    if floor.costs:
        lines.append(("cheaper", "than many blocks: a machine without other load, longer runs or a wider margin"))
    lines += [("margin", say_cost(cost)) for cost in floor.costs]
    if floor.parts and floor.block_s:
        parts = ", ".join(f"{name} {say_seconds(s)} ({100 * s / floor.block_s:.0f} %)" for name, s in floor.parts)
        lines.append(("a block", f"{say_seconds(floor.block_s)}, two runs: {parts}"))
    return lines


def _blocks(floor: NoiseFloor) -> str:
    most = (
        f"; with only {floor.blocks} blocks it may be up to {percent(floor.sd_blocks_most)}, and what follows takes it for "
        f"{percent(floor.sd_blocks_planned)}"
        if floor.sd_blocks_most and floor.sd_blocks_planned
        else f"; from {floor.blocks} blocks that is hardly known: take six or more"
    )
    return f"the ratio of a block spreads by {percent(floor.sd_blocks)} (standard deviation){most}"


# --- for programs -------------------------------------------------------------------------------------------------------


def verdict_json(examined: Examined) -> dict[str, JsonValue]:
    made = asdict(
        replace(examined, runs=tuple(replace(run, step_s=(), telemetry=None) for run in examined.runs), operators=())
    )
    del made["operators"], made["pinned"]  # `show --json` has the one, `run --json` the other as `repeat`
    if examined.scaling is None:
        del made["scaling"]
    if examined.quality:
        made["quality"] = [quality_json(one) if one else None for one in examined.quality]
    else:
        del made["quality"]
    if examined.compared:
        for one, seen_metric in zip(made["compared"], examined.compared, strict=True):
            one["pairs"] = [comparison_json(pair) for pair in seen_metric.pairs]
    else:
        del made["compared"]
    if not examined.latencies:
        del made["latencies"]
    for run, seen in zip(made["runs"], examined.runs, strict=True):
        del run["step_s"], run["telemetry"]
        if seen.telemetry:
            run["telemetry"] = telemetry_json(seen.telemetry)
        run["steps"] = len(seen.step_s)
        run["setup"] = _parts(seen.setup)
    made["comparisons"] = [comparison_json(comparison) for comparison in examined.comparisons]
    for arm, shown in zip(made["arms"], examined.arms, strict=True):
        del arm["missed_target"]
        arm["setup"] = _parts(shown.setup)
        arm["steadiness"] = dict(shown.steadiness)
        arm["figure"] = figure_json(shown.throughput, shown.unit, metric_name(shown.params))
    made["warnings"] = [asdict(one) for one in Sections(examined).cautions]
    unusable = [arm for arm in examined.arms if arm.unusable]
    made["usable"] = bool(examined.arms) and not unusable
    made["why"] = "; ".join(f"{arm.label}: {arm.unusable.text}" for arm in unusable if arm.unusable) or None
    if examined.kind == "noise":
        floor = noise_floor(examined)
        made["noise"] = asdict(floor) | {"parts": _parts(floor.parts)} if floor else None
    plain = plain_json(with_schema("verdict", made))
    assert isinstance(plain, dict)
    return plain


def comparison_json(comparison: Comparison | None) -> dict[str, Any] | None:
    """Make the fields of a comparison, and what its word means to programs that do not compare words.

    `worse` and `better` are true for all words of that direction, SLOWER and LIKELY WORSE too; `likely_slower` and
    `likely_faster` for the likely ones of either kind.
    """
    if comparison is None:
        return None
    worse, better, likely = comparison.is_slower, comparison.is_faster, comparison.is_likely
    codes = {
        "worse": worse,
        "better": better,
        "likely_slower": likely and worse,
        "likely_faster": likely and better,
    }
    made = asdict(comparison) | codes
    if comparison.p_log_rank is None:
        del made["p_log_rank"]
    return made


def _parts(parts: tuple[tuple[str, float], ...]) -> list[dict[str, JsonValue]]:
    """A list and no table: a part may come twice, and their order is the order in which they happened."""
    return [{"part": name, "seconds": seconds} for name, seconds in parts]


def plain_json(value: object) -> JsonValue:
    """What JSON has words for: infinity and what is no number have none."""
    if isinstance(value, dict):
        return {str(key): plain_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    assert value is None or isinstance(value, str | int | bool)
    return value
