"""Import logs of tf_cnn_benchmarks: a header, rows of cumulative rates, and `total images/sec`.

The figure is the total: the images of the measured loop over its wall clock. The rows are kept as they are and no step
times are made of them: each is the mean since the warm-up, rounded to a tenth, so the difference of two neighbours is mostly
rounding. The header does not name the precision; whoever knows it adds it. The chip is in TensorFlow's own lines, where the log
has them (standard error).
"""

import re
from abc import ABC, abstractmethod

from stackmark.events import Figure
from stackmark.ledger.importers.found import (
    MOST_ROWS,
    BadNumber,
    Failure,
    Found,
    Line,
    ResultLines,
    name_of,
    number,
    whole_number,
)
from stackmark.ledger.importers.tensorflow_devices import TensorFlowDevices
from stackmark.spec import Scalar

FORMAT = "tf-cnn"
TITLE = "tf_cnn_benchmarks"
# A line that only this program prints.
MARK = re.compile(
    r"total images/sec: |(?<![\w.])[0-9]+\s+images/sec: \S+ \+/- |Step\s+Img/sec\s+total_loss|^Variables:\s+\w+$|^SingleSess:"
)

_HEADER = re.compile(
    r"(?:^|\s)(TensorFlow|Model|Dataset|Mode|Batch size|Num batches|Devices|Data format|Optimizer|Variables|AllReduce|Horovod on)"
    r":\s+(\S.*)$"
)
_PER_DEVICE = re.compile(r"(?:^|\s)([0-9.]+) per device\s*$")
_ROW = re.compile(
    r"(?<![\w.])([0-9]+)\s+images/sec: (\S+) \+/- (\S+) \(jitter = ([^)\s]+)\)(?:\s+(\S+))?(?:\s+(\S+)\s+(\S+))?\s*$"
)
_TOTAL = re.compile(r"total images/sec:\s*(\S+)\s*$")
_MODES = {"training": "train", "forward only": "forward", "evaluation": "eval", "training + evaluation": "train"}
# What the program calls a network otherwise than we do, by data set.
_NAMES = {
    "lenet5": "lenet",
    "alexnet cifar10": "alexnet_cifar10",
    "trivial cifar10": "trivial_cifar10",
}


class CnnLogImporter(ABC):
    """The common part of tf_cnn_benchmarks' and nvcnn.py's logs: a header, rows, and a total at the end."""

    def __init__(self) -> None:
        self._kept = ResultLines()
        self._forget()

    def _forget(self) -> None:
        self._said: dict[str, str] = {}
        self._per_device: int | None = None
        self._rows: list[dict[str, float]] = []
        self._bad: BadNumber | None = None
        self._gpus = TensorFlowDevices()

    @abstractmethod
    def feed(self, line: Line) -> list[Found]:
        """Take a line, and return what it ends."""

    def end(self) -> list[Found]:
        """Return a run that was begun and has no total as one that failed."""
        if not self._begun:
            return []
        if self._bad:
            return [self._failed(self._bad)]
        after = f"after step {self._rows[-1]['step']:.0f}" if self._rows else "before its first row"
        return [self._found(failure=self._cut_off(f"the log ends {after}, without"))]

    @property
    @abstractmethod
    def _begun(self) -> bool:
        """Whether lines of a run were seen."""

    @abstractmethod
    def _cut_off(self, message: str) -> Failure:
        """Say what the log lacks; `message` is the beginning."""

    @abstractmethod
    def _found(self, figure: Figure | None = None, failure: Failure | None = None) -> Found:
        """Make the result, and forget it."""

    def _failed(self, error: BadNumber) -> Found:
        return self._found(failure=Failure(error.kind, str(error), "a run with such a number is not a result"))

    @property
    def _devices(self) -> list[str]:
        """`gpu` or `cpu` for each device that the header names."""
        return re.findall(r"(gpu|cpu):[0-9]+", self._said.get("Devices", ""))

    @property
    def _chip(self) -> str | None:
        """The GPUs that the header names, as TensorFlow calls them; None where it ran on a CPU or the log does not say."""
        header = self._said.get("Devices", "")
        return (
            None
            if "cpu" in self._devices
            else self._gpus.chip([int(one) for one in re.findall(r"gpu:([0-9]{1,4})", header)])
        )

    @property
    def _framework(self) -> str | None:
        version = self._said.get("TensorFlow")
        return f"TensorFlow {version}" if version else None


