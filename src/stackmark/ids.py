"""Ids of runs and experiments: a letter and a ULID, `r-01kdb9w3k2v8n4q0c6yt5h7zxe`.

A ULID is 48 bits of Unix milliseconds and 80 random bits in Crockford's base 32, so ids sort by the time they were made
and two machines never make the same one. Lower case, because people type them. Within a process they are strictly
increasing even when the clock stands still or steps back: then the last one is counted up by one, as the ULID
specification says. Forty lines of ours, because a dependency for this would be larger than what it does.
"""

import hashlib
import os
import re
import secrets
import threading
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
RUN, EXPERIMENT = "r", "x"

_RANDOM_BITS = 80
_LIMIT = 1 << 128
_lock = threading.Lock()
_last = 0
# What Crockford's alphabet leaves out because it is misread: an i or l is a 1, an o is a 0.
_MISREAD = str.maketrans("ilo", "110")


def new_id(letter: str) -> str:
    """Return a new id, greater than all that this process made before."""
    global _last
    with _lock:
        fresh = time.time_ns() // 1_000_000 << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
        same_millisecond = fresh >> _RANDOM_BITS <= _last >> _RANDOM_BITS
        _last = (_last + 1 if same_millisecond else fresh) % _LIMIT
        number = _last
    return _written(letter, number)


def derived_id(letter: str, unix_s: float, text: str) -> str:
    """Return the id of something found again elsewhere: the same for the same moment and text, on any machine."""
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[: _RANDOM_BITS // 8])
    return _written(letter, (int(max(0.0, unix_s) * 1000) << _RANDOM_BITS | digest) % _LIMIT)


def first_id(letter: str, unix_s: float) -> str:
    """Return the least id of a moment: ids that sort before it were made earlier."""
    return _written(letter, min(int(max(0.0, unix_s) * 1000), (1 << 48) - 1) << _RANDOM_BITS)


def _written(letter: str, number: int) -> str:
    return f"{letter}-" + "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def as_prefix(text: str, letter: str) -> str | None:
    """Return what a person typed as the start of an id, in the stored form; None where it cannot be one."""
    body = text.strip().lower().removeprefix(f"{letter}-").translate(_MISREAD)
    return f"{letter}-{body}" if re.fullmatch(f"[{ALPHABET}]{{0,26}}", body) else None


def _forget_last() -> None:
    """A forked child must not count on from its parent's last id: the parent does so too."""
    global _last, _lock
    _last, _lock = 0, threading.Lock()


os.register_at_fork(after_in_child=_forget_last)
