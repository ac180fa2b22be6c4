"""Make a run of one result of a log, a table or a saved worker log, judged by the same code as a live run.

Results of other programs are written as worker events first (ledger/importers/speaking.py). A saved log of one of our own
workers already has them: its events are verified like those of a live worker, and the definition of its workload verifies the
spec that it names. What a person adds (chip, precision, workload) is stored as said by hand; what contradicts the source is
refused.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from pydantic import JsonValue

from stackmark.errors import SpecError, StackmarkError
from stackmark.events import Hello, gathered_facts
from stackmark.experiments.judging import read_stored
from stackmark.experiments.recorder import Output, finished_run
from stackmark.experiments.verify import verified_spec
from stackmark.failures import PlaceFailure
from stackmark.ledger.importers import find_format
from stackmark.ledger.importers.found import Failure, Found
from stackmark.ledger.importers.reading import Log
from stackmark.ledger.importers.speaking import spoken
from stackmark.ledger.importers.table_columns import TableOptions
from stackmark.ledger.rescue import WholeRun
from stackmark.ledger.rows import Json, RunEnd, RunFilter, storable
from stackmark.ledger.store import Ledger
from stackmark.model import ValidationError
from stackmark.places.place import STDERR_LINES_KEPT, Outcome
from stackmark.published.chips import chip_distance, parse_chip
from stackmark.spec import Request, Scalar, Spec, explain
from stackmark.version import version
from stackmark.workloads.registry import known

UNKNOWN = "unknown"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
# A text of a log that is kept as a parameter, a fact or a flag.
LONGEST_TEXT = 1000
_PLACE = re.compile(r"[a-z][a-z0-9._-]{0,39}")
# A driver stores the row of a run before its worker speaks: an image may have to be fetched in between. Clocks of nodes differ.
_BEFORE_S, _AFTER_S = 3600.0, 60.0
_MOST_LOOKED_AT = 500


@dataclass(frozen=True)
class ByHand:
    """What the person says about the runs in addition to the log.

    `workloads` and `chips` hold one name for all results of a file, or one for each in their order.
    """

    format: str | None = None
    workloads: tuple[str, ...] = ()
    place: str = UNKNOWN
    chips: tuple[str, ...] = ()
    ranks: int | None = None
    params: Mapping[str, Scalar] = field(default_factory=dict)
    label: str = ""
    note: str = ""
    again: bool = False
    # None where the files are logs.
    table: TableOptions | None = None

    def check(self) -> None:
        for workload in self.workloads:
            try:
                Request(workload=workload)
            except ValidationError as error:
                raise SpecError(
                    f"--workload: {workload!r} is not the name of a workload", hint="write it like train/resnet50"
                ) from error
        if not _PLACE.fullmatch(self.place):
            raise SpecError(f"--place: {self.place!r} is not the name of a place", hint="write host, container or pod")
        for name in self.params:
            if not _NAME.fullmatch(name):
                raise SpecError(
                    f"--param: {name!r} is not the name of a parameter", hint="write it like precision=fp32"
                )
        if self.format is not None:
            find_format(self.format)
        if self.format is not None and self.table is not None:
            raise SpecError(
                "--format is for logs, but --table says that the files are tables", hint="leave one of them out"
            )


@dataclass(frozen=True)
class Source:
    """The file that results come from, and the program that printed it."""

    log: Log
    format: str
    title: str

    @property
    def name(self) -> str:
        """The file's name, with bytes that are not UTF-8 written out."""
        return storable(PurePath(self.log.name).name or self.log.name)


@dataclass(frozen=True)
class ImportedRun:
    """A result in a worker's words, judged."""

    found: Found
    spec: Spec
    output: Output
    end: RunEnd
    place: str
    label: str


def named_by_hand(found: Sequence[Found], by_hand: ByHand, log: Log) -> list[Found]:
    """Give each result the workload and the chip that the person names: one for all, or one for each in their order."""
    workloads = _each("--workload", by_hand.workloads, found, log)
    chips = _each("--chip", by_hand.chips, found, log)
    said = {one.workload for one in found if one.workload}
    if len(by_hand.workloads) == 1 and len(said) > 1:
        raise SpecError(
            f"--workload {by_hand.workloads[0]}: {log.name} names {len(said)} workloads: {', '.join(sorted(said)[:5])}",
            hint=f"leave --workload out, or give it once for each of the {len(found)} results, in their order",
        )
    return [
        replace(one, workload=workload or one.workload, chip=_agreed_chip(chip, one.chip, log))
        for one, workload, chip in zip(found, workloads, chips, strict=True)
    ]


def _each(option: str, given: tuple[str, ...], found: Sequence[Found], log: Log) -> Sequence[str | None]:
    if len(given) <= 1:
        return [given[0] if given else None] * len(found)
    if len(given) != len(found):
        raise SpecError(
            f"{option} is given {len(given)} times, but {log.name} has {len(found)} results",
            hint=f"give it once for all, or once for each:\n{say_results(found)}",
        )
    return given


