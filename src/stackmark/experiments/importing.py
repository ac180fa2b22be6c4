"""Import logs, tables and saved worker logs as runs: read each file, make a run of each result, store them as one experiment.

imported_runs.py makes the run of one result. A file whose content is already in the ledger is refused, since two copies of
one run would count as two; so is a worker's run that its own driver stored. Each file is imported or refused by itself. Where
two arms are compared, nothing is stored if one of them has nothing left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from stackmark.errors import SpecError
from stackmark.experiments.imported_runs import (
    UNKNOWN,
    ByHand,
    ImportedRun,
    Source,
    judged,
    named_by_hand,
    refuse_recorded,
    say_results,
    whole_run,
    worker_process,
)
from stackmark.experiments.mlperf import PublishedTime, published_time
from stackmark.experiments.recorder import new_experiment, store_finished
from stackmark.ledger.importers import find_format, format_of, results_of, table
from stackmark.ledger.importers.found import Found, scalar_of
from stackmark.ledger.importers.reading import Log, opened
from stackmark.ledger.importers.table import MOST_NAMED, BadRow, read_table
from stackmark.ledger.importers.table_columns import TableOptions
from stackmark.ledger.rescue import WholeRun, imported_before
from stackmark.ledger.rows import Experiment, Json, RunDetail
from stackmark.ledger.store import Ledger
from stackmark.spec import Scalar

__all__ = ["UNKNOWN", "ByHand"]


@dataclass(frozen=True)
class ImportedFile:
    name: str
    sha256: str
    format: str
    run_ids: tuple[str, ...]
    # For a table: how its columns were read, a sentence each.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RefusedFile:
    """A file, or a row of a table, that was not stored, and why."""

    name: str
    message: str
    hint: str | None


@dataclass(frozen=True)
class Imported:
    # None where every file was refused.
    experiment: Experiment | None
    files: tuple[ImportedFile, ...]
    refused: tuple[RefusedFile, ...]
    runs: tuple[RunDetail, ...]
    # Of runs of MLPerf training: the published time of the same benchmark and round, by the run's id.
    published: Mapping[str, PublishedTime]


@dataclass(frozen=True)
class _Read:
    source: Source
    found: list[Found]
    bad: tuple[BadRow, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Whole:
    """A file with all its results, ready to be stored."""

    read: _Read
    runs: list[ImportedRun]


@dataclass(frozen=True)
class _SortedOut:
    """The files that can be stored, and those that cannot."""

    whole: list[_Whole]
    refused: tuple[RefusedFile, ...]


def read_params(texts: Sequence[str]) -> dict[str, Scalar]:
    """Read parameters like `precision=fp32`."""
    params: dict[str, Scalar] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise SpecError(f"--param: {text!r} has no value", hint="write it like precision=fp32")
        params[name] = scalar_of(value)
    return params


def import_files(files: Sequence[str], ledger: Ledger, by_hand: ByHand, command: str = "") -> Imported:
    """Store the results of every file that can be read; the others are refused, each with its sentence."""
    by_hand.check()
    return _imported(_sorted_out(files, ledger, by_hand, {}), ledger, by_hand, command)


def import_arms(
    arms: Mapping[str, Sequence[str]], ledger: Ledger, by_hand: ByHand, command: str = ""
) -> list[Imported]:
    """Store the logs of several arms as one experiment, in which each arm's place is its name; return what became of each arm.

    All logs are read before any is stored, and nothing is stored where an arm has no log left: then there is nothing to
    compare. One experiment, because two could not be shown, listed or reported together later.
    """
    each = [(replace(by_hand, place=name), files) for name, files in arms.items()]
    for said, _ in each:
        said.check()
    seen: dict[str, str] = {}
    sorted_out = [(said, _sorted_out(files, ledger, said, seen)) for said, files in each]
    if not all(any(whole.runs for whole in one.whole) for _, one in sorted_out):
        return [Imported(None, (), one.refused, (), {}) for _, one in sorted_out]
    stored = _stored([(one.whole, said) for said, one in sorted_out], ledger, command)
    return [replace(arm, refused=one.refused) for arm, (_, one) in zip(stored, sorted_out, strict=True)]


def import_table_arms(files: Sequence[str], ledger: Ledger, by_hand: ByHand, command: str = "") -> list[Imported]:
    """Store the rows of tables as one experiment of two arms, as `import_arms` does; a column names the arm of each row."""
    by_hand.check()
    together = _sorted_out(files, ledger, by_hand, {})
    names = list(dict.fromkeys(run.place for one in together.whole for run in one.runs))
    column = by_hand.table.arm_column if by_hand.table else None
    if together.whole and len(names) != 2:
        raise SpecError(
            f"--arm-column {column} must hold two values, got {len(names)}: {', '.join(names[:8])}",
            hint="import the table without it and compare runs with: stackmark verdict RUN… --against RUN…",
        )
    if not together.whole:
        return [Imported(None, (), together.refused, (), {})]
    arms = [(_of_place(together.whole, name), replace(by_hand, place=name)) for name in names]
    first, second = _stored(arms, ledger, command)
    return [replace(first, refused=together.refused), second]


def _of_place(files: Sequence[_Whole], place: str) -> list[_Whole]:
    """Return the rows of one arm, without the files that have none of them."""
    of_place = [replace(one, runs=[run for run in one.runs if run.place == place]) for one in files]
    return [one for one in of_place if one.runs]


def _sorted_out(files: Sequence[str], ledger: Ledger, by_hand: ByHand, seen: dict[str, str]) -> _SortedOut:
    """Read files and separate what can be stored. `seen` are the files and workers' processes before these."""
    good: list[_Whole] = []
    refused: list[RefusedFile] = []
    for where in files:
        try:
            one = _read(where, by_hand)
            log = one.source.log
            if not by_hand.again:
                _refuse_known(log, ledger, seen)
            runs = [judged(found, one.source, by_hand) for found in one.found]
            if not by_hand.again:
                for run in runs:
                    refuse_recorded(run, ledger, log)
                    _refuse_seen(run, log, seen)
            good.append(_Whole(one, runs))
            seen |= {log.sha256: log.name, **{worker_process(run): log.name for run in runs if worker_process(run)}}
            refused += _refused_rows(one)
        except SpecError as error:
            refused.append(RefusedFile(where, error.message, error.hint))
    return _SortedOut(good, tuple(refused))


