"""Recompute an experiment from the ledger: any time, at any margin, without running anything."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from stackmark.errors import SpecError
from stackmark.events import Hello, Metric, gathered_facts
from stackmark.experiments import fairness
from stackmark.experiments.against_published import published_pairs
from stackmark.experiments.design import (
    MARGIN,
    Arm,
    Assignment,
    Design,
    balanced,
    check_margin,
    order_of,
    sequences_of,
    stored_design,
    whole_attempts,
)
from stackmark.experiments.fitting import is_outcome, quality_of
from stackmark.experiments.judging import read_stored, setup_parts, timed_run
from stackmark.experiments.kinds import RUN, kind_of, require_arms
from stackmark.experiments.limits import limits_of_run
from stackmark.experiments.list_specs import is_list
from stackmark.experiments.operator_list import (
    arm_list_runs,
    arm_lists,
    imported_list,
    list_doubts,
    list_ratios,
    problems_of,
    read_list,
)
from stackmark.experiments.progress import (
    CUT_OFF,
    Progress,
    StepTimes,
    disturbed_runs,
    finished_runs,
    judged_pairs,
    progress,
    runs_in,
    trained_in,
    window_of,
    with_rates,
)
from stackmark.experiments.remembered import pinned_command, say_choices
from stackmark.experiments.run import asked_runs, missing_runs
from stackmark.experiments.scaling import examine_scaling, refused_labels, scaling_remarks
from stackmark.experiments.selecting import suggested_command
from stackmark.experiments.serving import compared_metrics, latency_curves
from stackmark.experiments.surroundings import idle_cpus_before
from stackmark.ledger.rows import Experiment, RunDetail
from stackmark.ledger.several import StreamSource
from stackmark.ledger.store import Ledger
from stackmark.published.lookup import known_operators, known_rows, neighbours
from stackmark.remarks import MIXED_RUNS, Remark
from stackmark.spec import AUTO, Scalar
from stackmark.units import counted
from stackmark.verdict.cautions import INTERFERENCE, RunEvidence, find_unusable
from stackmark.verdict.comparison import Comparison as Comparison
from stackmark.verdict.covariates import association_lines, covariate_lines, step_associations
from stackmark.verdict.examined import Examined as Examined
from stackmark.verdict.examined import (
    ExaminedArm,
    ExaminedRun,
    Facts,
    OperatorProblem,
    PublishedNeighbour,
)
from stackmark.verdict.explain import explain
from stackmark.verdict.family import holm
from stackmark.verdict.interference import advise_freeing, say_interference
from stackmark.verdict.operators import ListResult
from stackmark.verdict.telemetry import covariates, read_telemetry
from stackmark.verdict.throughput import Window, throughput_over_runs
from stackmark.verdict.time_to_quality import QualityResult, model_throughput, with_seeds_of_all
from stackmark.workloads.registry import find, known

NEIGHBOURS = 3
ALL_MADE = "all requested runs were made"


def examine(ledger: Ledger, experiment_id: str, margin: float | None = None, *, each_alone: bool = False) -> Examined:
    """Examine an experiment. A run without a design is an experiment of one arm.

    With `each_alone` every pair of arms is judged alone: for a suite, which decides all of its pairs together.
    """
    if margin is not None:
        check_margin(margin)
    experiment = ledger.experiment(experiment_id)
    require_arms(experiment)
    rows = ledger.runs_of(experiment.id)
    if not rows:
        raise SpecError(f"{experiment.id} has no runs yet", hint=f"continue: stackmark resume {experiment.id}")
    design = stored_design(experiment)
    times = StepTimes(ledger)
    seen = [read_run(ledger, row, counted=False, times=times) for row in rows]
    facts = [facts for _, facts in seen]
    now = progress(design, rows, times) if design else None
    runs = [replace(run, counted=_counts(row, design, now)) for (run, _), row in zip(seen, rows, strict=True)]
    counted = [row for row, run in zip(rows, runs, strict=True) if run.counted]
    window = window_of(counted, times) if len(counted) > 1 else None
    runs = runs_in(window, runs, rows, times)
    rates = {run.run_id: run.rate_per_s for run in runs if run.rate_per_s}
    shown = _put_together(
        ledger, experiment, with_rates(rows, rates), runs, facts, design, now, margin, times, each_alone
    )
    return in_window(shown, window)


def in_window(shown: Examined, window: Window | None) -> Examined:
    """Say over which window the runs were measured, and what is odd about it."""
    if window is None:
        return shown
    return replace(
        shown,
        window=window,
        method=(*shown.method, window.sentence),
        warnings=(*shown.warnings, *fairness.window_warnings(shown.arms)),
    )


def _counts(row: RunDetail, design: Design | None, now: Progress | None) -> bool:
    if row.role != "measured" or not is_outcome(row):
        return False
    if design is None or now is None:
        # A later piece of a list that was cut off is a part of it, and its rate that of a part.
        return not row.piece
    blocks = now.blocks if now.open else _judged(design, now)
    return row.block in blocks and blocks[row.block] == row.attempt


def _judged(design: Design, now: Progress) -> dict[int, int]:
    """Select the blocks that a verdict rests on: with a rule those of its last look, else those in a balanced order."""
    if design.rule is None:
        return balanced(design, now.blocks)
    return {block: attempt for block, attempt in now.blocks.items() if block < now.look}


def read_run(
    ledger: StreamSource, row: RunDetail, counted: bool, times: StepTimes | None = None
) -> tuple[ExaminedRun, Facts]:
    """Read a run from its stored stream and judge its steps again by today's rules; the steps go into `times`."""
    stream = read_stored(ledger.stream(row.id)).stream
    events = stream.events
    facts = gathered_facts(events)
    steps = list(stream.measured_steps())
    sampled = read_telemetry(events, facts)
    # A run whose numbers cannot be was failed for that: they are not judged again.
    timed = times.remember(row, stream) if times is not None else timed_run(stream) if row.rate_per_s else None
    hello = next((event for event in events if isinstance(event, Hello)), None)
    # An engine may have had to prepare itself between the row and the launch.
    launched = row.handle.get("launched_unix_s")
    began = float(launched) if isinstance(launched, int | float) else row.started_unix_s
    # A pod or a job waits in a queue, and a pod for its image, before it starts: parts of their own.
    waits = [
        (name, float(seconds))
        for name in ("queue", "pull")
        if row.place in ("pod", "slurm") and isinstance(seconds := row.handle.get(f"{name}_s"), int | float)
    ]
    start_s = hello.time_unix_s - began - sum(seconds for _, seconds in waits) if hello else None
    _, block, attempt = row.place_in_order
    run = ExaminedRun(
        run_id=row.id,
        arm=row.arm,
        block=block,
        attempt=attempt,
        role=row.role,
        status=row.status,
        counted=counted,
        started_unix_s=row.started_unix_s,
        ended_unix_s=row.ended_unix_s,
        rate_per_s=row.rate_per_s,
        steady=timed.kind if timed else row.steady,
        first_step=timed.own_first_step if timed else 0,
        step_s=tuple(steps),
        # Clocks of two machines may differ by more than a start takes; on one machine they do not.
        start_s=start_s if start_s is not None and 0 <= start_s < 3600 else None,
        setup=(*((name, seconds) for name, seconds in waits if seconds), *setup_parts(events)),
        covariates={**covariates(sampled), **{one.name: one.value for one in events if isinstance(one, Metric)}},
        flags=tuple(row.flags),
        failure_kind=row.failure_kind,
        failure_message=row.failure_message,
        failure_hint=row.failure_hint,
        chip=row.chip,
        chip_uuid=row.chip_uuid,
        own_rate_per_s=row.rate_per_s,
        pause_share=timed.pause_share if timed else 0.0,
        telemetry=sampled,
    )
    return run, facts


