"""A run's output as it is stored: lines joined by newlines, UTF-8, zlib.

A stream in a ledger is input like any other: a few kilobytes of zlib may stand for gigabytes. It is unpacked piece by piece and
given up when its lines take more memory than the longest real ones: a million events of 150 bytes take 200 MiB as Python's text.
"""

import codecs
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Protocol

MOST_MEMORY = 320 << 20
# Compressed: real streams have a tenth of their size, random bytes all of it.
MOST_STORED = 168 << 20
_PIECE = 1 << 20


class TooLong(Exception):
    """The output needs more memory than allowed for one run."""


class Budget:
    """Counts the memory of text lines, including their slot in a list."""

    def __init__(self) -> None:
        self.left_bytes = MOST_MEMORY

    def take(self, line: str) -> None:
        self.left_bytes -= sys.getsizeof(line) + 8
        if self.left_bytes <= 0:
            raise TooLong(f"its output takes more than {MOST_MEMORY >> 20} MiB")


class Lines(Protocol):
    """A run's output: a list, or lines in a file."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...


# surrogatepass: a worker's bytes that were no UTF-8 may have been decoded to lone surrogates, and are to come back so.
def pack_lines(lines: Iterable[str]) -> bytes:
    """Compress lines as they come: they may be more than should be in memory at once."""
    packer = zlib.compressobj()
    packed: list[bytes] = []
    for number, line in enumerate(lines):
        packed.append(packer.compress((f"\n{line}" if number else line).encode("utf-8", "surrogatepass")))
    packed.append(packer.flush())
    return b"".join(packed)


def check_stored(size_bytes: int) -> None:
    """Refuse a compressed stream before it is read."""
    if size_bytes > MOST_STORED:
        raise TooLong(f"its output has {size_bytes >> 20} MiB compressed; the limit is {MOST_STORED >> 20} MiB")


def unpack_lines(data: bytes) -> list[str]:
    """Return the lines; raises TooLong, zlib.error or UnicodeDecodeError."""
    check_stored(len(data))
    budget = Budget()
    lines: list[str] = []
    unfinished: list[str] = []  # pieces of a line whose end has not come yet
    for piece in _pieces(data):
        first, *others = piece.split("\n")
        unfinished.append(first)
        budget.take(first)
        for line in others:
            budget.take(line)
            lines.append("".join(unfinished))
            unfinished = [line]
    lines.append("".join(unfinished))
    return lines


def _pieces(data: bytes) -> Iterator[str]:
    unpack = zlib.decompressobj()
    decode = codecs.getincrementaldecoder("utf-8")("surrogatepass").decode
    left = data
    while not unpack.eof:
        piece = unpack.decompress(left, _PIECE)
        left = unpack.unconsumed_tail
        if not piece and not left and not unpack.eof:
            raise zlib.error("the compressed output is cut off")
        yield decode(piece)
    yield decode(b"", True)
