"""Print the table of tf_cnn_benchmarks (workloads/train/classic.py) while a run goes on.

Each line is flushed, because the output of a command in a pod or in a job is a pipe that others read.
"""

from typing import TextIO

from stackmark.events import Event
from stackmark.workloads.train.classic import ClassicTable, TableOptions


class ClassicPrinter:
    """Prints one run: `start` when it begins, then `event` for each of its events."""

    def __init__(self, options: TableOptions, out: TextIO) -> None:
        self._table = ClassicTable(options)
        self._out = out

    def start(self, framework_version: str) -> None:
        for line in self._table.start(framework_version):
            self._print(line)

    def event(self, event: Event) -> None:
        for line in self._table.event(event):
            self._print(line)

    def _print(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()
