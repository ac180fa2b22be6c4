"""Writes docs/commands.md: what `--help` prints, for every verb. A test fails where the page is not current.

    python scripts/write_commands.py > docs/commands.md

The width is fixed, so that the page does not depend on the terminal that it was made in.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import click

from stackmark.cli.main import VERBS, stackmark

WIDTH = 100
HEAD = """# What can I type?

Everything here is what the program itself says with `--help`; the page is made by `python scripts/write_commands.py`.

`--debug` may stand anywhere in a command and adds the traceback to an error. Times are typed as `30s`, `250ms`, `2min`, `1h`;
moments as `7d` (ago), `2026-11-01` or `2026-11-01T08:00` (local time). A run is named by its id, any beginning of it that only
one run has, or `last`. Results go to standard output, progress and errors to standard error: on a terminal a bar and a panel,
elsewhere plain lines. [Exit codes](exit-codes.md) have a page of their own, and so has the [ledger](ledger.md).
"""
CLASSIC = """It takes the 137 flags of tf_cnn_benchmarks; `stackmark tf-cnn --help` lists those that act, and
[its page](tf-cnn.md) all of them.
"""


def page() -> str:
    with stackmark.make_context("stackmark", [], resilient_parsing=True, terminal_width=WIDTH) as top:
        parts = [HEAD, "## stackmark\n", block(stackmark.get_help(top))]
        for verb in VERBS:
            parts += [f"## stackmark {verb}\n", CLASSIC if verb == "tf-cnn" else block(help_of(top, verb))]
    return "\n".join(parts)


def help_of(top: click.Context, verb: str) -> str:
    command = stackmark.get_command(top, verb)
    assert command is not None
    return command.get_help(click.Context(command, parent=top, info_name=verb))


def block(text: str) -> str:
    return "```\n" + "\n".join(line.rstrip() for line in text.splitlines()) + "\n```\n"


if __name__ == "__main__":
    sys.stdout.write(page())
