"""The kind `operator list`: a list of problems that is measured row by row, several times.

A pass is one way through the whole list. It is one run, one fresh process; where that was cut off (Ctrl-C, the time was up, a
library crashed in row 57), later runs take what is left, and the pieces together are the pass (`pass_number`
and `piece` of a run). Nothing is lost with a process but the row that it was at.

A row that ended its process is taken again last and alone, so that it can end no other; if it ends that process too, it is a
failed row in its run's words. Failed rows are not tried again unless requested: most of them failed because memory ran out
or of a precision, and would again.

Arms of a comparison may go through a list too (`arm_list_runs`). Their verdict is by the list's own rate, run against run. It is
about one list only where all runs timed the same problems: a problem that failed in one arm makes two lists of it, and that is
said before anything else.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from stackmark.errors import Exit, SpecError
from stackmark.events import Event, OpRow, Phase, Row, gathered_facts
from stackmark.experiments.driver import OTHER_CHIP, machine_name
from stackmark.experiments.estimate import of_one_arm
from stackmark.experiments.judging import Facts, read_stored
from stackmark.experiments.list_specs import is_list, problem_of, rows_of_spec
from stackmark.experiments.probing import Resolved, resolve
from stackmark.experiments.progress import CUT_OFF
from stackmark.experiments.recorder import Position, Recorder, SuiteMember, Watcher, begin, new_experiment
from stackmark.experiments.run import run_several
from stackmark.experiments.surroundings import KEY as SURROUNDINGS
from stackmark.experiments.surroundings import look_around
from stackmark.experiments.trust import Part, parts_of
from stackmark.ledger.rows import Experiment, RunDetail, RunRow
from stackmark.ledger.store import Ledger
from stackmark.places.place import Place
from stackmark.places.registry import find_place
from stackmark.published.operators import OperatorIndex, published_for_list
from stackmark.spec import Request, Spec
from stackmark.units import counted
from stackmark.verdict.examined import ExaminedRun, OperatorProblem, PublishedTime
from stackmark.verdict.operators import ListRatio, ListResult, RowFailure, RowResult, compare_lists, over_runs
from stackmark.workloads.op.definition import operator_of, say_problem
from stackmark.workloads.op.problem import BYTES_RATE, RATE_SCALE, Operator, say_rows
from stackmark.workloads.registry import check_spec

# As many as `--runs` takes; a ledger may hold any number.
MOST_PASSES = 1000
# What a chip did wrong once is not undone by a later run in which it did not.
NEVER_FORGOTTEN = {"wrong_result", "hardware_error"}
# What the worker of such a run said was refused, its rows included.
NOT_BELIEVED = {"impossible_result", "not_enforced"}
# Three passes tell a slow process from a slow chip; a list is long, and a row's own samples say the rest.
LIST_RUNS = 3
# This many runs one after another that bring no row further: what is wrong then is not a row.
FRUITLESS = 3
# For each arm its runs that count, each with its block (None where there are no blocks) and its rows.
ArmRuns = list[list[tuple[int | None, list[OpRow]]]]


@dataclass(frozen=True)
class Piece:
    """One run: its task and its result. `died_at` is the row that crashed its process, where it is to blame."""

    run: RunDetail
    wanted: tuple[int, ...]
    rows: tuple[OpRow, ...]
    died_at: int | None = None

    @property
    def killed(self) -> OpRow | None:
        """Return a row that crashed its process while it was the only one: it has failed, with its run's message."""
        if self.died_at is None or len(self.wanted) > 1:
            return None
        problem = problem_of(self.run.spec, self.died_at)
        return OpRow(
            index=self.died_at,
            op=problem.op,
            shape=dict(problem.shape),
            precision=str(self.run.spec.params.get("precision") or ""),
            failure_kind=self.run.failure_kind or "crash",
            failure_message=f"it crashed the worker: {self.run.failure_message or 'the reason is unknown'}",
            failure_hint=self.run.failure_hint or "",
        )


