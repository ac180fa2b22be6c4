"""`stackmark baseline`: measurements under a name, to check against later."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    read_margin,
    read_requests,
    seconds_of,
    taken_place_options,
    time_limit_option,
    trust_option,
)
from stackmark.cli.saying import notice, print_json, say, watching
from stackmark.errors import Exit, SpecError

if TYPE_CHECKING:
    from stackmark.api.baselines import SavedBaseline, SeriesResult
    from stackmark.spec import Request


@click.group(
    "baseline",
    cls=Subverbs,
    epilog="""\b
Examples:
  stackmark baseline save before-driver-580 train/resnet50 train/gpt2
  stackmark baseline show before-driver-580
  stackmark baseline plot before-driver-580 -o trend.svg
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
    from stackmark.api.baselines import carry_out_baseline, check_name, plan_baseline, save_baseline
    from stackmark.api.ledgers import Ledger
    from stackmark.api.options import repeatable
    from stackmark.cli.trusting import confirm_trust

    check_name(name)
    options = taken_place_options(typed)
    about_work = [option for option, value in typed.items() if value is not None]
    about_work += [*options, *(["on"] if place else [])]
    if experiments:
        about_work += [option for option, value in (("runs", runs), ("time_limit", time_limit)) if value is not None]
        _refuse(workloads, about_work, "--from saves what was measured already")
        return _print(save_baseline(name, experiments=experiments, ledger=ledger), as_json)
    requests: list[Request] = []
    if workloads or typed.get("cmd") is not None:
        requests = read_requests(asked_workloads(",".join(workloads), typed), typed)
    else:
        _refuse(workloads, about_work, "without a workload, all that the baseline holds is measured as it was before")
    plan = plan_baseline(
        name, requests, on=place or "host", place_options=options, runs=runs,
        time_limit_s=seconds_of("--time-limit", time_limit), command=repeatable(asked),
    )  # fmt: skip
    with Ledger.open(ledger) as book:
        saved = carry_out_baseline(
            plan, book, lambda: watching(quiet=as_json), confirm_trust(trusted), lambda one: _say(one, as_json)
        )
    return _print(saved, as_json)


def _say(series: "SeriesResult", as_json: bool) -> None:
    from stackmark.show.baselines import say_series

    if not as_json and (line := say_series(series)):
        click.echo(line)
    if series.trouble:
        say(f"{series.label}: {series.trouble.message}", series.trouble.hint)


def _print(saved: "SavedBaseline", as_json: bool) -> int:
    from stackmark.show.baselines import holds_lines

    if as_json:
        print_json(saved.to_dict())
        return saved.exit_code
    for experiment_id, new in (saved.experiments or {}).items():
        click.echo(f"{experiment_id}  {'saved' if new else 'was in it already'}")
    for line in holds_lines(saved.name, saved.holds):
        click.echo(line)
    return saved.exit_code


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
    from stackmark.api.baselines import list_baselines
    from stackmark.show.baselines import print_baselines
    from stackmark.show.terminal import standard_output

    found = list_baselines(ledger)
    if as_json:
        print_json(found.to_dict())
    elif found.baselines:
        print_baselines(found.baselines, standard_output())
    else:
        notice("there is no baseline yet; save one: stackmark baseline save NAME train/resnet50")
    return Exit.DONE


_margin_option = click.option(
    "--margin", default="1%", metavar="SHARE", help="What counts as a difference. [default: 1%]"
)


@command.command("show", epilog="\b\nExamples:\n  stackmark baseline show before-driver-580")
@click.argument("name", callback=not_empty)
@_margin_option
@ledger_option
@json_option
def show(name: str, margin: str, ledger: str | None, as_json: bool) -> int:
    """Show every series of NAME and every check against it: date, figure, change to the first, verdict.

    Everything is computed from the ledger; nothing is run.
    """
    from stackmark.api.baselines import show_baseline
    from stackmark.show.terminal import standard_output
    from stackmark.show.trend import print_trends

    found = show_baseline(name, margin=read_margin(margin), ledger=ledger)
    if as_json:
        print_json(found.to_dict())
    else:
        print_trends(found.name, found.trends, standard_output())
    return Exit.DONE


@command.command("plot", epilog="\b\nExamples:\n  stackmark baseline plot before-driver-580 -o trend.svg")
@click.argument("name", callback=not_empty)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", required=True, callback=not_empty,
    help="The file, which ends in .svg or .png.",
)  # fmt: skip
@_margin_option
@ledger_option
def plot(name: str, output: Path, margin: str, ledger: str | None) -> int:
    """Draw every series of NAME and every check against it over time, with the baseline and the margin."""
    from stackmark.api.baselines import show_baseline
    from stackmark.show.writing import check_picture

    check_picture(output, "trend.svg")
    show_baseline(name, margin=read_margin(margin), ledger=ledger).plot(output)
    click.echo(f"picture of the baseline {name} written to {output}", err=True)
    return Exit.DONE


@command.command("delete", epilog="\b\nExamples:\n  stackmark baseline delete before-driver-580")
@click.argument("name", callback=not_empty)
@ledger_option
def delete(name: str, ledger: str | None) -> int:
    """Forget a baseline. Its runs stay in the ledger."""
    from stackmark.api.baselines import delete_baseline

    count = delete_baseline(name, ledger)
    stay = "its experiment stays" if count == 1 else f"its {count} experiments stay"
    click.echo(f"the baseline {name} is forgotten; {stay} in the ledger")
    return Exit.DONE
