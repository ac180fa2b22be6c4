"""What `cluster sweep` does: a sweep is carried out, and what it shows is printed, for people, programs and test reports.

Standard output holds the result and nothing else. Whatever can be refused is refused before the first pod.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from pydantic import JsonValue

from stackmark.api.options import repeatable
from stackmark.cli.saying import print_json, say
from stackmark.cli.trusting import confirm_trust
from stackmark.errors import Exit, LedgerError, SpecError, StackmarkError, Terminated
from stackmark.experiments.cleaning import clean_up
from stackmark.experiments.manifesting import read_pod_options
from stackmark.experiments.sweep import sweep as lab
from stackmark.experiments.sweep.sweep import Swept
from stackmark.ledger.rows import Experiment
from stackmark.ledger.store import Ledger
from stackmark.show.junit import render_junit
from stackmark.show.live import watching
from stackmark.show.result import error_json
from stackmark.show.sweep import junit_cases, looking, print_sweep, sweep_json
from stackmark.show.terminal import standard_output
from stackmark.show.writing import check_writable, write_whole
from stackmark.spec import Request
from stackmark.units import say_moment


@dataclass(frozen=True)
class Wanted:
    """What was typed beside the request; `asked` is the whole command line."""

    nodes: str | None = None
    margin: float = 0.01
    confirm: int | None = None
    more_runs: int | None = None
    at_once: int | None = None
    one_a_node: bool = False
    output: Path | None = None
    junit: str | None = None
    fail_on_slow: bool = False
    time_limit_s: float | None = None
    place_options: Mapping[str, JsonValue] = field(default_factory=dict)
    trusted: bool = False
    ledger: str | None = None
    as_json: bool = False
    asked: Sequence[str] = ()


def sweep(request: Request, wanted: Wanted) -> Exit:
    check_files(wanted)
    asked = lab.SweepRequest(
        request=request,
        options=read_pod_options(wanted.place_options),
        nodes=wanted.nodes,
        margin=wanted.margin,
        confirm_blocks=wanted.confirm,
        more_runs=wanted.more_runs,
        at_once=wanted.at_once,
        one_a_node=wanted.one_a_node,
        command=repeatable(wanted.asked),
    )
    with Ledger.open(wanted.ledger) as book:
        # A ledger that is locked or read-only is found now, and not after the first run.
        book.writing(lambda _: None)
        try:
            with watching(quiet=wanted.as_json) as watcher:
                for sentence in clean_up(book):
                    watcher.notice(sentence)
                experiment = lab.start(asked, book, watcher)
        except LedgerError:
            raise
        except StackmarkError as error:
            if wanted.as_json:
                print_json(error_json(request, error))
            raise
        return carry_on(experiment, book, wanted, typed=True)


def go_on(experiment: str, wanted: Wanted) -> Exit:
    """Of one that is finished, what it showed before."""
    check_files(wanted)
    with Ledger.open(wanted.ledger, create=False) as book:
        found = book.experiment(experiment)
        lab.plan_of(found)
        with looking(quiet=wanted.as_json) as looker:
            for sentence in clean_up(book):
                looker.notice(sentence)
        return carry_on(found, book, wanted)


def carry_on(experiment: Experiment, book: Ledger, wanted: Wanted, *, typed: bool = False) -> Exit:
    """`typed`: the plan was made by this command, and not read from the ledger."""
    again = repeatable(["resume", experiment.id, *(("--ledger", wanted.ledger) if wanted.ledger else ())])
    if lab.is_open(book, experiment):
        if not typed:
            confirm_trust(wanted.trusted)(lab.parts_in(lab.plan_of(experiment)), book.where)
        try:
            # The bar is gone before the table is printed: both may go to one screen.
            with looking(quiet=wanted.as_json) as looker:
                lab.carry_out(experiment, book, looker, time_limit_s=wanted.time_limit_s)
        except (KeyboardInterrupt, Terminated, StackmarkError):
            say(f"{experiment.id} is not finished", f"go on with: {again}")
            raise
    return report(lab.examine(book, experiment), wanted, again)


def report(swept: Swept, wanted: Wanted, again: str) -> Exit:
    if wanted.as_json:
        print_json(sweep_json(swept))
    else:
        wants_more = not swept.finished or swept.in_state("failed")
        print_sweep(swept, standard_output(), f"{again}  # tries again what failed" if wants_more else "")
    if wanted.junit:
        when = say_moment(swept.created_unix_s, "%Y-%m-%dT%H:%M:%S", utc=True)
        properties = [("experiment", swept.experiment_id), ("margin", f"{swept.margin:g}")]
        text = render_junit(f"stackmark cluster sweep {swept.workload}", junit_cases(swept), properties, when)
        write_whole(Path(wanted.junit), text.encode())
    if wanted.output:
        draw(swept, wanted.output)
    return exit_code(swept, fail_on_slow=wanted.fail_on_slow)


def draw(swept: Swept, path: Path) -> None:
    from stackmark.show.sweep import sweep_png, sweep_svg

    write_whole(path, sweep_png(swept) if path.suffix.lower() == ".png" else sweep_svg(swept).encode())


def exit_code(swept: Swept, *, fail_on_slow: bool) -> Exit:
    """What was not measured was not checked, and counts before what was found."""
    failed = swept.in_state("failed", "missing")
    if failed:
        return Exit.CLUSTER_FAILED if len(failed) == len(swept.lines) else Exit.PART_FAILED
    return Exit.VERDICT_NAMED if fail_on_slow and swept.in_state("SLOW", "slow group") else Exit.DONE


def check_files(wanted: Wanted) -> None:
    """Before anything is measured."""
    if wanted.output is not None:
        if wanted.output.suffix.lower() not in (".svg", ".png"):
            raise SpecError(f"a picture ends in .svg or .png, not {wanted.output.name!r}", hint="e.g. -o sweep.svg")
        check_writable(wanted.output)
        if wanted.output.suffix.lower() == ".png" and find_spec("resvg_py") is None:
            raise SpecError(
                "drawing PNG needs the package resvg-py, which is not installed",
                hint="pip install 'stackmark[plot]', or give a file that ends in .svg",
            )
    if wanted.junit == "-":
        raise SpecError("--junit: standard output holds the result already", hint="give a file, e.g. --junit sweep.xml")
    if wanted.junit is not None:
        check_writable(Path(wanted.junit))