def _put_together(
    ledger: Ledger,
    experiment: Experiment,
    rows: Sequence[RunDetail],
    runs: Sequence[ExaminedRun],
    facts: Sequence[Facts],
    design: Design | None,
    now: Progress | None,
    margin: float | None,
    times: StepTimes,
    each_alone: bool,
) -> Examined:
    counting = [row for row, run in zip(rows, runs, strict=True) if run.counted]
    idle = design.idle_cpus if design else idle_cpus_before(experiment)
    met = say_interference([times.load(row) for row in counting], idle)
    arms = arms_of(labels_of(design, rows), runs, facts, rows, design)
    quality = tuple(_quality(arm.index, rows, runs, times) for arm in arms)
    if kind_of(experiment).is_one_side:
        quality = with_seeds_of_all(quality)
    if any(found and found.censored for found in quality):
        arms = tuple(_with_model(arm, found) for arm, found in zip(arms, quality, strict=True))
    arms = _with_limits(ledger, arms, rows, runs)
    arms = tuple(_with_usable(arm, runs, met) for arm in arms)
    chosen = margin if margin is not None else design.margin if design else MARGIN
    state, sentence = _state(experiment, design, now) if design else _state_of_one_arm(ledger, experiment, rows)
    title, sample = title_of(rows[0].workload, rows[0].rate_unit)
    held, not_held = fairness.held(design, arms, runs, rows)
    list_runs = arm_list_runs(ledger, rows, runs, len(arms))
    lists = arm_lists(list_runs)
    refused = refused_labels(ledger, design, rows, runs) if design and design.scaling else {}
    pairs = _pairs(design, rows, runs, now, chosen, times, each_alone, refused)

    def judge(as_rates: Sequence[RunDetail]) -> tuple[Comparison, ...]:
        return _pairs(design, as_rates, runs, now, chosen, times, each_alone) if design else ()

    pairs = tuple(map(advise_freeing, pairs)) if met else pairs
    repeated = {(run.block, run.attempt) for run in runs if run.block is not None and run.attempt}
    return Examined(
        experiment_id=experiment.id,
        kind=experiment.kind,
        state=state,
        state_sentence=sentence,
        created_unix_s=experiment.created_unix_s,
        ended_unix_s=max((run.ended_unix_s for run in runs if run.ended_unix_s), default=None),
        command=experiment.command,
        workload=rows[0].workload,
        title=title,
        sample=sample,
        seed=design.seed if design else None,
        margin=chosen,
        blocks_planned=design.blocks if design else None,
        blocks_whole=len(now.blocks) if now else 0,
        blocks_repeated=len(repeated),
        order=_order(design),
        arms=arms,
        runs=tuple(runs),
        comparisons=pairs,
        differences=explain(arms, runs) if len(arms) > 1 else (),
        covariates=covariate_lines(arms, runs),
        associations=(*(association_lines(arms, runs) if design else ()), *step_associations(arms, runs)),
        published=nearest_published(ledger, rows, arms),
        scope=fairness.scope(rows),
        held=held,
        not_held=not_held,
        method=fairness.method(design, from_logs=kind_of(experiment).from_logs),
        warnings=(
            *_mixed(experiment, rows, runs),
            *([Remark(met, INTERFERENCE)] if met else []),
            *list_doubts([arm.label for arm in arms], lists),
            *(scaling_remarks(design, pairs) if design and design.scaling else []),
            *fairness.warnings(
                arms,
                runs,
                sentence if state == "short" else "",
                _asked(experiment),
                set_up=not (design and design.scaling),
            ),
        ),
        lists=list_ratios([arm.label for arm in arms], list_runs),
        operators=_operators(ledger, experiment, arms, lists, rows, runs),
        rules_made=design.rules if design else None,
        instead=_instead(experiment, rows, runs),
        pinned=_pinned(experiment, rows),
        published_pairs=published_pairs(ledger, experiment.command, rows, runs, facts, arms),
        quality=quality if any(quality) else (),
        compared=compared_metrics(rows, runs, len(arms), judge) if not (design and design.scaling) else (),
        latencies=latency_curves(rows, runs, times),
        scaling=examine_scaling(ledger, design, rows, runs, arms, pairs, refused)
        if design and design.scaling
        else None,
    )


