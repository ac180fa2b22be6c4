"""What a program prints, made into lines that can be searched and kept, whatever it is: a hundred megabytes, binary, a
progress bar that never ends its line.

A carriage return begins the line anew, as on a screen: each state of a progress bar is searched, and the last one is kept.
Colours and other escape sequences are taken out. Of a long line the beginning is looked at, of many lines the first ones
and the last ones are kept, so that neither can fill the memory.
"""

import codecs
import re
from collections import deque
from collections.abc import Callable, Sequence

from stackmark.secrets_masking import MASK

# Long enough for a result in one line of JSON. What is kept of a line is less: an event holds 8 KiB.
LINE_CHARACTERS = 16_384
KEPT_CHARACTERS = 2_000
FIRST_LINES, LAST_LINES = 300, 300
# A shorter value is no secret worth the name, and hiding it would take digits out of figures.
SHORTEST_HIDDEN = 6
# A sentence about a failure shows so many of the last lines, and so much of each.
SHOWN_LINES, SHOWN_CHARACTERS = 3, 160

# CSI (colours, cursor), OSC (titles, links) and the escapes of two characters.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


class Lines:
    """One of a program's two streams. `feed` gives every state of every line, `take` is handed what is kept of a line."""

    def __init__(self, take: Callable[[str], None], hidden: Sequence[str] = ()) -> None:
        """`hidden` are texts that must not be kept: values of variables that the program got as arguments."""
        self._take = take
        self._hidden = [text for text in hidden if len(text) >= SHORTEST_HIDDEN]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._part = ""
        self._overwritten = ""
        self._too_long = False
        self.last = ""
        self.cut = 0

    def feed(self, data: bytes, end: bool = False) -> list[str]:
        """The lines, and states of a line, that these bytes complete."""
        text = self._decoder.decode(data, end)
        *pieces, rest = text.split("\n") if "\r" not in text else re.split(r"(?<=\r)|\n", text)
        found = []
        for piece in pieces:
            self._add(piece.removesuffix("\r"))
            found.append(self._state())
            if piece.endswith("\r"):
                self._overwritten = found[-1] or self._overwritten
            else:
                self._keep(found[-1])
        self._add(rest)
        if end and (self._part or self._overwritten):
            found.append(self._state())
            self._keep(found[-1])
        return [state for state in found if state]

    def _add(self, piece: str) -> None:
        room = LINE_CHARACTERS - len(self._part)
        self._too_long |= len(piece) > room
        self._part += piece[:room]

    def _state(self) -> str:
        state, self._part = self._part, ""
        self.cut, self._too_long = self.cut + self._too_long, False
        state = _ESCAPES.sub("", state) if "\x1b" in state else state
        for text in self._hidden:
            state = state.replace(text, MASK)
        return state

    def _keep(self, state: str) -> None:
        # `100 %\r\n`, and a bar that was wiped away at the end: what stood there last is what a person remembers.
        line, self._overwritten = state or self._overwritten, ""
        if line.strip():
            self.last = line
        self._take(line[:KEPT_CHARACTERS])


class Kept:
    """The lines of a program that are kept: the first ones go out as they come, the last ones at the end."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._recent: deque[str] = deque(maxlen=SHOWN_LINES)
        self.count = 0

    def take(self, line: str) -> None:
        self.count += 1
        if line.strip():
            self._recent.append(line)
        if self.count <= FIRST_LINES:
            self._log(line)
        else:
            self._last.append(line)

    def close(self) -> None:
        left_out = self.count - FIRST_LINES - len(self._last)
        if left_out > 0:
            self._log(f"… {left_out:,} lines of the program's output are left out here …")
        while self._last:
            self._log(self._last.popleft())

    def ending(self) -> str:
        """The last lines that say something, for a sentence."""
        return " ⏎ ".join(short(line) for line in self._recent)


def short(line: str) -> str:
    """A line in a sentence: not too long, and nothing in it that does not print."""
    line = "".join(
        sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line[:KEPT_CHARACTERS].strip()
    )
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"
