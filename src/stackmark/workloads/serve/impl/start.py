"""The implementation of `serve/start`: start a server, ask it until it answers, and end it. See workload.Workload.

The server's output is read while it is asked, in this thread; the questions are asked in another one. Whether it listens is read
from the kernel's table of sockets and not found out by connecting, since a server may count or log a connection that asks
nothing. Whatever happens, the server and all that it started are ended (command/impl/program.py).
"""

import http.client
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from stackmark.events import Figure
from stackmark.model import ValidationError
from stackmark.spec import AnyParams, Request, explain
from stackmark.workloads.command.definition import split_command, variables_in, with_values
from stackmark.workloads.command.impl.program import Program
from stackmark.workloads.command.output import Lines, OutputLines
from stackmark.workloads.serve.impl import page_cache
from stackmark.workloads.serve.start import StartParams, Target, figure_of, read_ready, read_request
from stackmark.workloads.workload import Metric, Rig, TimedFigure, TimedWhole, WorkloadFailure

# Between two looks. A start is known to this, which stands in the result.
LISTEN_EVERY_S = 0.002
ASK_EVERY_S = 0.01
# One question; a server that holds a connection while it loads answers later, and the time is that of its answer.
ANSWER_WITHIN_S = 60.0
# What a question may be over the time of --within before the server is ended without it.
GRACE_S = 0.5
MOST_ANSWER_BYTES = 64 * 1024**2
_LISTEN = "0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})  # noqa: S104


def probe(request: Request, _rig: Rig) -> tuple[AnyParams, dict[str, str]]:
    """Complete the parameters. The server is not started: it may take an hour."""
    try:
        params = StartParams.model_validate(request.typed())
    except ValidationError as error:
        raise WorkloadFailure("bad_parameter", explain(error), "see: stackmark run --help") from error
    _filled(split_command(params.cmd))
    return params, {}


def run(_name: str, params: AnyParams, rig: Rig) -> Generator[TimedWhole, None, None]:
    assert isinstance(params, StartParams)
    words, cwd = split_command(params.cmd), os.path.abspath(params.cwd)
    target = read_ready(params.ready)
    _refuse_taken(target)
    facts, metrics = _cache(params, words, cwd, rig)
    program = shutil.which(words[0] if "/" not in words[0] else os.path.join(cwd, words[0]))
    yield TimedWhole(
        run=lambda log: _start(params, words, cwd, target, log, metrics),
        device=params.device,
        facts={"words": [*words[:100]], "program": program and os.path.realpath(program), "cwd": cwd, **facts},
        subject="start",
    )


def _filled(words: list[str]) -> list[str]:
    try:
        return with_values(words, os.environ)
    except KeyError as error:
        raise WorkloadFailure(
            "bad_parameter", f"--cmd refers to {{env:{error.args[0]}}}, which is not set where the server starts"
        ) from error


def _cache(
    params: StartParams, words: list[str], cwd: str, rig: Rig
) -> tuple[dict[str, str | int | float], list[Metric]]:
    """Drop the page cache where that was asked for, and say what of the server's files is in memory."""
    files = page_cache.files_of(words, cwd)
    facts: dict[str, str | int | float] = {"page_cache": "as it was"}
    if params.cold:
        facts["page_cache"] = page_cache.drop(files)
        if "could not" in str(facts["page_cache"]):
            rig.flag(f"not-cold: {facts['page_cache']}")
    seen = page_cache.cached(files)
    if seen is None or seen.share is None:
        return facts, []
    facts |= {"files": seen.files, "file_bytes": seen.bytes, "file_bytes_in_memory": seen.in_memory}
    return facts, [Metric("cached_share", seen.share, "share", True)]


# --- is it listening? -----------------------------------------------------------------------------------------------------


def _listens(target: Target) -> bool:
    """Tell whether a socket of this machine listens on the port, without connecting to it."""
    port = f"{target.port:04X}"
    tables = 0
    for table in _TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        tables += 1
        for line in lines:
            cells = line.split()
            if len(cells) > 3 and cells[3] == _LISTEN and cells[1].rpartition(":")[2] == port:
                return True
    return _accepts(target) if not tables else False


def _accepts(target: Target) -> bool:
    try:
        socket.create_connection((target.host, target.port), timeout=1).close()
    except OSError:
        return False
    return True


def _refuse_taken(target: Target) -> None:
    if _listens(target) or (target.host not in _LOCAL and _accepts(target)):
        raise WorkloadFailure(
            "bad_parameter",
            f"port {target.port} is taken before the server starts: its answers would not be the server's",
            "end what listens there, or give the server and --ready another port",
        )


# --- asking -----------------------------------------------------------------------------------------------------------------


