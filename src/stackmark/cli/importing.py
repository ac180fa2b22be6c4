"""`stackmark import`. Its file has another name than its verb, because `import` is a word of Python's own."""

from typing import TYPE_CHECKING, Any

import click

from stackmark.cli.options import json_option, ledger_option, not_empty
from stackmark.errors import Exit, SpecError
from stackmark.ledger.importers import formats
from stackmark.ranks import MOST_DEVICES
from stackmark.units import counted

if TYPE_CHECKING:
    from stackmark.experiments.importing import Imported
    from stackmark.ledger.store import Ledger


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
    help=f"One of {', '.join(formats())}. [default: found by itself]",
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
    from stackmark.api.options import repeatable
    from stackmark.cli.saying import notice, print_json, say
    from stackmark.experiments.cleaning import clean_up
    from stackmark.experiments.importing import ByHand, import_arms, import_files, read_params
    from stackmark.ledger.store import Ledger

    sides = _read_arms(arms, files, place)
    by_hand = ByHand(kind, workload, place, chip, ranks, read_params(params), label, note, again)
    by_hand.check()
    with Ledger.open(ledger) as book:
        notice(*clean_up(book))
        if sides:
            return _compared(import_arms(sides, book, by_hand, repeatable(asked)), book, as_json)
        imported = import_files(files, book, by_hand, repeatable(asked))
    for one in imported.refused:
        say(one.message, one.hint)
    if as_json:
        print_json(_json(imported))
    elif imported.files:
        _print(imported)
    return _exit_code(imported)


def _exit_code(imported: "Imported") -> Exit:
    if not imported.files:
        return Exit.WRONG_USE
    good = [run for run in imported.runs if run.status == "done"]
    if imported.refused or 0 < len(good) < len(imported.runs):
        return Exit.PART_FAILED
    return Exit.DONE if good else Exit.RUN_FAILED


def _read_arms(arms: tuple[str, ...], files: tuple[str, ...], place: str) -> dict[str, list[str]]:
    """The files of each arm, in the order in which the arms were first named."""
    sides: dict[str, list[str]] = {}
    for text in arms:
        name, equals, file = text.partition("=")
        if not equals or not file or not name:
            raise SpecError(f"--arm: {text!r} is no place and a file", hint="write it like --arm host=run1.log")
        sides.setdefault(name, []).append(file)
    if bool(sides) == bool(files):
        what = "either FILE… or --arm PLACE=FILE, not both" if files else "no file was named"
        raise SpecError(what, hint="see: stackmark import --help")
    if sides and len(sides) != 2:
        raise SpecError(
            f"--arm: two places are compared, and these were named: {', '.join(sides)}",
            hint="import the others by FILE… and compare them with: stackmark verdict RUN… --against RUN…",
        )
    if sides and place != "unknown":
        raise SpecError("--place does not go with --arm, which names its own")
    return sides


def _compared(sides: "list[Imported]", book: "Ledger", as_json: bool) -> int:
    """The verdict of the second arm against the first."""
    from stackmark.api.stored import verdict_of_groups
    from stackmark.cli.comparing import Wanted, report
    from stackmark.cli.saying import say

    refused = [file for one in sides for file in one.refused]
    for file in refused:
        say(file.message, file.hint)
    if not all(one.runs for one in sides):
        say("an arm has no log left: nothing was imported, and nothing compared")
        return Exit.WRONG_USE
    for one in sides:
        assert one.experiment is not None
        click.echo(f"{one.runs[0].place}: experiment {one.experiment.id}, {counted(len(one.runs), 'run')}", err=True)
        for run in one.runs:
            if run.status != "done":
                say(f"run {run.id}: {run.failure_message or run.failure_kind}", run.failure_hint)
    first, second = (one.experiment.id for one in sides if one.experiment)
    again = f"stackmark verdict {second} --against {first}"
    code = report(verdict_of_groups([second], [first], ledger=book, command=again), Wanted(as_json=as_json))
    return code or (Exit.PART_FAILED if refused else Exit.DONE)


def _json(imported: "Imported") -> dict[str, Any]:
    return {
        "experiment": imported.experiment.id if imported.experiment else None,
        "files": [
            {"file": one.name, "format": one.format, "sha256": one.sha256, "runs": list(one.run_ids)}
            for one in imported.files
        ],
        "refused": [{"file": one.name, "error": one.message, "hint": one.hint} for one in imported.refused],
        "runs": [run.model_dump(mode="json") for run in imported.runs],
    }


def _print(imported: "Imported") -> None:
    from stackmark.show.runs import print_runs
    from stackmark.show.safe import safe_line

    print_runs(imported.runs)
    for one in imported.files:
        click.echo(f"{safe_line(one.name)}: {one.format}, {counted(len(one.run_ids), 'run')}", err=True)
    assert imported.experiment is not None
    click.echo(f"experiment {imported.experiment.id}", err=True)
