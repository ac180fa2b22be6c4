"""`stackmark mlperf`: what only MLPerf's own logs need."""

from typing import TYPE_CHECKING, Any

import click

from stackmark.cli.options import Subverbs, json_option, not_empty
from stackmark.errors import Exit

if TYPE_CHECKING:
    from stackmark.experiments.mlperf import Score

EPILOG = """\b
Examples:
  stackmark mlperf score results/dgx1_mxnet/resnet
  stackmark mlperf score results --against "DGX-1"
  stackmark mlperf score results --against 0.6-17 --json
"""


@click.group("mlperf", cls=Subverbs, no_args_is_help=False, epilog=EPILOG)
def command() -> None:
    """Score logs of MLPerf training by its rules."""


@command.command("score", epilog=EPILOG)
@click.argument("folders", metavar="DIR…", nargs=-1, required=True, callback=not_empty)
@click.option(
    "--against",
    metavar="SYSTEM",
    default="DGX-1",
    callback=not_empty,
    help="The published system to stand beside, or the number of its entry. [default: DGX-1]",
)
@json_option
def score(folders: tuple[str, ...], against: str, as_json: bool) -> int:
    """Score the runs in DIR… by the rules of MLPerf Training v0.6.

    A folder holds one log a run (result_0.txt …); folders below it are looked into. The score is the mean without the
    fastest and the slowest run, in minutes, beside the published time of a system.
    """
    from stackmark.cli.saying import print_json, say
    from stackmark.experiments.mlperf import score_folders

    scores, refused = score_folders(folders, against)
    for folder in refused:
        say(folder.message, folder.hint)
    if as_json:
        left_out = [{"folder": one.folder, "error": one.message, "hint": one.hint} for one in refused]
        print_json({"scores": [_json(one) for one in scores], "refused": left_out})
    elif scores:
        _print(scores)
    good = [one for one in scores if one.minutes is not None]
    if not scores:
        return Exit.WRONG_USE
    if good and (refused or len(good) < len(scores)):
        return Exit.PART_FAILED
    return Exit.DONE if good else Exit.RUN_FAILED


def _print(scores: "list[Score]") -> None:
    from stackmark.cli.saying import say
    from stackmark.show.safe import safe_line
    from stackmark.show.terminal import Column, print_table, standard_output

    columns = (
        Column("benchmark", style="cyan"), Column("runs", right=True), Column("shortest", right=True, drop=1),
        Column("longest", right=True, drop=1), Column("score", right=True), Column("published", right=True),
        Column("against it"),
    )  # fmt: skip
    print_table(standard_output(), columns, [_cells(one) for one in scores if one.minutes is not None])
    for row in {one.against.row.system: one.against.row for one in scores if one.against}.values():
        click.echo(
            f"minutes to the target; published: {row.system}, {row.extra.get('submitter')}, {row.source}, {row.date}"
        )
    for one in scores:
        for note in one.notes:
            click.echo(safe_line(f"{one.benchmark}: {note}"), err=True)
        if one.minutes is None:
            say(f"{one.folder}: {one.benchmark} has no score: {one.problem}")


def _cells(one: "Score") -> list[str]:
    times = [run.seconds / 60 for run in one.runs if run.seconds is not None]
    published = f"{one.against.row.value:.2f}" if one.against else ""
    return [
        one.benchmark, str(len(one.runs)), f"{min(times):.2f}", f"{max(times):.2f}", f"{one.minutes:.2f}", published,
        _difference(one),
    ]  # fmt: skip


def _difference(one: "Score") -> str:
    if one.against is None or one.minutes is None:
        return ""
    if f"{one.minutes:.2f}" == f"{one.against.row.value:.2f}":
        return "the same minutes"
    word = "slower" if one.against.percent > 0 else "faster"
    return f"{abs(one.against.percent):.2f} % {word}"


def _json(one: "Score") -> dict[str, Any]:
    against = one.against
    return {
        "folder": one.folder,
        "benchmark": one.benchmark,
        "platform": one.platform or None,
        "minutes": one.minutes,
        "problem": one.problem or None,
        "notes": list(one.notes),
        "runs_asked": one.asked,
        "runs": [{"file": run.file, "seconds": run.seconds, "problem": run.problem or None} for run in one.runs],
        "against": None
        if against is None
        else {
            "system": against.row.system,
            "submitter": against.row.extra.get("submitter"),
            "source": against.row.source,
            "minutes": against.row.value,
            "percent_slower": against.percent,
        },
    }
