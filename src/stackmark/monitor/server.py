"""The exporter's HTTP server: `/metrics` behind a token where one is set, `/healthy` for probes.

prometheus_client's own server has no token, and a thread for as long as a client likes. Here a connection has LIFETIME_S in all,
however slowly it reads or writes, and there are at most MOST_CONNECTIONS. TLS is spoken in the connection's own thread, so a
handshake that does not end keeps nobody waiting.
"""

import hmac
import ipaddress
import socket
import socketserver
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client.exposition import choose_encoder

from stackmark.errors import PlaceError, SpecError
from stackmark.monitor.exporter import Exporter

LIFETIME_S = 15.0
MOST_CONNECTIONS = 256
# How many wait in the kernel: a hundred scrapers that come at once.
BACKLOG = 256
SHORTEST_TOKEN, LONGEST_TOKEN = 16, 4096
METRICS, HEALTHY = "/metrics", "/healthy"


def is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def check_exposure(address: str, *, token: bool, tls: bool) -> None:
    """Refuse to listen where others can reach it without a token or TLS."""
    if address != "localhost":
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise SpecError(
                f"--listen takes an IP address or localhost, not {address!r}", hint="e.g. --listen 127.0.0.1"
            ) from None
    if not (is_loopback(address) or token or tls):
        raise SpecError(
            f"--listen {address} is reachable from other machines, and results would be readable by all of them",
            hint="add --token-file FILE or --tls-cert FILE --tls-key FILE, or listen on 127.0.0.1",
        )


def read_token(file: Path) -> bytes:
    """Read a token from a file, without the newline at its end."""
    try:
        token = file.read_bytes()[: LONGEST_TOKEN + 1].strip()
    except OSError as error:
        raise SpecError(f"cannot read --token-file {file}: {error.strerror}") from error
    if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN or not token.isascii() or b" " in token:
        raise SpecError(
            f"--token-file {file} must hold one token of {SHORTEST_TOKEN} to {LONGEST_TOKEN} characters without blanks",
            hint=f"make one: openssl rand -hex 32 > {file}",
        )
    return token


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise SpecError(f"--tls-cert {certificate} and --tls-key {key} cannot be used: {why}") from error
    return context


class MetricsServer(ThreadingHTTPServer):
    """Serves one exporter until `shutdown`, or until a signal ends `serve_forever`."""

    daemon_threads = True
    request_queue_size = BACKLOG

    def __init__(
        self,
        exporter: Exporter,
        address: str,
        port: int,
        *,
        token: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        lifetime_s: float = LIFETIME_S,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.exporter = exporter
        self.token = token
        self._tls = tls
        self._lifetime_s = lifetime_s
        self._began: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        try:
            super().__init__((address, port), _Handler)
        except OSError as error:
            raise PlaceError(
                f"cannot listen on {address} port {port}: {error.strerror or error}",
                hint="another exporter may run there: choose another --port",
            ) from error

    def server_bind(self) -> None:
        # Without the name of this host, which HTTPServer looks up, and may wait for.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._began) >= MOST_CONNECTIONS
            if not full:
                self._began[request] = time.monotonic()
        if full:
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        inner = request
        try:
            request.settimeout(self._lifetime_s)
            if self._tls is not None:
                inner = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                with self._lock:
                    # The plain socket gave its descriptor away.
                    self._began[inner] = self._began.pop(request)
                inner.do_handshake()
            self.finish_request(inner, client_address)
        except OSError:
            pass  # the client went away, or spoke no TLS
        finally:
            with self._lock:
                self._began.pop(inner, None)
                self._began.pop(request, None)
            self.shutdown_request(inner)

    def service_actions(self) -> None:
        """End connections that took too long; called twice a second."""
        now = time.monotonic()
        with self._lock:
            slow = [one for one, began in self._began.items() if now - began > self._lifetime_s]
        for one in slow:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it has just ended

    def is_allowed(self, header: str | None) -> bool:
        if self.token is None:
            return True
        given = (header or "").encode("utf-8", "replace")
        return hmac.compare_digest(given, b"Bearer " + self.token)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version = "stackmark"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == HEALTHY:
            self._answer(200, b"ok\n")
        elif path not in ("/", METRICS):
            self._answer(404, b"look at /metrics\n")
        elif not self.server.is_allowed(self.headers.get("Authorization")):
            self._answer(401, b"a bearer token is needed\n", ("WWW-Authenticate", "Bearer"))
        elif path == "/":
            self._answer(200, b"stackmark exporter: /metrics\n")
        else:
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, self.server.exporter.render(encode, kind), ("Content-Type", kind))

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, code: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(code)
        if not any(name == "Content-Type" for name, _ in headers):
            self.send_header("Content-Type", "text/plain; charset=utf-8")
        for name, value in (*headers, ("Content-Length", str(len(body))), ("X-Content-Type-Options", "nosniff")):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Say nothing: a scrape every few seconds is no news."""
