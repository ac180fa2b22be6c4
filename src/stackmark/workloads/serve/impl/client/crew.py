"""The processes of the client: shares the load among them, starts them at the same moment, and gathers their records."""

import json
import os
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import IO

from stackmark.workloads.serve.impl.client.load import Done, Part, Record
from stackmark.workloads.workload import WorkloadFailure

# Between the last process's `ready` and the start of the load.
LEAD_S = 0.05
# How long a process may take to be ready: it imports a few modules and makes its prompts.
READY_S = 120.0
_CODE = "import sys, json; sys.path[:] = json.loads({path!r}); from {module} import main; main()"


@dataclass(frozen=True)
class Load:
    """What all processes did. Times are nanoseconds after the start; `window_ns` is the time in which requests were sent.

    `start_ns` is the start itself, by the monotonic clock.
    """

    records: tuple[Record, ...]
    window_ns: int
    processes: tuple[Done, ...]
    start_ns: int = 0

    @property
    def gone(self) -> str:
        return next((one.gone for one in self.processes if one.gone), "")


def parts_of(part: Part, processes: int) -> list[Part]:
    """Share a load: every n-th arrival, or the same number of clients, each process with its own numbers of requests."""
    if part.clients:
        processes = min(processes, part.clients, part.requests or part.clients)
    return [
        replace(
            part,
            number=number,
            of=processes,
            first_index=part.first_index + number,
            arrivals=part.arrivals[number::processes],
            clients=_share(part.clients, processes, number),
            requests=_share(part.requests, processes, number),
        )
        for number in range(processes)
    ]


def _share(whole: int, processes: int, number: int) -> int:
    return whole // processes + (number < whole % processes)


def run_load(part: Part, processes: int) -> Load:
    """Carry out a load in processes of its own."""
    crew = [_Process(one) for one in parts_of(part, processes)]
    try:
        for one in crew:
            one.wait_ready()
        start_ns = time.monotonic_ns() + round(LEAD_S * 1e9)
        for one in crew:
            one.start(start_ns)
        for one in crew:
            one.wait()
    finally:
        for one in crew:
            one.end()
    records = sorted((record for one in crew for record in one.records), key=lambda record: record.index)
    done = tuple(one.done for one in crew if one.done is not None)
    window_ns = _window_ns(part, records)
    if any(one.gone for one in done):  # rates are of the time in which there was a server
        window_ns = min(window_ns, max((one.end_ns for one in records if not one.failure), default=1))
    return Load(tuple(records), window_ns, done, start_ns)


def _window_ns(part: Part, records: Sequence[Record]) -> int:
    """Return how long requests were sent: the time that was asked for, else until the last answer."""
    if part.seconds and not part.requests:
        return round(part.seconds * 1e9)
    return max((record.end_ns for record in records), default=1) or 1


class _Process:
    """One process, with a thread that reads what it writes."""

    def __init__(self, part: Part) -> None:
        self.records: list[Record] = []
        self.done: Done | None = None
        self._ready = threading.Event()
        code = _CODE.format(path=json.dumps(sys.path), module="stackmark.workloads.serve.impl.client.load")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        self._problem = ""
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._errors, daemon=True),
        ]
        for one in self._threads:
            one.start()
        self._tell(json.dumps(asdict(part)))

    def _tell(self, line: str) -> None:
        try:
            pipe = self._pipe(self._process.stdin)
            pipe.write(f"{line}\n".encode())
            pipe.flush()
        except OSError:
            self._fail()

    @staticmethod
    def _pipe(pipe: "IO[bytes] | None") -> "IO[bytes]":
        assert pipe is not None
        return pipe

    def _read(self) -> None:
        for line in self._pipe(self._process.stdout):
            if line == b"ready\n":
                self._ready.set()
                continue
            said = json.loads(line)
            if "done" in said:
                self.done = Done(**said["done"])
            else:
                self.records.append(Record(**{**said, "gaps_ns": array("q", said["gaps_ns"])}))
        self._ready.set()

    def _errors(self) -> None:
        for line in self._pipe(self._process.stderr):
            self._problem = line.decode("utf-8", "replace").strip()[:300] or self._problem

    def wait_ready(self) -> None:
        if not self._ready.wait(READY_S) or self._process.poll() is not None:
            self._fail()

    def start(self, start_ns: int) -> None:
        self._tell(str(start_ns))

    def wait(self) -> None:
        self._threads[0].join()
        if self.done is None:
            self._fail()

    def _fail(self) -> None:
        self._process.kill()
        code = self._process.wait()
        self._threads[1].join(5)
        message = f"a process of the client ended with {code}: {self._problem or 'it said nothing'}"
        raise WorkloadFailure("crash", message, "fewer --processes, or a smaller --concurrency or --rate")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
