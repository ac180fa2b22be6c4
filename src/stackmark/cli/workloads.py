"""`stackmark workloads`."""

from dataclasses import asdict
from fnmatch import fnmatch

import click

from stackmark.cli.options import json_option
from stackmark.cli.saying import print_json
from stackmark.errors import SpecError, nearest_names
from stackmark.units import say_count
from stackmark.workloads.catalog import Entry, entries

NOT_COUNTED = "–"
# The family whose workloads are lists of problems.
OPERATORS = "op"


@click.command(
    "workloads",
    epilog="""\b
Examples:
  stackmark workloads
  stackmark workloads 'train/resnet*'
  stackmark workloads 'op/*'
  stackmark workloads --json
""",
)
@click.argument("pattern", default="*")
@json_option
def command(pattern: str, as_json: bool) -> int:
    """List what can be measured, with parameters, size and operations of one sample; of operators, their lists of problems."""
    found = [entry for entry in entries() if fnmatch(entry.name, pattern)]
    if not found:
        known = nearest_names(pattern, [entry.name for entry in entries()])
        raise SpecError(f"no workload is like {pattern!r}{known}", hint="list all with: stackmark workloads")
    if as_json:
        print_json({"workloads": [{**asdict(entry), "sets": sets(entry)} for entry in found]})
    else:
        _print(found)
    return 0


def sets(entry: Entry) -> dict[str, int | None]:
    """Of an operator: its lists, and how many problems each has; None where only the machine knows. The first is the default."""
    from stackmark.workloads.op.lists import problems, sets_of
    from stackmark.workloads.op.problem import BY_MACHINE

    family, _, op = entry.name.partition("/")
    if family != OPERATORS:
        return {}
    return {name: None if op in BY_MACHINE else len(problems(op, name)) for name in sets_of(op)}


def _print(found: list[Entry]) -> None:
    models = [entry for entry in found if not entry.name.startswith(f"{OPERATORS}/")]
    operators = [entry for entry in found if entry.name.startswith(f"{OPERATORS}/")]
    if models:
        _print_models(models)
    if models and operators:
        click.echo()
    if operators:
        _print_operators(operators)


def _print_operators(found: list[Entry]) -> None:
    from stackmark.show.terminal import Column, print_table, standard_output

    columns = (Column("operator", style="cyan"), Column("sets, with their problems", drop=1), Column("what it is"))
    rows = [
        [
            entry.name,
            ", ".join(f"{name} {count}" if count else name for name, count in sets(entry).items()),
            entry.title,
        ]
        for entry in found
    ]
    print_table(standard_output(), columns, rows)
    click.echo("Without --set the first one is taken.", err=True)


def _print_models(found: list[Entry]) -> None:
    from stackmark.show.terminal import Column, print_table, standard_output

    columns = (
        Column("workload", style="cyan"),
        Column("parameters", right=True),
        Column("fp32 size", right=True, drop=1),
        Column("forward MACs", right=True, drop=2),
        Column("training FLOPs", right=True, drop=3),
        Column("what it is"),
    )
    rows = [
        [
            entry.name,
            say_count(entry.params) if entry.params else NOT_COUNTED,
            f"{entry.params * 4 / 2**20:,.1f} MiB" if entry.params else NOT_COUNTED,
            say_count(entry.forward_macs) if entry.forward_macs else NOT_COUNTED,
            say_count(entry.training_flops) if entry.training_flops else NOT_COUNTED,
            entry.title,
        ]
        for entry in found
    ]
    print_table(standard_output(), columns, rows)
    click.echo("MACs and FLOPs are of one sample; a multiply-add is one MAC and two FLOPs.", err=True)
