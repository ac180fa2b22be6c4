"""Measure a machine's limits, and compare stored runs with them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from stackmark.api.ledgers import Ledger, LedgerLike, clean, opened
from stackmark.api.measuring import RunPlan
from stackmark.api.options import Option, command_of, read_request
from stackmark.errors import Exit, SpecError, WorkerError
from stackmark.experiments.arms import place_of
from stackmark.experiments.ceilings import WORKLOAD, MeasuredCeilings, every_kept, of_experiment
from stackmark.experiments.driver import machine_name
from stackmark.experiments.operator_list import go_through, start
from stackmark.experiments.recorder import Watcher
from stackmark.experiments.result import list_result
from stackmark.experiments.roofline import roofline as compute_roofline
from stackmark.schemas import with_schema
from stackmark.show.callbacks import ProgressLike, watcher_of
from stackmark.show.ceilings import ceilings_json, print_ceilings
from stackmark.show.roofline import print_roofline, roofline_json
from stackmark.show.roofline_plot import roofline_png, roofline_svg
from stackmark.show.terminal import printed
from stackmark.show.writing import check_picture, write_picture
from stackmark.spec import Request
from stackmark.verdict.roofline import Roofline
from stackmark.workloads.registry import check_typed

# The workload that measures ceilings.
CEILINGS = WORKLOAD
# The set of problems that measures the matrix rate of one precision alone.
ONE_PRECISION = "one_precision"


# --- ceilings -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CeilingsResult:
    """The measured ceilings of one chip of this machine, next to the vendor's figures."""

    kept: MeasuredCeilings
    exit_code: Exit = Exit.DONE

    def to_dict(self) -> dict[str, Any]:
        """Return one of the `ceilings` of `stackmark ceilings --json`."""
        return with_schema("device-ceilings", ceilings_json(self.kept))

    def __str__(self) -> str:
        return printed(lambda console: print_ceilings(self.kept, console))


def ceilings_params(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given; a precision means the matrix rate of that alone."""
    params = {name: value for name, value in given.items() if value is not None}
    return {**params, "set": ONE_PRECISION} if "precision" in params else params


def plan_ceilings(
    request: Request,
    *,
    on: str = "host",
    place_options: Mapping[str, JsonValue] | None = None,
    runs: int = 1,
    time_limit_s: float | None = None,
    command: str = "",
) -> RunPlan:
    """Refuse what can be refused before anything is measured."""
    check_typed(request)
    return RunPlan(request, place_of(on, CEILINGS, place_options or {}), runs, time_limit_s, command=command)


def carry_out_ceilings(plan: RunPlan, ledger: Ledger, watcher: Watcher) -> CeilingsResult:
    """Measure the ceilings and keep them in the ledger. What is returned is of this measurement alone."""
    clean(ledger, watcher.notice)
    started = start(plan.request, plan.place, ledger, watcher, plan.runs, plan.command)
    go_through(started, plan.place, ledger, watcher, plan.time_limit_s)
    measured = list_result(ledger, started.experiment)
    found = of_experiment(measured.listed)
    if found is None:
        last = measured.runs[-1]
        raise WorkerError(last.failure_message or "no row gave a number", hint=last.failure_hint)
    return CeilingsResult(found, measured.exit_code)


def ceilings(
    *,
    on: str = "host",
    runs: int = 1,
    time_limit_s: float | None = None,
    ledger: LedgerLike = None,
    progress: ProgressLike = None,
    **options: Option,
) -> CeilingsResult:
    """Measure what a chip of this machine can do at most: matrix rate by precision, memory, the way to the host, launches.

    `options` are `device`, `precision`, `threads`, `budget`, and options of the place.
    """
    request, place_options = read_request(CEILINGS, 1, ceilings_params(options))
    typed = {"on": on if on != "host" else None, "runs": runs if runs != 1 else None}
    command = command_of(["ceilings"], None, {**typed, **options})
    plan = plan_ceilings(
        request, on=on, place_options=place_options, runs=runs, time_limit_s=time_limit_s, command=command
    )
    with opened(ledger, create=True) as book:
        return carry_out_ceilings(plan, book, watcher_of(progress))


def kept_ceilings(device: str | None = None, *, ledger: LedgerLike = None) -> list[CeilingsResult]:
    """Return the latest ceilings that are kept of every chip of this machine, or of one device; nothing is measured."""
    with opened(ledger) as book:
        found = every_kept(book, machine_name(), device)
    if not found:
        of = f" of {device}" if device else ""
        raise SpecError(f"the ceilings{of} of this machine are not measured", hint="measure them: stackmark ceilings")
    return [CeilingsResult(one) for one in found]


# --- roofline -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RooflineResult:
    """The share of their machine's matrix rate and memory bandwidth that runs reach."""

    roofline: Roofline

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark roofline --json` prints."""
        return with_schema("roofline", roofline_json(self.roofline))

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the runs under their roof: SVG or PNG, by the name of the file."""
        target = Path(path)
        check_picture(target, "roofline.svg")
        return write_picture(target, lambda: roofline_svg(self.roofline), lambda: roofline_png(self.roofline))

    def __str__(self) -> str:
        return printed(lambda console: print_roofline(self.roofline, console))


def roofline(runs: str | Sequence[str], *, ledger: LedgerLike = None) -> RooflineResult:
    """Compute how far stored runs are from their machine's limits, which `ceilings` measured on the same chip."""
    with opened(ledger) as book:
        return RooflineResult(compute_roofline(book, [runs] if isinstance(runs, str) else runs))
