"""What is asked and how answers are read: OpenAI's chat and completions (streamed), and KServe v2.

Tokens are those of the server's own count (`usage`). A chunk of a stream is no token: servers put several into one, keep half of
a character back, and send empty ones. So chunks only give times, and an answer whose server does not count has no tokens.
"""

import json
import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stackmark.workloads.serve.impl.client.http import RequestFailure, show_bytes

MOST_LINE_BYTES = 1024 * 1024
# Of the text of an error, what is looked at.
MOST_ERROR_BYTES = 64 * 1024
# Times between chunks of an answer that are kept.
MOST_GAPS = 16_384
MOST_TOKENS = 10_000_000
# What an answer is asked beyond OpenAI's protocol, so that it has the length that was asked for. A server that refuses them is
# asked without them.
EXTRAS: Mapping[str, Any] = {"ignore_eos": True}


@dataclass
class Usage:
    """The server's own count of an answer's tokens; -1: it does not say."""

    prompt: int = -1
    output: int = -1
    cached: int = -1


@dataclass
class Answer:
    """An answer as it arrives. Times are monotonic nanoseconds; 0: did not happen."""

    status: int = 0
    first_ns: int = 0
    last_ns: int = 0
    # Chunks with content, and how many of them arrived together with the one before.
    chunks: int = 0
    together: int = 0
    gaps_ns: "array[int]" = field(default_factory=lambda: array("q"))
    usage: Usage = field(default_factory=Usage)

    def receive(self, data: memoryview, now_ns: int) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Raise RequestFailure where the answer of status 200 is not a whole one."""
        raise NotImplementedError

    def _content(self, now_ns: int) -> None:
        self.chunks += 1
        if not self.first_ns:
            self.first_ns = now_ns
        else:
            gap = now_ns - self.last_ns
            self.together += gap <= 0
            if len(self.gaps_ns) < MOST_GAPS:
                self.gaps_ns.append(gap)
        self.last_ns = now_ns


@dataclass
class Body(Answer):
    """An answer that is one JSON object."""

    data: bytearray = field(default_factory=bytearray)
    limit: int = 64 * 2**20

    def receive(self, data: memoryview, now_ns: int) -> None:
        if len(self.data) + len(data) > self.limit:
            raise RequestFailure("garbage", f"the answer is longer than {self.limit >> 20} MiB")
        self.data += data
        self.last_ns = now_ns

    def read(self) -> dict[str, Any]:
        try:
            found = json.loads(bytes(self.data))
        except (ValueError, RecursionError):
            raise RequestFailure("garbage", f"the answer is not JSON: {show_bytes(self.data)}") from None
        if not isinstance(found, dict):
            raise RequestFailure("garbage", f"the answer is not a JSON object: {show_bytes(self.data)}")
        return found


@dataclass
class Inference(Body):
    """An answer of KServe v2: outputs, all at once."""

    def finish(self) -> None:
        if not isinstance(self.read().get("outputs"), list):
            raise RequestFailure("garbage", "the answer has no outputs")


@dataclass
class TextStream(Answer):
    """A streamed answer of OpenAI's protocol: lines `data: {…}`, the last one `data: [DONE]`."""

    _line: bytearray = field(default_factory=bytearray)
    _other: bytearray = field(default_factory=bytearray)
    _done: bool = False
    _finished: bool = False
    _events: int = 0

    def receive(self, data: memoryview, now_ns: int) -> None:
        self._line += data
        if b"\n" not in self._line:
            if len(self._line) > MOST_LINE_BYTES:
                raise RequestFailure("garbage", f"a line of the answer is longer than {MOST_LINE_BYTES >> 20} MiB")
            return
        *lines, rest = self._line.split(b"\n")
        self._line = rest
        for line in lines:
            if line.startswith(b"data:"):
                self._event(bytes(line[5:]).strip(), now_ns)
            elif len(self._other) < MOST_ERROR_BYTES:
                self._other += line

    def _event(self, data: bytes, now_ns: int) -> None:
        self._events += 1
        if data == b"[DONE]":
            self._done = True
            return
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            raise RequestFailure("garbage", f"a chunk of the answer is not JSON: {show_bytes(data)}") from None
        if not isinstance(chunk, dict):
            raise RequestFailure("garbage", f"a chunk of the answer is not an object: {show_bytes(data)}")
        if chunk.get("error"):
            raise RequestFailure("stream_error", f"the server ended its answer with an error: {said_error(data)}")
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = read_usage(usage)
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return
        if choice.get("finish_reason"):
            self._finished = True
        if _has_content(choice):
            self._content(now_ns)

    def finish(self) -> None:
        if not self._events:
            raise RequestFailure(
                "garbage", f"the answer is not a stream of events: {show_bytes(self._line or self._other)}"
            )
        if not (self._done or self._finished):
            raise RequestFailure("truncated", "the answer ended before its last chunk")
        if not self.chunks:
            raise RequestFailure("empty", "the answer has no content")


