"""Arguments that are not UTF-8: taken as names of files, refused everywhere else.

A name of a file may hold any bytes; Python keeps those that are no UTF-8 as halves of surrogate pairs, and gives them back to
the system. All other text goes into JSON, into a database or to a worker, none of which takes it.
"""

import click

# Parameters that are only ever the name of a file or folder, or where the ledger is.
PATHS = frozenset({"ledger", "output", "junit", "report", "files", "file", "folders"})


class Utf8(click.types.StringParamType):
    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(super().convert(value, param, ctx))
        if not text.isascii() and text.encode("utf-8", "ignore").decode() != text:
            self.fail(f"{text!r} holds bytes that are not UTF-8", param, ctx)
        return text


def take_text_only(command: click.Command) -> None:
    """Have every parameter of a command, and of those below it, refuse what is not UTF-8, unless it is a path."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            take_text_only(inner)
    for param in command.params:
        plain = isinstance(param.type, click.types.StringParamType | click.types.UnprocessedParamType)
        if plain and param.name not in PATHS:
            param.type = _UTF8


_UTF8 = Utf8()
