"""Baselines: save measurements under a name, and check later what changed."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from stackmark.api.ledgers import Ledger, LedgerLike, clean, opened
from stackmark.api.options import Option, canonical_workload, command_of, read_request
from stackmark.api.stored import Confirm, trust
from stackmark.api.verdicts import is_named
from stackmark.errors import Exit, LedgerError, SpecError, Terminated
from stackmark.experiments.arms import place_of
from stackmark.experiments.baseline import (
    HeldWorkload,
    SeriesOptions,
    held_by,
    held_like,
    held_so_far,
    parts_in,
    save_again,
    save_new,
    save_stored,
)
from stackmark.experiments.baseline import SeriesResult as SeriesResult
from stackmark.experiments.check import RULES, Checked, check_again, decided
from stackmark.experiments.check import check as check_held
from stackmark.experiments.design import MARGIN, check_margin
from stackmark.experiments.recorder import Watcher
from stackmark.experiments.trend import Trend, history_of_workload, trends_of
from stackmark.figures import figure_fields
from stackmark.ledger import baselines
from stackmark.ledger.baselines import Listed
from stackmark.ledger.baselines import check_name as check_name
from stackmark.ledger.rows import Experiment
from stackmark.places.place import Place
from stackmark.schemas import with_schema
from stackmark.show.callbacks import ProgressLike, watcher_of
from stackmark.show.check import check_json, junit_case, print_check, stack_changed, summary
from stackmark.show.junit import FAILURES, render_junit
from stackmark.show.plot import png_of
from stackmark.show.terminal import printed
from stackmark.show.trend import history_json, print_history, print_trends, trends_json, trends_png, trends_svg
from stackmark.show.writing import check_picture, write_picture
from stackmark.spec import Request
from stackmark.units import say_moment
from stackmark.workloads.registry import check_typed, definitions, find

# Makes a watcher for one series or one check. It is over before a result is printed: both may go to one screen.
Watching = Callable[[], AbstractContextManager[Watcher]]


def _watching(progress: ProgressLike) -> Watching:
    return lambda: nullcontext(watcher_of(progress))


# --- save ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavedBaseline:
    """The result of saving a baseline, and what it contains now.

    `series` were measured, `experiments` had been stored before: False for one that was in the baseline already.
    """

    name: str
    holds: tuple[HeldWorkload, ...]
    series: tuple[SeriesResult, ...] = ()
    experiments: Mapping[str, bool] | None = None

    @property
    def exit_code(self) -> Exit:
        codes = [one.trouble.code if one.trouble else Exit.DONE for one in self.series]
        if len(codes) == 1:
            return codes[0]
        return Exit.PART_FAILED if any(codes) else Exit.DONE

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark baseline save --json` prints."""
        stored = [{"experiment": one, "new": new} for one, new in (self.experiments or {}).items()]
        holds = [{"workload": one.label, "series": one.series, "runs": len(one.rows)} for one in self.holds]
        saved = [*map(_series_json, self.series), *stored]
        return with_schema("baseline", {"baseline": self.name, "saved": saved, "holds": holds})


def _series_json(series: SeriesResult) -> dict[str, Any]:
    rate = series.throughput
    return {
        "workload": series.label,
        "experiment": series.experiment_id or None,
        "rate_per_s": rate.rate_per_s if rate else None,
        "unit": series.unit or None,
        **figure_fields(rate.rate_per_s if rate else None, series.unit),
        "runs": rate.runs if rate else 0,
        "error": series.trouble.message if series.trouble else None,
        "hint": series.trouble.hint or None if series.trouble else None,
    }


@dataclass(frozen=True)
class BaselinePlan:
    """A plan of what is saved under a name. Without a request, everything in the baseline is measured once more."""

    name: str
    requests: tuple[Request, ...]
    places: tuple[Place, ...]
    runs: int | None = None
    time_limit_s: float | None = None
    # The command line that repeats it.
    command: str = ""


