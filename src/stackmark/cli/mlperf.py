"""`stackmark mlperf`: what only MLPerf's own logs need."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stackmark.cli.options import Subverbs, json_option, not_empty
from stackmark.cli.saying import notice, print_json, say

if TYPE_CHECKING:
    from stackmark.api.importing import Score

EPILOG = """\b
Examples:
  stackmark mlperf score results/dgx1_mxnet/resnet
  stackmark mlperf score results --against "DGX-1"
  stackmark mlperf score results --chart minutes.png
  stackmark mlperf score results --against 0.6-17 --json
"""


@click.group("mlperf", cls=Subverbs, epilog=EPILOG)
def command() -> None:
    """Score logs of MLPerf training by its rules."""


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
