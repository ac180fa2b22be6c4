"""One process of the client: sends its share of the requests when they are due, and hands back what happened to each.

It runs as a program of its own, so that no thread of the worker takes time from it. It reads its part as JSON, says `ready`, is
told when the load starts (on the monotonic clock, which all processes share), and writes a line for each request when all are
done. It ends when its standard input does: then its worker is gone.
"""

import asyncio
import json
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from stackmark.workloads.serve.endpoint import EndpointParams, read_address
from stackmark.workloads.serve.impl.client.http import Reader, RequestFailure, Server
from stackmark.workloads.serve.impl.client.prompts import Prompts, Scale, read_prompts
from stackmark.workloads.serve.impl.client.protocols import (
    MOST_ERROR_BYTES,
    Answer,
    Inference,
    TensorInput,
    TextStream,
    inference_body,
    said_error,
    text_body,
)

# Open requests of one process: what is due beyond them is counted as a failure of the client.
MOST_OPEN = 8192
# After a failure a client of a closed loop waits, else it would send thousands of requests a second into a closed port.
AFTER_FAILURE_S = 0.05
# This many failures to reach the server in a row, over this time: it is gone, and the run ends.
GONE_FAILURES, GONE_S = 10, 2.0
GONE_KINDS = ("refused", "reset", "unreachable", "unresolved", "tls", "timeout")
# How often the client looks whether it is late itself.
BEAT_S = 0.02


@dataclass
class Record:
    """What happened to one request. Times are nanoseconds after the load's start; -1: did not happen, or is not known."""

    index: int
    due_ns: int
    sent_ns: int = -1
    first_ns: int = -1
    last_ns: int = -1
    end_ns: int = -1
    chunks: int = 0
    together: int = 0
    asked_prompt: int = 0
    asked_output: int = 0
    prompt: int = -1
    output: int = -1
    cached: int = -1
    # Empty: answered. Else why not, and a sentence about it.
    failure: str = ""
    message: str = ""
    gaps_ns: "array[int]" = field(default_factory=lambda: array("q"))


@dataclass(frozen=True)
class Part:
    """One process's part of a load: the arrivals of an open loop, or the clients of a closed one."""

    params: dict[str, Any]
    number: int
    of: int
    arrivals: tuple[float, ...] = ()
    clients: int = 0
    seconds: float = 0.0
    # Requests of a closed loop at the most; 0: until the time is over.
    requests: int = 0
    first_index: int = 0
    salt: str = ""
    repetition: int = 0
    template: float = 0.0
    per_word: float = 1.0
    extras: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Done:
    """What one process says of itself at the end."""

    cpu_s: float
    wall_s: float
    lag_ns: list[int]
    opened: int
    gone: str = ""


def headers_of(params: EndpointParams) -> dict[str, str]:
    """Return the headers of each request; the key comes from the environment, and goes nowhere else."""
    key = os.environ.get(params.api_key_env, "") if params.api_key_env else ""
    return {"Authorization": f"Bearer {key}"} if key else {}


@dataclass
class Sender:
    """Sends one request after the other on the server's connections, and records them."""

    params: EndpointParams
    server: Server
    prompts: Prompts
    extras: dict[str, Any]
    inputs: tuple[TensorInput, ...]
    start_ns: int = 0

    def body(self, index: int) -> tuple[bytes, int, int]:
        """Return a request with the lengths that it asks for."""
        params = self.params
        if params.protocol == "kserve":
            import random

            return inference_body(self.inputs, random.Random(f"{params.seed}:{index}")), 0, 0
        asked = self.prompts.number(index)
        body = text_body(params.protocol, params.model, asked.prompt, asked.output_tokens, self.extras)
        return body, asked.prompt_tokens, asked.output_tokens

    @property
    def path(self) -> str:
        base = self.server.address.path
        if self.params.protocol == "kserve":
            return f"{kserve_base(base)}/models/{self.params.model}/infer"
        return f"{base}/{'chat/completions' if self.params.protocol == 'chat' else 'completions'}"

    async def send(self, index: int, due_ns: int, made: tuple[bytes, int, int] | None = None) -> Record:
        """Send a request; its times count from `due_ns`."""
        body, asked_prompt, asked_output = made or self.body(index)
        record = Record(index, due_ns - self.start_ns, asked_prompt=asked_prompt, asked_output=asked_output)
        answer: Answer = Inference() if self.params.protocol == "kserve" else TextStream()
        try:
            await self._exchange(record, answer, body)
            take(record, answer)
        except RequestFailure as failure:
            record.failure, record.message = failure.kind, failure.message
        record.end_ns = time.monotonic_ns() - self.start_ns
        for name in ("first_ns", "last_ns"):
            at = getattr(answer, name)
            setattr(record, name, at - self.start_ns if at else -1)
        record.chunks, record.together = answer.chunks, answer.together
        record.gaps_ns = answer.gaps_ns
        return record

    async def _exchange(self, record: Record, answer: Answer, body: bytes) -> None:
        error = bytearray()

        def receive(data: memoryview, now_ns: int) -> None:
            if reader.status == 200:
                answer.receive(data, now_ns)
            elif len(error) < MOST_ERROR_BYTES:  # whatever it looks like
                error.extend(data)

        reader = Reader(receive)
        record.sent_ns = time.monotonic_ns() - self.start_ns
        await self.server.request("POST", self.path, body, self.params.request_timeout, reader)
        if reader.status != 200:
            raise RequestFailure(f"http_{reader.status}", f"HTTP {reader.status}: {said_error(error)}")


