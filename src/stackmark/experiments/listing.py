"""Going through a list of problems: so many passes, each a fresh process, and what a cut off pass has left, later.

A run that ends in the middle (somebody pressed Ctrl-C, the time was up, a library crashed in row 57) keeps the rows it had.
`carry_on` makes a new run in the same experiment that takes just the missing ones. A row that ended its process is taken again
last and alone, so that it can end no other; if it ends that process too, it is a failed row in its run's words. Failed rows are
not tried again unless somebody asks for it: most of them failed for want of memory or of a precision, and would again.
"""

import time
from collections.abc import Container
from dataclasses import dataclass

from stackmark.errors import SpecError
from stackmark.experiments.driver import claim, machine_name
from stackmark.experiments.list_specs import rows_of_spec
from stackmark.experiments.listed import ListedRuns, Pass, read_list
from stackmark.experiments.placing import find_place
from stackmark.experiments.run import Place, Resolved, Slot, resolve, run_once
from stackmark.experiments.trust import Part, parts_of, remember
from stackmark.experiments.watching import Watcher
from stackmark.ids import new_id
from stackmark.ledger.rows import Experiment, RunRow
from stackmark.ledger.store import Ledger
from stackmark.spec import Request, Spec
from stackmark.units import counted
from stackmark.workloads.op.problem import say_rows
from stackmark.workloads.registry import check_spec

# Three passes tell a slow process from a slow chip; a list is long, and a row's own samples say the rest.
LIST_RUNS = 3
# So many runs one after another that bring no row further: what is wrong then is not a row.
FRUITLESS = 3


@dataclass(frozen=True)
class Begun:
    experiment: Experiment
    resolved: Resolved
    passes: int


def begin(request: Request, place: Place, ledger: Ledger, watcher: Watcher, runs: int | None, command: str) -> Begun:
    """Probes, and stores what was asked: from here on `resume` can go on."""
    resolved = resolve(request, place, watcher)
    passes = LIST_RUNS if runs is None else runs
    experiment = Experiment(
        id=new_id("x"),
        created_unix_s=time.time(),
        command=command,
        request={**request.model_dump(mode="json"), "runs": passes},
    )
    ledger.start_experiment(experiment)
    remember(parts_of([(resolved.spec, place.name, place.options())]))
    return Begun(experiment, resolved, passes)


def go_through(begun: Begun, place: Place, ledger: Ledger, watcher: Watcher, time_limit_s: float | None) -> None:
    """The passes, one after another. Where the first fails whole, the others would too, and are not begun."""
    with claim(ledger, begun.experiment.id):
        for number in range(begun.passes):
            slot = Slot(position=number, of=begun.passes, block=number)
            row, _ = run_once(begun.resolved.spec, begun.experiment.id, slot, place, ledger, watcher, time_limit_s)
            if row.status == "failed" and number == 0:
                if begun.passes > 1:
                    watcher.notice(f"the first run failed: {counted(begun.passes - 1, 'more run')} not started")
                return


def carry_on(
    experiment: Experiment,
    ledger: Ledger,
    watcher: Watcher,
    *,
    time_limit_s: float | None = None,
    anyway: bool = False,
    failed: bool = False,
) -> None:
    """Runs what is missing; with `failed` also, once, what failed. Interruptions pass through: what was finished is stored."""
    listed = read_list(ledger, experiment)
    again = _failed_rows(listed) if failed else set()
    if pieces_left(listed, again):
        _refuse_other_machine(listed, anyway)
        with claim(ledger, experiment.id):
            _carry_on(experiment, ledger, watcher, time_limit_s, again)


def _carry_on(
    experiment: Experiment, ledger: Ledger, watcher: Watcher, time_limit_s: float | None, again: set[tuple[int, int]]
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
        position = max(run.position for run in listed.runs) + 1
        pieces = next((len(one.pieces) for one in listed.passes if one.number == number), 0)
        slot = Slot(position=position, of=position + len(left), block=number, attempt=pieces)
        row, _ = run_once(only(listed.spec, rows), experiment.id, slot, place, ledger, watcher, time_limit_s)
        listed = read_list(ledger, experiment)
        fruitless = 0 if _brought_rows(listed, row) else fruitless + 1
        left = pieces_left(listed, again)
    if left:
        watcher.notice(f"{FRUITLESS} runs brought it no row further; see why: stackmark show {row.id} --log")


def parts_in(listed: ListedRuns) -> list[Part]:
    """What of a stored list is not to be run unless it was typed here or confirmed."""
    like = listed.runs[0]
    return parts_of([(listed.spec, like.place, like.place_options)])


def pieces_left(listed: ListedRuns, again: Container[tuple[int, int]] = ()) -> list[tuple[int, list[int]]]:
    """What is still to be run: the number of a pass, and the rows of one process. `again` are done, and wanted once more."""
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
    """The same spec with just these rows."""
    if tuple(rows) == rows_of_spec(spec):
        return spec
    return spec.model_copy(update={"params": {**spec.params, "rows": say_rows(rows)}})


def _brought_rows(listed: ListedRuns, row: RunRow) -> bool:
    piece = next(piece for one in listed.passes for piece in one.pieces if piece.run.id == row.id)
    return bool(piece.rows) or piece.killed is not None


def _refuse_other_machine(listed: ListedRuns, anyway: bool) -> None:
    if not anyway and any(run.machine_id != machine_name() for run in listed.runs):
        raise SpecError(
            f"{listed.experiment.id} was begun on another machine: its rows would be of two machines",
            hint="resume it there, begin anew here, or take --anyway",
        )
