"""What `stackmark run` does: each request is measured and its result printed, one after another.

Standard output holds results and nothing else. With `--json` that is one object or, where nothing was begun, nothing:
whatever happened to each request stands in it, and what went wrong is said in words on standard error as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from stackmark.api import Ledger, Measurement, RunPlan, carry_out_run, is_named, plan_run
from stackmark.cli.listing import show_list, unfinished_list
from stackmark.cli.saying import print_json, repeatable, say
from stackmark.errors import Exit, LedgerError, StackmarkError
from stackmark.experiments.result import RunResult
from stackmark.show.live import watching
from stackmark.show.result import error_json
from stackmark.show.terminal import standard_output
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
    fail_on: Sequence[str] = ()
    # Another program's table instead of ours.
    form: str | None = None


def measure_all(requests: Sequence[Request], session: Session) -> Exit:
    plans = [
        plan_run(
            request, on=session.place, place_options=session.place_options, runs=session.runs,
            time_limit_s=session.time_limit_s, published=session.published, margin=session.margin,
            command=repeatable(session.asked),
        )
        for request in requests
    ]  # fmt: skip
    results: list[dict[str, Any]] = []
    codes: list[Exit] = []
    with Ledger.open(session.ledger) as book:
        # Before anything is measured: a minute is long to wait for a typo to be found.
        for plan in plans:
            plan.check(book)
        for plan in plans:
            try:
                found = _measured(plan, book, session)
            except LedgerError:
                raise
            except StackmarkError as error:
                results.append(error_json(plan.request, error))
                codes.append(error.exit_code)
                if len(plans) == 1:
                    if session.as_json:
                        print_json({"results": results})
                    raise
                say(f"{plan.request.workload}: {error.message}", error.hint, error.command)
            else:
                results.append(found.to_dict() if session.as_json else {})
                codes.append(_exit_code(found, session))
    if session.as_json:
        print_json({"results": results})
    if len(codes) == 1:
        return codes[0]
    return Exit.PART_FAILED if any(codes) else Exit.DONE


def _measured(plan: RunPlan, book: Ledger, session: Session) -> Measurement:
    """Measure one request and print its result. A failure is also said on standard error where nothing else said it."""
    # The bar is gone before a result is printed: both may go to one screen.
    with watching(quiet=session.as_json) as watcher:
        found = carry_out_run(plan, book, watcher, lambda experiment: unfinished_list(experiment, session.ledger))
    if not isinstance(found.result, RunResult):
        show_list(found.result, session.as_json, session.form)
    elif session.as_json:
        for row in found.result.measured.failed:
            say(f"run {row.id}: {row.failure_message or row.failure_kind}", row.failure_hint)
    else:
        found.print(standard_output())
    return found


def _exit_code(found: Measurement, session: Session) -> Exit:
    held = found.result.against if isinstance(found.result, RunResult) else None
    return Exit.VERDICT_NAMED if held and is_named(held.comparison, session.fail_on) else found.exit_code
