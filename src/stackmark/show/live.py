"""While it runs: one bar for the whole experiment with phase, live rate and time left on a screen; plain lines elsewhere.

Before the first run it says how long all of them will take, where earlier runs or the settings tell. In a pipe each run is one
line; with `-v` its phases are lines too.

In an experiment each line says block and arm, and the rates of finished runs stand there as they end. The ratio so far is not
shown: whoever sees it stops when it looks good, and a ratio that was watched lies (experiments/design.py has the stopping rule).

What is shown comes from events that the worker emits anyway, in another process, so looking costs the workload nothing. Nor
may it harm: a reader of the progress who goes away ends the progress, not the measurement.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from statistics import fmean
from typing import Self, TextIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import Progress as Bar
from rich.progress import ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

from stackmark.events import Evaluation, Event, Failed, OpRow, Phase, Probe, Result, Row, Steps, say_evaluation
from stackmark.experiments.estimate import Estimate
from stackmark.experiments.fitting import is_censored
from stackmark.experiments.recorder import Silent
from stackmark.experiments.recorder import Watcher as Watcher
from stackmark.figures import say_figure
from stackmark.ledger.progress import RunProgress
from stackmark.ledger.rows import RunRow
from stackmark.show.safe import LABEL_AT_MOST, cut_middle, safe_line, short_id
from stackmark.show.terminal import Voice, is_screen, standard_error
from stackmark.spec import Request, Spec
from stackmark.units import counted, say_rate, say_seconds
from stackmark.verdict.operators import row_of
from stackmark.workloads.command.definition import say_guess
from stackmark.workloads.op.definition import say_problem
from stackmark.workloads.registry import find

PROBE_PHASES = {"import": "loading the framework", "trial": "trying a step", "model": "building the model"}
# `⠋ run 10/10  first step 100 % 1,234,567 sequences/s 10 min 59 s left` has 66 characters, 42 without its rate.
BAR_FROM, RATE_FROM = 76, 66
# What a terminal writes where the cursor stands when Ctrl-C is pressed.
ECHO_ROOM = len("^C")
CHOSEN = ("device", "batch", "precision", "tune")
# Of an arm's name on the bar; the lines above it have the whole of it.
LABEL_AT_LEAST, ROOM_NEXT_TO_LABEL = 9, 52
# Rows of a list in a log: a line for each would be all of it. One now and then says that it goes on, and how fast.
ROWS_EVERY_S = 10.0
# Of a problem's name on the bar: space next to it for the bar, the rate and the time left.
ROOM_NEXT_TO_PROBLEM, PROBLEM_AT_LEAST = 60, 12
# Of a finished run's line next to block and arm: a short id, a rate, a class of steadiness.
ROOM_NEXT_TO_WHERE = 54
QUIET, VERBOSE = -1, 1


def say_estimate(estimate: Estimate) -> str:
    """`about 3 min for 5 runs, as long as before on this machine`."""
    least = "at most " if estimate.at_most else ""
    before = ", as long as before on this machine" if estimate.measured_before else ""
    return f"{least}{say_about(estimate.seconds)} for {counted(estimate.runs, 'run')}{before}"


def say_about(seconds: float) -> str:
    """`about 40 s`, `about 3 min`, `about 2 h 10 min`: a forecast is not known to the second."""
    if seconds < 99.5:
        return f"about {max(1, round(seconds, -1 if seconds > 20 else 0)):.0f} s"
    minutes = max(2, round(seconds / 60))
    return f"about {minutes} min" if minutes < 100 else f"about {minutes // 60} h {minutes % 60} min"


def say_row(row: OpRow) -> str:
    """`0.812 TFLOP/s`, from its samples."""
    result = row_of([row])
    return say_figure(result.rate, result.unit) if result.rate else ""


class ListProgress:
    """How far a list has come in the run at hand."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.done = self.failed = 0

    def take(self, event: Row) -> float:
        """One more; about how many seconds the others take, as the ones before did."""
        self.done, self.failed = event.done, self.failed + bool(event.row.failure_kind)
        return (self._clock() - self._began) / event.done * max(event.of - event.done, 0)

    def __str__(self) -> str:
        if not self.done:
            return ""
        return counted(self.done, "row") + (f", {self.failed} failed" if self.failed else "")


