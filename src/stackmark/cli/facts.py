"""`stackmark facts`."""

import click

from stackmark.cli.options import json_option
from stackmark.cli.saying import print_json
from stackmark.errors import Exit


@click.command("facts", epilog="\b\nExamples:\n  stackmark facts\n  stackmark facts gpu cpu\n  stackmark facts --json")
@click.argument("subjects", nargs=-1)
@json_option
def command(subjects: tuple[str, ...], as_json: bool) -> int:
    """Show what this stack is, as a worker sees it from here: chip, driver, versions, limits.

    SUBJECTS narrows it to some of: host cpu numa memory cgroup container limits process gpu gpu_amd pci software
    packages environment stackmark.
    """
    from stackmark.api.stack import facts
    from stackmark.show.facts import print_facts

    seen = facts(subjects)
    if as_json:
        print_json(seen.to_dict())
    else:
        print_facts(seen.facts, seen.problems)
    return Exit.DONE
