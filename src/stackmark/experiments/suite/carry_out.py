"""Carry a suite out: its rows become experiments of their own, in an order that treats all arms alike.

With a compared axis each row is a comparison in blocks (experiments/compare.py), and the rows follow one another: drift hits
every arm of a row alike, and a row that is done stays done, on whichever chip the next one is measured. Without one, the runs of
all rows are interleaved, round by round in a shuffled order, because people compare such cells with each other by eye.

Nothing that matters is kept in memory. A row's experiment names the suite and the row; the newest of a row counts. So a suite
that was killed goes on with `resume`: whole rows stay, an open row goes on in its own order, and begins again where the machine
or the chip is another one. An arm that cannot run is a failed cell with its reason; the other arms of its row are measured
without it.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue, ValidationError

from stackmark.errors import LedgerError, SpecError, StackmarkError
from stackmark.events import Event, Probe
from stackmark.experiments import compare, operator_list
from stackmark.experiments import run as run_kind
from stackmark.experiments.arms import ArmRequest
from stackmark.experiments.caches import remove_forgotten
from stackmark.experiments.compare import CompareRequest
from stackmark.experiments.driver import OTHER_CHIP
from stackmark.experiments.estimate import Estimate
from stackmark.experiments.fitting import is_censored
from stackmark.experiments.kinds import SUITE, require
from stackmark.experiments.list_specs import is_list
from stackmark.experiments.progress import StepTimes, progress
from stackmark.experiments.recorder import SUITE_KEY, Recorder, SuiteMember, Watcher, begin, new_experiment
from stackmark.experiments.suite.forecast import SuiteForecast, forecast, runs_of
from stackmark.experiments.suite.plan import WORKLOAD, PlannedRow, SuitePlan, trusted_parts
from stackmark.experiments.trust import Part, remember
from stackmark.ledger.rows import Experiment, Json, RunDetail, RunRow
from stackmark.ledger.store import Ledger
from stackmark.ledger.trouble import unreadable_design
from stackmark.places.registry import find_place
from stackmark.spec import Request, Spec, explain
from stackmark.verdict.suite import say_value

# Of one row: its arms may fail one after another, and it may begin again on another chip.
MOST_BEGINNINGS = 12
# Newest experiments among which an unfinished suite of the same name is looked for.
LOOKED_THROUGH = 200
# The kind of the error of an experiment that was killed before its first run: its spec was not stored.
NO_RUN = "no_run"


@dataclass(frozen=True)
class Reason:
    """Why an arm has no number."""

    message: str
    kind: str = ""
    hint: str = ""

    def stored(self) -> Json:
        return {"message": self.message, "kind": self.kind, "hint": self.hint}

    @classmethod
    def of(cls, error: StackmarkError) -> "Reason":
        return cls(error.message, error.kind, error.hint or "")

    @classmethod
    def read(cls, stored: JsonValue) -> "Reason":
        """Read a stored reason; a ledger may hold anything."""
        texts = (
            {key: value for key, value in stored.items() if isinstance(value, str)} if isinstance(stored, dict) else {}
        )
        return cls(texts.get("message", "no reason is stored"), texts.get("kind", ""), texts.get("hint", ""))


@dataclass(frozen=True)
class BegunRow:
    """A row's newest experiment, and the arms that were left out of it, by their labels in the suite."""

    experiment: Experiment
    left_out: Mapping[str, Reason] = field(default_factory=dict)


def start(plan: SuitePlan, ledger: Ledger, command: str) -> Experiment:
    """Store the plan: from here on `resume` can continue."""
    remember(trusted_parts(plan.rows))
    asked: Json = {"name": plan.name, "digest": plan.digest}
    experiment = new_experiment(kind="suite", command=command, request=asked, design=plan.model_dump(mode="json"))
    ledger.start_experiment(experiment)
    return experiment


def plan_of(experiment: Experiment) -> SuitePlan:
    """Return the plan of a stored suite."""
    require(experiment, SUITE)
    try:
        return SuitePlan.model_validate(experiment.design)
    except ValidationError as error:
        raise unreadable_design(experiment.id, explain(error)) from error


