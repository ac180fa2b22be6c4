"""The page cache before a server starts: how much of its files is in memory, and dropping it for a cold start.

Root may drop the whole machine's clean pages. Everyone may ask the kernel to forget a file that he may read, which it does
where no other process has it mapped. How much of the files is in memory (mincore) is read before the start in either case, so
that "cold" and "warm" are observations and not words.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

DROP_CACHES = "/proc/sys/vm/drop_caches"
# Of a folder that is named in a command, such as a model of the Hugging Face kind.
MOST_FILES = 1000
MOST_BYTES = 2**40


@dataclass(frozen=True)
class Cached:
    """How many bytes of how many files are in memory. `bytes` is 0 where the command names no file."""

    files: int
    bytes: int
    in_memory: int

    @property
    def share(self) -> float | None:
        return self.in_memory / self.bytes if self.bytes else None


def files_of(words: Sequence[str], cwd: str) -> list[str]:
    """Return the files that a command names, and those in the folders that it names, without the program itself."""
    found: list[str] = []
    for word in words[1:]:
        path = os.path.join(cwd, word.partition("=")[2] if word.startswith("-") else word)
        if os.path.isfile(path):
            found.append(path)
        elif os.path.isdir(path) and os.path.normpath(path) != os.path.normpath(cwd):
            found += sorted(entry.path for entry in os.scandir(path) if entry.is_file())
    return list(dict.fromkeys(found))[:MOST_FILES]


def cached(files: Sequence[str]) -> Cached | None:
    """Look at how much of these files is in memory; None where the system does not say."""
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (AttributeError, OSError):
        return None
    whole = held = count = 0
    for path in files:
        try:
            size = os.path.getsize(path)
            if not 0 < size <= MOST_BYTES:
                continue
            held += _in_memory(path, size, mincore)
        except (OSError, ValueError):
            continue
        whole, count = whole + size, count + 1
    return Cached(count, whole, held)


def _in_memory(path: str, size: int, mincore: "ctypes._NamedFuncPointer") -> int:
    pages = -(-size // mmap.PAGESIZE)
    seen = (ctypes.c_ubyte * pages)()
    # A private, writable map: ctypes takes the address of nothing else. Nothing of it is touched, so nothing is read.
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        window = ctypes.c_char.from_buffer(mapped)
        try:
            if mincore(ctypes.c_void_p(ctypes.addressof(window)), ctypes.c_size_t(size), seen):
                raise OSError(ctypes.get_errno(), "mincore")
        finally:
            del window
    return min(sum(one & 1 for one in seen) * mmap.PAGESIZE, size)


def drop(files: Sequence[str]) -> str:
    """Drop what may be dropped; say what that was, or why it was not more."""
    os.sync()
    try:
        with open(DROP_CACHES, "w") as file:
            file.write("3\n")
        return "the page cache of the machine was dropped"
    except OSError as error:
        why = error.strerror or str(error)
    dropped = 0
    for path in files:
        try:
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                dropped += 1
        except OSError:
            continue
    return f"the page cache of the machine could not be dropped ({why}); that of {dropped} files named in --cmd was"
