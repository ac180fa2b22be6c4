"""Write lines for people next to the events of a worker, for the log of a pod.

`text` has a line for each part of the run and at most one a second of steps; `tf-cnn` has the table of tf_cnn_benchmarks
where the workload is one of its networks. Both are made from the events alone, by the thread that writes them, after the event
itself: the measured loop knows nothing of it, and a line for people never takes the place of an event. A reader of events knows
these lines by their form (events.is_for_people) and skips them.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from stackmark import events
from stackmark.model import JsonValue
from stackmark.spec import Spec
from stackmark.units import counted, say_rate, say_seconds
from stackmark.workloads.definition import Definition
from stackmark.workloads.registry import find
from stackmark.workloads.train.classic import ClassicTable, TableOptions, read_table_options, table_options

TEXT, TF_CNN = "text", "tf-cnn"
# Steps come in an event a second, and faster ones in several.
EVERY_S = 1.0
# Of a text from elsewhere, such as an error message; events have it whole.
LONGEST = 400
# The parameters by which a person knows a run; all of them are in the event.
SHOWN = ("device", "precision", "batch")
# The end of a part that took less is not worth a line.
SHORT_S = 0.5

ForPeople = Callable[[events.Event], Iterable[str]]


class Format(Protocol):
    """A format: the lines for an event, without the mark of the first."""

    def lines(self, event: events.Event) -> Iterator[str]: ...


def for_people(asked: str | None) -> ForPeople | None:
    """Return what makes lines of events; None where events alone are asked for, or a format that this worker does not know."""
    if not asked:
        return None
    found: Mapping[str, JsonValue] = {"format": asked}
    if asked.startswith("{"):
        try:
            found = json.loads(asked)
        except ValueError:
            return None
    if found.get("format") == TF_CNN:
        return ClassicLog(_options_in(found)).lines
    return TextLog().lines if found.get("format") == TEXT else None


def _options_in(found: Mapping[str, JsonValue]) -> TableOptions | None:
    try:
        return read_table_options(dict(found))
    except (KeyError, TypeError, ValueError):
        return None


class TextLog:
    """A line for each part of a run, and one a second of steps."""

    def __init__(self) -> None:
        self._spec: Spec | None = None
        self._phase = ""
        self._said_at = 0.0
        # Of the steps since the last line about steps.
        self._steps, self._seconds = 0, 0.0
        self._done: dict[str, int] = {}
        self._expected: int | None = None
        self._loss: float | None = None

    def lines(self, event: events.Event) -> Iterator[str]:
        for text in self._about(event):
            yield f"{events.TEXT_MARK}{event.t:.1f} s] {_one_line(text)}"

    def _about(self, event: events.Event) -> Iterator[str]:
        if event.rank != 0 and not isinstance(event, events.Failed):
            return
        if isinstance(event, events.Hello):
            yield from self._hello(event)
        elif isinstance(event, events.Probe):
            if event.spec != self._spec:
                yield f"runs {_say_spec(event.spec)}"
            self._spec = event.spec
            for name in SHOWN:
                if name in event.choices:
                    yield f"  {name} {event.spec.params.get(name)}: {event.choices[name]}"
        elif isinstance(event, events.Facts):
            yield from _say_facts(event.subject, event.facts)
        elif isinstance(event, events.Phase):
            yield from self._part(event)
        elif isinstance(event, events.Steps):
            yield from self._stepped(event)
        elif isinstance(event, events.Row):
            yield _say_row(event)
        elif isinstance(event, events.Evaluation):
            reached = ": target reached" if event.reached else ""
            yield f"{events.say_evaluation(event)}, after {say_seconds(event.clock_s)}{reached}"
        elif isinstance(event, events.Log):
            yield f"| {event.line}"
        elif isinstance(event, events.Result):
            yield from self._result(event)
        elif isinstance(event, events.Failed):
            rank = f" of rank {event.rank}" if event.rank else ""
            yield f"failed{rank} ({event.kind}): {event.message}"
            if event.hint:
                yield f"  {event.hint}"

    def _hello(self, event: events.Hello) -> Iterator[str]:
        versions = ", ".join(f"{name} {version}" for name, version in event.versions.items())
        yield f"worker started: {versions}"
        self._spec = event.spec
        if event.spec:
            yield f"runs {_say_spec(event.spec)}"

    def _part(self, event: events.Phase) -> Iterator[str]:
        note = f" ({event.note})" if event.note else ""
        if event.state == "begin":
            self._phase, self._said_at, self._expected = event.phase, event.t, event.expected_steps
            self._steps, self._seconds = 0, 0.0
            definition = _definition(self._spec)
            thing = {"rows": "row", "quality": "evaluation"}.get(definition.timed if definition else "", "step")
            expected = f", {counted(event.expected_steps, thing)} expected" if event.expected_steps else ""
            yield f"{event.phase}: begins{note}{expected}"
            return
        if self._steps:
            yield self._say_steps()
        if event.seconds is not None and (event.seconds >= SHORT_S or event.note):
            yield f"{event.phase}: done after {say_seconds(event.seconds)}{note}"

    def _stepped(self, event: events.Steps) -> Iterator[str]:
        definition = _definition(self._spec)
        if definition and definition.timed != "steps":
            return  # all of it is one step, and the result says how long it took
        self._phase = event.phase
        self._steps += len(event.step_s)
        self._seconds += sum(event.step_s)
        self._done[event.phase] = event.first + len(event.step_s)
        if event.losses:
            self._loss = event.losses[-1][1]
        if event.t - self._said_at >= EVERY_S and self._steps:
            self._said_at = event.t
            yield self._say_steps()

    def _say_steps(self) -> str:
        """Say how many steps are done, and how fast those since the last line were."""
        done, each_s = self._done.get(self._phase, 0), self._seconds / self._steps
        of = f" of {self._expected:,}" if self._expected else ""
        said = [f"step {done:,}{of}", f"{say_seconds(each_s)} a step"]
        definition = _definition(self._spec)
        batch = self._spec.params.get(definition.samples_per_step) if self._spec and definition else None
        if definition and isinstance(batch, int) and each_s > 0:
            said.append(f"{say_rate(batch / each_s)} {definition.samples}/s")
        if self._loss is not None:
            said.append(f"loss {self._loss:.3f}")
        self._steps, self._seconds, self._loss = 0, 0.0, None
        return f"{self._phase}: {', '.join(said)}"

    def _result(self, event: events.Result) -> Iterator[str]:
        figure = event.figure
        if event.rows:
            failed = f", {event.rows_failed} of them without a number" if event.rows_failed else ""
            said = f"{counted(event.rows, 'row')}{failed}"
        elif figure is not None:
            said = f"{figure.name} {figure.value:g} {figure.unit}"
        else:
            rate = event.steps * event.samples_per_step / event.wall_s
            said = f"{say_rate(rate)} {event.sample}s/s, {counted(event.steps, 'step')}"
        word = "not a result: the hardware failed" if event.invalid else "result"
        yield f"{word}: {said} in {say_seconds(event.wall_s)}"
        for sentence in (*event.invalid, *event.flags):
            yield f"  {sentence}"


class ClassicLog:
    """The table of tf_cnn_benchmarks. What is not one of its networks, and why a run failed, is said as text."""

    def __init__(self, options: TableOptions | None) -> None:
        self._options = options
        self._table: ClassicTable | None = None
        self._text = TextLog()
        self._begun = False

    def lines(self, event: events.Event) -> Iterator[str]:
        if isinstance(event, events.Hello | events.Probe):
            spec = event.spec
            options = self._options or (table_options(spec) if spec else None)
            if spec and options:
                self._table = ClassicTable(options)
        if self._table is None or isinstance(event, events.Failed | events.Hello):
            yield from self._text.lines(event)
            return
        if not self._begun and isinstance(event, events.Phase) and _framework():
            # The header names the framework, which is loaded by now.
            self._begun = True
            yield from (_one_line(line) for line in self._table.start(_framework()))
        yield from (_one_line(line) for line in self._table.event(event) if self._begun)


def _framework() -> str:
    torch = sys.modules.get("torch")
    return str(getattr(torch, "__version__", ""))


def _definition(spec: Spec | None) -> Definition | None:
    return find(spec.workload)[1] if spec else None


def _say_spec(spec: Spec) -> str:
    ranks = [f"{spec.ranks} ranks"] if spec.ranks > 1 else []
    shown = [f"{name} {spec.params[name]}" for name in SHOWN if spec.params.get(name) not in (None, "")]
    return ", ".join([spec.workload, *ranks, *shown])


def _say_facts(subject: str, facts: Mapping[str, JsonValue]) -> Iterator[str]:
    """Name what the run is on: the chip and the framework. The rest is for programs."""
    if subject == "cpu" and facts.get("model"):
        yield f"cpu: {facts['model']}, {facts.get('threads')} threads"
    elif subject == "gpu" and isinstance(devices := facts.get("devices"), list):
        names = [str(one.get("name")) for one in devices if isinstance(one, dict)]
        if names:
            yield f"gpu: {', '.join(names)}"
    elif subject == "software" and facts.get("torch"):
        cuda = f", CUDA {facts['cuda']}" if facts.get("cuda") else ""
        yield f"software: PyTorch {facts['torch']}{cuda}"


def _say_row(event: events.Row) -> str:
    row = event.row
    shape = " ".join(f"{name}={value}" for name, value in row.shape.items())
    if row.failure_kind:
        said = f"failed ({row.failure_kind}): {row.failure_message}"
    elif row.call_s:
        said = f"{say_seconds(sorted(row.call_s)[len(row.call_s) // 2])} a call"
    else:
        said = "no sample"
    return f"row {event.done} of {event.of}: {row.op} {shape} {row.precision}: {said}"


def _one_line(text: str) -> str:
    """Return a text as one line that no reader takes for an event, or for the beginning of one."""
    text = "".join(one if one.isprintable() or one == "\t" else " " for one in text)
    return text.replace(events.EVENT_PREFIX, events.EVENT_PREFIX.replace("{", "{ "))[:LONGEST]
