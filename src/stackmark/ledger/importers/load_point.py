"""What a load generator says of one load point (a rate, or a number of requests at a time), as a run of `serve/endpoint`.

Every importer of a load generator fills in a `LoadPoint`; this file gives its numbers the names, units and figures of our own
endpoint client (workloads/serve/endpoint.py), so that results of several tools stand in one table. A load point whose requests
all failed is a failed run, never a zero. What cannot be right next to a tool's own other numbers is a flag: a rate that was not
sent, a median gap between tokens of zero, tokens that the server did not count.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stackmark.events import Figure
from stackmark.ledger.importers.documents import Node
from stackmark.ledger.importers.found import BadNumber, Failure, Found, Line, LoggedNumber, cut_line
from stackmark.spec import Scalar
from stackmark.units import say_seconds

WORKLOAD = "serve/endpoint"
# Latencies by the names that the importers use for them; all in seconds.
KINDS = {
    "ttft": "the time to the first token",
    "tpot": "the time per output token",
    "itl": "the time between tokens",
    "latency": "the latency of a request",
}
# A rate that was reached is called another one past this share: below it is the noise of a few arrivals.
_OFF_RATE = 0.2
# The count of a client's tokenizer is called another one than the server's past this share.
_OTHER_COUNT = 0.02
# A median gap between tokens below this share of the time per token: most tokens came together with another one.
_CLUMPED = 0.5


@dataclass
class LoadPoint:
    """One load point as a tool reports it. What the tool does not say is absent."""

    program: str
    version: str = ""
    model: str = ""
    # chat or completions.
    protocol: str = ""
    # What was asked for.
    concurrency: int | None = None
    rate: float | None = None
    arrivals: str = ""
    prompt: int | None = None
    generate: int | None = None
    requests: int | None = None
    # What came of it.
    duration_s: float | None = None
    completed: int | None = None
    errors: dict[str, int] = field(default_factory=dict)
    first_error: str = ""
    requests_per_s: float | None = None
    output_per_s: float | None = None
    total_per_s: float | None = None
    numbers: list[LoggedNumber] = field(default_factory=list)
    facts: dict[str, Scalar] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    when_unix_s: float | None = None
    # Zero, too: an answer takes time.
    _median_gap_s: float | None = None

    def latency(self, kind: str, statistic: str, node: Node, scale: float) -> None:
        """Take a statistic of a latency (`p50`, `mean`), given in units of `scale` seconds."""
        value = node.number(f"{KINDS[kind]} ({statistic})", zero=True)
        if value is None:
            return
        if (kind, statistic) == ("itl", "p50"):
            self._median_gap_s = value * scale
        if value:
            self.numbers.append(LoggedNumber(f"{statistic}_{kind}", value * scale, "s", False))

    def count(self, name: str, value: float | None, unit: str, higher_is_better: bool = True) -> None:
        if value is not None:
            self.numbers.append(LoggedNumber(name, value, unit, higher_is_better))

    def compare_counts(self, client: float | None, server: float | None) -> None:
        """Say that a tool counted other output tokens than the server."""
        if client and server and abs(client / server - 1) > _OTHER_COUNT:
            self.flags.append(
                f"other-count: the load generator's own tokenizer counted {client:.4g} output tokens, the server {server:.4g}; "
                "throughput and TPOT follow the former"
            )

    def _number(self, name: str) -> float | None:
        return next((one.value for one in self.numbers if one.name == name), None)

    def found(self, lines: tuple[Line, ...]) -> Found:
        """Return the load point as a result."""
        failed = sum(self.errors.values())
        figure, failure = self._figure(failed)
        if figure:
            self._further_numbers(failed)
            self._examine(failed)
        return Found(
            workload=WORKLOAD,
            params=self.params(),
            program=self.program,
            figure=figure,
            failure=failure,
            sample="token" if figure and figure.unit == "tokens/s" else "request",
            wall_s=self.duration_s,
            said=tuple(self.numbers) if figure else (),
            flags=tuple(self.flags) if figure else (),
            facts=tuple(
                {**self.facts, **({"version": self.version} if self.version else {}), **self._told(figure)}.items()
            ),
            framework=" ".join((self.program, self.version)).strip(),
            when_unix_s=self.when_unix_s,
            lines=tuple(map(cut_line, lines)),
        )

    def _figure(self, failed: int) -> tuple[Figure | None, Failure | None]:
        if self.completed == 0:
            why = f"; the first error: {self.first_error}" if self.first_error else ""
            sent = f"all {failed} requests failed" if failed else "no request was answered"
            return None, Failure("no_answer", f"{sent}{why}", "is the server's address right, and the model's name?")
        if self.rate and (median_s := self._number("p50_latency")):
            return Figure(name="p50 latency", value=median_s * 1e3, unit="ms", higher_is_better=False), None
        if self.output_per_s and not self.rate:
            return Figure(name="output throughput", value=self.output_per_s, unit="tokens/s"), None
        if self.requests_per_s:
            return Figure(name="request throughput", value=self.requests_per_s, unit="requests/s"), None
        return None, Failure(
            "cut_off", "the result has neither a rate of requests nor of tokens", "did the load generator end normally?"
        )

    def params(self) -> dict[str, Scalar]:
        said: dict[str, Scalar] = {
            "model": self.model,
            "protocol": self.protocol,
            "concurrency": self.concurrency,
            "rate": self.rate,
            "arrivals": self.arrivals,
            "requests": self.requests,
            "prompt": "" if self.prompt is None else str(self.prompt),
            "generate": "" if self.generate is None else str(self.generate),
        }
        return {name: value for name, value in said.items() if value not in (None, "")}

    def _told(self, figure: Figure | None) -> dict[str, Scalar]:
        """Return the numbers in words, a line for each kind of latency and one for the others."""
        if not figure:
            return {}
        lines: dict[str, list[str]] = {}
        for one in self.numbers:
            statistic, _, kind = one.name.partition("_")
            if kind in KINDS:
                lines.setdefault(kind, []).append(f"{statistic} {say_seconds(one.value)}")
        others = [f"{one.name.replace('_', ' ')} {one.value:.4g}" for one in self.numbers if one.unit != "s"]
        told = [f"{kind}: {', '.join(said)}" for kind, said in lines.items()]
        return {"numbers": "; ".join([*told, ", ".join(others)])}

    def _further_numbers(self, failed: int) -> None:
        self.count("output_per_s", self.output_per_s or None, "tokens/s")
        self.count("requests_per_s", self.requests_per_s or None, "requests/s")
        self.count("total_per_s", self.total_per_s or None, "tokens/s")
        self.count("answered", self.completed, "requests")
        if self.completed is not None or failed:
            self.count("failed", failed, "requests", False)
        for kind, count in self.errors.items():
            if len(self.errors) > 1 and count:
                self.count(f"failed_{kind}", count, "requests", False)

    def _examine(self, failed: int) -> None:
        if failed:
            why = f"; the first: {self.first_error}" if self.first_error else ""
            self.flags.append(f"errors: {failed} of {failed + (self.completed or 0)} requests failed{why}")
        gap_s, per_token_s = self._median_gap_s, self._number("p50_tpot") or self._number("mean_tpot")
        if gap_s is not None and per_token_s and gap_s < _CLUMPED * per_token_s:
            self.flags.append(
                f"clumped: the median time between tokens is {gap_s * 1e3:.3g} ms at {per_token_s * 1e3:.3g} ms a token: tokens "
                "came several at a time, so the gaps say nothing; use TPOT"
            )
        reached = self.requests_per_s
        if self.rate and reached and not failed and abs(reached / self.rate - 1) > _OFF_RATE:
            self.flags.append(
                f"other-rate: {self.rate:g} requests/s were asked for, {reached:.4g} were answered: the server did not keep up, "
                "or the load generator did not send what it was asked for"
            )


def filled(point: LoadPoint, fill: Callable[[], None], lines: tuple[Line, ...]) -> Found:
    """Fill a load point, and return its run; with an impossible number, a failed one."""
    try:
        fill()
    except BadNumber as error:
        return impossible(point, error, lines)
    return point.found(lines)


def impossible(point: LoadPoint, error: BadNumber, lines: tuple[Line, ...]) -> Found:
    """Return the failed run of a load point with an impossible number."""
    return Found(
        workload=WORKLOAD,
        params=point.params(),
        program=point.program,
        failure=Failure(error.kind, str(error)),
        facts=tuple(point.facts.items()),
        lines=lines,
    )


def whole_mean(total: float | None, count: int | None) -> int | None:
    """Return the tokens of each request where the mean is a whole number: then very likely all have it."""
    if not total or not count or total % count:
        return None
    return int(total // count)


def counted(errors: Mapping[str, float | None]) -> dict[str, int]:
    return {kind: int(count) for kind, count in errors.items() if count}


def error_name(text: str) -> str:
    """Return what a tool calls a kind of error, as part of a metric's name: `connection_error`."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text[:60]).lower()).strip("_") or "other"