def plan_baseline(
    name: str,
    requests: Sequence[Request],
    *,
    on: str = "host",
    place_options: Mapping[str, JsonValue] | None = None,
    runs: int | None = None,
    time_limit_s: float | None = None,
    command: str = "",
) -> BaselinePlan:
    """Refuse what can be refused before anything is measured."""
    check_name(name)
    for request in requests:
        check_typed(request)
    places = tuple(place_of(on, request.workload, place_options or {}) for request in requests)
    return BaselinePlan(name, tuple(requests), places, runs, time_limit_s, command)


def carry_out_baseline(
    plan: BaselinePlan,
    ledger: Ledger,
    watching: Watching,
    confirm: Confirm,
    ended: Callable[[SeriesResult], None] = lambda _: None,
) -> SavedBaseline:
    """Measure one series after another; one that fails stops no other. `ended` hears of each."""
    known = held_so_far(ledger, plan.name) if plan.requests else held_by(ledger, plan.name)
    asked = list(zip(plan.requests, plan.places, strict=True))
    again = [held_like(known, *one) for one in asked] if asked else known
    confirm(parts_in([one for one in again if one]), ledger.where)
    series: list[SeriesResult] = []
    for number, held in enumerate(again):
        with watching() as watcher:
            clean(ledger, watcher.notice)
            how = SeriesOptions(watcher, plan.runs, plan.time_limit_s, plan.command)
            if held:
                series.append(save_again(ledger, plan.name, held, how))
            else:
                series.append(save_new(ledger, plan.name, *asked[number], how))
        ended(series[-1])
    return SavedBaseline(plan.name, tuple(held_so_far(ledger, plan.name)), tuple(series))


def save_baseline(
    name: str,
    workload: str | None = None,
    *,
    experiments: Sequence[str] = (),
    on: str = "host",
    runs: int | None = None,
    ranks: int = 1,
    time_limit_s: float | None = None,
    trust_ledger: bool = False,
    ledger: LedgerLike = None,
    progress: ProgressLike = None,
    **options: Option,
) -> SavedBaseline:
    """Measure a workload and keep it under a name, or keep `experiments` that were measured already.

    With neither, all that the baseline holds is measured once more. A command or path in the ledger that you did not type on
    this machine is refused unless `trust_ledger` is true.
    """
    if experiments:
        if workload is not None or options:
            raise SpecError("a workload and experiments cannot be combined", hint="leave one of them out")
        with opened(ledger) as book:
            saved = save_stored(book, name, experiments)
            return SavedBaseline(name, tuple(held_by(book, name)), experiments=saved)
    if workload is None and options:
        raise SpecError(
            f"{next(iter(options))} has no effect without a workload", hint="name a workload, or leave it out"
        )
    requests, place_options = [], dict[str, JsonValue]()
    if workload is not None:
        request, place_options = read_request(workload, ranks, options)
        requests = [request]
    typed = {"on": on if on != "host" else None, "runs": runs, "ranks": ranks if ranks > 1 else None}
    plan = plan_baseline(
        name, requests, on=on, place_options=place_options, runs=runs, time_limit_s=time_limit_s,
        command=command_of(["baseline", "save", name], workload, {**typed, **options}),
    )  # fmt: skip
    with opened(ledger, create=True) as book:
        return carry_out_baseline(plan, book, _watching(progress), trust(trust_ledger))


