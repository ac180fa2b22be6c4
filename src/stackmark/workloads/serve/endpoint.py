"""The workload `serve/endpoint`: a server that is already running, under a load from outside. No framework.

In a closed loop (`concurrency`) each client sends its next request after the answer, so a slow server is asked less. In an open
loop (`rate`, or a file of arrivals) requests are sent at moments that do not depend on the answers, and a latency counts from
the moment at which its request was due. Each has its figure:

- closed loop: output tokens per second (of a classic model: requests per second)
- open loop: the median latency; with `slo` the goodput, which is the answers within it per second; with `find_rate` the highest
  rate at which enough answers are within it
"""

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, get_args
from urllib.parse import urlsplit

from stackmark.errors import SpecError
from stackmark.model import Field
from stackmark.secrets_masking import looks_secret
from stackmark.spec import AnyParams, Scalar
from stackmark.units import parse_seconds, parse_share
from stackmark.workloads.definition import Definition, Family, MetricType

AUTO = {"auto": True}
LOAD = {"group": "Load on a server (serve/endpoint)"}
Protocol = Literal["chat", "completions", "kserve"]
WORKLOAD = "serve/endpoint"
LONGEST_S = 86_400.0
# Of a prompt or an answer, in tokens.
LONGEST_TOKENS = 1_000_000
# Requests that arrive together with `--arrivals burst`.
BURST = 8
# The share of requests that must be within the SLO at a rate that holds, unless the SLO says another.
SLO_SHARE = 0.9
SLO_TIMES = ("ttft", "tpot", "latency")
# The times that the client takes, in the order in which they are shown.
CLIENT_TIMES = ("ttft", "tpot", "itl", "latency")


# --- what is typed --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Address:
    """Where a server listens. `path` has no slash at its end."""

    tls: bool
    host: str
    port: int
    path: str

    @property
    def shown_host(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def read_address(text: str) -> Address:
    """Read a URL; raise ValueError."""
    if not text.isprintable() or " " in text:
        raise ValueError("a URL holds no spaces and no control characters")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text[:80]!r} is not a URL like http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a key does not belong in the URL: name the variable that holds it with --api-key-env")
    if parts.query or parts.fragment:
        raise ValueError(f"{text[:80]!r} has a query or a fragment; give the address only: http://127.0.0.1:8000/v1")
    tls = parts.scheme == "https"
    port = parts.port if parts.port is not None else 443 if tls else 80
    if not 0 < port < 65_536:
        raise ValueError(f"port {port} is not between 1 and 65535")
    return Address(tls, parts.hostname, port, parts.path.rstrip("/"))


_LENGTHS = r"^(\d{1,7}|uniform:\d{1,7}-\d{1,7}|lognormal:\d{1,7}:\d{1,2}(\.\d{1,4})?)$"


@dataclass(frozen=True)
class Lengths:
    """How long prompts or answers are, in tokens: all alike, uniform between two bounds, or log-normal with a median."""

    kind: Literal["fixed", "uniform", "lognormal"]
    low: int
    high: int
    sigma: float = 0.0

    def draw(self, source: random.Random) -> int:
        if self.kind == "fixed":
            return self.low
        if self.kind == "uniform":
            return source.randint(self.low, self.high)
        drawn = round(math.exp(source.gauss(math.log(self.low), self.sigma)))
        return min(max(1, drawn), self.high)


def read_lengths(text: str) -> Lengths:
    """Read `512`, `uniform:100-900`, or `lognormal:512:0.6` (median, sigma; at most eight times the median)."""
    if not re.match(_LENGTHS, text):
        raise ValueError(f"{text[:80]!r} is not a length like 512, uniform:100-900 or lognormal:512:0.6")
    kind, _, rest = text.partition(":")
    if not rest:
        found = Lengths("fixed", int(kind), int(kind))
    elif kind == "uniform":
        low, _, high = rest.partition("-")
        found = Lengths("uniform", int(low), int(high))
    else:
        median, _, sigma = rest.partition(":")
        found = Lengths("lognormal", int(median), 8 * int(median), float(sigma))
    if not 1 <= found.low <= found.high or found.low > LONGEST_TOKENS or found.sigma > 3:
        raise ValueError(f"{text!r}: lengths go from 1 to {LONGEST_TOKENS:,} tokens, the smaller one first, sigma to 3")
    return Lengths(found.kind, found.low, min(found.high, LONGEST_TOKENS), found.sigma)


