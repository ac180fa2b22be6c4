"""Recording and alert rules for Prometheus, made from code so that names of metrics stand in one place.

An alert on speed follows the verdict of a check, which has an interval and a margin behind it, and never a threshold alone. GPU
alerts leave out what is normal: XIDs of applications (13, 31, 43) and the power cap, under which a busy GPU always is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from stackmark.errors import SpecError
from stackmark.kubernetes.manifest.yaml_text import document
from stackmark.monitor import series
from stackmark.units import say_seconds

# Three missed checks of an hourly canary.
SILENT_AFTER_S = 3 * 3600.0
HOT_C = 85.0
RUNBOOK = "docs/monitoring.md"
# After these a GPU needs a reset, a reboot or a replacement.
CRITICAL_XIDS = (48, 62, 64, 74, 79, 95, 119, 120)
THROTTLES = "hardware slowdown|hardware thermal slowdown|hardware power brake"
WHAT = "{{ $labels.workload }} on {{ $labels.place }} of {{ $labels.machine }}"
GPU = "GPU {{ $labels.gpu }} ({{ $labels.UUID }}) of {{ $labels.instance }}"


@dataclass(frozen=True)
class Alert:
    """One alert. `anchor` is a heading of the page of runbooks."""

    name: str
    expression: str
    severity: str
    summary: str
    description: str
    anchor: str
    for_: str = "0s"

    def to_dict(self) -> dict[str, object]:
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.for_,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook": f"{RUNBOOK}#{self.anchor}",
            },
        }


@dataclass(frozen=True)
class RuleOptions:
    """What differs from site to site."""

    silent_after_s: float = SILENT_AFTER_S
    hot_c: float = HOT_C

    def __post_init__(self) -> None:
        if not 60 <= self.silent_after_s <= 30 * 86_400:
            raise SpecError(
                f"--silent-after must be between 1min and 30d, got {say_seconds(self.silent_after_s)}",
                hint="three times the pause between two checks, e.g. 3h",
            )
        if not 30 <= self.hot_c <= 120:
            raise SpecError(f"--hot must be between 30 and 120 °C, got {self.hot_c:g}", hint="e.g. --hot 85")


RECORDED = {
    # One number for each check, for dashboards: of the words only one is 1.
    "stackmark:baseline_ratio:min": "min by (baseline, workload) (stackmark_baseline_ratio)",
    "stackmark:checks:count": "count by (verdict) (stackmark_check_verdict == 1)",
    "stackmark:gpu_utilization:avg": f"avg({series.UTILIZATION})",
    "stackmark:gpu_power_watts:sum": f"sum({series.POWER_W})",
}


def alerts(options: RuleOptions) -> tuple[Alert, ...]:
    return (*_of_results(options), *_of_gpus(options), *_of_exporters())


def _of_results(options: RuleOptions) -> tuple[Alert, ...]:
    def by_ratio(words: str) -> str:
        """Make the ratio the value, and the verdict a label."""
        chosen = f'stackmark_check_verdict{{verdict=~"{words}"}} == 1'
        return f"stackmark_baseline_ratio * ignoring (verdict) group_right () ({chosen})"

    said = "The newest check has the verdict {{ $labels.verdict }}: its rate is {{ $value | humanizePercentage }} of before. "
    silent = f"time() - stackmark_check_timestamp_seconds > {options.silent_after_s:.0f}"
    return (
        Alert(
            "StackmarkSlower", by_ratio(series.SLOWER), "critical",
            f"{WHAT} is slower than the baseline {{{{ $labels.baseline }}}}",
            f"{said}The node should take no work before it is known why.", "slower-than-the-baseline",
        ),
        Alert(
            "StackmarkLikelySlower", by_ratio(series.LIKELY), "warning",
            f"{WHAT} is likely slower than the baseline {{{{ $labels.baseline }}}}",
            f"{said}The baseline has too few series for more certainty.", "slower-than-the-baseline",
        ),
        Alert(
            "StackmarkAlarm", "stackmark_check_alarm == 1", "warning",
            f"The checks of {WHAT} together show that it became slower",
            "Two checks in a row, or the sum of small changes, are beyond what is usual for the baseline "
            "{{ $labels.baseline }}.", "slower-than-the-baseline",
        ),
        Alert(
            "StackmarkCheckWithoutVerdict", f'stackmark_check_verdict{{verdict=~"{series.NO_VERDICT}"}} == 1', "warning",
            f"The newest check of {WHAT} has no verdict: {{{{ $labels.verdict }}}}",
            "What could not be measured or compared was not checked.", "a-check-without-a-verdict",
        ),
        Alert(
            "StackmarkCanarySilent", silent, "warning",
            f"No check of {WHAT} against {{{{ $labels.baseline }}}} for {{{{ $value | humanizeDuration }}}}",
            f"Checks should come more often than every {say_seconds(options.silent_after_s)}: the canary does not run, or "
            "its results do not reach the ledger.", "a-silent-canary",
        ),
        Alert(
            "StackmarkRunFailed", "stackmark_last_run_success == 0", "warning",
            f"The newest run of {WHAT} failed",
            "It stays so until a run is good. stackmark results --status failed lists failed runs with their reasons.",
            "failed-runs",
        ),
    )  # fmt: skip


def _of_gpus(options: RuleOptions) -> tuple[Alert, ...]:
    critical = "|".join(map(str, CRITICAL_XIDS))
    ecc = 'increase(stackmark_gpu_ecc_errors_total{kind="uncorrected"}[1h]) > 0'
    rows = 'increase(stackmark_gpu_rows_remapped_total{kind="uncorrected"}[1h]) > 0'
    return (
        Alert(
            "StackmarkGpuHot", f"{series.TEMPERATURE_C} > {options.hot_c:g}", "warning",
            f"{GPU} has {{{{ $value }}}} °C", f"It is above {options.hot_c:g} °C for ten minutes.", "a-hot-gpu", "10m",
        ),
        Alert(
            "StackmarkGpuThrottled", f'stackmark_gpu_clock_limited{{reason=~"{THROTTLES}"}} == 1', "critical",
            f"{GPU} slows itself down: {{{{ $labels.reason }}}}",
            "The hardware protects itself from heat or from its power supply. Every result of this GPU is slower.",
            "a-throttled-gpu", "5m",
        ),
        Alert(
            "StackmarkGpuMemoryErrors", f"{ecc} or {rows}", "critical", f"{GPU} has uncorrectable memory errors",
            "Results of the last hour are not to be trusted.", "memory-errors",
        ),
        Alert(
            "StackmarkGpuRowRemapFailed", "stackmark_gpu_row_remap_failed == 1", "critical",
            f"{GPU} could not remap a memory row", "The GPU is due for replacement.", "memory-errors",
        ),
        Alert(
            "StackmarkGpuResetNeeded", "stackmark_gpu_row_remap_pending == 1", "warning",
            f"{GPU} waits for a reset", "A memory row is remapped at the next reset.", "memory-errors",
        ),
        Alert(
            "StackmarkGpuXid", f'increase(stackmark_gpu_xid_errors_total{{xid=~"{critical}"}}[15m]) > 0', "critical",
            f"{GPU} reported XID {{{{ $labels.xid }}}}",
            "NVIDIA's list of XIDs says what follows from it: mostly a reset of the GPU or of the machine.", "xid-errors",
        ),
        Alert(
            "StackmarkGpuLost", "stackmark_gpu_up == 0", "critical", f"{GPU} does not answer",
            "It answered before. Look for XID 79 in the kernel's log; a reboot may bring it back.", "a-lost-gpu", "1m",
        ),
        Alert(
            "StackmarkGpusMissing", "stackmark_gpus < stackmark_gpus_expected", "critical",
            "{{ $labels.instance }} has {{ $value }} GPUs that answer, fewer than expected",
            "Expected is what --expect-gpus says, else what is on the machine's bus.", "a-lost-gpu", "5m",
        ),
        Alert(
            "StackmarkGpusUnreadable", "stackmark_gpus_up == 0 and stackmark_gpus_expected > 0", "critical",
            "The GPUs of {{ $labels.instance }} cannot be read",
            "The driver is not loaded, or it hangs: nvidia-smi shows which.", "a-lost-gpu", "5m",
        ),
    )  # fmt: skip


def _of_exporters() -> tuple[Alert, ...]:
    return (
        Alert(
            "StackmarkExporterDown", 'up{job=~".*stackmark.*"} == 0', "warning",
            "The exporter on {{ $labels.instance }} does not answer",
            "Neither its results nor its GPUs are watched.", "an-exporter-or-ledger-that-cannot-be-read", "5m",
        ),
        Alert(
            "StackmarkLedgerUnreadable", "stackmark_ledger_up == 0", "warning",
            "The exporter on {{ $labels.instance }} cannot read its ledger",
            "stackmark_ledger_problem names the kind of the problem; stackmark results shows it as a sentence.",
            "an-exporter-or-ledger-that-cannot-be-read", "10m",
        ),
    )  # fmt: skip


def rule_groups(options: RuleOptions | None = None) -> dict[str, object]:
    """Return the rules as Prometheus reads them, and as a PrometheusRule has them in its spec."""
    options = options or RuleOptions()
    recorded = [{"record": name, "expr": expression} for name, expression in RECORDED.items()]
    groups: Mapping[str, list[dict[str, object]]] = {
        "stackmark-recorded": [dict(one) for one in recorded],
        "stackmark-results": [one.to_dict() for one in _of_results(options)],
        "stackmark-gpus": [one.to_dict() for one in _of_gpus(options)],
        "stackmark-exporters": [one.to_dict() for one in _of_exporters()],
    }
    return {"groups": [{"name": name, "rules": rules} for name, rules in groups.items()]}


def rules_yaml(options: RuleOptions | None = None) -> str:
    """Return the file of rules; JSON, which is YAML too, where PyYAML is not installed."""
    return document(rule_groups(options))


def rules_tests() -> str:
    """Return the tests of these rules with the default options, for `promtool test rules`."""
    return (files(__package__) / "rules_test.yaml").read_text(encoding="utf-8")