def _refused_rows(read: _Read) -> list[RefusedFile]:
    name = read.source.log.name
    named = [
        RefusedFile(f"{name}:{one.line}", f"{name}, line {one.line}: {one.message}", None)
        for one in read.bad[:MOST_NAMED]
    ]
    if more := len(read.bad) - len(named):
        named.append(RefusedFile(name, f"{name}: {more} more rows were left out", None))
    return named


def _imported(sorted_out: _SortedOut, ledger: Ledger, by_hand: ByHand, command: str) -> Imported:
    if not sorted_out.whole:
        return Imported(None, (), sorted_out.refused, (), {})
    (stored,) = _stored([(sorted_out.whole, by_hand)], ledger, command)
    return replace(stored, refused=sorted_out.refused)


def _stored(arms: Sequence[tuple[Sequence[_Whole], ByHand]], ledger: Ledger, command: str) -> list[Imported]:
    """Store the files of all arms as one experiment; return what was stored of each arm."""
    requests = [_request([one.read for one in whole], by_hand) for whole, by_hand in arms]
    request: Json = requests[0] if len(requests) == 1 else {"arms": [*requests]}
    experiment = new_experiment(kind="import", command=command, note=arms[0][1].note, request=request)
    runs: list[WholeRun] = []
    done: list[list[ImportedFile]] = [[] for _ in arms]
    published: dict[str, PublishedTime] = {}
    for arm, (whole, _) in enumerate(arms):
        for one in whole:
            source = one.read.source
            of_file = [whole_run(run, source, experiment.created_unix_s, arm) for run in one.runs]
            runs += of_file
            ids = tuple(run.start.id for run in of_file)
            done[arm].append(ImportedFile(source.log.name, source.log.sha256, source.format, ids, one.read.notes))
            times = {run_id: published_time(run.found) for run_id, run in zip(ids, one.runs, strict=True)}
            published |= {run_id: time for run_id, time in times.items() if time}
    store_finished(ledger, experiment, runs)
    rows = ledger.runs_of(experiment.id)
    return [
        _imported_arm(experiment, files, [row for row in rows if row.arm == arm], published)
        for arm, files in enumerate(done)
    ]


