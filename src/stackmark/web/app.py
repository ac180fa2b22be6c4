"""The routes of the page: who may see it, which chapter answers, and how whatever goes wrong becomes a sentence.

Each request opens the ledger for itself and closes it. So a ledger that was moved, locked or replaced is a sentence for as
long as it lasts, and nothing needs to be started again. Pages are made in threads: two limits keep a slow report from holding
up lists.
"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import parse_qs

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stackmark.api import browsing
from stackmark.api.baselines import save_baseline
from stackmark.api.ledgers import Ledger, shown_address
from stackmark.api.stored import load
from stackmark.errors import LedgerError, SpecError, StackmarkError
from stackmark.show.report.markup import NOTHING, element, join, text
from stackmark.web import parts
from stackmark.web.asking import Answer, Ask, KeptPages
from stackmark.web.guard import HEADERS, SESSION_COOKIE, SESSION_S, THEME_COOKIE, Guard, cookies_in
from stackmark.web.live import Hub, Snapshot
from stackmark.web.pages import lists, looks, new, stored

# A ledger that is locked is waited for this long: somebody sits before the page.
BUSY_S = 2.0
MOST_BODY, MOST_QUERY = 16 << 10, 8 << 10
# Pages that are made at the same time: quick ones, and those that examine runs.
QUICK, SLOW = 8, 2

Handler = Callable[[Ask], Answer]


@dataclass
class Site:
    """What all requests share."""

    guard: Guard
    # The ledger as it was named; None is the default one.
    ledger: str | None = None
    hub: Hub = field(default_factory=Hub)
    kept: KeptPages = field(default_factory=KeptPages)
    quick: CapacityLimiter | None = None
    slow: CapacityLimiter | None = None

    def limiter(self, is_slow: bool) -> CapacityLimiter:
        """Return a limit of how many pages are made at once; it belongs to the running event loop."""
        if self.quick is None or self.slow is None:
            self.quick, self.slow = CapacityLimiter(QUICK), CapacityLimiter(SLOW)
        return self.slow if is_slow else self.quick

    def open(self) -> Ledger:
        book = Ledger.open(self.ledger, create=False, busy_s=BUSY_S)
        book.patience_s = BUSY_S
        return book


# Address, handler, whether it examines runs.
PAGES: tuple[tuple[str, Handler, bool], ...] = (
    ("/", lists.experiments, False),
    ("/experiments/{id}", stored.experiment, True),
    ("/experiments/{id}/report", stored.report, True),
    ("/experiments/{id}/report.html", stored.report_file, True),
    ("/experiments/{id}/verdict", lists.verdict, True),
    ("/runs", lists.runs, False),
    ("/runs/{id}", stored.run, True),
    ("/runs/{id}/log.txt", stored.log_file, True),
    ("/machines", looks.machines, False),
    ("/trends", looks.trends, False),
    ("/trends/changes", looks.changes, True),
    ("/trends/changes.svg", looks.changes_picture, True),
    ("/published", looks.published, True),
    ("/baselines", looks.baselines, False),
    ("/baselines/{name}", looks.baseline, True),
    ("/baselines/{name}/trend.svg", looks.baseline_picture, True),
    ("/new", new.new, False),
)
STATIC: dict[str, tuple[str, Callable[[], str]]] = {
    "style.css": ("text/css; charset=utf-8", parts.style),
    "app.js": ("text/javascript; charset=utf-8", lambda: parts.static("app.js")),
    "icon.svg": ("image/svg+xml", lambda: parts.static("icon.svg")),
}
# What is shown without a token.
OPEN_PATHS = ("/login", "/static/style.css", "/static/app.js", "/static/icon.svg", "/health")


def make_app(site: Site) -> ASGIApp:
    """Return the application."""
    routes = [
        *(Route(where, _page(site, handler, is_slow), methods=["GET"]) for where, handler, is_slow in PAGES),
        Route("/experiments/{id}/events", partial(_experiment_events, site), methods=["GET"]),
        Route("/events", partial(_list_events, site), methods=["GET"]),
        Route("/static/{name}", _static, methods=["GET"]),
        Route("/health", _health, methods=["GET"]),
        Route("/login", partial(_login_page, site), methods=["GET"]),
        Route("/login", partial(_login, site), methods=["POST"]),
        Route("/logout", partial(_logout, site), methods=["POST"]),
        Route("/experiments/{id}/delete", partial(_act, site, _delete), methods=["POST"]),
        Route("/baselines", partial(_act, site, _save), methods=["POST"]),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        site.hub.close()

    handlers = {HTTPException: partial(_http_error, site), Exception: partial(_broken, site)}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    return Gate(app, site)


class Gate:
    """What is decided before any page: the Host header, the token; and the headers that every answer has."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self.app, self.site = app, site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self.app)(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        guard, headers = self.site.guard, request.headers
        if not guard.allows_host(headers.get("host", "")):
            return PlainTextResponse(
                f"This server is not called {headers.get('host', '')[:100]!r}. If it is, start it with --name.\n", 421
            )
        if len(request.url.query) > MOST_QUERY:
            return PlainTextResponse("The address is too long.\n", 414)
        if request.url.path in OPEN_PATHS or guard.may_see(_cookies(request), headers.get("authorization", "")):
            return None
        if request.method == "GET" and "text/html" in headers.get("accept", ""):
            return RedirectResponse("/login", 303)
        return PlainTextResponse("This page needs its token: log in, or send it as Authorization: Bearer.\n", 401)


