"""What `compare`, `resume` and `noise` do: an experiment is carried out, and its verdict printed.

Standard output holds the verdict and nothing else. With `--json` that is one object, also where an arm failed: then it has
what was stored so far, with `error` and `hint`. Whatever can be refused is refused before the first run.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pydantic import JsonValue

from stackmark.cli.saying import print_json, repeatable, say
from stackmark.cli.trusting import confirm_trust
from stackmark.cli.views import error_json, watching
from stackmark.errors import Exit, LedgerError, PlaceError, SpecError, StackmarkError, Terminated, WorkerError
from stackmark.experiments.arms import read_arms
from stackmark.experiments.caches import remove_cache
from stackmark.experiments.cleaning import clean_up
from stackmark.experiments.compare import (
    CompareRequest,
    carry_out,
    check_compare,
    design_of,
    parts_in,
    prepare_places,
    start,
)
from stackmark.experiments.design import MARGIN
from stackmark.experiments.examine import Comparison, Examined, examine
from stackmark.experiments.progress import StepTimes, progress
from stackmark.ledger.rows import Experiment, Kind
from stackmark.ledger.store import Ledger
from stackmark.show.console import is_screen, standard_output
from stackmark.show.verdict import print_verdict, verdict_json
from stackmark.spec import Request

# Failures of what was asked, which an experiment fixes: no mending elsewhere makes `resume` work.
ASKED_WRONGLY = ("no_figure", "bad_parameter")


@dataclass(frozen=True)
class Wanted:
    """What was typed beside the request; `asked` is the whole command line. `margin` is None where none was typed."""

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
    anyway: bool = False
    place_options: Mapping[str, JsonValue] = field(default_factory=dict)
    trusted: bool = False
    ledger: str | None = None
    as_json: bool = False
    asked: Sequence[str] = ()
    kind: Kind = "compare"


def compare(request: Request, wanted: Wanted) -> Exit:
    if wanted.published is not None:
        return _against_published(request, wanted)
    arms = read_arms(wanted.arms, request.workload, wanted.place_options)
    check_report(wanted.report)
    asked = CompareRequest(
        request=request, arms=arms, kind=wanted.kind, blocks=wanted.blocks,
        margin=MARGIN if wanted.margin is None else wanted.margin, until_decided=wanted.until_decided,
        pause_s=wanted.pause_s, most_repeats=wanted.repeats, seed=wanted.order_seed, primers=wanted.primers,
        command=repeatable(wanted.asked),
    )  # fmt: skip
    check_compare(asked)
    with Ledger.open(wanted.ledger) as book:
        # A ledger that is locked or read-only is found now, and not after the first run.
        book.writing(lambda _: None)
        try:
            with watching(quiet=wanted.as_json) as watcher:
                for sentence in clean_up(book):
                    watcher.notice(sentence)
                experiment = start(asked, book, watcher)
        except LedgerError:
            raise
        except StackmarkError as error:
            if wanted.as_json:
                print_json(error_json(request, error))
            raise
        return carry_on(experiment, book, wanted, prepared=True)


def carry_on(experiment: Experiment, book: Ledger, wanted: Wanted, *, prepared: bool = False) -> Exit:
    """Runs what is missing, then says what it shows: of an experiment that is finished, what it showed before."""
    design = design_of(experiment)
    if progress(design, book.runs_of(experiment.id), StepTimes(book)).open:
        with _unfinished(experiment, book, wanted):
            if not prepared:
                confirm_trust(parts_in(design), book.where, trusted=wanted.trusted)
                # Else each run would fail, and use up the blocks that may be repeated.
                prepare_places(design.arms)
            # The bar is gone before a verdict is printed: both may go to one screen.
            with watching(quiet=wanted.as_json) as watcher:
                carry_out(experiment, book, watcher, time_limit_s=wanted.time_limit_s, anyway=wanted.anyway)
        if not wanted.as_json and is_screen(standard_output()):
            print()  # between the runs that scrolled by and what they show
    else:
        remove_cache(experiment.id)
    return report(examine(book, experiment.id), wanted)


@contextmanager
def _unfinished(experiment: Experiment, book: Ledger, wanted: Wanted) -> Iterator[None]:
    """Where it ends before its design is whole: how to go on."""
    again = repeatable(["resume", experiment.id, *(("--ledger", wanted.ledger) if wanted.ledger else ())])
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        say(f"{experiment.id} is not finished", f"go on with: {again}")
        raise
    except (WorkerError, PlaceError, LedgerError) as error:
        rows = [] if isinstance(error, LedgerError) else book.runs_of(experiment.id)
        if wanted.as_json and rows:
            shown = verdict_json(examine(book, experiment.id))
            print_json({**shown, "error": error.message, "hint": error.hint})
        mended = f"{experiment.id} is not finished; when that is mended, go on with: {again}"
        if rows and rows[-1].failure_kind in ASKED_WRONGLY:
            mended = f"what was asked is fixed in {experiment.id}: to ask otherwise, begin anew"
        error.hint = f"{error.hint}\n{mended}" if error.hint else mended
        raise


def check_report(path: str | None) -> None:
    """Before anything is measured: minutes are long to wait for a wrong path to be found."""
    if path is None:
        return
    from stackmark.cli.report import check_target

    try:
        check_target(path)
    except SpecError as error:
        hint = "give a file that ends in .html or .md, in a folder that may be written"
        raise SpecError(f"--report: {error.message}", hint=hint) from error


def report(examined: Examined, wanted: Wanted) -> Exit:
    if wanted.as_json:
        print_json(verdict_json(examined))
    else:
        option = repeatable(["--ledger", wanted.ledger]).removeprefix("stackmark ") if wanted.ledger else ""
        print_verdict(examined, standard_output(), option)
    if wanted.report:
        from stackmark.cli.report import write_report

        write_report(examined, wanted.report)
    return exit_code(examined, wanted.fail_on)


def exit_code(examined: Examined, fail_on: Sequence[str]) -> Exit:
    """An experiment that ended without a whole design has no verdict: that is a failure. Else what --fail-on names."""
    if not examined.comparisons:
        # One arm alone has no verdict to have, and one that is still open none yet.
        return Exit.RUN_FAILED if len(examined.arms) > 1 and examined.state != "open" else Exit.DONE
    if any(is_named(comparison, fail_on) for comparison in examined.comparisons):
        return Exit.VERDICT_NAMED
    return Exit.RUN_FAILED if examined.state == "short" else Exit.DONE


def is_named(comparison: Comparison, fail_on: Sequence[str]) -> bool:
    """Tell whether --fail-on names this verdict. `different` is also a difference that is real and smaller than the margin."""
    named = {
        "slower": comparison.is_slower,
        "inconclusive": comparison.word == "INCONCLUSIVE",
        "different": comparison.is_slower or comparison.is_faster or comparison.difference is not None,
    }
    return any(named.get(one, False) for one in fail_on)


def _against_published(request: Request, wanted: Wanted) -> Exit:
    """One arm: so many runs of it, as `stackmark run` makes them, against a number that somebody printed."""
    if len(wanted.arms) != 1:
        raise SpecError(
            "--published takes one arm: a published number is the other side", hint="e.g. --arm host --published H200"
        )
    for option, given in (("--until-decided", wanted.until_decided), ("--report", wanted.report)):
        if given:
            raise SpecError(
                f"{option} needs two arms: runs against a published number are no experiment in blocks",
                hint="leave it out, or give another --arm instead of --published",
            )
    from stackmark.cli.measuring import Session, measure_all

    (arm,) = read_arms(wanted.arms, request.workload, wanted.place_options, least=1)
    session = Session(
        arm.place, wanted.ledger, wanted.blocks, wanted.time_limit_s, wanted.as_json, wanted.asked,
        published=wanted.published, place_options=arm.place_options, margin=wanted.margin,
        named=lambda comparison: is_named(comparison, wanted.fail_on),
    )  # fmt: skip
    return measure_all([request.model_copy(update={"params": {**request.params, **arm.typed}})], session)
