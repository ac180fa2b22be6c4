"""Read a whole JSON or YAML document, as load generators write their results. Bounded in size, depth and aliases.

A document is not trusted more than a log: a value of a wrong type is as if it were not there, and a number is read as strictly
as in a log (found.number). Where a value stands is said by its path (`benchmarks[2].metrics.ttft`), since a line of a document
that a program wrote may be a megabyte long.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stackmark.errors import SpecError
from stackmark.ledger.importers.found import BadNumber, Line, number
from stackmark.ledger.importers.reading import Log
from stackmark.model import DEEPEST
from stackmark.plain_yaml import read_documents

# Python's objects need some ten times as much memory as their text.
LARGEST_JSON = 64 * 1024**2
# PyYAML needs a second for a megabyte; reports in YAML are summaries of some kilobytes.
LARGEST_YAML = 1024**2
MOST_RESULTS_OF_LINES = 10_000
# Of a text that is taken from a document: a model's name, an error.
LONGEST_TEXT = 300
# Numbers are read from their text, so that no digits are lost and none are made up.
_LONGEST_NUMBER = 40
_LARGEST_WHOLE = 10**30


@dataclass(frozen=True)
class Node:
    """A value of a document and where it stands. What is not there, or is of another type, is an empty node."""

    value: object
    path: str = ""

    def __getitem__(self, key: str) -> "Node":
        inside = self.value.get(key) if isinstance(self.value, dict) else None
        return Node(inside, f"{self.path}.{key}" if self.path else key)

    def at(self, path: str) -> "Node":
        """Return the value at a path of keys with points between them."""
        node = self
        for key in path.split("."):
            node = node[key]
        return node

    @property
    def there(self) -> bool:
        return self.value is not None

    def items(self) -> list["Node"]:
        """Return the values of a list; nothing of any other value."""
        found = self.value if isinstance(self.value, list) else []
        return [Node(one, f"{self.path}[{i}]") for i, one in enumerate(found)]

    def keys(self) -> list[str]:
        return [key for key in self.value if isinstance(key, str)] if isinstance(self.value, dict) else []

    def text(self) -> str:
        """Return a text; empty where there is none."""
        return self.value.strip()[:LONGEST_TEXT] if isinstance(self.value, str) else ""

    def last_line(self) -> str:
        """Return the last line of a text, such as a trace: the error itself."""
        text = self.value.strip() if isinstance(self.value, str) else ""
        return text[-4 * LONGEST_TEXT :].rpartition("\n")[2].strip()[:LONGEST_TEXT]

    def number(self, what: str, *, zero: bool = False) -> float | None:
        """Return a number; None where there is none. Raise BadNumber where it is impossible."""
        value = self.value
        if value is None or isinstance(value, bool | dict | list):
            return None
        if isinstance(value, int) and abs(value) > _LARGEST_WHOLE:  # YAML reads integers that Python does not print
            raise BadNumber(f"{self.path}: {what} is an integer of more than 30 digits, more than any machine reaches")
        text = value.strip() if isinstance(value, str) else repr(value)
        if isinstance(value, str) and not text:
            return None
        try:
            return number(text[:_LONGEST_NUMBER], Line(0, "", ""), what, zero=zero)
        except BadNumber as error:
            sentence = str(error).partition(": ")[2]
            raise BadNumber(f"{self.path}: {sentence}", error.kind) from error

    def count(self, what: str) -> int | None:
        """Return a whole number of at least 0; None where there is none."""
        found = self.number(what, zero=True)
        if found is not None and found != int(found):
            raise BadNumber(f"{self.path}: {what} must be a whole number, got {found:g}")
        return None if found is None else int(found)


def read_json(log: Log) -> list[Node]:
    """Read the JSON of a file: one document, or one in each line, as `--append-result` writes them."""
    text = _text(log, LARGEST_JSON, "JSON")
    try:
        return [_node(_parsed(text), log)]
    except ValueError as error:
        lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(lines) < 2 or len(lines) > MOST_RESULTS_OF_LINES:
            raise _not(log, "JSON", error) from error
    found = []
    for i, line in lines:
        try:
            found.append(_node(_parsed(line), log))
        except ValueError as error:
            raise SpecError(
                f"{log.name} is not JSON, and line {i} of it is not either: {_shown(error)}",
                hint="was it cut off, or written by two programs at once?",
            ) from error
    return found


def read_yaml(log: Log) -> list[Node]:
    """Read the documents of a YAML file, or of a JSON file."""
    text = _text(log, LARGEST_JSON, "JSON")
    if text.lstrip().startswith("{"):
        return read_json(log)
    if log.size_bytes > LARGEST_YAML:
        raise SpecError(
            f"{log.name} is larger than {LARGEST_YAML >> 20} MiB, the limit for YAML", hint="write it as JSON"
        )
    return [_node(one, log) for one in read_documents(text, log.name, cut_off="was it cut off?") if one is not None]


def read_csv(log: Log) -> list[list[str]]:
    """Read the rows of a CSV file, empty ones too: they separate its tables."""
    text = _text(log, LARGEST_JSON, "CSV")
    try:
        return list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise _not(log, "CSV", error) from error


def first_line(log: Log) -> tuple[Line, ...]:
    """Return the line by which a run names its place in a file: the first."""
    return tuple(Line(line.number, line.raw[:LONGEST_TEXT], "") for line in _head(log))


def _head(log: Log) -> Iterator[Line]:
    for line in log.lines():
        yield line
        return


def _text(log: Log, largest: int, kind: str) -> str:
    if log.size_bytes > largest:
        raise SpecError(
            f"{log.name} is larger than {largest >> 20} MiB, the limit for a result in {kind}",
            hint="have the load generator write its summary without every request",
        )
    return log.path.read_bytes().decode(log.encoding, "replace")


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _node(value: object, log: Log) -> Node:
    if _deeper(value, DEEPEST):
        raise SpecError(f"{log.name} is nested more than {DEEPEST} deep", hint="is it the result of a load generator?")
    return Node(value)


def _deeper(value: object, allowed: int) -> bool:
    """Whether a value is nested too deeply; without recursion, since that is what it protects from."""
    level: Sequence[object] = [value]
    for _ in range(allowed):
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner += [value for value in one.values() if isinstance(value, dict | list)]
            elif isinstance(one, list):
                inner += [value for value in one if isinstance(value, dict | list)]
        if not inner:
            return False
        level = inner
    return True


def _not(log: Log, kind: str, error: Exception) -> SpecError:
    return SpecError(f"{log.name} is not {kind}: {_shown(error)}", hint="was it cut off?")


def _shown(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
