"""`stackmark roofline`."""

from pathlib import Path

import click

from stackmark.cli.options import json_option, ledger_option, not_empty
from stackmark.units import counted


@click.command(
    "roofline",
    epilog="""\b
Examples:
  stackmark roofline last
  stackmark roofline x-01k9 x-01ka -o roofline.svg
  stackmark roofline r-01k9 --json
""",
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN…", callback=not_empty)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    callback=not_empty,
    help="Draw it too: a file that ends in .svg or .png.",
)
@ledger_option
@json_option
def command(runs: tuple[str, ...], output: Path | None, ledger: str | None, as_json: bool) -> int:
    """Show how far stored RUNs are from their machine's limits: the share of its matrix rate and of its memory's bandwidth.

    RUN is the id of a run or of an experiment, any unique beginning of one, or `last`; a list (op/…) gives a point a problem. The
    limits are those that `stackmark ceilings` measured on the same chip. Everything is computed from the ledger; nothing is run.
    """
    from stackmark.api.limits import roofline
    from stackmark.cli.saying import notice, print_json
    from stackmark.show.roofline import print_roofline
    from stackmark.show.terminal import standard_output
    from stackmark.show.writing import check_picture

    if output:
        check_picture(output, "roofline.svg")
    found = roofline(runs, ledger=ledger)
    if output:
        found.plot(output)
    if as_json:
        print_json(found.to_dict())
    else:
        print_roofline(found.roofline, standard_output())
    if output:
        notice(f"picture of {counted(len(found.roofline.points), 'point')} written to {output}")
    return 0
