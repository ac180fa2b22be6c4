"""Lines of MLPerf Inference's reference application (main.py): one line a scenario, with its rate and its percentiles.

    TestScenario.SingleStream qps=163.51, mean=0.0061, time=60.040, queries=9817, tiles=50.0:0.0059,…,90.0:0.0066,…

The line has no validity: that is LoadGen's to say. Nor does it say which model was run, or on what.
"""

import re

from stackmark.events import Figure
from stackmark.ledger.importers.found import BadNumber, Failure, Found, Line, LoggedNumber, ResultLines, number

FORMAT = "mlperf-app"
TITLE = "MLPerf Inference's reference application (TestScenario… qps=…)"
MARK = re.compile(r"TestScenario\.\w+ qps=")

_RESULT = re.compile(r"TestScenario\.(\w+) (qps=.*)$")
_BEGINS = re.compile(r"starting TestScenario\.(\w+)")
_FIELD = re.compile(r"(qps|mean|time|queries|acc|mAP)=([^,\s%]+)")
# It prints seven percentiles.
_MOST_TILES = 100
_TILES = re.compile(r"tiles=(\S+)")


class ReferenceAppImporter:
    def __init__(self) -> None:
        self._kept = ResultLines()
        self._open = ""

    def feed(self, line: Line) -> list[Found]:
        if match := _BEGINS.search(line.text):
            ended = self.end()
            self._open = match[1]
            self._kept.add(line)
            return ended
        self._kept.add(line)
        if match := _RESULT.search(line.text):
            self._open = ""
            return [self._read(match[1], match[2], line)]
        return []

    def end(self) -> list[Found]:
        lines, scenario, self._open = self._kept.taken(), self._open, ""
        if not scenario:
            return []
        failure = Failure("cut_off", f"{scenario} was started and has no result", "was the program ended?")
        return [Found(None, {"scenario": scenario}, FORMAT, failure=failure, lines=lines)]

    def _read(self, scenario: str, text: str, line: Line) -> Found:
        failure, figure, wall_s = None, None, None
        said: list[LoggedNumber] = []
        try:
            fields = {name: number(value, line, name) for name, value in _FIELD.findall(text)}
            said = _latencies(text, line)
            if "qps" not in fields:
                raise BadNumber(f"line {line.number}: qps has no value; was the log cut off there?", "cut_off")
            figure = Figure(name="qps", value=fields["qps"], unit="queries/s")
            wall_s = fields.get("time")
            if "mean" in fields:
                said.append(LoggedNumber("latency_mean", 1e3 * fields["mean"], "ms", False))
        except BadNumber as error:
            failure = Failure(error.kind, str(error))
        return Found(
            workload=None,
            params={"scenario": scenario},
            program=FORMAT,
            figure=figure,
            failure=failure,
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
