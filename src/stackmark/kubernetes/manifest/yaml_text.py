"""Plain data as YAML, so that a manifest can be printed where no YAML package is installed.

Only what every reader reads the same: a text is written without quotes where no reader takes it for something else (a number, a
date, a yes), and else in quotes, in which nothing has a second meaning. Lists stand as `kubectl` writes them.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

# Words that YAML 1.1, which Kubernetes' reader still follows, takes for a boolean or for nothing.
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
# Begins with a letter, so it is no number and no date; a colon or a # has no blank beside it.
_PLAIN = re.compile(
    r"[A-Za-z/][A-Za-z0-9_./@+=-]*(:[A-Za-z0-9_./@+=-]+)*( [A-Za-z0-9_./@+=-]+(:[A-Za-z0-9_./@+=-]+)*)*"
)
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def documents(items: Iterable[Mapping[str, object]], remarks: Sequence[str] = ()) -> str:
    """Several objects in one text, with remarks before them."""
    comments = "".join(f"# {_comment(line)}\n" for remark in remarks for line in remark.splitlines())
    return comments + "---\n".join(document(item) for item in items)


def document(data: object) -> str:
    if isinstance(data, Mapping | list | tuple) and data:
        return "".join(f"{line}\n" for line in _lines(data))
    return f"{_scalar(data)}\n"


def _comment(line: str) -> str:
    """A reader refuses a control character in a comment too."""
    return "".join(map(_shown, line))


def _lines(data: object) -> Iterable[str]:
    """The lines of a mapping or a list that is not empty."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if not isinstance(key, str):
                raise TypeError(f"a key of a manifest is text, not {key!r}")
            name = f"{_text(key)}:"
            if not _nested(value):
                yield f"{name} {_scalar(value)}"
                continue
            yield name
            # A list's dashes stand under the key, a mapping's keys two further in.
            indent = "  " if isinstance(value, Mapping) else ""
            yield from (f"{indent}{line}" for line in _lines(value))
    elif isinstance(data, list | tuple):
        for value in data:
            if not _nested(value):
                yield f"- {_scalar(value)}"
                continue
            first, *others = _lines(value)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)


def _nested(value: object) -> bool:
    return isinstance(value, Mapping | list | tuple) and len(value) > 0


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    raise TypeError(f"a manifest has no place for {value!r}")


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"a manifest has no place for {value!r}")
    digits, exponent, power = repr(value).partition("e")
    # Without a point, YAML 1.1 reads 1e-05 as a text.
    return digits + (".0" if "." not in digits else "") + exponent + power


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if text.isprintable() and not {'"', "\\"}.isdisjoint(text):
        # JSON in a variable, mostly: it stays readable.
        return "'" + text.replace("'", "''") + "'"
    return '"' + "".join(_ESCAPES.get(character) or _shown(character) for character in text) + '"'


def _shown(character: str) -> str:
    """A character that is printed, or its number: also those that a reader takes for the end of a line."""
    code = ord(character)
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
