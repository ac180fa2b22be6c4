"""`stackmark tf-cnn`: the classic command line, run by the same worker and stored in the same ledger."""

import sys

import click

from stackmark.api.classic import asks_for_help, help_text, run_classic
from stackmark.cli.saying import notice
from stackmark.errors import Exit


@click.command(
    "tf-cnn",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "allow_extra_args": True},
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def command(flags: tuple[str, ...]) -> int:
    """The classic tf_cnn_benchmarks command line, drop-in: its flags, its output."""
    if asks_for_help(flags):
        click.echo(help_text())
        return Exit.DONE
    # The classic has no flag for a ledger; the variable STACKMARK_LEDGER names it.
    run_classic(flags, sys.stdout, notice=notice)
    return Exit.DONE
