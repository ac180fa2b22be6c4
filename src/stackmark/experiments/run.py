"""The kind `run`: one spec in one place, in several fresh processes, each stored as it ends."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from stackmark.errors import SpecError
from stackmark.events import Event, gathered_facts
from stackmark.experiments.driver import OTHER_CHIP, machine_name
from stackmark.experiments.estimate import of_one_arm
from stackmark.experiments.fitting import is_censored, quality_of, trained_runs
from stackmark.experiments.judging import Facts, read_stored
from stackmark.experiments.probing import Resolved, resolve
from stackmark.experiments.progress import CUT_OFF, in_common_windows
from stackmark.experiments.recorder import (
    SAMPLE_HZ_KEY,
    Position,
    Recorder,
    Silent,
    SuiteMember,
    Watcher,
    begin,
    new_experiment,
)
from stackmark.experiments.remembered import resolve_as_before, say_choices
from stackmark.experiments.surroundings import KEY as SURROUNDINGS
from stackmark.experiments.surroundings import Surroundings, look_around
from stackmark.experiments.trust import Part, parts_of
from stackmark.ledger.rows import Experiment, Json, RunDetail, RunRow
from stackmark.ledger.store import Ledger
from stackmark.places.place import Place
from stackmark.places.registry import find_place
from stackmark.spec import SAMPLE_HZ, Request, Spec
from stackmark.units import counted
from stackmark.verdict.throughput import Throughput, throughput_over_runs
from stackmark.verdict.time_to_quality import QualityResult, model_throughput
from stackmark.workloads.registry import check_spec

GPU_RUNS, CPU_RUNS = 5, 3
# With one run of a seed nothing tells what of the spread is the seed's.
RUNS_OF_SEED = 2
SEEDS = "seeds"
# As many as `--runs` takes; a ledger may hold any number.
MOST_RUNS = 1000


@dataclass(frozen=True)
class Measured:
    """An experiment of one arm. `throughput` is None where no run gave a number."""

    experiment: Experiment
    spec: Spec
    choices: dict[str, str]
    facts: Facts
    runs: tuple[RunRow, ...]
    throughput: Throughput | None
    # The events of the last run that gave a number: for set-up by part, losses and facts.
    events: tuple[Event, ...]
    # Of a workload that is trained to a target: the curves of its runs, and what they show together.
    quality: QualityResult | None = None

    @property
    def asked(self) -> int | None:
        """Return how many runs were asked for; None where it is not stored."""
        return asked_runs(self.experiment)

    @property
    def missing(self) -> int:
        """Return how many runs `resume` would make."""
        return missing_runs(self.asked or 0, self.runs)

    @property
    def failed(self) -> tuple[RunRow, ...]:
        return tuple(run for run in self.runs if run.status != "done")


@dataclass(frozen=True)
class StartedRun:
    """An experiment of one arm that is stored but whose first run has not started."""

    experiment: Experiment
    resolved: Resolved
    runs: int


def measure(
    request: Request,
    *,
    place: Place,
    ledger: Ledger,
    runs: int | None = None,
    watcher: Watcher | None = None,
    time_limit_s: float | None = None,
    command: str = "",
    choose_again: bool = False,
) -> Measured:
    """Probe, then run. A run that fails is stored and does not stop the others, unless it failed before it measured."""
    watcher = watcher or Silent()
    started = start(request, place, ledger, watcher, runs, command, choose_again=choose_again)
    return go_through(started, place, ledger, watcher, time_limit_s)


def start(
    request: Request,
    place: Place,
    ledger: Ledger,
    watcher: Watcher,
    runs: int | None,
    command: str,
    *,
    choose_again: bool = False,
    member: SuiteMember | None = None,
    around: Surroundings | None = None,
    seeds: int | None = None,
    sample_hz: float = SAMPLE_HZ,
) -> StartedRun:
    """Probe, and store what was requested and chosen: once there is a run, `resume` can continue.

    What was not typed is as it was chosen before, unless it is to be chosen again. `around` is what was seen on this machine,
    where somebody looked already. `seeds` is how many seeds a training to a target takes in turn; else each run has its own.
    """
    chosen_unix_s: float | None = None
    around = around or look_around(watcher.notice, [place.name])
    if choose_again:
        resolved = resolve(request, place, watcher)
    else:
        resolved, chosen_unix_s = resolve_as_before(request, place, ledger, watcher)
    gpu = str(resolved.spec.params.get("device", "cpu")).startswith("cuda")
    usual = RUNS_OF_SEED * seeds if seeds else GPU_RUNS if gpu else CPU_RUNS
    count = runs if runs is not None else usual
    asked: Json = {**request.model_dump(mode="json"), "runs": count, "choices": {**resolved.choices}}
    asked[SURROUNDINGS] = around.stored()
    asked[SAMPLE_HZ_KEY] = sample_hz
    if seeds:
        asked[SEEDS] = seeds
    if chosen_unix_s is not None:
        asked["chosen_unix_s"] = chosen_unix_s
    experiment = new_experiment(command=command, request=asked, member=member)
    begin(ledger, experiment, [(resolved.spec, place.name, place.options())])
    return StartedRun(experiment, resolved, count)


def go_through(
    started: StartedRun,
    place: Place,
    ledger: Ledger,
    watcher: Watcher,
    time_limit_s: float | None,
    *,
    at_most: int | None = None,
) -> Measured:
    """Make the runs, one after another; `at_most` of them. Interruptions pass through: what was finished is stored."""
    rows: list[RunRow] = []
    events: tuple[Event, ...] = ()
    resolved, count = started.resolved, min(started.runs, at_most or started.runs)
    recorder = Recorder(ledger, started.experiment.id)
    if expected := of_one_arm(ledger, resolved.spec, place.name, count, resolved.took_s):
        watcher.expects(expected)
    with recorder.claim():
        seeds = asked_seeds(started.experiment)
        for row, seen in run_several(recorder, resolved.spec, place, watcher, count, time_limit_s, seeds=seeds):
            rows.append(row)
            if row.status == "done":
                events = tuple(seen)
    if len(rows) < count:
        watcher.notice(
            f"the first run failed; {counted(count - 1, 'more run')} {'was' if count == 2 else 'were'} not started"
        )
    return _measured(ledger, started.experiment, resolved.spec, resolved.facts, rows, events)


def carry_out(
    experiment: Experiment,
    ledger: Ledger,
    watcher: Watcher,
    *,
    time_limit_s: float | None = None,
    anyway: bool = False,
    at_most: int | None = None,
) -> None:
    """Make the runs that are missing, `at_most` of them. Interruptions pass through: what was finished is stored."""
    recorder = Recorder(ledger, experiment.id)
    with recorder.claim():
        like, missing = _open_run(ledger, experiment)
        missing = min(missing, at_most or missing)
        check_spec(like.spec)
        if missing and not anyway and like.machine_id != machine_name():
            raise SpecError(
                f"{experiment.id} was started on a different machine: its rate would mix two machines",
                hint="resume it there, start again here, or use --anyway",
                kind=OTHER_CHIP,
            )
        if not missing and at_most is None:
            watcher.notice(f"{experiment.id} is finished: no run is missing")
        place = find_place(like.place, like.place_options)
        if expected := of_one_arm(ledger, like.spec, like.place, missing):
            watcher.expects(expected)
        first, made = recorder.next_number(), len(made_runs(recorder.rows()))
        for index in range(missing):
            repetition = repetition_of(experiment, made + index)
            position = Position(number=first + index, of=first + missing, repetition=repetition)
            recorder.run(like.spec, position, place, watcher, time_limit_s)


def parts_in(ledger: Ledger, experiment: Experiment) -> list[Part]:
    """Return the parts of a stored run that need trust before they run; empty where no run is missing."""
    like, missing = _open_run(ledger, experiment)
    return parts_of([(like.spec, like.place, like.place_options)]) if missing else []


def _open_run(ledger: Ledger, experiment: Experiment) -> tuple[RunDetail, int]:
    """Return a run that says how the missing ones are made, and how many are missing."""
    rows = [row for row in ledger.runs_of(experiment.id) if row.role == "measured"]
    if not rows or len({row.spec_digest for row in rows}) > 1:
        why = "has runs of several specs" if rows else "has no run yet"
        raise SpecError(f"{experiment.id} {why}", hint=f"start again: {experiment.command or 'stackmark run'}")
    return rows[0], missing_runs(asked_runs(experiment) or 0, rows)


def read_measured(ledger: Ledger, experiment: Experiment) -> Measured | None:
    """Read an experiment of one arm back; None where its runs are not all of one spec, or there is none.

    A run that the driver cut off was not made: it is left out, unless there is no other.
    """
    every = [row for row in ledger.runs_of(experiment.id) if row.role == "measured" and row.status != "running"]
    made = [row for row in every if row.failure_kind not in CUT_OFF] or every
    if len({row.spec_digest for row in made}) != 1:
        return None
    heard = next((row for row in reversed(made) if row.status == "done"), made[-1])
    events = read_stored(ledger.stream(heard.id)).stream.events
    seen = tuple(events) if heard.status == "done" else ()
    return _measured(ledger, experiment, made[0].spec, gathered_facts(events), made, seen)


def _measured(
    ledger: Ledger,
    experiment: Experiment,
    spec: Spec,
    facts: Facts,
    runs: Sequence[RunRow],
    events: tuple[Event, ...],
) -> Measured:
    rows = in_common_windows(ledger, runs)
    rates = [row.rate_per_s for row in rows if row.status == "done" and row.rate_per_s]
    throughput = throughput_over_runs(rates) if rates else None
    quality = quality_of(spec, trained_runs(ledger, spec, rows))
    if quality and quality.censored:
        throughput = model_throughput(quality)
    return Measured(experiment, spec, say_choices(experiment), facts, tuple(rows), throughput, events, quality)


def asked_runs(experiment: Experiment) -> int | None:
    """Return how many runs were asked for; None where it is not stored, as in older experiments."""
    asked = experiment.request.get("runs")
    return asked if isinstance(asked, int) and 0 < asked <= MOST_RUNS else None


def asked_seeds(experiment: Experiment) -> int | None:
    """Return how many seeds the runs take in turn; None where each run has its own."""
    seeds = experiment.request.get(SEEDS)
    return seeds if isinstance(seeds, int) and 0 < seeds <= MOST_RUNS else None


def repetition_of(experiment: Experiment, index: int) -> int:
    """Return what is added to the seed of a run, by how many were made before it: one that was cut off has its seed again."""
    seeds = asked_seeds(experiment)
    return index % seeds if seeds else index


def made_runs(rows: Sequence[RunRow]) -> list[RunRow]:
    """Return the measured runs that the driver did not cut off."""
    return [row for row in rows if row.role == "measured" and row.failure_kind not in CUT_OFF]


def missing_runs(asked: int, rows: Sequence[RunRow]) -> int:
    """Return how many runs are still to be made. One that the driver cut off was not made; after a first one that failed
    none is, unless it only did not reach its target."""
    made = made_runs(rows)
    if made and _is_hopeless(made[0]):
        return 0
    return max(0, asked - len(made))


def _is_hopeless(first: RunRow) -> bool:
    """Tell whether what failed in the first run would fail in all of them. A target that was not reached is an outcome."""
    return first.status == "failed" and not is_censored(first)


def run_several(
    recorder: Recorder,
    spec: Spec,
    place: Place,
    watcher: Watcher,
    count: int,
    time_limit_s: float | None,
    *,
    label: str = "",
    in_passes: bool = False,
    seeds: int | None = None,
) -> Iterator[tuple[RunRow, list[Event]]]:
    """Run one spec several times. What fails in the first run would fail in all of them, so the others are not started."""
    for number in range(count):
        position = Position(number=number, of=count, label=label, repetition=number % seeds if seeds else number)
        if in_passes:
            position = replace(position, pass_number=number, piece=0)
        row, events = recorder.run(spec, position, place, watcher, time_limit_s)
        yield row, events
        if number == 0 and _is_hopeless(row):
            return
