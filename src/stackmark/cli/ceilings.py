"""`stackmark ceilings`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from stackmark.cli.options import (
    InSections,
    json_option,
    ledger_option,
    place_names,
    place_options,
    read_requests,
    seconds_of,
    taken_place_options,
    time_limit_option,
)
from stackmark.cli.saying import print_json, say, watching
from stackmark.errors import Exit, LedgerError, SpecError, StackmarkError
from stackmark.schemas import with_schema

if TYPE_CHECKING:
    from stackmark.api.measuring import RunPlan


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
@click.option(
    "--precision", metavar="TEXT", help="Measure only this precision's matrix rate. [default: all that the device has]"
)
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
    """Measure what this machine can do at most: matrix rate by precision, memory, the way to the host, launches.

    It takes about a minute a run, is kept in the ledger, and is what `roofline` and `run` compare other runs with. The vendor's
    figure for the chip stands next to each.
    """
    options = taken_place_options(typed)
    params = {"device": device, "precision": precision, "threads": threads, "budget": budget}
    if show:
        if useless := [name for name in ("precision", "threads", "budget") if params[name] is not None]:
            raise SpecError(f"--show measures nothing, and takes no --{useless[0]}", hint="choose a chip with --device")
        return _show_kept(device, ledger, as_json)
    from stackmark.api.limits import CEILINGS, ceilings_params, plan_ceilings
    from stackmark.api.options import repeatable

    limit_s = seconds_of("--time-limit", time_limit)
    plans = [
        plan_ceilings(
            request, on=place, place_options=options, runs=runs or 1, time_limit_s=limit_s, command=repeatable(asked)
        )
        for request in read_requests([CEILINGS], ceilings_params(params))
    ]
    return _measure(plans, ledger, as_json)


def _measure(plans: "Sequence[RunPlan]", ledger: str | None, as_json: bool) -> int:
    """Make one measurement for each device and precision that was typed. What fails is said, and stops no other."""
    from stackmark.api.ledgers import Ledger
    from stackmark.api.limits import CEILINGS, carry_out_ceilings
    from stackmark.show.ceilings import print_ceilings
    from stackmark.show.terminal import standard_output

    codes: list[Exit] = []
    results: list[dict[str, Any]] = []
    with Ledger.open(ledger) as book:
        for plan in plans:
            try:
                with watching(quiet=as_json) as watcher:
                    found = carry_out_ceilings(plan, book, watcher)
            except LedgerError:
                raise
            except StackmarkError as error:
                if len(plans) == 1:
                    raise
                say(f"{CEILINGS}: {error.message}", error.hint, error.command)
                codes.append(error.exit_code)
                continue
            codes.append(found.exit_code)
            results.append(found.to_dict())
            if not as_json:
                print_ceilings(found.kept, standard_output())
    if as_json:
        print_json(with_schema("ceilings", {"ceilings": results}))
    return codes[0] if len(codes) == 1 else Exit.PART_FAILED if any(codes) else Exit.DONE


def _show_kept(device: str | None, ledger: str | None, as_json: bool) -> int:
    from stackmark.api.limits import kept_ceilings
    from stackmark.show.ceilings import print_ceilings
    from stackmark.show.terminal import standard_output

    found = kept_ceilings(device, ledger=ledger)
    if as_json:
        print_json(with_schema("ceilings", {"ceilings": [one.to_dict() for one in found]}))
        return Exit.DONE
    console = standard_output()
    for number, one in enumerate(found):
        if number:
            print(file=console.file)
        print_ceilings(one.kept, console)
    return Exit.DONE