def say_results(found: Sequence[Found]) -> str:
    """List results by their lines, so that a person can name each."""
    shown = []
    for one in found[:10]:
        line = f"line {one.lines[-1].number}" if one.lines else "no line"
        what = (
            f"{one.figure.value:.6g} {one.figure.unit}"
            if one.figure
            else one.failure.message
            if one.failure
            else "a run"
        )
        shown.append(f"  {line}: {one.workload or 'not named'}, {what}")
    more = [f"  and {len(found) - 10} more"] if len(found) > 10 else []
    return "\n".join([*shown, *more])


def _agreed_chip(typed: str | None, said: str | None, log: Log) -> str | None:
    """Return the chip that the source names, else the one that was typed. Two names of one chip agree: T4 is Tesla T4."""
    if typed and said and typed != said and chip_distance(parse_chip(typed), parse_chip(said)) > 1:
        raise SpecError(f"--chip {typed!r}: {log.name} says {said!r}")
    return said or typed


def judged(found: Found, source: Source, by_hand: ByHand) -> ImportedRun:
    """Write a result as worker events and judge it. A result with impossible numbers is a failed run."""
    place, label = _place(found, by_hand, source.log), found.label or by_hand.label
    if found.events:
        spec, verified = _worker_spec(found, by_hand, source.log)
        output = Output.read(found.events)
        return ImportedRun(found, spec, output, _worker_end(found, output, spec if verified else None), place, label)
    found = _clean(found)
    spec = _spec(found, source.log, by_hand)
    try:
        lines = spoken(found, _facts(found, source, by_hand, label))
    except ValidationError as error:
        failure = Failure(
            "bad_number", f"the log contains impossible numbers: {explain(error)}", "is the log complete?"
        )
        found = replace(found, figure=None, failure=failure, ranks=1, step_s=(), wall_s=None, rows=(), said=(),
                        when_unix_s=None)  # fmt: skip
        lines = spoken(found, _facts(found, source, by_hand, label))
    output = Output.read(lines)
    end = output.judge(Outcome(0, stderr=tuple(line.raw for line in found.lines)))
    return ImportedRun(found, spec, output, end, place, label)


def _place(found: Found, by_hand: ByHand, log: Log) -> str:
    if found.place and by_hand.place not in (UNKNOWN, found.place):
        raise SpecError(f"--place {by_hand.place}: {log.name} says {found.place}")
    return found.place or by_hand.place


def whole_run(run: ImportedRun, source: Source, now: float, arm: int) -> WholeRun:
    """Make the record of a result. Its machine is not ours, and the log of another program does not name its own."""
    handle: Json = {"sha256": source.log.sha256, "file": source.name, **({"label": run.label} if run.label else {})}
    if run.found.events:
        return _whole_worker(run, handle, now, arm)
    end = run.end.model_copy(
        # A log does not say when its run ended, and only some say how long it took.
        update={"ended_unix_s": now, "wall_s": run.found.wall_s or (sum(run.found.step_s) or None)}
    )
    return finished_run(run.spec, run.output, end, arm=arm, place=run.place, started_unix_s=now, handle=handle)


# --- results of other programs ------------------------------------------------------------------------------------------


def _clean(found: Found) -> Found:
    """Texts as they can be stored: JSON may hold half of a surrogate pair, or a NUL."""
    failure = found.failure
    return replace(
        found,
        params={name: _storable(value) for name, value in found.params.items()},
        facts=tuple((name, _storable(value)) for name, value in found.facts),
        chip=found.chip and storable(found.chip),
        framework=found.framework and storable(found.framework),
        label=storable(found.label)[:LONGEST_TEXT],
        failure=failure and replace(failure, message=storable(failure.message)),
        invalid=tuple(storable(text)[:LONGEST_TEXT] for text in found.invalid),
        flags=tuple(storable(text)[:LONGEST_TEXT] for text in found.flags),
    )


def _storable(value: Scalar) -> Scalar:
    return storable(value)[:LONGEST_TEXT] if isinstance(value, str) else value


def _spec(found: Found, log: Log, by_hand: ByHand) -> Spec:
    params = dict(found.params)
    for name, value in by_hand.params.items():
        said = params.setdefault(name, value)
        if said != value:
            raise SpecError(
                f"--param {name}={value}: {log.name} says {said}",
                hint="--param cannot change what a log says; the file was not imported",
            )
    ranks = by_hand.ranks or found.ranks
    if by_hand.ranks and found.ranks > 1 and by_hand.ranks != found.ranks:
        raise SpecError(f"--ranks {by_hand.ranks}: {log.name} says {found.ranks} devices")
    return Spec(workload=str(found.workload), params=params, ranks=ranks)


