"""Score the logs of MLPerf training runs by the rules of v0.6 (verdict/mlperf_score.py).

A score is shown next to the published time of a system, as a part of that time: 6.13 % slower took 1.0613 of it.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from stackmark.errors import SpecError, nearest_names
from stackmark.figures import FigureUnit
from stackmark.ledger.importers.found import Found
from stackmark.ledger.importers.mlperf_training import FORMAT, TrainingLog, training_logs
from stackmark.ledger.importers.reading import opened
from stackmark.published.chips import chip_distance, parse_chip
from stackmark.published.lookup import say_row
from stackmark.published.stack import Stack, stack_differences, stack_lines, stack_of_facts, stack_of_row
from stackmark.published.table import TO_TARGET, Published, load
from stackmark.remarks import Remark
from stackmark.units import counted
from stackmark.verdict.mlperf_score import RUNS_ASKED, benchmark_name, has_score, score_of, why_unofficial
from stackmark.verdict.published_pairs import PublishedPair, StackLine, pair_of_figures

MINUTES = FigureUnit("min", higher_is_better=False)
# Folders of a submission lie three deep: system, benchmark, result.
_DEEPEST = 4
_MOST_FILES = 10_000
# Of logs that are not called result_0.txt …
_SUFFIXES = (".txt", ".log", ".out")


@dataclass(frozen=True)
class LoggedRun:
    file: str
    seconds: float | None
    # Why there is no time.
    problem: str = ""


@dataclass(frozen=True)
class Against:
    """The published time, and how much longer ours is, in percent."""

    row: Published
    percent: float


@dataclass(frozen=True)
class Score:
    folder: str
    benchmark: str
    # None where the rules give none, and `problem` says why.
    minutes: float | None
    runs: tuple[LoggedRun, ...]
    asked: int | None
    problem: str = ""
    notes: tuple[str, ...] = ()
    against: Against | None = None
    platform: str = ""
    # Why the rules do not give this score, so that it is unofficial; empty where they do.
    unofficial: str = ""
    # What the logs say of the system.
    system: Stack = field(default_factory=dict)

    @property
    def official(self) -> bool:
        """Tell whether the number of runs is that of the rules. MLCommons has reviewed neither."""
        return self.minutes is not None and not self.unofficial

    @property
    def stack(self) -> tuple[StackLine, ...]:
        """Compare the system of the logs with the published one; nothing without a published time."""
        return stack_lines(self.system, stack_of_row(self.against.row)) if self.against else ()

    @property
    def pair(self) -> PublishedPair | None:
        """Return the score next to the published time; None where either is missing."""
        if self.against is None or self.minutes is None:
            return None
        row, runs = self.against.row, tuple(run.seconds / 60 for run in self.runs if run.seconds is not None)
        percent, ratio = pair_of_figures(MINUTES, self.minutes, row.value)
        differs = stack_differences(self.stack)
        if self.unofficial and self.asked:
            differs = (Remark(f"{self.asked} runs instead of {len(self.runs)}", "runs"), *differs)
        notes = (f"unofficial score: {self.unofficial}",) if self.unofficial else ()
        return PublishedPair(
            self.benchmark, MINUTES.name, MINUTES.higher_is_better, self.minutes, None, None, runs, row.value, percent,
            ratio, what=f"{row.system}, {row.extra.get('submitter')}: {say_row(row)}", source=row.source, date=row.date,
            at=row.at, context=bool(differs), differs=differs, notes=notes, stack=self.stack,
        )  # fmt: skip


@dataclass(frozen=True)
class RefusedFolder:
    """A folder without a score, and why."""

    folder: str
    message: str
    hint: str | None


def score_folders(folders: Sequence[str], against: str | None) -> tuple[list[Score], list[RefusedFolder]]:
    """Score each benchmark in each folder with logs, in these folders or below, and list the folders without logs.

    What a shell's `results/*` names next to folders, such as a README, is left out as it is inside a folder.
    """
    if against is not None:
        _refuse_unknown(against)
    scores: list[Score] = []
    refused: list[RefusedFolder] = []
    several = any(map(os.path.isdir, folders))
    for folder in folders:
        if several and os.path.isfile(folder) and not _may_be_log(os.path.basename(folder)):
            continue
        try:
            found = [score for path, files in _folders_with_logs(folder) for score in _scores(path, files)]
            if not found:
                raise SpecError(
                    f"{folder} contains no MLPerf training logs",
                    hint="they are called result_0.txt, result_1.txt …, one per run, with :::MLL lines",
                )
        except SpecError as error:
            refused.append(RefusedFolder(folder, error.message, error.hint))
        else:
            scores += found if against is None else [_with_published(score, against) for score in found]
    return scores, refused


def _folders_with_logs(folder: str) -> Iterator[tuple[str, list[Path]]]:
    top = Path(folder)
    if not top.is_dir():
        what = "is a file: name the folder it is in" if top.exists() else "does not exist"
        raise SpecError(f"{folder} {what}", hint="a score is computed from all runs in a folder")
    count = 0
    for here, below, names in os.walk(folder, onerror=_unreadable):
        path = Path(here)
        if len(path.parts) - len(top.parts) >= _DEEPEST:
            below.clear()
        below.sort()
        logs = [path / name for name in sorted(names, key=_by_number) if name.startswith("result_")]
        logs = logs or [path / name for name in sorted(names) if name.removesuffix(".gz").endswith(_SUFFIXES)]
        count += len(logs)
        if count > _MOST_FILES:
            raise SpecError(f"{folder} contains more than {_MOST_FILES} files", hint="name the folder of one benchmark")
        if logs:
            yield here, logs


def _may_be_log(name: str) -> bool:
    return name.startswith("result_") or name.removesuffix(".gz").endswith(_SUFFIXES)


def _unreadable(error: OSError) -> None:
    raise SpecError(f"{error.filename} cannot be read: {error.strerror}")


def _by_number(name: str) -> tuple[int, str]:
    digits = "".join(character for character in name if character in "0123456789")
    return int(digits[:9] or 0), name


def _scores(folder: str, files: Sequence[Path]) -> list[Score]:
    runs: dict[str, list[tuple[LoggedRun, TrainingLog]]] = {}
    unreadable: list[LoggedRun] = []
    for file in files:
        try:
            if file.exists() and not file.is_file():
                raise SpecError(f"{file} is a pipe or a device, not a log")
            with opened(str(file)) as log:
                logs = training_logs(log.lines())
        except SpecError as error:
            if file.name.startswith("result_"):
                unreadable.append(LoggedRun(file.name, None, error.message))
            continue
        if not logs and file.name.startswith("result_"):
            unreadable.append(LoggedRun(file.name, None, "it has no :::MLL lines"))
        for one in logs:
            name = (one.benchmark or Path(folder).name).lower()
            run = LoggedRun(file.name, one.seconds, one.failure.message if one.failure else "")
            runs.setdefault(benchmark_name(name), []).append((run, one))
    if not runs and unreadable:
        return [_score(folder, Path(folder).name, unreadable)]
    # A file that cannot be read is a run that nobody can vouch for, of the only benchmark there is.
    shared = unreadable if len(runs) == 1 else []
    return [_score(folder, name, [*(run for run, _ in found), *shared], found[0][1]) for name, found in runs.items()]


def _score(folder: str, benchmark: str, runs: Sequence[LoggedRun], log: TrainingLog | None = None) -> Score:
    asked = RUNS_ASKED.get(benchmark)
    seconds = [run.seconds for run in runs if run.seconds is not None]
    failed = [run for run in runs if run.seconds is None]
    problem, notes = _problem(len(runs), failed), []
    if failed and not problem:
        notes.append(f"{failed[0].file} counts as the slowest run and is dropped: {failed[0].problem}")
    minutes = None if problem else score_of(seconds, len(failed))
    unofficial = "" if problem else why_unofficial(benchmark, len(runs))
    system = stack_of_facts({"import": dict(log.stack)}, log.accelerator, log.devices, log.framework) if log else {}
    return Score(
        folder, benchmark, minutes, tuple(runs), asked, problem, tuple(notes),
        platform=(log.platform or "") if log else "", unofficial=unofficial, system=system,
    )  # fmt: skip


def _problem(count: int, failed: Sequence[LoggedRun]) -> str:
    if not has_score(count, len(failed)):
        said = "; ".join(f"{run.file}: {run.problem}" for run in failed[:3])
        allowed = "; the rules allow one" if count > 1 else ""
        return (
            f"{len(failed)} of {counted(count, 'run')} {'have' if len(failed) > 1 else 'has'} no time{allowed}: {said}"
        )
    return ""


def _times() -> list[Published]:
    return [row for row in load() if row.unit == "min" and row.task == TO_TARGET]


def _fits(row: Published, system: str) -> bool:
    """A system by its name, with or without `1x`, or by the number of its entry."""
    wanted = system.strip().lower()
    return wanted in (row.system.lower(), row.system.lower().removeprefix("1x "), str(row.extra.get("id", "")).lower())


def _refuse_unknown(system: str) -> None:
    if any(_fits(row, system) for row in _times()):
        return
    names = list(dict.fromkeys(row.system.removeprefix("1x ") for row in _times()))
    raise SpecError(
        f"--against: no published training time for {system!r}{nearest_names(system, names)}",
        hint="list them with: stackmark published search MLPerf training",
    )


@dataclass(frozen=True)
class PublishedTime:
    """The published minutes of a benchmark next to one run of it: of the same system in the same round, or of the same chips."""

    row: Published
    percent: float
    same_system: bool


# A log of a later round does not name it. Rounds come twice a year, and a log is made in the months before it is published.
_BEFORE_PUBLICATION_S, _AFTER_PUBLICATION_S = 150 * 86400.0, 40 * 86400.0


def published_time(found: Found) -> PublishedTime | None:
    """Find the published time for a run of MLPerf training: of the same benchmark, round, chip and number of chips.

    A row of the same system comes first; without one, the row tells what the same chips did in another system.
    """
    if found.program != FORMAT or found.figure is None or found.workload is None or found.chip is None:
        return None
    logged = LoggedSystem(found.workload, found.chip, found.ranks, dict(found.facts), found.when_unix_s)
    return time_published_for(logged, found.figure.value)


@dataclass(frozen=True)
class LoggedSystem:
    """What an imported log says of its run: by this its published time is found."""

    workload: str
    chip: str
    ranks: int
    # `platform` and `ruleset`, as the importer reads them.
    facts: Mapping[str, object]
    when_unix_s: float | None


def time_published_for(logged: LoggedSystem, minutes: float) -> PublishedTime | None:
    """Find the published time for a run that took these minutes."""
    name = logged.workload.partition("/")[2]
    chip = parse_chip(logged.chip)
    rows = [
        row
        for row in _times()
        if benchmark_name(row.model) == benchmark_name(name)
        and row.count == logged.ranks
        and chip_distance(chip, parse_chip(row.chip)) <= 1
        and _same_round(row, str(logged.facts.get("ruleset", "")), logged.when_unix_s)
    ]
    if not rows:
        return None
    platform = str(logged.facts.get("platform", ""))
    same = [row for row in rows if _names_system(row.system, platform)]
    row = min(same or rows, key=lambda row: row.value)  # of several that fit, the shortest time
    return PublishedTime(row, 100 * (minutes / row.value - 1), bool(same))


def _same_round(row: Published, ruleset: str, when_unix_s: float | None) -> bool:
    """Whether a row is of the round that a log belongs to: by the spelling of its lines, else by its date."""
    if re.fullmatch(r"[0-9.]+", ruleset):
        return bool(re.search(rf"\bv{re.escape(ruleset)}(?![0-9.])", row.source))
    if when_unix_s is None:
        return False
    day = row.date if len(row.date) > len("2020-06") else f"{row.date}-15"
    published_s = datetime.fromisoformat(day).replace(tzinfo=timezone.utc).timestamp()
    return -_AFTER_PUBLICATION_S <= published_s - when_unix_s <= _BEFORE_PUBLICATION_S


def _names_system(system: str, platform: str) -> bool:
    """Whether a log's platform is a published system: `1xDGX-1 with V100` is `1x DGX-1`, `1xDGX-2H` is not `1x DGX-2`."""
    words = re.findall(r"[a-z]+|[0-9]+", system.lower())
    return bool(words) and bool(re.match(r"[\s_-]*".join(words) + r"(?![a-z0-9])", platform.strip().lower()))


def _with_published(score: Score, system: str) -> Score:
    rows = [row for row in _times() if _fits(row, system) and benchmark_name(row.model) == score.benchmark]
    if not rows:
        return replace(score, notes=(*score.notes, f"no published time of {score.benchmark} for {system}"))
    if score.minutes is None:
        return score
    row = min(rows, key=lambda row: row.value)  # of several that fit, the shortest time
    return replace(score, against=Against(row, 100 * (score.minutes / row.value - 1)))
