"""Baselines for people: a series as it ends, what a baseline holds, and the list of all baselines."""

from collections.abc import Sequence

from rich.console import Console

from stackmark.experiments.baseline import ADVICE, ENOUGH, HeldWorkload, SeriesResult
from stackmark.figures import figure_unit, say_figure
from stackmark.ledger.baselines import Listed
from stackmark.show.safe import safe_line, short_id
from stackmark.show.terminal import Column, print_table
from stackmark.show.wording import say_spread
from stackmark.units import counted, say_moment

LIST_COLUMNS = (
    Column("baseline", style="cyan"),
    Column("experiments", right=True, drop=2),
    Column("first", drop=3),
    Column("last", drop=1),
    Column("workloads"),
)


def say_series(series: SeriesResult) -> str:
    """Say the rate of a series; nothing where no run of it gave one."""
    rate = series.throughput
    if rate is None:
        return ""
    spread = say_spread(rate)
    runs = f"{spread} (95 %; {counted(rate.runs, 'run')})" if spread else "(one run: no interval)"
    return f"{safe_line(series.label)}  {say_figure(rate.rate_per_s, series.unit)} {runs}  {short_id(series.experiment_id)}"


def holds_lines(name: str, holds: Sequence[HeldWorkload]) -> list[str]:
    """Say what a baseline holds, and what to do next."""
    lines = [f"{name} has {counted(one.series, 'series')} of {safe_line(one.label)}" for one in holds]
    for one in holds:
        if ratio := one.departure:
            change = figure_unit(one.rows[0].rate_unit).say_shift(ratio)[0]
            lines.append(
                f"the last series of {safe_line(one.label)} is {change} against those before: a baseline of two states hides the "
                f"change between them; to take it out: stackmark delete {one.rows[-1].experiment_id}"
            )
    if any(one.series < ENOUGH for one in holds):
        lines += [ADVICE, f"add one with: stackmark baseline save {name}"]
    return [*lines, f"check with: stackmark check {name}"] if holds else lines


def print_baselines(baselines: Sequence[Listed], console: Console) -> None:
    rows = [
        [one.name, str(one.experiments), _day(one.first_unix_s), _day(one.last_unix_s), ", ".join(one.workloads)]
        for one in baselines
    ]
    print_table(console, LIST_COLUMNS, rows)


def _day(moment_unix_s: float) -> str:
    return say_moment(moment_unix_s, "%Y-%m-%d")
