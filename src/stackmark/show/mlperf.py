"""Scores of MLPerf training next to a published time, as a table."""

from collections.abc import Sequence

from rich.console import Console

from stackmark.experiments.mlperf import Score
from stackmark.show.terminal import Column, print_table

COLUMNS = (
    Column("benchmark", style="cyan"), Column("runs", right=True), Column("shortest", right=True, drop=1),
    Column("longest", right=True, drop=1), Column("score", right=True), Column("published", right=True),
    Column("against it"),
)  # fmt: skip


def print_scores(scores: Sequence[Score], console: Console) -> None:
    """Print the scores that the rules give, and where the published times are from."""
    print_table(console, COLUMNS, [_cells(one) for one in scores if one.minutes is not None])
    for row in {one.against.row.system: one.against.row for one in scores if one.against}.values():
        source = f"{row.system}, {row.extra.get('submitter')}, {row.source}, {row.date}"
        print(f"minutes to the target; published: {source}", file=console.file)


def _cells(one: Score) -> list[str]:
    times = [run.seconds / 60 for run in one.runs if run.seconds is not None]
    published = f"{one.against.row.value:.2f}" if one.against else ""
    return [
        one.benchmark, str(len(one.runs)), f"{min(times):.2f}", f"{max(times):.2f}", f"{one.minutes:.2f}", published,
        _difference(one),
    ]  # fmt: skip


def _difference(one: Score) -> str:
    if one.against is None or one.minutes is None:
        return ""
    if f"{one.minutes:.2f}" == f"{one.against.row.value:.2f}":
        return "the same minutes"
    word = "slower" if one.against.percent > 0 else "faster"
    return f"{abs(one.against.percent):.2f} % {word}"
