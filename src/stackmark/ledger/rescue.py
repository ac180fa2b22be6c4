"""Save runs whose end could not be stored: each waits in a file until the ledger is writable again.

A disk that is full or a server that is gone must not cost what was measured. The file holds the run's id, its end and its
output, so that `recover` stores it as the run itself would have been. It lies next to the ledger's file; where that disk is full,
or the ledger is a server, in the user's data folder; and where that cannot be written either, in the temporary folder. All three
are searched, and a file belongs to the ledger that has its run.

Only this user can read and write the folders. A file that somebody else owns is not read.
"""

import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from pydantic import Field, ValidationError
from sqlalchemy import Connection, insert, select

from stackmark.errors import LedgerError
from stackmark.frozen import Frozen
from stackmark.ledger.address import default_file
from stackmark.ledger.rows import Experiment, RunEnd, RunStart, of_spec
from stackmark.ledger.schema import experiments, runs, streams
from stackmark.ledger.store import Ledger, NotOpen
from stackmark.ledger.streams import Budget, Lines, TooLong, pack_lines
from stackmark.spec import explain

SUFFIX = ".jsonl"
# A header has a sentence or two about a failure.
_HEADER_BYTES = 1 << 20


class Header(Frozen):
    """The first line of a file; the lines of the run's output follow, each a JSON string."""

    stackmark_rescue: Literal[1] = 1
    ledger: str
    run_id: str = Field(pattern=r"^r-[0-9a-z]{26}$")
    end: RunEnd


@dataclass(frozen=True)
class Recovery:
    """The fate of a file: `trouble` says why its run was not stored. A stored run's file is removed."""

    path: Path
    run_id: str
    trouble: str = ""


def finish_or_rescue(ledger: Ledger, run_id: str, end: RunEnd, lines: Lines) -> None:
    """Store the end of a run. Where the ledger fails, save it in a file and say so in the error."""
    try:
        ledger.finish(run_id, end, lines)
    except NotOpen:
        raise
    except LedgerError as error:
        header = Header(ledger=ledger.where, run_id=run_id, end=end)
        path = next((path for folder in folders(ledger) if (path := _save(folder, header, lines))), None)
        if path is None:
            raise
        saved = f"the measurement is saved in {path}; the next command or `stackmark recover` stores it"
        hint = "; ".join(filter(None, (saved, error.hint)))
        raise LedgerError(error.message, hint=hint, command=error.command, kind=error.kind) from error


def recover(ledger: Ledger) -> list[Recovery]:
    """Store the runs of this ledger that wait in files. Files of other ledgers are left alone."""
    found: list[Recovery] = []
    for folder in folders(ledger):
        if not _is_private(folder):
            continue
        paths = sorted(folder.glob(f"r-*{SUFFIX}"))
        found += [recover_file(ledger, path) for path in paths if ledger.has_run(path.name.removesuffix(SUFFIX))]
        with suppress(OSError):
            folder.rmdir()  # where nothing is left in it
    return found


def recover_file(ledger: Ledger, path: Path) -> Recovery:
    """Store one file's run and remove the file. A file that cannot be read, or is of no use here, is kept."""
    run_id = path.name.removesuffix(SUFFIX)
    try:
        with _open(path) as stream:
            header = Header.model_validate_json(stream.readline(_HEADER_BYTES))
            lines = list(_lines(stream))
        run_id = header.run_id
        ledger.finish(run_id, header.end, lines)
        path.unlink(missing_ok=True)  # another command may have been quicker
    except NotOpen as error:
        return Recovery(path, run_id, error.message)
    except ValidationError as error:
        return Recovery(path, run_id, f"it is not a file of `stackmark recover`: {explain(error)}")
    except OSError as error:
        return Recovery(path, run_id, f"it cannot be read: {error.strerror}")
    except (ValueError, TooLong) as error:
        return Recovery(path, run_id, f"it is damaged: {error}")
    return Recovery(path, run_id)


def folders(ledger: Ledger) -> Iterator[Path]:
    """Return where such files may be, the best place first."""
    if ledger.file is not None:
        yield ledger.file.with_name(f"{ledger.file.name}.rescued")
    with suppress(LedgerError):  # no home
        yield default_file(os.environ).parent / "rescued"
    yield Path(tempfile.gettempdir()) / f"stackmark-rescued-{os.getuid()}"


