"""Experiments that need a cluster: the sweep over all its devices, and the fault while a workload trains."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from stackmark.api.ledgers import Ledger, LedgerLike, Notice, clean, opened
from stackmark.api.options import Option, command_of, read_request
from stackmark.api.stored import Confirm, Experiment, FaultResult
from stackmark.errors import Exit, SpecError
from stackmark.experiments.faulting import PARTS as FAULT_PARTS
from stackmark.experiments.faulting import FaultRequest, Planned, plan_lines
from stackmark.experiments.faulting import fault as carry_out
from stackmark.experiments.faulting import plan_fault as plan_one
from stackmark.experiments.manifesting import read_pod_options
from stackmark.experiments.recorder import Watcher
from stackmark.experiments.sweep import sweep as sweeps
from stackmark.experiments.sweep.plan import MARGIN
from stackmark.experiments.sweep.sweep import Looker, SweepRequest, Swept
from stackmark.ledger.rows import RunRow
from stackmark.schemas import with_schema
from stackmark.show.callbacks import ProgressLike, watcher_of
from stackmark.show.faults import print_plan
from stackmark.show.junit import render_junit
from stackmark.show.sweep import junit_cases, print_sweep, sweep_json, sweep_png, sweep_svg
from stackmark.show.terminal import printed
from stackmark.show.writing import check_picture, write_picture
from stackmark.spec import Request
from stackmark.units import say_moment
from stackmark.verdict.swept import Line

# Longer than anybody waits, and than a cluster stays whole.
LONGEST_FAULT_S = 3600.0


# --- sweep --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepResult:
    """The same run on every device of a cluster, and which of them are slow."""

    swept: Swept

    @property
    def slow(self) -> list[Line]:
        """Return the devices that are named slow, confirmed or as a group."""
        return self.swept.in_state("SLOW", "slow group")

    @property
    def wants_more(self) -> bool:
        """Tell whether `resume` has something to do: runs that are missing or failed."""
        return not self.swept.finished or bool(self.swept.in_state("failed"))

    def exit_code(self, *, fail_on_slow: bool = False) -> Exit:
        """Return what `stackmark cluster sweep` exits with.

        A device that was not measured was not checked, and counts before what was found.
        """
        failed = self.swept.in_state("failed", "missing")
        if failed:
            return Exit.CLUSTER_FAILED if len(failed) == len(self.swept.lines) else Exit.PART_FAILED
        return Exit.VERDICT_NAMED if fail_on_slow and self.slow else Exit.DONE

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark cluster sweep --json` prints."""
        return sweep_json(self.swept)

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw every device around the median: SVG or PNG, by the name of the file."""
        target = Path(path)
        check_picture(target, "sweep.svg")
        return write_picture(target, lambda: sweep_svg(self.swept), lambda: sweep_png(self.swept))

    def junit(self) -> str:
        """Return JUnit XML: a case for each device."""
        swept = self.swept
        when = say_moment(swept.created_unix_s, "%Y-%m-%dT%H:%M:%S", utc=True)
        properties = [("experiment", swept.experiment_id), ("margin", f"{swept.margin:g}")]
        return render_junit(f"stackmark cluster sweep {swept.workload}", junit_cases(swept), properties, when)

    def __str__(self) -> str:
        return printed(lambda console: print_sweep(self.swept, console))


def plan_sweep(
    request: Request,
    place_options: Mapping[str, JsonValue],
    *,
    nodes: str | None = None,
    margin: float = MARGIN,
    confirm: int | None = None,
    more_runs: int | None = None,
    at_once: int | None = None,
    one_a_node: bool = False,
    command: str = "",
) -> SweepRequest:
    """Plan a sweep. `nodes` is a label selector; `confirm` are the pairs of runs by which a flagged device is confirmed."""
    if confirm == 1:
        raise SpecError(
            "--confirm must be 0 or at least 2, got 1: one pair of runs has no spread", hint="use 4, or 0 for none"
        )
    return SweepRequest(
        request=request,
        options=read_pod_options(place_options),
        nodes=nodes,
        margin=margin,
        confirm_blocks=confirm,
        more_runs=more_runs,
        at_once=at_once,
        one_a_node=one_a_node,
        command=command,
    )


def start_sweep(asked: SweepRequest, ledger: Ledger, watcher: Watcher) -> Experiment:
    """Find the devices, probe on the first, and store the plan: from here on it can be resumed."""
    # A ledger that is locked or read-only is found now, and not after the first run.
    ledger.writing(lambda _: None)
    clean(ledger, watcher.notice)
    return Experiment(sweeps.start(asked, ledger, watcher), ledger)


def is_open_sweep(experiment: Experiment) -> bool:
    """Tell whether runs of a sweep are missing or failed. An experiment of another kind is refused."""
    sweeps.plan_of(experiment.row)
    with opened(experiment.ledger) as book:
        return sweeps.is_open(book, experiment.row)


def prepare_sweep(experiment: Experiment, confirm: Confirm) -> None:
    """Ask `confirm` whether what the ledger says may run."""
    with opened(experiment.ledger) as book:
        confirm(sweeps.parts_in(sweeps.plan_of(experiment.row)), book.where)


def carry_out_sweep(experiment: Experiment, looker: Looker, *, time_limit_s: float | None = None) -> None:
    """Visit what is missing, then run again what is suspected. Interruptions pass through: what was finished is stored."""
    with opened(experiment.ledger) as book:
        sweeps.carry_out(experiment.row, book, looker, time_limit_s=time_limit_s)


def sweep_result(experiment: Experiment) -> SweepResult:
    """Return what a stored sweep shows; nothing is run."""
    with opened(experiment.ledger) as book:
        return SweepResult(sweeps.examine(book, experiment.row))


class _Notices:
    """Passes on what a person should read, and nothing else."""

    def __init__(self, notice: Notice) -> None:
        self.notice = notice

    def stage(self, what: str, total: int, done: int) -> None: ...
    def in_flight(self, names: Sequence[str], count: int) -> None: ...
    def landed(self, name: str, row: RunRow) -> None: ...


def sweep(
    workload: str,
    *,
    nodes: str | None = None,
    margin: float = MARGIN,
    confirm: int | None = None,
    more_runs: int | None = None,
    at_once: int | None = None,
    one_a_node: bool = False,
    time_limit_s: float | None = None,
    ledger: LedgerLike = None,
    progress: ProgressLike = None,
    **options: Option,
) -> SweepResult:
    """Run a workload on every GPU of every node: which one is slow? `options` are its parameters and a pod's options."""
    request, place_options = read_request(workload, 1, options)
    typed = {
        "nodes": nodes, "margin": margin if margin != MARGIN else None, "confirm": confirm, "more_runs": more_runs,
        "at_once": at_once, "one_a_node": one_a_node or None,
    }  # fmt: skip
    asked = plan_sweep(
        request, place_options, nodes=nodes, margin=margin, confirm=confirm, more_runs=more_runs, at_once=at_once,
        one_a_node=one_a_node, command=command_of(["cluster", "sweep"], workload, {**typed, **options}),
    )  # fmt: skip
    watcher = watcher_of(progress)
    with opened(ledger, create=True) as book:
        experiment = start_sweep(asked, book, watcher)
        carry_out_sweep(experiment, _Notices(watcher.notice), time_limit_s=time_limit_s)
        return sweep_result(experiment)