def _imported_arm(
    experiment: Experiment,
    files: Sequence[ImportedFile],
    rows: Sequence[RunDetail],
    published: Mapping[str, PublishedTime],
) -> Imported:
    times = {row.id: published[row.id] for row in rows if row.id in published}
    return Imported(experiment, tuple(files), (), tuple(rows), times)


def _read(where: str, by_hand: ByHand) -> _Read:
    with opened(where) as log:
        if by_hand.table is not None:
            return _read_table(log, by_hand, by_hand.table)
        kind = find_format(by_hand.format) if by_hand.format else format_of(log)
        found = results_of(log, kind)
    if not by_hand.workloads and any(one.workload is None for one in found):
        hint = f"name it: --workload {kind.example}"
        if len(found) > 1:
            hint += (
                f"\nit has {len(found)} results; give --workload once for all, or once for each:\n{say_results(found)}"
            )
        raise SpecError(f"{log.name} does not say which workload ran", hint=hint)
    return _Read(Source(log, kind.name, kind.title), named_by_hand(found, by_hand, log))


def _read_table(log: Log, by_hand: ByHand, options: TableOptions) -> _Read:
    """Read a table, without the rows that cannot be read or name no workload; refuse it where no row names one."""
    read = read_table(log, options)
    found = named_by_hand(read.found, by_hand, log)
    unnamed = [one for one in found if one.workload is None]
    if len(unnamed) == len(found):
        raise SpecError(
            f"{log.name} does not say which workload ran",
            hint="name it: --workload train/resnet50, or --map workload=COLUMN",
        )
    bad = [*read.bad, *(BadRow(one.lines[-1].number, "the workload is empty") for one in unnamed)]
    named = [one for one in found if one.workload is not None]
    return _Read(
        Source(log, table.FORMAT, table.TITLE), named, tuple(sorted(bad, key=lambda one: one.line)), read.notes
    )


def _refuse_known(log: Log, ledger: Ledger, seen: Mapping[str, str]) -> None:
    if log.sha256 in seen:
        raise SpecError(
            f"{log.name} has the same content as {seen[log.sha256]} and was not imported",
            hint="two copies of one run would count as two; --again imports them nevertheless",
        )
    run_ids = imported_before(ledger, [log.sha256]).get(log.sha256)
    if run_ids:
        more = f" and {len(run_ids) - 1} more" if len(run_ids) > 1 else ""
        raise SpecError(
            f"{log.name} was already imported, as {run_ids[0]}{more}",
            hint=f"look at it: stackmark show {run_ids[0]}\nimport it nevertheless: --again",
        )


def _refuse_seen(run: ImportedRun, log: Log, seen: Mapping[str, str]) -> None:
    process = worker_process(run)
    if process in seen:
        raise SpecError(
            f"{log.name} contains the same run as {seen[process]} and was not imported",
            hint="two copies of one run would count as two; --again imports them nevertheless",
        )


def _request(read: Sequence[_Read], by_hand: ByHand) -> Json:
    files: list[JsonValue] = [
        {"file": one.source.name, "sha256": one.source.log.sha256, "format": one.source.format} for one in read
    ]
    request: Json = {"files": files, "place": by_hand.place}
    if by_hand.label:
        request["label"] = by_hand.label
    return request
