"""Hide database passwords in what is printed and stored.

SQLAlchemy's parser decides what a URL means, since it also decides what is sent to the server. A URL that it cannot read, or
that can be read in two ways, is not shown at all: a password that was split in the wrong place would be half visible.
"""

import re
from collections.abc import Sequence
from urllib.parse import quote, quote_plus

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

HIDDEN = "***"
# Settings of a connection that may be shown. All others are hidden: libpq has several that hold or name a secret.
SHOWN_SETTINGS = frozenset(
    {
        "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname", "gssencmode", "host", "hostaddr",
        "options", "port", "service", "sslcert", "sslmode", "sslrootcert", "target_session_attrs", "user",
    }
)  # fmt: skip
SECRET_SETTINGS = frozenset({"password", "sslpassword", "sslkey", "passfile"})
_DATABASE_URL = re.compile(r"postgres(?:ql)?(?:\+\w+)?://", re.IGNORECASE)
_DATABASE_URL_IN_TEXT = re.compile(_DATABASE_URL.pattern + r"\S*", re.IGNORECASE)
_ANY_URL = re.compile(r"(?P<before>\w://[^:/@\s]*:)[^@/\s]*@")
_SETTING = re.compile(
    rf"(?P<before>\b(?:{'|'.join(sorted(SECRET_SETTINGS))})\s*=\s*)(?:'[^']*'|[^&\s]*)", re.IGNORECASE
)
# A password this short may be part of any word, so it is replaced only where it stands alone.
_SHORT = 4


def is_ambiguous(text: str) -> bool:
    """Tell whether a URL holds several `@`: the password then has no certain end."""
    return text.count("@") > 1


def is_connection_string(text: str) -> bool:
    """Tell whether a text without `://` was meant for a database (`host=… password=…`) and not for a file."""
    settings = {word.partition("=")[0].strip().lower() for word in text.split()}
    return text.lower().startswith(("postgres:", "postgresql:")) or bool(settings & SECRET_SETTINGS)


def hide_in_url(text: str) -> str:
    """Return a database URL without its secrets; where it cannot be read, only its scheme."""
    scheme = text.partition("://")[0]
    if scheme.partition("+")[0].lower() == "sqlite":
        return text
    nothing = f"{scheme}://{HIDDEN}" if re.fullmatch(r"[\w+.-]{1,40}", scheme) else HIDDEN
    if is_ambiguous(text):
        return nothing
    try:
        return render(make_url(text))
    except (ArgumentError, ValueError):
        return nothing


def render(url: URL) -> str:
    """Write a parsed URL without its secrets."""
    settings = []
    for name, values in url.query.items():
        for value in (values,) if isinstance(values, str) else values:
            if name in SHOWN_SETTINGS:
                settings.append(f"{name}={quote_plus(value, safe='/')}")
            elif name in SECRET_SETTINGS:
                settings.append(f"{name}={HIDDEN}")
    base = url.set(query={}).render_as_string(hide_password=True)
    return f"{base}?{'&'.join(settings)}" if settings else base


def hide_in_text(text: str) -> str:
    """Replace what looks like a database password within a text, such as a command."""
    if _DATABASE_URL.match(text):
        return hide_in_url(text)
    text = _DATABASE_URL_IN_TEXT.sub(lambda found: hide_in_url(found[0]), text)
    text = _ANY_URL.sub(rf"\g<before>{HIDDEN}@", text)
    return _SETTING.sub(rf"\g<before>{HIDDEN}", text)


def hide_in_arguments(arguments: Sequence[str]) -> list[str]:
    """Replace the secrets in the words of a command line. The value of --ledger is a URL as a whole, spaces included."""
    shown = []
    before = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if before == "--ledger":
            shown.append(_ledger(argument))
        elif name == "--ledger" and equals:
            shown.append(f"{name}={_ledger(value)}")
        else:
            shown.append(hide_in_text(argument))
        before = argument
    return shown


def _ledger(text: str) -> str:
    if "://" in text:
        return hide_in_url(text)
    return HIDDEN if is_connection_string(text) else text


def scrub(text: str, url: URL | None) -> str:
    """Remove the secrets of a URL from a message: libpq and psycopg may repeat what they were given."""
    if url is None:
        return text
    secrets = [str(url.password)] if url.password else []
    for name, values in url.query.items():
        if name not in SHOWN_SETTINGS:
            secrets += [values] if isinstance(values, str) else values
    for secret in secrets:
        for form in {secret, quote(secret), quote_plus(secret)}:
            if form:
                word = re.escape(form)
                text = re.sub(word if len(form) >= _SHORT else rf"(?<!\w){word}(?!\w)", HIDDEN, text)
    return _SETTING.sub(rf"\g<before>{HIDDEN}", text)