@dataclass(frozen=True)
class Pass:
    number: int
    pieces: tuple[Piece, ...]

    @cached_property
    def rows(self) -> tuple[OpRow, ...]:
        """Return the rows of its pieces; a row that failed and succeeded later counts as successful."""
        latest: dict[int, list[OpRow]] = {}
        for row in (row for piece in self.pieces for row in (*piece.rows, *filter(None, (piece.killed,)))):
            before = [one for one in latest.get(row.index, []) if one.failure_kind in NEVER_FORGOTTEN]
            latest[row.index] = [*before, row]
        return tuple(row for _, found in sorted(latest.items()) for row in found)

    def missing(self, wanted: Sequence[int]) -> list[int]:
        done = {row.index for row in self.rows}
        return [index for index in wanted if index not in done]

    @property
    def suspects(self) -> set[int]:
        """Return rows that crashed a process with others still to do: they are run again last, each alone."""
        return {piece.died_at for piece in self.pieces if piece.died_at is not None and len(piece.wanted) > 1}


@dataclass(frozen=True)
class ListedRuns:
    """A list's experiment, complete or not."""

    experiment: Experiment
    # With all rows that were asked for.
    spec: Spec
    # By number, those that there are: of what the machine itself decides (its links) a spec names more than any has.
    wanted: tuple[int, ...]
    # How many passes were asked for.
    asked: int
    passes: tuple[Pass, ...]
    facts: Facts
    # Of the last run that gave a row: for set-up by part and metrics.
    events: tuple[Event, ...]

    @property
    def runs(self) -> list[RunDetail]:
        found = [piece.run for one in self.passes for piece in one.pieces]
        return sorted(found, key=lambda row: (row.position, row.started_unix_s, row.id))

    @cached_property
    def result(self) -> ListResult:
        return over_runs([one.rows for one in self.passes], self.wanted)

    @property
    def whole(self) -> bool:
        """Return whether every requested pass is there, including failed rows."""
        return len(self.passes) >= self.asked and not any(one.missing(self.wanted) for one in self.passes)

    @property
    def exit_code(self) -> Exit:
        """Return the exit code; an incomplete run counts before a row without a number."""
        if not self.whole or not self.result.good:
            return Exit.RUN_FAILED
        return Exit.PART_FAILED if self.result.failed else Exit.DONE

    def shown_run(self) -> RunDetail | None:
        """Return a run to read the chip and the stack from: the last that gave a row, if any."""
        pieces = [piece for one in self.passes for piece in one.pieces]
        return next((piece.run for piece in reversed(pieces) if piece.rows), pieces[-1].run if pieces else None)


def read_list(ledger: Ledger, experiment: Experiment) -> ListedRuns:
    """Read everything about a list's experiment from the ledger."""
    runs = [row for row in ledger.runs_of(experiment.id) if row.role == "measured"]
    if not runs:
        raise SpecError(f"{experiment.id} has no run yet", hint=f"start again: {experiment.command or 'stackmark run'}")
    # The first run was to do all of it; somebody may have deleted it.
    spec = max((row.spec for row in runs), key=lambda spec: len(rows_of_spec(spec)))
    passes: dict[int, list[Piece]] = {}
    events: list[Event] = []
    lengths = []
    for row in runs:
        seen = read_stored(ledger.stream(row.id)).stream.events
        piece = read_piece(row, seen)
        if piece.rows:
            events = seen
        if row.spec == spec:
            lengths.append(_length(seen))
        passes.setdefault(row.position if row.pass_number is None else row.pass_number, []).append(piece)
    asked = experiment.request.get("runs")
    return ListedRuns(
        experiment=experiment,
        spec=spec,
        wanted=rows_of_spec(spec)[: max(lengths) or None],
        asked=min(asked, MOST_PASSES) if isinstance(asked, int) else len(passes),
        passes=tuple(Pass(number, tuple(pieces)) for number, pieces in sorted(passes.items())),
        facts=gathered_facts(events),
        events=tuple(events),
    )


