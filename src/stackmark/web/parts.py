"""What pages are made of: links, forms, lists, the frame with its navigation. show/report/markup.py escapes the text."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from urllib.parse import quote, urlencode

from stackmark.show.report.html import style as report_style
from stackmark.show.report.markup import NOTHING, Markup, Value, element, join, text
from stackmark.show.report.tables import prose
from stackmark.show.safe import safe

# What a cell or a line shows of a text from a ledger, which may be of any length.
SHORT, LONG = 160, 2000
THEMES = ("auto", "light", "dark")
SECTIONS = (
    ("/", "Experiments"),
    ("/runs", "Runs"),
    ("/machines", "Machines"),
    ("/trends", "Trends"),
    ("/published", "Published"),
    ("/baselines", "Baselines"),
    ("/new", "New"),
)


def cut(content: str, most: int = SHORT) -> str:
    """Return the beginning of a text, with an ellipsis where more follows."""
    return content if len(content) <= most else f"{content[: most - 1]}…"


def void(name: str, **attributes: Value) -> Markup:
    """An element that HTML does not close."""
    return Markup(element(name, **attributes).removesuffix(f"</{name}>"))


def path(*pieces: str) -> str:
    """Return the path of a page; a piece comes from a ledger and may hold anything."""
    return "/" + "/".join(quote(piece, safe="") for piece in pieces)


def query(where: str, values: Mapping[str, str | None]) -> str:
    """Return a path with its parameters, without those that are empty."""
    given = {name: value for name, value in values.items() if value}
    return f"{where}?{urlencode(given)}" if given else where


def link(where: str, said: str | Markup, *, is_markup: bool = False, **attributes: Value) -> Markup:
    return element("a", Markup(said) if is_markup else text(said), href=where, **attributes)


def code(content: str) -> Markup:
    return element("code", text(content))


def lines(content: Sequence[str], class_: str = "log") -> Markup:
    """Show lines as they were printed; control characters are shown, not obeyed."""
    return element("pre", join(map(_line, content), Markup("\n")), class_=class_, tabindex="0")


def _line(content: str) -> Markup:
    return text(safe(cut(content.rstrip("\n"), LONG)).replace("\n", " "))


def facts(rows: Sequence[tuple[str, Markup]]) -> Markup:
    """Name and value, a line each."""
    return element(
        "dl", *(element("div", element("dt", text(name)), element("dd", value)) for name, value in rows), class_="facts-list"
    )  # fmt: skip


def command(content: str, name: str) -> Markup:
    """A command to copy. Where the browser runs no script, its button does nothing and is not shown."""
    button = element(
        "button", text("Copy"), type="button", class_="copy needs-script", data_copy=name, aria_label="Copy the command"
    )
    return element("div", element("pre", element("code", text(content), id=name)), button, class_="command")


def field(name: str, said: str, control: Markup, hint: str = "") -> Markup:
    """A control with its label."""
    note = element("small", text(hint), id=f"hint-{name}") if hint else NOTHING
    return element("div", element("label", text(said), for_=f"in-{name}"), control, note, class_="field")


def text_input(name: str, said: str, value: str, *, hint: str = "", kind: str = "text", **more: Value) -> Markup:
    described = f"hint-{name}" if hint else None
    control = void(
        "input", type=kind, id=f"in-{name}", name_=name, value=value, maxlength="300", autocomplete="off",
        aria_describedby=described, **more,
    )  # fmt: skip
    return field(name, said, control, hint)


def choice(name: str, said: str, values: Sequence[tuple[str, str]], chosen: str, *, hint: str = "") -> Markup:
    """A list of values, each with what is shown of it."""
    options = [
        element("option", text(cut(shown, 80)), value=value, selected="" if value == chosen else None)
        for value, shown in values
    ]
    described = f"hint-{name}" if hint else None
    return field(name, said, element("select", *options, id=f"in-{name}", name_=name, aria_describedby=described), hint)


def hidden(name: str, value: str) -> Markup:
    return void("input", type="hidden", name_=name, value=value)


def trouble(message: str, hint: str | None) -> Markup:
    """A sentence about what went wrong, and what to do."""
    parts = [element("p", element("b", prose(cut(message, LONG))))]
    parts += [element("p", prose(line)) for line in (cut(hint, LONG).split("\n") if hint else ())]
    return element("div", *parts, class_="trouble", role="alert")


def notice(content: str) -> Markup:
    return element("p", prose(content), class_="note")


def frame(
    title: str, body: Markup, *, here: str = "", theme: str = "auto", ledger: str = "", secret: str | None = None
) -> str:
    """Return a whole page. `secret` is that of the session, whose end then has a button; None where nobody logs in."""
    nav = element(
        "nav",
        element(
            "ul",
            *(
                element("li", link(where, said, aria_current="page" if where == here else None))
                for where, said in SECTIONS
            ),
        ),
        aria_label="Pages",
    )
    button = element(
        "button", text(f"Colours: {theme}"), type="button", id="theme", class_="needs-script",
        aria_label=f"Colours: {theme}. Change",
    )  # fmt: skip
    out = NOTHING
    if secret is not None:
        out = element(
            "form", hidden("secret", secret), element("button", text("Log out")), method="post", action="/logout"
        )
    banner = element(
        "header",
        link("/", "stackmark", class_="brand"),
        nav,
        element("div", button, out, class_="tools"),
        class_="banner",
    )
    foot = element(
        "footer",
        element("p", text(f"Ledger: {cut(ledger, 300)}") if ledger else NOTHING),
        class_="web-foot",
    )
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"{f" data-theme={chr(34)}{theme}{chr(34)}" if theme in THEMES[1:] else ""}>',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            element("title", text(f"{cut(title, 120)} · stackmark")),
            f'<link rel="stylesheet" href="{asset("style.css")}">',
            f'<link rel="icon" href="{asset("icon.svg")}" type="image/svg+xml">',
            f'<script src="{asset("app.js")}" defer></script>',
            "</head>",
            '<body><a class="skip" href="#main">Skip to the content</a>',
            banner,
            element("main", body, id="main", tabindex="-1"),
            foot,
            element("p", id="said", role="status", class_="unseen"),
            "</body>",
            "</html>",
            "",
        ]
    )


@cache
def style() -> str:
    """The report's style sheet, its colours by the button as well as by the reader's system, and what only these pages have."""
    sheet = report_style()
    light = re.search(r"^:root \{(.*?)^\}", sheet, re.DOTALL | re.MULTILINE)
    dark = re.search(r"prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}", sheet, re.DOTALL)
    assert light is not None
    assert dark is not None
    chosen = (
        f'@media screen {{\n:root[data-theme="light"] {{{light[1]} color-scheme: light; }}\n'
        f':root[data-theme="dark"] {{{dark[1]} color-scheme: dark; }}\n}}\n'
    )
    return f"{sheet}\n{chosen}\n{static('web.css')}"


@cache
def asset(name: str) -> str:
    """Return the address of a file of the package. It changes with its content, so browsers may keep what they have."""
    content = style() if name == "style.css" else static(name)
    return f"/static/{name}?{hashlib.sha256(content.encode()).hexdigest()[:12]}"


@cache
def static(name: str) -> str:
    return files("stackmark.web").joinpath("static", name).read_text(encoding="utf-8")
