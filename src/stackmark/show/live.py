"""While it runs: a bar with phase, live rate and time left on a screen; plain lines where there is none.

What is shown comes from events that the worker emits anyway, in another process, so looking costs the workload nothing. Nor
may it harm: a reader of the progress who goes away ends the progress, not the measurement.
"""

import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from stackmark.events import Event, Failed, Phase, Probe, Result, Steps
from stackmark.show.runs import EndedRun
from stackmark.show.safe import safe_line
from stackmark.spec import Request, Spec
from stackmark.units import say_rate, say_seconds

PROBE_PHASES = {"import": "loading the framework", "trial": "trying a step", "model": "building the model"}
# `⠋ run 10/10  first step 100 % 1,234,567 sequences/s 10 min 59 s left` has 66 characters, 42 without its rate.
BAR_FROM, RATE_FROM = 76, 66
CHOSEN = ("device", "batch", "precision", "tune")


def say_run(row: EndedRun, number: int, of: int) -> str:
    head = f"run {number}/{of}  {row.id}"
    if row.rate_per_s is None:
        return f"{head}  failed: {safe_line(row.failure_message or 'no reason is known')}"
    note = "" if row.status == "done" else f"  {row.status}: {safe_line(row.failure_message or '')}"
    return f"{head}  {say_rate(row.rate_per_s)} {row.rate_unit}  {row.steady}{note}"


class Notices:
    """Says what a person must know and nothing of the progress: beside `--json`."""

    def __init__(self, out: TextIO) -> None:
        self._out: TextIO | None = out

    def _say(self, text: str) -> None:
        try:
            if self._out is not None:
                print(safe_line(text), file=self._out, flush=True)
        except OSError:
            self._out = None  # nobody reads it any more

    def notice(self, sentence: str) -> None:
        self._say(sentence)

    def probing(self, request: Request) -> None: ...
    def probed(self, probe: Probe) -> None: ...
    def run_begins(self, run_id: str, number: int, of: int, spec: Spec) -> None: ...
    def event(self, event: Event) -> None: ...
    def stderr(self, line: str) -> None: ...
    def run_ended(self, row: EndedRun, number: int, of: int) -> None: ...


class PlainLines(Notices):
    """One line a thing that happened, for logs and pipes."""

    _prefix = ""

    def probing(self, request: Request) -> None:
        self._prefix = "probe"
        self._say(f"probe    {request.workload}: choosing what was not typed for this machine")

    def probed(self, probe: Probe) -> None:
        params = probe.spec.params
        self._say(f"probe    {', '.join(f'{name} {params[name]}' for name in CHOSEN if name in params)}")

    def run_begins(self, run_id: str, number: int, of: int, spec: Spec) -> None:
        self._prefix = f"run {number}/{of}"

    def event(self, event: Event) -> None:
        if self._prefix == "probe":
            return
        if isinstance(event, Phase) and event.state == "end" and event.seconds is not None:
            note = f" ({event.note})" if event.note else ""
            self._say(f"{self._prefix}  {event.phase} {say_seconds(event.seconds)}{note}")

    def run_ended(self, row: EndedRun, number: int, of: int) -> None:
        self._say(say_run(row, number, of))


class TimeLeft:
    """How long all runs of an experiment still take, from how long this one takes, or the one before it took.

    Nothing is known before the first run has come to its measured part: a compiler says nothing about its end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = 0.0
        self._after = 0
        self._run_s: float | None = None

    def forget(self) -> None:
        self._run_s = None

    def run_begins(self, number: int, of: int) -> None:
        self._began, self._after = self._clock(), of - number

    def run_needs(self, seconds: float) -> None:
        """So many seconds more, for the run at hand."""
        self._run_s = self._clock() - self._began + seconds

    def run_ended(self) -> None:
        self._run_s = self._clock() - self._began

    def seconds(self) -> float | None:
        if self._run_s is None:
            return None
        return max(0.0, self._began + self._run_s - self._clock()) + self._after * self._run_s


def say_left(seconds: float) -> str:
    return f"{seconds:.0f} s left" if seconds < 99.5 else f"{say_seconds(max(seconds, 120))} left"


class _Left(ProgressColumn):
    def __init__(self, left: TimeLeft) -> None:
        super().__init__(Column(no_wrap=True))
        self._left = left

    def render(self, task: Task) -> Text:
        seconds = self._left.seconds()
        return Text(say_left(seconds) if seconds is not None else "", style="cyan")


class _Share(ProgressColumn):
    """Nothing where the end is not known: a compiler at "0 %" looks stuck."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.percentage:3.0f} %" if task.total else "", style="progress.percentage")


