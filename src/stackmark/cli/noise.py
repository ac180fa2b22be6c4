"""`stackmark noise`."""

from typing import Any

import click

from stackmark.cli.compare import one_request
from stackmark.cli.options import (
    InSections,
    details_option,
    json_option,
    ledger_option,
    not_empty,
    parameter_options,
    place_names,
    place_options,
    sample_hz_option,
    seconds_of,
    taken_place_options,
    time_limit_option,
)


@click.command(
    "noise",
    cls=InSections,
    epilog="\b\nExamples:\n  stackmark noise train/resnet50\n  stackmark noise train/gpt2 --on container --blocks 10",
)
@click.argument("workload", required=False)
@click.option(
    "--on",
    "place",
    default="host",
    metavar="PLACE[,KEY=VALUE…]",
    help=f"Where it runs: {place_names()}. [default: host]",
)
@click.option("--blocks", type=click.IntRange(2, 10_000), metavar="N", help="Pairs of runs. [default: 6]")
@click.option("--pause", metavar="TIME", help="Wait this long between runs. [default: 0s]")
@click.option(
    "--order-seed", type=click.IntRange(0, 2**31 - 1), metavar="N", help="Seed of the order of runs. [default: drawn]"
)
@time_limit_option
@sample_hz_option
@click.option("--report", metavar="FILE", callback=not_empty, help="Also write a report: .html, .md or .pdf.")
@details_option
@ledger_option
@json_option
@place_options
@parameter_options
@click.pass_obj
def command(
    asked: tuple[str, ...],
    /,
    workload: str | None,
    place: str,
    blocks: int | None,
    ledger: str | None,
    as_json: bool,
    **typed: Any,
) -> int:
    """Measure the noise floor of this machine: WORKLOAD against itself (A/A), as a comparison does it.

    It tells which margin can be decided here, and the blocks and minutes that it takes.
    """
    from stackmark.cli.comparing import Wanted, compare

    wanted = Wanted(
        arms=(place, place),
        blocks=blocks,
        pause_s=seconds_of("--pause", typed.pop("pause")) or 0.0,
        order_seed=typed.pop("order_seed"),
        time_limit_s=seconds_of("--time-limit", typed.pop("time_limit")),
        report=typed.pop("report"),
        sample_hz=typed.pop("sample_hz"),
        details=typed.pop("details"),
        place_options=taken_place_options(typed),
        ledger=ledger,
        as_json=as_json,
        asked=asked,
        kind="noise",
    )
    return compare(one_request(workload, typed, arms=False), wanted)
