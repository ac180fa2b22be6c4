"""`stackmark tf-cnn`: the classic command line, run by the same worker and stored in the same ledger."""

import sys

import click

from stackmark.api.options import repeatable
from stackmark.cli.saying import notice
from stackmark.errors import Exit, WorkerError
from stackmark.events import Event, Probe
from stackmark.experiments.cleaning import clean_up
from stackmark.experiments.recorder import Silent
from stackmark.experiments.run import measure
from stackmark.experiments.tf_cnn_flags import asks_for_help, help_text
from stackmark.experiments.tf_cnn_mapping import ClassicPlan, plan
from stackmark.ledger.store import Ledger
from stackmark.places.registry import find_place
from stackmark.show.benchmark_log import BenchmarkLog
from stackmark.show.tf_cnn import ClassicPrinter
from stackmark.spec import Spec


class ClassicWatcher(Silent):
    """Hands the run's events to the classic printer and to the benchmark log; the probe's are nobody's business."""

    def __init__(self, planned: ClassicPlan) -> None:
        self._listeners: list[ClassicPrinter | BenchmarkLog] = [ClassicPrinter(planned.options, sys.stdout)]
        if planned.options.benchmark_log_dir:
            self._listeners.append(BenchmarkLog(planned.options, planned.options.benchmark_log_dir))
        self._running = False
        self._framework = ""

    def probed(self, probe: Probe) -> None:
        from importlib.metadata import PackageNotFoundError, version

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


@click.command(
    "tf-cnn",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "allow_extra_args": True},
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def command(flags: tuple[str, ...]) -> int:
    """The classic tf_cnn_benchmarks command line, drop-in: its flags, its output."""
    if asks_for_help(flags):
        click.echo(help_text())
        return Exit.DONE
    planned = plan(flags)
    notice(*planned.notices)
    watcher = ClassicWatcher(planned)
    repeat = repeatable(["tf-cnn", *flags])
    # The classic has no flag for a ledger; the variable STACKMARK_LEDGER names it.
    with Ledger.open() as book:
        notice(*clean_up(book))
        measured = measure(
            planned.request, place=find_place("host"), ledger=book, runs=1, watcher=watcher, command=repeat
        )
    for row in measured.failed:
        raise WorkerError(row.failure_message or "the run failed", hint=row.failure_hint)
    return Exit.DONE
