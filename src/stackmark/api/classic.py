"""The classic tf_cnn_benchmarks: its flags, run by the same worker and stored in the same ledger, printed in its words."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TextIO

from stackmark.api.ledgers import LedgerLike, Notice, clean, opened, silent
from stackmark.api.options import repeatable
from stackmark.errors import WorkerError
from stackmark.events import Event, Probe
from stackmark.experiments.recorder import Silent
from stackmark.experiments.run import measure
from stackmark.experiments.tf_cnn_flags import asks_for_help as asks_for_help
from stackmark.experiments.tf_cnn_flags import help_text as help_text
from stackmark.experiments.tf_cnn_mapping import ClassicPlan, plan
from stackmark.places.registry import find_place
from stackmark.show.benchmark_log import BenchmarkLog
from stackmark.show.tf_cnn import ClassicPrinter
from stackmark.spec import Spec


class _ClassicWatcher(Silent):
    """Hands the run's events to the classic printer and to the benchmark log; the probe's go to neither."""

    def __init__(self, planned: ClassicPlan, out: TextIO) -> None:
        self._listeners: list[ClassicPrinter | BenchmarkLog] = [ClassicPrinter(planned.options, out)]
        if planned.options.benchmark_log_dir:
            self._listeners.append(BenchmarkLog(planned.options, planned.options.benchmark_log_dir))
        self._running = False
        self._framework = ""

    def probed(self, probe: Probe) -> None:
        try:
            self._framework = version("torch")
        except PackageNotFoundError:
            self._framework = "unknown"

    def run_begins(
        self, run_id: str, number: int, of: int, spec: Spec, *, label: str = "", block: int | None = None
    ) -> None:
        self._running = True
        for listener in self._listeners:
            listener.start(spec, self._framework)

    def event(self, event: Event) -> None:
        if self._running:
            for listener in self._listeners:
                listener.event(event)


def run_classic(flags: Sequence[str], out: TextIO, *, ledger: LedgerLike = None, notice: Notice = silent) -> None:
    """Run what the flags of tf_cnn_benchmarks ask for, and print to `out` what it would print.

    A run that failed is stored, and raises a WorkerError.
    """
    planned = plan(flags)
    for sentence in planned.notices:
        notice(sentence)
    watcher = _ClassicWatcher(planned, out)
    command = repeatable(["tf-cnn", *flags])
    with opened(ledger, create=True) as book:
        clean(book, notice)
        measured = measure(
            planned.request, place=find_place("host"), ledger=book, runs=1, watcher=watcher, command=command
        )
    for row in measured.failed:
        raise WorkerError(row.failure_message or "the run failed", hint=row.failure_hint)
