"""A list of problems as the ledger has it: which run did which rows, what is missing, and what it all shows.

A pass is one way through the whole list. It is one run, one fresh process; where that was cut off, later runs took what was
left, and the pieces together are the pass (`block` is its number, `attempt` the number of the piece). Nothing is lost with a
process but the row that it was at.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from stackmark.errors import Exit, SpecError
from stackmark.events import Event, OpRow, Phase, Row, gathered_facts
from stackmark.experiments.deciding import CUT_OFF
from stackmark.experiments.judging import Facts, read_stored
from stackmark.experiments.list_specs import is_list, problem_of, rows_of_spec
from stackmark.ledger.rows import Experiment, RunDetail
from stackmark.ledger.store import Ledger
from stackmark.spec import Spec
from stackmark.verdict.operators import ListResult as ListResult
from stackmark.verdict.operators import RowResult as RowResult
from stackmark.verdict.operators import over_runs

# As many as `--runs` takes; a ledger may hold any number.
MOST_PASSES = 1000
# What a chip did wrong once is not undone by a later run in which it did not.
NEVER_FORGOTTEN = {"wrong_result", "hardware_error"}
# What the worker of such a run said was refused, its rows included.
NOT_BELIEVED = {"impossible_result", "not_enforced"}


def is_listed(ledger: Ledger, experiment: Experiment) -> bool:
    """Whether an experiment's runs went through a list. Rows of somebody's log (`import`) are runs of their own."""
    rows = ledger.runs_of(experiment.id) if experiment.kind == "run" else []
    return bool(rows) and is_list(rows[0].workload)


@dataclass(frozen=True)
class Piece:
    """One run: what it was to do, and what it did. `died_at` is the row at which its process ended, where it is to blame."""

    run: RunDetail
    wanted: tuple[int, ...]
    rows: tuple[OpRow, ...]
    died_at: int | None = None

    @property
    def killed(self) -> OpRow | None:
        """A row that ended its process while it was the only one: it has failed, in the words of its run."""
        if self.died_at is None or len(self.wanted) > 1:
            return None
        problem = problem_of(self.run.spec, self.died_at)
        return OpRow(
            index=self.died_at,
            op=problem.op,
            shape=dict(problem.shape),
            precision=str(self.run.spec.params.get("precision") or ""),
            failure_kind=self.run.failure_kind or "crash",
            failure_message=f"it ended its process: {self.run.failure_message or 'no reason is known'}",
            failure_hint=self.run.failure_hint or "",
        )


@dataclass(frozen=True)
class Pass:
    number: int
    pieces: tuple[Piece, ...]

    @cached_property
    def rows(self) -> tuple[OpRow, ...]:
        """What its pieces did; a row that failed and was done again later counts as it was done then."""
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
        """Rows that ended a process with others still to do: they are taken again last, each alone."""
        return {piece.died_at for piece in self.pieces if piece.died_at is not None and len(piece.wanted) > 1}


@dataclass(frozen=True)
class ListedRuns:
    """A list's experiment, whole or not."""

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
        """Whether every pass that was asked for is there, failed rows and all."""
        return len(self.passes) >= self.asked and not any(one.missing(self.wanted) for one in self.passes)

    @property
    def exit_code(self) -> Exit:
        """A run that did not come to its end counts before a row that gave no number."""
        if not self.whole or not self.result.good:
            return Exit.RUN_FAILED
        return Exit.PART_FAILED if self.result.failed else Exit.DONE

    def shown_run(self) -> RunDetail | None:
        """A run to read the chip and the stack from: the last that gave a row, if there is one."""
        pieces = [piece for one in self.passes for piece in one.pieces]
        return next((piece.run for piece in reversed(pieces) if piece.rows), pieces[-1].run if pieces else None)


def read_list(ledger: Ledger, experiment: Experiment) -> ListedRuns:
    """Everything about a list's experiment, from what is stored."""
    runs = [row for row in ledger.runs_of(experiment.id) if row.role == "measured"]
    if not runs:
        raise SpecError(f"{experiment.id} has no run yet", hint=f"begin anew: {experiment.command or 'stackmark run'}")
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
        passes.setdefault(row.position if row.block is None else row.block, []).append(piece)
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
    """What one run shows, by itself; also of one that is invalid, whose rows are kept and are no result. None of no list."""
    wanted = rows_of_spec(row.spec) if is_list(row.workload) else ()
    return over_runs([rows_in(events)], wanted[: _length(events) or None]) if wanted else None


def read_piece(row: RunDetail, events: Sequence[Event]) -> Piece:
    """Of a run that an error of the hardware made invalid, or that is not believed, no row counts."""
    wanted = rows_of_spec(row.spec)
    believed = row.status != "invalid" and row.failure_kind not in NOT_BELIEVED
    rows = tuple(rows_in(events)) if believed else ()
    measured = any(isinstance(event, Phase) and event.phase == "measure" for event in events)
    died = row.status == "failed" and measured and row.failure_kind not in CUT_OFF | NOT_BELIEVED
    left = [index for index in wanted if index not in {one.index for one in rows}]
    return Piece(row, wanted, rows, left[0] if died and left else None)


def rows_in(events: Iterable[Event]) -> list[OpRow]:
    """Of the first rank, which speaks for its group."""
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
