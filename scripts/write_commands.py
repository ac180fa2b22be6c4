"""Writes docs/commands.md: what `--help` prints, for every verb and what is below it. A test fails where it is not current.

    python scripts/write_commands.py > docs/commands.md

The width is fixed, so that the page does not depend on the terminal that it was made in.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import click

from stackmark.cli.main import our_verbs, stackmark

WIDTH = 100
# Lines of a section, from which on it is not printed twice.
WORTH_LEAVING_OUT = 4
HEAD = """# What can I type?

Everything here is what the program itself says with `--help`; the page is made by `python scripts/write_commands.py`. `-h` shows
the most important options of a command on one screen, `stackmark help` lists topics.

`-q`, `-v` and `--debug` may stand anywhere in a command: less output, more output, and the traceback of an error. Defaults of
options can be [set](configuration.md). Times are typed as `30s`, `250ms`, `2min`, `1h`;
moments as `7d` (ago), `2026-11-01` or `2026-11-01T08:00` (local time). A run is named by its id, any beginning of it that only
one run has, or `last`. Results go to standard output, progress and errors to standard error: on a terminal a bar,
elsewhere plain lines. [Exit codes](exit-codes.md) have a page of their own, and so has the [ledger](ledger.md).
"""
CLASSIC = """It takes the 137 flags of tf_cnn_benchmarks; `stackmark tf-cnn --help` lists those that act, and
[its page](tf-cnn.md) all of them. `--on` and the options of places are those of `stackmark run`.
"""


def page() -> str:
    with stackmark.make_context("stackmark", [], resilient_parsing=True, terminal_width=WIDTH) as top:
        parts = [HEAD, "## stackmark\n", block(stackmark.get_help(top))]
        repeated = Repeated()
        for verb in our_verbs():
            command = stackmark.get_command(top, verb)
            assert command is not None
            here = click.Context(command, parent=top, info_name=verb)
            said = repeated.shown(f"stackmark {verb}", command.get_help(here))
            parts += [f"## stackmark {verb}\n", CLASSIC if verb == "tf-cnn" else block(said)]
            group = command if isinstance(command, click.Group) else click.Group()
            for name in group.list_commands(here):
                below = group.get_command(here, name)
                assert below is not None
                inner = click.Context(below, parent=here, info_name=name)
                whole = f"stackmark {verb} {name}"
                parts += [f"### {whole}\n", block(repeated.shown(whole, below.get_help(inner)))]
    return "\n".join(parts)


def block(text: str) -> str:
    return "```\n" + "\n".join(line.rstrip() for line in text.splitlines()) + "\n```\n"


class Repeated:
    """Sections of options that several verbs have word for word are shown once: the second page of them is read by nobody."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def shown(self, command: str, text: str) -> str:
        parts = re.split(r"(?m)^(?=\S[^\n]*:$)", text)
        return "".join(self._part(command, part) for part in parts)

    def _part(self, command: str, part: str) -> str:
        head = part.partition("\n")[0]
        body, examples, rest = part.partition("\n  Examples:")
        if head == "Options:" or body.count("\n") < WORTH_LEAVING_OUT:
            return part
        first = self._seen.setdefault(body.strip(), command)
        return part if first == command else f"{head} as for {first}\n{examples}{rest}"


if __name__ == "__main__":
    sys.stdout.write(page())
