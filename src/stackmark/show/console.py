"""The two outputs that everything is printed on, with the same habits.

Rich ends the whole program with code 1 when its reader is gone (`| head -1`); whoever read has seen enough, and what that
means is decided at the door (cli/main.py). It also turns `:words:` into emoji, which has no place in a log line. A screen is
a terminal that can move its cursor: a dumb one gets plain lines, like a pipe.
"""

from rich.console import Console


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # rich calls this while it handles the BrokenPipeError, which goes on its way


def standard_output() -> Console:
    return _Console(highlight=False, emoji=False)


def standard_error() -> Console:
    return _Console(stderr=True, highlight=False, emoji=False)


def is_screen(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal
