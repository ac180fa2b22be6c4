"""Where the ledger's file is by default, and a quick look into it: names that a shell completes.

It is made for a person who waits with a finger on the TAB key. So it uses neither SQLAlchemy, which takes a quarter of a second
to import, nor the network, and it gives up soon. It writes nothing: no migration, no file next to the ledger. Whatever goes wrong
means that there is nothing to offer.
"""

import os
import re
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from stackmark.errors import LedgerError
from stackmark.spec import LEDGER_VARIABLE as VARIABLE

LIMIT_S = 0.15
MOST = 30
# What can be typed without quotes. A name from a ledger that somebody else wrote must not become a command when it is inserted.
TYPEABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@%+/-]*")


def default_file(environment: Mapping[str, str]) -> Path:
    """`$XDG_DATA_HOME/stackmark/ledger.sqlite3`; the XDG specification says to ignore a path that is not absolute."""
    data = Path(environment.get("XDG_DATA_HOME", ""))
    if not data.is_absolute():
        home = Path(environment.get("HOME", ""))
        if not home.is_absolute():
            try:
                home = Path.home()
            except RuntimeError as error:  # a UID without a name, as containers have
                raise LedgerError(
                    "there is no home folder to keep the ledger in", hint=f"set {VARIABLE} or give --ledger FILE"
                ) from error
        data = home / ".local" / "share"
    return data / "stackmark" / "ledger.sqlite3"


def glance_at_experiments(where: str | None, beginning: str = "") -> list[tuple[str, str]]:
    """Return the newest experiments whose ids begin so, each with the command that made it."""
    return _rows(where, "SELECT id, command FROM experiments WHERE id >= ? AND id < ? ORDER BY id DESC", beginning)


def glance_at_runs(where: str | None, beginning: str = "") -> list[tuple[str, str]]:
    """Return the newest runs whose ids begin so, each with its workload, place and state."""
    columns = "id, workload || ' on ' || place || ', ' || status"
    return _rows(where, f"SELECT {columns} FROM runs WHERE id >= ? AND id < ? ORDER BY id DESC", beginning)  # noqa: S608


def glance_at_baselines(where: str | None, beginning: str = "") -> list[tuple[str, str]]:
    """Return the names of baselines that begin so, each with the number of its experiments."""
    query = "SELECT name, count(*) || ' saved' FROM baselines WHERE name >= ? AND name < ? GROUP BY name ORDER BY name"
    return _rows(where, query, beginning)


def _rows(where: str | None, query: str, beginning: str) -> list[tuple[str, str]]:
    try:
        file = _file(where)
        if file is None or not file.is_file():
            return []
        with closing(sqlite3.connect(_read_only(file), uri=True, timeout=LIMIT_S)) as ledger:
            end_s = time.monotonic() + LIMIT_S
            ledger.set_progress_handler(lambda: time.monotonic() > end_s, 1000)
            after = beginning + chr(0x10FFFF)
            found = ledger.execute(f"{query} LIMIT {MOST}", (beginning, after)).fetchall()
    except (sqlite3.Error, OSError, LedgerError, RuntimeError, ValueError):
        return []
    return [(str(name), str(about)) for name, about in found if TYPEABLE.fullmatch(str(name))]


def _file(where: str | None) -> Path | None:
    text = where or os.environ.get(VARIABLE) or str(default_file(os.environ))
    return None if "://" in text else Path(text).expanduser().absolute()


def _read_only(file: Path) -> str:
    """Return the URI to read a ledger by. Where nobody has it open, SQLite need not make its files next to it either."""
    in_use = file.with_name(f"{file.name}-wal").exists()
    return f"file:{quote(str(file))}?mode=ro{'' if in_use else '&immutable=1'}"
