"""The standard output of tf_cnn_benchmarks, from a worker's events, as they come.

Every scraper that platforms wrote (Kubeflow's, kubebench's, DLBS', LISA's) keys on this text, so its shape is kept byte for
byte: the header up to `==========`, the warm-up lines, rows parted by tabs, two rules of 64 dashes around the total. Two
lines differ on purpose: the first names PyTorch, and one after `Model:` says which ResNet it is. Each line is flushed,
because the log of a pod is a pipe.

A row is printed when its loss has arrived, with the statistics of all steps up to it. A failed run prints no total, and
neither does one during which the hardware failed: a scraper must not take such a number for a result.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from stackmark.events import Event, Metric, Phase, Result, Steps
from stackmark.experiments.tf_cnn_mapping import ClassicOptions
from stackmark.spec import Spec
from stackmark.verdict.classic import ClassicStats, classic_line_stats, classic_row

RULE = "-" * 64
HEADER_END = "=========="
LABEL_WIDTH = 13
EVALUATION, FORWARD = "evaluation", "forward only"


@dataclass(frozen=True)
class Row:
    """A displayed step, counted from 1. `accuracies` are top-1 and top-5 where they are shown."""

    step: int
    stats: ClassicStats
    loss: float
    accuracies: tuple[float, float] | None


class Rows:
    """Collects measured steps and gives each row when all that stands in it is there."""

    def __init__(self, options: ClassicOptions, batch: int) -> None:
        self._options = options
        self._batch = batch
        self._step_s: list[float] = []
        self._losses: dict[int, float] = {}
        self._top_1: dict[int, float] = {}
        self._top_5: dict[int, float] = {}
        self._due = 1

    def add(self, event: Steps) -> Iterator[Row]:
        self._step_s.extend(event.step_s)
        self._losses.update(event.losses)
        self._top_1.update(event.top_1)
        self._top_5.update(event.top_5)
        while self._due <= len(self._step_s) and self._has_all(self._due - 1):
            yield self._next()

    def rest(self) -> Iterator[Row]:
        """At the end of the run: rows of which something never came. It is printed as nan, and not made up."""
        while self._due <= len(self._step_s):
            yield self._next()

    def _has_all(self, index: int) -> bool:
        has_loss = self._options.mode == FORWARD or index in self._losses
        return has_loss and (not self._options.accuracy or (index in self._top_1 and index in self._top_5))

    def _next(self) -> Row:
        step, index = self._due, self._due - 1
        self._due = (step // self._options.display_every + 1) * self._options.display_every
        stats = classic_line_stats(self._step_s[:step], self._batch, self._options.display_perf_ewma)
        loss = 0.0 if self._options.mode == FORWARD else self._losses.get(index, math.nan)
        accuracies = (self._top_1.get(index, math.nan), self._top_5.get(index, math.nan))
        return Row(step, stats, loss, accuracies if self._options.accuracy else None)


class ClassicPrinter:
    """Prints one run. `start` when the spec is known, then `event` for each event of the run."""

    def __init__(self, options: ClassicOptions, out: TextIO) -> None:
        self._options = options
        self._out = out
        self._batch = options.batch
        self._rows = Rows(options, options.batch)
        self._eval_step_s: list[float] = []
        self._metrics: dict[str, float] = {}
        self._ahead = self._lines_before_rows()

    def start(self, spec: Spec, framework_version: str) -> None:
        """The header; then the original builds its graph."""
        batch = spec.params["batch"]
        assert isinstance(batch, int)
        self._batch = batch
        self._rows = Rows(self._options, batch)
        self._print(f"{'PyTorch:':<{LABEL_WIDTH}}{framework_version}")
        for label, value in self._options.header:
            self._print(f"{label + ':' if label else '':<{LABEL_WIDTH}}{value}")
        self._print(HEADER_END)
        self._up_to("model")

    def event(self, event: Event) -> None:
        if event.rank != 0:
            return
        match event:
            case Phase(phase="model", state="end"):
                self._up_to("graph")
            case Phase(phase="warm-up" | "measure", state="begin"):
                self._up_to(event.phase)
            case Steps(phase="measure"):
                self._up_to("measure")
                self._steps(event)
            case Metric():
                self._metrics[event.name] = event.value
            case Result():
                self._result(event)

    def _lines_before_rows(self) -> list[tuple[str, str]]:
        """What is printed before the first row, each line with the moment at which the original prints it."""
        if self._options.mode == EVALUATION:
            return [("model", "Generating evaluation model")]
        columns = ["Step", "Img/sec", self._options.loss_name]
        if self._options.accuracy:
            columns += ["top_1_accuracy", "top_5_accuracy"]
        lines = [
            ("model", "Generating training model"),
            ("graph", "Initializing graph"),
            ("warm-up", "Running warm up"),
        ]
        if self._options.trace_file:
            lines.append(("measure", f"Dumping trace to {self._options.trace_file}"))
        return [*lines, ("measure", "Done warm up"), ("measure", "\t".join(columns))]

    def _up_to(self, moment: str) -> None:
        """Prints what is to be said up to a moment, once, also where an earlier moment was not announced."""
        moments = [said_at for said_at, _ in self._ahead]
        if moment not in moments:
            return
        last = len(moments) - moments[::-1].index(moment)
        for _, line in self._ahead[:last]:
            self._print(line)
        del self._ahead[:last]

    def _steps(self, event: Steps) -> None:
        if self._options.mode == EVALUATION:
            self._evaluated(event)
            return
        for row in self._rows.add(event):
            self._row(row)

    def _row(self, row: Row) -> None:
        self._print(classic_row(row.step, row.stats, row.loss, row.accuracies))

    def _evaluated(self, event: Steps) -> None:
        """Evaluation shows the rate of each window of steps by itself."""
        every = self._options.display_every
        for seconds in event.step_s:
            self._eval_step_s.append(seconds)
            step = len(self._eval_step_s)
            if step % every == 0:
                self._print(f"{step}\t{self._batch * every / sum(self._eval_step_s[-every:]):.1f} examples/sec")

    def _result(self, result: Result) -> None:
        for row in self._rows.rest():
            self._row(row)
        if result.invalid:
            return
        if "top_1_accuracy" in self._metrics and "top_5_accuracy" in self._metrics:
            top_1, top_5 = self._metrics["top_1_accuracy"], self._metrics["top_5_accuracy"]
            examples = self._metrics.get("examples", result.steps * result.samples_per_step)
            self._print(f"Accuracy @ 1 = {top_1:.4f} Accuracy @ 5 = {top_5:.4f} [{examples:.0f} examples]")
        self._print(RULE)
        self._print(f"total images/sec: {result.steps * result.samples_per_step / result.wall_s:.2f}")
        self._print(RULE)

    def _print(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()