def _columns(width: int, left: TimeLeft) -> list[ProgressColumn]:
    """What fits on one line; a bar that wraps leaves a trail of itself. Phase and time left are the last to go."""
    rate = TextColumn("{task.fields[rate]}", style="bold green", markup=False, table_column=Column(no_wrap=True))
    shown: list[ProgressColumn] = [
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
    ]
    if width >= BAR_FROM:
        shown.append(BarColumn(bar_width=None))
    shown.append(_Share(Column(no_wrap=True)))
    if width >= RATE_FROM:
        shown.append(rate)
    shown.append(_Left(left))
    if width >= BAR_FROM:
        shown.append(TimeElapsedColumn())
    return shown


class LiveBar:
    """One bar; what is finished scrolls up as a line. `unit_of` says what a workload's samples are called."""

    def __init__(self, console: Console, unit_of: Callable[[str], str]) -> None:
        self._console = console
        self._unit_of = unit_of
        self._left = TimeLeft()
        # Its output is the console's alone: rich would otherwise send what is printed to standard output there too.
        self._progress = Progress(
            *_columns(console.width, self._left),
            console=console,
            transient=True,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=None, rate="")
        self._head, self._unit = "", ""
        self._batch, self._steps, self._done = 0, 0, 0

    def __enter__(self) -> "LiveBar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _line(self, text: str, style: str) -> None:
        self._console.print(Text(safe_line(text), style=style), soft_wrap=True)

    def notice(self, sentence: str) -> None:
        self._line(sentence, "yellow")

    def probing(self, request: Request) -> None:
        self._head = "probe"
        self._left.forget()
        self._reset(request.workload)

    def probed(self, probe: Probe) -> None:
        params = probe.spec.params
        chosen = "  ".join(f"{name} {params[name]}" for name in CHOSEN if name in params)
        self._line(f"{probe.spec.workload}  {chosen}", "bold cyan")

    def run_begins(self, run_id: str, number: int, of: int, spec: Spec) -> None:
        self._head, self._unit = f"run {number}/{of}", self._unit_of(spec.workload)
        batch = spec.params.get("batch")
        self._batch = batch if isinstance(batch, int) else 0
        self._left.run_begins(number, of)
        self._reset("starting")

    def _reset(self, what: str, total: int | None = None) -> None:
        self._done, self._steps = 0, total or 0
        # A new task, since rich takes a total of None for "as before", and a compiler has none.
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(f"{self._head}  {safe_line(what)}", total=total, rate="")

    def event(self, event: Event) -> None:
        if isinstance(event, Phase) and event.state == "begin":
            self._phase(event)
        elif isinstance(event, Steps):
            self._took(event)
        elif isinstance(event, Result | Failed):
            self._reset("ending")

    def _phase(self, event: Phase) -> None:
        name = PROBE_PHASES.get(event.phase, event.phase) if self._head == "probe" else event.phase
        measured = event.phase == "measure"
        if measured and event.expected_s is not None:
            self._left.run_needs(event.expected_s)
        self._reset(name, event.expected_steps if measured else None)

    def _took(self, event: Steps) -> None:
        self._done += len(event.step_s)
        seconds = sum(event.step_s)
        if not event.step_s or not seconds:
            return
        rate = f"{say_rate(self._batch * len(event.step_s) / seconds)} {self._unit}/s" if self._batch else ""
        self._progress.update(self._task, completed=self._done, rate=rate)
        if self._steps:
            self._left.run_needs(max(0, self._steps - self._done) * seconds / len(event.step_s))

    def stderr(self, line: str) -> None: ...

    def run_ended(self, row: EndedRun, number: int, of: int) -> None:
        self._left.run_ended()
        self._line(say_run(row, number, of), "green" if row.status == "done" else "red")
