"""A worker's lines on their way to the ledger: in memory while they are few, in a file without a name past a bound.

A driver may listen to a worker for days, and to a worker that has gone mad. The lines are kept as bytes, so that a million
of them do not become a million objects; past 16 MiB they go to a temporary file, which this user alone can read and which is gone
with the process, however it ends. Past an absolute bound the run has failed: no disk is filled by a worker's output.
"""

import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO

from stackmark.errors import StreamError
from stackmark.units import say_size

IN_MEMORY_BYTES = 16 * 2**20
# A day of telemetry, one line a second, is 20 MiB; a run of a million steps, 12 MiB. What is kept must fit into what a ledger
# reads again (ledger/streams.py), with what Python takes for each line.
MOST_BYTES = 160 * 2**20
MOST_LINES = 1_500_000
# Of all that a worker prints, what is not kept too.
MOST_HEARD_BYTES = 4 * MOST_BYTES


def too_much(lines: int) -> StreamError:
    """Return the error that ends a run whose worker floods its output."""
    return StreamError(
        f"the worker's output was ended after {lines:,} lines: at most {MOST_LINES:,} lines or {say_size(MOST_BYTES)} are kept",
        line=lines + 1,
        hint="take a shorter run (--seconds, --steps), or a program that prints less",
    )


class Spool:
    """Lines in the order in which they came; sized, and to be read as often as one likes."""

    def __init__(self) -> None:
        self._file: IO[bytes] = io.BytesIO()
        self._on_disk = False
        self._lines = self._bytes = 0

    def append(self, line: str) -> None:
        """Add a line; raise a StreamError where it is one too many."""
        # surrogatepass: bytes that were no UTF-8 may have been decoded to lone surrogates, and are to come back so.
        data = line.encode("utf-8", "surrogatepass") + b"\n"
        if self._lines >= MOST_LINES or self._bytes + len(data) > MOST_BYTES:
            raise too_much(self._lines)
        self._add(data)

    def _add(self, data: bytes) -> None:
        if not self._on_disk and self._bytes + len(data) > IN_MEMORY_BYTES:
            self._go_to_disk()
        self._file.write(data)
        self._lines += 1
        self._bytes += len(data)

    def append_anyway(self, line: str) -> None:
        """Add a line of our own, past any bound: few of them, at the end."""
        self._add(line.encode("utf-8", "surrogatepass") + b"\n")

    def _go_to_disk(self) -> None:
        memory, self._file = self._file, tempfile.TemporaryFile(prefix="stackmark-")  # noqa: SIM115 - `__del__` closes it
        self._on_disk = True
        memory.seek(0)
        shutil.copyfileobj(memory, self._file)

    def __del__(self) -> None:
        # With its last user: where a run ends in an exception there are several, and none of them has to think of it.
        self._file.close()

    def __len__(self) -> int:
        return self._lines

    def __iter__(self) -> Iterator[str]:
        self._file.seek(0)
        try:
            for data in self._file:
                yield data[:-1].decode("utf-8", "surrogatepass")
        finally:
            self._file.seek(0, os.SEEK_END)
