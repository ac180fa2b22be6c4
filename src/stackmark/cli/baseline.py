"""`stackmark baseline`: measurements under a name, to check against later."""

from typing import Any

import click

from stackmark.cli.options import (
    InSections,
    Subverbs,
    asked_workloads,
    json_option,
    ledger_option,
    not_empty,
    parameter_options,
    place_names,
    place_options,
    read_requests,
    seconds_of,
    taken_place_options,
    time_limit_option,
    trust_option,
)
from stackmark.errors import SpecError
from stackmark.workloads.registry import check_request


@click.group(
    "baseline",
    cls=Subverbs,
    no_args_is_help=False,
    epilog="""\b
Examples:
  stackmark baseline save before-driver-580 train/resnet50 train/gpt2
  stackmark baseline list
  stackmark baseline delete before-driver-580
""",
)
def command() -> None:
    """Keep measurements under a NAME: what was measured before the upgrade.

    The unit is the series (a reboot or an hour's pause begins a new one). Save three series or more: only several of them tell
    how far two series of an unchanged machine differ.
    """


@command.command(
    "save",
    cls=InSections,
    epilog="""\b
Examples:
  stackmark baseline save before-driver-580 train/resnet50 train/gpt2
  stackmark baseline save before-driver-580
  stackmark baseline save before-driver-580 --from x-01k9 --from x-01ka
""",
)
@click.argument("name", callback=not_empty)
@click.argument("workloads", nargs=-1, metavar="WORKLOAD…", callback=not_empty)
@click.option(
    "--from", "experiments", multiple=True, metavar="EXPERIMENT", callback=not_empty,
    help="Save what was measured already; may be repeated.",
)  # fmt: skip
@click.option(
    "--on",
    "place",
    metavar="PLACE[,KEY=VALUE…]",
    callback=not_empty,
    help=f"Where it runs: {place_names()}. [default: host]",
)
@click.option(
    "--runs", type=click.IntRange(1, 1000), metavar="N",
    help="Fresh processes. [default: 5 on a GPU, 3 on a CPU; again as before]",
)  # fmt: skip
@time_limit_option
@trust_option
@ledger_option
@json_option
@place_options
@parameter_options
@click.pass_obj
def save(
    asked: tuple[str, ...],
    /,
    name: str,
    workloads: tuple[str, ...],
    experiments: tuple[str, ...],
    place: str | None,
    runs: int | None,
    time_limit: str | None,
    trusted: bool,
    ledger: str | None,
    as_json: bool,
    **typed: Any,
) -> int:
    """Measure WORKLOADs now and keep them under NAME. Saved again, NAME gets one more series of the same specs.

    Without any WORKLOAD, all that NAME holds is measured once more.
    """
    from stackmark.cli.saving import Save, save_from, save_measured
    from stackmark.ledger.baselines import check_name

    check_name(name)
    options = taken_place_options(typed)
    about_work = [option for option, value in typed.items() if value is not None]
    about_work += [*options, *(["on"] if place else [])]
    if experiments:
        about_work += [option for option, value in (("runs", runs), ("time_limit", time_limit)) if value is not None]
        _refuse(workloads, about_work, "--from saves what was measured already")
        return save_from(name, experiments, ledger, as_json)
    wanted = Save(
        name, place or "host", options, runs, seconds_of("--time-limit", time_limit), ledger, as_json, asked, trusted
    )  # fmt: skip
    if not workloads and typed.get("cmd") is None:
        _refuse(workloads, about_work, "without a workload, all that the baseline holds is measured as it was before")
        return save_measured([], wanted)
    requests = read_requests(asked_workloads(",".join(workloads), typed), typed)
    for request in requests:
        check_request(request)
    return save_measured(requests, wanted)


def _refuse(workloads: tuple[str, ...], options: list[str], why: str) -> None:
    """What would have no effect is not silently taken."""
    if workloads:
        raise SpecError(f"both workloads and --from were given: {why}", hint="give one of them")
    if options:
        raise SpecError(f"--{options[0].replace('_', '-')} has no effect here: {why}", hint="leave it out")


@command.command("list", epilog="\b\nExamples:\n  stackmark baseline list")
@ledger_option
@json_option
def list_(ledger: str | None, as_json: bool) -> int:
    """List the baselines with their workloads."""
    from stackmark.cli.saving import list_baselines

    return list_baselines(ledger, as_json)


@command.command("delete", epilog="\b\nExamples:\n  stackmark baseline delete before-driver-580")
@click.argument("name", callback=not_empty)
@ledger_option
def delete(name: str, ledger: str | None) -> int:
    """Forget a baseline. Its runs stay in the ledger."""
    from stackmark.cli.saving import delete_baseline

    return delete_baseline(name, ledger)
