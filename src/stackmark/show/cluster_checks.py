"""A cluster's functional checks, and what was cleaned: the progress, the table, and what stands behind a failed case."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column as Cell

from stackmark.cluster.checks.suite import Suite
from stackmark.cluster.checks.work import Case, Checked
from stackmark.cluster.cleaning import Left
from stackmark.schemas import schema_name
from stackmark.show.junit import Case as JunitCase
from stackmark.show.junit import Outcome
from stackmark.show.live import ScreenBar
from stackmark.show.terminal import Column, Line, Voice, is_screen, print_grid, print_table, standard_error
from stackmark.units import counted, say_seconds

COLOURS = {"passed": "green", "failed": "bold red", "left out": "yellow"}
OUTCOMES: dict[str, Outcome] = {"passed": "passed", "failed": "failure", "left out": "skipped"}
COLUMNS = (
    Column("area", style="cyan"),
    Column("case"),
    Column("pods"),
    Column("result"),
    Column("time", right=True, drop=1),
    Column("evidence"),
)
CLEAN_COLUMNS = (
    Column("kind", style="cyan"),
    Column("namespace", drop=2),
    Column("name"),
    Column("work", drop=1),
    Column("age", right=True, drop=3),
    Column("fate"),
    Column("why"),
)
CLEAN_COLOURS = {"removed": "green", "would go": "green", "going": "green", "stays": "yellow", "refused": "bold red"}
LINE_STYLES = {"failed": "red", "hint": "yellow", "by hand": "dim", "next": "dim"}


def say_case(line: Checked) -> str:
    return f"{line.result:<8}  {line.area:<7}  {line.case}, {line.scope}  {_time(line)}  {line.evidence}"


class Notices(Voice):
    """Say what a person must know and nothing of the progress: with `--json`."""

    def begins(self, case: Case, number: int, of: int) -> None: ...
    def ended(self, checked: Checked) -> None: ...
    def stop(self) -> None: ...


class PlainCases(Notices):
    """One line a case, as it ends: for logs and pipes."""

    def ended(self, checked: Checked) -> None:
        self._say(say_case(checked))


class CaseBar(ScreenBar):
    """A bar with the case at hand; what failed scrolls up as a line, and the table has the rest."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            console,
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Cell(no_wrap=True, ratio=1)),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
        )
        self._task = self._progress.add_task("the cluster is asked", total=None)

    def begins(self, case: Case, number: int, of: int) -> None:
        text = f"case {number}/{of}  {case.area}: {case.name}, {case.scope}"
        self._progress.update(self._task, description=text, completed=number - 1, total=of)

    def ended(self, checked: Checked) -> None:
        if checked.result == "failed":
            self._line(say_case(checked), COLOURS[checked.result])


@contextmanager
def watching_cases(quiet: bool) -> Iterator[CaseBar | Notices]:
    """Progress goes to standard error, so that standard output holds the result and nothing else."""
    console = standard_error()
    if is_screen(console):
        with CaseBar(console) as bar:
            yield bar
    else:
        yield Notices(sys.stderr) if quiet else PlainCases(sys.stderr)


def print_checks(suite: Suite, console: Console) -> None:
    lines = suite.checked
    print_grid(console, about(suite), LINE_STYLES)
    rows = [
        [
            line.area,
            line.case,
            line.scope,
            line.result,
            _time(line),
            line.evidence,
        ]
        for line in lines
    ]
    print_table(console, COLUMNS, rows, [COLOURS[line.result] for line in lines])
    behind: list[Line] = []
    for line in lines:
        if line.result == "failed":
            behind.append(("failed", f"{line.area}: {line.case}, {line.scope}: {line.evidence}"))
            behind += [("hint", line.hint)] if line.hint else []
            behind += [("by hand", line.command)] if line.command else []
    print_grid(console, [*behind, ("result", say_counts(lines))], LINE_STYLES)


def about(suite: Suite) -> list[Line]:
    """Say which cluster it was."""
    image = f"{suite.image}, with the host's own software" if suite.host_software else suite.image
    return [
        ("cluster", f"{suite.context} ({suite.server}), Kubernetes {suite.version}"),
        ("namespace", suite.namespace),
        ("image", image),
        ("many", str(suite.many)),
    ]


def _time(line: Checked) -> str:
    """Of what was left out only where it took any."""
    return say_seconds(line.seconds) if line.result != "left out" or line.seconds >= 1 else ""


def say_counts(lines: Sequence[Checked]) -> str:
    counts = [(sum(1 for line in lines if line.result == result), result) for result in COLOURS]
    said = ", ".join(f"{count} {result}" for count, result in counts if count)
    return f"{counted(len(lines), 'case')}: {said}" if lines else "no case was tried"


def print_cleaned(lines: Sequence[Left], console: Console) -> str:
    """Print what was left, a line each, and return how many had which fate."""
    rows = [
        [line.kind, line.namespace, line.name, line.work, say_seconds(line.age_s), line.fate, line.why]
        for line in lines
    ]
    print_table(console, CLEAN_COLUMNS, rows, [CLEAN_COLOURS[line.fate] for line in lines])
    counts = {fate: sum(1 for line in lines if line.fate == fate) for fate in CLEAN_COLOURS}
    return ", ".join(f"{count} {fate.removesuffix('s')}" for fate, count in counts.items() if count)


def junit_case(line: Checked) -> JunitCase:
    more = [line.hint] if line.hint else []
    more += [f"by hand: {line.command}"] if line.command else []
    name = f"{line.area}: {line.case} ({line.scope})"
    return JunitCase(name, line.seconds, OUTCOMES[line.result], line.area, line.evidence, more)


def checks_json(suite: Suite) -> dict[str, Any]:
    return {
        "schema": schema_name("cluster-check"),
        "context": suite.context,
        "server": suite.server,
        "version": suite.version,
        "namespace": suite.namespace,
        "image": suite.image,
        "host_software": suite.host_software,
        "many": suite.many,
        **{result.replace(" ", "_"): suite.count(result) for result in ("passed", "failed", "left out")},
        "cases": [asdict(one) for one in suite.checked],
    }