@dataclass(frozen=True)
class Slo:
    """What each answer must keep, in seconds, and the share of answers that must keep it where a rate is searched."""

    bounds: Mapping[str, float]
    share: float = SLO_SHARE


def read_slo(text: str) -> Slo:
    """Read `ttft=200ms,tpot=50ms,latency=2s,share=95%`; raise ValueError."""
    bounds, share = dict[str, float](), SLO_SHARE
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        try:
            if not equals or name in bounds:
                raise ValueError(f"{part[:80]!r} is not NAME=TIME, each name once")
            if name == "share":
                share = parse_share(value)
            elif name in SLO_TIMES:
                if value.replace(".", "", 1).isdigit():
                    raise ValueError(f"{part!r} has no unit: {part}ms, or {part}s")
                bounds[name] = parse_seconds(value)
            else:
                raise ValueError(f"{name[:80]!r} is none of {', '.join(SLO_TIMES)} and share")
        except SpecError as error:
            raise ValueError(f"{name}: {error.message}") from error
    if not bounds or not all(0 < bound <= LONGEST_S for bound in bounds.values()):
        raise ValueError("an SLO bounds at least one of ttft, tpot and latency by a time: ttft=200ms,tpot=50ms")
    if not 0.5 <= share <= 0.999:
        raise ValueError("the share of an SLO is between 50 % and 99.9 %")
    return Slo(bounds, share)


def burst_of(arrivals: str) -> int:
    """Return how many requests arrive together by `burst` or `burst:N`; 0 where it is neither."""
    found = re.fullmatch(r"burst(?::(\d{1,4}))?", arrivals)
    return int(found[1] or BURST) if found else 0


def is_file(arrivals: str) -> bool:
    return arrivals not in ("poisson", "constant") and not burst_of(arrivals)


def _checked_url(text: str) -> str:
    read_address(text)
    return text


def _checked_slo(text: str) -> str:
    if text:
        read_slo(text)
    return text


def _checked_arrivals(text: str) -> str:
    if text.partition(":")[0] == "burst" and not burst_of(text):
        raise ValueError("a burst has 1 to 9999 requests: burst, or burst:16")
    return text


def _checked_lengths(text: str) -> str:
    read_lengths(text)
    return text


def _checked_key(text: str) -> str:
    if text and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError("give the name of a variable, such as OPENAI_API_KEY, and not the key itself")
    if text and not looks_secret(text):
        raise ValueError(f"{text} does not look like a secret's name: end it with _KEY or _TOKEN, so that it is masked")
    return text


def gpu_ids(text: str) -> list[int]:
    """Read `0+1`; raise ValueError. Empty: none are named."""
    if text and not re.fullmatch(r"\d{1,3}(\+\d{1,3})*", text):
        raise ValueError(f"{text[:80]!r} is not the numbers of GPUs with + between them, like 0+1")
    found = [int(one) for one in text.split("+")] if text else []
    if len({*found}) < len(found):
        raise ValueError(f"{text!r} names a GPU twice")
    return found


def _checked_gpus(text: str) -> str:
    gpu_ids(text)
    return text


