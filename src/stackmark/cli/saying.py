"""How the command line says that something went wrong, and how it prints for programs."""

import json
import os
import sys
from contextlib import suppress


def say(message: str, hint: str | None = None, command: str | None = None) -> None:
    """An error, for people: what is wrong, what to do, the command to see it by hand. Control characters are shown."""
    from stackmark.show.safe import safe

    lines = [
        f"stackmark: {message}",
        *(hint.split("\n") if hint else []),
        *([f"by hand: {command}"] if command else []),
    ]
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and not _plain() else ("", "")
    with suppress(OSError):  # nobody reads it: the exit code has to do
        print(f"{red}{safe(lines[0])}{plain}", file=sys.stderr)
        for line in lines[1:]:
            print(f"  {safe(line)}", file=sys.stderr)


def notice(*sentences: str) -> None:
    """Print what a person should know beside the result, on standard error."""
    from stackmark.show.safe import safe_line

    for sentence in sentences:
        print(safe_line(sentence), file=sys.stderr)


def _plain() -> bool:
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def print_json(data: object) -> None:
    """One object. ASCII, so that it is JSON whatever the terminal's encoding and whatever bytes a path holds."""
    json.dump(data, sys.stdout, indent=2, ensure_ascii=True, allow_nan=False)
    sys.stdout.write("\n")
