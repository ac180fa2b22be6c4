"""metric.log and benchmark_run.log: what `--benchmark_log_dir` of tf_cnn_benchmarks writes, in its shape.

metric.log has one JSON object a line and grows from run to run, as in the original. benchmark_run.log is one object about
the run; the original overwrites it, which loses what metric.log's earlier lines belong to. So the name stays that of the
newest run, and older files are kept next to it as benchmark_run.log.1, .2 and so on, the highest number being the youngest.

Two things differ on purpose: evaluation results are logged (the original drops them by a mistake), and no environment
variables are stored.
"""

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from stackmark.errors import SpecError, StackmarkError
from stackmark.events import Event, Facts, Failed, Metric, Phase, Result, Steps
from stackmark.experiments.tf_cnn_mapping import ClassicOptions
from stackmark.spec import Scalar
from stackmark.workloads.train.classic import EVALUATION, Rows

METRIC_LOG = "metric.log"
RUN_LOG = "benchmark_run.log"
TIMESTAMP = "%Y-%m-%dT%H:%M:%S.%fZ"
BYTES_PER_MIB = 2**20


class BenchmarkLog:
    """Writes both files for one run. A folder that cannot be written is refused before the run starts."""

    def __init__(self, options: ClassicOptions, folder: str | Path) -> None:
        self._options = options
        self._folder = Path(folder).expanduser()
        self._rows = Rows(options)
        self._facts: dict[str, dict[str, JsonValue]] = {}
        self._metrics: dict[str, float] = {}
        self._version = ""
        self._about_is_written = False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / METRIC_LOG).open("a").close()
        except OSError as error:
            raise SpecError(
                f"--benchmark_log_dir: {self._folder} cannot be written: {error.strerror}",
                hint="give a folder that you may write to",
            ) from error

    def start(self, framework_version: str) -> None:
        self._version = framework_version

    def event(self, event: Event) -> None:
        if event.rank != 0:
            return
        match event:
            case Facts():
                self._facts.setdefault(event.subject, {}).update(event.facts)
            case Phase(phase="measure", state="begin") | Failed():
                self._write_about()
            case Steps(phase="measure") if self._options.mode != EVALUATION:
                self._write_rows(event)
            case Metric():
                self._metrics[event.name] = event.value
            case Result():
                self._write_about()
                self._write_end(event)

    def _write_rows(self, event: Steps) -> None:
        for row in self._rows.add(event):
            self._metric("current_examples_per_sec", row.stats.speed_mean, row.step)
            if row.accuracies is not None:
                self._metric("top_1_accuracy", row.accuracies[0], row.step)
                self._metric("top_5_accuracy", row.accuracies[1], row.step)

    def _write_end(self, result: Result) -> None:
        """A run during which the hardware failed has no average."""
        if result.invalid:
            return
        rate = result.steps * result.samples_per_step / result.wall_s
        if self._options.mode != EVALUATION:
            self._metric("average_examples_per_sec", rate, result.steps)
            return
        self._metric("eval_average_examples_per_sec", rate, result.steps)
        for name in ("top_1_accuracy", "top_5_accuracy"):
            if name in self._metrics:
                self._metric(f"eval_{name}", self._metrics[name], result.steps)

    def _metric(self, name: str, value: float, step: int) -> None:
        if not math.isfinite(value):
            return
        line: dict[str, JsonValue] = {
            "name": name,
            "value": value,
            "unit": None,
            "global_step": step,
            "timestamp": _now(),
            "extras": [],
        }
        self._write(METRIC_LOG, line, "a")

    def _write_about(self) -> None:
        """Written when the facts have come: before the measured part, or when the run failed before it."""
        if self._about_is_written:
            return
        self._about_is_written = True
        self._keep_older()
        about: dict[str, JsonValue] = {
            "model_name": self._options.model,
            "dataset": {"name": self._options.dataset},
            "machine_config": self._machine(),
            "test_id": self._options.benchmark_test_id or None,
            "run_date": _now(),
            # The key is what scripts read; the value says what it is.
            "tensorflow_version": {"version": f"PyTorch {self._version}".strip(), "git_hash": ""},
            "tensorflow_environment_variables": [],
            "run_parameters": [_parameter(name, value) for name, value in self._options.run_parameters],
        }
        self._write(RUN_LOG, about, "w")

    def _keep_older(self) -> None:
        path = self._folder / RUN_LOG
        try:
            if path.exists():
                path.rename(next(older for older in _numbered(path) if not older.exists()))
        except OSError as error:
            raise self._trouble(RUN_LOG, error) from error

    def _machine(self) -> dict[str, JsonValue]:
        cpu, memory, gpu = (self._facts.get(subject, {}) for subject in ("cpu", "memory", "gpu"))
        clock = {"mhz_per_cpu": cpu["clock_max_mhz"]} if cpu.get("clock_max_mhz") else {}
        machine: dict[str, JsonValue] = {
            "cpu_info": {"num_cores": cpu.get("threads"), "cpu_info": cpu.get("model"), **clock},
            "gpu_info": _gpu(gpu),
        }
        for name, key in (("memory_total", "total_mib"), ("memory_available", "available_mib")):
            mib = memory.get(key)
            if isinstance(mib, int | float):
                machine[name] = round(mib * BYTES_PER_MIB)
        return machine

    def _write(self, name: str, line: dict[str, JsonValue], mode: str) -> None:
        try:
            with (self._folder / name).open(mode, encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            raise self._trouble(name, error) from error

    def _trouble(self, name: str, error: OSError) -> StackmarkError:
        return StackmarkError(
            f"--benchmark_log_dir: {self._folder / name} cannot be written: {error.strerror}",
            hint="is the disk full? The run itself does not need the log: leave out --benchmark_log_dir",
        )


def _numbered(path: Path) -> Iterator[Path]:
    number = 1
    while True:
        yield path.with_name(f"{path.name}.{number}")
        number += 1


def _gpu(facts: dict[str, JsonValue]) -> JsonValue:
    devices = facts.get("devices")
    if not isinstance(devices, list) or not devices:
        return {"count": 0}
    first = devices[0]
    return {"count": len(devices), "model": first.get("name") if isinstance(first, dict) else None}


def _parameter(name: str, value: Scalar) -> JsonValue:
    """The original's schema has a key for each type; its booleans are words."""
    match value:
        case bool():
            return {"name": name, "bool_value": str(value)}
        case int():
            return {"name": name, "long_value": value}
        case float():
            return {"name": name, "float_value": value}
        case _:
            return {"name": name, "string_value": str(value)}


def _now() -> str:
    return datetime.now(UTC).strftime(TIMESTAMP)