def take(record: Record, answer: Answer) -> None:
    usage = answer.usage
    # An answer without content shows the tokens of its prompt too, by which lengths are calibrated.
    record.prompt, record.output, record.cached = usage.prompt, usage.output, usage.cached
    answer.finish()
    if record.asked_output and usage.output > record.asked_output:
        message = f"the server counts {usage.output:,} tokens in an answer that may have {record.asked_output:,}"
        raise RequestFailure("wrong_usage", message)
    if answer.chunks and usage.output == 0:
        raise RequestFailure("wrong_usage", "the server counts no tokens in an answer with content")


def kserve_base(path: str) -> str:
    return path if path.endswith("/v2") else f"{path}/v2"


# --- the loops ------------------------------------------------------------------------------------------------------------


@dataclass
class Loops:
    """The load of one process. `gone` is why the server cannot be reached any more."""

    sender: Sender
    part: Part
    report: Callable[[Record], None]
    gone: str = ""
    _missed: int = 0
    _missed_since: float = 0.0
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _taken: int = 0

    def _note(self, record: Record) -> None:
        self.report(record)
        if record.failure not in GONE_KINDS:
            self._missed = 0
            return
        self._missed += 1
        now = time.monotonic()
        if self._missed == 1:
            self._missed_since = now
        if self._missed >= GONE_FAILURES and now - self._missed_since >= GONE_S:
            self.gone = record.message
            self._stop.set()

    async def closed(self) -> None:
        """Each client sends its next request after the answer, until the time is over."""
        part = self.part
        end_ns = self.sender.start_ns + round(part.seconds * 1e9) if part.seconds else None

        async def client() -> None:
            while not self._stop.is_set() and not (part.requests and self._taken >= part.requests):
                index = part.first_index + self._taken * part.of
                self._taken += 1
                made = self.sender.body(index)
                now_ns = time.monotonic_ns()
                if end_ns is not None and now_ns >= end_ns:
                    return
                record = await self.sender.send(index, now_ns, made)
                self._note(record)
                if record.failure:
                    await asyncio.sleep(AFTER_FAILURE_S)

        await asyncio.sleep(max(0.0, (self.sender.start_ns - time.monotonic_ns()) * 1e-9))
        await asyncio.gather(*(client() for _ in range(part.clients)))

    async def open(self) -> None:
        """Requests are sent when they are due, whatever became of the ones before."""
        tasks: set[asyncio.Task[None]] = set()
        # Prompts are made before the start as far as they fit into the memory, so that none makes its request late.
        ahead = [self.sender.body(self._index(number)) for number in range(min(len(self.part.arrivals), 2000))]
        for number, at in enumerate(self.part.arrivals):
            due_ns = self.sender.start_ns + round(at * 1e9)
            if number >= len(ahead):
                ahead.append(self.sender.body(self._index(number)))
            wait_s = (due_ns - time.monotonic_ns()) * 1e-9
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            if self._stop.is_set():
                break
            made = ahead[number]
            ahead[number] = (b"", 0, 0)
            if len(tasks) >= MOST_OPEN:
                record = Record(self._index(number), due_ns - self.sender.start_ns, failure="too_many_open")
                record.message = f"{MOST_OPEN:,} requests of one process are without an answer"
                self.report(record)
                continue
            task = asyncio.ensure_future(self._one(self._index(number), due_ns, made))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*list(tasks))

    def _index(self, number: int) -> int:
        return self.part.first_index + number * self.part.of

    async def _one(self, index: int, due_ns: int, made: tuple[bytes, int, int]) -> None:
        self._note(await self.sender.send(index, due_ns, made))


async def _beat(lags_ns: list[int]) -> None:
    """See how late this process wakes up, as its answers are read late then too."""
    while True:
        due_ns = time.monotonic_ns() + round(BEAT_S * 1e9)
        await asyncio.sleep(BEAT_S)
        lags_ns.append(max(0, time.monotonic_ns() - due_ns))


def sender_of(part: Part) -> Sender:
    params = EndpointParams.model_validate(part.params)
    real = read_prompts(params) if params.prompts else ()
    prompts = Prompts(params, Scale(part.template, part.per_word), real, part.salt, part.repetition)
    inputs = tuple(TensorInput(name, datatype, tuple(shape)) for name, datatype, shape in part.inputs)
    return Sender(params, Server(read_address(params.url), headers_of(params)), prompts, part.extras, inputs)


async def carry_out(part: Part, start_ns: Callable[[], int], report: Callable[[Record], None]) -> Done:
    """Run a part. `start_ns` is asked when all is prepared, and says when the load starts."""
    sender = sender_of(part)
    loops = Loops(sender, part, report)
    sender.start_ns = start_ns()
    lags_ns: list[int] = []
    beat = asyncio.ensure_future(_beat(lags_ns))
    began_s, cpu_s = time.monotonic(), time.process_time()
    await (loops.closed() if part.clients else loops.open())
    beat.cancel()
    sender.server.close()
    wall_s = max(1e-9, time.monotonic() - began_s)
    return Done(time.process_time() - cpu_s, wall_s, lags_ns, sender.server.opened, loops.gone)


def main() -> None:
    """Be a process of the client."""
    given = json.loads(sys.stdin.readline())
    given["inputs"] = tuple((name, datatype, tuple(shape)) for name, datatype, shape in given["inputs"])
    given["arrivals"] = tuple(given["arrivals"])
    out = sys.stdout
    records: list[Record] = []

    def start_ns() -> int:
        out.write("ready\n")
        out.flush()
        start = int(sys.stdin.readline() or os._exit(1))
        threading.Thread(target=lambda: sys.stdin.readline() or os._exit(1), daemon=True).start()
        return start

    done = asyncio.run(carry_out(Part(**given), start_ns, records.append))
    for record in records:
        out.write(json.dumps({**vars(record), "gaps_ns": record.gaps_ns.tolist()}, separators=(",", ":")) + "\n")
    out.write(json.dumps({"done": asdict(done)}) + "\n")
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
