"""What speaks against a result: warnings in the order in which they matter, and when a result is not usable at all.

Interference comes first: it is what a reader can end, and what makes every other number doubtful. A warning has a kind for
programs and a severity: `high` (do not trust the number before this is mended), `medium` (the number may be off), `low` (good
to know).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stackmark.remarks import MIXED_RUNS

Severity = Literal["high", "medium", "low"]
Cause = Literal["interference", "throttling", "no steady state", "unknown"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")
INTERFERENCE = "interference"
# Where nothing is known of a kind it is medium.
OF_KIND: Mapping[str, Severity] = {
    INTERFERENCE: "high",
    "not-usable": "high",
    "not-comparable": "high",
    "check": "high",
    MIXED_RUNS: "high",
    "failed-runs": "high",
    "not-whole": "high",
    "clocks-disagree": "high",
    "other-programs": "high",
    "late-runs": "medium",
    "too-short-to-tell": "low",
    "set-up": "low",
    "pauses": "low",
    "coarse-clock": "low",
    "foreign-lines": "low",
    "newer-worker": "low",
    "few-runs": "low",
}
# Two programs that share one core or one GPU get half of it each. So from a factor of 2 between equal runs on, they did not have
# the same machine, and their mean is the rate of neither. Ordinary spread does not reach it: five runs with a standard deviation
# of 10 % differ by more than a factor of 2 in one of 100,000 experiments.
UNUSABLE_FACTOR = 2.0
# Of the measured time, from which on a limit of the clock explains a rate; a power limit holds a clock down for moments anyway.
THROTTLED_SHARE = 0.1


@dataclass(frozen=True)
class Caution:
    """One warning. `kind` is for programs."""

    kind: str
    severity: Severity
    text: str


def caution(kind: str, text: str) -> Caution:
    return Caution(kind, OF_KIND.get(kind, "medium"), text)


def in_order(found: Iterable[Caution]) -> tuple[Caution, ...]:
    """Interference first, then by severity; each as it came."""
    return tuple(
        sorted(dict.fromkeys(found), key=lambda one: (one.kind != INTERFERENCE, SEVERITIES.index(one.severity)))
    )


@dataclass(frozen=True)
class Unusable:
    """Runs that differ by a factor, in rates as the ledger has them, and why that most likely is."""

    factor: float
    low_per_s: float
    high_per_s: float
    cause: Cause
    text: str


@dataclass(frozen=True)
class RunEvidence:
    """What is stored of a run that may explain its rate."""

    rate_per_s: float
    steady: str | None = None
    metrics: Mapping[str, float] | None = None


def find_unusable(runs: Sequence[RunEvidence], interference: str = "") -> Unusable | None:
    """Return why runs of one spec in one place are not usable; None where they differ by less than a factor of 2."""
    rates = [run.rate_per_s for run in runs if run.rate_per_s > 0]
    if len(rates) < 2 or max(rates) < UNUSABLE_FACTOR * min(rates):
        return None
    factor = max(rates) / min(rates)
    cause, why = _cause(runs, interference)
    text = f"runs differ by a factor of {factor:.2g} ({why})"
    return Unusable(factor, min(rates), max(rates), cause, text)


def _cause(runs: Sequence[RunEvidence], interference: str) -> tuple[Cause, str]:
    if interference:
        return "interference", "most likely: other programs"
    throttled = sum(_is_throttled(run.metrics or {}) for run in runs)
    if throttled:
        return "throttling", f"most likely: throttling in {throttled} of {len(runs)} runs"
    restless = sum(run.steady == "no steady state" for run in runs)
    if restless:
        return "no steady state", f"most likely: no steady state in {restless} of {len(runs)} runs"
    return "unknown", "the cause is unknown"


def _is_throttled(metrics: Mapping[str, float]) -> bool:
    held = any(value >= THROTTLED_SHARE for name, value in metrics.items() if name.startswith("limited_"))
    names = ("cpu_quota_stopped_s", "cgroup_throttled_s", "cpu_thermal_throttles")
    return held or any(metrics.get(name, 0.0) > 0 for name in names)
