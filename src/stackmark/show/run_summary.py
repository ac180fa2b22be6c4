"""The end of `stackmark run`: about ten lines, the answer first. `--details` and `show x-… --details` have the rest (result.py).

The lines come in the order in which a person asks: what was measured, the rate and how sure it is, how near it is to the limit,
what others reached, with which settings, what to beware of, and how to do it again. On a screen of 80 columns and 24 lines
all of it is visible when the command ends.
"""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from stackmark.events import Result
from stackmark.experiments.fitting import is_censored
from stackmark.experiments.result import RunResult
from stackmark.figures import figure_unit
from stackmark.ledger.rows import RunRow
from stackmark.show.facts import say_chip
from stackmark.show.quality import quality_lines
from stackmark.show.safe import safe_line, short_id
from stackmark.show.serving import served_lines
from stackmark.show.telemetry import waited_line
from stackmark.show.terminal import NAME_WIDTH, Line, is_screen, print_named
from stackmark.show.wording import say_spread, width_style
from stackmark.spec import Scalar
from stackmark.units import counted, say_seconds, say_size
from stackmark.verdict.cautions import Caution
from stackmark.verdict.roofline import Standing, say_bound, say_share
from stackmark.verdict.scaling import GroupTimes
from stackmark.workloads.command.definition import say_guess
from stackmark.workloads.registry import find

UNUSABLE = "NOT USABLE"
# The others are counted, and so are all of low severity: the details have them.
WARNINGS_SHOWN, FAILURES_SHOWN = 2, 3
# Of a warning on this screen, in characters: two lines of 80 columns. The whole of it is in the details.
WARNING_AT_MOST = 130
# Of a setting: a user's command line may be of any length.
SETTING_AT_MOST = 60
CHOSEN_MARK, LEGEND = "*", "* chosen for you"
# A setting without a value says nothing here.
EMPTY = ("", None)
STYLES = {
    UNUSABLE: "bold red",
    "not done": "yellow",
    "failed": "red",
    "warning": "yellow",
    "published": "dim",
    "settings": "",
    "repeat": "dim",
    "more": "dim",
}
COMMANDS = ("repeat", "more")
ONE_LINE = ("published",)


def print_summary(result: RunResult, console: Console, ledger: str = "") -> None:
    """Print the ten lines of a `run`. `ledger` is the option that names it in commands to type next."""
    lines = summary_lines(result, ledger)
    if is_screen(console):
        console.print(Text(safe_line(headline(result)), style="bold cyan"))
    else:
        print(f"{'measured':<{NAME_WIDTH}}{safe_line(headline(result))}", file=console.file)
    rate = width_style(result.throughput) if not result.unusable else "bold red"
    if result.unusable and is_screen(console):
        console.print(Text(safe_line(f"{UNUSABLE}: {result.unusable.text}"), style="bold red"))
        lines = [line for line in lines if line[0] != UNUSABLE]
    print_named(console, lines, {**STYLES, "rate": rate, "figure": rate}, COMMANDS, ONE_LINE)


def headline(result: RunResult) -> str:
    """`train/resnet50 on host: NVIDIA H200`; `train/resnet50 on host, 2 ranks: NVIDIA H200`."""
    run, measured = result.shown_run, result.measured
    chip = say_chip(run.chip if run else None, measured.spec, measured.facts)
    ranks = f", {measured.spec.ranks} ranks" if measured.spec.ranks > 1 else ""
    return f"{measured.spec.workload} on {run.place if run else 'host'}{ranks}: {chip}"


def summary_lines(result: RunResult, ledger: str = "") -> list[Line]:
    """Return name and text of each line under the headline."""
    measured = result.measured
    there = f" {ledger}" if ledger else ""
    lines: list[Line] = [*answer_lines(result)]
    if measured.missing:
        asked = measured.asked or 0
        go_on = f"go on with: stackmark resume {short_id(measured.experiment.id)}{there}"
        lines.append(("not done", f"{asked - measured.missing} of {counted(asked, 'run')} were made; {go_on}"))
    details = f"stackmark show {short_id(measured.experiment.id)} --details{there}"
    if measured.quality:
        lines += quality_lines(measured.quality, missed_hint(measured.runs))
    if result.served:
        lines += served_lines(result.served)
    lines += _failures([row for row in measured.failed if not is_censored(row)], details)
    lines += waited_line(list(result.sampled.values()), result.median_of("data_share"))
    if result.limits.standing:
        lines.append(("limit", say_limit(result.limits.standing)))
    if result.group:
        lines.append(("ranks", say_group(result.group)))
    if result.against:
        lines.append(("against", _against(result)))
    elif result.published and result.throughput:
        lines.append(("published", _published(result)))
    lines.append(("settings", say_settings(result)))
    if guess := say_guess(measured.spec.params, measured.choices):
        lines.append(("guessed", guess))
    lines += warning_lines(result.cautions)
    return [*lines, ("repeat", result.repeat), ("more", f"{say_more(result.cautions)}{details}")]


def answer_lines(result: RunResult) -> list[Line]:
    """Return the rate, or the figure that is not a rate; before it, that it is not usable. Nothing where no run gave a number."""
    throughput = result.throughput
    if throughput is None:
        return []
    unit = figure_unit(result.unit).scaled(throughput.rate_per_s)
    spread = say_spread(throughput)
    quality = result.measured.quality
    steady = Counter(row.steady for row in result.good if row.steady)
    classes = ", ".join(f"{count} × {kind}" for kind, count in steady.items())
    about = [f"{counted(throughput.runs, 'run')}{f' ({classes})' if classes else ''}"]
    if (took_s := result.took_s) is not None:
        about.append(f"took {say_seconds(took_s)}")
    sure = f"{spread} (95 %)" if spread else "(one run: no interval)"
    said = f"{unit.say(throughput.rate_per_s)} {sure}{unit.direction}; {', '.join(about)}"
    lines: list[Line] = [(UNUSABLE, result.unusable.text)] if result.unusable else []
    if quality:
        what = "median time to target, by a model of all runs" if quality.censored else "time to target"
        said = f"{what}: {said}"
    elif result.served and (name := figure_name(result)):
        said = f"{name}: {said}"
    return [*lines, ("rate" if unit.higher_is_better else "figure", said)]


