"""Import logs of other benchmarks as runs, compare two sides of them, and score MLPerf logs by their rules."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from stackmark.api.ledgers import LedgerLike, Notice, clean, opened, silent
from stackmark.api.options import repeatable
from stackmark.api.published_charts import PublishedChart
from stackmark.api.stored import load
from stackmark.api.verdicts import Verdict, VerdictTable
from stackmark.errors import Exit, SpecError
from stackmark.experiments.imported_runs import UNKNOWN, ByHand
from stackmark.experiments.importing import Imported, RefusedFile, import_files, import_table_arms
from stackmark.experiments.importing import import_arms as import_files_of_arms
from stackmark.experiments.importing import read_params as read_params
from stackmark.experiments.mlperf import PublishedTime, RefusedFolder, score_folders
from stackmark.experiments.mlperf import Score as Score
from stackmark.experiments.mlperf_logs import CheckedLog, WrittenLog, check_logs, write_logs
from stackmark.experiments.mlperf_logs import Style as Style
from stackmark.ledger.copying import Copied, copy_ledger
from stackmark.ledger.copying import is_ledger as is_ledger
from stackmark.ledger.importers.table_columns import TableOptions, read_map
from stackmark.ledger.rows import RunDetail
from stackmark.schemas import with_schema
from stackmark.spec import Scalar
from stackmark.verdict.examined import Examined


@dataclass(frozen=True)
class ImportedLogs:
    """The runs imported from logs, and the refused files, each with its reason."""

    imported: Imported

    @property
    def runs(self) -> tuple[RunDetail, ...]:
        return self.imported.runs

    @property
    def refused(self) -> tuple[RefusedFile, ...]:
        return self.imported.refused

    @property
    def experiment_id(self) -> str | None:
        """Return the experiment that holds the runs; None where every file was refused."""
        return self.imported.experiment.id if self.imported.experiment else None

    @property
    def exit_code(self) -> Exit:
        """Return what `stackmark import` exits with."""
        if not self.imported.files:
            return Exit.WRONG_USE
        good = [run for run in self.runs if run.status == "done"]
        if self.refused or 0 < len(good) < len(self.runs):
            return Exit.PART_FAILED
        return Exit.DONE if good else Exit.RUN_FAILED

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark import --json` prints."""
        told = {
            "experiment": self.experiment_id,
            "files": [
                {
                    "file": one.name,
                    "format": one.format,
                    "sha256": one.sha256,
                    "runs": list(one.run_ids),
                    "notes": list(one.notes),
                }
                for one in self.imported.files
            ],
            "refused": [{"file": one.name, "error": one.message, "hint": one.hint} for one in self.refused],
            "runs": [run.model_dump(mode="json") for run in self.runs],
            "published": [_published_json(run_id, one) for run_id, one in self.imported.published.items()],
        }
        return with_schema("import", told)


def _published_json(run_id: str, one: PublishedTime) -> dict[str, Any]:
    row = one.row
    return {
        "run": run_id,
        "system": row.system,
        "same_system": one.same_system,
        "submitter": row.extra.get("submitter"),
        "source": row.source,
        "minutes": row.value,
        "percent_slower": one.percent,
    }


Names = str | Sequence[str] | None


def _names(given: Names) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


class SaidByHand(TypedDict, total=False):
    """What a person may say about the runs of logs and tables, in addition to what these say themselves."""

    workload: Names
    chip: Names
    ranks: int | None
    params: Mapping[str, Scalar] | None
    label: str
    note: str
    again: bool


def _by_hand(
    said: SaidByHand, *, form: str | None = None, place: str = UNKNOWN, table: TableOptions | None = None
) -> ByHand:
    """Return what a person says about the runs, verified."""
    if unknown := set(said) - set(SaidByHand.__annotations__):
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    found = ByHand(
        format=form,
        workloads=_names(said.get("workload")),
        place=place,
        chips=_names(said.get("chip")),
        ranks=said.get("ranks"),
        params=dict(said.get("params") or {}),
        label=said.get("label", ""),
        note=said.get("note", ""),
        again=said.get("again", False),
        table=table,
    )
    found.check()
    return found


