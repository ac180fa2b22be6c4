"""Foreign logs become runs: what an importer found is said in a worker's words, judged as a live run is, and stored.

What a log does not say (the chip, the precision, sometimes the model) may be added by the person who imports it, and is
then in the run's facts as said by hand; what contradicts the log is refused. A file whose content is already in the ledger
is refused too, since two copies of one run would count as two.
"""

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from pydantic import JsonValue, TypeAdapter, ValidationError

from stackmark import __version__
from stackmark.errors import SpecError
from stackmark.events import Stream
from stackmark.lab.judging import STDERR_PREFIX, judge
from stackmark.ledger.ids import new_id
from stackmark.ledger.importers import Format, find_format, format_of, results_of
from stackmark.ledger.importers.found import Found
from stackmark.ledger.importers.reading import Log, opened
from stackmark.ledger.importers.speaking import spoken
from stackmark.ledger.rows import Experiment, Json, RunDetail, RunEnd, RunStart
from stackmark.ledger.store import Ledger
from stackmark.ledger.whole import WholeRun, add_whole, imported_before
from stackmark.places.place import Outcome
from stackmark.spec import Scalar, Spec, WorkloadName

UNKNOWN = "unknown"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_PLACE = re.compile(r"[a-z][a-z0-9._-]{0,39}")


@dataclass(frozen=True)
class ByHand:
    """What the person says of the runs beside what the log says."""

    format: str | None = None
    workload: str | None = None
    place: str = UNKNOWN
    chip: str | None = None
    ranks: int | None = None
    params: Mapping[str, Scalar] = field(default_factory=dict)
    label: str = ""
    note: str = ""
    again: bool = False

    def check(self) -> None:
        if self.workload is not None:
            try:
                TypeAdapter(WorkloadName).validate_python(self.workload)
            except ValidationError as error:
                raise SpecError(
                    f"--workload: {self.workload!r} is not the name of a workload", hint="write it like train/resnet50"
                ) from error
        if not _PLACE.fullmatch(self.place):
            raise SpecError(f"--place: {self.place!r} is no name of a place", hint="write host, container or pod")
        for name in self.params:
            if not _NAME.fullmatch(name):
                raise SpecError(f"--param: {name!r} is no name of a parameter", hint="write it like precision=fp32")
        if self.format is not None:
            find_format(self.format)


@dataclass(frozen=True)
class ImportedFile:
    name: str
    sha256: str
    format: str
    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class Imported:
    experiment: Experiment
    files: tuple[ImportedFile, ...]
    runs: tuple[RunDetail, ...]


@dataclass(frozen=True)
class _Read:
    log: Log
    kind: Format
    found: list[Found]


def read_params(texts: Sequence[str]) -> dict[str, Scalar]:
    """`precision=fp32` and the like."""
    params: dict[str, Scalar] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise SpecError(f"--param: {text!r} has no value", hint="write it like precision=fp32")
        params[name] = _scalar(value)
    return params


def _scalar(text: str) -> Scalar:
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?[0-9]{1,15}", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]{1,15}\.[0-9]{1,15}", text):
        return float(text)
    return text


def import_files(files: Sequence[str], ledger: Ledger, by_hand: ByHand, command: str = "") -> Imported:
    """All files, or none: the first thing wrong with any of them is an error, and nothing is stored."""
    by_hand.check()
    read = [_read(where, by_hand) for where in files]
    if not by_hand.again:
        _refuse_known(read, ledger)
    return _stored(read, ledger, by_hand, command)


def import_arms(
    arms: Mapping[str, Sequence[str]], ledger: Ledger, by_hand: ByHand, command: str = ""
) -> list[Imported]:
    """The logs of several arms, each an experiment of its own, whose place is the arm's name. All are read before any is
    stored."""
    each = [(replace(by_hand, place=name), files) for name, files in arms.items()]
    for said, _ in each:
        said.check()
    read = [(said, [_read(where, said) for where in files]) for said, files in each]
    if not by_hand.again:
        _refuse_known([one for _, logs in read for one in logs], ledger)
    return [_stored(logs, ledger, said, command) for said, logs in read]


def _stored(read: Sequence[_Read], ledger: Ledger, by_hand: ByHand, command: str) -> Imported:
    now = time.time()
    experiment = Experiment(
        id=new_id("x"),
        created_unix_s=now,
        command=command,
        note=by_hand.note,
        kind="import",
        request=_request(read, by_hand),
    )
    whole: list[WholeRun] = []
    done: list[ImportedFile] = []
    for one in read:
        runs = [_whole(found, one, by_hand, experiment.id, len(whole) + i, now) for i, found in enumerate(one.found)]
        whole += runs
        done.append(ImportedFile(one.log.name, one.log.sha256, one.kind.name, tuple(run.start.id for run in runs)))
    add_whole(ledger, experiment, whole)
    return Imported(experiment, tuple(done), tuple(ledger.runs_of(experiment.id)))


