"""`stackmark trend`."""

from pathlib import Path

import click

from stackmark.cli.options import json_option, ledger_option, not_empty, read_margin
from stackmark.cli.saying import print_json
from stackmark.errors import Exit


@click.command(
    "trend",
    epilog="""\b
Examples:
  stackmark trend train/resnet50
  stackmark trend train/resnet50 --machine gpu-7 -o trend.svg
""",
)
@click.argument("workload", callback=not_empty)
@click.option(
    "--machine", metavar="NAME", callback=not_empty,
    help="Only this one: the beginning of a machine's id, a node or a GPU's UUID, or a part of a chip's name.",
)  # fmt: skip
@click.option("--place", metavar="PLACE", callback=not_empty, help="Only runs in this place: host.")
@click.option("--margin", default="1%", metavar="SHARE", help="Leave out smaller changes. [default: 1%]")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", callback=not_empty,
    help="Also draw it: .svg or .png.",
)  # fmt: skip
@ledger_option
@json_option
def command(
    workload: str,
    machine: str | None,
    place: str | None,
    margin: str,
    output: Path | None,
    ledger: str | None,
    as_json: bool,
) -> int:
    """Show all stored series of WORKLOAD over time, when its figure changed, by how much, and what changed with it.

    Everything is computed from the ledger; nothing is run. Series of another spec, place or chip are a trend of their own.
    """
    from stackmark.api.baselines import trend
    from stackmark.show.terminal import standard_output
    from stackmark.show.trend import print_history
    from stackmark.show.writing import check_picture

    if output:
        check_picture(output, "trend.svg")
    found = trend(workload, machine=machine, place=place, margin=read_margin(margin), ledger=ledger)
    if as_json:
        print_json(found.to_dict())
    else:
        print_history(found.workload, found.trends, standard_output())
    if output:
        found.plot(output)
        click.echo(f"picture of {found.workload} written to {output}", err=True)
    return Exit.DONE
