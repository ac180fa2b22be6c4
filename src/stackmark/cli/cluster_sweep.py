"""`stackmark cluster sweep`: its options. What it does with them is in sweeping.py, so that `--help` need not load it."""

from pathlib import Path
from typing import Any

import click

from stackmark.cli.options import (
    OfAPod,
    json_option,
    ledger_option,
    not_empty,
    parameter_options,
    pod_options,
    read_margin,
    seconds_of,
    taken_pod_options,
    time_limit_option,
    trust_option,
)
from stackmark.errors import SpecError


@click.command(
    "sweep",
    cls=OfAPod,
    epilog="""\b
Examples:
  stackmark cluster sweep train/resnet50 --image registry.example.com/stackmark-worker:1 --gpus 1
  stackmark cluster sweep train/resnet50 --gpus 1 --nodes pool=gpu --seconds 10 -o sweep.svg --junit sweep.xml
  stackmark cluster sweep train/resnet20 --device cpu --gpus 0 --cpus 4 --memory 4g
  stackmark cluster sweep --resume x-01k9
""",
)
@click.argument("workload", required=False)
@click.option("--nodes", metavar="SELECTOR", callback=not_empty, help="Only nodes with such labels: pool=gpu,zone!=b.")
@click.option("--margin", metavar="SHARE", default="1%", help="How much slower counts as slow. [default: 1%]")
@click.option(
    "--confirm",
    type=click.IntRange(0, 100),
    metavar="N",
    help="Pairs of runs by which a flagged device is confirmed, 0 or 2 and more. [default: 4 to 12, by the noise]",
)
@click.option(
    "--more-runs",
    type=click.IntRange(0, 20),
    metavar="N",
    help="Runs of each device more where one leaves it open. [default: 3 for up to 64 devices of a kind]",
)
@click.option("--at-once", type=click.IntRange(1, 10_000), metavar="N", help="Pods at once. [default: as many as go]")
@click.option("--one-a-node", is_flag=True, help="One device of each node at a time.")
@click.option("--resume", metavar="EXPERIMENT", callback=not_empty, help="Go on with a sweep that was begun before.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    callback=not_empty,
    help="Also draw it: a file that ends in .svg or .png.",
)
@click.option("--junit", metavar="FILE", callback=not_empty, help="Also write JUnit XML: a case a device.")
@click.option("--fail-on-slow", is_flag=True, help="Exit with 8 where a device is named, or a group is slow.")
@time_limit_option
@trust_option
@ledger_option
@json_option
@pod_options()
@parameter_options
@click.pass_obj
def command(
    asked: tuple[str, ...],
    /,
    workload: str | None,
    resume: str | None,
    ledger: str | None,
    as_json: bool,
    **typed: Any,
) -> int:
    """Run WORKLOAD on every GPU of every node: which one is slow?

    Each device is compared with the median of its kind. Where one run of each leaves it open, all are run some times more. A
    device that is below the median by more than the margin, and by more than chance allows, is run again together with a good
    one, and is named only when that confirms it. --gpus 0 sweeps nodes by their CPUs.
    """
    from stackmark.cli.compare import one_request
    from stackmark.cli.sweeping import Wanted, go_on, sweep

    confirm = typed.pop("confirm")
    if confirm == 1:
        raise SpecError(
            "--confirm 1: one pair of runs has no spread, and confirms nothing", hint="take 4, or 0 for none"
        )
    wanted = Wanted(
        nodes=typed.pop("nodes"),
        margin=read_margin(typed.pop("margin")),
        confirm=confirm,
        more_runs=typed.pop("more_runs"),
        at_once=typed.pop("at_once"),
        one_a_node=typed.pop("one_a_node"),
        output=typed.pop("output"),
        junit=typed.pop("junit"),
        fail_on_slow=typed.pop("fail_on_slow"),
        time_limit_s=seconds_of("--time-limit", typed.pop("time_limit")),
        place_options=taken_pod_options(typed),
        trusted=typed.pop("trusted"),
        ledger=ledger,
        as_json=as_json,
        asked=asked,
    )
    if resume is None:
        return sweep(one_request(workload, typed, arms=False), wanted)
    given = [name for name, value in typed.items() if value is not None]
    if workload or given or wanted.place_options or wanted.nodes:
        what = workload or next(iter([*given, *wanted.place_options, "nodes"]))
        raise SpecError(f"--resume goes on with what was asked before, and {what} was given too", hint="leave it out")
    return go_on(resume, wanted)
