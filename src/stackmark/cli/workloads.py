"""`stackmark workloads`."""

from fnmatch import fnmatch

import click
from pydantic import JsonValue

from stackmark.cli.options import json_option
from stackmark.cli.saying import notice, print_json
from stackmark.errors import SpecError, nearest_names
from stackmark.schemas import with_schema
from stackmark.units import say_count
from stackmark.workloads.definition import Definition, outside
from stackmark.workloads.registry import definitions

NOT_COUNTED = "–"


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
    found = [entry for entry in definitions() if fnmatch(entry.name, pattern)]
    notice(*(error.message for error in outside().broken.values()))
    if not found:
        known = nearest_names(pattern, [entry.name for entry in definitions()])
        raise SpecError(f"no workload is like {pattern!r}{known}", hint="list all with: stackmark workloads")
    if as_json:
        print_json(with_schema("workloads", {"workloads": [as_dict(entry) for entry in found]}))
    else:
        _print(found)
    return 0


def as_dict(entry: Definition) -> dict[str, JsonValue]:
    counts = ("name", "title", "sample", "sequence_tokens", "params", "forward_macs", "training_flops")
    return {**{name: getattr(entry, name) for name in counts}, "sets": dict(sets(entry))}


def sets(entry: Definition) -> dict[str, int | None]:
    """Of an operator: its lists, and how many problems each has; None where only the machine knows. The first is the default."""
    from stackmark.workloads.op.definition import problems

    if entry.operator is None:
        return {}
    op = entry.operator
    return {name: None if rows is None else len(problems(op.name, name)) for name, rows in op.sets.items()}


def _print(found: list[Definition]) -> None:
    lists = [entry for entry in found if entry.operator]
    models = [entry for entry in found if not entry.operator]
    if models:
        _print_models(models)
    if models and lists:
        click.echo()
    if lists:
        _print_operators(lists)


def _print_operators(found: list[Definition]) -> None:
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
    notice("Without --set the first one is taken.")


def _print_models(found: list[Definition]) -> None:
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
    notice("MACs and FLOPs are of one sample; a multiply-add is one MAC and two FLOPs.")