def _operators(
    ledger: Ledger,
    experiment: Experiment,
    arms: Sequence[ExaminedArm],
    lists: Sequence[ListResult],
    rows: Sequence[RunDetail],
    runs: Sequence[ExaminedRun],
) -> tuple[OperatorProblem, ...]:
    """Return the problems of an operator list. Of one arm they are those of `show`: a pass may have been made in pieces."""
    if kind_of(experiment).from_logs:
        lists = imported_list(rows, runs)
    if not lists:
        return ()
    if kind_of(experiment) is RUN:
        lists = [read_list(ledger, experiment).result]
    return problems_of(lists, known_operators(ledger), next((arm.chip for arm in arms if arm.chip), None))


def _mixed(experiment: Experiment, rows: Sequence[RunDetail], runs: Sequence[ExaminedRun]) -> list[str]:
    """Warn where an import holds runs of several specs: what a log lists is not repeated runs of one thing."""
    specs = {row.spec_digest for row, run in zip(rows, runs, strict=True) if run.counted}
    if not kind_of(experiment).from_logs or len(specs) < 2:
        return []
    text = f"the runs are of {len(specs)} different settings: a rate over all of them is a mean over different work"
    return [Remark(text, MIXED_RUNS)]


def _instead(experiment: Experiment, rows: Sequence[RunDetail], runs: Sequence[ExaminedRun]) -> tuple[str, ...]:
    """Return the command that compares runs of several specs with each other."""
    mixed = _mixed(experiment, rows, runs)
    good = [row for row, run in zip(rows, runs, strict=True) if run.counted]
    return tuple(filter(None, [suggested_command(good, experiment.id)])) if mixed else ()


