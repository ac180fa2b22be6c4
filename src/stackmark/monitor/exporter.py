"""What the exporter shows, put together: the ledger, the GPUs, and the exporter's own health.

A ledger that is missing, locked, damaged or of a newer stackmark is a metric (`stackmark_ledger_up 0`), and the process stays up.
The last results are shown for KEPT_S more, so that an alert does not resolve while somebody locks the file for a minute; then
they go, since nothing stands behind them.
"""

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import pushadd_to_gateway
from prometheus_client.registry import Collector

from stackmark.api.latest import BUDGET_S, HORIZON_S, Latest, LedgerWatch
from stackmark.errors import LedgerError, PlaceError, StackmarkError
from stackmark.monitor.fresh import Fresh, Reading
from stackmark.monitor.gpus import AGE_S as GPU_AGE_S
from stackmark.monitor.gpus import WAIT_S as GPU_WAIT_S
from stackmark.monitor.gpus import GpusReading, GpuWatch, gpu_metrics
from stackmark.monitor.results import ledger_metrics
from stackmark.show.writing import write_whole
from stackmark.version import version

# Prometheus gives up after 10 s: half of that, so that GPUs are scraped though the ledger is slow.
LEDGER_AGE_S, LEDGER_WAIT_S = 10.0, 5.0
KEPT_S = 300.0
# What nobody scrapes, but is written or pushed, may take this long for its verdicts.
PATIENCE_S = 120.0
PUSH_TIMEOUT_S = 10.0
JOB = "stackmark"
# Who reads the GPUs.
SOURCES = ("nvml", "dcgm", "none")
# Ends a text in OpenMetrics' format.
END = b"# EOF\n"
# One of prometheus_client's encoders of a format.
Encoder = Callable[[CollectorRegistry], bytes]


class Exporter(Collector):
    """All series of one machine and one ledger. Safe to collect from many threads at once."""

    def __init__(
        self,
        ledger: str | None = None,
        *,
        gpus: GpuWatch | None = None,
        source: str = "none",
        ledger_age_s: float = LEDGER_AGE_S,
        ledger_wait_s: float = LEDGER_WAIT_S,
        horizon_s: float = HORIZON_S,
        patient: bool = False,
    ) -> None:
        """`ledger` is a path or URL, empty for the default one, None for no ledger.

        `patient`: no scraper waits, so that each reading is complete.
        """
        self._held = ExitStack()
        self._version = version()
        self._source = source
        self._ledger: Fresh[Latest] | None = None
        if ledger is not None:
            watch = LedgerWatch(ledger, horizon_s, PATIENCE_S if patient else BUDGET_S)
            wait_s = 2 * PATIENCE_S if patient else ledger_wait_s
            self._ledger = Fresh("ledger", watch.read, (StackmarkError, OSError), ledger_age_s, wait_s)
        self._gpus: Fresh[GpusReading] | None = None
        if gpus is not None:
            entered = self._held.enter_context(gpus)
            self._gpus = Fresh("gpus", entered.read, (OSError,), GPU_AGE_S, GPU_WAIT_S)
        # The results of a ledger change every ten seconds at most, and to render thousands of series takes a tenth of a second:
        # the bytes of each format are kept with the reading that they show.
        self._rendering = Lock()
        self._rendered: dict[str, tuple[Latest, bytes]] = {}
        self._counting = Lock()
        self._scrapes = 0
        self._scrape_s = 0.0
        self.registry = _registry(self.collect)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def collect(self) -> Iterator[Metric]:
        began = time.monotonic()
        ledger = self._ledger.get() if self._ledger is not None else None
        if latest := _shown(ledger):
            yield from ledger_metrics(latest)
        yield from self._collect_others(ledger, began)

    def render(self, encode: Encoder, format_: str) -> bytes:
        """Return all series for a scrape, in a format by its name; those of the ledger are rendered once for each reading."""
        began = time.monotonic()
        ledger = self._ledger.get() if self._ledger is not None else None
        results = self._render_results(_shown(ledger), encode, format_)
        return results + encode(_registry(lambda: self._collect_others(ledger, began)))

    def _render_results(self, latest: Latest | None, encode: Encoder, format_: str) -> bytes:
        if latest is None:
            return b""
        with self._rendering:
            known = self._rendered.get(format_)
            if known is None or known[0] is not latest:
                known = latest, encode(_registry(lambda: ledger_metrics(latest))).removesuffix(END)
                self._rendered[format_] = known
            return known[1]

    def _collect_others(self, ledger: Reading[Latest] | None, began: float) -> Iterator[Metric]:
        """Yield what is new in each scrape: how the ledger was read, the GPUs, the exporter itself."""
        if ledger is not None:
            yield from _ledger_health(ledger)
        if self._gpus is not None:
            yield from _gpus(self._gpus.get())
        with self._counting:
            self._scrapes += 1
            self._scrape_s += time.monotonic() - began
            scrapes, scrape_s = self._scrapes, self._scrape_s
        yield CounterMetricFamily("stackmark_exporter_scrapes", "Scrapes that were answered.", value=scrapes)
        text = "Time that scrapes took, together."
        yield CounterMetricFamily("stackmark_exporter_scrape_seconds", text, value=scrape_s)
        source = GaugeMetricFamily("stackmark_exporter_gpu_source", "1 for who reads the GPUs.", labels=("source",))
        for name in SOURCES:
            source.add_metric([name], float(name == self._source))
        yield source
        yield InfoMetricFamily(
            "stackmark_exporter", "This exporter.", value={"version": self._version, "host": platform.node()}
        )

    def text(self) -> bytes:
        """Return all series in Prometheus' text format, as node-exporter's textfile collector reads it."""
        return generate_latest(self.registry)

    def write(self, file: Path) -> None:
        """Write the series to a file, whole or not at all."""
        write_whole(file, self.text())

    def push(self, url: str) -> None:
        """Push the series to a Pushgateway, under this host's name; raise a PlaceError where it does not take them."""
        try:
            pushadd_to_gateway(url, JOB, self.registry, {"instance": platform.node()}, timeout=PUSH_TIMEOUT_S)
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise PlaceError(
                f"the Pushgateway {url} did not take the metrics: {getattr(why, 'strerror', None) or why}",
                hint="is it running there? http://127.0.0.1:9091 is its usual address",
            ) from error


