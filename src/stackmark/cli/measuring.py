"""What `stackmark run` does: each request is measured and its result printed, one after another.

Standard output holds results and nothing else. With `--json` that is one object or, where nothing was begun, nothing:
whatever happened to each request stands in it, and what went wrong is said in words on standard error as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stackmark.api.ledgers import Ledger
from stackmark.api.measuring import RunPlan, carry_out_run
from stackmark.api.stored import Measurement, RunResult, is_named
from stackmark.cli.listing import show_list, unfinished_list
from stackmark.cli.saying import print_json, say
from stackmark.errors import Exit, LedgerError, StackmarkError
from stackmark.show.live import watching
from stackmark.show.result import error_json
from stackmark.show.terminal import standard_output


@dataclass(frozen=True)
class Session:
    """Where results are kept, and how they are shown."""

    ledger: str | None
    as_json: bool
    # Which verdicts against a published row end with their own exit code.
    fail_on: Sequence[str] = ()
    # Another program's table instead of ours.
    form: str | None = None


def measure_all(plans: Sequence[RunPlan], session: Session) -> Exit:
    """Measure one after another; what fails is said, and stops no other."""
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
        found = carry_out_run(plan, book, watcher, lambda experiment: unfinished_list(experiment.id, session.ledger))
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