class EndpointParams(AnyParams):
    url: Annotated[str, _checked_url] = Field(
        max_length=2000,
        description="address of the server, as clients of OpenAI's protocol have it: http://127.0.0.1:8000/v1",
        json_schema_extra=LOAD,
    )
    model: str = Field(
        max_length=500,
        description="name of the model; auto: the only one that the server lists",
        json_schema_extra={**AUTO, **LOAD, "plain": True},
    )
    protocol: Protocol = Field(
        default="chat",
        description="chat and completions are OpenAI's, streamed; kserve is KServe v2 over HTTP, for classic models",
        json_schema_extra=LOAD,
    )
    concurrency: int = Field(
        ge=0,
        le=4096,
        description="closed loop: this many clients, each sends its next request after the answer; auto: 1, and 0 in an open "
        "loop",
        json_schema_extra={**AUTO, **LOAD},
    )
    rate: float = Field(
        default=0.0, ge=0, le=1e6, description="open loop: requests per second, however fast the answers come",
        json_schema_extra=LOAD,
    )  # fmt: skip
    arrivals: Annotated[str, _checked_arrivals] = Field(
        default="poisson",
        max_length=4000,
        description="open loop: poisson, constant, burst (8 at once; burst:N), or a file with a moment in seconds per line",
        json_schema_extra={**LOAD, "plain": ["poisson", "constant", "burst"]},
    )
    seconds: float = Field(
        ge=0,
        le=LONGEST_S,
        description="send requests for this long; auto: 20, and 0 with --requests",
        json_schema_extra={**AUTO, "quantity": "seconds"},
    )
    requests: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="send exactly this many requests; 0: as --seconds says",
        json_schema_extra=LOAD,
    )
    warmup_requests: int = Field(
        ge=0,
        le=100_000,
        description="unmeasured requests before; auto: one for each client, in an open loop 4",
        json_schema_extra={**AUTO, **LOAD},
    )
    prompt: Annotated[str, _checked_lengths] = Field(
        default="512",
        pattern=_LENGTHS,
        description="tokens of a prompt: 512, uniform:100-900, lognormal:512:0.6 (median, sigma)",
        json_schema_extra=LOAD,
    )
    generate: Annotated[str, _checked_lengths] = Field(
        default="128",
        pattern=_LENGTHS,
        description="tokens of an answer, as --prompt; the server is asked not to end earlier",
        json_schema_extra=LOAD,
    )
    prompts: str = Field(
        default="",
        max_length=4000,
        description="file of real prompts: JSON lines with prompt or messages, and generate; instead of --prompt",
        json_schema_extra=LOAD,
    )
    prefix_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="the share of a prompt that is the same in all requests; 0: each prompt is new",
        json_schema_extra=LOAD,
    )
    slo: Annotated[str, _checked_slo] = Field(
        default="",
        max_length=200,
        description="what an answer must keep: ttft=200ms,tpot=50ms,latency=2s; with --find-rate by 90 % of them (share=99%)",
        json_schema_extra={**LOAD, "plain": True, "one_value": True},
    )
    find_rate: bool = Field(
        default=False, description="search the highest rate that keeps --slo, instead of one --rate",
        json_schema_extra=LOAD,
    )  # fmt: skip
    request_timeout: float = Field(
        default=120.0,
        gt=0,
        le=LONGEST_S,
        description="an answer that is not complete within this time is a failure",
        json_schema_extra={**LOAD, "quantity": "seconds"},
    )
    processes: int = Field(
        ge=1,
        le=256,
        description="processes of the client; auto: one for each 64 clients or 200 requests/s, at most one per CPU",
        json_schema_extra={**AUTO, **LOAD, "follows": True},
    )
    api_key_env: Annotated[str, _checked_key] = Field(
        default="",
        max_length=200,
        description="name of the variable that holds the server's key; the key itself is never stored",
        json_schema_extra=LOAD,
    )
    price_per_gpu_hour: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="price of a GPU for an hour, in any currency: adds the cost of a million tokens",
        json_schema_extra=LOAD,
    )
    server_gpus: int = Field(
        default=1, ge=1, le=10_000, description="GPUs of the server, for --price-per-gpu-hour", json_schema_extra=LOAD
    )
    server_gpu_ids: Annotated[str, _checked_gpus] = Field(
        default="",
        max_length=200,
        description="GPUs that serve, by nvidia-smi's numbers, for the energy per token: 0+1; empty: all on which a program "
        "computes, where the server is on this machine",
        json_schema_extra={**LOAD, "plain": True, "later": True},
    )
    seed: int = Field(default=1, ge=0, lt=2**31, description="random seed of prompts, lengths and arrivals")

    def _validate(self) -> None:
        open_loop = is_open(self)
        if self.concurrency and open_loop:
            raise ValueError(
                "--concurrency is a closed loop; --rate, --find-rate and a file of --arrivals are open ones: give one of them"
            )
        if not self.concurrency and not open_loop:
            raise ValueError("give a load: --concurrency, --rate, --find-rate, or a file of --arrivals")
        if self.concurrency and self.arrivals != "poisson":
            raise ValueError("--arrivals are of an open loop: give --rate instead of --concurrency")
        if self.find_rate and self.requests:
            raise ValueError("each test of --find-rate lasts --seconds: leave out --requests")
        if not self.seconds and not self.requests and not is_file(self.arrivals):
            raise ValueError("give --seconds above 0, or --requests")
        if self.rate and (self.find_rate or is_file(self.arrivals)):
            raise ValueError("--find-rate and a file of --arrivals have their own rates: leave out --rate")
        if self.find_rate and not self.slo:
            raise ValueError("--find-rate needs an --slo to keep, such as ttft=200ms,tpot=50ms")
        if self.find_rate and is_file(self.arrivals):
            raise ValueError("--find-rate needs --arrivals that have a rate: poisson, constant or burst")
        if self.protocol == "kserve" and (self.prompts or set(slo_of(self).bounds) - {"latency"}):
            raise ValueError("--protocol kserve has no tokens: no --prompts, and an --slo of latency only")