def _pinned(experiment: Experiment, rows: Sequence[RunDetail]) -> str:
    """Return the command of a `run` with its choices; nothing for other kinds, and where none are stored."""
    choices = say_choices(experiment)
    if kind_of(experiment) is not RUN or not choices:
        return ""
    try:
        return pinned_command(experiment.command, experiment, rows[0].spec, choices)
    except ValueError:  # not a command line: a ledger may hold anything
        return ""


def _with_limits(
    ledger: Ledger, arms: Sequence[ExaminedArm], rows: Sequence[RunDetail], runs: Sequence[ExaminedRun]
) -> tuple[ExaminedArm, ...]:
    """Each arm with how far its rate is from the limits of its machine."""
    found = []
    for arm in arms:
        row = next((row for row, run in zip(rows, runs, strict=True) if run.counted and run.arm == arm.index), None)
        if row is not None and arm.throughput:
            limits = limits_of_run(ledger, row, arm.throughput.rate_per_s)
            # Without ceilings there is nothing to say of an arm; `show` and `run` say how to get them.
            found.append(replace(arm, limits=limits.sentences) if limits.standing else arm)
        else:
            found.append(arm)
    return tuple(found)


def _quality(
    arm: int, rows: Sequence[RunDetail], runs: Sequence[ExaminedRun], times: StepTimes
) -> QualityResult | None:
    """Return how the runs of an arm came to their target; None of other workloads."""
    mine = [row for row, run in zip(rows, runs, strict=True) if run.counted and run.arm == arm]
    found = [trained for row in mine if (trained := times.trained(row, row.spec))]
    return quality_of(mine[0].spec, found) if found else None


def _with_model(arm: ExaminedArm, quality: QualityResult | None) -> ExaminedArm:
    """Take the median time of the model: where a run of an arm did not reach its target, all arms are judged by it."""
    if quality is None:
        return arm
    found = model_throughput(quality)
    return replace(arm, throughput=found, unit=arm.unit or find(quality.workload)[1].unit, missed_target=found is None)


