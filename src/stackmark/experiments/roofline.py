"""Draw stored runs under the ceilings of their chip: one point per run or arm, one per row for a list."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from stackmark.errors import SpecError
from stackmark.events import Result
from stackmark.experiments.ceilings import WORKLOAD as CEILINGS
from stackmark.experiments.design import stored_design
from stackmark.experiments.judging import read_stored
from stackmark.experiments.kinds import OPERATOR_LIST, kind_in, require_arms
from stackmark.experiments.limits import ceilings_for, threads_of, work_of
from stackmark.experiments.list_specs import is_list, rows_of_spec
from stackmark.experiments.operator_list import read_list, rows_in
from stackmark.ledger.rows import Experiment, RunDetail
from stackmark.ledger.store import Ledger
from stackmark.spec import Scalar
from stackmark.units import counted
from stackmark.verdict.ceilings import Ceilings
from stackmark.verdict.operators import ListResult, over_runs
from stackmark.verdict.roofline import MEASURE, Point, Roofline, Work
from stackmark.verdict.throughput import throughput_over_runs

# What may tell two points of one workload apart.
DETAILS = ("precision", "batch", "tune", "optimizer", "compile", "fused", "mode", "device")


@dataclass
class _Gathered:
    """Each point with a run to know its chip by."""

    placed: list[tuple[RunDetail, Point]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def roofline(ledger: Ledger, names: Sequence[str]) -> Roofline:
    """Place the named runs and experiments of one chip; a list gives one point per row."""
    gathered = _Gathered()
    for name in dict.fromkeys(names):
        if name.lower().startswith("x-"):
            _add_experiment(gathered, ledger, ledger.experiment(name))
        else:
            row = ledger.run(name)
            if row.status != "done":
                raise SpecError(f"{row.id} cannot be drawn: it is {row.status}", hint=f"see: stackmark show {row.id}")
            _add_runs(gathered, ledger, [row], row.id)
    if not gathered.placed:
        raise SpecError(
            next(iter(gathered.left_out), "there is nothing to draw"), hint="name a run of train/… or op/gemm"
        )
    ceilings = _of_one_chip(ledger, [row for row, _ in gathered.placed])
    return Roofline(ceilings, tuple(point for _, point in gathered.placed), tuple(gathered.left_out))


def _of_one_chip(ledger: Ledger, rows: Sequence[RunDetail]) -> Ceilings:
    threads = {row.id: _threads(ledger, row) for row in {row.id: row for row in rows}.values()}
    if len(set(threads.values())) > 1:
        some = sorted(number or 0 for number in set(threads.values()))
        raise SpecError(
            f"these runs had {some[0]} and {counted(some[1], 'thread')}: each number has its own ceilings",
            hint="draw them separately",
        )
    chips = {(row.ran_on, row.chip_uuid, row.device): row for row in rows}
    if len(chips) > 1:
        one, other, *_ = chips.values()
        where = [
            f"{row.chip or row.device} of machine {row.ran_on[:8] or 'unknown'} ({row.id})" for row in (one, other)
        ]
        raise SpecError(
            f"these runs are from {len(chips)} chips: {where[0]}, {where[1]}",
            hint="a roofline shows one chip: draw them separately",
        )
    row = next(iter(chips.values()))
    found = ceilings_for(ledger, row, threads[row.id])
    if found is None:
        number = threads[row.id]
        of_threads = f" with {counted(number, 'thread')}" if number else ""
        raise SpecError(
            f"the ceilings of {row.chip or row.device or 'this chip'}{of_threads} are not measured yet, so there is no roof",
            hint=f"measure them on that machine: {MEASURE}{f' --threads {number}' if number else ''}",
        )
    return found


def _threads(ledger: Ledger, row: RunDetail) -> int | None:
    return threads_of(row, row.spec, read_stored(ledger.stream(row.id)).stream.events) if row.device == "cpu" else None


def _add_experiment(gathered: _Gathered, ledger: Ledger, experiment: Experiment) -> None:
    require_arms(experiment)
    if kind_in(ledger, experiment) is OPERATOR_LIST:
        listed = read_list(ledger, experiment)
        if run := listed.shown_run():
            _add_list(gathered, run, listed.result, experiment.id, {})
        return
    good = [row for row in ledger.runs_of(experiment.id) if row.status == "done" and row.role == "measured"]
    if not good:
        raise SpecError(f"no run of {experiment.id} gave a number", hint=f"see: stackmark show {experiment.id}")
    design = stored_design(experiment)
    labels = [arm.label for arm in design.arms] if design else []
    for arm in sorted({row.arm for row in good}):
        label = labels[arm] if len(labels) > 1 and arm < len(labels) else ""
        _add_runs(gathered, ledger, [row for row in good if row.arm == arm], experiment.id, label)


def _add_runs(gathered: _Gathered, ledger: Ledger, rows: Sequence[RunDetail], name: str, arm: str = "") -> None:
    """Runs of one arm, as one point: or as many as they have rows."""
    row, details = rows[-1], {"arm": arm} if arm else {}
    if is_list(row.workload):
        of_runs = [rows_in(read_stored(ledger.stream(one.id)).stream.events) for one in rows]
        _add_list(gathered, row, over_runs(of_runs, rows_of_spec(row.spec)), name, details)
        return
    rates = [one.rate_per_s for one in rows if one.rate_per_s]
    ended = read_stored(ledger.stream(row.id)).stream.ended()
    work = None
    if rates and isinstance(ended, Result):
        work = work_of(row.spec, ended, throughput_over_runs(rates).rate_per_s)
    if work is None:
        gathered.left_out.append(f"{name} ({row.workload}) cannot be drawn: its operations are not counted")
        return
    params = {key: _said(row.spec.params[key]) for key in DETAILS if key in row.spec.params}
    gathered.placed.append((row, Point(row.workload, work, name, details={**params, **details})))


def _said(value: Scalar) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _add_list(gathered: _Gathered, row: RunDetail, result: ListResult, name: str, details: dict[str, str]) -> None:
    if row.workload == CEILINGS:
        raise SpecError(
            f"{name} is the roof itself", hint="name runs of workloads; stackmark ceilings shows the ceilings"
        )
    placed = [
        Point(
            row.workload,
            Work(1 / one.seconds, one.operations, one.precision, one.least_bytes),
            name,
            one.op,
            one.shape,
            {"precision": one.precision, **details},
        )
        for one in result.good
        if one.seconds and one.operations and one.least_bytes
    ]
    gathered.placed += [(row, point) for point in placed]
    if missing := len(result.rows) - len(placed):
        gathered.left_out.append(
            f"{counted(missing, 'row')} of {name} ({row.workload}) not drawn: no time, or operations not counted"
        )
