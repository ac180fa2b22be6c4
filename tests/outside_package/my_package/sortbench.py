"""Logs of a program that prints `sortbench: 1000000 numbers in 0.071 s`, a line for each run."""

import re

from stackmark.events import Figure
from stackmark.ledger.importers import Format
from stackmark.ledger.importers.found import BadNumber, Failure, Found, Line, cut_line, number, whole_number

RESULT = re.compile(r"^sortbench: (\S+) numbers in (\S+) s$")


class SortbenchImporter:
    def feed(self, line: Line) -> list[Found]:
        match = RESULT.search(line.text)
        return [self._read(match[1], match[2], line)] if match else []

    def end(self) -> list[Found]:
        return []  # nothing is open: each line is a result by itself

    def _read(self, size: str, seconds: str, line: Line) -> Found:
        lines = (cut_line(line),)
        try:
            numbers, wall_s = whole_number(size, line, "the size"), number(seconds, line, "the time")
        except BadNumber as error:
            return Found("sort/quick", {}, "sortbench", failure=Failure(error.kind, str(error)), lines=lines)
        rate = Figure(name="rate", value=numbers / wall_s, unit="numbers/s")
        return Found(
            "sort/quick", {"size": numbers}, "sortbench", rate, sample="number", wall_s=wall_s, lines=lines
        )  # fmt: skip


SORTBENCH = Format("sortbench", "sortbench (sortbench: … numbers in … s)", RESULT, SortbenchImporter)