def say_run(
    row: RunRow, number: int, of: int, where: str = "", *, with_id: bool = True, rows: ListProgress | None = None
) -> str:
    """`where` is the block and the arm of an experiment; `rows` is what was seen of a list."""
    head = f"{where or f'run {number}/{of}'}{f'  {short_id(row.id)}' if with_id else ''}"
    if row.rate_per_s is None:
        kept = f" (kept: {rows})" if rows and rows.done else ""
        what = "" if is_censored(row) else "failed: "
        return f"{head}  {what}{safe_line(row.failure_message or 'no reason is known')}{kept}"
    note = "" if row.status == "done" else f"  {row.status}: {safe_line(row.failure_message or '')}"
    seen = row.steady or str(rows or "")
    return f"{head}  {say_figure(row.rate_per_s, row.rate_unit)}{f'  {seen}' if seen else ''}{note}"


class Where:
    """Which run of which arm it is, in a few words."""

    def __init__(self) -> None:
        self._blocks = 0
        self._widest = 0

    def experiment_begins(self, labels: Sequence[str], blocks: int) -> None:
        self._blocks = blocks if len(labels) > 1 else 0
        self._widest = min(LABEL_AT_MOST, max((len(safe_line(label)) for label in labels), default=0))

    def say(self, label: str, block: int | None) -> str:
        """`block 3/6  container`, `primer     host`; nothing where there is but one arm."""
        if not self._blocks:
            return ""
        head = f"block {block + 1}/{self._blocks}" if block is not None else "primer"
        width = len(f"block {self._blocks}/{self._blocks}")
        return f"{head:<{width}}  {cut_middle(safe_line(label), LABEL_AT_MOST):<{self._widest}}"


class Notices(Voice, Silent):
    """Say what a person must know and nothing of the progress: with `--json`."""


class PlainLines(Notices):
    """For logs and pipes: a line for the probe and one for each run. `phases` adds a line for each part of a run."""

    def __init__(self, out: TextIO, *, phases: bool = False) -> None:
        super().__init__(out)
        self._phases = phases
        self._prefix, self._in_words, self._where = "", "", Where()
        self._rows, self._said_s, self._followed = ListProgress(), 0.0, ""

    def experiment_begins(self, labels: Sequence[str], blocks: int) -> None:
        self._where.experiment_begins(labels, blocks)

    def probing(self, request: Request) -> None:
        self._prefix = "probe"
        if self._phases:
            self._say(f"probe    {request.workload}: choosing for this machine what was not typed")

    def expects(self, estimate: Estimate) -> None:
        self._say(say_estimate(estimate))

    def probed(self, probe: Probe) -> None:
        params = probe.spec.params
        chosen = ", ".join(f"{name} {params[name]}" for name in CHOSEN if name in params)
        self._say(f"probe    {probe.spec.workload}{f': {chosen}' if chosen else ''}")
        if guess := say_guess(params, probe.choices):
            self._say(f"probe    {guess}")

    def run_begins(
        self, run_id: str, number: int, of: int, spec: Spec, *, label: str = "", block: int | None = None
    ) -> None:
        self._in_words = self._where.say(label, block)
        self._prefix = self._in_words or f"run {number}/{of}"
        self._rows = ListProgress()

    def event(self, event: Event) -> None:
        if self._prefix == "probe":
            return
        if isinstance(event, Phase) and event.state == "begin" and event.phase == "measure":
            self._rows, self._said_s = ListProgress(), time.monotonic()
        elif isinstance(event, Row):
            self._row(event)
        elif isinstance(event, Evaluation):
            self._evaluated(event)
        elif self._phases and isinstance(event, Phase) and event.state == "end" and event.seconds is not None:
            note = f" ({event.note})" if event.note else ""
            self._say(f"{self._prefix}  {event.phase} {say_seconds(event.seconds)}{note}")

    def _row(self, event: Row) -> None:
        left_s = self._rows.take(event)
        row = event.row
        where = f"{self._prefix}  {event.done}/{event.of} {say_problem(row.op, row.shape)}"
        if row.failure_kind:
            self._say(f"{where}  failed: {row.failure_message}")
        elif time.monotonic() - self._said_s >= ROWS_EVERY_S:
            self._said_s = time.monotonic()
            self._say(f"{where}  {say_row(row)}{f', {say_left(left_s)}' if event.done < event.of else ''}")

    def _evaluated(self, event: Evaluation) -> None:
        """Say now and then how far it is; the last one is said by the end of the run."""
        if event.rank == 0 and (self._phases or time.monotonic() - self._said_s >= ROWS_EVERY_S):
            self._said_s = time.monotonic()
            self._say(f"{self._prefix}  {say_evaluation(event)}")

    def run_ended(self, row: RunRow, number: int, of: int) -> None:
        self._say(say_run(row, number, of, self._in_words, rows=self._rows))

    def run_was(self, row: RunRow, number: int, of: int, label: str) -> None:
        """Show a run that another process made."""
        self._say(say_run(row, number, of, self._where.say(label, row.block)))

    def follow(self, now: RunProgress, left_s: float | None, share: float | None) -> None:
        """Show how far a run of another process is."""
        if self._phases and now.phase != self._followed:
            self._followed = now.phase
            self._say(f"{self._prefix}  {safe_line(now.phase)}")