def _with_usable(arm: ExaminedArm, runs: Sequence[ExaminedRun], met: str) -> ExaminedArm:
    """Say of an arm whether its runs differ by a factor; `met` is what they met of other programs."""
    own = [run for run in runs if run.counted and run.arm == arm.index and run.rate_per_s]
    evidence = [RunEvidence(run.rate_per_s or 0.0, run.steady, run.covariates) for run in own]
    return replace(arm, unusable=find_unusable(evidence, met))


def _asked(experiment: Experiment) -> list[str]:
    """The parameters that the person typed for all arms."""
    params = experiment.request.get("params")
    return [name for name, value in params.items() if value != AUTO] if isinstance(params, dict) else []


def _pairs(
    design: Design | None,
    rows: Sequence[RunDetail],
    runs: Sequence[ExaminedRun],
    now: Progress | None,
    margin: float,
    times: StepTimes,
    each_alone: bool,
    refused: Collection[str] = (),
) -> tuple[Comparison, ...]:
    """Every pair of arms, without those whose second arm is refused.

    While an experiment is open it is what there is so far, and the state says so.
    """
    if not design or not now or not now.blocks or len(design.arms) < 2:
        return ()
    blocks = _judged(design, now)
    if not blocks:
        return ()
    attempts = whole_attempts(design, finished_runs(rows, disturbed_runs(design, rows, times)))
    late = {(run.arm, run.block, run.attempt) for run in runs if run.late and run.block is not None}

    def finish(pairs: list[Comparison]) -> list[Comparison]:
        pairs = [pair for pair in pairs if pair.b not in refused]
        # Looks have shared out their level among the pairs already: Holm knows no looks.
        return pairs if design.rule or each_alone else list(holm(pairs, multiple=sequences_of(len(design.arms))))

    return tuple(
        judged_pairs(
            design,
            rows,
            blocks,
            attempts,
            levels=now.levels,
            margin=margin,
            finish=finish,
            late=late,
            trained=trained_in(design, rows, times),
        )
    )


def _order(design: Design | None) -> tuple[tuple[int, ...], ...]:
    if design is None:
        return ()
    return tuple(tuple(order_of(design, block)) for block in range(design.blocks))


def _state_of_one_arm(
    ledger: Ledger, experiment: Experiment, rows: Sequence[RunDetail]
) -> tuple[Literal["done", "open", "short"], str]:
    """Tell how far an experiment without a design came: by the number of runs that was asked for, where it is stored."""
    go_on = f"continue: stackmark resume {experiment.id}"
    if kind_of(experiment) is not RUN:
        return "done", ALL_MADE
    if is_list(rows[0].workload):
        whole = read_list(ledger, experiment).whole
        return ("done", ALL_MADE) if whole else ("open", f"rows of the list are missing; {go_on}")
    asked, made = asked_runs(experiment), sum(row.failure_kind not in CUT_OFF for row in rows)
    if asked is None:
        cut = made < len(rows)
        return (
            ("short", "a run was interrupted, and the number of requested runs is not stored")
            if cut
            else ("done", ALL_MADE)
        )
    if missing_runs(asked, rows):
        return "open", f"{made} of {counted(asked, 'run')} were made; {go_on}"
    if made < asked:
        return "short", f"the first run failed; {made} of {counted(asked, 'run')} were made"
    return "done", ALL_MADE


def _state(
    experiment: Experiment, design: Design | None, now: Progress | None
) -> tuple[Literal["done", "open", "short"], str]:
    if not design or not now:
        return "done", ALL_MADE
    if isinstance(now.next, Assignment):
        left = f"{len(now.blocks)} of {design.blocks} blocks are complete"
        return "open", f"{left}; continue: stackmark resume {experiment.id}"
    if now.next.short:
        return "short", now.next.short
    if design.rule and now.look < design.blocks:
        return (
            "done",
            f"decided after {now.look} of at most {design.blocks} blocks, by the stopping rule fixed in advance",
        )
    return "done", f"all {design.blocks} blocks are complete"


