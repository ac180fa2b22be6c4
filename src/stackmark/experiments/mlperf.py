"""The score of MLPerf training runs, by the rules of v0.6: sort, drop the fastest and the slowest, mean of the rest.

One run that did not reach the target counts as the slowest and is the one dropped; with two there is no score. How many
runs a score needs is part of the rules, since time to a target is quantised by the evaluations: with fewer, one lucky run
decides. A score stands beside the published time of a system, as a part of that time: 6.13 % slower took 1.0613 of it.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from stackmark.errors import SpecError, nearest_names
from stackmark.ledger.importers.mlperf_training import TrainingLog, training_logs
from stackmark.ledger.importers.reading import opened
from stackmark.published.table import Published, load
from stackmark.units import counted

# Runs that v0.6 asks for. (NCF was suspended in that round.)
RUNS_ASKED = {"resnet": 5, "ssd": 5, "maskrcnn": 5, "gnmt": 10, "transformer": 10, "minigo": 10}
# Without the fastest and the slowest one has to be left.
FEWEST_RUNS = 3
_OTHER_NAMES = {"mask": "maskrcnn", "mask_rcnn": "maskrcnn", "resnet50": "resnet"}
# Folders of a submission lie three deep: system, benchmark, result.
_DEEPEST = 4
_MOST_FILES = 10_000


@dataclass(frozen=True)
class LoggedRun:
    file: str
    seconds: float | None
    # Why there is no time.
    problem: str = ""


@dataclass(frozen=True)
class Against:
    """The published time, and how much longer ours is than it, in percent of it."""

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


@dataclass(frozen=True)
class RefusedFolder:
    """A folder without a score, and why."""

    folder: str
    message: str
    hint: str | None


def score_folders(folders: Sequence[str], against: str | None) -> tuple[list[Score], list[RefusedFolder]]:
    """One score for each benchmark in each folder that holds logs, in these folders or below them, and the folders without."""
    if against is not None:
        _refuse_unknown(against)
    scores: list[Score] = []
    refused: list[RefusedFolder] = []
    for folder in folders:
        try:
            found = [score for path, files in _folders_with_logs(folder) for score in _scores(path, files)]
            if not found:
                raise SpecError(
                    f"{folder} holds no logs of MLPerf training",
                    hint="they are called result_0.txt, result_1.txt …, one a run, and have lines with :::MLL",
                )
        except SpecError as error:
            refused.append(RefusedFolder(folder, error.message, error.hint))
        else:
            scores += found if against is None else [_beside(score, against) for score in found]
    return scores, refused


def score_of(seconds: Sequence[float], failed: int) -> float:
    """Minutes. A run that failed takes the place of the slowest; more than one is refused by the caller."""
    kept = sorted(seconds)[1:] if failed else sorted(seconds)[1:-1]
    return fmean(kept) / 60


def _folders_with_logs(folder: str) -> Iterator[tuple[str, list[Path]]]:
    top = Path(folder)
    if not top.is_dir():
        what = "is a file: name the folder it is in" if top.exists() else "does not exist"
        raise SpecError(f"{folder} {what}", hint="a score is made of all the runs in a folder")
    count = 0
    for here, below, names in os.walk(folder, onerror=_unreadable):
        path = Path(here)
        if len(path.parts) - len(top.parts) >= _DEEPEST:
            below.clear()
        below.sort()
        logs = [path / name for name in sorted(names, key=_by_number) if name.startswith("result_")]
        logs = logs or [path / name for name in sorted(names) if name.endswith((".txt", ".log", ".out"))]
        count += len(logs)
        if count > _MOST_FILES:
            raise SpecError(f"{folder} holds more than {_MOST_FILES} files", hint="name the folder of one benchmark")
        if logs:
            yield here, logs


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
            runs.setdefault(_OTHER_NAMES.get(name, name), []).append((run, one))
    if not runs and unreadable:
        return [_score(folder, Path(folder).name, unreadable, "")]
    # A file that cannot be read is a run that nobody can vouch for, of the only benchmark there is.
    shared = unreadable if len(runs) == 1 else []
    return [
        _score(folder, name, [*(run for run, _ in found), *shared], found[0][1].platform or "")
        for name, found in runs.items()
    ]


def _score(folder: str, benchmark: str, runs: Sequence[LoggedRun], platform: str) -> Score:
    asked = RUNS_ASKED.get(benchmark)
    seconds = [run.seconds for run in runs if run.seconds is not None]
    failed = [run for run in runs if run.seconds is None]
    problem, notes = _problem(len(runs), failed, asked), []
    if failed and not problem:
        notes.append(f"{failed[0].file} counts as the slowest run and is dropped: {failed[0].problem}")
    if asked is None and not problem:
        notes.append(f"how many runs the rules ask for {benchmark} is not known here; it is scored over {len(runs)}")
    minutes = None if problem else score_of(seconds, len(failed))
    return Score(folder, benchmark, minutes, tuple(runs), asked, problem, tuple(notes), platform=platform)


def _problem(count: int, failed: Sequence[LoggedRun], asked: int | None) -> str:
    if len(failed) > 1:
        said = "; ".join(f"{run.file}: {run.problem}" for run in failed[:3])
        return f"{len(failed)} of {count} runs have no time, and the rules allow one: {said}"
    if asked is not None and count != asked:
        return f"{counted(count, 'run')}, where the rules ask for {asked}"
    if count < FEWEST_RUNS:
        return f"{counted(count, 'run')}: without the fastest and the slowest, one has to be left"
    return ""


def _times() -> list[Published]:
    return [row for row in load() if row.unit == "min" and row.task == "training to target"]


def _fits(row: Published, system: str) -> bool:
    """A system by its name, with or without `1x`, or by the number of its entry."""
    wanted = system.strip().lower()
    return wanted in (row.system.lower(), row.system.lower().removeprefix("1x "), str(row.extra.get("id", "")).lower())


def _refuse_unknown(system: str) -> None:
    if any(_fits(row, system) for row in _times()):
        return
    names = list(dict.fromkeys(row.system.removeprefix("1x ") for row in _times()))
    raise SpecError(
        f"--against: no published time of training is of {system!r}{nearest_names(system, names)}",
        hint="list them with: stackmark published search MLPerf training",
    )


def _beside(score: Score, system: str) -> Score:
    rows = [row for row in _times() if _fits(row, system) and _OTHER_NAMES.get(row.model, row.model) == score.benchmark]
    if not rows:
        return replace(score, notes=(*score.notes, f"no time of {score.benchmark} is published for {system}"))
    if score.minutes is None:
        return score
    row = min(rows, key=lambda row: row.value)  # of several that fit, the shortest time
    return replace(score, against=Against(row, 100 * (score.minutes / row.value - 1)))
