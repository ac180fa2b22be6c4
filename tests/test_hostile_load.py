"""A worker that lies about a load: its percentiles, counts and rates must agree with the histograms that it sends."""

from collections.abc import Callable

import pytest

from stackmark.events import Event, Figure, Hello, Latencies, Metric, Result, Stream, write_event
from stackmark.experiments.verify import impossible_result
from stackmark.histogram import Histogram, Piece
from stackmark.spec import Scalar, Spec
from stackmark.workloads.serve.definition import ServeParams
from stackmark.workloads.serve.endpoint import EndpointParams

MS = 1_000_000
SECONDS, CLIENTS, TOKENS = 10.0, 4, 16
# A thousand answers and more in ten seconds, by four clients, each after about 30 ms.
TIMES_NS = [(20 + number % 20) * MS for number in range(1200)]
OBSERVED_S = 12.0


class Claims:
    """What an honest client says of this load; a lie changes a part of it."""

    def __init__(self) -> None:
        latency = Histogram("latency").record_all(TIMES_NS)
        self.histograms = {"latency": latency}
        self.metrics = {
            f"p{percent}_latency": 1e-9 * (latency.percentile_ns(percent) or 0.0) for percent in (50, 90, 99)
        }
        count = float(len(TIMES_NS))
        self.metrics |= {
            "answered": count, "requests_per_s": count / SECONDS, "output_tokens_total": TOKENS * count,
            "output_per_s": TOKENS * count / SECONDS,
        }  # fmt: skip
        self.figure = Figure(name="output throughput", value=self.metrics["output_per_s"], unit="tokens/s")
        self.flags: list[str] = []
        self.slowest_ns: list[int] | None = None

    def stream(self) -> Stream:
        events: list[Event] = [Hello(seq=0, t=0.0, time_unix_s=1.0, pid=1)]
        for name, value in self.metrics.items():
            events.append(Metric(seq=len(events), t=0.1, name=name, value=value, unit="s", higher_is_better=False))
        for histogram in self.histograms.values():
            for piece in histogram.pieces(2000):
                if piece.slowest_ns and self.slowest_ns is not None:
                    piece = Piece(slowest_ns=self.slowest_ns)
                events.append(Latencies(seq=len(events), t=0.1, name=histogram.name, **vars(piece)))
        events.append(
            Result(
                seq=len(events), t=0.2, sample="request", samples_per_step=1, steps=1, wall_s=SECONDS, tick_s=1e-9,
                figure=self.figure, flags=self.flags,
            )
        )  # fmt: skip
        stream = Stream()
        for event in events:
            stream.feed(write_event(event))
        return stream


def spec(**more: Scalar) -> Spec:
    given: dict[str, Scalar] = {
        "url": "http://127.0.0.1:8000/v1", "device": "cpu", "model": "m", "concurrency": CLIENTS, "seconds": SECONDS,
        "warmup_requests": 0, "processes": 1, "generate": str(TOKENS),
    }  # fmt: skip
    return Spec(
        workload="serve/endpoint", params=EndpointParams.model_validate({**given, **more}).model_dump(mode="json")
    )


def verified(claims: Claims, one: Spec | None = None) -> str | None:
    return impossible_result(claims.stream(), one or spec(), OBSERVED_S)


def test_a_load_whose_numbers_agree_is_a_result() -> None:
    assert verified(Claims()) is None


def metric(**more: float) -> Callable[[Claims], None]:
    return lambda claims: claims.metrics.update(more)


def throughput(claims: Claims) -> None:
    """Claim ten times the rate, as metric and as figure."""
    claims.metrics["output_per_s"] *= 10
    claims.figure = Figure(name="output throughput", value=claims.metrics["output_per_s"], unit="tokens/s")


def tokens(claims: Claims) -> None:
    """Claim ten times the tokens too."""
    throughput(claims)
    claims.metrics["output_tokens_total"] *= 10


def figure(claims: Claims) -> None:
    claims.figure = Figure(name="output throughput", value=1e6, unit="tokens/s")


def slowest(claims: Claims) -> None:
    """Claim a fast tail by the single times, from which percentiles of the tail are read."""
    claims.slowest_ns = [30 * MS] * 1000
    claims.metrics |= {name: 0.03 for name in claims.metrics if name.startswith("p9")}


def no_single_times(claims: Claims) -> None:
    claims.slowest_ns = []


def fewer_times(claims: Claims) -> None:
    claims.histograms["latency"] = Histogram("latency").record_all(TIMES_NS[:1100])


def waiting(claims: Claims) -> None:
    """Claim answers that took 30 times as long: four clients cannot have waited that long in twelve seconds."""
    claims.histograms["latency"] = Histogram("latency").record_all(30 * value for value in TIMES_NS)
    claims.metrics |= {name: 30 * value for name, value in claims.metrics.items() if name.startswith("p")}


LIES: dict[str, tuple[Callable[[Claims], None], str]] = {
    "a faster tail than its histogram": (metric(p99_latency=0.0385), "histogram has"),
    "a percentile of a time without a histogram": (metric(p50_ttft=0.001), "no histogram"),
    "a percentile that too few times show": (metric(**{"p99.9_latency": 0.039}), "do not show"),
    "single times that are not those of its cells": (slowest, "slowest times"),
    "no slowest times": (no_single_times, "slowest times"),
    "fewer latencies than answers": (fewer_times, "1,100 latencies"),
    "more tokens a second than it counted": (throughput, "output_tokens_total"),
    "more tokens than it asked for": (tokens, "at most 16 tokens"),
    "more answers a second than it had": (metric(requests_per_s=1e6), "requests_per_s"),
    "another figure than its metric": (figure, "output_per_s"),
    "more waiting than its clients had time for": (waiting, "at a time"),
}


@pytest.mark.parametrize(("lie", "said"), LIES.values(), ids=LIES.keys())
def test_a_load_whose_numbers_contradict_each_other_is_impossible(lie: Callable[[Claims], None], said: str) -> None:
    claims = Claims()
    lie(claims)
    assert said in str(verified(claims))


def by_loadgen(*flags: str, factor: float) -> str | None:
    claims = Claims()
    claims.metrics = {name: factor * value for name, value in claims.metrics.items() if name.endswith("latency")}
    claims.figure = Figure(
        name="p90 latency", value=1e3 * claims.metrics["p90_latency"], unit="ms", higher_is_better=False
    )
    claims.flags = list(flags)
    chosen: dict[str, Scalar] = {
        "device": "cpu", "seconds": SECONDS, "batch": 1, "tune": "off", "cuda_graph": False, "compile": False, "library": 64,
        "precision": "fp32", "threads": 0, "rate": 0.0, "latency_bound": 0.0, "batch_wait": 0.0,
    }  # fmt: skip
    params = ServeParams.model_validate({name: chosen[name] for name in chosen if name in ServeParams.model_fields})
    return verified(claims, Spec(workload="serve/resnet20", params=params.model_dump(mode="json")))


def test_percentiles_of_loadgen_may_differ_from_the_histogram_by_its_own_clock() -> None:
    assert by_loadgen(factor=1.08) is None
    assert "histogram has" in str(by_loadgen(factor=0.5))


def test_a_run_of_loadgen_that_says_that_the_clocks_disagree_is_kept() -> None:
    assert by_loadgen("clocks-disagree: p99 is 1 ms by LoadGen's log and 2 ms by our own clock", factor=0.5) is None
