"""The workload `serve/start`: how long a server takes from its start until it answers. No framework.

The server is the user's own program. It is started, asked until it is ready, and ended with everything that it started. Each
moment counts from the start of its process:

- listening: its port accepts connections
- first answer: it answers the ready URL at all, often with "503, loading"
- ready: it answers the ready URL with a code below 400
- first request: it has answered a request completely, where one is given; this is the figure then, else `ready`
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from stackmark.model import Field
from stackmark.spec import AnyParams, Scalar
from stackmark.workloads.command.definition import split_command
from stackmark.workloads.definition import Definition, Family, MetricType

WORKLOAD = "serve/start"
START = {"group": "Start of a server (serve/start)"}
LONGEST_S = 86_400.0
# In the order in which a server goes through them; a metric of each, in seconds since the start of its process.
PHASES = ("listening", "first_http", "ready", "first_answer")
_NOT_IN_URLS = re.compile(r"[\s\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Target:
    """Where a server will answer."""

    host: str
    port: int
    path: str


def read_ready(text: str) -> Target:
    """Read the URL that says that a server is ready; raise ValueError."""
    if _NOT_IN_URLS.search(text) or not text.isascii():
        raise ValueError("a URL holds no spaces and no control characters")
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{text[:80]!r} is not a URL like http://127.0.0.1:8000/health")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a user or a key does not belong in the URL")
    port = 80 if parts.port is None else parts.port
    if not 0 < port < 65_536:
        raise ValueError(f"port {port} is not between 1 and 65535")
    query = f"?{parts.query}" if parts.query else ""
    return Target(parts.hostname, port, (parts.path or "/") + query)


def read_request(text: str) -> tuple[str, str]:
    """Split `/v1/completions {"prompt": "hi"}` into the path and the body; raise ValueError."""
    path, _, body = text.strip().partition(" ")
    body = body.strip()
    if not path.startswith("/") or _NOT_IN_URLS.search(path) or not path.isascii():
        raise ValueError(f"{text[:80]!r} does not begin with a path: write /v1/models, or /v1/completions {{…}}")
    if body:
        try:
            json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"what follows the path is not JSON: {error}") from error
    return path, body


def _checked_command(text: str) -> str:
    split_command(text)
    return text


def _checked_ready(text: str) -> str:
    read_ready(text)
    return text


def _checked_request(text: str) -> str:
    if text:
        read_request(text)
    return text


class StartParams(AnyParams):
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d{1,3})?)$", description="cpu or cuda:N")
    cmd: Annotated[str, _checked_command] = Field(
        max_length=32_000,
        description="the server and its arguments, quoted as for a shell, but run without one",
        json_schema_extra=START,
    )
    cwd: str = Field(
        default="",
        description="run it in this folder; default: the current folder; . is the place's own",
        json_schema_extra=START,
    )
    ready: Annotated[str, _checked_ready] = Field(
        max_length=2000,
        description="URL that the server answers with a code below 400 when it is ready: http://127.0.0.1:8000/health",
        json_schema_extra={**START, "plain": True},
    )
    request: Annotated[str, _checked_request] = Field(
        default="",
        max_length=32_000,
        description="ask this as soon as it is ready: a path, and JSON to post: /v1/completions {…}; its complete answer is the "
        "end of the start",
        json_schema_extra={**START, "plain": True, "one_value": True},
    )
    within: float = Field(
        default=600.0,
        gt=0,
        le=LONGEST_S,
        description="a server that is not ready after this time is ended, and the run fails",
        json_schema_extra={**START, "quantity": "seconds"},
    )
    cold: bool = Field(
        default=False,
        description="before each start drop the page cache: as root the machine's, else that of the files named in --cmd",
        json_schema_extra=START,
    )


def figure_of(request: str) -> MetricType:
    """Return what the start of a server is judged by."""
    return MetricType("time to first answer" if request else "time to ready", "s", higher_is_better=False)


def _metric_by(params: Mapping[str, Scalar]) -> MetricType | None:
    return figure_of(str(params.get("request") or ""))


FAMILY = Family(
    "serve",
    StartParams,
    "stackmark.workloads.serve.impl.start",
    (
        Definition(
            WORKLOAD,
            "The start of a server: from its process to its first answer",
            "start",
            timed="whole",
            metric_by=_metric_by,
            compared=tuple(MetricType(f"{phase}_s", "s", higher_is_better=False) for phase in PHASES),
        ),
    ),
    own_program=True,
    shown=("cmd", "cwd", "ready", "request", "cold"),
)
