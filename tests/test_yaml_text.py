"""Manifests as YAML: whatever is written is read as it was, and by readers with other rules too."""

import json
import math
import sys

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from stackmark.kubernetes.manifest.yaml_text import document, documents

# What readers take for something else than a text, and what ends a line or a text.
TRAPS = [
    "", " ", "yes", "No", "on", "off", "y", "N", "true", "NULL", "~", "null", "0", "012", "0x1f", "0o7", "1e3", "1_000", "1.5",
    ".5", "+1", "-1", ".inf", "-.INF", ".nan", "1:30", "190:20:30", "2026-11-15", "2026-11-15 08:00:00", "=", "<<", "-", "- a",
    "? a", ": a", "a: b", "a:", "a #b", "#", "a#b", "&a", "*a", "!a", "|", ">", "%a", "@a", "`a", "'", '"', "it's", 'say "yes"',
    "\\", "C:\\x", "{}", "[]", "{a}", "a, b", " a", "a ", "a\nb", "a\n", "\n", "\ta", "a\tb", "\r", "a\x00b", "\x1b[31m", "\x7f",
    "\x85", "\u2028", "\ufeff", "é", "ß ü", "日本", "😀", "---", "...", "--- a", "y: n", "a  b", "$(HOME)", "$$",
    "10%", "/dev/shm",
]  # fmt: skip
# Lone halves of surrogate pairs are no text in any file.
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(TRAPS)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
DATA = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("text", TRAPS)
def test_a_text_that_looks_like_something_else_comes_back_as_that_text(text: str) -> None:
    assert yaml.safe_load(document({"value": text, text: ["x", text]})) == {"value": text, text: ["x", text]}


@given(DATA)
@example({"a": [[], {}, [[1]], [{"b": None}], {"c": {}}]})
@example([[[["deep"]]], {"a": {"b": {"c": [{"d": 1}]}}}])
@example(1e-05)
def test_whatever_is_written_is_read_as_it_was(data: object) -> None:
    read = yaml.safe_load(document(data))
    assert read == data
    assert _types(read) == _types(data)


@given(TEXTS)
@example("0\n0")
def test_a_text_is_one_line_unless_it_is_a_script_and_has_no_control_character(text: str) -> None:
    lines = document({"a": text}).splitlines()
    assert all(line.isprintable() for line in lines)
    assert lines[0] == "a: |-" if len(lines) > 1 else True


@given(st.lists(st.dictionaries(TEXTS, DATA, min_size=1, max_size=2), min_size=1, max_size=3))
def test_documents_come_back_one_by_one_without_the_remarks(items: list[dict[str, object]]) -> None:
    written = documents(items, ["a remark: with\ntwo lines", "--- and another", "\x1b[31m \x85 \x00"])
    assert list(yaml.safe_load_all(written)) == items


def test_plain_words_stand_without_quotes() -> None:
    assert document({"image": "registry.example:5000/team/worker:1", "command": ["python3", "a b"]}) == (
        "image: registry.example:5000/team/worker:1\ncommand:\n- python3\n- a b\n"
    )


def test_what_another_reader_takes_for_a_boolean_or_a_number_is_quoted() -> None:
    for text in ("y", "N", "on", "1e3", "0o7", "1_000"):
        assert document({"a": text}) == f'a: "{text}"\n'


def test_without_a_yaml_package_it_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    data = {"a": ["y", 1e3, None, {"b": "1e3"}]}
    written = documents([data, data], ["a remark"])
    monkeypatch.undo()
    assert list(yaml.safe_load_all(written)) == [data, data]
    assert json.loads(written.split("---\n")[1]) == data


def test_what_is_no_data_is_refused() -> None:
    for wrong in ({"a": object()}, {"a": math.inf}, {"a": {"b"}}):
        with pytest.raises((TypeError, ValueError)):
            document(wrong)


def _types(data: object) -> object:
    """1, 1.0 and True are equal, and not the same."""
    if isinstance(data, dict):
        return {key: _types(value) for key, value in data.items()}
    return [_types(value) for value in data] if isinstance(data, list) else type(data)