def _cookies(request: Request) -> dict[str, str]:
    return cookies_in(request.headers.getlist("cookie"))


def _values(request: Request) -> dict[str, str]:
    """Return the parameters of an address; of one that is given twice the last counts."""
    return {name[:80]: value for name, value in list(request.query_params.items())[:200]}


# --- pages ----------------------------------------------------------------------------------------------------------------


def _page(site: Site, handler: Handler, is_slow: bool) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        if found := _named_id(request):
            return RedirectResponse(found, 303)
        return await to_thread.run_sync(_answer, site, handler, request, limiter=site.limiter(is_slow))

    return endpoint


def _named_id(request: Request) -> str | None:
    """Return the page of an experiment or a run that was typed into the search."""
    words = request.query_params.get("q", "").strip().lower()
    if (
        request.url.path != "/"
        or not words.startswith(("x-", "r-"))
        or not 4 <= len(words) <= 28
        or not words[2:].isalnum()
    ):
        return None
    return parts.path("experiments" if words.startswith("x-") else "runs", words)


def _answer(site: Site, handler: Handler, request: Request) -> Response:
    """Make a page; of what goes wrong, a sentence."""
    cookies = _cookies(request)
    secret = site.guard.form_secret(site.guard.session_of(cookies))
    try:
        with site.open() as book:
            where = {name: str(value) for name, value in request.path_params.items()}
            ask = Ask(book, _values(request), where, secret, site.guard.actions, site.kept)
            found = handler(ask)
    except StackmarkError as error:
        return trouble_page(site, request, error)
    if found.file is not None:
        data, kind, name = found.file
        headers = {"content-disposition": f'attachment; filename="{name}"'} if name else {}
        return Response(data, media_type=kind, headers=headers)
    if found.fragment:
        return HTMLResponse(found.body, found.status)
    return HTMLResponse(_frame(site, request, found), found.status)


def _frame(site: Site, request: Request, found: Answer) -> str:
    cookies = _cookies(request)
    theme = cookies.get(THEME_COOKIE, "auto")
    secret = site.guard.form_secret(site.guard.session_of(cookies))
    return parts.frame(
        found.title, found.body, here=found.here, theme=theme if theme in parts.THEMES else "auto",
        ledger=shown_address(site.ledger), secret=secret if site.guard.token else None,
    )  # fmt: skip


def trouble_page(site: Site, request: Request, error: StackmarkError) -> Response:
    """Return a page with the sentence of an error: the server's if the ledger failed, else the asker's."""
    if isinstance(error, LedgerError):
        status, title = 503, "The ledger cannot be read"
    else:
        status, title = (404, "Not found") if request.path_params else (400, "This cannot be shown")
    body = looks.problem(error.message, error.hint, title)
    return HTMLResponse(_frame(site, request, Answer(title, body)), status)


