"""What `compare`, `resume` and `noise` do: an experiment is carried out, and its verdict printed.

Standard output holds the verdict and nothing else. With `--json` that is one object, also where an arm failed: then it has
what was stored so far, with `error` and `hint`. Whatever can be refused is refused before the first run.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from stackmark.api.ledgers import Ledger
from stackmark.api.measuring import check_sample_hz, plan_arm, plan_compare, start_compare
from stackmark.api.options import repeatable
from stackmark.api.stored import Experiment, carry_out_compare
from stackmark.api.verdicts import Verdict
from stackmark.cli.options import check_junit
from stackmark.cli.saying import notice, print_json, say, watching
from stackmark.cli.trusting import confirm_trust
from stackmark.errors import Exit, LedgerError, PlaceError, SpecError, StackmarkError, Terminated, WorkerError
from stackmark.show.report import check_target
from stackmark.show.result import error_json
from stackmark.show.terminal import is_screen, standard_output
from stackmark.show.verdict import print_verdict
from stackmark.show.verdict_junit import unmeasured_junit
from stackmark.show.writing import STANDARD_OUTPUT, write_whole
from stackmark.spec import Request

# Failures of what was asked, which an experiment fixes: no mending elsewhere makes `resume` work.
ASKED_WRONGLY = ("no_figure", "bad_parameter")


@dataclass(frozen=True)
class Wanted:
    """What was typed besides the request; `asked` is the whole command line. `margin` is None where none was typed."""

    arms: Sequence[str] = ()
    blocks: int | None = None
    margin: float | None = None
    until_decided: bool = False
    pause_s: float = 0.0
    repeats: int = 2
    order_seed: int | None = None
    primers: bool = True
    published: str | None = None
    fail_on: Sequence[str] = ()
    time_limit_s: float | None = None
    report: str | None = None
    junit: str | None = None
    anyway: bool = False
    place_options: Mapping[str, JsonValue] = field(default_factory=dict)
    trusted: bool = False
    ledger: str | None = None
    as_json: bool = False
    asked: Sequence[str] = ()
    kind: Literal["compare", "noise"] = "compare"
    sample_hz: float | None = None
    # Everything that a verdict rests on, and not just the answer.
    details: bool = False


def compare(request: Request, wanted: Wanted) -> Exit:
    if wanted.published is not None:
        return _against_published(request, wanted)
    check_report(wanted.report)
    check_junit(wanted.junit, "compare.xml")
    asked = plan_compare(
        request, wanted.arms, place_options=wanted.place_options, kind=wanted.kind, blocks=wanted.blocks,
        margin=wanted.margin, until_decided=wanted.until_decided, pause_s=wanted.pause_s,
        most_repeats=wanted.repeats, seed=wanted.order_seed, primers=wanted.primers, command=repeatable(wanted.asked),
        sample_hz=check_sample_hz(wanted.sample_hz),
    )  # fmt: skip
    with Ledger.open(wanted.ledger) as book:
        try:
            with watching(quiet=wanted.as_json, details=wanted.details) as watcher:
                experiment = start_compare(asked, book, watcher)
        except LedgerError:
            raise
        except StackmarkError as error:
            if wanted.as_json:
                print_json(error_json(request, error))
            if wanted.junit:
                labels = [arm.label for arm in asked.arms]
                write_whole(Path(wanted.junit), unmeasured_junit(request.workload, labels, error.message).encode())
            raise
        return carry_on(experiment, wanted, prepared=True)


def carry_on(experiment: Experiment, wanted: Wanted, *, prepared: bool = False) -> Exit:
    """Run what is missing, then say what it shows: of an experiment that is finished, what it showed before."""
    if experiment.is_open():
        with _unfinished(experiment, wanted):
            if not prepared:
                experiment.prepare(confirm_trust(wanted.trusted))
            # The bar is gone before a verdict is printed: both may go to one screen.
            with watching(quiet=wanted.as_json, details=wanted.details) as watcher:
                carry_out_compare(experiment, watcher, time_limit_s=wanted.time_limit_s, anyway=wanted.anyway)
        if not wanted.as_json and is_screen(standard_output()):
            print()  # between the runs that scrolled by and what they show
    else:
        experiment.remove_cache()
    return report(experiment.verdict(), wanted)


@contextmanager
def _unfinished(experiment: Experiment, wanted: Wanted) -> Iterator[None]:
    """Where it ends before its design is whole: how to go on."""
    again = repeatable(["resume", experiment.id, *(("--ledger", wanted.ledger) if wanted.ledger else ())])
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        say(f"{experiment.id} is not finished", f"go on with: {again}")
        raise
    except (WorkerError, PlaceError, LedgerError) as error:
        rows = () if isinstance(error, LedgerError) else experiment.runs()
        if wanted.as_json and rows:
            print_json({**experiment.verdict().to_dict(), "error": error.message, "hint": error.hint})
        if wanted.junit and rows:
            write_junit(experiment.verdict(), wanted, error.message)
        mended = f"{experiment.id} is not finished; when that is mended, go on with: {again}"
        if rows and rows[-1].failure_kind in ASKED_WRONGLY:
            mended = f"what was asked is fixed in {experiment.id}: to change it, start a new comparison"
        error.hint = f"{error.hint}\n{mended}" if error.hint else mended
        raise


def check_report(path: str | None) -> None:
    """Before anything is measured: minutes are long to wait for a wrong path to be found."""
    if path is None:
        return
    try:
        check_target(path)
    except SpecError as error:
        # Only `report` has --format.
        by_name = "--format" in (error.hint or "")
        hint = "give a file that ends in .html, .md or .pdf" if by_name else error.hint
        raise SpecError(f"--report: {error.message}", hint=hint) from error


def report(found: Verdict, wanted: Wanted) -> Exit:
    """Print a verdict, write its report where one was asked for, and return the exit code."""
    if wanted.as_json:
        print_json(found.to_dict())
    else:
        option = repeatable(["--ledger", wanted.ledger]).removeprefix("stackmark ") if wanted.ledger else ""
        print_verdict(found.examined, standard_output(), option, reported=bool(wanted.report), details=wanted.details)
    if wanted.report:
        say_written(found, found.report(wanted.report))
    if wanted.junit:
        write_junit(found, wanted)
    return found.exit_code(wanted.fail_on)


def write_junit(found: Verdict, wanted: Wanted, trouble: str = "") -> None:
    assert wanted.junit
    write_whole(Path(wanted.junit), found.junit(wanted.fail_on, trouble).encode())


def say_written(found: Verdict, path: Path) -> None:
    if path != STANDARD_OUTPUT:
        notice(f"report of {found.examined.experiment_id} written to {path}")


def _against_published(request: Request, wanted: Wanted) -> Exit:
    """Measure one arm, with runs as `stackmark run` makes them, against a published number."""
    if len(wanted.arms) != 1:
        raise SpecError(
            "--published takes one arm: a published number is the other side", hint="e.g. --arm host --published H200"
        )
    for option, given in (
        ("--until-decided", wanted.until_decided),
        ("--report", wanted.report),
        ("--junit", wanted.junit),
    ):
        if given:
            raise SpecError(
                f"{option} needs two arms: runs against a published number are no experiment in blocks",
                hint="leave it out, or give another --arm instead of --published",
            )
    from stackmark.cli.measuring import Session, measure_all

    plan = plan_arm(
        request, wanted.arms[0], place_options=wanted.place_options, runs=wanted.blocks,
        sample_hz=check_sample_hz(wanted.sample_hz), time_limit_s=wanted.time_limit_s,
        published=wanted.published, margin=wanted.margin,
        command=repeatable(wanted.asked),
    )  # fmt: skip
    return measure_all([plan], Session(wanted.ledger, wanted.as_json, wanted.fail_on, details=wanted.details))
