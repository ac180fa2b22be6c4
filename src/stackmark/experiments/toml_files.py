"""Parse a TOML file that a person wrote: a mistake is said with its line."""

import codecs
import re
from typing import Any

import tomllib

from stackmark.errors import SpecError


def parse_toml(data: bytes, shown: str, hint: str) -> tuple[str, dict[str, Any]]:
    """Return the text and its tables. `shown` is how messages name the file."""
    # Some editors begin a file with a byte order mark.
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SpecError(f"{shown}:{line}: the file is not UTF-8", hint="save it as UTF-8") from error
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        reason = re.sub(r"\s*\(at .*\)$", "", str(error))
        raise SpecError(f"{shown}:{line}: this is not TOML: {reason}", hint=hint) from error
    except RecursionError as error:
        raise SpecError(f"{shown}: the file is nested too deeply", hint=hint) from error
