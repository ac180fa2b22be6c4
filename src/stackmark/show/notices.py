"""Sentences beside a result, a line each, on standard error: whoever reads them may go away, and that stops nothing."""

from typing import TextIO

from stackmark.show.safe import safe_line


class Voice:
    """The base of all that tells plain lines while something works."""

    def __init__(self, out: TextIO) -> None:
        self._out: TextIO | None = out

    def _say(self, text: str) -> None:
        try:
            if self._out is not None:
                print(safe_line(text), file=self._out, flush=True)
        except OSError:
            self._out = None  # nobody reads it any more

    def notice(self, sentence: str) -> None:
        self._say(sentence)
