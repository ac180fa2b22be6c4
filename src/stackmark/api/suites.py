"""Suites: a matrix of workloads, places and parameters as one table, one picture, one report.

    table = sm.suite("study.toml")
    print(table)
    table.report("study.html")

A suite is a TOML file, one that ships (`stackmark suite list`), or lists on the command line of `run` and `compare`.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from stackmark.api.ledgers import Ledger, LedgerLike, clean, opened
from stackmark.api.options import command_of
from stackmark.api.stored import Confirm, Experiment, trust
from stackmark.api.verdicts import is_named
from stackmark.errors import Exit, LedgerError, SpecError
from stackmark.experiments.design import MARGIN as MARGIN
from stackmark.experiments.recorder import Watcher
from stackmark.experiments.suite import carry_out as engine
from stackmark.experiments.suite.examine import examine_suite
from stackmark.experiments.suite.forecast import SuiteForecast, forecast
from stackmark.experiments.suite.plan import (
    PLACE,
    RANKS,
    WORKLOAD,
    PlannedArm,
    PlannedAxis,
    PlannedRow,
    find_suite,
    named_suites,
    parse,
)
from stackmark.experiments.suite.plan import SuitePlan as SuitePlan
from stackmark.secrets_masking import masked_arm
from stackmark.show.callbacks import ProgressLike, watcher_of
from stackmark.show.notebook import text_html
from stackmark.show.report import Heading
from stackmark.show.result import error_json
from stackmark.show.suite import print_suite
from stackmark.show.suite_formats import suite_csv, suite_json, suite_junit
from stackmark.show.suite_plot import SuiteKind, suite_plot_png, suite_plot_svg
from stackmark.show.terminal import printed
from stackmark.show.writing import check_picture, write_picture
from stackmark.spec import Request
from stackmark.verdict.suite import SuiteResult

# Workloads that the title of lists names one by one, and how long it may be: an arm may hold a whole program.
NAMED, MOST_TITLE = 3, 200
# From here on a suite asks before it begins: more cells than anybody reads, or more than a night.
MANY_CELLS, LONG_S = 200, 12 * 3600.0


@dataclass(frozen=True)
class Suite:
    """What a suite shows, recomputed from the ledger at any margin."""

    result: SuiteResult

    @property
    def id(self) -> str:
        return self.result.experiment_id

    @property
    def words(self) -> tuple[str, ...]:
        """Return the word of each comparison with the reference, row by row."""
        return tuple(one.word for one in self.result.comparisons)

    def exit_code(self, fail_on: Sequence[str] = ()) -> Exit:
        """Return what `stackmark suite run` exits with: 8 where `fail_on` names a verdict, 7 where a cell failed."""
        if any(is_named(one, fail_on) for one in self.result.comparisons):
            return Exit.VERDICT_NAMED
        return Exit.PART_FAILED if any("failed" in cell.marks for cell in self.result.cells) else Exit.DONE

    def to_dict(self) -> dict[str, JsonValue]:
        """Return what `stackmark suite run --json` prints."""
        return suite_json(self.result)

    def csv(self) -> str:
        """Return the table as CSV, a line for each cell."""
        return suite_csv(self.result)

    def junit(self, fail_on: Sequence[str] = ()) -> str:
        """Return JUnit XML: a case for each cell, which fails where `fail_on` names its verdict (else: slower)."""
        named = fail_on or ("slower",)
        return suite_junit(self.result, lambda comparison: is_named(comparison, named))

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        note: str | None = None,
        author: str | None = None,
    ) -> Path:
        """Write the report: HTML, Markdown or PDF, by the name of the file (`.html`, `.md`, `.pdf`)."""
        from stackmark.show.report import write_suite_report

        return write_suite_report(self.result, os.fspath(path), heading=Heading.made(title, note, author))

    def plot(self, path: str | os.PathLike[str], kind: SuiteKind | None = None) -> Path:
        """Draw the heat map of the ratios, or the bars of the rates: SVG or PNG, by the name of the file."""
        target = Path(path)
        check_picture(target, "suite.svg")
        return write_picture(
            target, lambda: suite_plot_svg(self.result, kind), lambda: suite_plot_png(self.result, kind)
        )

    def __str__(self) -> str:
        return printed(lambda console: print_suite(self.result, console))

    def _repr_html_(self) -> str:
        return text_html(str(self))


# --- plans ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedSuite:
    """A suite that ships."""

    name: str
    title: str
    about: str
    toml: str
    plan: SuitePlan


def shipped_suites() -> list[NamedSuite]:
    """Return the suites that ship, by their names."""
    found = []
    for name, text in named_suites().items():
        file = parse(text.encode(), name)
        found.append(NamedSuite(name, file.title, file.about, text, find_suite(name)))
    return found


def plan_suite(suite: str | os.PathLike[str], *, blocks: int | None = None, margin: float | None = None) -> SuitePlan:
    """Read a TOML file, or the suite that ships under this name; nothing is started."""
    return _drawn(find_suite(os.fspath(suite)), blocks=blocks, margin=margin)


def _drawn(plan: SuitePlan, **changes: Any) -> SuitePlan:
    """Draw the order of a plan; `changes` that are None change nothing."""
    given = {name: value for name, value in changes.items() if value is not None}
    return SuitePlan.model_validate({**plan.model_dump(mode="json"), "seed": secrets.randbelow(2**31), **given})


def plan_lists(
    name: str,
    requests: Sequence[Request],
    arms: Sequence[str],
    *,
    place_options: Mapping[str, JsonValue] | None = None,
    **design: Any,
) -> SuitePlan:
    """Plan several requests of a command line: rows with these arms, compared with the first where there are several.

    `design` are further fields of SuitePlan.
    """
    first = requests[0]
    several = [key for key in first.params if len({one.params.get(key) for one in requests}) > 1]
    ranks = {one.ranks for one in requests}
    compare = PLACE if len(arms) > 1 else ""
    texts = [masked_arm(text) for text in arms]
    rows = []
    for request in requests:
        values = {WORKLOAD: request.workload, **{key: _said(request.params.get(key)) for key in several}}
        if len(ranks) > 1:
            values[RANKS] = str(request.ranks)
        if not compare:
            values[PLACE] = texts[0]
        row = PlannedRow(
            workload=request.workload,
            values={key: value for key, value in values.items() if value},
            params=dict(request.params),
            ranks=request.ranks,
            place_options=dict(place_options or {}),
            arms=[PlannedArm(label=text if compare else "", text=text) for text in arms],
        )
        row.read()  # puts secrets aside, and refuses what a place does not take
        rows.append(
            row.model_copy(update={"arms": [PlannedArm(label=text if compare else "", text=text) for text in texts]})
        )
    names = dict.fromkeys([WORKLOAD, *several, *([RANKS] if len(ranks) > 1 else []), *([] if compare else [PLACE])])
    axes = [PlannedAxis(name=key, values=list(dict.fromkeys(row.values.get(key, "") for row in rows))) for key in names]
    if compare:
        axes.append(PlannedAxis(name=PLACE, values=texts))
    design.setdefault("margin", MARGIN)
    rows_by = [*several, *([RANKS] if len(ranks) > 1 else [])]
    design.setdefault("title", _title(list(dict.fromkeys(one.workload for one in requests)), rows_by, texts))
    plan = SuitePlan(name=name, axes=axes, compare=compare, reference=texts[0] if compare else "", rows=rows, **design)
    return _drawn(plan) if "seed" not in design else plan


def _title(workloads: Sequence[str], rows_by: Sequence[str], arms: Sequence[str]) -> str:
    """Name what lists of a command line ask: `container against host: train/lenet, train/trivial by batch`."""
    what = ", ".join(workloads[:NAMED]) + (f" and {len(workloads) - NAMED} more" if len(workloads) > NAMED else "")
    by = f" by {' and '.join(name.replace('_', '-') for name in rows_by)}" if rows_by else ""
    against = f"{', '.join(arms[1:])} against {arms[0]}: " if len(arms) > 1 else ""
    return f"{against}{what}{by}"[:MOST_TITLE]


def _said(value: object) -> str:
    if value is None:
        return ""
    return (
        "yes" if value is True else "no" if value is False else f"{value:g}" if isinstance(value, float) else str(value)
    )


def forecast_of(plan: SuitePlan, ledger: LedgerLike = None) -> SuiteForecast:
    """Forecast how long a plan takes: from runs in the ledger, else from its settings."""
    try:
        with opened(ledger) as book:
            return forecast(plan, book)
    except LedgerError:  # there is none yet; any other trouble with it is said when it is opened to store runs
        return forecast(plan, None)


def needs_yes(plan: SuitePlan, expected: SuiteForecast) -> bool:
    """Tell whether a suite is so large that somebody should confirm it."""
    return plan.cells > MANY_CELLS or expected.seconds > LONG_S


# --- running ----------------------------------------------------------------------------------------------------------------


def start_suite(
    plan: SuitePlan, ledger: Ledger, watcher: Watcher, *, command: str = "", again: bool = False
) -> Experiment:
    """Store the plan: from here on it can be resumed. The same suite that is not finished is refused, unless `again`."""
    ledger.writing(lambda _: None)
    clean(ledger, watcher.notice)
    same, other = engine.unfinished_named(ledger, plan) if not again else (None, None)
    if same is not None:
        raise SpecError(
            f"the suite {plan.name!r} was begun before and is not finished: {same.id}",
            hint=f"go on with: stackmark resume {same.id}\nor begin another one: --again",
        )
    if other is not None:
        watcher.notice(f"another suite of the name {plan.name!r} is in this ledger, with other cells: {other.id}")
    return Experiment(engine.start(plan, ledger, command), ledger)


def carry_out_suite(
    experiment: Experiment,
    watcher: Watcher,
    *,
    time_limit_s: float | None = None,
    anyway: bool = False,
    failed: bool = False,
) -> Suite:
    """Make the missing runs, then return the table. Interruptions pass through: what was finished is stored."""
    with opened(experiment.ledger) as book:
        stopped = engine.carry_out(
            experiment.row, book, watcher, time_limit_s=time_limit_s, anyway=anyway, failed=failed
        )
        return Suite(examine_suite(book, experiment.row, stopped=stopped))


def prepare_suite(experiment: Experiment, confirm: Confirm, *, failed: bool = False) -> None:
    """Ask `confirm` whether what the ledger says may run, where a run is missing; with `failed` also where a cell failed."""
    with opened(experiment.ledger) as book:
        confirm(engine.parts_in(book, experiment.row, failed=failed), book.where)


def read_suite(experiment: Experiment, margin: float | None = None) -> Suite:
    """Recompute what a stored suite shows."""
    with opened(experiment.ledger) as book:
        return Suite(examine_suite(book, experiment.row, margin))


def row_results(found: Suite, ledger: Ledger) -> list[dict[str, Any]]:
    """Return for each row what `run --json` prints of it alone; of one that could not start, its error."""
    results: list[dict[str, Any]] = []
    for row in found.result.rows:
        measured = None
        if row.experiment_id and row.examined:
            stored = Experiment(ledger.experiment(row.experiment_id), ledger)
            measured = stored.measured()
            if measured is None:
                results.append(stored.to_dict())
                continue
        if measured is not None:
            results.append(measured.to_dict())
        else:
            cell = row.cells[0]
            error = SpecError(cell.failure or "it was not measured", hint=cell.hint or None, kind=cell.failure_kind)
            results.append(error_json(Request(workload=row.workload), error))
    return results


def load_suite(experiment: str = "last", ledger: LedgerLike = None, margin: float | None = None) -> Suite:
    """Find a stored suite by its id, any unique beginning of it, or `last`."""
    with opened(ledger) as book:
        return read_suite(Experiment(book.experiment(experiment), book), margin)


def suite(
    suite: str | os.PathLike[str],
    *,
    blocks: int | None = None,
    margin: float | None = None,
    again: bool = False,
    time_limit_s: float | None = None,
    anyway: bool = False,
    ledger: LedgerLike = None,
    progress: ProgressLike = None,
) -> Suite:
    """Measure a suite: a TOML file, or one that ships (`quick`). What fails is a cell with its reason.

    A suite that was interrupted goes on with `resume_suite`.
    """
    plan = plan_suite(suite, blocks=blocks, margin=margin)
    watcher = watcher_of(progress)
    command = command_of(["suite", "run", os.fspath(suite)], None, {"blocks": blocks, "margin": margin})
    with opened(ledger, create=True) as book:
        begun = start_suite(plan, book, watcher, command=command, again=again)
        return carry_out_suite(begun, watcher, time_limit_s=time_limit_s, anyway=anyway)


def resume_suite(
    experiment: str = "last",
    *,
    failed: bool = False,
    time_limit_s: float | None = None,
    anyway: bool = False,
    trust_ledger: bool = False,
    ledger: LedgerLike = None,
    progress: ProgressLike = None,
) -> Suite:
    """Go on with a suite that was interrupted; with `failed` also begin rows again in which a cell failed."""
    with opened(ledger) as book:
        found = Experiment(book.experiment(experiment), book)
        prepare_suite(found, trust(trust_ledger), failed=failed)
        return carry_out_suite(found, watcher_of(progress), time_limit_s=time_limit_s, anyway=anyway, failed=failed)
