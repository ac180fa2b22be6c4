"""Open a ledger; list, collect, export and recover its runs.

This chapter loads nothing of the engine: a list of runs is there at once.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from stackmark.errors import Exit, SpecError, StackmarkError
from stackmark.experiments.cleaning import clean_up as clean_up
from stackmark.ledger import address, rescue
from stackmark.ledger.rows import RunFilter as RunFilter
from stackmark.ledger.rows import RunRow as RunRow
from stackmark.ledger.store import Ledger as Ledger
from stackmark.schemas import with_schema

if TYPE_CHECKING:
    from stackmark.experiments.collecting import Collected
    from stackmark.ledger.export import Format

LedgerLike = Ledger | str | os.PathLike[str] | None
# Takes a sentence that a person should read: what a killed driver left behind, and the like.
Notice = Callable[[str], None]
FORMATS = ("csv", "json", "jsonl", "parquet")


def silent(_sentence: str) -> None:
    """Ignore a sentence."""


@contextmanager
def opened(ledger: LedgerLike, *, create: bool = False) -> Iterator[Ledger]:
    """Open the ledger at a path or URL, or use one that is open. None is STACKMARK_LEDGER, else the default file."""
    if isinstance(ledger, Ledger):
        yield ledger
        return
    with Ledger.open(None if ledger is None else os.fspath(ledger), create=create) as book:
        yield book


def shown_address(ledger: str | None) -> str:
    """Return where a ledger is, without a password; empty where its address cannot be read."""
    try:
        return address.find(ledger).shown
    except StackmarkError:
        return ""


def clean(ledger: Ledger, notice: Notice) -> None:
    """Clean up what killed drivers left, and say what that was."""
    for sentence in clean_up(ledger):
        notice(sentence)


@dataclass(frozen=True)
class RunList:
    """Stored runs, the newest first, and how many match the filter, also beyond the limit."""

    runs: tuple[RunRow, ...]
    total: int

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark results --json` prints."""
        return with_schema("results", {"runs": [row.model_dump(mode="json") for row in self.runs]})


def list_runs(
    wanted: RunFilter | None = None,
    *,
    experiment: str | None = None,
    limit: int = 20,
    ledger: LedgerLike = None,
    notice: Notice = silent,
) -> RunList:
    """List stored runs; `experiment` names the one whose runs are meant: an id, any unique beginning of it, or `last`.

    Before that, clean up what killed drivers left: a row that says `running` may be lost.
    """
    wanted = wanted or RunFilter()
    with opened(ledger) as book:
        clean(book, notice)
        if experiment is not None:
            wanted = wanted.model_copy(update={"experiment_id": book.experiment_id(experiment)})
        rows = tuple(book.runs(wanted, limit=limit))
        return RunList(rows, len(rows) if len(rows) < limit else book.count(wanted))


def collect_runs(
    *,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
    ledger: LedgerLike = None,
    notice: Notice = silent,
    command: str = "",
) -> "Collected":
    """Store what canaries and other printed manifests measured in a cluster, each run once."""
    from stackmark.experiments.collecting import collect

    with opened(ledger, create=True) as book:
        clean(book, notice)
        return collect(book, namespace=namespace, context=context, kubeconfig=kubeconfig, command=command)


def views() -> str:
    """Return SQL that makes views in a copy of a SQLite ledger, for Datasette and other readers."""
    return files("stackmark.ledger").joinpath("views.sql").read_text(encoding="utf-8")


# Endings of files that say their format; `.ndjson` is another name for JSON lines.
ENDINGS = {**{f".{form}": form for form in FORMATS}, ".ndjson": "jsonl"}


def export_format(form: str | None, path: Path | None) -> str:
    """Return the format: the one that is named, or the one that the ending of the file says. The two must agree."""
    said = ENDINGS.get(path.suffix.lower()) if path else None
    if form is None and said is None:
        endings = f"its endings are {', '.join(ENDINGS)}"
        if path is None:
            raise SpecError("no format was named", hint=f"give --format {'|'.join(FORMATS)}, or -o FILE: {endings}")
        ending = f"the ending {path.suffix!r}" if path.suffix else "no ending"
        raise SpecError(
            f"{path} has {ending}, which says no format",
            hint=f"name it with --format {'|'.join(FORMATS)}, or in the name of the file: {endings}",
        )
    if form is not None and form not in FORMATS:
        raise SpecError(f"the format is one of {', '.join(FORMATS)}, not {form!r}", hint="e.g. format='csv'")
    if path and form and said and form != said:
        raise SpecError(
            f"the format is {form}, and {path.name} ends in {path.suffix}, which is {said}",
            hint=f"leave --format out, or name the file {path.stem}.{form}",
        )
    return form or said or ""


def export(
    to: str | os.PathLike[str] | BinaryIO,
    *,
    format: str | None = None,  # noqa: A002 - as the option is called
    wanted: RunFilter | None = None,
    samples: bool = False,
    ledger: LedgerLike = None,
) -> int:
    """Write stored runs, one row each, to a file or a binary stream, and return the number of rows.

    With `samples` the rows are what was sampled next to the runs, one for each quantity and moment.
    The format is csv, json, jsonl or parquet; without it, the ending of the file's name says it.
    """
    from stackmark.ledger.export import export_to_file, export_to_stream

    path = Path(os.fspath(to)) if isinstance(to, str | os.PathLike) else None
    chosen = cast("Format", export_format(format, path))
    with opened(ledger) as book:
        if path is not None:
            return export_to_file(book, wanted or RunFilter(), chosen, path, samples=samples)
        return export_to_stream(book, wanted or RunFilter(), chosen, cast(BinaryIO, to), samples=samples)


@dataclass(frozen=True)
class RecoveredRuns:
    """The fate of runs that were saved in files because the ledger was not writable when they ended."""

    files: tuple[rescue.Recovery, ...]

    @property
    def stored(self) -> list[rescue.Recovery]:
        return [one for one in self.files if not one.trouble]

    @property
    def kept(self) -> list[rescue.Recovery]:
        """Return the files whose run could not be stored, each with its `trouble`."""
        return [one for one in self.files if one.trouble]

    @property
    def exit_code(self) -> Exit:
        return Exit.LEDGER_FAILED if self.kept else Exit.DONE

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark recover --json` prints."""
        told = {
            "stored": [{"run": one.run_id, "file": str(one.path)} for one in self.stored],
            "kept": [{"run": one.run_id, "file": str(one.path), "error": one.trouble} for one in self.kept],
        }
        return with_schema("recovered", told)


def recover(files: Sequence[str | os.PathLike[str]] = (), *, ledger: LedgerLike = None) -> RecoveredRuns:
    """Store runs that were saved in files; without any file, those that wait next to the ledger and in the usual folders."""
    with opened(ledger) as book:
        if files:
            return RecoveredRuns(tuple(rescue.recover_file(book, Path(file)) for file in files))
        return RecoveredRuns(tuple(rescue.recover(book)))
