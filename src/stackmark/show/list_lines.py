"""What a list came to, in lines under its table: the rate of the whole, where the time went, what failed, how it was measured."""

from collections.abc import Sequence

from stackmark.show.lines import Line
from stackmark.show.result import say_throughput
from stackmark.units import counted, say_rate, say_seconds
from stackmark.verdict.operators import ListRatio, ListResult, RowResult
from stackmark.verdict.throughput import worth_of_runs
from stackmark.workloads.op.definition import say_problem
from stackmark.workloads.op.problem import BYTES_RATE

# So many failed rows are named under the table; all of them stand in it.
FAILED_NAMED = 3
BANDWIDTHS = (
    "algorithm: bytes of the array over the time; bus: what each rank's own link carries, to be held against the link; "
    "DeepBench's is bytes × ranks / time, which no link carries"
)
KNOWN_BY = {
    "runs": "of a row: 95 %, Student's over the medians of its runs",
    "samples": "of a row: 95 %, of its median within one process; how far the next process would be is not in it",
}


def list_lines(result: ListResult) -> list[Line]:
    """In the order in which a person asks."""
    lines: list[Line] = [*_rate(result)]
    if len(result.good) > 1:
        lines.append(("rows", _rows(result)))
    known = {row.known_by for row in result.good} - {""}
    lines += [("±", KNOWN_BY[one]) for one in KNOWN_BY if one in known]
    if result.failed:
        lines.append(("failed", _failed(result)))
    lines += _how(result)
    return lines


def _rate(result: ListResult) -> list[Line]:
    if result.aggregate is None:
        return []
    what = "least bytes" if result.unit == BYTES_RATE else "operations"
    every = f"all {what} of {counted(result.counted, 'problem')} over the sum of the times of one call of each"
    if result.counted == 1:
        every = f"its {what} over the time of a call"
    if not result.whole:
        every += "; the list is not whole"
    lines = [("rate", f"{say_throughput(result.aggregate, result.unit)}\n{every}")]
    if 1 < result.aggregate.runs < 5:
        lines.append(("note", worth_of_runs(result.aggregate.runs)))
    return lines


def _rows(result: ListResult) -> str:
    parts = []
    if result.geometric_mean:
        parts.append(f"geometric mean of their rates {say_rate(result.geometric_mean)} {result.unit}")
    if found := result.extremes():
        slowest, fastest = (f"{say_rate(row.rate or 0)} ({_name(row)})" for row in found)
        parts.append(f"from {slowest} to {fastest}")
    longest = result.longest
    if longest and longest.seconds and result.total_s:
        share = f"{100 * longest.seconds / result.total_s:.0f} %"
        parts.append(f"one call of each takes {say_seconds(result.total_s)}, {share} of it {_name(longest)}")
    return "; ".join(parts)


def _failed(result: ListResult) -> str:
    never = [row for row in result.failed if row.seconds is None]
    said = []
    if never:
        named = ", ".join(_name(row) for row in never[:FAILED_NAMED])
        more = f" and {len(never) - FAILED_NAMED} more" if len(never) > FAILED_NAMED else ""
        said.append(f"{counted(len(never), 'problem')} of {len(result.wanted)} gave no number: {named}{more}")
    if now_and_then := len(result.failed) - len(never):
        said.append(f"{counted(now_and_then, 'problem')} failed in one run and not in another")
    hints = dict.fromkeys(row.failure.hint for row in result.failed if row.failure and row.failure.hint)
    return "\n".join(["; ".join(said), *list(hints)[:FAILED_NAMED]])


def _how(result: ListResult) -> list[Line]:
    good = result.good
    if not good:
        return []
    graphs = sum(row.launched == "graph" for row in good)
    launched = "launched one by one"
    if graphs:
        launched = (
            f"recorded as a CUDA graph and replayed: {graphs} of {len(good)}" if graphs < len(good) else "CUDA graphs"
        )
    copies = max(row.copies for row in good)
    turns = f"; up to {copies} sets of operands in turn, so that no call finds its own in a cache" if copies > 1 else ""
    lines = [("launches", f"{launched}{turns}")]
    if any("ranks" in row.shape for row in good):
        lines.append(("bandwidth", BANDWIDTHS))
    if result.first_calls_s:
        slowest = max(good, key=lambda row: row.first_call_s or 0)
        longest = f", the longest {say_seconds(slowest.first_call_s or 0)} ({_name(slowest)})" if len(good) > 1 else ""
        lines.append(("first calls", f"{say_seconds(result.first_calls_s)} in all{longest}: not in the times above"))
    checked = [row for row in good if row.error is not None and row.error_bound]
    if checked:
        worst = max(checked, key=lambda row: (row.error or 0) / (row.error_bound or 1))
        share = f"{100 * (worst.error or 0) / (worst.error_bound or 1):.2g} %"
        lines.append(
            ("checked", f"against float64, and again while and after it was timed; the worst has {share} of the error "
             f"that rounding explains")
        )  # fmt: skip
    elif good[0].checked:
        lines.append(("checked", good[0].checked))
    sums = dict.fromkeys(row.accumulate for row in good if row.accumulate)
    if sums:
        lines.append(("sums", f"in {', '.join(sums)}"))
    return lines


def list_ratio_lines(pairs: Sequence[ListRatio]) -> list[Line]:
    """Say next to a verdict, which is by the list's own rate, how the arms compare problem by problem."""
    lines = []
    for pair in pairs:
        if len(pair.rows) < 2:
            continue
        mean = f"geometric mean of the ratios of {len(pair.rows)} problems {pair.geometric_mean:.4f}"
        lines.append(("rows", f"{pair.b} / {pair.a}: {mean}; {_say_differing(pair)}"))
    return lines


def _say_differing(pair: ListRatio) -> str:
    if not pair.testable:
        return "which of them differ is not known: that takes two blocks or more"
    corrected = "by blocks, Benjamini–Hochberg at 5 %"
    found = sorted(pair.differing, key=lambda row: row.ratio)
    if not found:
        return f"none of them is shown to differ ({corrected})"
    ends = dict.fromkeys((found[0].index, found[-1].index))
    named = ", ".join(
        f"{row.ratio:.4g} ({say_problem(row.op, row.shape)})" for row in (found[0], found[-1])[: len(ends)]
    )
    return f"{len(found)} of them differ ({corrected}), {'from ' if len(ends) > 1 else ''}{named}"


def _name(row: RowResult) -> str:
    return say_problem(row.op, row.shape)
