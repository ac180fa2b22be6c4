"""`stackmark scale`."""

from typing import Any

import click

from stackmark.cli.compare import one_request
from stackmark.cli.options import (
    InSections,
    details_option,
    fail_on_option,
    json_option,
    junit_option,
    ledger_option,
    not_empty,
    parameter_options,
    place_names,
    place_options,
    read_margin,
    read_ranks,
    seconds_of,
    taken_place_options,
    time_limit_option,
)
from stackmark.errors import SpecError


@click.command(
    "scale",
    cls=InSections,
    epilog="""\b
Examples:
  stackmark scale train/resnet50 --ranks 1,2,4
  stackmark scale train/resnet50 --ranks 1,8 --strong --batch 256
  stackmark scale train/resnet50 --ranks 1,2 --on container
  stackmark scale --stored "chip=Tesla T4"
  stackmark scale --published "resnet50 P100"
""",
)
@click.argument("workload", required=False)
@click.option(
    "--ranks",
    "rank_counts",
    metavar="1,N,…",
    callback=not_empty,
    help="Rank counts, which are the arms; 1 must be among them.",
)
@click.option("--strong", is_flag=True, help="Fix the batch of all ranks together: --batch is the total.")
@click.option(
    "--on",
    "place",
    default="host",
    metavar="PLACE[,KEY=VALUE…]",
    help=f"Where it runs: {place_names()}. [default: host]",
)
@click.option(
    "--blocks", type=click.IntRange(1, 10_000), metavar="N", help="Runs of each rank count. [default: 6 or more]"
)
@click.option("--margin", metavar="SHARE", help="How much less than 100 % efficiency is good. [default: 10%]")
@click.option("--pause", metavar="TIME", help="Wait this long between runs. [default: 0s]")
@click.option(
    "--repeats",
    type=click.IntRange(0, 100),
    default=2,
    metavar="N",
    help="Failed blocks to repeat at most. [default: 2]",
)
@click.option("--order-seed", type=click.IntRange(0, 2**31 - 1), metavar="N", help="Of the order. [default: drawn]")
@click.option("--primers/--no-primers", default=True, help="First one short unmeasured run of each. [default: on]")
@click.option(
    "--stored",
    multiple=True,
    metavar="KEY=VALUE,…",
    callback=not_empty,
    help="Instead of measuring: tabulate stored runs that meet all conditions, by the keys of `verdict --runs`.",
)
@click.option(
    "--published",
    "others",
    metavar="TEXT",
    callback=not_empty,
    help="Instead of measuring: tabulate what others published of one device and of several: 'resnet50 P100'.",
)
@fail_on_option
@time_limit_option
@junit_option("Also write JUnit XML: a case for each rank count above 1, a failure where it falls short.")
@click.option("--report", metavar="FILE", callback=not_empty, help="Also write a report: .html, .md or .pdf.")
@click.option("--anyway", is_flag=True, help="Go on where runs were on different chips.")
@details_option
@ledger_option
@json_option
@place_options
@parameter_options
@click.pass_obj
def command(asked: tuple[str, ...], /, workload: str | None, rank_counts: str | None, strong: bool, place: str,
            stored: tuple[str, ...], others: str | None, ledger: str | None, as_json: bool, **typed: Any) -> int:  # fmt: skip
    """How WORKLOAD scales: the rate of several ranks against one, in interleaved blocks, with its efficiency.

    SCALES: the efficiency is at least 100 % less the margin; FALLS SHORT: it is less. The batch of each rank is fixed, or
    with --strong that of all together. One that was killed goes on with `stackmark resume`.
    """
    from stackmark.cli.comparing import Wanted
    from stackmark.cli.scaling import measure, tabulate, tabulate_published

    margin = typed.pop("margin")
    wanted = Wanted(
        blocks=typed.pop("blocks"),
        margin=read_margin(margin) if margin is not None else None,
        pause_s=seconds_of("--pause", typed.pop("pause")) or 0.0,
        repeats=typed.pop("repeats"),
        order_seed=typed.pop("order_seed"),
        primers=typed.pop("primers"),
        fail_on=typed.pop("fail_on"),
        time_limit_s=seconds_of("--time-limit", typed.pop("time_limit")),
        report=typed.pop("report"),
        junit=typed.pop("junit"),
        anyway=typed.pop("anyway"),
        details=typed.pop("details"),
        place_options=taken_place_options(typed),
        ledger=ledger,
        as_json=as_json,
        asked=asked,
    )
    if stored or others:
        option = "--stored" if stored else "--published"
        typed_too = workload or (
            f"--ranks {rank_counts}" if rank_counts else "--published" if stored and others else ""
        )
        if typed_too:
            raise SpecError(
                f"{typed_too} is named next to {option}", hint="measure with a workload and --ranks, or tabulate"
            )
        return tabulate(stored, wanted) if stored else tabulate_published(others or "", wanted)
    if rank_counts is None:
        raise SpecError("--ranks is missing", hint="name the rank counts, 1 among them: --ranks 1,2,4")
    request = one_request(workload, typed, arms=False)
    return measure(request, read_ranks(rank_counts), place, strong, wanted)