# --- fault --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FaultPlan:
    """A plan of a fault: what is done to a cluster, with which rights, and what heals it. Nothing is done yet."""

    planned: Planned

    @property
    def title(self) -> str:
        return f"{self.planned.target.part} on {self.planned.target.node}"

    def lines(self) -> list[tuple[str, str]]:
        """Return what would be done: what each sentence is about, and the sentence."""
        return plan_lines(self.planned)

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark cluster fault --json` prints without --yes."""
        lines = [{"about": about, "sentence": sentence} for about, sentence in self.lines()]
        return with_schema("cluster-fault-plan", {"dry_run": True, "plan": lines})

    def __str__(self) -> str:
        return printed(lambda console: print_plan(console, self.title, self.lines()))

    def carry_out(self, *, ledger: LedgerLike = None, progress: ProgressLike = None) -> FaultResult:
        """Stop the part while the workload trains, and return what that did. It heals by itself."""
        watcher = watcher_of(progress)
        with opened(ledger, create=True) as book:
            clean(book, watcher.notice)
            return Experiment(carry_out(self.planned, book, watcher), book).fault()


def make_fault_plan(
    part: str,
    request: Request,
    place_options: Mapping[str, JsonValue],
    *,
    seconds: float = 60.0,
    before_s: float = 20.0,
    after_s: float = 20.0,
    recover_s: float = 300.0,
    command: str = "",
    **means: Any,
) -> FaultPlan:
    """Choose the node and the means. `means` are the further fields of `FaultRequest`: plugin_selector, stop_command …"""
    known = next((one for one in FAULT_PARTS if one == part), None)
    if known is None:
        raise SpecError(f"a fault's part must be one of {', '.join(FAULT_PARTS)}, got {part!r}")
    for option, value in (("--for", seconds), ("--before", before_s), ("--after", after_s), ("--recover", recover_s)):
        if not 1.0 <= value <= LONGEST_FAULT_S:
            raise SpecError(f"{option} must be between 1 s and 1 h, got {value:g} s", hint="write it like 30s or 2min")
    asked = FaultRequest(
        part=known, request=request, options=read_pod_options(place_options), seconds=seconds, before_s=before_s,
        after_s=after_s, recover_s=recover_s, command=command, **means,
    )  # fmt: skip
    return FaultPlan(plan_one(asked))


def plan_fault(
    part: str,
    workload: str,
    *,
    seconds: float = 60.0,
    before_s: float = 20.0,
    after_s: float = 20.0,
    recover_s: float = 300.0,
    means: Mapping[str, Any] | None = None,
    **options: Option,
) -> FaultPlan:
    """Plan to stop a part of the cluster while a workload trains in a pod. `carry_out` of the plan does it.

    `part` is device-plugin, kubelet, api-server, runtime or node-network. `means` say how it is stopped, by the names of the
    command line: `{"means": "script:./cluster"}`, `{"helper_image": …}`.
    """
    request, place_options = read_request(workload, 1, options)
    how = dict(means or {})
    typed = {
        "while": workload, "for": f"{seconds:g}s", "before": f"{before_s:g}s", "after": f"{after_s:g}s",
        "recover": f"{recover_s:g}s",
    }  # fmt: skip
    command = command_of(["cluster", "fault", part], None, {**typed, **how, **options})
    return make_fault_plan(
        part, request, place_options, seconds=seconds, before_s=before_s, after_s=after_s, recover_s=recover_s,
        command=command, **how,
    )  # fmt: skip