def import_logs(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str | None = None,  # noqa: A002 - as the option is called
    place: str = UNKNOWN,
    ledger: LedgerLike = None,
    notice: Notice = silent,
    command: str | None = None,
    **said: Unpack[SaidByHand],
) -> ImportedLogs:
    """Import logs of other benchmarks: every result in them becomes a run, which can be listed, shown and compared.

    Only what a log says is taken from it; what it does not say may be given: `workload`, `place`, `chip`, `params`. A list of
    workloads or chips has one for each result of a file. A file that cannot be imported is in `refused`, and the others are
    imported.
    """
    names = _file_names(files)
    return _import(names, _by_hand(said, form=format, place=place), ledger, notice, _command(command, names))


@dataclass(frozen=True)
class ImportedLedgers:
    """How much came from each ledger, and the ledgers that were refused, each with its reason."""

    copied: tuple[Copied, ...]
    refused: tuple[RefusedFile, ...]

    @property
    def exit_code(self) -> Exit:
        """Return what `stackmark import LEDGER…` exits with."""
        if not self.copied:
            return Exit.WRONG_USE
        return Exit.PART_FAILED if self.refused else Exit.DONE

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark import LEDGER… --json` prints."""
        told = {
            "ledgers": [
                {"ledger": one.where, **{k: v for k, v in asdict(one).items() if k != "where"}} for one in self.copied
            ],
            "refused": [{"file": one.name, "error": one.message, "hint": one.hint} for one in self.refused],
        }
        return with_schema("import-ledgers", told)


def import_ledgers(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    again: bool = False,
    ledger: LedgerLike = None,
    notice: Notice = silent,
) -> ImportedLedgers:
    """Copy the runs and experiments of other ledgers. Ids are kept; what is already here is skipped.

    A ledger that cannot be imported whole is in `refused`, and nothing of it is stored. Commands in it are not trusted: `resume`
    and `check` ask before they run what you did not type on this machine.
    """
    copied, refused = [], []
    with opened(ledger, create=True) as book:
        clean(book, notice)
        for name in _file_names(files):
            try:
                copied.append(copy_ledger(name, book, again=again))
            except SpecError as error:
                refused.append(RefusedFile(name, error.message, error.hint))
    return ImportedLedgers(tuple(copied), tuple(refused))


def import_table(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Mapping[str, str] | Sequence[str] = (),
    unit: str | None = None,
    arm_column: str | None = None,
    place: str = UNKNOWN,
    ledger: LedgerLike = None,
    notice: Notice = silent,
    command: str | None = None,
    **said: Unpack[SaidByHand],
) -> "ImportedLogs | ImportedArms":
    """Import tables (CSV): every row becomes a run. `columns` names the column of a field: `{"rate": "images_per_sec"}`.

    With `arm_column`, the two values of that column divide the rows into two arms, which can be compared.
    """
    names = _file_names(files)
    if not isinstance(columns, Mapping):
        columns = read_map(columns)
    by_hand = _by_hand(said, place=place, table=TableOptions(columns, unit, arm_column))
    told = _command(command, ["--table", *names])
    if arm_column is None:
        return _import(names, by_hand, ledger, notice, told)
    with opened(ledger, create=True) as book:
        clean(book, notice)
        found = import_table_arms(names, book, by_hand, told)
    return ImportedArms(tuple(map(ImportedLogs, found)), ledger)


def _file_names(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    return [os.fspath(one) for one in ([files] if isinstance(files, str | os.PathLike) else files)]


def _import(names: Sequence[str], by_hand: ByHand, ledger: LedgerLike, notice: Notice, command: str) -> ImportedLogs:
    with opened(ledger, create=True) as book:
        clean(book, notice)
        return ImportedLogs(import_files(names, book, by_hand, command))


@dataclass(frozen=True)
class ImportedArms:
    """The logs, or the rows of tables, of two places, stored as one experiment. Nothing is stored where one has none left."""

    arms: tuple[ImportedLogs, ...]
    ledger: LedgerLike = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        return len(self.arms) == 2 and all(one.runs for one in self.arms)

    @property
    def experiment_id(self) -> str | None:
        """Return the experiment that holds the runs of both places; None where nothing was stored."""
        return self.arms[0].experiment_id

    @property
    def refused(self) -> tuple[RefusedFile, ...]:
        return tuple(file for one in self.arms for file in one.refused)

    def verdict(self, margin: float | None = None) -> Verdict:
        """Compare the second place with the first."""
        if not self.ok:
            raise SpecError("an arm has no log left: nothing was imported, and nothing compared")
        found = load(str(self.experiment_id), self.ledger).verdict(margin)
        if not found.comparisons:
            raise SpecError(
                found.examined.warnings[0], hint=f"see the runs: stackmark results --experiment {self.experiment_id}"
            )
        return found

    def verdicts(self, margin: float | None = None) -> list[Verdict]:
        """Compare what both places ran: one verdict for each spec, in the order in which the first place has them."""
        table = self.table(margin)
        if table is None:
            return [self.verdict(margin)]
        return [Verdict(replace(row.examined, command=_again(row.examined))) for row in table.table.rows]

    def table(self, margin: float | None = None) -> VerdictTable | None:
        """Compare what both places ran, spec by spec, as one table; None where they share no spec, or have only one."""
        if not self.ok or not self.shared_specs:
            return None
        return load(str(self.experiment_id), self.ledger).table(margin)

    @property
    def shared_specs(self) -> tuple[str, ...]:
        """Return the digests of the specs of which both places have a successful run, in the order of the first place."""
        digests = [
            list(dict.fromkeys(run.spec_digest for run in one.runs if run.status == "done")) for one in self.arms
        ]
        return tuple(one for one in digests[0] if one in set(digests[1])) if len(digests) == 2 else ()

    @property
    def not_compared(self) -> tuple[RunDetail, ...]:
        """Return the runs whose spec the other place does not have, where at least one spec is in both."""
        shared = set(self.shared_specs)
        return tuple(run for one in self.arms for run in one.runs if shared and run.spec_digest not in shared)

    def to_dict(self, margin: float | None = None) -> dict[str, Any]:
        """Return what `stackmark import --arm-column --json` prints where the places share several specs."""
        told = {
            "experiment": self.experiment_id,
            "verdicts": [one.to_dict() for one in self.verdicts(margin)],
            "not_compared": [run.id for run in self.not_compared],
        }
        return with_schema("import-verdicts", told)


def _again(examined: Examined) -> str:
    """Return the command that compares the same runs."""
    before, after = (" ".join(run.run_id for run in examined.runs if run.arm == arm) for arm in (0, 1))
    return f"stackmark verdict {after} --against {before}"


def import_arms(
    arms: Mapping[str, Sequence[str]],
    *,
    format: str | None = None,  # noqa: A002 - as the option is called
    ledger: LedgerLike = None,
    notice: Notice = silent,
    command: str | None = None,
    **said: Unpack[SaidByHand],
) -> ImportedArms:
    """Import the logs of two places, by the place's name, to be compared: `import_arms({"host": […], "pod": […]}).verdict()`."""
    if len(arms) != 2:
        raise SpecError(
            f"--arm must name two places, got {', '.join(arms)}",
            hint="import the others by FILE… and compare them with: stackmark verdict RUN… --against RUN…",
        )
    by_hand = _by_hand(said, form=format)
    words = [word for name, files in arms.items() for file in files for word in ("--arm", f"{name}={file}")]
    with opened(ledger, create=True) as book:
        clean(book, notice)
        found = import_files_of_arms(arms, book, by_hand, _command(command, words))
    return ImportedArms(tuple(map(ImportedLogs, found)), ledger)


def _command(given: str | None, words: Sequence[str]) -> str:
    return repeatable(["import", *words]) if given is None else given


# --- MLPerf -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MlperfScores:
    """The score of each benchmark in each folder, and the folders without one."""

    scores: tuple[Score, ...]
    refused: tuple[RefusedFolder, ...]

    @property
    def exit_code(self) -> Exit:
        """Return what `stackmark mlperf score` exits with."""
        good = [one for one in self.scores if one.minutes is not None]
        if not self.scores:
            return Exit.WRONG_USE
        if good and (self.refused or len(good) < len(self.scores)):
            return Exit.PART_FAILED
        return Exit.DONE if good else Exit.RUN_FAILED

    def chart(self) -> PublishedChart:
        """Return the scores next to the published times, to be drawn; refuse where no benchmark has both."""
        pairs = tuple(pair for one in self.scores if (pair := one.pair))
        missing = tuple(one.benchmark for one in self.scores if one.pair is None)
        if not pairs:
            named = ", ".join(missing) or ", ".join(one.folder for one in self.refused)
            raise SpecError(
                f"no chart was written: no benchmark has both a score and a published time ({named})",
                hint="name a system that has one: --against SYSTEM; see: stackmark published search MLPerf training",
            )
        return PublishedChart(pairs, missing, "MLPerf Training: minutes to the target, ours and published")

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark mlperf score --json` prints."""
        refused = [{"folder": one.folder, "error": one.message, "hint": one.hint} for one in self.refused]
        return with_schema("mlperf-scores", {"scores": [_score_json(one) for one in self.scores], "refused": refused})


def _score_json(one: Score) -> dict[str, Any]:
    against = one.against
    return {
        "folder": one.folder,
        "benchmark": one.benchmark,
        "platform": one.platform or None,
        "minutes": one.minutes,
        "official": one.official,
        "unofficial_reason": one.unofficial or None,
        "problem": one.problem or None,
        "notes": list(one.notes),
        "runs_asked": one.asked,
        "runs": [{"file": run.file, "seconds": run.seconds, "problem": run.problem or None} for run in one.runs],
        "against": None
        if against is None
        else {
            "system": against.row.system,
            "submitter": against.row.extra.get("submitter"),
            "source": against.row.source,
            "minutes": against.row.value,
            "percent_slower": against.percent,
            "at": against.row.at or None,
        },
        "stack": [asdict(line) for line in one.stack],
    }


def score_mlperf(folders: Sequence[str], against: str | None = "DGX-1") -> MlperfScores:
    """Score logs of MLPerf training by the rules of v0.6, next to the published time of a system."""
    scores, refused = score_folders(folders, against)
    return MlperfScores(tuple(scores), tuple(refused))


@dataclass(frozen=True)
class MlperfLogs:
    """The logs of runs, written as MLPerf's files."""

    written: tuple[WrittenLog, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark mlperf log --json` prints."""
        files = [{"file": one.file, "run": one.run_id, "lines": one.lines} for one in self.written]
        return with_schema("mlperf-logs", {"files": files})


def write_mlperf_logs(
    name: str, folder: str | os.PathLike[str], *, style: Style = "mllog", ledger: LedgerLike = None
) -> MlperfLogs:
    """Write MLPerf's log of each run of an experiment, or of one run, into a folder; nothing is overwritten."""
    with opened(ledger) as book:
        return MlperfLogs(tuple(write_logs(book, name, Path(folder), style)))


@dataclass(frozen=True)
class MlperfChecks:
    """What MLCommons' checker says of each file."""

    ruleset: str
    files: tuple[CheckedLog, ...]

    @property
    def exit_code(self) -> Exit:
        """Return what `stackmark mlperf check` exits with."""
        good = sum(one.passed for one in self.files)
        return Exit.DONE if good == len(self.files) else Exit.PART_FAILED if good else Exit.RUN_FAILED

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark mlperf check --json` prints."""
        files = [{"file": one.file, "passed": one.passed, "findings": list(one.findings)} for one in self.files]
        return with_schema("mlperf-check", {"ruleset": self.ruleset, "files": files})


def check_mlperf_logs(files: Sequence[str | os.PathLike[str]], ruleset: str) -> MlperfChecks:
    """Verify logs of MLPerf training by MLCommons' own checker, which must be installed."""
    return MlperfChecks(ruleset, tuple(check_logs([os.fspath(file) for file in files], ruleset)))
