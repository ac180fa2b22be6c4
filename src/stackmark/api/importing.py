"""What other benchmarks logged: import it as runs, compare two sides of it, score MLPerf logs by their rules."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stackmark.api.ledgers import LedgerLike, Notice, clean, opened, silent
from stackmark.api.options import repeatable
from stackmark.api.stored import Verdict, verdict_of_groups
from stackmark.errors import Exit, SpecError
from stackmark.experiments.importing import UNKNOWN, ByHand, Imported, RefusedFile, import_files
from stackmark.experiments.importing import import_arms as import_files_of_arms
from stackmark.experiments.importing import read_params as read_params
from stackmark.experiments.mlperf import RefusedFolder, score_folders
from stackmark.experiments.mlperf import Score as Score
from stackmark.ledger.rows import RunDetail
from stackmark.spec import Scalar


@dataclass(frozen=True)
class ImportedLogs:
    """The runs that logs became, and the files that were refused, each with its reason."""

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
        return {
            "experiment": self.experiment_id,
            "files": [
                {"file": one.name, "format": one.format, "sha256": one.sha256, "runs": list(one.run_ids)}
                for one in self.imported.files
            ],
            "refused": [{"file": one.name, "error": one.message, "hint": one.hint} for one in self.refused],
            "runs": [run.model_dump(mode="json") for run in self.runs],
        }


def import_logs(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str | None = None,  # noqa: A002 - as the option is called
    workload: str | None = None,
    place: str = UNKNOWN,
    chip: str | None = None,
    ranks: int | None = None,
    params: Mapping[str, Scalar] | None = None,
    label: str = "",
    note: str = "",
    again: bool = False,
    ledger: LedgerLike = None,
    notice: Notice = silent,
    command: str | None = None,
) -> ImportedLogs:
    """Import logs of other benchmarks: every result in them becomes a run, which can be listed, shown and compared.

    Only what a log says is taken from it; what it does not say may be given: `workload`, `place`, `chip`, `params`. A file
    that cannot be imported is in `refused`, and the others are imported.
    """
    names = [os.fspath(one) for one in ([files] if isinstance(files, str | os.PathLike) else files)]
    by_hand = ByHand(format, workload, place, chip, ranks, dict(params or {}), label, note, again)
    by_hand.check()
    with opened(ledger, create=True) as book:
        clean(book, notice)
        return ImportedLogs(import_files(names, book, by_hand, _command(command, names)))


@dataclass(frozen=True)
class ImportedArms:
    """The logs of two places, each an experiment of its own. Nothing is stored where one of them has no log left."""

    arms: tuple[ImportedLogs, ...]
    ledger: LedgerLike = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        return all(one.runs for one in self.arms)

    @property
    def refused(self) -> tuple[RefusedFile, ...]:
        return tuple(file for one in self.arms for file in one.refused)

    def verdict(self, margin: float | None = None) -> Verdict:
        """Compare the second place with the first."""
        if not self.ok:
            raise SpecError("an arm has no log left: nothing was imported, and nothing compared")
        first, second = (str(one.experiment_id) for one in self.arms)
        command = f"stackmark verdict {second} --against {first}"
        return verdict_of_groups([second], [first], margin=margin, ledger=self.ledger, command=command)


def import_arms(
    arms: Mapping[str, Sequence[str]],
    *,
    format: str | None = None,  # noqa: A002 - as the option is called
    workload: str | None = None,
    chip: str | None = None,
    ranks: int | None = None,
    params: Mapping[str, Scalar] | None = None,
    label: str = "",
    note: str = "",
    again: bool = False,
    ledger: LedgerLike = None,
    notice: Notice = silent,
    command: str | None = None,
) -> ImportedArms:
    """Import the logs of two places, by the place's name, to be compared: `import_arms({"host": […], "pod": […]}).verdict()`."""
    if len(arms) != 2:
        raise SpecError(
            f"--arm: two places are compared, and these were named: {', '.join(arms)}",
            hint="import the others by FILE… and compare them with: stackmark verdict RUN… --against RUN…",
        )
    by_hand = ByHand(format, workload, UNKNOWN, chip, ranks, dict(params or {}), label, note, again)
    by_hand.check()
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

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark mlperf score --json` prints."""
        refused = [{"folder": one.folder, "error": one.message, "hint": one.hint} for one in self.refused]
        return {"scores": [_score_json(one) for one in self.scores], "refused": refused}


def _score_json(one: Score) -> dict[str, Any]:
    against = one.against
    return {
        "folder": one.folder,
        "benchmark": one.benchmark,
        "platform": one.platform or None,
        "minutes": one.minutes,
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
        },
    }


def score_mlperf(folders: Sequence[str], against: str | None = "DGX-1") -> MlperfScores:
    """Score logs of MLPerf training by the rules of v0.6, next to the published time of a system."""
    scores, refused = score_folders(folders, against)
    return MlperfScores(tuple(scores), tuple(refused))
