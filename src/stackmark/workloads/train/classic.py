"""The table of tf_cnn_benchmarks, line by line, from a worker's events as they come.

Every scraper that platforms wrote (Kubeflow's, kubebench's, DLBS', LISA's) keys on this text, so its shape is kept byte for
byte: the header up to `==========`, the warm-up lines, rows parted by tabs, two rules of 64 dashes around the total. Two
lines differ on purpose: the first names PyTorch, and one after `Model:` says which ResNet it is.

A row is made when its loss has arrived, with the statistics of all steps up to it. A failed run has no total, and neither has
one during which the hardware failed: a scraper must not take such a number for a result.

The driver prints this table for `stackmark tf-cnn`, and a worker in a pod prints it into its log, so it is written once, here,
with the standard library alone. Its statistics are kept up to date step by step: a worker prints while it measures, and a row
of a long run must not cost more than one of a short run.
"""

import math
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from stackmark.events import Event, Metric, Phase, Result, Steps
from stackmark.spec import Scalar, Spec
from stackmark.workloads.train.zoo import MODELS, Model

RULE = "-" * 64
HEADER_END = "=========="
LABEL_WIDTH = 13
MODES = {"train": "training", "forward": "forward only", "eval": "evaluation"}
EVALUATION, FORWARD = MODES["eval"], MODES["forward"]
LOSS_NAME = "total_loss"
MAD_TO_SIGMA = 1.4826  # the digits that the program uses


@dataclass(frozen=True)
class DataSet:
    """One of the original's data sets. Sizes are the published ones, whatever a folder contains, as in the original."""

    name: str
    training_images: int
    validation_images: int
    classes: int  # the original has one class more than the data set, for "background"

    def images(self, mode: str) -> int:
        return self.validation_images if mode == "eval" else self.training_images


DATA_SETS = {
    "imagenet": DataSet("imagenet", 1_281_167, 50_000, 1001),
    "cifar10": DataSet("cifar10", 50_000, 10_000, 11),
}


# The statistics of a row
#
# People know the line `images/sec: 139.6 +/- 0.1 (jitter = 0.3)`, and scripts parse it; it is kept next to our own rate, with
# its formulas, not ours. What they mean, since the program does not say it (`get_perf_timing`): the rate is
# batch / mean(step time) over all steps since warm-up, cumulative at each row; "+/-" is the standard error of the mean of the
# per-step rates (ddof 0): it takes steps for independent and says nothing about the next run; jitter is 1.4826 times the
# median absolute deviation of the per-step rates, a robust standard deviation, which a few slow steps do not move.


class ClassicStats(NamedTuple):
    """Rate, uncertainty and jitter, in samples per second."""

    speed_mean: float
    uncertainty: float
    jitter: float


