"""Scores of MLPerf training next to a published time, as a table."""

from collections.abc import Sequence

from rich.console import Console

from stackmark.experiments.mlperf import PublishedTime, Score
from stackmark.experiments.mlperf_logs import CheckedLog, WrittenLog
from stackmark.ledger.rows import RunDetail
from stackmark.show.safe import safe_line
from stackmark.show.stacks import print_stack
from stackmark.show.terminal import Column, print_table, standard_output

COLUMNS = (
    Column("benchmark", style="cyan"), Column("runs", right=True), Column("shortest", right=True, drop=1),
    Column("longest", right=True, drop=1), Column("score", right=True), Column("published", right=True),
    Column("against it"),
)  # fmt: skip


def print_scores(scores: Sequence[Score], console: Console, *, details: bool = False) -> None:
    """Print the scores, which are unofficial, and where the published times are from; with `details` the stacks too."""
    if rows := [_cells(one) for one in scores if one.minutes is not None]:
        print_table(console, COLUMNS, rows)
    for one in scores:
        if one.unofficial:
            print(f"unofficial: {safe_line(one.benchmark)}: {one.unofficial}", file=console.file)
    for row in {one.against.row.system: one.against.row for one in scores if one.against}.values():
        source = f"{row.system}, {row.extra.get('submitter')}, {row.source}, {row.date}"
        print(f"minutes to the target; published: {source}", file=console.file)
    for one in scores if details else ():
        if one.against:
            print(f"\n{safe_line(one.benchmark)}: our stack and that of {one.against.row.system}", file=console.file)
            print_stack(one.stack, console)


RUN_COLUMNS = (
    Column("run", style="cyan"), Column("benchmark"), Column("minutes", right=True), Column("published", right=True),
    Column("against it"), Column("published for"),
)  # fmt: skip


def print_published_times(pairs: Sequence[tuple[RunDetail, PublishedTime]]) -> None:
    """Print each imported run next to the published time of the same benchmark and round."""
    print_table(standard_output(), RUN_COLUMNS, [_run_cells(row, one) for row, one in pairs])


def _run_cells(row: RunDetail, one: PublishedTime) -> list[str]:
    minutes = 1 / (row.rate_per_s or 1.0)
    source = f"{one.row.system}, {one.row.extra.get('submitter')}, {one.row.source}"
    return [
        row.id, row.workload.partition("/")[2], f"{minutes:.2f}", f"{one.row.value:.2f}",
        _say_percent(minutes, one.row.value, one.percent), source if one.same_system else f"the same chips in {source}",
    ]  # fmt: skip


def _cells(one: Score) -> list[str]:
    times = [run.seconds / 60 for run in one.runs if run.seconds is not None]
    published = f"{one.against.row.value:.2f}" if one.against else ""
    return [
        one.benchmark, str(len(one.runs)), f"{min(times):.2f}", f"{max(times):.2f}",
        f"{one.minutes:.2f}{'' if one.official else ' unofficial'}", published,
        _difference(one),
    ]  # fmt: skip


def _difference(one: Score) -> str:
    if one.against is None or one.minutes is None:
        return ""
    return _say_percent(one.minutes, one.against.row.value, one.against.percent)


def _say_percent(minutes: float, published: float, percent: float) -> str:
    if f"{minutes:.2f}" == f"{published:.2f}":
        return "the same minutes"
    return f"{abs(percent):.2f} % {'slower' if percent > 0 else 'faster'}"


def print_written(logs: Sequence[WrittenLog]) -> None:
    for one in logs:
        print(f"{safe_line(one.file)}  {one.lines} lines of {one.run_id}")


def print_checked(logs: Sequence[CheckedLog]) -> None:
    """Print the checker's word on each file, with what it found under it."""
    for one in logs:
        print(f"{'passed' if one.passed else 'FAILED'}  {safe_line(one.file)}")
        for finding in one.findings:
            print(f"        {safe_line(finding)}")