# A run that takes longer than the one before is not done before it ends.
MOST_WITHIN = 0.99


class TimeLeft:
    """How long all runs of an experiment still take, from how long this one takes, or the one before it took.

    Before the first run has come to its measured part only a forecast may be known: a compiler says nothing about its end. Arms
    may take very different times, so each is remembered by its name.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = 0.0
        self._after = 0
        self._arm: str | None = ""
        self._number = self._of = 0
        self._run_s: dict[str, float] = {}
        self._this_s: float | None = None
        # Of another process, which says it itself: the seconds that are left, when it was told, and the share that is done.
        self._told: tuple[float | None, float, float | None] | None = None

    def told(self, left_s: float | None, share: float | None) -> None:
        self._told = (left_s, self._clock(), share)

    def forget(self) -> None:
        self._run_s, self._this_s, self._number, self._of = {}, None, 0, 0

    def expect(self, run_s: Mapping[str, float]) -> None:
        """Take a forecast of what a run of each arm takes, until one was made."""
        self._run_s = {**run_s}

    def share(self) -> float | None:
        """Return how much of the whole experiment is done; None where nothing tells how far the first run is."""
        if self._told:
            return self._told[2]
        if not self._of or (self._number == 1 and self._this_s is None):
            return None
        within = (self._clock() - self._began) / self._this_s if self._this_s else 0.0
        return (self._number - 1 + min(max(within, 0.0), MOST_WITHIN)) / self._of

    def run_begins(self, number: int, of: int, arm: str | None = "") -> None:
        """`arm` is None for a run that is not like the others: a primer says nothing about how long they take."""
        self._began, self._after, self._arm = self._clock(), of - number, arm
        self._number, self._of = number, of
        self._this_s = self._run_s.get(arm) if arm is not None else None

    def run_needs(self, seconds: float) -> None:
        """Expect this many seconds more, for the run at hand."""
        self._took(self._clock() - self._began + seconds)

    def run_ended(self) -> None:
        self._took(self._clock() - self._began)

    def _took(self, seconds: float) -> None:
        self._this_s = seconds
        if self._arm is not None:
            self._run_s[self._arm] = seconds

    def seconds(self) -> float | None:
        if self._told:
            left_s, at_s, _ = self._told
            return None if left_s is None else max(0.0, left_s - (self._clock() - at_s))
        known = self._run_s.values()
        if not known:
            return None
        this_s = self._this_s if self._this_s is not None else fmean(known)
        return max(0.0, self._began + this_s - self._clock()) + self._after * fmean(known)


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
    """How much of the whole is done. Nothing where the end is not known: a compiler at "0 %" looks stuck."""

    def __init__(self, left: TimeLeft) -> None:
        super().__init__(Column(no_wrap=True))
        self._left = left

    def render(self, task: Task) -> Text:
        share = self._left.share()
        # Rounded down: nothing is at 100 % before it has ended.
        return Text(f"{int(100 * share):3d} %" if share is not None else "", style="progress.percentage")


class _Whole(ProgressColumn):
    """The bar of the whole experiment; it moves with the time that runs take, also between two events."""

    def __init__(self, left: TimeLeft) -> None:
        super().__init__()
        self._left = left

    def render(self, task: Task) -> ProgressBar:
        share = self._left.share()
        return ProgressBar(
            total=1.0 if share is not None else None,
            completed=share or 0.0,
            width=None,
            pulse=share is None,
            animation_time=task.get_time(),
        )


def _columns(width: int, left: TimeLeft) -> list[ProgressColumn]:
    """What fits on one line; a bar that wraps leaves a trail of itself. Phase and time left are the last to go."""
    rate = TextColumn("{task.fields[rate]}", style="bold green", markup=False, table_column=Column(no_wrap=True))
    # What is left of the line is the bar's, or the description's: spread over all columns, they would jump about.
    ratio = None if width >= BAR_FROM else 1
    shown: list[ProgressColumn] = [
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=ratio)),
    ]
    if width >= BAR_FROM:
        shown.append(_Whole(left))
    shown.append(_Share(left))
    if width >= RATE_FROM:
        shown.append(rate)
    shown.append(_Left(left))
    if width >= BAR_FROM:
        shown.append(TimeElapsedColumn())
    return shown


class _Bar(Bar):
    """Leaves room at its right: a terminal writes `^C` there, and a line that wraps is not erased when the bar ends."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield Padding(self.make_tasks_table(self.tasks), (0, ECHO_ROOM, 0, 0))