def run_result(row: RunDetail, events: Sequence[Event]) -> ListResult | None:
    """Return what one run shows, also an invalid one, whose rows are stored but not a result. None if it is not a list."""
    wanted = rows_of_spec(row.spec) if is_list(row.workload) else ()
    return over_runs([rows_in(events)], wanted[: _length(events) or None]) if wanted else None


def read_piece(row: RunDetail, events: Sequence[Event]) -> Piece:
    """Read a piece; no row counts of a run that is invalid because of a hardware error, or not believed."""
    wanted = rows_of_spec(row.spec)
    believed = row.status != "invalid" and row.failure_kind not in NOT_BELIEVED
    rows = tuple(rows_in(events)) if believed else ()
    measured = any(isinstance(event, Phase) and event.phase == "measure" for event in events)
    died = row.status == "failed" and measured and row.failure_kind not in CUT_OFF | NOT_BELIEVED
    left = [index for index in wanted if index not in {one.index for one in rows}]
    return Piece(row, wanted, rows, left[0] if died and left else None)


def rows_in(events: Iterable[Event]) -> list[OpRow]:
    """Return the rows of the first rank, which reports for its group."""
    return [event.row for event in events if isinstance(event, Row) and event.rank == 0]


def _length(events: Iterable[Event]) -> int:
    """How many rows a run says that its list has; 0 where it did not come to say it."""
    found = 0
    for event in events:
        if isinstance(event, Phase) and event.phase == "measure" and event.expected_steps:
            found = max(found, event.expected_steps)
        elif isinstance(event, Row):
            found = max(found, event.of)
    return found


@dataclass(frozen=True)
class StartedList:
    experiment: Experiment
    resolved: Resolved
    passes: int


def start(
    request: Request,
    place: Place,
    ledger: Ledger,
    watcher: Watcher,
    runs: int | None,
    command: str,
    *,
    member: SuiteMember | None = None,
) -> StartedList:
    """Probe, and store the request: from here on `resume` can continue."""
    around = look_around(watcher.notice, [place.name])
    resolved = resolve(request, place, watcher)
    passes = LIST_RUNS if runs is None else runs
    asked = {**request.model_dump(mode="json"), "runs": passes, SURROUNDINGS: around.stored()}
    experiment = new_experiment(command=command, request=asked, member=member)
    begin(ledger, experiment, [(resolved.spec, place.name, place.options())])
    return StartedList(experiment, resolved, passes)


def go_through(
    started: StartedList, place: Place, ledger: Ledger, watcher: Watcher, time_limit_s: float | None
) -> None:
    """Run the passes one after another. If the first fails entirely, the others are not started."""
    recorder, spec = Recorder(ledger, started.experiment.id), started.resolved.spec
    if expected := of_one_arm(ledger, spec, place.name, started.passes):
        watcher.expects(expected)
    with recorder.claim():
        made = list(run_several(recorder, spec, place, watcher, started.passes, time_limit_s, in_passes=True))
        if len(made) < started.passes:
            watcher.notice(f"the first run failed: {counted(started.passes - 1, 'more run')} not started")


def carry_out(
    experiment: Experiment,
    ledger: Ledger,
    watcher: Watcher,
    *,
    time_limit_s: float | None = None,
    anyway: bool = False,
    failed: bool = False,
) -> None:
    """Run what is missing; with `failed` also, once, what failed. Interruptions pass through: what was finished is stored."""
    listed = read_list(ledger, experiment)
    again = _failed_rows(listed) if failed else set()
    if pieces_left(listed, again):
        _refuse_other_machine(listed, anyway)
        recorder = Recorder(ledger, experiment.id)
        with recorder.claim():
            _carry_out(recorder, experiment, ledger, watcher, time_limit_s, again)