def is_open(params: EndpointParams) -> bool:
    return bool(params.rate or params.find_rate or is_file(params.arrivals))


def slo_of(params: EndpointParams) -> Slo:
    return read_slo(params.slo) if params.slo else Slo({})


# --- figures --------------------------------------------------------------------------------------------------------------

PERCENTILES = (50.0, 90.0, 99.0)
ENERGY = (MetricType("energy_per_output_token", "J", False), MetricType("energy_per_output_token_net", "J", False))
COMPARED = (
    *(MetricType(f"p{percent:g}_{name}", "s", False) for name in ("ttft", "tpot", "latency") for percent in (50, 99)),
    *ENERGY,
)


def figure_of(*, protocol: str, open_loop: bool, slo: bool, find_rate: bool) -> MetricType:
    """Return what a load is judged by."""
    if find_rate:
        return MetricType("rate within the SLO", "requests/s")
    if open_loop:
        return MetricType("goodput", "requests/s") if slo else MetricType("p50 latency", "ms", higher_is_better=False)
    if protocol == "kserve":
        return MetricType("throughput", "requests/s")
    return MetricType("output throughput", "tokens/s")


def _metric_by(params: Mapping[str, Scalar]) -> MetricType | None:
    if params.get("protocol") not in get_args(Protocol):
        return None
    find_rate = bool(params.get("find_rate"))
    return figure_of(
        protocol=str(params.get("protocol")),
        open_loop=bool(params.get("rate") or find_rate or is_file(str(params.get("arrivals", "poisson")))),
        slo=bool(params.get("slo")),
        find_rate=find_rate,
    )


FAMILY = Family(
    "serve",
    EndpointParams,
    "stackmark.workloads.serve.impl.endpoint",
    (
        Definition(
            WORKLOAD,
            "A server that is running (OpenAI's protocol, KServe v2): throughput and latency under load",
            "request",
            timed="whole",
            metric_by=_metric_by,
            compared=COMPARED,
        ),
    ),
    shown=("url", "model", "protocol", "concurrency", "rate", "arrivals", "prompt", "generate", "slo", "seconds"),
)
