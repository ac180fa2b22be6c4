"""`stackmark plot`."""

from pathlib import Path

import click

from stackmark.cli.options import ledger_option, not_empty, read_margin


@click.command(
    "plot",
    epilog="""\b
Examples:
  stackmark plot last -o verdict.svg
  stackmark plot x-01k9 -o verdict.png --margin 2%
""",
)
@click.argument("experiment", callback=not_empty)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    required=True,
    callback=not_empty,
    help="The file, which ends in .svg or .png.",
)
@click.option("--margin", metavar="SHARE", help="What counts as a difference. [default: as it was asked, or 1%]")
@ledger_option
def command(experiment: str, output: Path, margin: str | None, ledger: str | None) -> int:
    """Draw a stored EXPERIMENT: the ratio with its intervals against the margin, and the rate of every run.

    EXPERIMENT is an id, any unique beginning of one, or `last`. Everything is computed from the ledger; nothing is run.
    """
    from stackmark.api.ledgers import Ledger
    from stackmark.api.stored import FAULT, load
    from stackmark.show.plot import plot_png, plot_svg
    from stackmark.show.writing import check_picture, write_picture

    check_picture(output, "verdict.svg")
    chosen = read_margin(margin) if margin is not None else None
    with Ledger.open(ledger, create=False) as book:
        stored = load(experiment, book)
        if stored.kind() is FAULT:
            from stackmark.cli.cluster_fault import draw

            draw(stored.fault(), output)
            return 0
        examined = stored.verdict(chosen).examined
    write_picture(output, lambda: plot_svg(examined), lambda: plot_png(examined))
    click.echo(f"picture of {examined.experiment_id} written to {output}", err=True)
    return 0
