"""What the client of serve/endpoint costs, how much one process carries, and how right its times are.

    python benchmarks/endpoint.py

Against a server whose times are known (tests/endpoint_server.py), and one that replays bytes it made before: processor time of
the client for each chunk and each request, the most of them a second, and TTFT and TPOT next to the moments at which the server
wrote its tokens. The servers are Python too and need as much of a core as the client, so a rate is the pair's, not the client's.
"""

import asyncio
import json
import multiprocessing
import statistics
import sys
from pathlib import Path
from typing import Any

from stackmark.workloads.serve.endpoint import EndpointParams
from stackmark.workloads.serve.impl.client.crew import run_load
from stackmark.workloads.serve.impl.client.load import Part
from stackmark.workloads.serve.impl.client.outcome import Outcome, sum_up

SECONDS = 3.0


async def _replay(port: "multiprocessing.Queue[int]", chunks: int, together: int) -> None:
    """Answer each request with the same bytes, `together` chunks in each write."""

    def chunk(said: dict[str, Any]) -> bytes:
        line = f"data: {json.dumps(said)}\n\n".encode()
        return f"{len(line):x}\r\n".encode() + line + b"\r\n"

    about = {"id": "chatcmpl-" + "0" * 32, "object": "chat.completion.chunk", "created": 1, "model": "known"}
    token = chunk({**about, "choices": [{"index": 0, "delta": {"content": " token"}, "finish_reason": None}]})
    usage = {"prompt_tokens": 24, "completion_tokens": chunks}
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    done = b"data: [DONE]\n\n"
    tail = chunk({**about, "choices": [], "usage": usage}) + f"{len(done):x}\r\n".encode() + done + b"\r\n0\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                sent = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in sent.split(b"\r\n") if line.startswith(b"Content-Length"))
                await reader.readexactly(int(length.split()[1]))
                writer.write(head)
                for first in range(0, chunks, together):
                    writer.write(token * min(together, chunks - first))
                    await asyncio.sleep(0)
                writer.write(tail)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port.put(server.sockets[0].getsockname()[1])
    await asyncio.sleep(86_400)


def _serve(port: "multiprocessing.Queue[int]", chunks: int, together: int) -> None:
    asyncio.run(_replay(port, chunks, together))


def measured(url: str, clients: int, generate: int, prompt: str = "24") -> Outcome:
    params = EndpointParams.model_validate(
        {
            "device": "cpu", "url": url, "model": "known", "concurrency": clients, "seconds": SECONDS, "requests": 0,
            "warmup_requests": 0, "processes": 1, "prompt": prompt, "generate": str(generate),
        }
    )  # fmt: skip
    part = Part(params.model_dump(mode="json"), 0, 1, clients=clients, seconds=SECONDS, salt="benchmark")
    return sum_up(run_load(part, 1), params, 0)


def cost(chunks: int, together: int, clients: int) -> None:
    """Print what one process of the client does and costs."""
    port: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=_serve, args=(port, chunks, together), daemon=True)
    server.start()
    outcome = measured(f"http://127.0.0.1:{port.get(timeout=30)}/v1", clients, chunks)
    server.kill()
    answered, cpu_s = len(outcome.answered), sum(one.cpu_s for one in outcome.load.processes)
    wall_s = outcome.load.processes[0].wall_s
    each = (
        f"{1e6 * cpu_s / max(1, answered * chunks):6.1f} µs a chunk"
        if chunks > 1
        else f"{1e6 * cpu_s / max(1, answered):6.0f} µs a request"
    )
    print(
        f"{chunks:4} chunks, {together:2} a write, {clients:2} clients: {answered / wall_s:8,.0f} requests/s, "
        f"{answered * chunks / wall_s:9,.0f} chunks/s, {each}, {100 * cpu_s / wall_s:4.0f} % of a core"
    )


def accuracy(ttft_s: float, itl_s: float) -> None:
    """Print our times next to the moments at which the server wrote."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from endpoint_server import known_server

    with known_server(ttft_s=ttft_s, itl_s=itl_s) as server:
        outcome = measured(server.url, 4, 16)
        first = statistics.median((one.wrote_ns[0] - one.came_ns) * 1e-6 for one in server.seen)
        each = statistics.median((one.wrote_ns[-1] - one.wrote_ns[0]) * 1e-6 / 15 for one in server.seen)
    ours = [1e3 * (outcome.number(name) or 0.0) for name in ("p50_ttft", "p50_tpot")]
    for name, mine, theirs in (("TTFT", ours[0], first), ("TPOT", ours[1], each)):
        print(
            f"{name} {mine:7.3f} ms by the client, {theirs:7.3f} ms by the server: {100 * (mine / theirs - 1):+.1f} %"
        )


if __name__ == "__main__":
    cost(1, 1, 16)
    cost(128, 1, 16)
    cost(128, 8, 16)
    accuracy(0.05, 0.01)
    accuracy(0.2, 0.03)