# Where a chunk has its text: a chat's is in `delta`, reasoning models have a second one, a tool's call a third.
_TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls")


def _has_content(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(delta.get(name) for name in _TEXTS)
    return bool(choice.get("text"))


def read_usage(usage: dict[str, Any]) -> Usage:
    """Read what a server counted; raise RequestFailure where it cannot be."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        _tokens(usage, "prompt_tokens"),
        _tokens(usage, "completion_tokens"),
        _tokens({"cached_tokens": cached}, "cached_tokens"),
    )


def _tokens(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    if value is None:
        return -1
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_TOKENS:
        raise RequestFailure("wrong_usage", f"the server counts {str(value)[:40]!r} {name}")
    return value


def said_error(body: bytes | bytearray) -> str:
    """Find the sentence in the body of an error, and make it fit to print."""
    text = bytes(body[:MOST_ERROR_BYTES]).decode("utf-8", "replace")
    try:
        found = json.loads(text)
        error = found.get("error", found.get("detail", found.get("message"))) if isinstance(found, dict) else None
        text = str(error.get("message") if isinstance(error, dict) else error) if error else text
    except (ValueError, RecursionError):
        pass
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return text[:200] or "without a reason"


# --- requests -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorInput:
    """An input of a KServe model, by the model's own metadata."""

    name: str
    datatype: str
    shape: tuple[int, ...]


MOST_ELEMENTS = 10_000_000
_WHOLE = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")


def read_inputs(metadata: Mapping[str, Any]) -> tuple[TensorInput, ...]:
    """Read the inputs of a KServe model. A dimension that is open is 1."""
    inputs = metadata.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise RequestFailure("garbage", "the model's metadata names no inputs")
    found = []
    for one in inputs:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str) or not isinstance(one.get("shape"), list):
            raise RequestFailure("garbage", "the model's metadata names an input without a name or a shape")
        shape = tuple(size if isinstance(size, int) and size > 0 else 1 for size in one["shape"])
        count = 1
        for size in shape:
            count *= size
        datatype = str(one.get("datatype"))
        if count > MOST_ELEMENTS:
            raise RequestFailure("garbage", f"an input of the model has {count:,} elements")
        if datatype not in (*_WHOLE, "BOOL", "FP16", "FP32", "FP64", "BYTES"):
            raise RequestFailure("garbage", f"an input of the model has the type {datatype[:40]!r}")
        found.append(TensorInput(one["name"], datatype, shape))
    return tuple(found)


def inference_body(inputs: Sequence[TensorInput], source: random.Random) -> bytes:
    """Write a request of KServe v2 with random values."""
    tensors = []
    for one in inputs:
        count = 1
        for size in one.shape:
            count *= size
        tensors.append(
            {"name": one.name, "shape": one.shape, "datatype": one.datatype, "data": _values(one, count, source)}
        )
    return json.dumps({"inputs": tensors}).encode()


def _values(one: TensorInput, count: int, source: random.Random) -> list[Any]:
    if one.datatype == "BYTES":
        return [f"sample {source.randrange(10**6)}" for _ in range(count)]
    if one.datatype == "BOOL":
        return [source.random() < 0.5 for _ in range(count)]
    if one.datatype in _WHOLE:
        return [source.randrange(100) for _ in range(count)]
    return [round(source.random(), 4) for _ in range(count)]


def text_body(protocol: str, model: str, prompt: object, tokens: int, extras: Mapping[str, Any]) -> bytes:
    """Write a request of OpenAI's protocol. `prompt` is a text, or the messages of a chat."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **extras,
    }
    if protocol == "completions":
        body["prompt"] = prompt
    else:
        body["messages"] = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    return json.dumps(body).encode()
