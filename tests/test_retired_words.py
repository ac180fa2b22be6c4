"""Words that are retired (tests/data/retired_words.toml) stand nowhere: neither in code, strings and comments nor in the docs."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "data" / "retired_words.toml"
RETIRED = tomllib.loads(LIST.read_text())
# These name the words.
OF_THE_LIST = {LIST, Path(__file__)}
# Where a name is put together: `from_nought`, `PodRung`, `HTTPRung`.
PARTS = re.compile(r"_|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@cache
def files() -> tuple[Path, ...]:
    """The sources and the pages."""
    folders = [ROOT / name for name in ("src", "tests", "scripts", "benchmarks", "fuzz", "docs")]
    found = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".md", ".toml")]
    top = [path for path in ROOT.iterdir() if path.suffix in (".md", ".toml") or path.name == "Makefile"]
    return tuple(path for path in [*top, *sorted(found)] if path not in OF_THE_LIST)


@cache
def lines() -> tuple[tuple[str, int, str, str], ...]:
    """Each line with its file and number, as it is and with its names taken apart."""
    return tuple(
        (str(path.relative_to(ROOT)), number, line, PARTS.sub(" ", line))
        for path in files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    )


def uses(word: str) -> Iterator[tuple[str, int, str]]:
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    return ((file, number, line) for file, number, line, parted in lines() if pattern.search(parted))


def is_at(context: dict[str, str], file: str, line: str) -> bool:
    return context["file"] == file and context["line"] in line


@pytest.mark.parametrize("entry", RETIRED["word"], ids=lambda entry: entry["word"])
def test_a_retired_word_is_used_only_where_the_list_allows_it(entry: dict[str, Any]) -> None:
    allowed = entry.get("allowed", [])
    where = tuple(entry.get("where", [""]))
    found = [use for use in uses(entry["word"]) if use[0].startswith(where)]
    wrong = [use for use in found if not any(is_at(context, use[0], use[2]) for context in allowed)]
    assert wrong == [], f"write {entry['instead']}"
    assert [context for context in allowed if not any(is_at(context, use[0], use[2]) for use in found)] == []


def test_no_class_has_a_name_that_says_nothing() -> None:
    retired = RETIRED["classes"]
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in files()
        if path.suffix == ".py" and path.is_relative_to(ROOT / "src")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name.lstrip("_") in retired["names"]
    ]
    assert found == [], f"write {retired['instead']}"


@pytest.mark.parametrize("text", ["from_nought", "NoughtIsHere", "at nought.", "HTTPNought"])
def test_a_word_is_found_inside_of_names(text: str) -> None:
    assert re.search(r"\bnoughts?\b", PARTS.sub(" ", text), re.IGNORECASE)


@pytest.mark.parametrize("entry", RETIRED["word"], ids=lambda entry: entry["word"])
def test_the_paths_that_limit_a_word_exist(entry: dict[str, Any]) -> None:
    assert [path for path in entry.get("where", []) if not (ROOT / path).exists()] == []


def test_the_test_reads_sources_and_pages() -> None:
    names = {str(path.relative_to(ROOT)) for path in files()}
    assert {"README.md", "docs/architecture.md", "src/stackmark/extensions.py", "tests/test_docs.py"} <= names