class TfCnnImporter(CnnLogImporter):
    def feed(self, line: Line) -> list[Found]:
        found: list[Found] = []
        header = _HEADER.search(line.text)
        if header and header[1] == "TensorFlow" and self._begun:
            found += self.end()  # the next run in the same file; this one never came to its total
        self._kept.add(line)
        self._gpus.feed(line)
        try:
            if header:
                self._said[header[1]] = header[2]
            elif match := _PER_DEVICE.search(line.text):
                self._per_device = whole_number(match[1], line, "the batch per device")
            elif match := _ROW.search(line.text):
                self._rows[MOST_ROWS:] = [_row(match, line)]
            elif match := _TOTAL.search(line.text):
                found.append(self._whole(number(match[1], line, "total images/sec")))
        except BadNumber as error:
            self._bad = self._bad or error
            if _TOTAL.search(line.text):
                found.append(self._failed(error))
        return found

    def _cut_off(self, message: str) -> Failure:
        hint = "the program was stopped, or the log is incomplete; with evaluation during training it prints no total"
        return Failure("cut_off", f"{message} `total images/sec`", hint)

    @property
    def _begun(self) -> bool:
        # A model's name alone may be anybody's line: it takes a row, or the rest of the header.
        return bool(self._rows or self._bad or {"Model", "Batch size"} <= set(self._said))

    def _whole(self, total: float) -> Found:
        if self._bad:
            return self._failed(self._bad)
        return self._found(figure=Figure(name="total images/sec", value=total, unit="images/s"))

    def _found(self, figure: Figure | None = None, failure: Failure | None = None) -> Found:
        said, devices, steps = self._said, self._devices, self._steps()
        images = (self._per_device or 0) * max(len(devices), 1) * (steps or 0)
        found = Found(
            workload=_workload(said.get("Model"), said.get("Dataset", "")),
            params=_params(said, self._per_device, devices, steps),
            program=FORMAT,
            figure=figure,
            failure=failure,
            ranks=max(len(devices), 1),
            chip=self._chip,
            framework=self._framework,
            sample="image",
            wall_s=images / figure.value if figure and images else None,
            rows=tuple(self._rows),
            flags=_flags(said),
            lines=self._kept.taken(),
        )
        self._forget()
        return found

    def _steps(self) -> int | None:
        said = re.fullmatch(r"[1-9][0-9]{0,8}", self._said.get("Num batches", ""))
        return int(said[0]) if said else None


def _row(match: re.Match[str], line: Line) -> dict[str, float]:
    row = {"step": number(match[1], line, "the step"), "images_per_s": number(match[2], line, "images/sec")}
    row["plus_minus"] = number(match[3], line, "the +/-", zero=True)
    row["jitter"] = number(match[4], line, "the jitter", zero=True)
    for name, text in (("loss", match[5]), ("top_1", match[6]), ("top_5", match[7])):
        if text is not None:
            row[name] = number(text, line, f"the {name.replace('_', '-')}", zero=True)
    return row


def _workload(model: str | None, dataset: str) -> str | None:
    if model is None:
        return None
    data = dataset.partition(" ")[0]
    return name_of("train", _NAMES.get(f"{model} {data}", _NAMES.get(model, model)))


def _params(said: dict[str, str], per_device: int | None, devices: list[str], steps: int | None) -> dict[str, Scalar]:
    """In our own names where the thing is the same."""
    params: dict[str, Scalar] = {}
    if per_device is not None:
        params["batch"] = per_device
    if devices:
        params["device"] = "cpu" if devices[0] == "cpu" else "cuda"
    if steps:
        params["steps"] = steps
    if "Mode" in said:
        params["mode"] = _MODES.get(said["Mode"], said["Mode"])
    if "Dataset" in said:
        name, _, kind = said["Dataset"].partition(" ")
        # Its synthetic images are made once, on the device.
        params["data"] = "device" if "synthetic" in kind else name
    if "Data format" in said:
        params["layout"] = said["Data format"].lower()
    if "Optimizer" in said:
        params["optimizer"] = said["Optimizer"]
    if "Variables" in said:
        params["variable_update"] = said["Variables"]
    if "AllReduce" in said:
        params["all_reduce_spec"] = said["AllReduce"]
    return params


def _flags(said: dict[str, str]) -> tuple[str, ...]:
    if "Horovod on" in said or "horovod" in said.get("Devices", ""):
        return ("every-rank-speaks: under Horovod each rank prints the total of all; import the log of one rank only",)
    return ()
