"""What `stackmark run` does: each request is measured and its result printed, one after another.

Standard output holds results and nothing else. With `--json` that is one object or, where nothing was begun, nothing:
whatever happened to each request stands in it, and what went wrong is said in words on standard error as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from stackmark.cli.listing import ListAsked, measure_list
from stackmark.cli.saying import print_json, repeatable, say
from stackmark.cli.views import error_json, held_against, result_json, result_view, unit_of, watching
from stackmark.errors import Exit, LedgerError, SpecError, StackmarkError
from stackmark.experiments.arms import read_arms
from stackmark.experiments.cleaning import clean_up
from stackmark.experiments.examine import Comparison
from stackmark.experiments.limits import limits_of_measured
from stackmark.experiments.list_specs import is_list
from stackmark.experiments.placing import find_place
from stackmark.experiments.run import Measured, measure
from stackmark.ledger.store import Ledger
from stackmark.places.place import Place
from stackmark.published.lookup import Reference, find_reference, known_rows
from stackmark.published.table import Published
from stackmark.show.console import standard_output
from stackmark.show.result import ResultView, print_result
from stackmark.spec import Request


@dataclass(frozen=True)
class Session:
    """What was typed beside the requests; `asked` is the whole command line."""

    place: str
    ledger: str | None
    runs: int | None
    time_limit_s: float | None
    as_json: bool
    asked: Sequence[str]
    # Free text that names a published row to hold the result against.
    published: str | None = None
    # Options of the place that were given on their own: --shm 1g.
    place_options: Mapping[str, JsonValue] = field(default_factory=dict)
    # Against the published row: another margin than the usual 5 %, and which verdicts end with their own exit code.
    margin: float | None = None
    named: Callable[[Comparison], bool] = lambda _: False
    # Another program's table instead of ours.
    form: str | None = None


def place_of(text: str, workload: str, options: Mapping[str, JsonValue]) -> Place:
    """`container`, or `container,shm=1g` as an arm is written; a parameter of the workload has its own option."""
    arm = read_arms([text], workload, options, least=1)[0]
    if arm.typed:
        name = next(iter(arm.typed))
        raise SpecError(
            f"{name} in {text!r} is a parameter of the workload", hint=f"give it as --{name.replace('_', '-')}"
        )
    return find_place(arm.place, arm.place_options)


def measure_all(requests: Sequence[Request], session: Session) -> Exit:
    places = [place_of(session.place, request.workload, session.place_options) for request in requests]
    results: list[dict[str, Any]] = []
    codes: list[Exit] = []
    with Ledger.open(session.ledger) as book:
        rows = known_rows(book)
        # Before anything is measured: a minute is long to wait for a typo to be found.
        references = [_reference(request, session.published, rows) for request in requests]
        for request, place, reference in zip(requests, places, references, strict=True):
            try:
                made, code = _measured(request, place, book, rows, reference, session)
            except LedgerError:
                raise
            except StackmarkError as error:
                results.append(error_json(request, error))
                codes.append(error.exit_code)
                if len(requests) == 1:
                    if session.as_json:
                        print_json({"results": results})
                    raise
                say(f"{request.workload}: {error.message}", error.hint, error.command)
            else:
                results.append(made)
                codes.append(code)
    if session.as_json:
        print_json({"results": results})
    if len(codes) == 1:
        return codes[0]
    return Exit.PART_FAILED if any(codes) else Exit.DONE


def _measured(
    request: Request,
    place: Place,
    book: Ledger,
    rows: Sequence[Published],
    reference: Reference | None,
    session: Session,
) -> tuple[dict[str, Any], Exit]:
    """One request, measured and printed: what programs get of it, and its exit code."""
    repeat = repeatable(session.asked)
    if is_list(request.workload):
        wanted = ListAsked(
            session.asked, session.runs, session.time_limit_s, session.ledger, session.as_json, session.form
        )
        return measure_list(request, place, book, wanted)
    # The bar is gone before a result is printed: both may go to one screen.
    with watching(quiet=session.as_json) as watcher:
        for sentence in clean_up(book):
            watcher.notice(sentence)
        measured = measure(
            request, place=place, ledger=book, runs=session.runs, watcher=watcher,
            time_limit_s=session.time_limit_s, command=repeat,
        )  # fmt: skip
    held = held_against(measured, reference, session.margin)
    limits = limits_of_measured(book, measured)
    code = _report(measured, result_view(measured, repeat, rows, held, limits), session.as_json)
    made = result_json(measured, repeat, rows, held, limits)
    return made, Exit.VERDICT_NAMED if held and session.named(held.comparison) else code


def _reference(request: Request, text: str | None, rows: Sequence[Published]) -> Reference | None:
    if text is None:
        return None
    if is_list(request.workload):
        raise SpecError(
            f"--published holds one rate against one row, and {request.workload} is a list",
            hint="leave it out: published times stand beside each problem of the list that has any",
        )
    return find_reference(text, request.workload, request.typed(), unit_of(request.workload), rows)


def _report(measured: Measured, view: ResultView, as_json: bool) -> Exit:
    """Prints the result. A failure is also said on standard error where nothing else said it."""
    if as_json:
        for row in measured.failed:
            say(f"run {row.id}: {row.failure_message or row.failure_kind}", row.failure_hint)
    else:
        print_result(view, standard_output())
    return Exit.RUN_FAILED if measured.failed else Exit.DONE
