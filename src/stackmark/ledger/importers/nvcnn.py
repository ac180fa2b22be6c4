"""Import logs of NVIDIA's nvcnn.py: a header, one row per step, and `Images/sec: X +/- Y (jitter = Z)`.

Its figure is the mean of the steps' rates, not the images over the time: the noisier the steps, the more it says above
what was done (tf_cnn_benchmarks would have printed less for the same run). So the two programs' figures are not put
next to each other without a word: the flag says it.
"""

import re

from stackmark.events import Figure
from stackmark.ledger.importers.found import (
    MOST_ROWS,
    BadNumber,
    Failure,
    Found,
    Line,
    LoggedNumber,
    name_of,
    number,
    whole_number,
)
from stackmark.ledger.importers.tf_cnn import CnnLogImporter
from stackmark.spec import Scalar

FORMAT = "nvcnn"
TITLE = "nvcnn.py"
MARK = re.compile(r"Images/sec: \S+ \+/- |Step\s+Epoch\s+Img/sec\s+Loss\s+LR|This script:\s+nvcnn")

_HEADER = re.compile(
    r"(?:^|\s)(TensorFlow|This script|Num images|Model|Batch size|Devices|Data format|Data type):\s+(\S.*)$"
)
_PER_DEVICE = re.compile(r"(?:^|\s)([0-9.]+) per device\s*$")
_ROW = re.compile(r"(?:^|\s)([0-9]+)\s+([0-9]+)\s+(\S+)\s+(\S+)\s+(\S+)\s*$")
_TABLE = re.compile(r"Step\s+Epoch\s+Img/sec\s+Loss\s+LR")
_TOTAL = re.compile(r"Images/sec: (\S+) \+/- (\S+) \(jitter = ([^)\s]+)\)")
_TROUBLE = {
    "Out of memory error detected": ("out_of_device_memory", "the GPU ran out of memory"),
    "No results, did not get past burn-in phase": ("too_short", "the run ended before its burn-in phase"),
}
# The mean of the steps' rates lies above the images over the time.
_FLAG = "mean-of-rates: nvcnn.py averages the rates of its steps, which is higher than images divided by time"


class NvcnnImporter(CnnLogImporter):
    def _forget(self) -> None:
        super()._forget()
        self._in_table = False
        self._trouble: Failure | None = None

    def feed(self, line: Line) -> list[Found]:
        found: list[Found] = []
        header = _HEADER.search(line.text)
        if header and header[1] == "TensorFlow" and self._begun:
            found += self.end()
        self._kept.add(line)
        self._gpus.feed(line)
        for words, (kind, message) in _TROUBLE.items():
            if words in line.text:
                self._trouble = Failure(kind, f"line {line.number}: {message}")
        total = _TOTAL.search(line.text)
        try:
            if total:
                found.append(self._whole(total, line))
            elif header:
                self._said[header[1]] = header[2]
            elif match := _PER_DEVICE.search(line.text):
                self._per_device = whole_number(match[1], line, "the batch per device")
            elif _TABLE.search(line.text):
                self._in_table = True
            elif self._in_table and (match := _ROW.search(line.text)):
                self._rows[MOST_ROWS:] = [_row(match, line)]
        except BadNumber as error:
            self._bad = self._bad or error
            if total:
                found.append(self._failed(error))
        return found

    def _cut_off(self, message: str) -> Failure:
        return self._trouble or Failure("cut_off", f"{message} its `Images/sec:` line", "was the program stopped?")

    @property
    def _begun(self) -> bool:
        return bool(self._in_table or self._bad or self._trouble or "This script" in self._said)

    def _whole(self, total: re.Match[str], line: Line) -> Found:
        if self._bad:
            return self._failed(self._bad)
        rate = number(total[1], line, "Images/sec")
        spread = (
            # Of one or two steps it prints nan, which is no fault of theirs.
            LoggedNumber("plus_minus", 0.0 if total[2] == "nan" else number(total[2], line, "the +/-", zero=True),
                 "images/s", False),
            LoggedNumber("jitter", number(total[3], line, "the jitter", zero=True), "images/s", False),
        )  # fmt: skip
        return self._found(figure=Figure(name="Images/sec", value=rate, unit="images/s"), said=spread)

    def _found(
        self, figure: Figure | None = None, failure: Failure | None = None, said: tuple[LoggedNumber, ...] = ()
    ) -> Found:
        header, devices = self._said, self._devices
        batch = (self._per_device or 0) * max(len(devices), 1)
        found = Found(
            workload=name_of("train", header["Model"]) if "Model" in header else None,
            params=_params(header, self._per_device, devices),
            program=FORMAT,
            figure=figure,
            failure=failure,
            ranks=max(len(devices), 1),
            chip=self._chip,
            framework=self._framework,
            sample="image",
            step_s=self._steps(batch) if figure else (),
            samples_per_step=max(batch, 1),
            rows=tuple(self._rows),
            said=said,
            flags=(_FLAG,),
            lines=self._kept.taken(),
        )
        self._forget()
        return found

    def _steps(self, batch: int) -> tuple[float, ...]:
        """A row's rate is that of its own step, so where every step has a row, their times are known."""
        steps = [row["step"] for row in self._rows]
        every = len(steps) > 1 and steps == [steps[0] + i for i in range(len(steps))]
        return tuple(batch / row["images_per_s"] for row in self._rows) if batch and every else ()


def _row(match: re.Match[str], line: Line) -> dict[str, float]:
    return {
        "step": number(match[1], line, "the step"),
        "epoch": number(match[2], line, "the epoch", zero=True),
        "images_per_s": number(match[3], line, "Img/sec"),
        "loss": number(match[4], line, "the loss", zero=True),
        "learning_rate": number(match[5], line, "the learning rate", zero=True),
    }


def _params(header: dict[str, str], per_device: int | None, devices: list[str]) -> dict[str, Scalar]:
    params: dict[str, Scalar] = {"mode": "train"}
    if per_device is not None:
        params["batch"] = per_device
    if devices:
        params["device"] = "cpu" if devices[0] == "cpu" else "cuda"
    if "Num images" in header:
        params["data"] = "device" if header["Num images"].startswith("Synthetic") else "real"
    if "Data format" in header:
        params["layout"] = header["Data format"].lower()
    if "Data type" in header:
        params["precision"] = header["Data type"]
    return params
