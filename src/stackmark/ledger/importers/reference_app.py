"""Import lines of MLPerf Inference's reference application (main.py): one line per scenario, with rate and percentiles.

    TestScenario.SingleStream qps=163.51, mean=0.0061, time=60.040, queries=9817, tiles=50.0:0.0059,…,90.0:0.0066,…

The line has no validity: that is LoadGen's to say. Nor does it say which model was run: that is in its own line before the name
of the scenario, or in lines before it (serving_names.py). So each line is a workload of its own.
"""

import re

from stackmark.events import Figure
from stackmark.ledger.importers.found import BadNumber, Failure, Found, Line, LoggedNumber, ResultLines, number
from stackmark.ledger.importers.serving_names import ServedModel, model_in_front, served
from stackmark.ledger.importers.tensorflow_devices import TensorFlowDevices
from stackmark.spec import Scalar

FORMAT = "mlperf-app"
TITLE = "MLPerf Inference's reference application (TestScenario… qps=…)"
MARK = re.compile(r"TestScenario\.\w+ qps=")

_RESULT = re.compile(r"^(.{0,300}?)TestScenario\.(\w+) (qps=.*)$")
_BEGINS = re.compile(r"starting TestScenario\.(\w+)")
_FIELD = re.compile(r"(qps|mean|time|queries|acc|mAP)=([^,\s%]+)")
# It prints seven percentiles.
_MOST_TILES = 100
_TILES = re.compile(r"tiles=(\S+)")
# What it prints of an accuracy run, in percent.
_QUALITIES = {"acc": "accuracy", "mAP": "mean_average_precision"}


class ReferenceAppImporter:
    def __init__(self) -> None:
        self._kept = ResultLines()
        self._open = ""
        self._model = ServedModel()
        self._gpus = TensorFlowDevices()

    def feed(self, line: Line) -> list[Found]:
        self._gpus.feed(line)
        self._model.feed(line.text)
        if match := _BEGINS.search(line.text):
            ended = self.end()
            self._open = match[1]
            self._kept.add(line)
            return ended
        self._kept.add(line)
        if match := _RESULT.search(line.text):
            self._open = ""
            return [self._read(match[1], match[2], match[3], line)]
        return []

    def end(self) -> list[Found]:
        lines, scenario, self._open = self._kept.taken(), self._open, ""
        if not scenario:
            return []
        failure = Failure("cut_off", f"{scenario} was started but has no result", "was the program stopped?")
        return [Found(self._model.workload, {"scenario": scenario}, FORMAT, failure=failure, lines=lines)]

    def _read(self, in_front: str, scenario: str, text: str, line: Line) -> Found:
        failure, figure, wall_s = None, None, None
        said: list[LoggedNumber] = []
        try:
            fields = {name: number(value, line, name, zero=name in _QUALITIES) for name, value in _FIELD.findall(text)}
            said = _latencies(text, line)
            if "qps" not in fields:
                raise BadNumber(f"line {line.number}: qps has no value; was the log cut off there?", "cut_off")
            figure = Figure(name="qps", value=fields["qps"], unit="queries/s")
            wall_s = fields.get("time")
            if "mean" in fields:
                said.append(LoggedNumber("latency_mean", 1e3 * fields["mean"], "ms", False))
            said += [LoggedNumber(name, fields[key], "%", True) for key, name in _QUALITIES.items() if key in fields]
        except BadNumber as error:
            failure = Failure(error.kind, str(error))
        own = model_in_front(in_front)
        params: dict[str, Scalar] = {"scenario": scenario}
        if self._model.max_batch and not own:
            params["max_batch"] = self._model.max_batch
        return Found(
            workload=served(own) if own else self._model.workload,
            params=params,
            program=FORMAT,
            figure=figure,
            failure=failure,
            chip=self._gpus.chip(),
            framework=None if own else self._model.backend,
            sample="query",
            wall_s=wall_s,
            said=tuple(said),
            lines=self._kept.taken(),
        )


def _latencies(text: str, line: Line) -> list[LoggedNumber]:
    """The percentiles, which are in seconds."""
    tiles = _TILES.search(text)
    said = []
    for part in tiles[1].split(",")[:_MOST_TILES] if tiles else []:
        percentile, colon, value = part.partition(":")
        if colon and re.fullmatch(r"[0-9]{1,2}(\.[0-9]+)?", percentile):
            ms = 1e3 * number(value, line, f"the {percentile}th percentile")
            said.append(LoggedNumber(f"latency_p{float(percentile):g}", ms, "ms", False))
    return said
