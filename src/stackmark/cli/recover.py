"""`stackmark recover`."""

from pathlib import Path

import click

from stackmark.cli.options import json_option, ledger_option


@click.command(
    "recover",
    epilog="\b\nExamples:\n  stackmark recover\n  stackmark recover /media/usb/r-01m7ey4d2q8v0000000000000.jsonl",
)
@click.argument("files", nargs=-1, metavar="[FILE…]", type=click.Path(path_type=Path))
@ledger_option
@json_option
def command(files: tuple[Path, ...], ledger: str | None, as_json: bool) -> int:
    """Store runs that were saved in files because the ledger could not be written when they ended.

    Without a FILE, it takes those that wait next to the ledger, in your data folder and in the temporary folder. Every
    command that measures or lists runs does this too, before it does anything else.
    """
    from stackmark.api.ledgers import recover
    from stackmark.cli.saying import notice, print_json, say
    from stackmark.show.safe import safe_line

    found = recover(files, ledger=ledger)
    if as_json:
        print_json(found.to_dict())
    else:
        for one in found.stored:
            click.echo(f"{one.run_id}  stored from {safe_line(str(one.path))}")
        if not found.files:
            notice("no run waits to be stored")
    for one in found.kept:
        say(f"{one.path} was kept: {one.trouble}", "delete the file if you do not need it")
    return found.exit_code