@dataclass(frozen=True)
class BaselineList:
    """All baselines of a ledger, with their workloads."""

    baselines: tuple[Listed, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark baseline list --json` prints."""
        return with_schema("baselines", {"baselines": [one.model_dump(mode="json") for one in self.baselines]})


def list_baselines(ledger: LedgerLike = None) -> BaselineList:
    with opened(ledger) as book:
        return BaselineList(tuple(baselines.every(book)))


@dataclass(frozen=True)
class BaselineTrend:
    """Every series of a baseline and every check against it, oldest first, for each workload and chip."""

    name: str
    margin: float
    trends: tuple[Trend, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark baseline show --json` prints."""
        return trends_json(self.name, self.margin, self.trends)

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the figures over time with the baseline and the margin: SVG or PNG, by the name of the file."""
        target = Path(path)
        check_picture(target, "trend.svg")
        return write_picture(
            target, lambda: trends_svg(self.name, self.trends), lambda: trends_png(self.name, self.trends)
        )

    def __str__(self) -> str:
        return printed(lambda console: print_trends(self.name, self.trends, console))


def show_baseline(name: str, *, margin: float = MARGIN, ledger: LedgerLike = None) -> BaselineTrend:
    """Read the series of a baseline and its checks from the ledger; nothing is measured."""
    check_margin(margin)
    with opened(ledger) as book:
        return BaselineTrend(name, margin, tuple(trends_of(book, name, margin)))


@dataclass(frozen=True)
class WorkloadTrend:
    """All series of a workload in a ledger, for each spec, place and chip, with the places where its rate changed."""

    workload: str
    margin: float
    trends: tuple[Trend, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark trend --json` prints."""
        return history_json(self.workload, self.margin, self.trends)

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the figures over time with the changes marked: SVG or PNG, by the name of the file."""
        target = Path(path)
        check_picture(target, "trend.svg")

        def svg() -> str:
            return trends_svg(self.workload, self.trends, "Trend of")

        return write_picture(target, svg, lambda: png_of(svg()))

    def __str__(self) -> str:
        return printed(lambda console: print_history(self.workload, self.trends, console))


def trend(
    workload: str,
    *,
    machine: str | None = None,
    place: str | None = None,
    margin: float = MARGIN,
    ledger: LedgerLike = None,
) -> WorkloadTrend:
    """Read all series of a workload from the ledger and find when it became slower or faster; nothing is measured."""
    check_margin(margin)
    workload = canonical_workload(workload, (one.name for one in definitions()))
    with opened(ledger) as book:
        found = history_of_workload(book, workload, margin, machine=machine, place=place)
        if not found:
            # What is stored may be of a package that is not installed here; another name is a slip.
            find(workload)
            raise SpecError(
                f"no two series of {workload} are stored{f' of the machine {machine!r}' if machine else ''}",
                hint="a reboot or an hour without runs begins a new series; list what there is: stackmark results "
                f"--workload {workload}",
            )
        return WorkloadTrend(workload, margin, tuple(found))


def delete_baseline(name: str, ledger: LedgerLike = None) -> int:
    """Forget a baseline, and return how many experiments it held. They stay in the ledger."""
    with opened(ledger) as book:
        return baselines.remove(book, name)


# --- check --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckResult:
    """Every workload of a baseline compared with before: today's verdict, and that of the latest checks together."""

    name: str
    margin: float
    workloads: tuple[Checked, ...]
    began_unix_s: float
    # The command line that checks once more.
    command: str = ""

    def is_named(self, one: Checked, fail_on: Sequence[str]) -> bool:
        """Tell whether `fail_on` names today's verdict of a workload, or that of the latest checks together."""
        if "alarm" in fail_on and one.alarm and one.alarm.rings:
            return True
        if "inconclusive" in fail_on and one in self.undecided:
            return True
        words = [word for word in fail_on if word != "inconclusive"]
        return any(is_named(seen, words) for seen in (one.comparison, one.lately_comparison) if seen)

    @property
    def undecided(self) -> list[Checked]:
        """Return the workloads that were compared and about which nothing was decided."""
        return [one for one in self.workloads if _is_undecided(one)]

    def exit_code(self, fail_on: Sequence[str] = ()) -> Exit:
        """Return what `stackmark check` exits with.

        A workload without a verdict counts before any verdict: what could not be measured or compared was not checked.
        """
        codes = [one.trouble.code for one in self.workloads if one.trouble]
        if not codes:
            named = any(self.is_named(one, fail_on) for one in self.workloads)
            return Exit.VERDICT_NAMED if named else Exit.DONE
        if len(codes) < len(self.workloads):
            return Exit.PART_FAILED
        return codes[0] if len(set(codes)) == 1 else Exit.RUN_FAILED

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark check --json` prints."""
        return check_json(self.name, self.margin, self.workloads)

    def junit(self, fail_on: Sequence[str] = ()) -> str:
        """Return JUnit XML: a case for each workload, which fails where `fail_on` names its verdict; by default `slower`."""
        failures = fail_on or FAILURES
        properties = [("baseline", self.name), ("margin", f"{self.margin:g}"), ("rules", str(RULES))]
        properties += [("verdict", summary(self.workloads)), ("failures", ", ".join(failures))]
        properties += [("changed", change) for change in stack_changed(self.workloads)]
        when = say_moment(self.began_unix_s, "%Y-%m-%dT%H:%M:%S", utc=True)
        cases = [junit_case(one, failed=self.is_named(one, failures), again=self.command) for one in self.workloads]
        return render_junit(f"stackmark check {self.name}", cases, properties, when)

    def __str__(self) -> str:
        return printed(lambda console: print_check(self.workloads, console, self.command))


def _is_undecided(one: Checked) -> bool:
    seen = [pair for pair in (one.comparison, one.lately_comparison) if pair]
    return bool(seen) and all(pair.word == "INCONCLUSIVE" for pair in seen)


@dataclass(frozen=True)
class CheckPlan:
    """A plan of a check: which baseline is measured again, and what counts as a difference."""

    name: str
    margin: float = MARGIN
    runs: int | None = None
    time_limit_s: float | None = None
    # Also on another chip or machine; the reasons are said.
    anyway: bool = False
    command: str = ""


def carry_out_check(
    plan: CheckPlan,
    ledger: Ledger,
    watching: Watching,
    confirm: Confirm,
    partly: Callable[[CheckResult], None] = lambda _: None,
) -> CheckResult:
    """Measure what the baseline holds and compare it. Where it is interrupted, `partly` gets what was done until then."""
    found = CheckResult(plan.name, plan.margin, (), time.time(), plan.command)
    done: list[Checked] = []
    held = held_by(ledger, plan.name)
    # A ledger that is locked or read-only is found now, and not after the first run.
    ledger.writing(lambda _: None)
    confirm(parts_in(held), ledger.where)
    try:
        with watching() as watcher:
            clean(ledger, watcher.notice)
            how = SeriesOptions(watcher, plan.runs, plan.time_limit_s, plan.command)
            for one in check_held(ledger, plan.name, how, margin=plan.margin, anyway=plan.anyway):
                done.append(one)
                if one.trouble:
                    watcher.notice(f"{one.label}: {one.trouble.message}")
    except (KeyboardInterrupt, Terminated, LedgerError):
        partly(replace(found, workloads=tuple(decided(done))))
        raise
    return replace(found, workloads=tuple(decided(done)))


def stored_check(experiment: Experiment, ledger: Ledger) -> CheckResult | None:
    """Judge a stored check again, without running anything; None where its runs or its baseline are gone."""
    found = check_again(ledger, experiment)
    if found is None:
        return None
    return CheckResult(
        found.baseline,
        found.margin,
        (found.checked,),
        experiment.created_unix_s,
        experiment.command,
    )


def check(
    name: str,
    *,
    margin: float = MARGIN,
    runs: int | None = None,
    time_limit_s: float | None = None,
    anyway: bool = False,
    trust_ledger: bool = False,
    ledger: LedgerLike = None,
    progress: ProgressLike = None,
) -> CheckResult:
    """Measure what a baseline holds and compare it: what changed in the stack, and a verdict for each workload."""
    check_margin(margin)
    options = {"margin": margin if margin != MARGIN else None, "runs": runs, "anyway": anyway or None}
    plan = CheckPlan(name, margin, runs, time_limit_s, anyway, command_of(["check", name], None, options))
    with opened(ledger) as book:
        return carry_out_check(plan, book, _watching(progress), trust(trust_ledger))
