"""Foreign logs become runs: what an importer found is said in a worker's words, judged as a live run is, and stored.

What a log does not say (the chip, the precision, sometimes the model) may be added by the person who imports it, and is
then in the run's facts as said by hand; what contradicts the log is refused. A file whose content is already in the ledger
is refused too, since two copies of one run would count as two. Each file is imported or refused by itself.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from pydantic import JsonValue

from stackmark.errors import SpecError
from stackmark.experiments.recorder import Output, finished_run, new_experiment, store_finished
from stackmark.ledger.importers import Format, find_format, format_of, results_of
from stackmark.ledger.importers.found import Failure, Found
from stackmark.ledger.importers.reading import Log, opened
from stackmark.ledger.importers.speaking import spoken
from stackmark.ledger.rescue import WholeRun, imported_before
from stackmark.ledger.rows import Experiment, Json, RunDetail, RunEnd, storable
from stackmark.ledger.store import Ledger
from stackmark.model import ValidationError
from stackmark.places.place import Outcome
from stackmark.spec import Request, Scalar, Spec, explain

UNKNOWN = "unknown"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
# A text of a log that is kept as a parameter, a fact or a flag.
LONGEST_TEXT = 1000
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
                Request(workload=self.workload)
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
class RefusedFile:
    """A file of which nothing was stored, and why."""

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


@dataclass(frozen=True)
class _Read:
    log: Log
    kind: Format
    found: list[Found]


@dataclass(frozen=True)
class _ImportedRun:
    """A result of a log in a worker's words."""

    found: Found
    spec: Spec
    output: Output
    end: RunEnd


@dataclass(frozen=True)
class _Whole:
    """A file with all its results, ready to be stored."""

    read: _Read
    said: list[_ImportedRun]


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
    """Store the results of every file that can be read; the others are refused, each with its sentence."""
    by_hand.check()
    return _imported(_sorted_out(files, ledger, by_hand, {}), ledger, by_hand, command)


def import_arms(
    arms: Mapping[str, Sequence[str]], ledger: Ledger, by_hand: ByHand, command: str = ""
) -> list[Imported]:
    """The logs of several arms, each an experiment of its own, whose place is the arm's name. All are read before any is
    stored, and nothing is where an arm has no log left: then there is nothing to compare."""
    each = [(replace(by_hand, place=name), files) for name, files in arms.items()]
    for said, _ in each:
        said.check()
    seen: dict[str, str] = {}
    sorted_out = [(said, _sorted_out(files, ledger, said, seen)) for said, files in each]
    if all(one.read for _, one in sorted_out):
        return [_imported(one, ledger, said, command) for said, one in sorted_out]
    return [Imported(None, (), one.refused, ()) for _, one in sorted_out]


@dataclass(frozen=True)
class _SortedOut:
    read: list["_Whole"]
    refused: tuple[RefusedFile, ...]


def _sorted_out(files: Sequence[str], ledger: Ledger, by_hand: ByHand, seen: dict[str, str]) -> _SortedOut:
    """What can be stored, and what not. `seen` are the files before these, by their content."""
    good: list[_Whole] = []
    refused: list[RefusedFile] = []
    for where in files:
        try:
            one = _read(where, by_hand)
            if not by_hand.again:
                _refuse_known(one.log, ledger, seen)
            good.append(_Whole(one, [_said(found, one, by_hand) for found in one.found]))
            seen[one.log.sha256] = one.log.name
        except SpecError as error:
            refused.append(RefusedFile(where, error.message, error.hint))
    return _SortedOut(good, tuple(refused))


def _imported(sorted_out: _SortedOut, ledger: Ledger, by_hand: ByHand, command: str) -> Imported:
    if not sorted_out.read:
        return Imported(None, (), sorted_out.refused, ())
    return replace(_stored(sorted_out.read, ledger, by_hand, command), refused=sorted_out.refused)


def _stored(whole: Sequence[_Whole], ledger: Ledger, by_hand: ByHand, command: str) -> Imported:
    experiment = new_experiment(
        kind="import", command=command, note=by_hand.note, request=_request([one.read for one in whole], by_hand)
    )
    now = experiment.created_unix_s
    runs: list[WholeRun] = []
    done: list[ImportedFile] = []
    for one in whole:
        of_file = [_run(said, one.read.log, by_hand, now) for said in one.said]
        runs += of_file
        log = one.read.log
        done.append(ImportedFile(log.name, log.sha256, one.read.kind.name, tuple(run.start.id for run in of_file)))
    store_finished(ledger, experiment, runs)
    return Imported(experiment, tuple(done), (), tuple(ledger.runs_of(experiment.id)))


