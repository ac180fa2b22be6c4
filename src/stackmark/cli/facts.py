"""`stackmark facts`."""

import click

from stackmark.cli.forgiving import Forgiving
from stackmark.cli.options import json_option, place_names
from stackmark.cli.saying import print_json
from stackmark.errors import Exit


@click.command(
    "facts",
    cls=Forgiving,
    epilog="\b\nExamples:\n  stackmark facts\n  stackmark facts gpu cpu\n  stackmark facts --json\n"
    "  stackmark facts software --on container,image=nvcr.io/nvidia/pytorch:26.10-py3",
)
@click.argument("subjects", nargs=-1)
@click.option(
    "--on",
    default="host",
    metavar="PLACE[,KEY=VALUE…]",
    help=f"Where to look, e.g. container,image=REF for what is in an image: {place_names()}. [default: host]",
)
@json_option
def command(subjects: tuple[str, ...], on: str, as_json: bool) -> int:
    """Show what this stack is, as a worker sees it from there: chip, driver, versions, limits.

    SUBJECTS narrows it to some of: host cpu numa memory cgroup container limits process gpu gpu_amd pci software
    packages environment stackmark.
    """
    from stackmark.api.stack import facts
    from stackmark.show.facts import print_facts

    seen = facts(subjects, on=on)
    if as_json:
        print_json(seen.to_dict())
    else:
        print_facts(seen.facts, seen.problems)
    return Exit.DONE
