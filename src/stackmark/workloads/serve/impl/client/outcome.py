"""What a load shows: latencies, throughput, goodput, failures by kind, and what speaks against the numbers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.histogram import Histogram
from stackmark.units import counted, say_percent, say_seconds
from stackmark.workloads.serve.endpoint import PERCENTILES, EndpointParams, Slo, is_open, slo_of
from stackmark.workloads.serve.impl.client.crew import Load
from stackmark.workloads.serve.impl.client.load import Record
from stackmark.workloads.workload import Metric

# A request that this process began so much later than it was due was late, and this share of late ones makes a run invalid.
LATE_NS = 10_000_000
MOST_LATE = 0.01
# Of one core: a client that was busier was the bottleneck itself, or nearly.
BUSY = 0.9
# A time between tokens is only known where each chunk has one token, and arrives by itself.
CHUNKS_PER_TOKEN, MOST_TOGETHER = 0.95, 0.02
# Of answers with several tokens: where more than this share arrived as a whole, a time per token says nothing.
MOST_WHOLE = 0.1
# What the server makes of a length may differ by this much before a result says so.
OTHER_LENGTH = 0.1


def good(records: Sequence[Record]) -> list[Record]:
    return [one for one in records if not one.failure]


def tpot_ns(one: Record) -> float | None:
    """Return the time per output token after the first; None where an answer arrived as a whole, or is not counted."""
    if one.output < 2 or one.last_ns <= one.first_ns:
        return None
    return (one.last_ns - one.first_ns) / (one.output - 1)


def is_late(one: Record) -> bool:
    """Tell whether the client itself began a request late."""
    return one.sent_ns - one.due_ns > LATE_NS


def latency_ns(one: Record) -> int:
    return one.end_ns - one.due_ns


def within(one: Record, slo: Slo) -> bool:
    """Tell whether an answer keeps an SLO. A failure does not."""
    if one.failure:
        return False
    took = {"latency": float(latency_ns(one)), "ttft": float(one.first_ns - one.due_ns), "tpot": tpot_ns(one) or 0.0}
    return all(took[name] <= bound * 1e9 for name, bound in slo.bounds.items())


@dataclass(frozen=True)
class Outcome:
    """One load, summed up."""

    load: Load
    params: EndpointParams
    histograms: tuple[Histogram, ...]
    metrics: tuple[Metric, ...]
    flags: tuple[str, ...]
    # Whether the client kept up with what it had to send.
    client_kept_up: bool

    def number(self, name: str) -> float | None:
        return next((one.value for one in self.metrics if one.name == name), None)

    @property
    def answered(self) -> list[Record]:
        return good(self.load.records)

    @property
    def kept_share(self) -> float:
        """Return the share of requests that kept the SLO."""
        slo = slo_of(self.params)
        return sum(within(one, slo) for one in self.load.records) / max(1, len(self.load.records))

    @property
    def valid(self) -> bool:
        """Tell whether the SLO was kept by the share that it asks for. A late client only makes latencies longer."""
        return self.kept_share >= slo_of(self.params).share

    @property
    def fails_by_server(self) -> bool:
        """Tell whether the SLO was broken even if each request that the client sent late had kept it."""
        slo = slo_of(self.params)
        broken = sum(not within(one, slo) and not is_late(one) for one in self.load.records)
        return broken > (1 - slo.share) * len(self.load.records)

    def say_failures(self) -> str:
        """Say how many failed of each kind, with the first sentence of the most frequent."""
        failed = [one for one in self.load.records if one.failure]
        kinds = Counter(one.failure for one in failed)
        first = next((one.message for one in failed if one.failure == kinds.most_common(1)[0][0]), "")
        said = ", ".join(f"{count} × {kind.replace('_', ' ')}" for kind, count in kinds.most_common(5))
        return f"{len(failed):,} of {counted(len(self.load.records), 'request')} failed: {said} ({first})"


def sum_up(load: Load, params: EndpointParams, asked: int) -> Outcome:
    """Sum up a load. `asked` is how many requests were due."""
    answered = good(load.records)
    histograms = _histograms(answered, params)
    tpot, whole = _per_token(answered)
    itl, refused = _between_tokens(answered)
    histograms += [one for one in (tpot, itl) if one is not None]
    metrics = [*_counts(load, asked), *_client(load), *_rates(load, answered, params)]
    metrics += [
        Metric(f"p{percent:g}_{one.name}", value * 1e-9, "s", False)
        for one in histograms
        for percent in PERCENTILES
        if (value := one.percentile_ns(percent)) is not None
    ]
    metrics += [
        Metric(f"mean_{one.name}", value * 1e-9, "s", False) for one in histograms if (value := one.mean_ns) is not None
    ]
    flags, kept_up = _flags_of_client(load, metrics)
    flags += _flags_of_lengths(answered)
    flags += [f"{key}-refused: {why}" for key, why in (("tpot", whole), ("itl", refused)) if why]
    outcome = Outcome(load, params, tuple(histograms), tuple(metrics), tuple(flags), kept_up)
    if len(answered) < len(load.records):
        flags.append(f"requests-failed: {outcome.say_failures()}")
    metrics.append(Metric("valid", float(kept_up), "", True))
    return Outcome(load, params, tuple(histograms), tuple(metrics), tuple(flags), kept_up)


def _histograms(answered: Sequence[Record], params: EndpointParams) -> list[Histogram]:
    found = [Histogram("latency").record_all(map(latency_ns, answered))]
    if params.protocol != "kserve":
        found.append(Histogram("ttft").record_all(one.first_ns - one.due_ns for one in answered))
    return found


def _per_token(answered: Sequence[Record]) -> tuple[Histogram | None, str]:
    """Return the times per token, or why they are not known."""
    several = [one for one in answered if one.output >= 2]
    times = [round(each) for one in several if (each := tpot_ns(one)) is not None]
    whole = len(several) - len(times)
    if whole > MOST_WHOLE * len(several):
        return (
            None,
            f"time per output token is not given: {whole:,} of {counted(len(several), 'answer')} arrived as a whole",
        )
    return (Histogram("tpot").record_all(times) if times else None), ""


def _between_tokens(answered: Sequence[Record]) -> tuple[Histogram | None, str]:
    """Return the times between tokens, or why they are not known."""
    known = [one for one in answered if one.output > 0 and one.chunks > 0]
    chunks, tokens = sum(one.chunks for one in known), sum(one.output for one in known)
    together, gaps = sum(one.together for one in known), sum(len(one.gaps_ns) for one in known)
    if not gaps or not tokens:
        return None, ""
    if chunks < CHUNKS_PER_TOKEN * tokens:
        return None, f"inter-token latency is not given: {chunks:,} chunks hold {tokens:,} tokens"
    if together > MOST_TOGETHER * gaps:
        share = say_percent(together / gaps)
        return None, f"inter-token latency is not given: {share} of the chunks arrived together with the one before"
    return Histogram("itl").record_all(gap for one in known for gap in one.gaps_ns), ""


def _counts(load: Load, asked: int) -> list[Metric]:
    records = load.records
    failed = Counter(one.failure for one in records if one.failure)
    sent = [one for one in records if one.sent_ns >= 0]
    late = sum(map(is_late, sent))
    return [
        Metric("asked", float(asked), "requests", True),
        Metric("sent", float(len(sent)), "requests", True),
        Metric("late", float(late), "requests", False),
        Metric("answered", float(len(records) - failed.total()), "requests", True),
        Metric("failed", float(failed.total()), "requests", False),
        Metric("failed_share", failed.total() / max(1, len(records)), "", False),
        *(Metric(f"failed_{kind}", float(count), "requests", False) for kind, count in sorted(failed.items())),
    ]


def _client(load: Load) -> list[Metric]:
    lags = Histogram("client_lag").record_all(lag for one in load.processes for lag in one.lag_ns)
    lag = lags.percentile_ns(90)
    return [
        Metric("client_processes", float(len(load.processes)), "processes", False),
        Metric("client_cpu", max((one.cpu_s / one.wall_s for one in load.processes), default=0.0), "cores", False),
        Metric("connections", float(sum(one.opened for one in load.processes)), "connections", False),
        *([Metric("p90_client_lag", lag * 1e-9, "s", False)] if lag is not None else []),
    ]


def _rates(load: Load, answered: Sequence[Record], params: EndpointParams) -> list[Metric]:
    """Count what came within the time in which requests were sent: what ran over its end only with its part before."""
    window_s = load.window_ns * 1e-9
    requests = sum(_share(one.due_ns, one.end_ns, load.window_ns) for one in answered)
    found = [Metric("requests_per_s", requests / window_s, "requests/s", True)]
    if params.slo:
        slo = slo_of(params)
        kept = [one for one in answered if within(one, slo)]
        found.append(Metric("slo_share", len(kept) / max(1, len(load.records)), "", True))
        found.append(Metric("goodput", len(kept) / window_s, "requests/s", True))
    if is_open(params):
        found.append(Metric("offered_rate", len(load.records) / window_s, "requests/s", True))
    counts = [one for one in answered if one.output >= 0]
    if not counts or len(counts) < len(answered):
        return found
    output = sum(one.output * _share(one.first_ns, one.last_ns, load.window_ns) for one in counts)
    found.append(Metric("output_per_s", output / window_s, "tokens/s", True))
    if all(one.prompt >= 0 for one in counts):
        prompt = sum(one.prompt * _share(one.due_ns, one.first_ns, load.window_ns) for one in counts)
        found.append(Metric("prompt_per_s", prompt / window_s, "tokens/s", True))
        found.append(Metric("prompt_tokens", _mean([one.prompt for one in counts]), "tokens", True))
        found.append(Metric("prompt_tokens_total", float(sum(one.prompt for one in counts)), "tokens", True))
    found.append(Metric("prompt_asked", _mean([one.asked_prompt for one in counts]), "tokens", True))
    found.append(Metric("output_tokens", _mean([one.output for one in counts]), "tokens", True))
    found.append(Metric("output_tokens_total", float(sum(one.output for one in counts)), "tokens", True))
    found.append(Metric("output_asked", _mean([one.asked_output for one in counts]), "tokens", True))
    found.append(Metric("chunks_total", float(sum(one.chunks for one in counts)), "chunks", True))
    if all(one.cached >= 0 for one in counts):
        found.append(Metric("cached_tokens_total", float(sum(one.cached for one in counts)), "tokens", True))
    hour = params.price_per_gpu_hour * params.server_gpus
    both = {
        "output": output,
        "prompt": next((one.value * window_s for one in found if one.name == "prompt_per_s"), 0.0),
    }
    if hour and window_s:
        cost = hour * window_s / 3600
        both["total"] = sum(both.values()) if both["prompt"] else 0.0
        found += [
            Metric(f"cost_per_million_{name}", 1e6 * cost / tokens, "per million tokens", False)
            for name, tokens in both.items()
            if tokens > 0
        ]
    return found


def _mean(values: Sequence[int]) -> float:
    return sum(values) / max(1, len(values))


def _share(begin_ns: int, end_ns: int, window_ns: int) -> float:
    """Return the share of a time that lies before the end of the window."""
    if end_ns <= window_ns:
        return 1.0
    if begin_ns >= window_ns or end_ns <= begin_ns:
        return 0.0
    return (window_ns - begin_ns) / (end_ns - begin_ns)


def _flags_of_client(load: Load, metrics: Sequence[Metric]) -> tuple[list[str], bool]:
    by_name = {one.name: one.value for one in metrics}
    flags = []
    late, sent = by_name["late"], by_name["sent"]
    if late > max(1.0, MOST_LATE * sent):
        said = f"{late:,.0f} of {counted(sent, 'request')} were sent more than {LATE_NS // 10**6} ms late"
        flags.append(f"client-late: the client fell behind its schedule, so its numbers are not the server's: {said}")
    if by_name["client_cpu"] > BUSY:
        said = f"a process of it used {say_percent(by_name['client_cpu'])} of a core"
        flags.append(
            f"client-busy: the client was the bottleneck, so its numbers are not the server's: {said}; more --processes"
        )
    return flags, not flags


def _flags_of_lengths(answered: Sequence[Record]) -> list[str]:
    flags = []
    for article, what, pairs in (
        ("a", "prompt", [(one.asked_prompt, one.prompt) for one in answered if one.asked_prompt and one.prompt >= 0]),
        ("an", "answer", [(one.asked_output, one.output) for one in answered if one.asked_output and one.output >= 0]),
    ):
        asked, had = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
        if pairs and abs(had - asked) > OTHER_LENGTH * asked:
            mean = had / len(pairs)
            said = f"{mean:,.0f} tokens on average by the server's count, where {asked / len(pairs):,.0f} were asked"
            flags.append(f"{what}-length: {article} {what} has {said}")
    cached, prompt = sum(max(0, one.cached) for one in answered), sum(max(0, one.prompt) for one in answered)
    if prompt and cached > OTHER_LENGTH * prompt:
        flags.append(f"cached: {say_percent(cached / prompt)} of the prompts' tokens came from the server's cache")
    return flags


def say_times(outcome: Outcome) -> str:
    """Say the latencies of a test in a line."""
    said = []
    for name in ("ttft", "tpot", "latency"):
        for percent in (99, 90, 50):
            if (value := outcome.number(f"p{percent}_{name}")) is not None:
                said.append(f"{name} p{percent} {say_seconds(value)}")
                break
    return ", ".join(said) or "too few answers for a percentile"