def labels_of(design: Design | None, rows: Sequence[RunDetail]) -> list[tuple[str, dict[str, Scalar]]]:
    """Return each arm's name and what was typed in it."""
    if design:
        return [(arm.label, arm.typed) for arm in design.arms]
    return [(rows[0].place, {})]


def arms_of(
    labels: Sequence[tuple[str, dict[str, Scalar]]],
    runs: Sequence[ExaminedRun],
    facts: Sequence[Facts],
    rows: Sequence[RunDetail],
    design: Design | None = None,
) -> tuple[ExaminedArm, ...]:
    """Return each arm with its runs. `design` describes an arm that has no run yet."""
    return tuple(
        _arm(index, label, typed, runs, facts, rows, design.arms[index] if design else None)
        for index, (label, typed) in enumerate(labels)
    )


def _arm(
    index: int,
    label: str,
    typed: dict[str, Scalar],
    runs: Sequence[ExaminedRun],
    facts: Sequence[Facts],
    rows: Sequence[RunDetail],
    planned: Arm | None,
) -> ExaminedArm:
    mine = [number for number, run in enumerate(runs) if run.arm == index]
    counted = [number for number in mine if runs[number].counted]
    # Facts of a run that counts, else of any: an arm whose runs all failed can still be looked at.
    shown = next(iter(counted[::-1] or mine[::-1]), None)
    rates = [rate for number in counted if (rate := runs[number].rate_per_s)]
    row = rows[shown] if shown is not None else rows[0]
    what = planned if planned and shown is None else row
    return ExaminedArm(
        index=index,
        label=label,
        place=what.place,
        place_options=what.place_options,
        typed=typed,
        params=what.spec.params,
        throughput=throughput_over_runs(rates) if rates else None,
        unit=next((rows[number].rate_unit or "" for number in counted), ""),
        steadiness=tuple(Counter(steady for number in counted if (steady := runs[number].steady)).items()),
        setup=_setup([runs[number] for number in counted]),
        facts=_of_arm(facts[shown], [facts[number] for number in counted]) if shown is not None else {},
        chip=row.chip if shown is not None else None,
        late_runs=sum(runs[number].late for number in counted),
        pause_share=median([runs[number].pause_share for number in counted] or [0.0]),
    )


def _of_arm(last: Facts, of_runs: Sequence[Facts]) -> Facts:
    """The facts of one run for its arm, but for the kernels: cuDNN's autotuning draws them again in each process, and two
    arms that both draw do not differ in that."""
    hashes = {str(seen["hash"]) for facts in of_runs if (seen := facts.get("kernels")) and seen.get("hash")}
    return {**last, "kernels": {"hash": fairness.KERNELS_VARY}} if len(hashes) > 1 else last


def _setup(runs: Sequence[ExaminedRun]) -> tuple[tuple[str, float], ...]:
    """Median seconds of each part over the runs that count, `start` first."""
    parts: dict[str, list[float]] = {}
    for run in runs:
        if run.start_s is not None:
            parts.setdefault("start", []).append(run.start_s)
        for name, seconds in run.setup:
            parts.setdefault(name, []).append(seconds)
    return tuple((name, median(seconds)) for name, seconds in parts.items())


def title_of(workload: str, unit: str | None) -> tuple[str, str]:
    definition = known(workload)
    if definition is None:  # the name is what there is
        return workload, (unit or "").removesuffix("s/s") or "sample"
    return definition.title, definition.sample


def nearest_published(
    ledger: Ledger, rows: Sequence[RunDetail], arms: Sequence[ExaminedArm]
) -> tuple[PublishedNeighbour, ...]:
    """Return the published numbers nearest to the first arm that has a rate."""
    for arm in arms:
        row = next((row for row in rows if row.arm == arm.index and row.status == "done"), None)
        if arm.throughput and row:
            return neighbours(
                row.spec,
                arm.throughput.rate_per_s,
                arm.unit,
                row.chip,
                row.framework,
                known_rows(ledger),
                NEIGHBOURS,
                arm=arm.label,
            )
    return ()
