"""A server of OpenAI's protocol (and KServe v2) whose times are known, and which misbehaves on demand, for tests and benchmarks.

It answers with one token after the other at moments that it decides itself, and notes when it wrote what. It speaks HTTP on
bare sockets, so that it can also break it. `python tests/endpoint_server.py PORT TTFT_MS ITL_MS [MOST_AT_ONCE]` serves until it
is ended.
"""

import asyncio
import json
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any


@dataclass
class Behaviour:
    """What the server does. Counts are of requests that ask for an answer."""

    ttft_s: float = 0.0
    itl_s: float = 0.0
    # Tokens in a chunk; the server's count stays right.
    tokens_each: int = 1
    most_at_once: int = 10_000
    # Answers HTTP 503 after this number of requests.
    fail_after: int | None = None
    # Closes all connections and stops to listen when this number of requests has come.
    die_after: int | None = None
    # `silent`, `garbage`, `huge-line`, `drip`, `cut`, `reset`, `not-json`, `hostile`, `echo-key`, `error-in-stream`
    trick: str = ""
    # Misbehave from this request on: the first ones are those by which a client looks around.
    trick_after: int = 0
    usage: Callable[[int, int], dict[str, Any] | None] = lambda prompt, output: {
        "prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip
    # Closes the connection after each answer, without having said so.
    closes: bool = False
    refuses_extras: bool = False
    has_metrics: bool = True
    # Files with a certificate and its key.
    tls: tuple[str, str] | None = None


@dataclass
class Seen:
    """One request as the server saw it: its body, when it came, when each token was written."""

    body: dict[str, Any]
    headers: dict[str, str]
    came_ns: int
    wrote_ns: list[int] = field(default_factory=list)

    @property
    def prompt(self) -> str:
        messages = self.body.get("messages")
        return str(messages[0]["content"] if messages else self.body.get("prompt", ""))


@dataclass
class KnownServer:
    behaviour: Behaviour
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    _prompt_tokens: int = 0
    _output_tokens: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _server: asyncio.Server | None = None
    _slots: asyncio.Semaphore | None = None

    @property
    def url(self) -> str:
        return f"http{'s' if self.behaviour.tls else ''}://127.0.0.1:{self.port}/v1"

    async def listen(self, port: int = 0) -> None:
        self._slots = asyncio.Semaphore(self.behaviour.most_at_once)
        context = None
        if self.behaviour.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.behaviour.tls)
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    def die(self) -> None:
        """Do what the kernel does for a process that was killed."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while await self._answered(reader, writer):
                pass
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; return whether the connection is kept."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines if line}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = first.split(" ")
        if method == "GET":
            return self._plain(writer, *self._get(path))
        seen = Seen(json.loads(body), headers, time.monotonic_ns())
        self.seen.append(seen)
        number, how = len(self.seen), self.behaviour
        if how.die_after is not None and number > how.die_after:
            self.die()
            return False
        if how.fail_after is not None and number > how.fail_after:
            return self._plain(writer, 503, {"error": {"message": "no capacity left"}})
        if how.refuses_extras and "ignore_eos" in seen.body:
            return self._plain(writer, 400, {"error": {"message": "unknown field ignore_eos"}})
        if how.trick and number > how.trick_after:
            return await self._misbehave(writer, seen)
        assert self._slots is not None
        async with self._slots:
            if path.endswith("/infer"):
                await asyncio.sleep(how.ttft_s)
                return self._plain(
                    writer, 200, {"outputs": [{"name": "y", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
                )
            await self._stream(writer, seen)
        return not how.closes

    def _get(self, path: str) -> tuple[int, Any]:
        if path == "/metrics" and self.behaviour.has_metrics:
            return 200, (
                "# HELP vllm:prompt_tokens_total Prefilled tokens.\n"
                f'vllm:prompt_tokens_total{{model_name="known"}} {float(self._prompt_tokens)}\n'
                f'vllm:generation_tokens_total{{model_name="known"}} {float(self._output_tokens)}\n'
            )
        if path.endswith("/models"):
            return 200, {"object": "list", "data": [{"id": "known"}]}
        if path.startswith("/v2/models/"):
            return 200, {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]}
        return 404, {"detail": "Not Found"}

    def _plain(self, writer: asyncio.StreamWriter, status: int, said: Any) -> bool:
        body = said.encode() if isinstance(said, str) else json.dumps(said).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        return True

    def _chunk(self, writer: asyncio.StreamWriter, data: str) -> None:
        line = f"data: {data}\n\n".encode()
        writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    async def _stream(self, writer: asyncio.StreamWriter, seen: Seen) -> None:
        how, chat = self.behaviour, "messages" in seen.body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        tokens, prompt = int(seen.body["max_tokens"]), 5 + len(seen.prompt.split())
        if chat:  # the first chunk of a chat has a role and no content
            self._chunk(writer, json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        due = time.monotonic() + how.ttft_s
        for number in range(0, tokens, how.tokens_each):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            text = " token" * min(how.tokens_each, tokens - number)
            choice = {"delta": {"content": text}} if chat else {"text": text}
            # Before it is written: a server that has to wait for a CPU after it would have written later than a client reads.
            seen.wrote_ns.append(time.monotonic_ns())
            self._chunk(writer, json.dumps({"choices": [{"index": 0, "finish_reason": None, **choice}]}))
            due += how.itl_s * how.tokens_each
        self._prompt_tokens += prompt
        self._output_tokens += tokens
        self._chunk(writer, json.dumps({"choices": [{"delta": {}, "text": "", "finish_reason": "length"}]}))
        self._chunk(writer, json.dumps({"choices": [], "usage": how.usage(prompt, tokens)}))
        self._chunk(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _misbehave(self, writer: asyncio.StreamWriter, seen: Seen) -> bool:
        trick = self.behaviour.trick
        stream = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        if trick == "silent":
            await asyncio.sleep(3600)
        elif trick == "garbage":
            writer.write(b"\x00\xff\x1b[31mnot http at all\r\n\r\n")
        elif trick == "huge-line":
            writer.write(stream + b"data: " + b"x" * (2 * 2**20))
        elif trick == "drip":
            for _ in range(36_000):
                writer.write(b"H")
                await asyncio.sleep(0.1)
        elif trick == "cut":
            writer.write(stream)
            writer.write(b'data: {"choices": [{"delta": {"content": " token"}}]}\n\n')
        elif trick == "reset":
            writer.transport.abort()
        elif trick == "not-json":
            writer.write(stream + b"data: {'choices': nonsense}\n\n")
        elif trick == "error-in-stream":
            writer.write(stream + b'data: {"error": {"message": "out of memory"}}\n\n')
        elif trick == "hostile":
            said = {"error": {"message": "\x1b]0;owned\x07\u202e\r\n[stackmark] fine" + "z" * 5000}}
            return self._plain(writer, 500, said)
        elif trick == "echo-key":
            return self._plain(writer, 401, {"error": {"message": f"bad key {seen.headers.get('authorization')}"}})
        await writer.drain()
        return False


@contextmanager
def known_server(**behaviour: Any) -> Iterator[KnownServer]:
    """Serve from a thread of this process."""
    server = KnownServer(Behaviour(**behaviour))
    ready = threading.Event()
    end: list[Callable[[], object]] = []

    async def serve() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        end.append(partial(loop.call_soon_threadsafe, over.set))
        await server.listen()
        ready.set()
        await over.wait()
        server.die()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield server
    finally:
        end[0]()
        thread.join(30)


async def _serve(port: int, ttft_s: float, itl_s: float, most_at_once: int) -> None:
    await KnownServer(Behaviour(ttft_s=ttft_s, itl_s=itl_s, most_at_once=most_at_once)).listen(port)
    print("ready", flush=True)
    await asyncio.sleep(86_400)


if __name__ == "__main__":
    most = int(sys.argv[4]) if len(sys.argv) > 4 else 10_000
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2]) / 1e3, float(sys.argv[3]) / 1e3, most))
