"""HTTP/1.1 on asyncio's transports: pooled connections, answers read as they arrive, every length bounded.

Written here because a client is part of what is measured. Libraries cost two to three times as much processor time for each
chunk of a streamed answer, and none says whether a request that failed on a pooled connection had been sent. What arrives is
untrusted: heads, lines and bodies have a largest size, and what is not HTTP is a failure with a kind.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stackmark.workloads.serve.endpoint import Address

MOST_HEAD_BYTES = 64 * 1024
MOST_BODY_BYTES = 256 * 2**20
MOST_CHUNK_LINE_BYTES = 1024
# A connection that was idle for longer is not used again: servers close theirs after 5 s and more.
IDLE_S = 4.0
# A request that met the closing of a used connection is sent once more on a new one: no byte came back, and so soon after it
# was sent that the server had closed before it. A server that does so every time (llama.cpp does after each stream, though it
# announces the opposite) gets a new connection for each request.
MET_CLOSING_S = 1.0
MOST_REOPENED = 3
CONNECT_S = 10.0


class RequestFailure(Exception):
    """A request that was not answered as it should: a kind to count it by, and a sentence."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


Receive = Callable[[memoryview, int], None]


class Reader:
    """Reads one answer from bytes as they come, and passes on its body with the time of arrival."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._head = bytearray()
        self._read: Callable[[memoryview, int], int] = self._read_head
        self._left = 0
        self._line = bytearray()
        self._body_bytes = 0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.done = False
        # Whether any byte came, and whether the connection can be used again.
        self.begun = False
        self.reusable = True
        self._until_close = False

    def feed(self, data: bytes, now_ns: int) -> None:
        """Read what arrived; raise RequestFailure where it is not HTTP."""
        self.begun = True
        rest = memoryview(data)
        while rest and not self.done:
            rest = rest[self._read(rest, now_ns) :]
        if rest:
            self.reusable = False  # bytes that nobody asked for

    def close(self) -> bool:
        """The other side closed the connection; return whether the answer was complete."""
        self.done = self.done or self._until_close
        return self.done

    def _read_head(self, data: memoryview, _now_ns: int) -> int:
        before = len(self._head)
        self._head += data[: MOST_HEAD_BYTES + 4]
        end = self._head.find(b"\r\n\r\n", max(0, before - 3))
        if end < 0:
            if len(self._head) > MOST_HEAD_BYTES:
                raise RequestFailure("garbage", f"the head of the answer is longer than {MOST_HEAD_BYTES} bytes")
            if not b"HTTP/1.".startswith(self._head[:7]):
                raise RequestFailure("garbage", f"the answer is not HTTP/1.1: {show_bytes(self._head)}")
            return len(data)
        head = bytes(self._head[:end])
        self._head.clear()
        self._parse_head(head)
        return end + 4 - before

    def _parse_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not (code.isascii() and code.isdigit()):
            raise RequestFailure("garbage", f"the answer is not HTTP/1.1: {show_bytes(head)}")
        self.status = int(code)
        self.headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        if 100 <= self.status < 200:
            return  # an interim answer: the real one follows
        self.reusable = version == "HTTP/1.1" and "close" not in self.headers.get("connection", "").lower()
        length = self.headers.get("content-length", "")
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._read = self._read_chunk_line
        elif self.status in (204, 304):
            self.done = True
        elif length:
            if not (length.isascii() and length.isdigit()) or int(length) > MOST_BODY_BYTES:
                raise RequestFailure("garbage", f"the answer has the length {show_bytes(length.encode())}")
            self._left = int(length)
            self._read, self.done = self._read_body, self._left == 0
        else:
            self._until_close, self.reusable = True, False
            self._left = MOST_BODY_BYTES + 1
            self._read = self._read_body

    def _pass_on(self, data: memoryview, now_ns: int) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > MOST_BODY_BYTES:
            raise RequestFailure("garbage", f"the answer is longer than {MOST_BODY_BYTES >> 20} MiB")
        self._receive(data, now_ns)

    def _read_body(self, data: memoryview, now_ns: int) -> int:
        taken = min(self._left, len(data))
        self._left -= taken
        self._pass_on(data[:taken], now_ns)
        if not self._left:
            self.done = True
        return taken

    def _take_line(self, data: memoryview) -> tuple[int, bytes | None]:
        """Take a line that ends a chunk or says its size; None while it is not complete."""
        found = bytes(data[: MOST_CHUNK_LINE_BYTES + 2])
        end = found.find(b"\n")
        self._line += found if end < 0 else found[: end + 1]
        if len(self._line) > MOST_CHUNK_LINE_BYTES:
            raise RequestFailure("garbage", f"a line between chunks is longer than {MOST_CHUNK_LINE_BYTES} bytes")
        if end < 0:
            return len(found), None
        line = bytes(self._line).rstrip(b"\r\n")
        self._line.clear()
        return end + 1, line

    def _read_chunk_line(self, data: memoryview, _now_ns: int) -> int:
        taken, line = self._take_line(data)
        if line is None:
            return taken
        size = line.partition(b";")[0].strip()
        try:
            if not size or not all(letter in b"0123456789abcdefABCDEF" for letter in size) or len(size) > 8:
                raise ValueError
            self._left = int(size, 16)
        except ValueError:
            raise RequestFailure("garbage", f"a chunk has the size {show_bytes(size)}") from None
        self._read = self._read_chunk if self._left else self._read_trailer
        return taken

    def _read_chunk(self, data: memoryview, now_ns: int) -> int:
        taken = min(self._left, len(data))
        self._left -= taken
        self._pass_on(data[:taken], now_ns)
        if not self._left:
            self._read = self._read_chunk_end
        return taken

    def _read_chunk_end(self, data: memoryview, _now_ns: int) -> int:
        taken, line = self._take_line(data)
        if line is not None:
            if line:
                raise RequestFailure("garbage", "a chunk is longer than its size")
            self._read = self._read_chunk_line
        return taken

    def _read_trailer(self, data: memoryview, _now_ns: int) -> int:
        taken, line = self._take_line(data)
        if line == b"":
            self.done = True
        return taken


class Connection(asyncio.Protocol):
    """One connection to the server, with at most one request on it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self._reader: Reader | None = None
        self._ended: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        reader, ended = self._reader, self._ended
        if reader is None or ended is None or ended.done():
            self.close()  # nobody asked for it
            return
        try:
            reader.feed(data, now_ns)
        except RequestFailure as failure:
            ended.set_exception(failure)
            self.close()
            return
        if reader.done:
            ended.set_result(None)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        reader, ended = self._reader, self._ended
        if reader is None or ended is None or ended.done():
            return
        if error is None and reader.close():
            ended.set_result(None)
        elif reader.begun:
            ended.set_exception(
                RequestFailure("truncated", "the server closed the connection in the middle of an answer")
            )
        else:
            ended.set_exception(RequestFailure("reset", "the server closed the connection without an answer"))

    @property
    def usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
            self.transport = None

    async def exchange(self, request: bytes, reader: Reader) -> None:
        """Send a request and read its answer."""
        assert self.transport is not None
        self._reader, self._ended = reader, asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            await self._ended
        finally:
            self._reader = self._ended = None


