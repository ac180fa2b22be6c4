"""Measure and compare: `run` and `compare`, and the steps of which the commands are made.

A plan was checked, and nothing was started yet: whatever can be refused is refused before the first run.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from stackmark.api.ledgers import Ledger, LedgerLike, clean, opened
from stackmark.api.options import Option, command_of, read_request
from stackmark.api.stored import Experiment, Measurement, carry_out_compare
from stackmark.api.verdicts import Verdict
from stackmark.errors import SpecError
from stackmark.experiments import operator_list
from stackmark.experiments.arms import place_and_params, place_of, read_arms
from stackmark.experiments.compare import CompareRequest, check_compare, start
from stackmark.experiments.design import MARGIN
from stackmark.experiments.list_specs import check_list
from stackmark.experiments.list_specs import is_list as is_list
from stackmark.experiments.recorder import Watcher
from stackmark.experiments.result import list_result, reference_for, run_result
from stackmark.experiments.run import go_through
from stackmark.experiments.run import start as start_run
from stackmark.ledger.rows import Experiment as StoredExperiment
from stackmark.ledger.rows import Kind
from stackmark.places.place import Place
from stackmark.published.lookup import known_rows
from stackmark.show.callbacks import Progress as Progress
from stackmark.show.callbacks import ProgressLike, watcher_of
from stackmark.spec import MOST_SAMPLE_HZ, SAMPLE_HZ, Request
from stackmark.workloads.registry import check_typed, find


@dataclass(frozen=True)
class RunPlan:
    """A plan of `run`. It was validated, and nothing is started yet."""

    request: Request
    place: Place
    runs: int | None = None
    time_limit_s: float | None = None
    # Text that names a published row to hold the result against, and the margin for that.
    published: str | None = None
    margin: float | None = None
    # The command line that repeats it.
    command: str = ""
    # Choose what was not typed again, and not as it was chosen before.
    choose_again: bool = False
    # How many seeds the runs of a training to a target take in turn; None: each run has its own.
    seeds: int | None = None
    # How often the machine of a run is sampled; 0: not at all.
    sample_hz: float = SAMPLE_HZ

    def check(self, ledger: Ledger) -> None:
        """Refuse a published row that is not there, before anything is measured."""
        reference_for(self.request, self.published, known_rows(ledger))


def check_run(request: Request) -> None:
    """Refuse what can be refused without a worker."""
    check_typed(request)
    wanted = find(request.workload)[1]
    if wanted.verb:
        raise SpecError(f"{wanted.name} has its own command", hint=f"use: stackmark {wanted.verb}")
    if wanted.timed == "rows":
        check_list(request)


def plan_run(
    request: Request,
    *,
    on: str = "host",
    place_options: Mapping[str, JsonValue] | None = None,
    runs: int | None = None,
    time_limit_s: float | None = None,
    published: str | None = None,
    margin: float | None = None,
    command: str = "",
    choose_again: bool = False,
    seeds: int | None = None,
    sample_hz: float = SAMPLE_HZ,
) -> RunPlan:
    """Plan a measurement. `on` is a place as an arm names it: `container,shm=1g`."""
    if seeds is not None:
        _check_seeds(request, runs, seeds)
    place = place_of(on, request.workload, place_options or {})
    return RunPlan(request, place, runs, time_limit_s, published, margin, command, choose_again, seeds, sample_hz)


def check_sample_hz(hz: float | None) -> float:
    """Return how often to sample: the default where nothing was asked."""
    if hz is None:
        return SAMPLE_HZ
    if not 0 <= hz <= MOST_SAMPLE_HZ:
        raise SpecError(f"--sample-hz must be between 0 and {MOST_SAMPLE_HZ:g}, got {hz:g}", hint="0 samples nothing")
    return float(hz)


def _check_seeds(request: Request, runs: int | None, seeds: int) -> None:
    if find(request.workload)[1].timed != "quality":
        raise SpecError(
            f"--seeds is about training to a quality, which {request.workload} does not do",
            hint="e.g. stackmark run fit/transformer --seeds 10",
        )
    if runs is not None and runs < seeds:
        raise SpecError(
            f"--runs {runs} are fewer than --seeds {seeds}", hint="leave out --runs: each seed has two runs"
        )


def plan_arm(request: Request, arm: str, **more: Any) -> RunPlan:
    """Plan a measurement of one arm, which may type parameters of its own; `more` are the arguments of `plan_run`."""
    place, typed = place_and_params(arm, request.workload, more.pop("place_options", None) or {})
    request = request.model_copy(update={"params": {**request.params, **typed}})
    return RunPlan(request, place, **more)


ExperimentRow = StoredExperiment
Around = Callable[[ExperimentRow], AbstractContextManager[None]]


def carry_out_run(
    plan: RunPlan, ledger: Ledger, watcher: Watcher, around: Around = lambda _: nullcontext()
) -> Measurement:
    """Measure. `around` is entered once the experiment is stored and could be resumed."""
    clean(ledger, watcher.notice)
    if is_list(plan.request.workload):
        started = operator_list.start(plan.request, plan.place, ledger, watcher, plan.runs, plan.command)
        with around(started.experiment):
            operator_list.go_through(started, plan.place, ledger, watcher, plan.time_limit_s)
        found = list_result(ledger, started.experiment, command=plan.command, choices=started.resolved.choices)
        return Measurement(started.experiment, ledger, result=found)
    rows = known_rows(ledger)
    begun = start_run(
        plan.request, plan.place, ledger, watcher, plan.runs, plan.command, choose_again=plan.choose_again,
        seeds=plan.seeds, sample_hz=plan.sample_hz,
    )  # fmt: skip
    with around(begun.experiment):
        measured = go_through(begun, plan.place, ledger, watcher, plan.time_limit_s)
    reference = reference_for(plan.request, plan.published, rows)
    result = run_result(ledger, measured, rows, command=plan.command, reference=reference, margin=plan.margin)
    return Measurement(measured.experiment, ledger, result=result)


def run(
    workload: str,
    *,
    on: str = "host",
    runs: int | None = None,
    ranks: int = 1,
    time_limit_s: float | None = None,
    published: str | None = None,
    choose_again: bool = False,
    seeds: int | None = None,
    sample_hz: float | None = None,
    ledger: LedgerLike = None,
    progress: ProgressLike = None,
    **options: Option,
) -> Measurement:
    """Measure a workload: several fresh processes, a rate with its interval, and what it ran on.

    `options` are parameters of the workload (`batch=64`, `seconds="30s"`) and options of the place (`shm="1g"`), by the names
    of the command line with `_` for `-`. What is not given is chosen for the device, as it was chosen before for the same call
    on the same chip; with `choose_again` it is chosen again.
    """
    request, place_options = read_request(workload, ranks, options)
    check_run(request)
    typed = {
        "on": on if on != "host" else None, "runs": runs, "seeds": seeds, "ranks": ranks if ranks > 1 else None,
        "sample_hz": sample_hz,
    }  # fmt: skip
    plan = plan_run(
        request,
        on=on,
        place_options=place_options,
        runs=runs,
        time_limit_s=time_limit_s,
        published=published,
        choose_again=choose_again,
        seeds=seeds,
        sample_hz=check_sample_hz(sample_hz),
        command=command_of(["run"], request.workload, {**typed, "published": published, **options}),
    )
    with opened(ledger, create=True) as book:
        plan.check(book)
        found = carry_out_run(plan, book, watcher_of(progress))
    return replace(found, ledger=ledger)


# --- compare ------------------------------------------------------------------------------------------------------------


def start_compare(asked: CompareRequest, ledger: Ledger, watcher: Watcher) -> Experiment:
    """Probe the arms, and store the design: from here on it can be resumed."""
    # A ledger that is locked or read-only is found now, and not after the first run.
    ledger.writing(lambda _: None)
    clean(ledger, watcher.notice)
    return Experiment(start(asked, ledger, watcher), ledger)


def plan_compare(
    request: Request,
    arms: Sequence[str],
    *,
    place_options: Mapping[str, JsonValue] | None = None,
    kind: Kind = "compare",
    margin: float | None = None,
    **design: Any,
) -> CompareRequest:
    """Refuse what can be refused without a worker. `design` are the further fields of `CompareRequest`: blocks, seed …"""
    read = read_arms(arms, request.workload, place_options or {})
    asked = CompareRequest(request=request, arms=read, kind=kind, margin=MARGIN if margin is None else margin, **design)
    check_compare(asked)
    return asked


def compare(
    workload: str,
    *,
    arms: Sequence[str],
    margin: float | None = None,
    blocks: int | None = None,
    until_decided: bool = False,
    pause_s: float = 0.0,
    repeats: int = 2,
    order_seed: int | None = None,
    primers: bool = True,
    ranks: int = 1,
    time_limit_s: float | None = None,
    anyway: bool = False,
    sample_hz: float | None = None,
    ledger: LedgerLike = None,
    progress: ProgressLike = None,
    **options: Option,
) -> Verdict:
    """Compare arms on a workload: interleaved runs in blocks, then a verdict with its interval.

    An arm is a place with its own options and parameters: `host`, `container,shm=1g`, `host,precision=bf16`. `options` hold
    for all arms. A comparison that was interrupted goes on with `load("last").resume()`.
    """
    request, place_options = read_request(workload, ranks, options)
    typed = {
        "arm": list(arms), "margin": margin, "blocks": blocks, "until_decided": until_decided or None,
        "pause": f"{pause_s:g}s" if pause_s else None, "repeats": repeats if repeats != 2 else None,
        "order_seed": order_seed, "primers": None if primers else False, "ranks": ranks if ranks > 1 else None,
        "sample_hz": sample_hz,
    }  # fmt: skip
    asked = plan_compare(
        request, arms, place_options=place_options, margin=margin, blocks=blocks, until_decided=until_decided,
        pause_s=pause_s, most_repeats=repeats, seed=order_seed, primers=primers, sample_hz=check_sample_hz(sample_hz),
        command=command_of(["compare"], request.workload, {**typed, **options}),
    )  # fmt: skip
    return _carry_out(asked, ledger, progress, time_limit_s, anyway)


def noise(
    workload: str,
    *,
    on: str = "host",
    blocks: int | None = None,
    pause_s: float = 0.0,
    order_seed: int | None = None,
    time_limit_s: float | None = None,
    ledger: LedgerLike = None,
    progress: ProgressLike = None,
    **options: Option,
) -> Verdict:
    """Compare a workload with itself: the noise floor of this machine, and the margin that can be decided here."""
    request, place_options = read_request(workload, 1, options)
    typed = {
        "on": on if on != "host" else None, "blocks": blocks, "pause": f"{pause_s:g}s" if pause_s else None,
        "order_seed": order_seed,
    }  # fmt: skip
    asked = plan_compare(
        request, [on, on], place_options=place_options, kind="noise", blocks=blocks, pause_s=pause_s, seed=order_seed,
        command=command_of(["noise"], request.workload, {**typed, **options}),
    )  # fmt: skip
    return _carry_out(asked, ledger, progress, time_limit_s)


def _carry_out(
    asked: CompareRequest,
    ledger: LedgerLike,
    progress: ProgressLike,
    time_limit_s: float | None,
    anyway: bool = False,
) -> Verdict:
    watcher = watcher_of(progress)
    with opened(ledger, create=True) as book:
        experiment = start_compare(asked, book, watcher)
        carry_out_compare(experiment, watcher, time_limit_s=time_limit_s, anyway=anyway)
        return experiment.verdict()


def check_arms(arms: Sequence[str], workload: str) -> None:
    """Refuse arms of a comparison that cannot be, without starting anything."""
    read_arms(arms, workload)