async def _http_error(site: Site, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = {404: "There is no such page", 405: "This cannot be done here"}.get(error.status_code, "It did not work")
    body = looks.problem(f"{title}: {request.method} {request.url.path[:200]}", None, title)
    return HTMLResponse(_frame(site, request, Answer(title, body)), error.status_code, headers=error.headers)


async def _broken(site: Site, request: Request, error: Exception) -> Response:
    """Say that we failed. The server goes on; what happened is said where it was started."""
    print(f"stackmark web: {request.url.path[:200]}: {type(error).__name__}: {error}"[:1000], file=sys.stderr)
    body = looks.problem("stackmark itself failed while it made this page", "its terminal says how", "It did not work")
    return HTMLResponse(_frame(site, request, Answer("It did not work", body)), 500)


async def _static(request: Request) -> Response:
    found = STATIC.get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    kind, content = found
    return Response(content(), media_type=kind, headers={"cache-control": "public, max-age=604800"})


async def _health(_: Request) -> Response:
    return PlainTextResponse("ok\n")


# --- what changes ---------------------------------------------------------------------------------------------------------


async def _experiment_events(site: Site, request: Request) -> Response:
    name = request.path_params["id"]
    try:
        found = await to_thread.run_sync(_experiment_id, site, name, limiter=site.limiter(False))
    except StackmarkError as error:
        return PlainTextResponse(f"{error.message}\n", 404)

    def read() -> Snapshot:
        with site.open() as book:
            return stored.snapshot(browsing.progress_of(found, book))

    return _events(site, found, read)


def _experiment_id(site: Site, name: str) -> str:
    with site.open() as book:
        return book.experiment_id(name)


async def _list_events(site: Site, _: Request) -> Response:
    def read() -> Snapshot:
        with site.open() as book:
            state = browsing.newest_change(book)
        return Snapshot(state, {"state": state})

    return _events(site, "the list", read)


def _events(site: Site, key: str, read: Callable[[], Snapshot]) -> Response:
    if not site.hub.has_room(key):
        return PlainTextResponse("Too many browsers follow something here.\n", 503, headers={"retry-after": "60"})
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(site.hub.follow(key, read), media_type="text/event-stream", headers=headers)


# --- sessions and actions -------------------------------------------------------------------------------------------------


async def _login_page(site: Site, request: Request) -> Response:
    return HTMLResponse(_login_form(site, request, ""))


def _login_form(site: Site, request: Request, said: str) -> str:
    if not site.guard.token:
        body = looks.problem("this server asks for no token", None, "Nothing to log in to")
    else:
        form = element(
            "form",
            parts.text_input("token", "Token", "", kind="password", hint="the server was started with it", required=""),
            element("button", text("Log in"), type="submit", class_="main"),
            method="post", action="/login", class_="login",
        )  # fmt: skip
        heading = element("h1", text("Log in"))
        body = join([heading, parts.trouble(said, None) if said else NOTHING, form])
    theme = _cookies(request).get(THEME_COOKIE, "auto")
    return parts.frame("Log in", body, theme=theme if theme in parts.THEMES else "auto")


async def _form(request: Request) -> dict[str, str]:
    """Read a form, of which nothing is large."""
    data = b""
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > MOST_BODY:
                raise HTTPException(413)
    except ClientDisconnect as error:
        raise HTTPException(400) from error
    try:
        found = parse_qs(data.decode(), max_num_fields=20, keep_blank_values=True)
    except ValueError as error:
        raise HTTPException(400) from error
    return {name: values[-1] for name, values in found.items()}


async def _login(site: Site, request: Request) -> Response:
    sent = await _form(request)
    if not site.guard.is_own_page(request.headers):
        return HTMLResponse(_login_form(site, request, "this form was sent from another page"), 403)
    if not site.guard.is_token(sent.get("token", "").strip()):
        return HTMLResponse(_login_form(site, request, "this is not the token of this server"), 401)
    answer = RedirectResponse("/", 303)
    answer.set_cookie(
        SESSION_COOKIE, site.guard.open_session(), max_age=int(SESSION_S), httponly=True, samesite="strict",
        secure=site.guard.tls,
    )  # fmt: skip
    return answer


async def _logout(site: Site, request: Request) -> Response:
    sent = await _form(request)
    session = site.guard.session_of(_cookies(request))
    if session and sent.get("secret") == site.guard.form_secret(session):
        site.guard.close_session(session)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(SESSION_COOKIE)
    return answer


async def _act(
    site: Site, action: Callable[[Ledger, dict[str, str], dict[str, str]], str], request: Request
) -> Response:
    """Change the ledger, where that is allowed to whoever asks."""
    sent = await _form(request)
    allowed = site.guard.may_act(_cookies(request), request.headers.get("authorization", ""), sent.get("secret", ""))
    if not allowed or not site.guard.is_own_page(request.headers):
        said = (
            "this form is too old, or was sent from another page"
            if site.guard.actions
            else "this server only shows the ledger"
        )
        hint = "log in and try again" if site.guard.actions else "start it with --allow-actions"
        body = looks.problem(said, hint, "Not allowed")
        return HTMLResponse(_frame(site, request, Answer("Not allowed", body)), 403)

    def work() -> Response:
        try:
            with site.open() as book:
                where = {name: str(value) for name, value in request.path_params.items()}
                return RedirectResponse(action(book, where, sent), 303)
        except StackmarkError as error:
            return trouble_page(site, request, error)

    return await to_thread.run_sync(work, limiter=site.limiter(True))


def _delete(book: Ledger, where: dict[str, str], sent: dict[str, str]) -> str:
    found = load(where["id"], book)
    if sent.get("sure", "").strip() != found.id:
        raise SpecError(f"{found.id} was not deleted: the id in the form is another", hint="type the whole id")
    found.delete()
    return "/"


def _save(book: Ledger, _: dict[str, str], sent: dict[str, str]) -> str:
    name = sent.get("name", "").strip()
    save_baseline(name, experiments=[sent.get("experiment", "")], ledger=book)
    return parts.path("baselines", name)