def _carry_out(
    recorder: Recorder,
    experiment: Experiment,
    ledger: Ledger,
    watcher: Watcher,
    time_limit_s: float | None,
    again: set[tuple[int, int]],
) -> None:
    listed = read_list(ledger, experiment)
    check_spec(listed.spec)
    left = pieces_left(listed, again)
    like = listed.runs[0]
    place = find_place(like.place, like.place_options)
    fruitless = 0
    while left and fruitless < FRUITLESS:
        number, rows = left[0]
        again -= {(number, index) for index in rows}
        first = recorder.next_number()
        pieces = next((len(one.pieces) for one in listed.passes if one.number == number), 0)
        position = Position(number=first, of=first + len(left), pass_number=number, piece=pieces)
        row, _ = recorder.run(only(listed.spec, rows), position, place, watcher, time_limit_s)
        listed = read_list(ledger, experiment)
        fruitless = 0 if _brought_rows(listed, row) else fruitless + 1
        left = pieces_left(listed, again)
    if left:
        watcher.notice(f"{FRUITLESS} runs added no row; see why: stackmark show {row.id} --log")


def parts_in(listed: ListedRuns) -> list[Part]:
    """Return the parts of a stored list that need trust before they run: not typed here and not confirmed."""
    like = listed.runs[0]
    return parts_of([(listed.spec, like.place, like.place_options)])


def pieces_left(listed: ListedRuns, again: Container[tuple[int, int]] = ()) -> list[tuple[int, list[int]]]:
    """Return what is left to run: the number of a pass, and the rows of one process. `again` are done but wanted once more."""
    found = []
    for number in range(max(listed.asked, len(listed.passes))):
        one = next((one for one in listed.passes if one.number == number), Pass(number, ()))
        done = {row.index for row in one.rows if (number, row.index) not in again}
        missing = [index for index in listed.wanted if index not in done]
        together = [index for index in missing if index not in one.suspects]
        found += [(number, together)] if together else []
        found += [(number, [index]) for index in missing if index in one.suspects]
    return found


def _failed_rows(listed: ListedRuns) -> set[tuple[int, int]]:
    return {(one.number, row.index) for one in listed.passes for row in one.rows if row.failure_kind}


def only(spec: Spec, rows: list[int]) -> Spec:
    """Return the same spec with only these rows."""
    if tuple(rows) == rows_of_spec(spec):
        return spec
    return spec.model_copy(update={"params": {**spec.params, "rows": say_rows(rows)}})


def _brought_rows(listed: ListedRuns, row: RunRow) -> bool:
    piece = next(piece for one in listed.passes for piece in one.pieces if piece.run.id == row.id)
    return bool(piece.rows) or piece.killed is not None


def _refuse_other_machine(listed: ListedRuns, anyway: bool) -> None:
    if not anyway and any(run.machine_id != machine_name() for run in listed.runs):
        raise SpecError(
            f"{listed.experiment.id} was started on a different machine: its rows would mix two machines",
            hint="resume it there, start again here, or use --anyway",
            kind=OTHER_CHIP,
        )


def arm_list_runs(ledger: Ledger, rows: Sequence[RunDetail], runs: Sequence[ExaminedRun], arms: int) -> ArmRuns:
    """Read the rows of each arm's runs that count; nothing where the workload is not a list, or was read from a log."""
    if not is_list(rows[0].workload):
        return []
    of_arm: ArmRuns = [[] for _ in range(arms)]
    for row, run in zip(rows, runs, strict=True):
        if run.counted:
            of_arm[run.arm].append((run.block, rows_in(read_stored(ledger.stream(row.id)).stream.events)))
    return of_arm if any(found for arm in of_arm for _, found in arm) else []


def imported_list(rows: Sequence[RunDetail], runs: Sequence[ExaminedRun]) -> list[ListResult]:
    """Return the problems of an imported log, in which each is a run of its own; nothing where it is not of an operator."""
    operator = operator_of(rows[0].workload)
    if operator is None or len({row.workload for row in rows}) > 1:
        return []
    found = [_imported_row(operator, row, run) for row, run in zip(rows, runs, strict=True)]
    wanted = tuple(row.index for row in found)
    unit = found[0].unit
    total_s = sum(row.seconds or 0.0 for row in found)
    return [ListResult(tuple(found), wanted, (), unit, 1, None, len(wanted), None, total_s, 0.0)]


