"""Workloads measured under a name, to be measured again later.

Nothing can be interleaved with a driver that is gone, so the unit is the series, and a baseline collects series. Saved
again, it measures the very specs that it holds, without asking a probe again, which might choose another batch today.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import JsonValue

from stackmark.errors import Exit, LedgerError, PlaceError, SpecError, StackmarkError
from stackmark.experiments.kinds import kind_of, refuse_suite
from stackmark.experiments.progress import in_common_windows, series_numbers
from stackmark.experiments.recorder import Recorder, Watcher, new_experiment
from stackmark.experiments.run import measure, run_several
from stackmark.experiments.trust import Part, parts_of
from stackmark.ledger import baselines
from stackmark.ledger.rows import Experiment, RunDetail, RunRow
from stackmark.ledger.store import Ledger
from stackmark.places.place import Place
from stackmark.places.registry import find_place, place_kinds
from stackmark.spec import Request, Spec
from stackmark.verdict.series import ADVICE as ADVICE
from stackmark.verdict.series import ENOUGH as ENOUGH
from stackmark.verdict.series import allowance
from stackmark.verdict.throughput import Throughput, throughput_over_runs
from stackmark.workloads.command.definition import metric_name
from stackmark.workloads.registry import check_spec


@dataclass(frozen=True)
class HeldWorkload:
    """One workload of a baseline: a spec in a place, and its successful runs, oldest first."""

    # The workload, with the place and the parameters that tell it from others of the baseline.
    label: str
    spec: Spec
    place: str
    place_options: dict[str, JsonValue]
    rows: tuple[RunDetail, ...]

    @property
    def series(self) -> int:
        return len(set(series_numbers(self.rows)))

    @property
    def departure(self) -> float | None:
        """Return the ratio of the last series to the mean of those before, where it is more than series usually differ by.

        A baseline that mixes two states of a machine hides the change between them in its spread.
        """
        by_series: dict[int, list[float]] = {}
        for number, row in zip(series_numbers(self.rows), self.rows, strict=True):
            assert row.rate_per_s
            by_series.setdefault(number, []).append(math.log(row.rate_per_s))
        *before, last = [fmean(by_series[number]) for number in sorted(by_series)]
        away = last - fmean(before) if before else 0.0
        return math.exp(away) if abs(away) > allowance(None, 1, 1) else None

    @property
    def runs_a_series(self) -> int:
        return max(1, round(len(self.rows) / len({row.experiment_id for row in self.rows})))


@dataclass(frozen=True)
class Trouble:
    """The reason why a workload gave no number, and its exit code."""

    message: str
    hint: str
    code: Exit


@dataclass(frozen=True)
class SeriesResult:
    """The result of one series of a workload; without an experiment where not even the probe answered."""

    label: str
    experiment_id: str
    rows: tuple[RunRow, ...]
    trouble: Trouble | None

    @property
    def unit(self) -> str:
        return next((row.rate_unit for row in self.rows if row.rate_unit), "")

    @property
    def throughput(self) -> Throughput | None:
        """Return the throughput over its successful runs; None without any."""
        rates = [row.rate_per_s for row in self.rows if row.status == "done" and row.rate_per_s]
        return throughput_over_runs(rates) if rates else None


@dataclass(frozen=True)
class SeriesOptions:
    """Options of measuring a series."""

    watcher: Watcher
    runs: int | None = None
    time_limit_s: float | None = None
    command: str = ""


def held_by(ledger: Ledger, name: str) -> list[HeldWorkload]:
    """Return what a baseline contains; raise a sentence for one that was never saved or has lost its good runs."""
    found = _held(ledger, baselines.experiments_of(ledger, name))
    if not found:
        raise SpecError(
            f"the baseline {name!r} has no successful run", hint=f"save one: stackmark baseline save {name} WORKLOAD"
        )
    return found


def held_so_far(ledger: Ledger, name: str) -> list[HeldWorkload]:
    """Return what a baseline contains, or an empty list where there is nothing yet."""
    return _held(ledger, baselines.experiments_of(ledger, name)) if baselines.exists(ledger, name) else []


def _held(ledger: Ledger, experiment_ids: Sequence[str]) -> list[HeldWorkload]:
    found: dict[tuple[str, str, str], list[RunDetail]] = {}
    for experiment_id in experiment_ids:
        for row in in_common_windows(ledger, ledger.runs_of(experiment_id)):
            if row.status == "done" and row.role == "measured" and row.rate_per_s:
                options = json.dumps(row.place_options, sort_keys=True)
                found.setdefault((row.spec_digest, row.place, options), []).append(row)
    groups = [sorted(rows, key=lambda row: (row.started_unix_s, row.id)) for rows in found.values()]
    return [
        HeldWorkload(label, rows[0].spec, rows[0].place, rows[0].place_options, tuple(rows))
        for label, rows in zip(_labels([rows[0] for rows in groups]), groups, strict=True)
    ]


def _labels(firsts: Sequence[RunDetail]) -> list[str]:
    """Name each, with what tells one from the other: `train/resnet50 batch=32 on container`, `command/own (latency)`."""
    labels = []
    for row in firsts:
        others = [other for other in firsts if other.workload == row.workload]
        name = metric_name(row.spec.params)
        words = [row.workload, *([f"({name})"] if name else [])]
        for name, value in row.spec.params.items():
            if any(other.spec.params.get(name) != value for other in others):
                words.append(f"{name}={value}")
        if row.place != "host" or any(other.place != row.place for other in others):
            words += ["on", row.place]
        for name, option in row.place_options.items():
            words.append(f"{name}={option if isinstance(option, str) else json.dumps(option)}")
        labels.append(" ".join(words))
    return labels


def parts_in(held: Sequence[HeldWorkload]) -> list[Part]:
    """Return the parts of a baseline that need trust before they run: not typed here and not confirmed."""
    return parts_of((one.spec, one.place, one.place_options) for one in held)


def measure_series(ledger: Ledger, held: HeldWorkload, experiment: Experiment, how: SeriesOptions) -> SeriesResult:
    """Measure a stored spec once more. Failures are reported and stored; a ledger that fails passes through."""
    try:
        # Changed, or of a package that is not installed any more: known before an experiment is begun.
        check_spec(held.spec)
    except SpecError as error:
        return SeriesResult(held.label, "", (), Trouble(error.message, error.hint or "", Exit.RUN_FAILED))
    try:
        place = find_place(held.place, held.place_options)
    except (SpecError, PlaceError) as error:
        # A place that is gone has failed; a variable that is not set (`env=TOKEN`) is for the caller to set.
        gone = held.place not in place_kinds()
        code = Exit.PLACE_FAILED if gone else error.exit_code
        return SeriesResult(held.label, "", (), Trouble(error.message, error.hint or "", code))
    ledger.start_experiment(experiment)
    count = how.runs or held.runs_a_series
    trouble = None
    try:
        recorder = Recorder(ledger, experiment.id)
        for _ in run_several(recorder, held.spec, place, how.watcher, count, how.time_limit_s, label=held.label):
            pass
    except PlaceError as error:
        trouble = Trouble(error.message, error.hint or "", Exit.PLACE_FAILED)
    rows = tuple(in_common_windows(ledger, ledger.runs_of(experiment.id)))
    return SeriesResult(held.label, experiment.id, rows, trouble or failed_runs(rows))


def failed_runs(rows: Sequence[RunRow]) -> Trouble | None:
    """Say why a series has no figure; None where all of its runs are good."""
    failed = [row for row in rows if row.status != "done"]
    if not failed:
        return None
    first = failed[0]
    several = f" ({len(failed)} of {len(rows)} runs failed)" if len(failed) > 1 else ""
    message = f"run {first.id}: {first.failure_message or first.failure_kind or first.status}{several}"
    return Trouble(message, first.failure_hint or f"look at it: stackmark show {first.id} --log", Exit.RUN_FAILED)


def save_again(ledger: Ledger, name: str, held: HeldWorkload, how: SeriesOptions) -> SeriesResult:
    """Measure one more series of what the baseline holds."""
    request = Request(workload=held.spec.workload, params=held.spec.params, ranks=held.spec.ranks)
    experiment = new_experiment(command=how.command, request=request.model_dump(mode="json"))
    return _kept(ledger, name, measure_series(ledger, held, experiment, how))


def save_new(ledger: Ledger, name: str, request: Request, place: Place, how: SeriesOptions) -> SeriesResult:
    """Measure a first series: a probe chooses what was not typed."""
    try:
        measured = measure(
            request, place=place, ledger=ledger, runs=how.runs, watcher=how.watcher,
            time_limit_s=how.time_limit_s, command=how.command,
        )  # fmt: skip
    except LedgerError:
        raise
    except StackmarkError as error:
        return SeriesResult(request.workload, "", (), Trouble(error.message, error.hint or "", error.exit_code))
    rows = measured.runs
    return _kept(ledger, name, SeriesResult(request.workload, measured.experiment.id, rows, failed_runs(rows)))


def _kept(ledger: Ledger, name: str, series: SeriesResult) -> SeriesResult:
    """Keep good runs as a series, though others of it failed."""
    if series.throughput:
        baselines.save(ledger, name, series.experiment_id)
    return series


def held_like(held: Sequence[HeldWorkload], request: Request, place: Place) -> HeldWorkload | None:
    """Return the part of the baseline whose spec agrees with everything that was typed."""
    typed = request.typed()
    like = [
        one
        for one in held
        if one.spec.workload == request.workload
        and (one.place, one.place_options) == (place.name, place.options())
        and all(one.spec.params.get(name) == value for name, value in typed.items())
    ]
    return like[0] if len(like) == 1 else None


def save_stored(ledger: Ledger, name: str, experiment_ids: Sequence[str]) -> dict[str, bool]:
    """Save what was already measured, all of it or nothing; False for what was in the baseline before."""
    baselines.check_name(name)
    found = [ledger.experiment(one) for one in experiment_ids]
    for experiment in found:
        refuse_suite(experiment)
        rows = ledger.runs_of(experiment.id)
        good = [row for row in rows if row.status == "done" and row.role == "measured" and row.rate_per_s]
        if not good:
            raise SpecError(f"{experiment.id} has no successful run; nothing was saved", hint="name another experiment")
        if kind_of(experiment).from_logs:
            raise SpecError(
                f"{experiment.id} was read from logs, which cannot be run again; nothing was saved",
                hint="compare runs with it: stackmark verdict RUN… --against RUN…",
            )
        if len({(row.spec_digest, row.place, json.dumps(row.place_options, sort_keys=True)) for row in good}) > 1:
            raise SpecError(
                f"{experiment.id} has several arms; nothing was saved", hint="save an experiment of one arm"
            )
    return {experiment.id: baselines.save(ledger, name, experiment.id) for experiment in found}
