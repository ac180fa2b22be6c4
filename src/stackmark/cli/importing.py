"""`stackmark import`. Its file has another name than its verb, because `import` is a word of Python's own."""

from typing import TYPE_CHECKING, Any

import click

from stackmark.api.options import log_formats
from stackmark.cli.options import json_option, ledger_option, not_empty
from stackmark.cli.saying import notice, print_json, say
from stackmark.errors import Exit, SpecError
from stackmark.ranks import MOST_DEVICES
from stackmark.units import counted

if TYPE_CHECKING:
    from stackmark.api.importing import ImportedArms, ImportedLogs


@click.command(
    "import",
    epilog="""\b
Examples:
  stackmark import host.log --place host --chip "Tesla T4" --param precision=fp32
  kubectl logs job/bench | stackmark import - --place pod --label upgraded
  stackmark import mlperf_log_summary.txt --workload serve/resnet50
  stackmark import --arm host=a1.log --arm host=a2.log --arm container=b1.log --arm container=b2.log
""",
)
@click.argument("files", metavar="FILE…", nargs=-1, callback=not_empty)
@click.option(
    "--arm",
    "arms",
    metavar="PLACE=FILE",
    multiple=True,
    callback=not_empty,
    help="Instead of FILE…: a log of one of two places, which are then compared; once for each file.",
)
@click.option(
    "--format",
    "kind",
    metavar="NAME",
    callback=not_empty,
    help=f"One of {', '.join(log_formats())}. [default: found by itself]",
)
@click.option("--workload", metavar="NAME", callback=not_empty, help="What was run, as we name it: train/resnet50.")
@click.option(
    "--place", metavar="NAME", default="unknown", help="Where it ran: host, container, pod. [default: unknown]"
)
@click.option("--chip", metavar="NAME", callback=not_empty, help="What it ran on, where the log does not say.")
@click.option("--ranks", type=click.IntRange(1, MOST_DEVICES), metavar="N", help="On how many devices, likewise.")
@click.option("--param", "params", metavar="NAME=VALUE", multiple=True, help="A parameter, likewise: precision=fp32.")
@click.option("--label", metavar="TEXT", default="", help="What to call these runs beside others.")
@click.option("--note", metavar="TEXT", default="", help="Kept with them: where the log is from.")
@click.option("--again", is_flag=True, help="Import a file though its content is already in the ledger.")
@ledger_option
@json_option
@click.pass_obj
def command(
    asked: tuple[str, ...],
    /,
    files: tuple[str, ...],
    arms: tuple[str, ...],
    kind: str | None,
    workload: str | None,
    place: str,
    chip: str | None,
    ranks: int | None,
    params: tuple[str, ...],
    label: str,
    note: str,
    again: bool,
    ledger: str | None,
    as_json: bool,
) -> int:
    """Import logs of other benchmarks: every result in FILE… becomes a run, which can be listed, shown and compared.

    `-` is standard input. Only what a log says is taken from it; what it does not say may be added by the options. A log
    without a result becomes a failed run. A file that cannot be imported is named with the reason, and the others are
    imported.
    """
    from stackmark.api.importing import import_arms, import_logs, read_params
    from stackmark.api.options import repeatable

    sides = _read_arms(arms, files, place)
    said: dict[str, Any] = {
        "format": kind, "workload": workload, "chip": chip, "ranks": ranks, "params": read_params(params), "label": label,
        "note": note, "again": again, "ledger": ledger, "notice": notice, "command": repeatable(asked),
    }  # fmt: skip
    if sides:
        return _print_compared(import_arms(sides, **said), as_json)
    imported = import_logs(files, place=place, **said)
    for one in imported.refused:
        say(one.message, one.hint)
    if as_json:
        print_json(imported.to_dict())
    elif imported.imported.files:
        _print(imported)
    return imported.exit_code


def _read_arms(arms: tuple[str, ...], files: tuple[str, ...], place: str) -> dict[str, list[str]]:
    """Return the files of each arm, in the order in which the arms were first named."""
    sides: dict[str, list[str]] = {}
    for text in arms:
        name, equals, file = text.partition("=")
        if not equals or not file or not name:
            raise SpecError(f"--arm: {text!r} is no place and a file", hint="write it like --arm host=run1.log")
        sides.setdefault(name, []).append(file)
    if bool(sides) == bool(files):
        what = "either FILE… or --arm PLACE=FILE, not both" if files else "no file was named"
        raise SpecError(what, hint="see: stackmark import --help")
    if sides and place != "unknown":
        raise SpecError("--place does not go with --arm, which names its own")
    return sides


def _print_compared(found: "ImportedArms", as_json: bool) -> int:
    """Print the verdict of the second arm against the first."""
    from stackmark.cli.comparing import Wanted, report

    for file in found.refused:
        say(file.message, file.hint)
    if not found.ok:
        say("an arm has no log left: nothing was imported, and nothing compared")
        return Exit.WRONG_USE
    for one in found.arms:
        click.echo(f"{one.runs[0].place}: experiment {one.experiment_id}, {counted(len(one.runs), 'run')}", err=True)
        for run in one.runs:
            if run.status != "done":
                say(f"run {run.id}: {run.failure_message or run.failure_kind}", run.failure_hint)
    code = report(found.verdict(), Wanted(as_json=as_json))
    return code or (Exit.PART_FAILED if found.refused else Exit.DONE)


def _print(found: "ImportedLogs") -> None:
    from stackmark.show.runs import print_runs
    from stackmark.show.safe import safe_line

    print_runs(found.runs)
    for one in found.imported.files:
        click.echo(f"{safe_line(one.name)}: {one.format}, {counted(len(one.run_ids), 'run')}", err=True)
    click.echo(f"experiment {found.experiment_id}", err=True)