def _save(folder: Path, header: Header, lines: Lines) -> Path | None:
    """Write a file, whole or not at all; None where this folder does not take it."""
    draft = folder / f".{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_private(folder):
            return None
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as stream:
            stream.write(header.model_dump_json() + "\n")
            stream.writelines(f"{json.dumps(line)}\n" for line in lines)
            stream.flush()
            os.fsync(stream.fileno())
        return draft.rename(folder / f"{header.run_id}{SUFFIX}")
    except OSError:
        with suppress(OSError):
            draft.unlink()
        with suppress(OSError):
            folder.rmdir()
        return None


def _is_private(folder: Path) -> bool:
    """Whether a folder is this user's alone: in a temporary folder anybody may have made one of that name."""
    try:
        seen = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and not seen.st_mode & 0o022


def _open(path: Path) -> IO[str]:
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8")
    seen = os.fstat(stream.fileno())
    if stat.S_ISREG(seen.st_mode) and seen.st_uid == os.getuid():
        return stream
    stream.close()
    raise ValueError("it belongs to another user, or is not a regular file")


def _lines(stream: IO[str]) -> Iterator[str]:
    budget = Budget()
    while text := stream.readline(budget.left_bytes):
        line = json.loads(text)
        if not isinstance(line, str):
            raise ValueError("a line of output is not text")
        budget.take(line)
        yield line


# --- Runs that are already over when they come to the ledger: an import is stored whole, in one transaction, or not at
# all


@dataclass(frozen=True)
class WholeRun:
    start: RunStart
    end: RunEnd
    lines: Lines


def add_whole(ledger: Ledger, experiment: Experiment, found: Sequence[WholeRun]) -> None:
    """Add the experiment with all its runs and their streams."""
    ledger.writing(lambda connection: _insert(connection, experiment, found))


def add_new(ledger: Ledger, experiment: Experiment, found: Sequence[WholeRun]) -> list[str]:
    """Add the experiment with those of its runs that the ledger does not have, and return their ids; empty if it has them all."""

    def work(connection: Connection) -> list[str]:
        ids = [run.start.id for run in found]
        there = {str(row.id) for row in connection.execute(select(runs.c.id).where(runs.c.id.in_(ids)))}
        new = [run for run in found if run.start.id not in there]
        if new:
            _insert(connection, experiment, new)
        return [run.start.id for run in new]

    return ledger.writing(work)


def known_runs(ledger: Ledger, key: str, values: Sequence[str]) -> set[str]:
    """Return which of these values are under that key in the handle of a run in a pod."""
    wanted = set(values)

    def work(connection: Connection) -> set[str]:
        query = select(runs.c.handle).where(runs.c.place == "pod", runs.c.status != "running")
        found = (handle.get(key) for (handle,) in connection.execute(query) if isinstance(handle, dict))
        return {str(value) for value in found if value in wanted}

    return ledger.reading(work) if wanted else set()


def _insert(connection: Connection, experiment: Experiment, found: Sequence[WholeRun]) -> None:
    rows = [{**run.start.model_dump(), **of_spec(run.start.spec), **run.end.model_dump()} for run in found]
    said = [{"run_id": run.start.id, "lines": len(run.lines), "data": pack_lines(run.lines)} for run in found]
    connection.execute(insert(experiments).values(experiment.model_dump()))
    if rows:
        connection.execute(insert(runs), rows)
        connection.execute(insert(streams), said)


def imported_before(ledger: Ledger, digests: Sequence[str]) -> dict[str, list[str]]:
    """Return by the SHA-256 of a file the runs imported from it; new files are left out."""
    wanted = set(digests)

    def work(connection: Connection) -> dict[str, list[str]]:
        query = (
            select(runs.c.id, runs.c.handle)
            .join(experiments, experiments.c.id == runs.c.experiment_id)
            .where(experiments.c.kind == "import")
            .order_by(runs.c.id)
        )
        known: dict[str, list[str]] = {}
        for run_id, handle in connection.execute(query):
            digest = handle.get("sha256") if isinstance(handle, dict) else None
            if digest in wanted:
                known.setdefault(digest, []).append(run_id)
        return known

    return ledger.reading(work)