def _read(where: str, by_hand: ByHand) -> _Read:
    with opened(where) as log:
        kind = find_format(by_hand.format) if by_hand.format else format_of(log)
        found = results_of(log, kind)
    if by_hand.workload is None and any(one.workload is None for one in found):
        raise SpecError(
            f"{log.name} does not say what was run", hint="name it: --workload train/resnet50 (nothing was imported)"
        )
    return _Read(log, kind, found)


def _refuse_known(read: Sequence[_Read], ledger: Ledger) -> None:
    seen: dict[str, str] = {}
    for one in read:
        if one.log.sha256 in seen:
            raise SpecError(
                f"{one.log.name} and {seen[one.log.sha256]} have the same content; nothing was imported",
                hint="two copies of one run would count as two; --again imports them all the same",
            )
        seen[one.log.sha256] = one.log.name
    for digest, run_ids in imported_before(ledger, list(seen)).items():
        more = f" and {len(run_ids) - 1} more" if len(run_ids) > 1 else ""
        raise SpecError(
            f"{seen[digest]} was already imported, as {run_ids[0]}{more}; nothing was imported",
            hint=f"look at it: stackmark show {run_ids[0]}\nimport it all the same: --again",
        )


def _request(read: Sequence[_Read], by_hand: ByHand) -> Json:
    files: list[JsonValue] = [
        {"file": _base(one.log), "sha256": one.log.sha256, "format": one.kind.name} for one in read
    ]
    request: Json = {"files": files, "place": by_hand.place}
    if by_hand.label:
        request["label"] = by_hand.label
    return request


def _base(log: Log) -> str:
    return PurePath(log.name).name or log.name


def _whole(found: Found, one: _Read, by_hand: ByHand, experiment_id: str, position: int, now: float) -> WholeRun:
    spec = _spec(found, one.log, by_hand)
    chip = _agreed("--chip", by_hand.chip, found.chip, one.log)
    lines = spoken(found, _facts(found, one, by_hand, chip))
    stream = Stream()
    for line in lines:
        stream.feed(line)
    end = judge(stream, Outcome(0))
    start = RunStart(
        id=new_id("r"),
        experiment_id=experiment_id,
        position=position,
        spec=spec,
        place=by_hand.place,
        started_unix_s=now,
        # Not ours, and a log does not name its own.
        machine_id="",
        boot_id="",
        driver_pid=os.getpid(),
        handle={
            "sha256": one.log.sha256,
            "file": _base(one.log),
            **({"label": by_hand.label} if by_hand.label else {}),
        },
        stackmark_version=__version__,
    )
    kept = [STDERR_PREFIX + line.raw for line in found.lines]
    return WholeRun(start, _untold(end, found, now), [*lines, *kept])


def _untold(end: RunEnd, found: Found, now: float) -> RunEnd:
    """Without the columns that a log cannot fill: how long it took where that is not known, and when it ended."""
    return end.model_copy(update={"ended_unix_s": now, "wall_s": found.wall_s or (sum(found.step_s) or None)})


def _spec(found: Found, log: Log, by_hand: ByHand) -> Spec:
    params = dict(found.params)
    for name, value in by_hand.params.items():
        said = params.setdefault(name, value)
        if said != value:
            raise SpecError(
                f"--param {name}={value}: {log.name} says {said}",
                hint="what a log says is not changed; nothing was imported",
            )
    ranks = by_hand.ranks or found.ranks
    if by_hand.ranks and found.ranks > 1 and by_hand.ranks != found.ranks:
        raise SpecError(f"--ranks {by_hand.ranks}: {log.name} says {found.ranks} devices; nothing was imported")
    return Spec(workload=by_hand.workload or str(found.workload), params=params, ranks=ranks)


def _agreed(option: str, typed: str | None, said: str | None, log: Log) -> str | None:
    if typed and said and typed != said:
        raise SpecError(f"{option} {typed!r}: {log.name} says {said!r}; nothing was imported")
    return typed or said


def _facts(found: Found, one: _Read, by_hand: ByHand, chip: str | None) -> dict[str, JsonValue]:
    facts: dict[str, JsonValue] = {
        "file": _base(one.log)[:200],
        "sha256": one.log.sha256,
        "format": one.kind.name,
        "program": one.kind.title,
        **dict(found.facts),
    }
    if found.figure:
        facts["figure"] = f"{found.figure.name}: {found.figure.value:.6g} {found.figure.unit}"
    if found.lines:
        facts["first_line"], facts["last_line"] = found.lines[0].number, found.lines[-1].number
    if found.lines and found.lines[0].source:
        facts["source"] = found.lines[0].source[:200]
    for name, text in (("chip", chip), ("framework", found.framework), ("label", by_hand.label)):
        if text:
            facts[name] = text[:200]
    if typed := _typed(by_hand):
        facts["by_hand"] = typed
    return facts


def _typed(by_hand: ByHand) -> dict[str, JsonValue]:
    """What did not come from the log."""
    place = None if by_hand.place == UNKNOWN else by_hand.place
    said = {"workload": by_hand.workload, "chip": by_hand.chip, "ranks": by_hand.ranks, "place": place}
    return {**by_hand.params, **{name: value for name, value in said.items() if value is not None}}
