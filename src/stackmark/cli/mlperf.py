"""`stackmark mlperf`: what only MLPerf's own logs and programs need."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stackmark.cli.options import Subverbs, json_option, ledger_option, not_empty
from stackmark.cli.saying import notice, print_json, say

if TYPE_CHECKING:
    from stackmark.api.importing import Score, Style

EPILOG = """\b
Examples:
  stackmark mlperf score results/dgx1_mxnet/resnet
  stackmark mlperf score results --against "DGX-1"
  stackmark mlperf score results --chart minutes.png
  stackmark mlperf score results --against 0.6-17 --json
"""
LOG_EPILOG = """\b
Examples:
  stackmark mlperf log last -o results
  stackmark mlperf log x-01m7s6e4w9 -o results --style v0.6
"""
CHECK_EPILOG = """\b
Examples:
  stackmark mlperf check results/result_0.txt --ruleset 0.6.0
  stackmark mlperf check results/result_*.txt --ruleset 4.1.0 --json
"""
LOCAL_EPILOG = """\b
Examples:
  stackmark mlperf local resnet50 cpu
  stackmark mlperf local resnet50 gpu --scenario all --mlperf
  stackmark mlperf local resnet50 cpu --scenario Server --qps 20 --max-latency 100ms
  stackmark mlperf local resnet50 gpu --reference-log reference_app.log
"""
GROUP_EPILOG = """\b
Examples:
  stackmark mlperf score results --against "DGX-1"
  stackmark mlperf log last -o results
  stackmark mlperf check results/result_0.txt --ruleset 0.6.0
  stackmark mlperf local resnet50 cpu