def _imported_row(operator: Operator, row: RunDetail, run: ExaminedRun) -> RowResult:
    """Make a row of a run: its one step is a call, and its rate says how much work that is."""
    params = row.spec.params
    seconds = run.step_s[0] if run.counted and run.step_s else None
    scale = RATE_SCALE.get(row.rate_unit or "")
    work = row.rate_per_s * seconds * scale if row.rate_per_s and seconds and scale else None
    of_bytes = row.rate_unit == BYTES_RATE
    return RowResult(
        index=row.position + 1,
        op=operator.name,
        shape={name: params[name] for name in operator.fields if name in params},
        precision=str(params.get("precision") or ""),
        operations=None if of_bytes else work,
        least_bytes=work if of_bytes else None,
        seconds=seconds,
        runs=int(seconds is not None),
        failure=None
        if seconds
        else RowFailure(row.failure_kind or row.status, row.failure_message or "no reason is known"),
    )


def arm_lists(of_arm: ArmRuns) -> list[ListResult]:
    """Sum up the list of each arm over its runs."""
    every = sorted({row.index for arm in of_arm for _, run in arm for row in run})
    return [over_runs([run for _, run in arm], every) for arm in of_arm]


def problems_of(lists: Sequence[ListResult], known: OperatorIndex, chip: str | None) -> tuple[OperatorProblem, ...]:
    """Put the rows of all arms next to each other, with what was published for each problem."""
    first: dict[int, RowResult] = {}
    for row in (row for one in lists for row in one.rows):
        first.setdefault(row.index, row)
    ordered = [first[index] for index in sorted(first)]
    if not ordered:
        return ()
    chips, published = published_for_list(
        known, ordered[0].op, [row.shape for row in ordered], ordered[0].precision, chip
    )
    by_index = [{row.index: row for row in one.rows} for one in lists]
    return tuple(
        OperatorProblem(
            row.index,
            say_problem(row.op, row.shape),
            tuple(rows.get(row.index) for rows in by_index),
            tuple(
                PublishedTime(chip_name, near.precision, near.seconds, near.row.source, near.row.date, near.caveats)
                for chip_name in chips
                if (near := found.get(chip_name))
            ),
        )
        for row, found in zip(ordered, published, strict=True)
    )


def list_ratios(labels: Sequence[str], of_arm: ArmRuns) -> tuple[ListRatio, ...]:
    """Compare every pair of arms row by row, by the blocks that both have."""
    by_block = [{block: run for block, run in arm if block is not None} for arm in of_arm]
    pairs = [
        compare_lists(labels[a], labels[b], by_block[a], by_block[b]) for a, b in combinations(range(len(by_block)), 2)
    ]
    return tuple(pair for pair in pairs if pair)


def list_doubts(labels: Sequence[str], lists: Sequence[ListResult]) -> list[str]:
    """Return where arms, or runs of one arm, did not time the same problems."""
    asked = {frozenset(row.index for row in one.rows) for one in lists}
    if len(asked) > 1:
        counts = ", ".join(
            f"{counted(len(one.rows), 'problem')} in {label}" for label, one in zip(labels, lists, strict=False)
        )
        return [f"the arms measured different rows: {counts}; give all arms the same --rows"]
    failed = [
        f"{counted(len(one.failed), 'problem')} in {label}"
        for label, one in zip(labels, lists, strict=False)
        if one.failed
    ]
    same = len({frozenset(row.index for row in one.failed) for one in lists}) <= 1
    if not failed or (same and all(row.seconds is None for one in lists for row in one.failed)):
        return []
    return [
        f"the arms measured different rows: {', '.join(failed)} gave no number; leave them out with --rows, or fix them"
    ]
