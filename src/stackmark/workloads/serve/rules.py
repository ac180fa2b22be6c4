"""What MLPerf Inference's rules ask of a test, by model and version: so a result of `--mlperf` is valid in their sense.

Each model has the rules of the last version that this table knows for it, or of the only one that had it:

- v5.1: mlcommons/inference loadgen/mlperf.conf at 001712e; LoadGen 6.0 has the same values compiled in. The number of queries of
  single-stream and server is left to early stopping: at the least 64 for a 90th percentile and 662 for a 99th.
- v1.1: mlcommons/inference mlperf.conf at 0edaaf5.
- v0.5: inference_policies at c5f3151 and mlperf.conf at 37c605b. Its multi-stream (samples at a fixed interval) is another test,
  which today's LoadGen does not have: there, v5.1's is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stackmark.units import say_seconds

SECONDS_NOW, SECONDS_V05 = 600.0, 60.0
# Queries of multi-stream by v5.1; samples of offline at the least.
MULTI_STREAM_QUERIES, OFFLINE_SAMPLES = 662, 24_576
_EARLY = {"single-stream": 64, "multi-stream": MULTI_STREAM_QUERIES, "server": 662, "offline": OFFLINE_SAMPLES}
_V11 = {"single-stream": 1024, "multi-stream": 270_336, "server": 270_336, "offline": OFFLINE_SAMPLES}
_V05 = {"single-stream": 1024, "multi-stream": MULTI_STREAM_QUERIES, "server": 270_336, "offline": OFFLINE_SAMPLES}


@dataclass(frozen=True)
class Rules:
    """The rules for one model. `queries` are at the least, of offline samples; `percent` is the percentile of server."""

    version: str
    bound_s: float
    library: int
    seconds: float = SECONDS_NOW
    queries: Mapping[str, int] = field(default_factory=lambda: _EARLY)
    percent: int = 99

    def seconds_of(self, scenario: str) -> float:
        return SECONDS_NOW if scenario == "multi-stream" else self.seconds


RULES = {
    "resnet50": Rules("v5.1", 0.015, 1024),
    "bert": Rules("v5.1", 0.130, 10_833, queries={**_EARLY, "offline": 10_833}),
    "ssd-resnet34": Rules("v1.1", 0.100, 64, queries=_V11),
    "ssd-mobilenet": Rules("v1.1", 0.010, 256, queries=_V11),
    "mobilenet": Rules("v0.5", 0.010, 1024, SECONDS_V05, _V05),
    # Its library is the 3,003 sentences of the test set 1,300 times over.
    "gnmt": Rules("v0.5", 0.250, 3003, SECONDS_V05, {**_V05, "server": 90_112}, percent=97),
}
OTHERS = "resnet50"


def rules_of(network: str) -> Rules:
    """Return the rules for a network; of one that MLPerf does not have those for ResNet-50."""
    return RULES.get(network, RULES[OTHERS])


def say_rules(network: str) -> str:
    """Say whose rules they are: `MLPerf Inference v5.1`."""
    version = f"MLPerf Inference {rules_of(network).version}"
    return version if network in RULES else f"{version} for ResNet-50, since MLPerf has none for {network}"


def say_quick(network: str, scenario: str, seconds: float) -> str:
    """Say how short a quick test is next to one by the rules."""
    asked = say_seconds(rules_of(network).seconds_of(scenario))
    if network in RULES:
        return f"{say_seconds(seconds)} of queries; the rules of {say_rules(network)} ask for {asked}"
    whose = f"MLPerf's rules for ResNet-50 ({rules_of(network).version})"
    return f"{say_seconds(seconds)} of queries; {whose} ask for {asked}, and it has none for {network}"


def judged_percent(network: str, scenario: str) -> int:
    """Return the percentile that a scenario is judged by, in percent."""
    return {"single-stream": 90, "multi-stream": 99}.get(scenario, rules_of(network).percent)


def against_rules(
    network: str, scenario: str, *, seconds: float, library: int, bound_s: float, queries: int, samples: int
) -> list[str]:
    """Return in what a test fell short of the rules, whatever LoadGen said of it."""
    rules = rules_of(network)
    short = []
    if seconds < rules.seconds_of(scenario):
        short.append(f"{seconds:g} s instead of {rules.seconds_of(scenario):g} s")
    if library < rules.library:
        short.append(f"a library of {library:,} samples instead of {rules.library:,}")
    if scenario == "server" and network in RULES and bound_s > rules.bound_s * (1 + 1e-9):
        short.append(f"a bound of {1e3 * bound_s:g} ms instead of {1e3 * rules.bound_s:g} ms")
    wanted, made = rules.queries[scenario], samples if scenario == "offline" else queries
    if made < wanted:
        short.append(f"{made:,} {'samples' if scenario == 'offline' else 'queries'} instead of {wanted:,}")
    return short
