"""Who may see the pages, and who may change the ledger through them.

- Host: a page of another site can make its own name resolve to 127.0.0.1 (DNS rebinding) and then read answers as its own. It
  cannot choose the Host header, so an unknown name is refused. Addresses are not names, and are allowed where we listen on them.
- Token: where there is one, nothing is shown without it. It is exchanged for a session once, so it is in no address and no log.
- Actions: a POST needs a session, the session's own secret in the form, and a browser that says it comes from our page.
"""

import hmac
import ipaddress
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

from stackmark.errors import SpecError

LEAST_TOKEN, MOST_TOKEN = 16, 256
SESSION_COOKIE, THEME_COOKIE = "stackmark-session", "stackmark-theme"
SESSION_S = 12 * 3600.0
MOST_SESSIONS = 1000
LOOPBACK_NAMES = ("localhost",)

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not `no-referrer`: with it a browser hides the origin of our own forms, which is checked.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def is_loopback(address: str) -> bool:
    """Tell whether an address is reached from this machine only."""
    if address in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def check_token(token: str) -> str:
    """Refuse a token that could be guessed, or that a header cannot carry."""
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise SpecError(
            f"the token must have {LEAST_TOKEN} to {MOST_TOKEN} printable ASCII characters without a space, got {len(token)}",
            hint="make one: openssl rand -hex 24 > web.token",
        )
    return token


@dataclass
class Guard:
    """What may be asked of this server. Sessions live as long as the process."""

    listen: str
    token: str = ""
    actions: bool = False
    # Names by which browsers reach it, besides its addresses and the machine's own names.
    names: tuple[str, ...] = ()
    tls: bool = False
    _sessions: dict[str, tuple[float, str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        known = {*LOOPBACK_NAMES, self.listen.lower(), *(name.lower() for name in self.names)}
        if not is_loopback(self.listen):
            # Its whole name would have to be asked of a name server: it is given.
            known.add(socket.gethostname().lower())
        self._hosts = frozenset(known)

    def allows_host(self, header: str) -> bool:
        """Tell whether a Host header names this server."""
        name = host_in(header)
        if name in self._hosts:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not is_loopback(self.listen)

    def is_token(self, text: str) -> bool:
        return bool(self.token) and hmac.compare_digest(text.encode(), self.token.encode())

    def open_session(self) -> str:
        """Return the name of a new session; the oldest ends where there are too many."""
        name, now = secrets.token_urlsafe(32), time.monotonic()
        with self._lock:
            for old, (ends, _) in list(self._sessions.items()):
                if ends < now:
                    del self._sessions[old]
            while len(self._sessions) >= MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[name] = (now + SESSION_S, secrets.token_urlsafe(32))
        return name

    def close_session(self, name: str) -> None:
        with self._lock:
            self._sessions.pop(name, None)

    def form_secret(self, session: str) -> str:
        """Return what a form of this session carries; empty where the session has ended."""
        with self._lock:
            ends, secret = self._sessions.get(session, (0.0, ""))
        return secret if ends > time.monotonic() else ""

    def session_of(self, cookies: Mapping[str, str]) -> str:
        """Return the session that a browser has; empty where it has none."""
        name = cookies.get(SESSION_COOKIE, "")
        return name if self.form_secret(name) else ""

    def may_see(self, cookies: Mapping[str, str], authorization: str) -> bool:
        return not self.token or bool(self.session_of(cookies)) or self.is_bearer(authorization)

    def is_bearer(self, authorization: str) -> bool:
        scheme, _, text = authorization.partition(" ")
        return scheme.lower() == "bearer" and self.is_token(text.strip())

    def may_act(self, cookies: Mapping[str, str], authorization: str, sent_secret: str) -> bool:
        """Tell whether a POST may change the ledger. A program that sends the token itself needs no form."""
        if not self.actions:
            return False
        if self.is_bearer(authorization):
            return True
        wanted = self.form_secret(self.session_of(cookies))
        return bool(wanted) and hmac.compare_digest(sent_secret.encode(), wanted.encode())

    def is_own_page(self, headers: Mapping[str, str]) -> bool:
        """Tell whether a browser that sent a form says it came from our page. Programs say nothing of it."""
        site = headers.get("sec-fetch-site")
        if site is not None and site != "same-origin":
            return False
        origin = headers.get("origin")
        scheme = "https" if self.tls else "http"
        return origin is None or origin.lower() == f"{scheme}://{headers.get('host', '').lower()}"


def host_in(header: str) -> str:
    """Return the name or address in a Host header, without the port and without the brackets of IPv6."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def cookies_in(headers: Iterable[str]) -> dict[str, str]:
    """Read the cookies of a request; what cannot be read is no cookie."""
    found: dict[str, str] = {}
    for header in headers:
        jar = SimpleCookie()
        try:
            jar.load(header[:8192])
        except CookieError:
            continue
        found.update({name: morsel.value for name, morsel in jar.items()})
    return found
