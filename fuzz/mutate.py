"""Mutations of bytes, lines, numbers and JSON. The same random generator gives the same input."""

import json
import random
import re
from collections.abc import Callable, Sequence

# Larger inputs only take longer; what grows with the square of its input shows at this size.
LIMIT_BYTES = 100_000
NUMBERS = (
    "0", "-0", "-1", "1", "2", "255", "256", "65536", "99999", "2147483648", "4294967296", "9223372036854775808",
    "1001838240000", "33715", "-62135596801", "253402300800", "1e-320", "5e-324", "1e-18", "1e18", "1e30", "1e300",
    "1.7976931348623157e308", "1e400", "-1e400", "nan", "NaN", "inf", "Infinity", "-Infinity", "1.", ".5", "1e", "--1",
    "1_000", "1,000", "0x10", "0b1", "1e1000000", "٣", "½", "9" * 20, "9" * 400, "9" * 5000, "0x" + "f" * 5000,
    "0." + "0" * 400 + "1", "", "true", "null",
)  # fmt: skip
TEXTS = (
    '"', "'", "\\", "{", "}", "[", "]", "{}", "[]", "{{}: 1}", "{1: 2}", '{"a":', "null", "true", "b'x'", "(1,)", "...",
    "[" * 2000, '{"a":' * 400, "(" * 300, "-" * 5000, "\0", "\x1b[31m", "\x1b]0;title\x07", "\u202e", "\x85", "\u2028",
    "\ufeff", "\\ud800", '"\\ud800"', "\\u0000", "\r", "\n", "\r\n", "\t", ",", ";", ":", "=", "|", "%s", "{0}", "$PATH",
    "=cmd|' /C calc'!A0", "@SUM(1)", "<script>alert(1)</script>", "../../etc/passwd", "/dev/zero", "~nobody/x", "-", "--",
    " " * 20_000, "a" * 20_000, ":::MLLOG {" * 1000, "*a", "&a", "!!python/object:os.system", "<<: ", "? ", "auto", "last",
    "é", "字", "🙂", "i\u0307", "ß",
)  # fmt: skip
_NUMBER = re.compile(rb"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_QUOTED = re.compile(rb'"[^"\n]{0,200}"')

Step = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return one of the seeds with one to eight mutations."""
    data = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        data = rng.choice(_STEPS)(rng, data, seeds)[:LIMIT_BYTES]
    return data


def odd_text(rng: random.Random) -> str:
    return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.choice(TEXTS)


def _place(rng: random.Random, data: bytes) -> int:
    return rng.randint(0, len(data))


def _flip(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = _place(rng, data)
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def _cut_out(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = _place(rng, data)
    return data[:at] + data[at + rng.choice((1, 2, 8, 40, 400)) :]


def _truncate(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: _place(rng, data)]


def _repeat(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = _place(rng, data)
    piece = data[at : at + rng.choice((1, 3, 10, 60, 500))]
    times = min(rng.choice((2, 10, 100, 5000)), LIMIT_BYTES // max(len(piece), 1))
    return data[:at] + piece * times + data[at:]


def _insert(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = _place(rng, data)
    return data[:at] + odd_text(rng).encode() + data[at:]


def _splice(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    return data[: _place(rng, data)] + other[_place(rng, other) :]


def _lines(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Drop, repeat or exchange lines."""
    lines = data.splitlines(keepends=True)
    if len(lines) < 2:
        return data
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(3)
    if kind == 0:
        del lines[min(one, other) : max(one, other)]
    elif kind == 1:
        lines.insert(other, lines[one])
    else:
        lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _number(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    found = list(_NUMBER.finditer(data[:20_000]))
    if not found:
        return data
    match = rng.choice(found)
    return data[: match.start()] + rng.choice(NUMBERS).encode() + data[match.end() :]


def _quoted(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    found = list(_QUOTED.finditer(data[:20_000]))
    if not found:
        return data
    match = rng.choice(found)
    said = odd_text(rng)
    return data[: match.start()] + (json.dumps(said) if rng.random() < 0.5 else said).encode() + data[match.end() :]


def _json_line(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Exchange one value inside an object that stands at the end of a line; the line stays JSON."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    head, brace, rest = lines[at].partition(b"{")
    try:
        found = json.loads(brace + rest)
    except (ValueError, RecursionError):
        return data
    _exchange(rng, found)
    lines[at] = head + json.dumps(found).encode()
    return b"\n".join(lines)


def _exchange(rng: random.Random, value: object) -> None:
    """Walk down to some value and put another in its place."""
    while isinstance(value, dict | list) and value:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.3:
            value[key] = odd_value(rng)
            return
        value = inner


def odd_value(rng: random.Random) -> object:
    """A JSON value of any kind."""
    values: list[object] = [
        None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 10**18, 10**300, 10**4000, 99_999, 0.5, -0.0, 1e-320, 5e-324,
        1e18, 1e30, 1e300, 1.001e12, -6.3e10, {}, [], [[]], {"a": {"b": [1]}}, [1e300] * 3, "\ud800", "\0", "", "x" * 5000,
        odd_text(rng), float("nan"), float("inf"),
    ]  # fmt: skip
    return rng.choice(values)


_STEPS: tuple[Step, ...] = (
    _flip, _cut_out, _truncate, _repeat, _insert, _splice, _lines, _number, _number, _number, _quoted, _json_line, _json_line,
)  # fmt: skip
