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
    from stackmark.api.importing import ImportedArms, ImportedLedgers, ImportedLogs


@click.command(
    "import",
    epilog="""\b
Examples:
  stackmark import host.log --place host --chip "Tesla T4" --param precision=fp32
  kubectl logs job/bench | stackmark import - --place pod --label upgraded
  stackmark import mlperf_log_summary.txt --workload serve/resnet50
  stackmark import --arm host=a1.log --arm host=a2.log --arm container=b1.log --arm container=b2.log
  stackmark import --table results.csv --map rate=images_per_sec,workload=model,chip=gpu
  kubectl logs job/stackmark-canary | stackmark import - --place pod
  stackmark import other-machine.sqlite3
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
@click.option("--table", is_flag=True, help="FILE… are tables (CSV): every row becomes a run.")
@click.option(
    "--map",
    "columns",
    metavar="FIELD=COLUMN,…",
    multiple=True,
    callback=not_empty,
    help="With --table: which column is what. Fields: workload, rate or time, unit, chip, ranks, precision, batch, place, "
    "framework, date, label, task, param.NAME; COLUMN `-` leaves a field out. [default: by the columns' names]",
)
@click.option("--unit", metavar="UNIT", callback=not_empty, help="With --table: the unit of the rate or the time.")
@click.option(
    "--arm-column",
    metavar="COLUMN",
    callback=not_empty,
    help="With --table: the column whose two values are compared, e.g. host and container.",
)
@click.option(
    "--workload",
    "workloads",
    metavar="NAME",
    multiple=True,
    callback=not_empty,
    help="What was run: train/resnet50. Once for all results of a file, or once for each, in their order.",
)
@click.option(
    "--place", metavar="NAME", default="unknown", help="Where it ran: host, container, pod. [default: unknown]"
)
@click.option(
    "--chip",
    "chips",
    metavar="NAME",
    multiple=True,
    callback=not_empty,
    help="What it ran on, where the log does not say. Once for all results, or once for each.",
)
@click.option("--ranks", type=click.IntRange(1, MOST_DEVICES), metavar="N", help="On how many devices, likewise.")
@click.option("--param", "params", metavar="NAME=VALUE", multiple=True, help="A parameter, likewise: precision=fp32.")
@click.option("--label", metavar="TEXT", default="", help="What to call these runs in lists.")
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
    table: bool,
    columns: tuple[str, ...],
    unit: str | None,
    arm_column: str | None,
    workloads: tuple[str, ...],
    place: str,
    chips: tuple[str, ...],
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
    imported. A saved log of a stackmark worker is imported as the run that it recorded.

    A FILE that is another ledger (SQLite, or a postgresql:// URL) is copied: its runs and experiments keep their ids, and what
    is already here is skipped, so that the same import can be repeated.
    """
    from stackmark.api.importing import (
        ImportedArms,
        import_arms,
        import_ledgers,
        import_logs,
        import_table,
        is_ledger,
        read_params,
    )
    from stackmark.api.options import repeatable

    ledgers = [file for file in files if is_ledger(file)]
    if ledgers:
        given = {"--arm": arms, "--format": kind, "--table": table, "--map": columns, "--unit": unit,
                 "--arm-column": arm_column, "--workload": workloads, "--place": place != "unknown", "--chip": chips,
                 "--ranks": ranks, "--param": params, "--label": label, "--note": note}  # fmt: skip
        _check_ledgers(files, ledgers, [option for option, value in given.items() if value])
        return _print_ledgers(import_ledgers(ledgers, again=again, ledger=ledger, notice=notice), as_json)
    sides = _read_arms(arms, files, place)
    said: dict[str, Any] = {
        "workload": workloads, "chip": chips, "ranks": ranks, "params": read_params(params), "label": label, "note": note,
        "again": again, "ledger": ledger, "notice": notice, "command": repeatable(asked),
    }  # fmt: skip
    found: ImportedLogs | ImportedArms
    if table:
        _refuse_with_table("--arm", arms, "use --arm-column: it names the column that divides the rows into arms")
        _refuse_with_table("--format", kind, "leave one of them out")
        found = import_table(files, columns=columns, unit=unit, arm_column=arm_column, place=place, **said)
    else:
        _refuse_without_table(columns, unit, arm_column)
        found = (
            import_arms(sides, format=kind, **said) if sides else import_logs(files, format=kind, place=place, **said)
        )
    if isinstance(found, ImportedArms):
        return _print_compared(found, as_json)
    for one in found.refused:
        say(one.message, one.hint)
    if as_json:
        print_json(found.to_dict())
    elif found.imported.files:
        _print(found)
    return found.exit_code


def _check_ledgers(files: tuple[str, ...], ledgers: list[str], options: list[str]) -> None:
    """Refuse logs next to ledgers, and options that describe logs: a ledger says all of its runs itself."""
    if len(ledgers) < len(files):
        log = next(file for file in files if file not in ledgers)
        raise SpecError(f"{ledgers[0]} is a ledger and {log} is not", hint="import ledgers and logs by two commands")
    if options:
        raise SpecError(f"{options[0]} is for logs, but {ledgers[0]} is a ledger", hint=f"leave {options[0]} out")


def _print_ledgers(found: "ImportedLedgers", as_json: bool) -> int:
    for file in found.refused:
        say(file.message, file.hint)
    if as_json:
        print_json(found.to_dict())
        return found.exit_code
    for one in found.copied:
        click.echo(f"{one.where}: {counted(one.runs, 'run')} of {counted(one.experiments, 'new experiment')} imported")
        skipped = (
            (one.known_runs, "already here: skipped"),
            (one.running, "not ended there yet: left out"),
            (one.from_known_logs, "from logs that are imported here already: left out; --again imports them"),
        )
        notice(*(f"{counted(count, 'run')} {why}" for count, why in skipped if count))
    return found.exit_code


def _refuse_with_table(option: str, given: object, hint: str) -> None:
    if given:
        raise SpecError(f"{option} is for logs, but --table says that the files are tables", hint=hint)


def _refuse_without_table(columns: tuple[str, ...], unit: str | None, arm_column: str | None) -> None:
    for option, given in (("--map", columns), ("--unit", unit), ("--arm-column", arm_column)):
        if given:
            raise SpecError(f"{option} is for tables, but these files are read as logs", hint="add --table")


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
    from stackmark.show.group_table import print_group_table
    from stackmark.show.terminal import standard_output

    for file in found.refused:
        say(file.message, file.hint)
    if not found.ok:
        say("an arm has no log left: nothing was imported, and nothing compared")
        return Exit.WRONG_USE
    sides = ", ".join(f"{one.runs[0].place}: {counted(len(one.runs), 'run')}" for one in found.arms)
    notice(f"experiment {found.experiment_id}: {sides}")
    for one in found.arms:
        for run in one.runs:
            if run.status != "done":
                say(f"run {run.id}: {run.failure_message or run.failure_kind}", run.failure_hint)
    _print_notes(found.arms[0])
    for run in found.not_compared:
        notice(
            f"not compared: {run.id}, {run.workload} in {run.place}: the other arm has no successful run with this spec"
        )
    part = Exit.PART_FAILED if found.refused else Exit.DONE
    table = found.table()
    if table is None or len(found.shared_specs) == 1:
        return report(found.verdicts()[0], Wanted(as_json=as_json)) or part
    if as_json:
        print_json(found.to_dict())
    else:
        print_group_table(table.table, standard_output())
    return table.exit_code() or part


def _print(found: "ImportedLogs") -> None:
    from stackmark.show.mlperf import print_published_times
    from stackmark.show.runs import print_runs

    print_runs(found.runs)
    published = found.imported.published
    if published:
        click.echo()
        print_published_times([(row, published[row.id]) for row in found.runs if row.id in published])
    for one in found.imported.files:
        notice(f"{one.name}: {one.format}, {counted(len(one.run_ids), 'run')}")
    _print_notes(found)
    notice(f"experiment {found.experiment_id}")


def _print_notes(found: "ImportedLogs") -> None:
    """Print how the columns of tables were read."""
    notice(*(note for one in found.imported.files for note in one.notes))
