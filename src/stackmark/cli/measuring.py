"""What `stackmark run` does: each request is measured and its result printed, one after another.

Standard output holds results and nothing else. With `--json` that is one object or, where nothing was begun, nothing:
whatever happened to each request stands in it, and what went wrong is said in words on standard error as well.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from stackmark.api.ledgers import Ledger
from stackmark.api.measuring import ExperimentRow, RunPlan, carry_out_run, is_list
from stackmark.api.options import repeatable
from stackmark.api.stored import Experiment, Measurement, RunResult, go_on_run, load, prepare_run
from stackmark.api.verdicts import is_named
from stackmark.cli.listing import say_unfinished, show_list, unfinished
from stackmark.cli.saying import print_json, say, watching
from stackmark.cli.trusting import confirm_trust
from stackmark.errors import Exit, LedgerError, StackmarkError, Terminated
from stackmark.schemas import with_schema
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
    # Everything about a result, and not just the answer.
    details: bool = False

    def print(self, found: Measurement) -> None:
        """Print a result; what it tells to type next names the ledger that was typed."""
        option = repeatable(["--ledger", self.ledger]).removeprefix("stackmark ") if self.ledger else ""
        found.print(standard_output(), details=self.details, ledger=option)


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
                found = _measured(plan, book, session, results)
            except LedgerError:
                raise
            except (KeyboardInterrupt, Terminated):
                if session.as_json and results:
                    print_json(with_schema("run", {"results": results}))
                raise
            except StackmarkError as error:
                results.append(error_json(plan.request, error))
                codes.append(error.exit_code)
                if len(plans) == 1:
                    if session.as_json:
                        print_json(with_schema("run", {"results": results}))
                    raise
                say(f"{plan.request.workload}: {error.message}", error.hint, error.command)
            else:
                results.append(found.to_dict() if session.as_json else {})
                codes.append(_exit_code(found, session))
    if session.as_json:
        print_json(with_schema("run", {"results": results}))
    if len(codes) == 1:
        return codes[0]
    return Exit.PART_FAILED if any(codes) else Exit.DONE


def _measured(plan: RunPlan, book: Ledger, session: Session, results: list[dict[str, Any]]) -> Measurement:
    """Measure one request and print its result. A failure is also said on standard error where nothing else said it.

    Interrupted, it prints what there is, or adds it to `results`.
    """
    begun: list[str] = []

    def around(experiment: ExperimentRow) -> AbstractContextManager[None]:
        if is_list(plan.request.workload):
            return unfinished(experiment.id, session.ledger)
        begun.append(experiment.id)
        return nullcontext()

    try:
        # The bar is gone before a result is printed: both may go to one screen.
        with watching(quiet=session.as_json, details=session.details) as watcher:
            found = carry_out_run(plan, book, watcher, around)
    except (KeyboardInterrupt, Terminated):
        with suppress(LedgerError):
            for experiment_id in begun:
                results += show_unfinished(load(experiment_id, book), session)
        raise
    if not isinstance(found.result, RunResult):
        show_list(found.result, session.as_json, session.form)
    elif session.as_json:
        for row in found.result.measured.failed:
            say(f"run {row.id}: {row.failure_message or row.failure_kind}", row.failure_hint)
    else:
        session.print(found)
    return found


def _exit_code(found: Measurement, session: Session) -> Exit:
    held = found.result.against if isinstance(found.result, RunResult) else None
    return Exit.VERDICT_NAMED if held and is_named(held.comparison, session.fail_on) else found.exit_code


def show_unfinished(experiment: Experiment, session: Session) -> list[dict[str, Any]]:
    """Show what a `run` that was interrupted has, and how to go on; return it for `--json`."""
    found = experiment.measured()
    if found is not None and found.rate_per_s is not None and not session.as_json:
        session.print(found)  # which says how many runs are missing, and how to go on
    else:
        say_unfinished(experiment.id, session.ledger)
    return [found.to_dict()] if found is not None and session.as_json else []


def resume_run(
    experiment: Experiment, session: Session, *, time_limit_s: float | None, anyway: bool, trusted: bool
) -> Exit:
    """Make the missing runs, then show all of them: of one that is whole, what it showed before."""
    prepare_run(experiment, confirm_trust(trusted))
    try:
        with watching(quiet=session.as_json, details=session.details) as watcher:
            go_on_run(experiment, watcher, time_limit_s=time_limit_s, anyway=anyway)
    except (KeyboardInterrupt, Terminated):
        with suppress(LedgerError):
            show_unfinished(experiment, session)
        raise
    found = experiment.measured()
    assert found is not None  # `go_on_run` refuses an experiment without runs of one spec
    if session.as_json:
        print_json(with_schema("run", {"results": [found.to_dict()]}))
    else:
        session.print(found)
    return found.exit_code