def show_bytes(data: bytes | bytearray) -> str:
    """Show the beginning of bytes that came from outside, without control characters."""
    text = bytes(data[:60]).decode("utf-8", "replace")
    return repr("".join(letter if letter.isprintable() else "." for letter in text))


@dataclass
class Server:
    """A server's address with its pool of connections. `headers` go with each request."""

    address: Address
    headers: Mapping[str, str] = field(default_factory=dict)
    opened: int = 0
    reopened: int = 0
    _idle: list[Connection] = field(default_factory=list)
    _resolved: list[tuple[str, int]] = field(default_factory=list)

    async def request(self, method: str, path: str, body: bytes | None, timeout_s: float, reader: Reader) -> None:
        """Send a request, and return when its answer is complete; raise RequestFailure."""
        message = self._head(method, path, body) + (body or b"")
        try:
            async with _limit(timeout_s):
                connection = self._pooled()
                if connection is None or not await self._tried(connection, message, reader):
                    await self._exchange(await self._open(), message, reader)
        except asyncio.TimeoutError:
            raise RequestFailure("timeout", f"no complete answer within {timeout_s:g} s") from None
        except OSError as error:
            raise connect_failure(error, self.address) from error

    async def _tried(self, connection: Connection, message: bytes, reader: Reader) -> bool:
        """Use a pooled connection; return False where the server had closed it before it saw the request."""
        sent = time.monotonic()
        try:
            await self._exchange(connection, message, reader)
        except RequestFailure as failure:
            if failure.kind != "reset" or time.monotonic() - sent > MET_CLOSING_S:
                raise
            self.reopened += 1
            return False
        return True

    async def _exchange(self, connection: Connection, message: bytes, reader: Reader) -> None:
        try:
            await connection.exchange(message, reader)
        finally:
            if reader.done and reader.reusable and connection.usable and self.reopened < MOST_REOPENED:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _pooled(self) -> Connection | None:
        """Return a connection that is still open. One that the server closed in the meantime is left: nothing was sent on it."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and time.monotonic() - connection.idle_since < IDLE_S:
                return connection
            connection.close()
        return None

    async def _open(self) -> Connection:
        loop, address = asyncio.get_running_loop(), self.address
        if not self._resolved:
            infos = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            self._resolved = [(str(info[4][0]), address.port) for info in infos]
        context = _tls() if address.tls else None
        failure = RequestFailure("unresolved", f"the name {address.host} has no address")
        for host, port in list(self._resolved):
            try:
                _, connection = await asyncio.wait_for(
                    loop.create_connection(
                        Connection, host, port, ssl=context, server_hostname=address.host if context else None
                    ),
                    CONNECT_S,
                )
            except asyncio.TimeoutError:
                said = f"{address.shown_host} took no connection within {CONNECT_S:g} s"
                said += "; if it does not speak TLS, its URL begins with http://" if address.tls else ""
                failure = RequestFailure("unreachable", said)
            except OSError as error:
                failure = connect_failure(error, address)
            else:
                self.opened += 1
                self._resolved = [(host, port)]
                return connection
        raise failure

    def _head(self, method: str, path: str, body: bytes | None) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.address.shown_host}", "User-Agent: stackmark"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class _limit:  # noqa: N801 - asyncio.timeout, which Python 3.10 does not have
    """Cancel what is inside after a time, and raise asyncio.TimeoutError then."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._struck = seconds, False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None

        def strike() -> None:
            self._struck = True
            task.cancel()

        self._timer = asyncio.get_running_loop().call_later(self._seconds, strike)

    async def __aexit__(self, kind: type[BaseException] | None, error: object, _trace: object) -> None:
        self._timer.cancel()
        if self._struck and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError


_context: list[ssl.SSLContext] = []


def _tls() -> ssl.SSLContext:
    if not _context:
        _context.append(ssl.create_default_context())
    return _context[0]


def connect_failure(error: OSError, address: Address) -> RequestFailure:
    """Say why no connection came about."""
    where = f"{address.shown_host}"
    if isinstance(error, ConnectionRefusedError):
        return RequestFailure("refused", f"nothing listens at {where}: the connection was refused")
    if isinstance(error, socket.gaierror):
        return RequestFailure("unresolved", f"the name {address.host} has no address")
    if isinstance(error, ssl.SSLError):
        return RequestFailure("tls", f"{where}: TLS failed: {error.reason or error}")
    if isinstance(error, ConnectionError):
        return RequestFailure("reset", f"{where} reset the connection")
    return RequestFailure("unreachable", f"{where} cannot be reached: {error.strerror or error}")
