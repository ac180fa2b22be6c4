"""Which published results of inference are of a network that answers queries in one of MLPerf's scenarios, and how they differ.

A row belongs to the same model in the same scenario, whose figure it has: the rate of Offline, the rate within the bound of
Server, the 90th percentile of SingleStream. MultiStream of v0.5 counts samples per query at a fixed interval, which nothing here
measures. Rows of forward passes in a loop are a relation of Offline: the network without the load.

Submitters quantise, prune and tune as far as the rules allow, with trained weights on real data whose accuracy they show. So a
ratio to such a row is context, and what differs is said.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from stackmark.published.table import Published
from stackmark.remarks import Remark

# MLPerf's names of the models in its tables, and the table's names of forward passes.
MLPERF_NAMES = {
    "resnet50": ("resnet", "resnet50"),
    "mobilenet": ("mobilenet",),
    "ssd-resnet34": ("ssd-large", "ssd-resnet34"),
    "ssd-mobilenet": ("ssd-small", "ssd-mobilenet"),
    "gnmt": ("gnmt",),
    "bert": ("bert-99", "bert-99.9", "bert"),
}
FORWARD = {"resnet50": "infer/resnet50_v1.5", "vit-b16": "infer/vit-b16"}
SCENARIOS = {"single-stream": "SingleStream", "server": "Server", "offline": "Offline"}
UNITS = {"single-stream": ("ms",), "server": ("queries/s",), "offline": ("samples/s", "images/s", "sequences/s")}


@dataclass(frozen=True, slots=True)
class ServedQuery:
    """What a result of `serve/` is; `bound_s` is that of the scenario server."""

    scenario: str
    seconds: float
    mlperf: bool
    bound_s: float
    weights: bool


def served_relation(workload: str, served: ServedQuery, unit: str, row: Published) -> str | None:
    """Return '' for the same model in the same scenario, words for forward passes, None for anything else."""
    name = workload.partition("/")[2].replace("_", "-")
    if row.task != "inference" or row.unit not in UNITS.get(served.scenario, ()) or row.unit == "W":
        return None
    if unit not in UNITS[served.scenario] and served.scenario != "offline":
        return None
    if row.extra.get("scenario"):
        same = row.model in MLPERF_NAMES.get(name, ()) and row.extra["scenario"] == SCENARIOS[served.scenario]
        return "" if same else None
    if served.scenario == "offline" and row.workload == FORWARD.get(name):
        return "forward passes in a loop instead of LoadGen's Offline"
    return None


def served_differences(served: ServedQuery, row: Published) -> Iterator[Remark]:
    """Name what a submission has by MLPerf's rules, and the result has not."""
    if not row.extra.get("scenario"):
        return
    if not served.mlperf:
        yield Remark(f"a run by the rules of {_round_of(row)} instead of a quick one of {served.seconds:g} s", "rules")
    else:
        yield Remark(f"the rules of {_round_of(row)}", "rules")
    if served.scenario == "server":
        yield Remark(f"MLPerf's bound of the latency instead of {1e3 * served.bound_s:g} ms", "latency-bound")
    if not served.weights:
        yield Remark("trained weights whose accuracy was shown instead of random ones", "weights")
    if (division := row.extra.get("division")) and division != "closed":
        yield Remark(f"in the {division} division", "division")
    if (submitter := row.extra.get("submitter")) and row.system:
        yield Remark(f"{submitter}'s system {row.system}", "system")


def _round_of(row: Published) -> str:
    return row.source.removesuffix(" official summary")