"""


@click.group("mlperf", cls=Subverbs, epilog=GROUP_EPILOG)
def command() -> None:
    """Score, write and verify logs of MLPerf training; run its inference as the reference application does."""


@command.command("score", epilog=EPILOG)
@click.argument("folders", metavar="DIR…", nargs=-1, required=True, callback=not_empty)
@click.option(
    "--against",
    metavar="SYSTEM",
    default="DGX-1",
    callback=not_empty,
    help="The published system to compare with, or the number of its entry. [default: DGX-1]",
)
@click.option(
    "--chart",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    callback=not_empty,
    help="Draw ours and the published minutes into this file, which ends in .svg or .png.",
)
@click.option("--details", is_flag=True, help="Print our stack next to that of the published system.")
@json_option
def score(folders: tuple[str, ...], against: str, chart: Path | None, details: bool, as_json: bool) -> int:
    """Score the runs in DIR… by the rules of MLPerf Training v0.6.

    A folder holds one log a run (result_0.txt …); folders below it are searched too. The score is the mean without the
    fastest and the slowest run, in minutes, next to the published time of a system. The rules require five or ten runs;
    the score of another number of runs is unofficial.
    """
    from stackmark.api.importing import score_mlperf

    if chart is not None:
        from stackmark.show.writing import check_picture, check_writable

        check_picture(chart, "minutes.png")
        check_writable(chart)
    found = score_mlperf(folders, against)
    for folder in found.refused:
        say(folder.message, folder.hint)
    if as_json:
        print_json(found.to_dict())
    elif found.scores:
        _print(found.scores, details)
    if chart is not None and found.scores:
        found.chart().plot(chart)
        notice(f"chart written to {chart}")
    return found.exit_code


def _print(scores: "Sequence[Score]", details: bool) -> None:
    from stackmark.show.mlperf import print_scores
    from stackmark.show.terminal import standard_output

    print_scores(scores, standard_output(), details=details)
    for one in scores:
        for note in one.notes:
            notice(f"{one.benchmark}: {note}")
        if one.minutes is None:
            say(f"{one.folder}: {one.benchmark} has no score: {one.problem}")


@command.command("log", epilog=LOG_EPILOG)
@click.argument("name", metavar="RUN|EXPERIMENT", callback=not_empty)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    required=True,
    callback=not_empty,
    help="The folder for result_0.txt, result_1.txt …; it is made, and nothing in it is overwritten.",
)
@click.option(
    "--style",
    type=click.Choice(["mllog", "v0.6"]),
    default="mllog",
    help="The spelling of the lines: :::MLLOG, or :::MLL as in v0.6. [default: mllog]",
)
@ledger_option
@json_option
def log(name: str, folder: Path, style: "Style", ledger: str | None, as_json: bool) -> None:
    """Write the MLPerf logs of stored runs of fit/, a file for each run.

    `stackmark mlperf score` and MLCommons' own programs read them. The log of a tiny preset says that it is not a submission.
    """
    from stackmark.api.importing import write_mlperf_logs

    found = write_mlperf_logs(name, folder, style=style, ledger=ledger)
    if as_json:
        print_json(found.to_dict())
    else:
        from stackmark.show.mlperf import print_written

        print_written(found.written)


@command.command("check", epilog=CHECK_EPILOG)
@click.argument("files", metavar="FILE…", nargs=-1, required=True, callback=not_empty)
@click.option("--ruleset", metavar="VERSION", required=True, callback=not_empty, help="The rules, e.g. 0.6.0 or 4.1.0.")
@json_option
def check(files: tuple[str, ...], ruleset: str, as_json: bool) -> int:
    """Verify logs of MLPerf training by MLCommons' checker.

    It is the package mlperf-logging: pip install 'stackmark[mlperf]'.
    """
    from stackmark.api.importing import check_mlperf_logs

    found = check_mlperf_logs(files, ruleset)
    if as_json:
        print_json(found.to_dict())
    else:
        from stackmark.show.mlperf import print_checked

        print_checked(found.files)
    return found.exit_code


@command.command("local", epilog=LOCAL_EPILOG)
@click.argument("model", callback=not_empty)
@click.argument("device", metavar="cpu|gpu", callback=not_empty)
@click.option(
    "--scenario",
    metavar="NAME,…",
    default="SingleStream",
    callback=not_empty,
    help="SingleStream, MultiStream, Server, Offline, or all. [default: SingleStream]",
)
@click.option("--time", "seconds", metavar="TIME", help="Send queries for at least this long. [default: 10s]")
@click.option("--qps", "rate", metavar="X", help="Server: queries per second. [default: by a short trial]")
@click.option(
    "--max-latency", "latency_bound", metavar="TIME", help="Server: bound of the latency. [default: MLPerf's]"
)
@click.option("--max-batchsize", "batch", metavar="N", help="Most samples in one call of the model. [default: auto]")
@click.option(
    "--weights", metavar="FILE", callback=not_empty, help="A state dict of PyTorch. [default: random weights]"
)
@click.option("--mlperf", is_flag=True, default=None, help="At least the duration and the queries of MLPerf's rules.")
@click.option(
    "--reference-log",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="LOG",
    callback=not_empty,
    help="Also print the lines of these scenarios in a log of the reference application.",
)
@click.option("--published", is_flag=True, help="Also print the nearest published results, with what differs.")
@ledger_option
@json_option
def local(
    model: str,
    device: str,
    scenario: str,
    reference_log: Path | None,
    published: bool,
    ledger: str | None,
    as_json: bool,
    **typed: str | None,
) -> int:
    """Measure MODEL as MLPerf Inference's reference application does (run_local.sh), and print its line.

    Each scenario is one run of serve/MODEL with LoadGen, stored like any other: `stackmark show last` has everything about it.
    """
    from stackmark.api.mlperf_local import local_json, plan_local, read_reference_log, read_scenarios, run_local
    from stackmark.cli.saying import watching
    from stackmark.errors import Exit
    from stackmark.show.result import nearest_text

    scenarios = read_scenarios(scenario)
    others = read_reference_log(reference_log, scenarios) if reference_log is not None else []
    runs = []
    for plan in plan_local(model, device, scenarios, typed):
        with watching(quiet=as_json) as watcher:
            one = run_local(plan, ledger, watcher)
        runs.append(one)
        for row in one.result.measured.failed:
            say(f"{one.scenario}: {row.failure_message or row.failure_kind}", row.failure_hint)
        if as_json or not one.line:
            continue
        click.echo(one.line)
        notice(*(f"{one.scenario}: {said}" for said in one.flags))
        if published:
            click.echo(nearest_text(one.result.published))
    if as_json:
        print_json(local_json(runs, others))
    else:
        for line in others:
            click.echo(f"{reference_log}: {line}")
    failed = sum(not one.line for one in runs)
    return Exit.RUN_FAILED if failed == len(runs) else Exit.PART_FAILED if failed else Exit.DONE