class ScreenBar:
    """A bar on standard error while something works; what is worth a line scrolls up above it."""

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        self._console = console
        # Its output is the console's alone: rich would otherwise send what is printed to standard output there too.
        self._progress = _Bar(
            *columns, console=console, transient=True, expand=True, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the bar: nothing of it may stand where a result is printed."""
        self._progress.stop()

    def _line(self, text: str, style: str, *, whole: bool = True) -> None:
        """Print a line above the bar: whole, as a command is copied, or broken between words."""
        self._console.print(Text(safe_line(text), style=style), soft_wrap=whole)

    def notice(self, sentence: str) -> None:
        self._line(sentence, "yellow")


class LiveBar(ScreenBar):
    """One bar; what is finished scrolls up as a line. `unit_of` says what a workload's samples are called."""

    def __init__(
        self, console: Console, unit_of: Callable[[str], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._unit_of = unit_of
        self._left = TimeLeft(clock)
        super().__init__(console, *_columns(console.width - ECHO_ROOM, self._left))
        self._task = self._progress.add_task("", total=None, rate="")
        self._head, self._unit, self._where, self._in_words = "", "", Where(), ""
        self._batch, self._steps, self._done, self._rows = 0, 0, 0, ListProgress()
        self._evaluations = 0
        self._common, self._probed = "", ""

    def expects(self, estimate: Estimate) -> None:
        self._left.expect(estimate.run_s)
        self._line(say_estimate(estimate), "cyan")

    def probing(self, request: Request) -> None:
        self._head, self._in_words = "probe", ""
        self._left.forget()
        self._reset(request.workload)

    def probed(self, probe: Probe) -> None:
        params = probe.spec.params
        chosen = "  ".join(f"{name} {params[name]}" for name in CHOSEN if name in params)
        said = f"{probe.spec.workload}  {chosen}"
        if guess := say_guess(params, probe.choices):
            said += f"  {guess}"
        if said != self._probed:  # arms that differ elsewhere are not worth a line each
            self._line(said, "bold cyan", whole=False)
        self._probed = said

    def experiment_begins(self, labels: Sequence[str], blocks: int) -> None:
        self._where.experiment_begins(labels, blocks)
        # Arms that begin alike are distinguished by what follows.
        pieces = zip(*(safe_line(label).split(",") for label in labels), strict=False)
        self._common = ",".join(same[0] for same in takewhile(lambda same: len(set(same)) == 1, pieces))
        if len(labels) > 1:
            # Block and arm take the room of the bar first, then that of the rate.
            longest = max(len(self._short(label)) for label in labels)
            taken = len(f"block {blocks} of {blocks} · ") + longest - len("run 10/10")
            self._progress.columns = tuple(_columns(self._console.width - ECHO_ROOM - taken, self._left))

    def _short(self, label: str) -> str:
        room = max(LABEL_AT_LEAST, self._console.width - ROOM_NEXT_TO_LABEL)
        said = safe_line(label)
        if len(said) > room and self._common:
            said = f"…{said.removeprefix(self._common).removeprefix(',')}"
        return said if len(said) <= room else f"{said[: room - 1]}…"

    def run_begins(
        self, run_id: str, number: int, of: int, spec: Spec, *, label: str = "", block: int | None = None
    ) -> None:
        self._unit = self._unit_of(spec.workload)
        self._in_words = self._where.say(label, block)
        self._head = f"run {number}/{of}"
        if self._in_words:
            which, _, _ = self._in_words.partition("  ")
            self._head = f"{which.replace('/', ' of ')} · {self._short(label)} ·"
        self._rows, self._evaluations = ListProgress(), 0
        batch = spec.params.get("batch")
        self._batch = batch if isinstance(batch, int) else 0
        self._left.run_begins(number, of, None if self._in_words and block is None else label)
        self._reset("starting")

    def run_was(self, row: RunRow, number: int, of: int, label: str) -> None:
        """Show a run that another process made."""
        self._in_words = self._where.say(label, row.block)
        self.run_ended(row, number, of)

    def follow(self, now: RunProgress, left_s: float | None, share: float | None) -> None:
        """Show how far a run of another process is."""
        self._left.told(left_s, share)
        done = f"{now.rows_done}/{now.rows_of} " if now.rows_of else ""
        self._reset(cut_middle(f"{done}{safe_line(now.said or now.phase)}", ROOM_NEXT_TO_PROBLEM))
        rate = f"{say_rate(now.rate_per_s)} {safe_line(now.rate_unit or '')}" if now.rate_per_s else ""
        self._progress.update(self._task, rate=rate)

    def _reset(self, what: str, total: int | None = None) -> None:
        self._done, self._steps = 0, total or 0
        gap = " " if self._in_words else "  "
        self._progress.update(self._task, description=f"{self._head}{gap}{safe_line(what)}", rate="")

    def event(self, event: Event) -> None:
        if isinstance(event, Phase) and event.state == "begin":
            self._phase(event)
        elif isinstance(event, Row):
            self._row(event)
        elif isinstance(event, Evaluation):
            self._evaluated(event)
        elif isinstance(event, Steps) and not self._rows.done and not self._evaluations:
            self._took(event)
        elif isinstance(event, Result | Failed):
            self._reset("ending")

    def _phase(self, event: Phase) -> None:
        name = PROBE_PHASES.get(event.phase, event.phase) if self._head == "probe" else event.phase
        measured = event.phase == "measure"
        if measured and event.expected_s is not None:
            self._left.run_needs(event.expected_s)
        self._reset(name, event.expected_steps if measured else None)
        self._rows = ListProgress()

    def _row(self, event: Row) -> None:
        self._left.run_needs(self._rows.take(event))
        row = event.row
        name = safe_line(say_problem(row.op, row.shape))
        if row.failure_kind:
            self._line(f"{self._head}  {event.done}/{event.of} {name}  failed: {row.failure_message}", "red")
        room = max(PROBLEM_AT_LEAST, self._console.width - len(self._head) - ROOM_NEXT_TO_PROBLEM)
        what = f"{self._head} {event.done}/{event.of} {cut_middle(name, room)}"
        self._progress.update(self._task, rate=say_row(row), description=what)

    def _evaluated(self, event: Evaluation) -> None:
        if event.rank == 0:
            self._evaluations = event.number
            room = max(PROBLEM_AT_LEAST, self._console.width - len(self._head) - ROOM_NEXT_TO_PROBLEM)
            said = cut_middle(safe_line(say_evaluation(event)), room)
            self._progress.update(self._task, rate="", description=f"{self._head}  {said}")

    def _took(self, event: Steps) -> None:
        self._done += len(event.step_s)
        seconds = sum(event.step_s)
        if not event.step_s or not seconds:
            return
        rate = f"{say_rate(self._batch * len(event.step_s) / seconds)} {self._unit}/s" if self._batch else ""
        self._progress.update(self._task, rate=rate)
        if self._steps:
            self._left.run_needs(max(0, self._steps - self._done) * seconds / len(event.step_s))

    def stderr(self, line: str) -> None: ...

    def run_ended(self, row: RunRow, number: int, of: int) -> None:
        self._left.run_ended()
        # Lines that wrap are hard to read as a table; `stackmark results` has the id of a good run.
        room = len(self._in_words) + ROOM_NEXT_TO_WHERE <= self._console.width
        said = say_run(row, number, of, self._in_words, with_id=room or not self._in_words or row.status != "done",
                       rows=self._rows)  # fmt: skip
        self._line(said, "" if row.status == "done" else "red")


@contextmanager
def watching(quiet: bool, verbosity: int = 0) -> Iterator[Watcher]:
    """Progress goes to standard error, so that standard output holds the result and nothing else.

    `quiet` is for `--json`: no lines of progress in a pipe. `verbosity` is -1 for warnings alone, 1 for the phases of runs too.
    """
    console = standard_error()
    if verbosity <= QUIET:
        yield Notices(sys.stderr)
    elif is_screen(console):
        with LiveBar(console, unit_of=lambda workload: find(workload)[1].samples) as bar:
            yield bar
    else:
        yield Notices(sys.stderr) if quiet else PlainLines(sys.stderr, phases=verbosity >= VERBOSE)