class RunningStats:
    """tf_cnn_benchmarks' rate, '+/-' and jitter of all steps since warm-up, kept up to date step by step.

    ewma is its --display_perf_ewma: the weight of the latest step in an exponentially weighted mean of step times. None and 0
    both mean the plain mean, as in the original.
    """

    def __init__(self, batch: int, ewma: float | None = None) -> None:
        if batch <= 0:
            raise ValueError(f"batch must be at least 1, got {batch}")
        if ewma is not None and not 0.0 <= ewma <= 1.0:
            raise ValueError(f"the weight of the latest step must be between 0 and 1, got {ewma}")
        self._batch = batch
        # What an earlier step weighs, of the weight that it had at the step before.
        self._keeps = 1.0 - (ewma or 0.0)
        self._seconds = self._weights = 0.0
        # Mean and sum of squared deviations of the per-step rates (Welford), and the rates in order.
        self._mean = self._squares = 0.0
        self._speeds: list[float] = []

    def add(self, step_s: float) -> None:
        self._seconds = self._keeps * self._seconds + step_s
        self._weights = self._keeps * self._weights + 1.0
        if step_s <= 0:
            return  # a clock that stood still: such a step has no rate of its own
        speed = self._batch / step_s
        insort(self._speeds, speed)
        difference = speed - self._mean
        self._mean += difference / len(self._speeds)
        self._squares += difference * (speed - self._mean)

    def stats(self) -> ClassicStats:
        count = len(self._speeds)
        if not count or self._seconds <= 0:
            return ClassicStats(math.nan, math.nan, math.nan)
        rate = self._batch * self._weights / self._seconds
        return ClassicStats(rate, math.sqrt(max(0.0, self._squares) / count / count), self._jitter())

    def _jitter(self) -> float:
        """The median absolute deviation. The k values next to the median stand next to each other in the ordered list."""
        ordered, count = self._speeds, len(self._speeds)
        middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
        nearest = (_kth_deviation(ordered, middle, (count + 1) // 2), _kth_deviation(ordered, middle, count // 2 + 1))
        return MAD_TO_SIGMA * sum(nearest) / 2


def _kth_deviation(ordered: Sequence[float], middle: float, k: int) -> float:
    low, high = 0, len(ordered) - k
    while low < high:
        at = (low + high) // 2
        if middle - ordered[at] > ordered[at + k] - middle:
            low = at + 1
        else:
            high = at
    return max(middle - ordered[low], ordered[low + k - 1] - middle)


def classic_line_stats(step_s: Sequence[float], batch: int, ewma: float | None = None) -> ClassicStats:
    """Compute tf_cnn_benchmarks' rate, '+/-' and jitter of these steps; raise ValueError for steps that have no rate."""
    running = RunningStats(batch, ewma)
    if not step_s:
        raise ValueError("there are no step times")
    for seconds in step_s:
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"a step of {seconds} s has no rate")
        running.add(seconds)
    return running.stats()


def classic_row(step: int, stats: ClassicStats, loss: float, accuracies: tuple[float, float] | None = None) -> str:
    """Format a row as tf_cnn_benchmarks prints it, without the line's end, with top-1 and top-5 accuracy where shown."""
    said = f"{stats.speed_mean:.1f} +/- {stats.uncertainty:.1f} (jitter = {stats.jitter:.1f})"
    columns = [str(step), f"images/sec: {said}", f"{loss:.3f}"]
    if accuracies is not None:
        columns += [f"{accuracy:.3f}" for accuracy in accuracies]
    return "\t".join(columns)


# The table


@dataclass(frozen=True)
class TableOptions:
    """What the table needs besides the events. It travels to a worker in a pod as JSON. `batch` is that of all devices."""

    mode: str
    batch: int
    header: tuple[tuple[str, str], ...]
    display_every: int
    display_perf_ewma: float | None
    loss_name: str
    accuracy: bool
    trace_file: str

    def to_dict(self) -> dict[str, Any]:
        """Return the options of the table, without those that a subclass adds."""
        return {name: asdict(self)[name] for name in TableOptions.__dataclass_fields__}


def read_table_options(found: dict[str, Any]) -> TableOptions:
    """Read `to_dict` back; raise ValueError, TypeError or KeyError for anything else."""
    ewma = found["display_perf_ewma"]
    return TableOptions(
        mode=str(found["mode"]),
        batch=int(found["batch"]),
        header=tuple((str(label), str(value)) for label, value in found["header"]),
        display_every=max(1, int(found["display_every"])),
        display_perf_ewma=None if ewma is None else float(ewma),
        loss_name=str(found["loss_name"]),
        accuracy=bool(found["accuracy"]),
        trace_file=str(found["trace_file"]),
    )


def table_options(spec: Spec) -> TableOptions | None:
    """Return the options for a run that no command line of tf_cnn_benchmarks asked for; None where it has no such network."""
    family, _, name = spec.workload.partition("/")
    model = MODELS.get(name) if family == "train" else None
    if model is None or model.dataset not in DATA_SETS:
        return None
    params, data = spec.params, DATA_SETS[model.dataset]
    mode, batch, steps = str(params["mode"]), _whole(params["batch"]), _whole(params["steps"])
    device = str(params["device"])
    kind, first = "cpu" if device == "cpu" else "gpu", int(device.partition(":")[2] or 0)
    header = header_lines(
        model,
        dataset=data.name if params["data"] not in ("device", "host") else f"{data.name} (synthetic)",
        mode=MODES[mode],
        batch=batch,
        steps=steps,
        epochs=steps * batch * spec.ranks / data.images(mode),
        devices=[f"/{kind}:{first + number}" for number in range(spec.ranks)],
        data_format=str(params["layout"]).upper(),
        optimizer=str(params["optimizer"]),
    )
    accuracy = mode == "forward" or bool(params["accuracy"])
    every = _whole(params["loss_every"]) or 1
    return TableOptions(
        MODES[mode], batch * spec.ranks, header, every, None, LOSS_NAME, accuracy, str(params["trace_file"])
    )


def header_lines(
    model: Model,
    *,
    dataset: str,
    mode: str,
    batch: int,
    steps: int,
    epochs: float,
    devices: Sequence[str],
    data_format: str,
    optimizer: str,
    single_session: bool = False,
) -> tuple[tuple[str, str], ...]:
    """Return the header as (label, value); a line without a label goes on with the one before. `batch` is each device's.

    The line after `Model:` is ours: the name does not say which ResNet it is. In ASCII, for logs of any locale. A run that
    goes by seconds has no number of batches to print.
    """
    lines = [("Model", model.classic_printed or model.name)]
    if model.dataset == "imagenet" and model.name.startswith("resnet"):
        lines.append(("", model.title.replace("×", "x")))
    lines += [
        ("Dataset", dataset),
        ("Mode", mode),
        ("SingleSess", str(single_session)),
        ("Batch size", f"{batch * len(devices)} global"),
        ("", f"{batch} per device"),
    ]
    if steps:
        lines += [("Num batches", str(steps)), ("Num epochs", f"{epochs:.2f}")]
    return (
        *lines,
        ("Devices", str(list(devices))),
        ("NUMA bind", "False"),
        ("Data format", data_format),
        ("Optimizer", optimizer),
    )


def _whole(value: Scalar) -> int:
    assert isinstance(value, int)
    return value


@dataclass(frozen=True)
class Row:
    """A displayed step, counted from 1. `accuracies` are top-1 and top-5 where they are shown."""

    step: int
    stats: ClassicStats
    loss: float
    accuracies: tuple[float, float] | None


class Rows:
    """Collects measured steps and gives each row when all that stands in it is there."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._running = RunningStats(options.batch, options.display_perf_ewma)
        # Steps that have come and are in no row yet.
        self._waiting: list[float] = []
        self._counted = 0
        self._losses: dict[int, float] = {}
        self._top_1: dict[int, float] = {}
        self._top_5: dict[int, float] = {}
        self._due = 1

    def add(self, event: Steps) -> Iterator[Row]:
        self._waiting.extend(event.step_s)
        self._losses.update(event.losses)
        self._top_1.update(event.top_1)
        self._top_5.update(event.top_5)
        while self._due <= self._counted + len(self._waiting) and self._has_all(self._due - 1):
            yield self._next()

    def rest(self) -> Iterator[Row]:
        """At the end of the run: rows of which something never came. It is printed as nan, and not made up."""
        while self._due <= self._counted + len(self._waiting):
            yield self._next()

    def _has_all(self, index: int) -> bool:
        has_loss = self._options.mode == FORWARD or index in self._losses
        return has_loss and (not self._options.accuracy or (index in self._top_1 and index in self._top_5))

    def _next(self) -> Row:
        step, index = self._due, self._due - 1
        self._due = (step // self._options.display_every + 1) * self._options.display_every
        new = step - self._counted
        for seconds in self._waiting[:new]:
            self._running.add(seconds)
        del self._waiting[:new]
        self._counted = step
        loss = self._losses.pop(index, math.nan)
        accuracies = (self._top_1.pop(index, math.nan), self._top_5.pop(index, math.nan))
        shown = 0.0 if self._options.mode == FORWARD else loss
        return Row(step, self._running.stats(), shown, accuracies if self._options.accuracy else None)


class ClassicTable:
    """The lines of one run: `start` when the run begins, then `event` for each of its events."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._rows = Rows(options)
        self._eval_steps = 0
        self._eval_window: list[float] = []
        self._metrics: dict[str, float] = {}
        self._ahead = self._lines_before_rows()

    def start(self, framework_version: str) -> Iterator[str]:
        """Return the header; then the original builds its graph."""
        yield f"{'PyTorch:':<{LABEL_WIDTH}}{framework_version}"
        for label, value in self._options.header:
            yield f"{label + ':' if label else '':<{LABEL_WIDTH}}{value}"
        yield HEADER_END
        yield from self._up_to("model")

    def event(self, event: Event) -> Iterator[str]:
        if event.rank != 0:
            return
        if isinstance(event, Phase):
            yield from self._phase(event)
        elif isinstance(event, Steps) and event.phase == "measure":
            yield from self._up_to("measure")
            yield from self._steps(event)
        elif isinstance(event, Metric):
            self._metrics[event.name] = event.value
        elif isinstance(event, Result):
            yield from self._result(event)

    def _phase(self, event: Phase) -> Iterator[str]:
        if (event.phase, event.state) == ("model", "end"):
            yield from self._up_to("graph")
        elif event.phase in ("warm-up", "measure") and event.state == "begin":
            yield from self._up_to(event.phase)

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

    def _up_to(self, moment: str) -> Iterator[str]:
        """What is to be said up to a moment, once, also where an earlier moment was not announced."""
        moments = [said_at for said_at, _ in self._ahead]
        if moment not in moments:
            return
        last = len(moments) - moments[::-1].index(moment)
        said = [line for _, line in self._ahead[:last]]
        del self._ahead[:last]
        yield from said

    def _steps(self, event: Steps) -> Iterator[str]:
        if self._options.mode == EVALUATION:
            yield from self._evaluated(event)
            return
        for row in self._rows.add(event):
            yield _say_row(row)

    def _evaluated(self, event: Steps) -> Iterator[str]:
        """Evaluation shows the rate of each window of steps by itself."""
        every = self._options.display_every
        for seconds in event.step_s:
            self._eval_steps += 1
            self._eval_window.append(seconds)
            if self._eval_steps % every == 0:
                total_s, self._eval_window = sum(self._eval_window), []
                rate = self._options.batch * every / total_s if total_s > 0 else math.nan
                yield f"{self._eval_steps}\t{rate:.1f} examples/sec"

    def _result(self, result: Result) -> Iterator[str]:
        if self._options.mode != EVALUATION:
            for row in self._rows.rest():
                yield _say_row(row)
        if result.invalid:
            return
        if "top_1_accuracy" in self._metrics and "top_5_accuracy" in self._metrics:
            top_1, top_5 = self._metrics["top_1_accuracy"], self._metrics["top_5_accuracy"]
            examples = self._metrics.get("examples", result.steps * result.samples_per_step)
            yield f"Accuracy @ 1 = {top_1:.4f} Accuracy @ 5 = {top_5:.4f} [{examples:.0f} examples]"
        yield RULE
        yield f"total images/sec: {result.steps * result.samples_per_step / result.wall_s:.2f}"
        yield RULE


def _say_row(row: Row) -> str:
    return classic_row(row.step, row.stats, row.loss, row.accuracies)