def begun_rows(ledger: Ledger, suite: Experiment) -> dict[int, BegunRow]:
    """Return the rows that were begun, by their number: each with its newest experiment."""
    found: dict[int, BegunRow] = {}
    for experiment in ledger.experiments_of(suite.id):
        stored = experiment.request.get(SUITE_KEY)
        number = stored.get("row") if isinstance(stored, dict) else None
        if isinstance(stored, dict) and isinstance(number, int):
            left = stored.get("left_out")
            reasons = {name: Reason.read(one) for name, one in left.items()} if isinstance(left, dict) else {}
            found[number] = BegunRow(experiment, reasons)
    return found


def is_open(ledger: Ledger, begun: BegunRow | None, rows: Sequence[RunDetail] | None = None) -> bool:
    """Return whether runs of a row are missing."""
    if begun is None:
        return True
    experiment = begun.experiment
    rows = ledger.runs_of(experiment.id) if rows is None else rows
    if experiment.kind == "compare":
        return progress(compare.design_of(experiment), rows, StepTimes(ledger)).open
    if not experiment.request.get("workload"):
        return False  # no arm of it could be started
    if not rows:
        return True
    if is_list(rows[0].workload):
        return not operator_list.read_list(ledger, experiment).whole
    return run_kind.missing_runs(run_kind.asked_runs(experiment) or 0, rows) > 0


def unfinished_named(ledger: Ledger, plan: SuitePlan) -> tuple[Experiment | None, Experiment | None]:
    """Return the newest suite of this plan that is not finished, and the newest of the same name with other cells."""
    same, other = None, None
    for row in ledger.experiments(limit=LOOKED_THROUGH):
        found = row.experiment
        if found.kind != "suite" or found.request.get("name") != plan.name:
            continue
        if found.request.get("digest") != plan.digest:
            other = other or found
        elif same is None:
            begun = begun_rows(ledger, found)
            if any(is_open(ledger, begun.get(number)) for number in range(len(plan.rows))):
                same = found
            else:
                return None, other
    return same, other


def parts_in(ledger: Ledger, suite: Experiment, *, failed: bool = False) -> list[Part]:
    """Return what must be trusted before a suite goes on: the plan of the rows that may begin, and what is stored of open ones.

    With `failed` any row may begin again.
    """
    plan, begun = plan_of(suite), begun_rows(ledger, suite)
    missing = [number for number in range(len(plan.rows)) if is_open(ledger, begun.get(number))]
    parts = trusted_parts(plan.rows if failed else [plan.rows[number] for number in missing])
    for number in missing:
        if number in begun:
            if begun[number].experiment.kind == "compare":
                parts += compare.parts_in(compare.design_of(begun[number].experiment))
            elif ledger.runs_of(begun[number].experiment.id):
                parts += _parts_of_one_arm(ledger, begun[number].experiment)
    return list({part.digest: part for part in parts}.values())


def _parts_of_one_arm(ledger: Ledger, experiment: Experiment) -> list[Part]:
    rows = ledger.runs_of(experiment.id)
    if is_list(rows[0].workload):
        return operator_list.parts_in(operator_list.read_list(ledger, experiment))
    return run_kind.parts_in(ledger, experiment)


def carry_out(
    suite: Experiment,
    ledger: Ledger,
    watcher: Watcher,
    *,
    time_limit_s: float | None = None,
    anyway: bool = False,
    failed: bool = False,
) -> str:
    """Make the missing runs; with `failed` also begin rows again in which an arm failed.

    Returns why it stopped before its end, which is its budget; else an empty text.
    """
    remove_forgotten()
    session = _Session(suite, ledger, watcher, time_limit_s, anyway)
    with Recorder(ledger, suite.id).claim():
        return session.go_through(again=session.failed_rows() if failed else ())


