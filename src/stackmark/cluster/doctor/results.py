"""The result of a diagnostic: a typed status, what was seen, what is wrong, what to do, and how to look yourself.

A diagnostic holds for the whole cluster or for one node. Its status is the worst of its findings. `skipped` is not looked at,
since something it needs failed or does not apply; `unknown` was looked at and could not be told: one may not read it, or
nobody knows. Neither is a failure: only `failed` makes the doctor's own exit code.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Status = Literal["ok", "warning", "failed", "skipped", "unknown"]
Diagnostic = Literal[
    "api", "permissions", "nodes", "pci", "driver", "runtime", "device-plugin", "allocatable", "pod", "vector-add"
]
DIAGNOSTICS: tuple[Diagnostic, ...] = (
    "api", "permissions", "nodes", "pci", "driver", "runtime", "device-plugin", "allocatable", "pod", "vector-add",
)  # fmt: skip
OF_THE_CLUSTER: tuple[Diagnostic, ...] = ("api", "permissions")


@dataclass(frozen=True)
class Finding:
    """One problem, or something that a measurement must know. `kind` is for programs, and never changes its meaning."""

    kind: str
    status: Literal["warning", "failed"]
    what: str
    # Sentences and commands, a line each, in the order in which they are done. A command begins with `$ `.
    do: tuple[str, ...] = ()
    # How to see this one by hand, where the diagnostic's own command does not show it.
    command: str = ""


def warning(kind: str, what: str, do: Sequence[str] = (), command: str = "") -> Finding:
    return Finding(kind, "warning", what, tuple(do), command)


def failure(kind: str, what: str, do: Sequence[str] = ()) -> Finding:
    return Finding(kind, "failed", what, tuple(do))


@dataclass(frozen=True)
class Result:
    diagnostic: Diagnostic
    status: Status
    # What was seen, short.
    evidence: str
    # How to see it by hand.
    command: str
    node: str | None = None
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0


def judged(
    diagnostic: Diagnostic,
    node: str | None,
    evidence: str,
    command: str,
    findings: Sequence[Finding] = (),
    well: Status = "ok",
) -> Result:
    """Make a result: `well`, unless a finding says otherwise. What is not known is not made known by a warning."""
    statuses = {finding.status for finding in findings}
    status: Status = "failed" if "failed" in statuses else "warning" if findings and well == "ok" else well
    return Result(diagnostic, status, evidence, command, node, tuple(findings))


def skipped(diagnostic: Diagnostic, node: str | None, why: str, command: str = "") -> Result:
    return Result(diagnostic, "skipped", why, command, node)


def unknown(diagnostic: Diagnostic, node: str | None, why: str, command: str) -> Result:
    return Result(diagnostic, "unknown", why, command, node)


def taking(result: Result, seconds: float) -> Result:
    return replace(result, seconds=round(seconds, 3))


@dataclass(frozen=True)
class Report:
    """All diagnostics of one visit. `nodes` are the examined ones, in order."""

    context: str
    server: str
    version: str
    namespace: str
    nodes: tuple[str, ...]
    results: tuple[Result, ...]

    def of(self, diagnostic: Diagnostic, node: str | None = None) -> Result | None:
        return next((one for one in self.results if one.diagnostic == diagnostic and one.node in (node, None)), None)

    @property
    def status(self) -> Literal["ok", "warning", "failed"]:
        statuses = {finding.status for result in self.results for finding in result.findings}
        return "failed" if "failed" in statuses else "warning" if "warning" in statuses else "ok"
