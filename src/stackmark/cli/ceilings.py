"""`stackmark ceilings`: its options. What it does with them is in measuring_ceilings.py, so that `--help` need not load it."""

from typing import Any

import click

from stackmark.cli.options import (
    InSections,
    json_option,
    ledger_option,
    place_names,
    place_options,
    seconds_of,
    taken_place_options,
    time_limit_option,
)
from stackmark.errors import SpecError


@click.command(
    "ceilings",
    cls=InSections,
    epilog="""\b
Examples:
  stackmark ceilings
  stackmark ceilings --device cuda:1 --runs 3
  stackmark ceilings --precision bf16
  stackmark ceilings --show
""",
)
@click.option(
    "--on",
    "place",
    default="host",
    metavar="PLACE[,KEY=VALUE…]",
    help=f"Where it runs: {place_names()}. [default: host]",
)
@click.option("--device", metavar="TEXT", help="cpu or cuda:N. [default: the first GPU, else the CPU]")
@click.option("--precision", metavar="TEXT", help="Of the matrix rate, this alone. [default: all that the device has]")
@click.option("--threads", metavar="N", help="Intra-op threads on a CPU; 0: the framework's choice. [default: 0]")
@click.option("--budget", metavar="TIME", help="A run takes about this long: shorter stretches, and it says so.")
@click.option("--runs", type=click.IntRange(1, 1000), metavar="N", help="Fresh processes. [default: 1]")
@click.option("--show", is_flag=True, help="Measure nothing: the latest that are kept, of every chip of this machine.")
@time_limit_option
@ledger_option
@json_option
@place_options
@click.pass_obj
def command(
    asked: tuple[str, ...],
    /,
    place: str,
    device: str | None,
    precision: str | None,
    threads: str | None,
    budget: str | None,
    runs: int | None,
    show: bool,
    time_limit: str | None,
    ledger: str | None,
    as_json: bool,
    **typed: Any,
) -> int:
    """What this machine can do at most: matrix rate by precision, memory, the way to the host, launches.

    It takes about a minute a run, is kept in the ledger, and is what `roofline` and `run` hold other runs against. The vendor's
    figure for the chip stands beside each.
    """
    options = taken_place_options(typed)
    from stackmark.cli.measuring_ceilings import CeilingsAsked, measure_ceilings, show_kept

    wanted = CeilingsAsked(asked, place, options, runs or 1, seconds_of("--time-limit", time_limit), ledger, as_json)
    params = {"device": device, "precision": precision, "threads": threads, "budget": budget}
    if not show:
        return measure_ceilings(params, wanted)
    if useless := [name for name in ("precision", "threads", "budget") if params[name] is not None]:
        raise SpecError(f"--show measures nothing, and takes no --{useless[0]}", hint="choose a chip with --device")
    return show_kept(device, wanted)
