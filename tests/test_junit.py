"""JUnit XML of a check: read by a parser, and against what the schemas of Jenkins and Ant allow."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackmark.show.junit import Case, render_junit

CASES = (
    Case("train/resnet50", 61.5, "passed", "EQUIVALENT", "now is EQUIVALENT to before", ["ratio: 1.000100"]),
    Case("train/gpt2 on container", 3.0004, "failure", "SLOWER", "now is SLOWER than before", ["ratio: 0.900000"]),
    Case("train/vgg16", 0.0, "error", "FAILED", "run r-1: it ran out of memory"),
)
# What both schemas know: https://github.com/jenkinsci/xunit-plugin (junit-10.xsd) and windyroad's JUnit.xsd for Ant.
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase"},
    "properties": {"property"},
    "property": set(),
    "testcase": {"failure", "error", "skipped", "system-out"},
    "failure": set(),
    "error": set(),
    "skipped": set(),
    "system-out": set(),
}
ATTRIBUTES = {
    "testsuites": ({"name", "tests", "failures", "errors", "time"}, set()),
    "testsuite": ({"name", "tests", "failures", "errors"}, {"time", "skipped", "timestamp"}),
    "properties": (set(), set()),
    "property": ({"name", "value"}, set()),
    "testcase": ({"name", "time", "classname"}, set()),
    "failure": ({"type", "message"}, set()),
    "error": ({"type", "message"}, set()),
    "skipped": (set(), {"message"}),
    "system-out": (set(), set()),
}


def read(cases: Sequence[Case], properties: Sequence[tuple[str, str]] = (), when: str = "") -> ElementTree.Element:
    text = render_junit("stackmark check before", cases, properties, when)
    root = ElementTree.fromstring(text.encode())
    assert root.tag == "testsuites"
    for element in root.iter():
        assert {child.tag for child in element} <= CHILDREN[element.tag]
        required, optional = ATTRIBUTES[element.tag]
        assert required <= set(element.attrib) <= required | optional, element.tag
        if "time" in element.attrib:
            assert re.fullmatch(r"\d+\.\d{3}", element.attrib["time"])
    # The schema of Ant has an order: what was set before what was tried.
    tags = [child.tag for child in root[0]]
    assert tags == sorted(tags, key=["properties", "testcase"].index)
    return root


def test_it_counts_what_failed_and_what_was_not_checked() -> None:
    root = read(CASES, [("baseline", "before"), ("changed", "kernel 6.1 → 6.2")], "2026-11-15T10:00:00")
    for element in (root, root[0]):
        assert (element.get("tests"), element.get("failures"), element.get("errors")) == ("3", "1", "1")
    assert root[0].get("time") == "64.500"
    assert [(one.get("name"), one.get("value")) for one in root.iter("property")] == [
        ("baseline", "before"), ("changed", "kernel 6.1 → 6.2")
    ]  # fmt: skip
    passed, slower, failed = root.iter("testcase")
    assert [child.tag for child in passed] == ["system-out"]
    assert [child.tag for child in slower] == ["failure", "system-out"]
    assert [child.tag for child in failed] == ["error", "system-out"]
    assert slower[0].get("type") == "SLOWER"
    assert slower[1].text == "now is SLOWER than before\nratio: 0.900000"
    assert failed[0].get("message") == "run r-1: it ran out of memory"


def test_what_was_left_out_is_skipped_and_no_failure() -> None:
    root = read([*CASES, Case("gpu: create (one)", 0.0, "skipped", "gpu", "no node has nvidia.com/gpu")])
    suite = root[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == (
        "4",
        "1",
        "1",
        "1",
    )
    skipped = root.find("testsuite/testcase/skipped")
    assert skipped is not None
    assert skipped.get("message") == "no node has nvidia.com/gpu"


def test_no_workloads_are_a_suite_without_cases() -> None:
    assert read([]).find("testsuite") is not None


@pytest.mark.parametrize(
    "text", ["\x00\x1b[2J\x07", "\ufffe\uffff", "\ud800", "<![CDATA[ ]]> & \"'</failure>", "a\nb\tc\r", "\u202e", "é½→"]
)
def test_hostile_text_stays_text(text: str) -> None:
    root = read([Case(text, 1.0, "error", text, text, [text])], [(text, text)])
    case = root.find("testsuite/testcase")
    assert case is not None
    seen = "".join([case.get("name", ""), case[0].get("message", ""), case[0].text or "", case[1].text or ""])
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e\ufffe\uffff]", seen)


def test_a_line_break_in_a_message_is_kept_in_the_text() -> None:
    case = read([Case("w", 1.0, "failure", "SLOWER", "one\ntwo")]).find("testsuite/testcase")
    assert case is not None
    assert case[0].text == "one\ntwo"


@given(st.text(), st.text())
def test_any_text_can_be_read_again(message: str, output: str) -> None:
    read([Case("w", 0.0, "failure", "SLOWER", message, [output])], [("changed", output)])
