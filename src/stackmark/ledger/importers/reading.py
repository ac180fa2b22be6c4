"""Read a log file line by line, whatever wrote it, and whatever passed it on.

A log seldom comes as its program printed it. kubectl, docker, stern and mpirun put a name or a time before each line,
containers' log files wrap it in JSON, terminals colour it, Windows ends it with CR LF or writes UTF-16. All of that is
taken off here, so that an importer sees the program's own words. A file is read twice, once to know what it is and once to
import it, and never held in memory: what is not a plain file (a pipe, standard input, a log packed with gzip) is copied to a
temporary one first.
"""

import gzip
import hashlib
import io
import json
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from stackmark.errors import SpecError
from stackmark.ledger.importers.found import Line

# A day of a chatty training job is some tens of megabytes; a file past this is not a log but a mistake.
LARGEST_BYTES = 1024**3
# A progress bar that never ends its line: what is read of it at once.
LINE_CHARACTERS = 64 * 1024
# Of the name of a pod or a rank.
LONGEST_SOURCE = 300
_SNIFFED = 8192
_GZIP = b"\x1f\x8b"
STANDARD_INPUT = "-"

_COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
# What log readers put before a line. A group names the source. One pattern, because it is tried on every line.
_PREFIX = re.compile(
    "|".join(
        (
            r"\[((?:pod|job|deployment)/[^\]\s]+)\] ?",  # kubectl logs --prefix
            rf"{_TIME} (?:stdout|stderr) [FP] ",  # the files of containerd and CRI-O
            rf"\[?{_TIME}\]?:? ",  # --timestamps, docker logs -t
            r"([A-Za-z0-9][\w.-]{0,99}) {1,99}\| ?",  # docker compose
            r"\[[0-9]+,([0-9]+)\]<std(?:out|err)>: ?",  # mpirun --tag-output
            r"\[rank([0-9]+)\]: ?",  # torchrun
            r"\[([0-9]+)\]<std(?:out|err)>: ?",  # horovodrun
        )
    )
)
# A pod's name, a time, a rank: no more is put before one line.
_MOST_PREFIXES = 4


@dataclass(frozen=True)
class Log:
    """A file that can be read repeatedly. `name` is for messages and for the facts."""

    name: str
    path: Path
    sha256: str
    size_bytes: int
    encoding: str

    def lines(self) -> Iterator[Line]:
        with self.path.open("rb") as file, io.TextIOWrapper(
            file, encoding=self.encoding, errors="replace", newline="\n"
        ) as text:  # fmt: skip
            count = 0
            while piece := text.readline(LINE_CHARACTERS):
                count += 1
                if not piece.endswith("\n"):
                    # The rest of an endless line belongs to its number.
                    while (rest := text.readline(LINE_CHARACTERS)) and not rest.endswith("\n"):
                        pass
                yield bare(piece.rstrip("\r\n"), count)


def bare(raw: str, number: int = 1) -> Line:
    """Return a line without its decoration."""
    text, source = raw, ""
    if text.startswith('{"log":'):
        text = _unwrapped(text)
    text = text.rstrip("\r\n")
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    # What a terminal shows of `10 %\r20 %\r` is what follows the last return.
    text = text.rpartition("\r")[2]
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(text)
        if match is None:
            break
        named = next((name for name in match.groups() if name), "")
        source = f"{source} {named}".strip()
        text = text[match.end() :]
    return Line(number, raw, text.replace("\0", " ").rstrip(), source[:LONGEST_SOURCE])


def _unwrapped(text: str) -> str:
    """A line of docker's own log files: {"log":"…\\n","stream":"stdout","time":"…"}."""
    try:
        wrapped = json.loads(text)
    except (ValueError, RecursionError):
        return text
    inner = wrapped.get("log") if isinstance(wrapped, dict) else None
    return inner if isinstance(inner, str) else text


@contextmanager
def opened(where: str) -> Iterator[Log]:
    """Open the log at a path, or standard input for `-`; raise a sentence for what is not a log."""
    if where == STANDARD_INPUT:
        with _copied(sys.stdin.buffer, "standard input") as log:
            yield log
        return
    path = Path(where)
    try:
        folder, plain = path.is_dir(), path.is_file()
        file = None if folder else path.open("rb")
    except OSError as error:
        raise SpecError(f"{where} cannot be read: {error.strerror or error}") from error
    if file is None:
        raise SpecError(
            f"{where} is a folder, not a log",
            hint="name the files in it; for a folder of MLPerf training results: stackmark mlperf score DIR",
        )
    with file:
        packed = file.peek(len(_GZIP)).startswith(_GZIP)
        if packed or not plain:
            with _copied(cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file, where) as log:
                yield log
            return
        log = _examined(file, where, path)
    yield log


@contextmanager
def _copied(file: IO[bytes], name: str) -> Iterator[Log]:
    handle, copy = tempfile.mkstemp(prefix="stackmark-import-")
    try:
        with os.fdopen(handle, "w+b") as temporary:
            start = _read(file, _SNIFFED, name)
            _encoding(start, name)  # before a gigabyte of something else is copied
            temporary.write(start)
            left = LARGEST_BYTES
            while left > 0 and (piece := _read(file, min(left, 1 << 20), name)):
                temporary.write(piece)
                left -= len(piece)
            temporary.flush()
            temporary.seek(0)
            log = _examined(temporary, name, Path(copy))
        yield log
    finally:
        os.unlink(copy)


def _read(file: IO[bytes], size: int, name: str) -> bytes:
    try:
        return file.read(size)
    except EOFError as error:
        raise SpecError(f"{name} is cut off: its gzip data has no end", hint="copy the file again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise SpecError(f"{name} is damaged: its gzip data cannot be unpacked", hint="copy the file again") from error


def _examined(file: IO[bytes], name: str, path: Path) -> Log:
    start = file.read(_SNIFFED)
    if not start:
        raise SpecError(f"{name} is empty", hint="was the program's output written there?")
    encoding = _encoding(start, name)
    digest, size = hashlib.sha256(start), len(start)
    while piece := file.read(1 << 20):
        digest.update(piece)
        size += len(piece)
        if size > LARGEST_BYTES:
            raise SpecError(
                f"{name} is larger than {LARGEST_BYTES >> 30} GiB and cannot be a benchmark's log",
                hint="cut out the part that matters, with grep or split",
            )
    return Log(name, path, digest.hexdigest(), size, encoding)


def _encoding(start: bytes, name: str) -> str:
    """UTF-8 unless a byte order mark says UTF-16, as Windows' shell writes it. Anything that is not text is refused."""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    if start[:2] == b"\x1f\x8b":
        raise SpecError(f"{name} is compressed with gzip", hint="unpack it first, with gunzip")
    odd = sum(byte < 32 and byte not in b"\t\n\r\f\b\x1b" for byte in start)
    if b"\0" in start or odd > len(start) // 20:
        raise SpecError(f"{name} is a binary file, not a log", hint="use the text that the benchmark printed")
    return "utf-8-sig"