def _read(where: str, by_hand: ByHand) -> _Read:
    with opened(where) as log:
        kind = find_format(by_hand.format) if by_hand.format else format_of(log)
        found = results_of(log, kind)
    if by_hand.workload is None and any(one.workload is None for one in found):
        raise SpecError(f"{log.name} does not say what was run", hint="name it: --workload train/resnet50")
    return _Read(log, kind, found)


def _refuse_known(log: Log, ledger: Ledger, seen: Mapping[str, str]) -> None:
    if log.sha256 in seen:
        raise SpecError(
            f"{log.name} has the same content as {seen[log.sha256]}, and was not imported",
            hint="two copies of one run would count as two; --again imports them all the same",
        )
    run_ids = imported_before(ledger, [log.sha256]).get(log.sha256)
    if run_ids:
        more = f" and {len(run_ids) - 1} more" if len(run_ids) > 1 else ""
        raise SpecError(
            f"{log.name} was already imported, as {run_ids[0]}{more}",
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
    """The file's name, with bytes that are not UTF-8 written out."""
    return storable(PurePath(log.name).name or log.name)


def _said(found: Found, one: _Read, by_hand: ByHand) -> _ImportedRun:
    """Put a result into a worker's words and judge it. One whose numbers cannot be is a failed run."""
    found = _clean(found)
    spec = _spec(found, one.log, by_hand)
    chip = _agreed("--chip", by_hand.chip, found.chip, one.log)
    try:
        lines = spoken(found, _facts(found, one, by_hand, chip))
    except ValidationError as error:
        failure = Failure("bad_number", f"the log's numbers cannot be: {explain(error)}", "is the log whole?")
        found = replace(found, figure=None, failure=failure, ranks=1, step_s=(), wall_s=None, rows=(), said=(),
                        when_unix_s=None)  # fmt: skip
        lines = spoken(found, _facts(found, one, by_hand, chip))
    output = Output.read(lines)
    end = output.judge(Outcome(0, stderr=tuple(line.raw for line in found.lines)))
    return _ImportedRun(found, spec, output, end)


def _clean(found: Found) -> Found:
    """Texts as they can be stored: JSON may hold half of a surrogate pair, or a NUL."""
    failure = found.failure
    return replace(
        found,
        params={name: _storable(value) for name, value in found.params.items()},
        facts=tuple((name, _storable(value)) for name, value in found.facts),
        chip=found.chip and storable(found.chip),
        framework=found.framework and storable(found.framework),
        failure=failure and replace(failure, message=storable(failure.message)),
        invalid=tuple(storable(text)[:LONGEST_TEXT] for text in found.invalid),
        flags=tuple(storable(text)[:LONGEST_TEXT] for text in found.flags),
    )


def _storable(value: Scalar) -> Scalar:
    return storable(value)[:LONGEST_TEXT] if isinstance(value, str) else value


def _run(said: _ImportedRun, log: Log, by_hand: ByHand, now: float) -> WholeRun:
    """Make the record of a result. Its machine is not ours, and a log does not name its own."""
    label: Json = {"label": by_hand.label} if by_hand.label else {}
    return finished_run(
        said.spec,
        said.output,
        _untold(said.end, said.found, now),
        place=by_hand.place,
        started_unix_s=now,
        handle={"sha256": log.sha256, "file": _base(log), **label},
    )


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
                hint="what a log says is not changed; the file was not imported",
            )
    ranks = by_hand.ranks or found.ranks
    if by_hand.ranks and found.ranks > 1 and by_hand.ranks != found.ranks:
        raise SpecError(f"--ranks {by_hand.ranks}: {log.name} says {found.ranks} devices")
    return Spec(workload=by_hand.workload or str(found.workload), params=params, ranks=ranks)


def _agreed(option: str, typed: str | None, said: str | None, log: Log) -> str | None:
    if typed and said and typed != said:
        raise SpecError(f"{option} {typed!r}: {log.name} says {said!r}")
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
