"""`stackmark watch`."""

import click

from stackmark.cli.options import json_option, ledger_option, not_empty


@click.command(
    "watch",
    epilog="\b\nExamples:\n  stackmark watch last\n  stackmark watch x-01k9 --ledger postgresql://bench@db/results"
    "\n  stackmark watch last --json | jq -c '[.state, .share, .left_s]'",
)
@click.argument("experiment", default="last", callback=not_empty)
@ledger_option
@json_option
def command(experiment: str, ledger: str | None, as_json: bool) -> int:
    """Watch an EXPERIMENT that another process carries out, until it ends: the run at hand, and those before.

    It reads the ledger, so it can run wherever the ledger can be read; the measurement does not notice. EXPERIMENT is an id
    (x-…), any unique beginning of one, or `last`. It ends with the experiment, with an exit code that says how: 0 finished,
    3 no number, 4 its driver was killed, 130 or 143 interrupted. `--json` prints one object a line for each change.
    """
    from stackmark.api.watching import follow, to_dict
    from stackmark.cli.saying import print_json_line, watching_others
    from stackmark.show.terminal import standard_output
    from stackmark.show.watching import print_end

    news = follow(experiment, ledger)
    found = next(news)
    if as_json:
        print_json_line(to_dict(found))
    if found.is_at_work:
        with watching_others(quiet=as_json) as follower:
            follower.take(found)
            for found in news:
                follower.take(found)
                if as_json:
                    print_json_line(to_dict(found))
    if not as_json:
        print_end(found, standard_output())
    return found.exit_code
