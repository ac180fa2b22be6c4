"""A check as JUnit XML: one test case for each workload, for whatever shows test results.

A verdict that --fail-on names is a failure; without --fail-on, that is SLOWER (LIKELY SLOWER, WORSE …): a file without failures
must not hide a slow machine. A workload that failed, or could not be compared, is an error: it was not checked.
A case of a cluster's check that does not apply (no GPU there) is skipped, with its reason.
There is no standard, but two schemas that people validate with (Jenkins' and Ant's). Neither knows properties of a test case, so
the numbers stand in its output, and what changed in the stack in the properties of the suite.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from stackmark.show.safe import safe

Outcome = Literal["passed", "failure", "error", "skipped"]
# The verdicts that are failures where --fail-on names none.
FAILURES = ("slower",)
# What XML 1.0 has no way to write, not even escaped; `safe` has taken the control characters out before.
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Case:
    name: str
    seconds: float
    outcome: Outcome
    # A verdict's word, or why there is none: what a list of failures is grouped by.
    kind: str
    message: str
    # Lines for people: notes, numbers, ids.
    output: Sequence[str] = ()


def render_junit(suite: str, cases: Sequence[Case], properties: Sequence[tuple[str, str]] = (), when: str = "") -> str:
    """`when` is an ISO date and time without a zone, as the schemas want it."""
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(1 for case in cases if case.outcome == "failure")),
        "errors": str(sum(1 for case in cases if case.outcome == "error")),
        "time": f"{sum(case.seconds for case in cases):.3f}",
    }
    root = ElementTree.Element("testsuites", {"name": _clean(suite), **counts})
    skipped = str(sum(1 for case in cases if case.outcome == "skipped"))
    within = {"name": _clean(suite), **counts, "skipped": skipped, **({"timestamp": when} if when else {})}
    element = ElementTree.SubElement(root, "testsuite", within)
    if properties:
        table = ElementTree.SubElement(element, "properties")
        for name, value in properties:
            ElementTree.SubElement(table, "property", name=_clean(name), value=_clean(value))
    for case in cases:
        _add(element, suite, case)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _add(parent: ElementTree.Element, suite: str, case: Case) -> None:
    element = ElementTree.SubElement(
        parent, "testcase", name=_clean(case.name), classname=_clean(suite), time=f"{case.seconds:.3f}"
    )
    if case.outcome == "skipped":
        # Neither schema knows a type here.
        ElementTree.SubElement(element, "skipped", message=_clean(case.message))
    elif case.outcome != "passed":
        said = ElementTree.SubElement(element, case.outcome, type=_clean(case.kind), message=_clean(case.message))
        said.text = _clean(case.message)
    ElementTree.SubElement(element, "system-out").text = _clean("\n".join([case.message, *case.output]))


def _clean(text: str) -> str:
    return NOT_XML.sub(lambda found: ascii(found.group())[1:-1], safe(text))
