"""A verdict as JUnit XML: one test case for each pair of arms, so that a build can be held up by a slower arm."""

from collections.abc import Callable, Sequence

from stackmark.show.check import say_differences
from stackmark.show.junit import Case, Outcome, render_junit
from stackmark.show.wording import say_in_own_terms
from stackmark.units import say_moment
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined

NO_VERDICT = "NO VERDICT"


def verdict_junit(examined: Examined, is_failure: Callable[[Comparison], bool], trouble: str = "") -> str:
    """Render a verdict. `is_failure` decides which words fail; `trouble` says why an experiment ended early.

    A pair without a verdict is an error: it was not compared.
    """
    cases = [_compared(examined, one, failed=is_failure(one)) for one in examined.comparisons]
    first, *others = [arm.label for arm in examined.arms] or [""]
    known = {(one.a, one.b) for one in examined.comparisons}
    cases += [
        Case(f"{label} against {first}", _seconds(examined, label), "error", NO_VERDICT, trouble or _why(examined))
        for label in others
        if (first, label) not in known
    ]
    if trouble and examined.comparisons:
        cases.append(Case("all planned runs", 0.0, "error", "UNFINISHED", trouble))
    properties = [
        ("experiment", examined.experiment_id), ("command", examined.command), ("margin", f"{examined.margin:g}"),
        ("state", examined.state), ("rules", str(examined.rules)),
        *(("warning", warning) for warning in examined.warnings),
    ]  # fmt: skip
    when = say_moment(examined.created_unix_s, "%Y-%m-%dT%H:%M:%S", utc=True)
    return render_junit(f"stackmark {examined.kind} {examined.workload}", cases, properties, when)


def unmeasured_junit(workload: str, arms: Sequence[str], trouble: str) -> str:
    """Render a comparison that failed before its first run: each pair is an error."""
    first, *others = arms
    cases = [Case(f"{arm} against {first}", 0.0, "error", NO_VERDICT, trouble) for arm in others]
    return render_junit(f"stackmark compare {workload}", cases)


def _compared(examined: Examined, one: Comparison, *, failed: bool) -> Case:
    unit = next((arm.figure_unit for arm in examined.arms if arm.throughput), None)
    output = [f"experiment: {examined.experiment_id}"]
    output += [
        f"{arm.label}: {arm.figure_unit.say(arm.throughput.rate_per_s)}{arm.figure_unit.direction}"
        for arm in examined.arms
        if arm.label in (one.a, one.b) and arm.throughput
    ]
    output.append(f"ratio: {one.ratio:.6f}")
    if one.interval_90:
        output.append(f"90 % interval: {one.interval_90.low:.6f} to {one.interval_90.high:.6f}")
    if one.is_slower or one.is_faster:
        output += [f"differs: {text}" for text in say_differences(examined.differences)]
    output += [f"note: {note}" for note in one.notes]
    message = say_in_own_terms(one, unit) if unit else one.sentence
    outcome: Outcome = "failure" if failed else "passed"
    return Case(f"{one.b} against {one.a}", _seconds(examined, one.b), outcome, one.word, message, output)


def _seconds(examined: Examined, label: str) -> float:
    """Add up the time that the runs of an arm took."""
    numbers = {arm.index for arm in examined.arms if arm.label == label}
    return sum(
        run.ended_unix_s - run.started_unix_s for run in examined.runs if run.arm in numbers and run.ended_unix_s
    )


def _why(examined: Examined) -> str:
    failed = next((run.failure_message for run in examined.runs if run.failure_message), None)
    return failed or examined.state_sentence or "no block is whole"
