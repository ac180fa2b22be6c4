"""What commands do with an operator list: its table is printed from what is stored, and `resume` takes what is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from stackmark.api.options import repeatable
from stackmark.api.stored import Experiment, ListRunResult, go_on_list, prepare_list
from stackmark.cli.saying import print_json, say, watching
from stackmark.cli.trusting import confirm_trust
from stackmark.errors import Exit, Terminated
from stackmark.show.list_formats import find_list_format
from stackmark.show.lists import print_list, say_missing
from stackmark.show.terminal import standard_output
from stackmark.spec import Spec
from stackmark.verdict.operators import ListResult


def resume_list(
    experiment: Experiment,
    *,
    ledger: str | None,
    as_json: bool,
    time_limit_s: float | None = None,
    anyway: bool = False,
    failed: bool = False,
    trusted: bool = False,
) -> Exit:
    """Run what is missing, then show all of it: of one that is whole, what it showed before."""
    prepare_list(experiment, confirm_trust(trusted), failed=failed)
    with unfinished(experiment.id, ledger), watching(quiet=as_json) as watcher:
        found = go_on_list(experiment, watcher, time_limit_s=time_limit_s, anyway=anyway, failed=failed)
    assert isinstance(found.result, ListRunResult)
    if as_json:
        print_json(found.to_dict())
    show_list(found.result, as_json)
    return found.exit_code


@contextmanager
def unfinished(experiment_id: str, ledger: str | None) -> Iterator[None]:
    """Where somebody ends it: what there is, and how to go on."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        say_unfinished(experiment_id, ledger)
        raise


def say_unfinished(experiment_id: str, ledger: str | None) -> None:
    there = ("--ledger", ledger) if ledger else ()
    again, look = (repeatable([verb, experiment_id, *there]) for verb in ("resume", "show"))
    say(f"{experiment_id} is not finished", f"go on with: {again}\nsee what there is: {look}")


def show_list(found: ListRunResult, as_json: bool, form: str | None = None) -> None:
    """In the form that was asked for; failures are also said on standard error where nothing else says them."""
    listed = found.listed
    if form:
        print_list_as(form, listed.spec, listed.result)
    elif not as_json:
        print_list(found, standard_output())
        return
    for row in listed.result.failed:
        say(f"row {row.index}: {row.failure.message if row.failure else ''}")
    if not listed.whole:
        say(f"not done: {say_missing(listed)}")


def print_list_as(form: str, spec: Spec, result: ListResult) -> None:
    """Print a list as the program does that `--format` names."""
    table = find_list_format(form).table(spec, result)
    print(table.text)
    for note in table.notes:
        say(note)
