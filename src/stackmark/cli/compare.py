"""`stackmark compare`: its options. What it does with them is in comparing.py, so that `--help` need not load it."""

from collections.abc import Sequence
from typing import Any

import click

from stackmark.cli.options import (
    InSections,
    asked_workloads,
    details_option,
    fail_on_option,
    json_option,
    junit_option,
    ledger_option,
    names_image,
    not_empty,
    parameter_options,
    place_names,
    place_options,
    ranks_option,
    read_margin,
    read_requests,
    sample_hz_option,
    seconds_of,
    taken_place_options,
    time_limit_option,
)
from stackmark.errors import SpecError
from stackmark.spec import Request
from stackmark.workloads.registry import check_request


@click.command(
    "compare",
    cls=InSections,
    epilog="""\b
Examples:
  stackmark compare train/resnet50 --arm host --arm container
  stackmark compare train/resnet50 --arm host,precision=fp32 --arm host,precision=bf16
  stackmark compare train/resnet50 --arm container,shm=64m --arm container,shm=1g --blocks 8 --margin 1%
  stackmark compare train/resnet50 --arm host --arm container --until-decided --report report.html
  stackmark compare train/resnet50,train/vgg16 --arm host --arm container --arm pod
  stackmark compare --cmd "python train.py" --metric "images/sec: ([0-9.]+)" --arm host --arm container
""",
)
@click.argument("workload", required=False)
@click.option(
    "--arm",
    "arms",
    multiple=True,
    metavar="PLACE[,KEY=VALUE…]",
    help=f"An arm; twice or more. Places: {place_names()}.",
)
@click.option("--blocks", type=click.IntRange(1, 10_000), metavar="N", help="Runs of each arm. [default: 6]")
@click.option("--margin", metavar="SHARE", help="What counts as a difference. [default: 1%; 5% with --published]")
@click.option("--until-decided", is_flag=True, help="Look at planned blocks, and stop at the first verdict.")
@click.option("--pause", metavar="TIME", help="Wait this long between runs. [default: 0s]")
@click.option(
    "--repeats",
    type=click.IntRange(0, 100),
    default=2,
    metavar="N",
    help="Failed blocks to repeat at most. [default: 2]",
)
@click.option(
    "--order-seed", type=click.IntRange(0, 2**31 - 1), metavar="N", help="Seed of the order of runs. [default: drawn]"
)
@click.option("--primers/--no-primers", default=True, help="First one short unmeasured run of each arm. [default: on]")
@click.option(
    "--published",
    metavar="TEXT",
    callback=not_empty,
    help="With one arm: hold it against the published row that this finds.",
)
@ranks_option
@fail_on_option
@time_limit_option
@sample_hz_option
@junit_option(
    "Also write JUnit XML: a case for each pair, a failure where --fail-on names its verdict. [default: slower]"
)
@click.option("--report", metavar="FILE", callback=not_empty, help="Also write a report: .html, .md or .pdf.")
@click.option("--anyway", is_flag=True, help="Go on where arms ran on different chips.")
@details_option
@ledger_option
@json_option
@place_options
@parameter_options
@click.pass_obj
def command(asked: tuple[str, ...], /, workload: str | None, arms: tuple[str, ...], ledger: str | None,
            as_json: bool, **typed: Any) -> int:  # fmt: skip
    """Compare arms on WORKLOAD: interleaved runs in blocks, then a verdict with its interval.

    An arm is a place with options of its own: `host`, `container,shm=1g`, `host,precision=bf16`. Only what is typed in
    an arm differs between arms. Lists with commas make several comparisons and one table, as a suite does. A killed
    comparison goes on with `stackmark resume`.
    """
    from stackmark.cli.comparing import Wanted, compare

    margin = typed.pop("margin")
    wanted = Wanted(
        arms=arms,
        blocks=typed.pop("blocks"),
        margin=read_margin(margin) if margin is not None else None,
        until_decided=typed.pop("until_decided"),
        pause_s=seconds_of("--pause", typed.pop("pause")) or 0.0,
        repeats=typed.pop("repeats"),
        order_seed=typed.pop("order_seed"),
        primers=typed.pop("primers"),
        published=typed.pop("published"),
        fail_on=typed.pop("fail_on"),
        time_limit_s=seconds_of("--time-limit", typed.pop("time_limit")),
        report=typed.pop("report"),
        junit=typed.pop("junit"),
        anyway=typed.pop("anyway"),
        sample_hz=typed.pop("sample_hz"),
        details=typed.pop("details"),
        place_options=taken_place_options(typed),
        ledger=ledger,
        as_json=as_json,
        asked=asked,
    )
    image = names_image(arms, wanted.place_options)
    requests = read_requests(asked_workloads(workload, typed, image=image), typed)
    if len(requests) == 1:
        check_request(requests[0], in_all(arms))
        return compare(requests[0], wanted)
    from stackmark.cli.suites import compare_several

    for request in requests:
        check_request(request, in_all(arms))
    return compare_several(requests, wanted)


def in_all(arms: Sequence[str]) -> set[str]:
    """Return the keys that every arm has."""
    keys = [{part.partition("=")[0].strip().replace("-", "_") for part in arm.split(",")[1:]} for arm in arms]
    return set.intersection(*keys) if keys else set()


def one_request(workload: str | None, typed: dict[str, Any], *, arms: bool = True, image: bool = False) -> Request:
    """What an experiment is about: one workload, one value of each parameter. What differs is for the arms to say."""
    requests = read_requests(asked_workloads(workload, typed, image=image), typed)
    first = requests[0]
    names = list(dict.fromkeys(request.workload for request in requests))
    if len(names) > 1:
        raise SpecError(
            f"one experiment is of one workload, and {len(names)} were named: {', '.join(names)}",
            hint="run the command once for each",
        )
    if len({request.ranks for request in requests}) > 1:
        raise SpecError(
            "--ranks is a list, and one experiment has one value of it", hint="run the command once for each"
        )
    lists = {name: [one.params[name] for one in requests] for name in first.params}
    name = next((name for name, values in lists.items() if any(value != values[0] for value in values)), None)
    if name is not None:
        two = " ".join(f"--arm host,{name}={value}" for value in list(dict.fromkeys(lists[name]))[:2])
        raise SpecError(
            f"--{name.replace('_', '-')} is a list, and one experiment has one value of it",
            hint=f"what is to differ belongs into the arms: stackmark compare {first.workload} {two}" if arms else None,
        )
    check_request(first)
    return first
