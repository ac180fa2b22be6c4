"""`stackmark tf-cnn`: the classic command line, run by the same worker and stored in the same ledger.

Flags of tf_cnn_benchmarks have underscores and are read as that program reads them. `--on` and the options of places are those
of `stackmark run`, with hyphens. No name is in both lists, so each may stand anywhere.
"""

import sys
from typing import Any

import click

from stackmark.api.classic import asks_for_help, help_text, run_classic
from stackmark.cli.forgiving import Forgiving
from stackmark.cli.options import place_fields, place_names, place_options, taken_place_options
from stackmark.cli.saying import notice
from stackmark.errors import Exit, SpecError


@click.command(
    "tf-cnn",
    cls=Forgiving,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.option(
    "--on",
    "place",
    default="host",
    metavar="PLACE[,KEY=VALUE…]",
    help=f"Where it runs: {place_names()}. [default: host]",
)
@place_options
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(asked: tuple[str, ...], /, place: str, flags: tuple[str, ...], **typed: Any) -> int:
    """The classic tf_cnn_benchmarks command line, drop-in: its flags, its output."""
    if asks_for_help(flags):
        click.echo(help_text())
        return Exit.DONE
    options = taken_place_options(typed)
    _refuse_underscores(flags)
    # The classic has no flag for a ledger; the variable STACKMARK_LEDGER names it.
    run_classic(flags, sys.stdout, on=place, place_options=options, notice=notice, command=asked)
    return Exit.DONE


def _refuse_underscores(flags: tuple[str, ...]) -> None:
    """Refuse an option of a place that is spelled as a classic flag is: the classic has no such flag."""
    for word in flags:
        name = word.lstrip("-").partition("=")[0]
        if word.startswith("-") and "_" in name and name in place_fields():
            raise SpecError(
                f"--{name} is an option of places, not a flag of tf_cnn_benchmarks",
                hint=f"write it with hyphens: --{name.replace('_', '-')}",
            )