@dataclass
class _Asking:
    """What the thread that asks has seen, in seconds since the server's start."""

    target: Target
    request: str
    began_s: float
    deadline_s: float
    reached: dict[str, float] = field(default_factory=dict)
    # What the last question brought, for a sentence.
    last: str = ""
    error: WorkloadFailure | None = None
    done: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        try:
            self._ask()
            self.done = True
        except WorkloadFailure as error:
            self.error = error
        finally:
            self.over.set()

    def _ask(self) -> None:
        while not _listens(self.target):
            self._wait(LISTEN_EVERY_S)
        self._mark("listening")
        while (code := self._get()) is None or code >= 400:
            self._wait(ASK_EVERY_S)
        self._mark("ready")
        if self.request:
            path, body = read_request(self.request)
            code, text = self._send(path, body, self.deadline_s)
            if code >= 400:
                raise WorkloadFailure(
                    "no_answer",
                    f"the server was ready, but answered {path} with {code}: {_printable(text)}",
                    "is the request right? it is sent as it was given with --request",
                )
            self._mark("first_answer")

    def _mark(self, phase: str) -> None:
        self.reached.setdefault(phase, time.perf_counter() - self.began_s)

    def _wait(self, seconds: float) -> None:
        left = self.deadline_s - time.perf_counter()
        if left <= 0 or self.over.wait(min(seconds, left)):
            raise _Over

    def _get(self) -> int | None:
        try:
            code, _ = self._send(self.target.path, "", ANSWER_WITHIN_S)
        except _Over:
            raise
        except WorkloadFailure as error:
            self.last = error.message
            return None
        self._mark("first_http")
        self.last = f"it answered {self.target.path} with {code}"
        return code

    def _send(self, path: str, body: str, within_s: float) -> tuple[int, bytes]:
        """Send a request on a connection of its own and read the whole answer."""
        left = self.deadline_s - time.perf_counter()
        if left <= 0:
            raise _Over
        connection = http.client.HTTPConnection(self.target.host, self.target.port, timeout=min(within_s, left))
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            connection.request("POST" if body else "GET", path, body.encode() if body else None, headers)
            answer = connection.getresponse()
            text = answer.read(MOST_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            said = str(error) or type(error).__name__
            raise WorkloadFailure("no_answer", f"{path} was not answered: {said[:200]}") from error
        finally:
            connection.close()
        if len(text) > MOST_ANSWER_BYTES:
            raise WorkloadFailure("no_answer", f"the answer of {path} is larger than {MOST_ANSWER_BYTES >> 20} MiB")
        return answer.status, text


class _Over(WorkloadFailure):
    """The time is up, or the server ended."""

    def __init__(self) -> None:
        super().__init__("no_answer", "the server was not ready in time")


def _printable(text: bytes) -> str:
    said = " ".join(text[:300].decode("utf-8", "replace").split())
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in said) or "nothing"


# --- the run ----------------------------------------------------------------------------------------------------------------


def _start(
    params: StartParams, words: list[str], cwd: str, target: Target, log: Callable[[str], None], metrics: list[Metric]
) -> TimedFigure:
    kept = OutputLines(log)
    hidden = [os.environ.get(name, "") for name in variables_in(words)]
    out, err = Lines(kept.take, hidden), Lines(kept.take, hidden)
    began_s = time.perf_counter()
    asking = _Asking(target, params.request, began_s, began_s + params.within)
    try:
        with Program(_filled(words), cwd, partial(_feed, out), partial(_feed, err)) as program:
            process_s = time.perf_counter() - began_s
            with _thread(asking):
                while (
                    not asking.over.is_set() and program.running and time.perf_counter() < asking.deadline_s + GRACE_S
                ):
                    program.read(0.05)
            ended = not program.running
        ending = kept.ending()
    finally:
        kept.close()
    if not asking.done:
        raise _ended(program.code, ending) if ended else _too_late(params, asking, ending)
    kind = figure_of(params.request)
    value = asking.reached["first_answer" if params.request else "ready"]
    phases = {"process": process_s, **asking.reached}
    return TimedFigure(
        Figure(name=kind.name, value=value, unit=kind.unit, higher_is_better=kind.higher_is_better),
        value,
        (*(Metric(f"{phase}_s", seconds, "s", False) for phase, seconds in phases.items()), *metrics),
    )


def _feed(lines: Lines, data: bytes, end: bool) -> None:
    lines.feed(data, end)


@contextmanager
def _thread(asking: _Asking) -> Iterator[None]:
    thread = threading.Thread(target=asking.ask, name="asking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        asking.over.set()
        # It may hang in an answer; the server is ended next, which closes the connection, and the thread is a daemon.
        thread.join(timeout=1.0)


def _ended(code: int | None, ending: str) -> WorkloadFailure:
    how = "ended" if code is None else f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"
    return WorkloadFailure(
        "command_failed",
        f"the server {how} before it was ready{_said(ending)}",
        "see its output: stackmark show RUN --log",
    )


def _said(ending: str) -> str:
    return f"; its last output was: {ending}" if ending else "; it printed nothing"


def _too_late(params: StartParams, asking: _Asking, ending: str) -> WorkloadFailure:
    error = asking.error
    if error is not None and not isinstance(error, _Over):
        return error
    phase = "done with its first answer" if "ready" in asking.reached else "ready"
    if "listening" not in asking.reached:
        phase = f"listening on port {asking.target.port}"
    seen = f"; {asking.last}" if asking.last else ""
    return WorkloadFailure(
        "no_answer",
        f"the server was not {phase} after {params.within:g} s and was ended{seen}{_said(ending)}",
        "is the URL of --ready right? give it longer with --within; see its output: stackmark show RUN --log",
    )
