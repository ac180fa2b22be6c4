"""Run tf_cnn_benchmarks command lines: its flags and output, with the same worker and the same ledger, in any place."""

from collections.abc import Mapping, Sequence
from typing import TextIO

from pydantic import JsonValue

from stackmark.api.ledgers import LedgerLike, Notice, clean, opened, silent
from stackmark.api.options import repeatable
from stackmark.errors import WorkerError
from stackmark.events import Event, Facts
from stackmark.experiments.arms import place_of
from stackmark.experiments.recorder import Silent
from stackmark.experiments.run import StartedRun, go_through, start
from stackmark.experiments.surroundings import look_around
from stackmark.experiments.tf_cnn_flags import asks_for_help as asks_for_help
from stackmark.experiments.tf_cnn_flags import help_text as help_text
from stackmark.experiments.tf_cnn_mapping import ClassicPlan, plan
from stackmark.ledger.store import Ledger
from stackmark.places.place import OffersGpus, OwnFiles, Place, PrintsTable
from stackmark.show.benchmark_log import BenchmarkLog
from stackmark.show.tf_cnn import ClassicPrinter
from stackmark.spec import Spec

# An option of places whose log people read. A classic run prints the classic table there, unless another one was typed.
LOG_FORMAT, TF_CNN = "log_format", "tf-cnn"
# All networks have the same parameters, by which a place is read.
ANY_NETWORK = "train/resnet50"


class _ClassicWatcher(Silent):
    """Hands the run's events to the classic printer and to the benchmark log; the probe's go to neither."""

    def __init__(self, out: TextIO, notice: Notice) -> None:
        self._out, self._notice = out, notice
        self._listeners: list[ClassicPrinter | BenchmarkLog] = []
        self._running = False
        self._framework = "unknown"

    def follow(self, planned: ClassicPlan) -> None:
        """Print the run of this plan."""
        self._listeners = [ClassicPrinter(planned.options, self._out)]
        if planned.options.benchmark_log_dir:
            self._listeners.append(BenchmarkLog(planned.options, planned.options.benchmark_log_dir))

    def notice(self, sentence: str) -> None:
        self._notice(sentence)

    def run_begins(
        self, run_id: str, number: int, of: int, spec: Spec, *, label: str = "", block: int | None = None
    ) -> None:
        self._running = True
        for listener in self._listeners:
            listener.start(self._framework)

    def event(self, event: Event) -> None:
        if isinstance(event, Facts) and event.subject == "software" and not self._running:
            # Of the place, whose framework need not be this machine's.
            self._framework = str(event.facts.get("torch") or "unknown")
        if self._running:
            for listener in self._listeners:
                listener.event(event)


def run_classic(
    flags: Sequence[str],
    out: TextIO,
    *,
    on: str = "host",
    place_options: Mapping[str, JsonValue] | None = None,
    ledger: LedgerLike = None,
    notice: Notice = silent,
    command: Sequence[str] = (),
) -> None:
    """Run what the flags of tf_cnn_benchmarks ask for in a place, and print to `out` what it would print.

    Where no GPU is visible it runs on the CPU, as the original does, and says so. `on` and `place_options` are those of `run`;
    `command` is the whole command line where it has more than the flags. A run that failed is stored, and raises a WorkerError.
    """
    place = _place(on, place_options or {})
    planned = _planned(flags, place)
    for sentence in planned.notices:
        notice(sentence)
    watcher = _ClassicWatcher(out, notice)
    typed = repeatable(command or ["tf-cnn", *flags])
    with opened(ledger, create=True) as book:
        clean(book, notice)
        started = _started(flags, planned, place, book, watcher, typed)
        measured = go_through(started, place, book, watcher, None)
    for row in measured.failed:
        raise WorkerError(row.failure_message or "the run failed", hint=row.failure_hint)


def _place(on: str, options: Mapping[str, JsonValue]) -> Place:
    place = place_of(on, ANY_NETWORK, options)
    if isinstance(place, PrintsTable) and LOG_FORMAT not in place.options():
        return place_of(on, ANY_NETWORK, {**options, LOG_FORMAT: TF_CNN})
    return place


def _planned(flags: Sequence[str], place: Place, *, on_cpu: bool = False) -> ClassicPlan:
    """Plan the run. Paths are the place's own in a pod with an image, and wherever a mount was asked for."""
    own_files = bool(place.options().get("mount")) or (isinstance(place, OwnFiles) and place.has_own_files())
    return plan(flags, on_cpu=on_cpu, own_files=own_files)


def _started(
    flags: Sequence[str], planned: ClassicPlan, place: Place, book: Ledger, watcher: _ClassicWatcher, command: str
) -> StartedRun:
    """Probe the place and store the run; on the CPU where no GPU is visible and none was named."""

    around = look_around(watcher.notice, [place.name])

    def begin(planned: ClassicPlan) -> StartedRun:
        watcher.follow(planned)
        if isinstance(place, PrintsTable):
            place.print_table(planned.options.to_dict())
        return start(planned.request, place, book, watcher, 1, command, around=around)

    why = "no GPU is available there"
    if not planned.falls_back or not isinstance(place, OffersGpus) or place.offers_gpus():
        try:
            return begin(planned)
        except WorkerError as error:
            if error.kind != "no_device" or not planned.falls_back:
                raise
            why = error.message
    on_cpu = _planned(flags, place, on_cpu=True)
    watcher.notice(f"{place.name}: {why}; running on the CPU, as with --device=cpu")
    return begin(on_cpu)