def _facts(found: Found, source: Source, by_hand: ByHand, label: str) -> dict[str, JsonValue]:
    facts: dict[str, JsonValue] = {
        "file": source.name[:200],
        "sha256": source.log.sha256,
        "format": source.format,
        "program": source.title,
        **dict(found.facts),
    }
    if found.figure:
        facts["figure"] = f"{found.figure.name}: {found.figure.value:.6g} {found.figure.unit}"
    if found.lines:
        facts["first_line"], facts["last_line"] = found.lines[0].number, found.lines[-1].number
    if found.lines and found.lines[0].source:
        facts["source"] = found.lines[0].source[:200]
    for name, text in (("chip", found.chip), ("framework", found.framework), ("label", label)):
        if text:
            facts[name] = text[:200]
    if typed := _typed(found, by_hand):
        facts["by_hand"] = typed
    return facts


def _typed(found: Found, by_hand: ByHand) -> dict[str, JsonValue]:
    """What did not come from the log."""
    said = {
        "workload": found.workload if by_hand.workloads else None,
        "chip": found.chip if by_hand.chips else None,
        "ranks": by_hand.ranks,
        "place": None if by_hand.place == UNKNOWN else by_hand.place,
    }
    return {**by_hand.params, **{name: value for name, value in said.items() if value is not None}}


# --- workers of our own -------------------------------------------------------------------------------------------------


def _worker_spec(found: Found, by_hand: ByHand, log: Log) -> tuple[Spec, bool]:
    """Return what the worker ran, and whether the definition of its workload allows it.

    A worker that does not name its spec (an older one, or a user's own program) ran what the person says; the numbers of its
    result cannot be verified, because its parameters are unknown.
    """
    spec = _spec(found, log, by_hand)
    if found.spec is None or known(spec.workload) is None:
        return spec, False
    if spec != found.spec:
        what = f"--workload {spec.workload}" if spec.workload != found.spec.workload else "--param or --ranks"
        raise SpecError(
            f"{what}: {log.name} says that the worker ran {found.spec.workload}", hint="leave the option out"
        )
    try:
        return verified_spec(Request(workload=spec.workload, params=spec.params, ranks=spec.ranks), spec), True
    except StackmarkError as error:
        raise SpecError(f"{log.name} names an impossible spec: {error.message}", hint=error.hint) from error


def _worker_end(found: Found, output: Output, spec: Spec | None) -> RunEnd:
    failure = None
    if output.broken is None and output.stream.ended() is None:
        last = output.stream.events[-1] if output.stream.events else None
        after = f"after event {last.seq} of rank {last.rank} ({last.event})" if last else "before its first event"
        failure = PlaceFailure(
            "cut_off", f"the log ends {after}, without a result", "was it saved before the run ended?"
        )
    stderr = tuple(line.raw for line in found.lines[-STDERR_LINES_KEPT:])
    return output.judge(Outcome(0, failure, stderr, live=False), spec=spec)


def _whole_worker(run: ImportedRun, handle: Json, now: float, arm: int) -> WholeRun:
    """Make the record of a worker's run: it says itself when it began, and on which machine."""
    events = run.output.stream.events
    hello = next((event for event in events if isinstance(event, Hello)), None)
    host = gathered_facts(events).get("host", {})
    began = hello.time_unix_s if hello else now
    ended = began + max((event.t for event in events), default=0.0)
    return finished_run(
        run.spec,
        run.output,
        run.end.model_copy(update={"ended_unix_s": ended}),
        arm=arm,
        place=run.place,
        started_unix_s=began,
        machine_id=storable(str(host.get("machine_id") or ""))[:LONGEST_TEXT],
        boot_id=storable(str(host.get("boot_id") or ""))[:LONGEST_TEXT],
        handle=handle,
        stackmark_version=storable(hello.versions.get("stackmark", version()) if hello else version())[:LONGEST_TEXT],
    )


def worker_process(run: ImportedRun) -> str:
    """Return what identifies the process of a worker: when it began, and its number; empty where it does not say."""
    hello = next((event for event in run.output.stream.events if isinstance(event, Hello)), None)
    return f"{hello.time_unix_s!r} {hello.pid}" if hello and run.found.events else ""


def refuse_recorded(run: ImportedRun, ledger: Ledger, log: Log) -> None:
    """Refuse a worker's log whose run is in the ledger: its driver stored it, or it was imported from another copy."""
    process = worker_process(run)
    if not process:
        return
    began = float(process.partition(" ")[0])
    wanted = RunFilter(workload=run.spec.workload, since_unix_s=began - _BEFORE_S, until_unix_s=began + _AFTER_S)
    for row in ledger.runs(wanted, limit=_MOST_LOOKED_AT):
        events = read_stored(ledger.stream(row.id)).stream.events
        if any(isinstance(event, Hello) and f"{event.time_unix_s!r} {event.pid}" == process for event in events):
            raise SpecError(
                f"the run in {log.name} is already in the ledger, as {row.id}",
                hint=f"look at it: stackmark show {row.id}\nimport it nevertheless: --again",
            )