class _Session:
    """One driver's stretch of a suite."""

    def __init__(
        self, suite: Experiment, ledger: Ledger, watcher: Watcher, time_limit_s: float | None, anyway: bool
    ) -> None:
        self._suite, self._ledger, self._time_limit_s, self._anyway = suite, ledger, time_limit_s, anyway
        self._plan = plan_of(suite)
        self._began_s = time.monotonic()
        self._begun = begun_rows(ledger, suite)
        missing = [number for number in range(len(self._plan.rows)) if self._is_open(number)]
        self._missing = missing
        self._watcher = _OverAll(watcher, self._plan, missing)
        self._stopped = ""
        if missing:
            rows = [self._plan.rows[number] for number in missing]
            self._watcher.expects_all(forecast(self._plan, ledger, rows))

    def _is_open(self, number: int) -> bool:
        return is_open(self._ledger, self._begun.get(number))

    def failed_rows(self) -> list[int]:
        """Return the finished rows in which an arm has no number."""
        found = []
        for number, begun in self._begun.items():
            rows = self._ledger.runs_of(begun.experiment.id)
            good = {row.arm for row in rows if row.role == "measured" and (row.status == "done" or is_censored(row))}
            arms = len(self._plan.rows[number].arms) if number < len(self._plan.rows) else 0
            if not is_open(self._ledger, begun, rows) and (begun.left_out or len(good) < arms):
                found.append(number)
        return found

    def _in_time(self) -> bool:
        """Whether another block or run may begin."""
        budget = self._plan.budget_s
        if budget is not None and time.monotonic() - self._began_s >= budget:
            self._stopped = "the budget of the suite is spent"
        return not self._stopped

    def go_through(self, again: Sequence[int] = ()) -> str:
        for number in again:
            self._begin(number, {})
        if self._plan.compare:
            for number in range(len(self._plan.rows)):
                if not self._in_time():
                    break
                self._whole_row(number)
        else:
            self._in_rounds()
        return self._stopped

    def _in_rounds(self) -> None:
        """Interleave the runs of all rows; lists of operators are whole passes, and follow at the end."""
        rows = list(range(len(self._plan.rows)))
        lists = [number for number in rows if is_list(self._plan.rows[number].workload)]
        single = [number for number in rows if number not in lists and self._is_open(number)]
        dice = random.Random(self._plan.seed)
        rounds = 0
        while single and self._in_time():
            order = list(single)
            dice.shuffle(order)
            for number in order:
                if not self._in_time():
                    return
                self._watcher.round = rounds
                self._whole_row(number, at_most=1)
            single = [number for number in single if self._is_open(number)]
            rounds += 1
        self._watcher.round = None
        for number in lists:
            if self._in_time():
                self._whole_row(number)

    # --- one row ----------------------------------------------------------------------------------------------------------

    def _whole_row(self, number: int, at_most: int | None = None) -> None:
        """Make what is missing of a row; `at_most` runs of a single cell. What fails is a reason, and stops no other row."""
        self._watcher.row = number
        for _ in range(MOST_BEGINNINGS):
            begun = self._begun.get(number)
            if begun is None:
                begun = self._begin(number, {})
                if at_most and begun.experiment.kind == "run":
                    return  # its first run was made
            if not is_open(self._ledger, begun):
                return
            try:
                self._go_on(begun, at_most)
                return
            except LedgerError:
                raise
            except StackmarkError as error:
                self._begin_again(number, begun, error)

    def _go_on(self, begun: BegunRow, at_most: int | None) -> None:
        experiment, ledger = begun.experiment, self._ledger
        if experiment.kind == "compare":
            compare.carry_out(
                experiment, ledger, self._watcher, time_limit_s=self._time_limit_s, anyway=self._anyway,
                may_begin=self._in_time,
            )  # fmt: skip
            return
        rows = ledger.runs_of(experiment.id)
        if not rows:
            raise SpecError(f"{experiment.id} has no run yet", kind=NO_RUN)
        if is_list(rows[0].workload):
            operator_list.carry_out(
                experiment, ledger, self._watcher, time_limit_s=self._time_limit_s, anyway=self._anyway
            )
            return
        run_kind.carry_out(
            experiment, ledger, self._watcher, time_limit_s=self._time_limit_s, anyway=self._anyway, at_most=at_most
        )
        self._check_chip(experiment)

    def _check_chip(self, experiment: Experiment) -> None:
        """Refuse runs of one cell on two chips, as a comparison does."""
        chips = {row.chip_uuid for row in self._ledger.runs_of(experiment.id) if row.status == "done"} - {None}
        if len(chips) > 1 and not self._anyway:
            raise SpecError(f"{experiment.id} has runs on {len(chips)} chips", kind=OTHER_CHIP)

    def _begin_again(self, number: int, begun: BegunRow, error: StackmarkError) -> None:
        """Begin a row again without what failed: on this chip, or without the arm that cannot run."""
        row = self._plan.rows[number]
        if error.kind == OTHER_CHIP:
            self._watcher.notice(
                f"{self._watcher.name_of(number)} begins again: the machine or the chip is another one"
            )
            self._begin(number, {})
            return
        if error.kind == NO_RUN:
            self._begin(number, begun.left_out)
            return
        failing = self._failing_arm(begun, error)
        reasons = {**begun.left_out, **dict.fromkeys(failing or [arm.label for arm in row.arms], Reason.of(error))}
        said = ", ".join(failing) if failing else "all arms"
        self._watcher.notice(f"{self._watcher.name_of(number)}: going on without {said}: {error.message}")
        self._begin(number, reasons)

    def _failing_arm(self, begun: BegunRow, error: StackmarkError) -> list[str]:
        """Return the arm that cannot run, by its label in the suite: that of the last run, which was not finished."""
        row = self._plan.rows[_number_of(begun)]
        left = [arm.label for arm in row.arms if arm.label not in begun.left_out]
        rows = self._ledger.runs_of(begun.experiment.id)
        if rows and rows[-1].status != "done" and rows[-1].arm < len(left):
            return [left[rows[-1].arm]]
        return _labels_of(row, error)

    def _begin(self, number: int, left_out: Mapping[str, Reason]) -> BegunRow:
        """Probe a row's arms and store its experiment; arms that cannot be started are left out, with their reasons."""
        row, reasons = self._plan.rows[number], dict(left_out)
        self._watcher.row = number
        while True:
            arms = [arm for arm in row.arms if arm.label not in reasons]
            member = SuiteMember(
                self._suite.id, {"row": number, "left_out": {name: one.stored() for name, one in reasons.items()}}
            )
            if not arms:
                experiment = new_experiment(command=self._suite.command, member=member)
                begin(self._ledger, experiment, [])
                break
            try:
                experiment = self._start_row(row.model_copy(update={"arms": arms}), member, number)
                break
            except LedgerError:
                raise
            except StackmarkError as error:
                failing = _labels_of(row, error) if len(arms) > 1 else [arms[0].label]
                failing = [label for label in failing if label not in reasons] or [arm.label for arm in arms]
                reasons |= dict.fromkeys(failing, Reason.of(error))
                self._watcher.notice(f"{self._watcher.name_of(number)}: {error.message}")
        self._begun[number] = BegunRow(experiment, reasons)
        return self._begun[number]

    def _start_row(self, row: PlannedRow, member: SuiteMember, number: int) -> Experiment:
        """Start what is left of a row: a comparison, or where one arm is left, runs of it with its first run made."""
        arms = row.read()
        seed = random.Random(f"{self._plan.seed} {number}").randrange(2**31)
        command = self._suite.command
        if len(arms) > 1:
            asked = CompareRequest(
                request=row.request, arms=arms, blocks=self._plan.blocks, margin=self._plan.margin, seed=seed,
                command=command, member=member, pause_s=self._plan.pause_s, most_repeats=self._plan.most_repeats,
                primers=self._plan.primers, sample_hz=self._plan.sample_hz,
            )  # fmt: skip
            return compare.start(asked, self._ledger, self._watcher)
        return self._start_one_arm(row, arms[0], member)

    def _start_one_arm(self, row: PlannedRow, arm: ArmRequest, member: SuiteMember) -> Experiment:
        request = row.request.model_copy(update={"params": {**row.params, **arm.typed}})
        place = find_place(arm.place, arm.place_options)
        if is_list(row.workload):
            listed = operator_list.start(
                request, place, self._ledger, self._watcher, self._plan.blocks, self._suite.command, member=member
            )
            operator_list.go_through(listed, place, self._ledger, self._watcher, self._time_limit_s)
            return listed.experiment
        begun = run_kind.start(
            request, place, self._ledger, self._watcher, self._plan.blocks, self._suite.command, member=member,
            choose_again=self._plan.choose_again, sample_hz=self._plan.sample_hz,
        )  # fmt: skip
        run_kind.go_through(begun, place, self._ledger, self._watcher, self._time_limit_s, at_most=1)
        return begun.experiment


