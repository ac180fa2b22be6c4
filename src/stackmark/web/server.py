"""Listen, serve, and end: with SIGTERM or Ctrl-C also while browsers follow something."""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stackmark.errors import PlaceError, SpecError, Terminated
from stackmark.web.guard import Guard, check_token, is_loopback

if TYPE_CHECKING:
    from uvicorn import Server

PORT, LISTEN = 8470, "127.0.0.1"
TOKEN_VARIABLE = "STACKMARK_WEB_TOKEN"  # noqa: S105 - the name of a variable
# Connections at the same time: hundreds of browsers, each with a stream and some requests.
MOST_CONNECTIONS = 1024
# What still runs when the server is ended: a report of many runs.
ENDING_S = 3
MOST_TOKEN_FILE = 4096


@dataclass(frozen=True)
class Serving:
    """What was asked for."""

    port: int = PORT
    listen: str = LISTEN
    ledger: str | None = None
    actions: bool = False
    token: str = ""
    names: tuple[str, ...] = ()
    certificate: str | None = None
    key: str | None = None


def read_token(file: str | None) -> str:
    """Return the token of a file, else of the variable; empty where neither is given."""
    if file is None:
        found = os.environ.get(TOKEN_VARIABLE, "")
        return check_token(found) if found else ""
    try:
        with Path(file).open(encoding="utf-8") as source:
            return check_token(source.read(MOST_TOKEN_FILE).strip())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SpecError(f"--token-file {file}: {reason}", hint="make one: openssl rand -hex 24 > web.token") from error


def check_serving(asked: Serving) -> None:
    """Refuse what would show or change a ledger to whoever comes."""
    how = f"name a file that holds one with --token-file, or set {TOKEN_VARIABLE}: openssl rand -hex 24 > web.token"
    if asked.actions and not asked.token:
        raise SpecError("--allow-actions needs a token", hint=how)
    if not is_loopback(asked.listen) and not asked.token:
        raise SpecError(f"--listen {asked.listen} is reached from other machines, and needs a token", hint=how)
    if bool(asked.certificate) != bool(asked.key):
        raise SpecError("--tls-cert and --tls-key belong together", hint="name both files")
    for option, file in (("--tls-cert", asked.certificate), ("--tls-key", asked.key)):
        if file and not os.access(file, os.R_OK):
            raise SpecError(f"{option} {file} cannot be read")


def listening(asked: Serving) -> socket.socket:
    """Return a socket that listens; whoever has the port already is the reason of an error."""
    try:
        found = socket.getaddrinfo(asked.listen, asked.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise SpecError(f"--listen {asked.listen} is no address of this machine: {error.strerror}") from error
    family, kind, protocol, _, address = found[0]
    taken = socket.socket(family, kind, protocol)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind(address)
        taken.listen(MOST_CONNECTIONS)
    except OSError as error:
        taken.close()
        hint = "choose another with --port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else None
        raise PlaceError(f"cannot listen on {asked.listen} port {asked.port}: {error.strerror}", hint=hint) from error
    return taken


def address_of(asked: Serving, port: int) -> str:
    """Return what to type into a browser."""
    host = f"[{asked.listen}]" if ":" in asked.listen else asked.listen
    return f"{'https' if asked.certificate else 'http'}://{host}:{port}"


def prepare(asked: Serving) -> tuple["Server", socket.socket]:
    """Return a server that has not begun, and where it will listen."""
    check_serving(asked)
    try:
        import uvicorn

        from stackmark.web.app import Site, make_app
    except ImportError as error:
        raise SpecError(
            f"the web page needs the package {error.name}, which is not installed", hint="pip install 'stackmark[web]'"
        ) from error

    guard = Guard(asked.listen, asked.token, asked.actions, asked.names, tls=bool(asked.certificate))
    site = Site(guard, asked.ledger)

    class EndingStreams(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """End the streams first: a server waits until all of its answers have ended."""
            site.hub.close()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        make_app(site), log_config=None, access_log=False, server_header=False, proxy_headers=False, ws="none", http="h11",
        loop="asyncio", lifespan="on", limit_concurrency=MOST_CONNECTIONS, timeout_graceful_shutdown=ENDING_S,
        h11_max_incomplete_event_size=32 << 10, ssl_certfile=asked.certificate, ssl_keyfile=asked.key,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:  # a certificate that does not fit its key
        raise SpecError(f"the certificate cannot be used: {error.strerror or error}") from error
    return EndingStreams(config), listening(asked)


def serve(asked: Serving, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C, which is how it ends and no error. `ready` is told the address."""
    server, taken = prepare(asked)
    with taken:
        ready(address_of(asked, taken.getsockname()[1]))
        with suppress(KeyboardInterrupt, Terminated):
            server.run(sockets=[taken])
