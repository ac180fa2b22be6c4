"""`stackmark show`."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import click

from stackmark.cli.list_views import list_json, row_json
from stackmark.cli.listing import ListAsked, print_deepbench, print_run_rows, show_list
from stackmark.cli.options import check_format, format_option, json_option, ledger_option, not_empty
from stackmark.cli.saying import notice, print_json
from stackmark.errors import SpecError, StreamError
from stackmark.events import EVENT_PREFIX, Log, gathered_facts, read_event
from stackmark.experiments.cleaning import clean_up
from stackmark.experiments.judging import STDERR_PREFIX, judged_again, read_stored, setup_parts
from stackmark.experiments.kinds import FAULT, OPERATOR_LIST, ExperimentKind, kind_in
from stackmark.experiments.limits import NO_LIMITS, Limits, limits_of_run
from stackmark.experiments.operator_list import read_list, run_result
from stackmark.ledger.rows import Experiment, RunDetail
from stackmark.ledger.store import Ledger
from stackmark.published.lookup import known_operators
from stackmark.show.roofline import say_limits, standing_json
from stackmark.show.safe import safe


@click.command(
    "show", epilog="\b\nExamples:\n  stackmark show last\n  stackmark show r-01k9 --json\n  stackmark show last --log"
)
@click.argument("run", callback=not_empty)
@click.option("--events", "what", flag_value="events", help="Print the worker's events as they came, one a line.")
@click.option("--log", "what", flag_value="log", help="Print what else the worker and its libraries wrote.")
@format_option
@click.option("--spec", "what", flag_value="spec", help="Print the spec: the workload with all its parameters.")
@ledger_option
@json_option
def command(run: str, what: str | None, form: str | None, ledger: str | None, as_json: bool) -> int:
    """Show one stored RUN whole: its numbers, computed again from its events, its settings and its facts.

    RUN is an id, any unique beginning of one, or `last`. The id of an experiment (x-…) lists its runs.
    """
    with Ledger.open(ledger, create=False) as book:
        notice(clean_up(book))
        if run.lower().startswith("x-"):
            _show_experiment(book, run, as_json, form)
            return 0
        row = book.run(run)
        lines = book.stream(row.id)
        limits = limits_of_run(book, row) if what is None else NO_LIMITS
    check_format(form, as_json, [row.workload])
    if what == "events":
        for line in lines:
            if line.startswith(EVENT_PREFIX):
                click.echo(safe(line))
    elif what == "log":
        for line in _log(lines):
            click.echo(safe(line))
    elif what == "spec":
        click.echo(row.spec.canonical())
    else:
        _show_run(row, lines, limits, as_json, form)
    return 0


def _show_run(row: RunDetail, lines: list[str], limits: Limits, as_json: bool, form: str | None) -> None:
    stream, _, broken = read_stored(lines)
    doubts = [broken.message] if broken else []
    facts, setup = gathered_facts(stream.events), setup_parts(stream.events)
    if row.status in ("done", "invalid") and not doubts:
        again = judged_again(stream)
        if again is None or not row.rate_per_s or abs(again / row.rate_per_s - 1) > 1e-9:
            doubts.append(f"the stored rate is {row.rate_per_s}; its events give {again} by the rules of today")
    of_list = run_result(row, stream.events)
    if form:
        if of_list is None:
            raise SpecError(f"{row.id} went through no list: there is nothing to print as DeepBench does")
        print_deepbench(row.spec, of_list)
        return
    if as_json:
        standing = standing_json(limits.standing) if limits.standing else None
        shown: dict[str, object] = {"run": row.model_dump(mode="json"), "setup_s": dict(setup), "facts": facts}
        shown |= {"doubts": doubts, "roofline": standing}
        print_json({**shown, "rows": [row_json(one) for one in of_list.rows]} if of_list else shown)
        return
    from stackmark.show.run import print_run

    if of_list:
        print_run_rows(row, of_list)
    print_run(row.model_dump(mode="json"), setup, facts, doubts, say_limits(limits.work, limits.sentences))


def _log(lines: list[str]) -> Iterator[str]:
    """What is no event, and the lines that came in events: what a user's own program printed."""
    for number, line in enumerate(lines, 1):
        if not line.startswith(EVENT_PREFIX):
            yield line.removeprefix(STDERR_PREFIX)
            continue
        with suppress(StreamError):
            event = read_event(line, number)
            if isinstance(event, Log):
                yield event.line


def _show_experiment(book: Ledger, prefix: str, as_json: bool, form: str | None) -> None:
    experiment = book.experiment(prefix)
    kind = kind_in(book, experiment)
    if form and kind is not OPERATOR_LIST:
        raise SpecError(f"{experiment.id} went through no list: there is nothing to print as DeepBench does")
    own: dict[ExperimentKind, Callable[[Ledger, Experiment, bool], None]] = {
        OPERATOR_LIST: partial(_show_list, form=form),
        FAULT: _show_fault,
    }
    own.get(kind, _show_runs)(book, experiment, as_json)


def _show_list(book: Ledger, experiment: Experiment, as_json: bool, *, form: str | None) -> None:
    listed = read_list(book, experiment)
    check_format(form, as_json, [listed.spec.workload])
    show_list(listed, experiment.command, known_operators(book), ListAsked((), as_json=as_json, form=form))
    if as_json:
        print_json(list_json(listed, experiment.command, known_operators(book)))


def _show_fault(book: Ledger, experiment: Experiment, as_json: bool) -> None:
    from stackmark.cli.cluster_fault import show_fault

    show_fault(book, experiment.id, as_json)


def _show_runs(book: Ledger, experiment: Experiment, as_json: bool) -> None:
    rows = book.runs_of(experiment.id)
    if as_json:
        print_json(
            {"experiment": experiment.model_dump(mode="json"), "runs": [row.model_dump(mode="json") for row in rows]}
        )
        return
    from stackmark.show.runs import print_runs

    click.echo(f"{experiment.id}  {safe(experiment.command)}")
    print_runs(rows)