class _Once(Collector):
    """Collects without being asked for a description at registration: that would read everything once more."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()

    def describe(self) -> list[Metric]:
        return []


def _registry(collect: Callable[[], Iterable[Metric]]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Once(collect))
    return registry


def _shown(ledger: Reading[Latest] | None) -> Latest | None:
    """Return the results that a ledger shows; none where the last reading that succeeded is too long ago."""
    if ledger is None or time.time() - ledger.read_unix_s >= KEPT_S:
        return None
    return ledger.value


def _ledger_health(ledger: Reading[Latest]) -> Iterator[Metric]:
    text = "1 where the ledger could be read, 0 where it is missing, locked, damaged or of a newer stackmark."
    yield GaugeMetricFamily("stackmark_ledger_up", text, value=float(ledger.is_good))
    yield CounterMetricFamily("stackmark_ledger_errors", "Readings of the ledger that failed.", value=ledger.errors)
    yield GaugeMetricFamily("stackmark_ledger_read_seconds", "How long the last reading took.", value=ledger.took_s)
    text = "When the ledger was last read; 0 before the first time."
    yield GaugeMetricFamily("stackmark_ledger_read_timestamp_seconds", text, value=ledger.read_unix_s)
    problem = GaugeMetricFamily("stackmark_ledger_problem", "1 for why the ledger cannot be read.", labels=("kind",))
    if ledger.error is not None:
        kind = ledger.error.kind if isinstance(ledger.error, LedgerError) else ""
        problem.add_metric([kind or "other"], 1.0)
    elif ledger.overdue:
        problem.add_metric(["slow"], 1.0)
    yield problem


def _gpus(reading: Reading[GpusReading]) -> Iterator[Metric]:
    """A driver that hangs shows no old numbers as if they were new."""
    text = "1 where the GPUs could be read, 0 where there is no driver or it does not answer."
    good = reading.is_good and reading.value is not None and not reading.value.problem
    yield GaugeMetricFamily("stackmark_gpus_up", text, value=float(good))
    yield GaugeMetricFamily("stackmark_gpus_read_seconds", "How long the last reading took.", value=reading.took_s)
    if reading.value is not None and reading.is_good:
        yield from gpu_metrics(reading.value)
