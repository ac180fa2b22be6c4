"""Turn database errors into sentences. The one place where a database's exceptions are caught.

SQLite names its errors (`SQLITE_BUSY`), PostgreSQL numbers them (SQLSTATE), and libpq has only text for a connection
that was never made: the text is matched for the two cases that have their own remedy, and otherwise shown.
"""

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pydantic
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from stackmark.errors import LedgerError
from stackmark.ledger.address import Address
from stackmark.ledger.masking import scrub
from stackmark.model import ValidationError
from stackmark.spec import explain


@contextmanager
def said(address: Address) -> Iterator[None]:
    """Turn database errors inside into a LedgerError."""
    try:
        yield
    except DBAPIError as error:
        raise _sentence(address, error.orig) from error
    except SQLAlchemyError as error:
        line = scrub(_first_line(error), address.url)
        raise LedgerError(f"the ledger {address.shown} cannot be used: {line}", kind="unusable") from error
    except sqlite3.Error as error:
        raise _sentence(address, error) from error
    except (pydantic.ValidationError, ValidationError) as error:
        raise _unreadable_row(address, explain(error), *getattr(error, "__notes__", ())) from error
    except (ValueError, RecursionError, zlib.error) as error:  # JSON that cannot be read, with numbers of any length
        raise _unreadable_row(address, str(error)) from error


@contextmanager
def naming(run_id: object) -> Iterator[None]:
    """Add to an error which run could not be read."""
    try:
        yield
    except (pydantic.ValidationError, ValidationError) as error:
        error.add_note(str(run_id))
        raise


def is_away(address: Address, error: DBAPIError) -> bool:
    """Tell whether a server hung up, is restarting or cannot be reached: what may be over in a moment."""
    if address.url is None:
        return False
    if error.connection_invalidated:
        return True
    state = getattr(error.orig, "sqlstate", None) or ""
    # A connection that was never made has no state, only text.
    refused = any(
        words in str(error.orig) for words in ("authentication failed", "no password supplied", "does not exist")
    )
    return state.startswith(("08", "57P", "53300")) or (
        not state and isinstance(error, OperationalError) and not refused
    )


def _sentence(address: Address, error: BaseException | None) -> LedgerError:
    if address.file is not None:
        return _sqlite(address.file, error)
    return _postgres(address, error)


def _sqlite(file: Path, error: BaseException | None) -> LedgerError:
    name = str(getattr(error, "sqlite_errorname", "")).removeprefix("SQLITE_")
    if name.startswith(("BUSY", "LOCKED")):
        return LedgerError(
            f"the ledger {file} is locked by another process; nothing was written",
            hint=f"try again when it has ended; `fuser -v {file}` names it",
            kind="locked",
        )
    if name.startswith(("NOTADB", "CORRUPT")):
        return damaged(file, _first_line(error))
    if name.startswith("READONLY"):
        return read_only(str(file))
    if name.startswith("FULL"):
        return LedgerError(
            f"the disk is full: the ledger {file} was not written; its earlier content is intact",
            hint=f"free space (`df -h {file.parent}`), or use another --ledger",
            kind="full",
        )
    if name.startswith("IOERR"):
        return LedgerError(
            f"the ledger {file} cannot be read or written: {_first_line(error)}; the transaction was undone",
            hint=f"look at the disk (`df -h {file.parent}`), the quota and `ulimit -f`, and the kernel's log (`dmesg`)",
            kind="disk",
        )
    if name.startswith("CANTOPEN"):
        return cannot_open(file, "it is a folder" if file.is_dir() else _first_line(error))
    if name.startswith("CONSTRAINT"):
        return LedgerError(f"the ledger {file} refused a row: {_first_line(error)}", kind="refused-row")
    return LedgerError(f"the ledger {file} cannot be used: {_first_line(error)}", kind="unusable")


def _postgres(address: Address, error: BaseException | None) -> LedgerError:
    state = getattr(error, "sqlstate", None) or ""
    shown, line = address.shown, scrub(_first_line(error), address.url)
    if state.startswith("28") or "authentication failed" in line or "no password supplied" in line:
        return LedgerError(
            f"the PostgreSQL server refused the user of the ledger {shown}: {line}",
            hint="check the user and the password: in ~/.pgpass, in PGPASSWORD, or in the URL",
            kind="login",
        )
    if state == "3D000" or ("database" in line and "does not exist" in line):
        return LedgerError(
            f"the database of the ledger {shown} does not exist",
            hint="create it with `createdb`, or correct its name",
            kind="no-database",
        )
    if state == "42501":
        return LedgerError(
            f"the user of the ledger {shown} may not do this: {line}",
            hint="the database's owner can grant it: CREATE SCHEMA stackmark AUTHORIZATION the_user",
            kind="no-right",
        )
    if state == "25006":
        return read_only(shown)
    if state.startswith("53"):
        return LedgerError(
            f"the PostgreSQL server of the ledger {shown} is out of space: {line}; nothing was written", kind="full"
        )
    if state.startswith("23"):
        return LedgerError(f"the ledger {shown} refused a row: {line}", kind="refused-row")
    if not state or state.startswith(("08", "57")):
        return LedgerError(
            f"the PostgreSQL server of the ledger {shown} cannot be reached: {line}",
            hint="check that it runs and that host and port are right (`pg_isready -h HOST -p PORT`), then try again",
            kind="unreachable",
        )
    return LedgerError(f"the ledger {shown} cannot be used: {line}", kind="unusable")


def damaged(file: Path, reason: str) -> LedgerError:
    return LedgerError(
        f"the ledger {file} is damaged, or is not a ledger: {reason}; it was not changed",
        hint=f"restore a backup, or save what can be read: sqlite3 {file} .recover | sqlite3 NEW.sqlite3",
        kind="damaged",
    )


def read_only(shown: str) -> LedgerError:
    return LedgerError(
        f"the ledger {shown} is read-only; nothing was written",
        hint="make the file and its folder writable, or use another --ledger",
        kind="read-only",
    )


def cannot_open(file: Path, reason: str) -> LedgerError:
    return LedgerError(
        f"the ledger {file} cannot be opened: {reason}",
        hint="use another place with --ledger, or set STACKMARK_LEDGER",
        kind="cannot-open",
    )


def _unreadable_row(address: Address, reason: str, run_id: str = "") -> LedgerError:
    return LedgerError(
        f"{f'the run {run_id}' if run_id else 'a row'} of the ledger {address.shown} cannot be read: {reason}",
        hint=f"it was edited manually or damaged; `stackmark delete {run_id or 'RUN'}` removes a run",
        kind="unreadable-row",
    )


def unreadable_design(experiment_id: str, reason: str) -> LedgerError:
    return LedgerError(
        f"the design of {experiment_id} cannot be read: {reason}",
        hint="it was edited manually or damaged: measure again; `stackmark results` lists its runs",
        kind="unreadable-design",
    )


def _first_line(error: BaseException | None) -> str:
    text = str(error).strip()
    return text.splitlines()[0].strip() if text else type(error).__name__
