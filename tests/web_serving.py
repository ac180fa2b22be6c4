"""The pages of `stackmark web`, served by a thread of this process, and a program that asks for them."""

import http.client
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from urllib.parse import urlencode

from stackmark.web.server import Serving, address_of, prepare

TOKEN = "a-token-of-these-tests"
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def words(self) -> str:
        """What a reader sees of it, without the marks of HTML."""
        return unescape(re.sub(r"<[^>]*>", " ", self.body))


@dataclass
class Client:
    """Asks one server. It keeps the cookie of a session, as a browser does."""

    port: int
    address: str
    cookie: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    def get(self, where: str, **headers: str) -> Answer:
        return self._ask("GET", where, None, headers)

    def post(self, where: str, values: Mapping[str, str], **headers: str) -> Answer:
        sent = {"content-type": "application/x-www-form-urlencoded", **headers}
        return self._ask("POST", where, urlencode(values), sent)

    def log_in(self, token: str = TOKEN) -> Answer:
        answer = self.post("/login", {"token": token}, origin=self.address)
        self.cookie = answer.headers.get("set-cookie", "").partition(";")[0]
        return answer

    def secret(self, where: str) -> str:
        """What the forms of a page carry."""
        found = re.search(r'name="secret" value="([^"]+)"', self.get(where).body)
        assert found, f"{where} has no form"
        return found[1]

    def _ask(self, method: str, where: str, body: str | None, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            named.setdefault("cookie", self.cookie)
        try:
            connection.request(method, where, body, {"accept": "text/html", **self.extra, **named})
            answer = connection.getresponse()
            shown = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, shown, answer.read().decode())
        finally:
            connection.close()


@contextmanager
def serving(ledger: object, *, token: str = "", actions: bool = False) -> Iterator[Client]:
    """Serve a ledger at a port that is free, and end when the block ends."""
    asked = Serving(port=0, ledger=str(ledger), token=token, actions=actions)
    server, taken = prepare(asked)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
    with taken:
        port = taken.getsockname()[1]
        thread.start()
        try:
            yield Client(port, address_of(asked, port))
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the server did not end"
