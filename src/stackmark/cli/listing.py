"""What `run` and `resume` do with a list of problems: it is gone through, and its table printed from what is stored."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import JsonValue

from stackmark.cli.list_views import list_json, list_view, say_missing
from stackmark.cli.saying import print_json, repeatable, say
from stackmark.cli.trusting import confirm_trust
from stackmark.cli.views import watching
from stackmark.errors import Exit, Terminated
from stackmark.experiments.cleaning import clean_up
from stackmark.experiments.operator_list import (
    ListedRuns,
    carry_out,
    go_through,
    parts_in,
    read_list,
    start,
)
from stackmark.ledger.rows import Experiment, RunDetail
from stackmark.ledger.store import Ledger
from stackmark.places.place import Place
from stackmark.published.lookup import known_operators
from stackmark.published.operators import OperatorIndex
from stackmark.show.console import standard_output
from stackmark.show.operators import ListView, RowView, print_list, print_rows
from stackmark.spec import Request, Spec
from stackmark.verdict.operators import ListResult
from stackmark.workloads.op.problem import say_rows

DEEPBENCH = "deepbench"


@dataclass(frozen=True)
class ListAsked:
    """How a list is to be measured and shown; `asked` is the whole command line, `form` the format that was named."""

    asked: Sequence[str]
    runs: int | None = None
    time_limit_s: float | None = None
    ledger: str | None = None
    as_json: bool = False
    form: str | None = None


def measure_list(request: Request, place: Place, book: Ledger, wanted: ListAsked) -> tuple[dict[str, JsonValue], Exit]:
    """Measured and, unless programs are to read it, printed. What there is of it in JSON, and the exit code."""
    repeat = repeatable(wanted.asked)
    # The bar is gone before a table is printed: both may go to one screen.
    with watching(quiet=wanted.as_json) as watcher:
        for sentence in clean_up(book):
            watcher.notice(sentence)
        started = start(request, place, book, watcher, wanted.runs, repeat)
        with _unfinished(started.experiment, book, wanted):
            go_through(started, place, book, watcher, wanted.time_limit_s)
    listed, known = read_list(book, started.experiment), known_operators(book)
    choices = started.resolved.choices
    show_list(listed, repeat, known, wanted, choices)
    return list_json(listed, repeat, known, choices), list_exit(listed)


def carry_on_list(
    experiment: Experiment,
    book: Ledger,
    wanted: ListAsked,
    *,
    anyway: bool = False,
    failed: bool = False,
    trusted: bool = False,
) -> Exit:
    """Runs what is missing, then shows all of it: of one that is whole, what it showed before."""
    known = known_operators(book)
    before = read_list(book, experiment)
    if failed or not before.whole:
        confirm_trust(parts_in(before), book.where, trusted=trusted)
    with _unfinished(experiment, book, wanted), watching(quiet=wanted.as_json) as watcher:
        carry_out(experiment, book, watcher, time_limit_s=wanted.time_limit_s, anyway=anyway, failed=failed)
    listed = read_list(book, experiment)
    if wanted.as_json:
        print_json(list_json(listed, experiment.command, known))
    show_list(listed, experiment.command, known, wanted)
    return list_exit(listed)


@contextmanager
def _unfinished(experiment: Experiment, book: Ledger, wanted: ListAsked) -> Iterator[None]:
    """Where somebody ends it: what there is, and how to go on."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        there = ("--ledger", wanted.ledger) if wanted.ledger else ()
        again, look = (repeatable([verb, experiment.id, *there]) for verb in ("resume", "show"))
        say(f"{experiment.id} is not finished", f"go on with: {again}\nsee what there is: {look}")
        raise


def show_list(
    listed: ListedRuns,
    repeat: str,
    known: OperatorIndex,
    wanted: ListAsked,
    choices: Mapping[str, str] | None = None,
) -> None:
    """In the form that was asked for; failures are also said on standard error where nothing else says them."""
    if wanted.form == DEEPBENCH:
        print_deepbench(listed.spec, listed.result)
    elif not wanted.as_json:
        print_list(list_view(listed, repeat, known, choices), standard_output())
        return
    for row in listed.result.failed:
        say(f"row {row.index}: {row.failure.message if row.failure else ''}")
    if not listed.whole:
        say(f"not done: {say_missing(listed)}")


def print_run_rows(row: RunDetail, result: ListResult) -> None:
    """The table of one run; what else there is of it follows."""
    rows = tuple(RowView(one) for one in result.rows)
    console = standard_output()
    print_rows(ListView(row.workload, result, rows), console)
    print(file=console.file)


def print_deepbench(spec: Spec, result: ListResult) -> None:
    from stackmark.show.deepbench_table import deepbench_table, left_out

    set_name = str(spec.params.get("set"))
    print(deepbench_table(spec.workload.partition("/")[2], set_name, result))
    if rows := left_out(set_name, result):
        numbers = say_rows(row.index for row in rows)
        say(f"not in the table: {numbers}, because a line has all passes of a shape, and others of theirs gave no time")


def list_exit(listed: ListedRuns) -> Exit:
    """A run that did not come to its end counts before a row that gave no number."""
    if not listed.whole or not listed.result.good:
        return Exit.RUN_FAILED
    return Exit.PART_FAILED if listed.result.failed else Exit.DONE