def figure_name(result: RunResult) -> str:
    """Return what the worker calls its figure, where a workload has several: `p90 latency`."""
    said = next((event.figure for event in reversed(result.measured.events) if isinstance(event, Result)), None)
    return said.name if said else ""


def missed_hint(rows: Sequence[RunRow]) -> str:
    """Return what the worker of the first run that missed its target says to do."""
    return next((row.failure_hint or "" for row in rows if is_censored(row)), "")


def _failures(failed: Sequence[RunRow], details: str) -> list[Line]:
    """Failed runs are never hidden: the first few with what to do, the others counted."""
    lines: list[Line] = []
    for row in failed[:FAILURES_SHOWN]:
        hint = f"\n{row.failure_hint.splitlines()[0]}" if row.failure_hint else ""
        lines.append(("failed", f"{short_id(row.id)}: {row.failure_message or 'no reason is known'}{hint}"))
    if (more := len(failed) - FAILURES_SHOWN) > 0:
        lines.append(("failed", f"and {counted(more, 'more run')}: {details}"))
    return lines


def say_limit(standing: Standing) -> str:
    """`memory-bound: 71 % of copy bandwidth, 22 % of the bf16 matrix rate`. The details say how the bytes were counted."""
    memory = max((share for share in (standing.called_share, standing.least_share) if share is not None), default=None)
    if standing.work.compiled and standing.least_share is not None:
        memory = standing.least_share  # what a compiled run moves is not known; at least this
    parts = [(memory, "of copy bandwidth"), (standing.matrix_share, f"of the {standing.work.precision} matrix rate")]
    known = sorted(((share, of) for share, of in parts if share is not None), reverse=True)
    said = ", ".join(f"{say_share(share)} {of}" for share, of in known)
    if standing.out_of_date:
        return f"the measured ceiling is out of date ({said}); measure it again: stackmark ceilings"
    bound = say_bound(standing)
    return f"{bound}: {said}" if bound else said


def _published(result: RunResult) -> str:
    """One line of the nearest row; the details say in what it differs."""
    row = result.published[0].row
    count = f"{row.count} × " if row.count != 1 else ""
    return f"{row.value:,.10g} {row.unit}: {row.model}, {count}{row.chip}, {row.precision} ({row.source}, {row.date})"


def _against(result: RunResult) -> str:
    """Where the recipe differs, that is said before the number: such a ratio is context."""
    found = result.against
    assert found is not None
    recipe = "another recipe, so only context: " if found.context else ""
    return f"{recipe}{found.comparison.sentence}"


def say_group(group: GroupTimes) -> str:
    """`a step of 92.1 ms: compute 75.0 ms, waiting for the slowest rank 4.1 ms, exchange of 1.03 MiB 13.0 ms`."""
    of = f" of {say_size(group.exchanged_bytes)}" if group.exchanged_bytes else ""
    # A difference of two times: at or below 0 it is less than their noise.
    exchange = say_seconds(group.exchange_s) if group.exchange_s > 0 else "less than the noise"
    return (
        f"a step of {say_seconds(group.step_s)}: compute {say_seconds(group.compute_s)}, "
        f"waiting for the slowest rank {say_seconds(group.waiting_s)}, exchange{of} {exchange}"
    )


def say_settings(result: RunResult) -> str:
    """All settings that a result shows, each that was chosen for the user with a mark."""
    params, choices = result.measured.spec.params, result.measured.choices
    family, _ = find(result.spec.workload)
    shown = [(name, params[name]) for name in family.settings if name in params and not _is_empty(params[name])]
    each = " per rank" if result.measured.spec.ranks > 1 else ""
    said = [
        f"{name} {_short(str(value))}{each if name == 'batch' else ''}{CHOSEN_MARK if name in choices else ''}"
        for name, value in shown
    ]
    marked = any(name in choices for name, _ in shown)
    return ", ".join(said) + (f"  ({LEGEND})" if marked else "")


def _is_empty(value: Scalar) -> bool:
    """Tell whether a setting has no value: a rate of 0 is that of a scenario without one. False is a value."""
    return value in EMPTY or (isinstance(value, float) and value == 0)


def warning_lines(cautions: Sequence[Caution]) -> list[Line]:
    """Return the first warnings, the worst first."""
    return [("warning", _cut(one.text)) for one in _shown(cautions)]


def say_more(cautions: Sequence[Caution]) -> str:
    """`2 more notes: `, where warnings are left out here; `1 note: ` where all of them are of low severity."""
    shown = len(_shown(cautions))
    more = len(cautions) - shown
    return f"{counted(more, 'more note' if shown else 'note')}: " if more else ""


def _shown(cautions: Sequence[Caution]) -> list[Caution]:
    return [one for one in cautions if one.severity != "low"][:WARNINGS_SHOWN]


def _cut(text: str) -> str:
    return text if len(text) <= WARNING_AT_MOST else f"{text[: WARNING_AT_MOST - 1].rstrip()}…"


def _short(text: str) -> str:
    return text if len(text) <= SETTING_AT_MOST else f"{text[: SETTING_AT_MOST - 1]}…"
