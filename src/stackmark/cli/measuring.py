"""What `stackmark run` does: each request is measured and its result printed, one after another.

Standard output holds results and nothing else. With `--json` that is one object or, where nothing was begun, nothing:
whatever happened to each request stands in it, and what went wrong is said in words on standard error as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stackmark.cli.saying import print_json, repeatable, say
from stackmark.cli.views import error_json, result_json, result_view, watching
from stackmark.errors import Exit, LedgerError, StackmarkError
from stackmark.lab.cleaning import clean_up
from stackmark.lab.placing import find_place
from stackmark.lab.run import Measured, measure
from stackmark.ledger.store import Ledger
from stackmark.show.console import standard_output
from stackmark.show.result import print_result
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


def measure_all(requests: Sequence[Request], session: Session) -> Exit:
    place = find_place(session.place)
    repeat = repeatable(session.asked)
    results: list[dict[str, Any]] = []
    codes: list[Exit] = []
    with Ledger.open(session.ledger) as book:
        for request in requests:
            try:
                # The bar is gone before a result is printed: both may go to one screen.
                with watching(quiet=session.as_json) as watcher:
                    for sentence in clean_up(book):
                        watcher.notice(sentence)
                    measured = measure(
                        request, place=place, ledger=book, runs=session.runs, watcher=watcher,
                        time_limit_s=session.time_limit_s, command=repeat,
                    )  # fmt: skip
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
                results.append(result_json(measured, repeat))
                codes.append(_report(measured, repeat, session.as_json))
    if session.as_json:
        print_json({"results": results})
    if len(codes) == 1:
        return codes[0]
    return Exit.PART_FAILED if any(codes) else Exit.DONE


def _report(measured: Measured, repeat: str, as_json: bool) -> Exit:
    """Prints the result. A failure is also said on standard error where nothing else said it."""
    if as_json:
        for row in measured.failed:
            say(f"run {row.id}: {row.failure_message or row.failure_kind}", row.failure_hint)
    else:
        print_result(result_view(measured, repeat), standard_output())
    return Exit.RUN_FAILED if measured.failed else Exit.DONE
