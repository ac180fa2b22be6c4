"""`stackmark mlperf`: what only MLPerf's own logs need."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from stackmark.cli.options import Subverbs, json_option, not_empty
from stackmark.cli.saying import print_json, say

if TYPE_CHECKING:
    from stackmark.api.importing import Score

EPILOG = """\b
Examples:
  stackmark mlperf score results/dgx1_mxnet/resnet
  stackmark mlperf score results --against "DGX-1"
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
    help="The published system to stand beside, or the number of its entry. [default: DGX-1]",
)
@json_option
def score(folders: tuple[str, ...], against: str, as_json: bool) -> int:
    """Score the runs in DIR… by the rules of MLPerf Training v0.6.

    A folder holds one log a run (result_0.txt …); folders below it are looked into. The score is the mean without the
    fastest and the slowest run, in minutes, beside the published time of a system.
    """
    from stackmark.api.importing import score_mlperf

    found = score_mlperf(folders, against)
    for folder in found.refused:
        say(folder.message, folder.hint)
    if as_json:
        print_json(found.to_dict())
    elif found.scores:
        _print(found.scores)
    return found.exit_code


def _print(scores: "Sequence[Score]") -> None:
    from stackmark.show.mlperf import print_scores
    from stackmark.show.safe import safe_line
    from stackmark.show.terminal import standard_output

    print_scores(scores, standard_output())
    for one in scores:
        for note in one.notes:
            click.echo(safe_line(f"{one.benchmark}: {note}"), err=True)
        if one.minutes is None:
            say(f"{one.folder}: {one.benchmark} has no score: {one.problem}")