def _number_of(begun: BegunRow) -> int:
    stored = begun.experiment.request.get(SUITE_KEY)
    number = stored.get("row") if isinstance(stored, dict) else 0
    return number if isinstance(number, int) else 0


def _labels_of(row: PlannedRow, error: StackmarkError) -> list[str]:
    """Return the arm that an error names, by its label in the suite."""
    return [arm.label for arm in row.arms if error.arm and error.arm in (arm.text, arm.label)]


class _OverAll:
    """Turns the progress of single experiments into that of the whole suite: one bar, and lines that name row and arm."""

    def __init__(self, watcher: Watcher, plan: SuitePlan, missing: Sequence[int]) -> None:
        self._watcher, self._plan = watcher, plan
        self._names = _names(plan)
        self._made = 0
        self._of = sum(len(plan.rows[number].arms) * runs_of(plan, plan.rows[number]) for number in missing)
        self._blocks = 0
        self.row = 0
        # Of rows that are interleaved: the round, which stands where a comparison has its block.
        self.round: int | None = None

    def name_of(self, number: int) -> str:
        return self._names[number]

    def expects_all(self, expected: SuiteForecast) -> None:
        """Pass on the forecast of the whole, where nothing in it is unknown."""
        if not expected.unknown:
            before = expected.measured_before == expected.cells
            self._watcher.expects(Estimate(expected.seconds, expected.runs, {}, before))

    def notice(self, sentence: str) -> None:
        self._watcher.notice(sentence)

    def probing(self, request: Request) -> None:
        self._watcher.probing(request)

    def probed(self, probe: Probe) -> None:
        self._watcher.probed(probe)

    def experiment_begins(self, labels: Sequence[str], blocks: int) -> None:
        self._blocks = blocks

    def expects(self, estimate: Estimate) -> None:
        """Of one row; the whole was said."""

    def run_begins(
        self, run_id: str, number: int, of: int, spec: Spec, *, label: str = "", block: int | None = None
    ) -> None:
        name = self.name_of(self.row)
        label = f"{name} {label}".strip() if len(self._plan.rows[self.row].arms) > 1 else name
        single = len(self._plan.rows[self.row].arms) == 1
        blocks = runs_of(self._plan, self._plan.rows[self.row]) if single else self._blocks
        # Two labels: with one, lines would not name it.
        block = (self.round if self.round is not None else number - 1) if single else block
        self._watcher.experiment_begins([label, label], max(blocks, (block or 0) + 1))
        self._watcher.run_begins(run_id, self._made + 1, max(self._of, self._made + 1), spec, label=label, block=block)

    def event(self, event: Event) -> None:
        self._watcher.event(event)

    def stderr(self, line: str) -> None:
        self._watcher.stderr(line)

    def run_ended(self, row: RunRow, number: int, of: int) -> None:
        self._watcher.run_ended(row, self._made + 1, max(self._of, self._made + 1))
        self._made += row.role == "measured"


def _names(plan: SuitePlan) -> list[str]:
    """Name rows by their workload and by what else tells them apart."""
    several = [axis.name for axis in plan.axes if len(axis.values) > 1 and axis.name not in (plan.compare, WORKLOAD)]
    names = []
    for row in plan.rows:
        texts = [row.workload.rpartition("/")[2], *(say_value(name, row.values.get(name, "")) for name in several)]
        names.append(" ".join(text for text in texts if text))
    return names
