"""Four Grafana dashboards: results against baselines and published numbers, GPUs in use, heat and power, the cluster.

A test runs every query against a real Prometheus that scrapes the exporter: one that returns nothing is a defect.
"""

import json
from pathlib import Path

from stackmark.errors import PlaceError, SpecError
from stackmark.monitor import series
from stackmark.monitor.grafana import Dashboard, Panel, Query, Variable
from stackmark.show.writing import write_whole

_RESULTS = 'workload=~"$workload", machine=~"$machine"'
_WHAT = "{{workload}} on {{place}}, {{machine}}"
_GPU = "{{instance}} GPU {{gpu}}"
_RESULT_VARIABLES = (
    Variable("workload", "stackmark_result_timestamp_seconds", "workload"),
    Variable("machine", "stackmark_result_timestamp_seconds", "machine"),
)
_GPU_VARIABLES = (Variable("instance", "stackmark_gpus", "instance"),)
_INSTANCE = 'instance=~"$instance"'
_RATIO_COLOURS = (("red", None), ("orange", 0.95), ("green", 0.99))
_RED_ABOVE_ZERO = (("green", None), ("red", 1.0))


def _here(expression: str) -> str:
    """Keep the chosen machines of an expression that two exporters may answer."""
    return f"({expression}) and on (instance) (up{{{_INSTANCE}}} >= 0)"


def _series(title: str, expression: str, legend: str, **options: object) -> Panel:
    return Panel(title, (Query(expression, legend),), **options)  # type: ignore[arg-type]


def _results() -> Dashboard:
    ratio = f"stackmark_baseline_ratio{{{_RESULTS}}}"
    checked = "{{baseline}}: " + _WHAT
    age = f"time() - stackmark_check_timestamp_seconds{{{_RESULTS}}}"
    panels = (
        Panel(
            "Verdicts of the newest checks",
            (Query(f"stackmark_check_verdict{{{_RESULTS}}} == 1", table=True),),
            kind="table", width=14, hidden=("Value", "spec"),
            description="A verdict has an interval and a margin behind it; stackmark show X shows them.",
        ),
        Panel(
            "Against the baseline", (Query(ratio, checked, table=True),), unit="percentunit", kind="table", width=10,
            thresholds=_RATIO_COLOURS, hidden=("spec",), description="Of rates: below 100 % it is slower.",
        ),
        Panel(
            "Rate over the baseline's, with its 90 % interval",
            (
                Query(ratio, checked),
                Query(f"stackmark_baseline_ratio_low{{{_RESULTS}}}", checked + ", low"),
                Query(f"stackmark_baseline_ratio_high{{{_RESULTS}}}", checked + ", high"),
                Query(f"1 - stackmark_baseline_margin_ratio{{{_RESULTS}}}", "margin of {{baseline}}"),
            ),
            unit="percentunit", width=24, height=10,
        ),
        Panel(
            "Newest results",
            (
                Query(f"stackmark_result_rate{{{_RESULTS}}}", _WHAT + " ({{unit}})"),
                Query(f"stackmark_result_rate_low{{{_RESULTS}}}", _WHAT + ", low"),
                Query(f"stackmark_result_rate_high{{{_RESULTS}}}", _WHAT + ", high"),
            ),
            description="Each workload has its own unit; the interval is of 95 %.",
        ),
        _series("Over the nearest published number", f"stackmark_published_ratio{{{_RESULTS}}}",
                _WHAT + ", {{source}} (recipe {{recipe}})", unit="percentunit",
                description="Where the recipe differs, the ratio is context and not a verdict."),
        _series("Age of the newest check", age, checked, unit="s", least=0),
        _series("Age of the newest result", f"time() - stackmark_result_timestamp_seconds{{{_RESULTS}}}", _WHAT, unit="s"),
    )  # fmt: skip
    text = "The newest results of the ledger, against their baselines and what others published."
    return Dashboard(
        uid="stackmark-results", title="stackmark: results", description=text,
        variables=_RESULT_VARIABLES, panels=panels,
    )  # fmt: skip


def _use() -> Dashboard:
    panels = (
        _series("GPU in use", _here(series.UTILIZATION), _GPU, unit="percentunit", least=0, most=1,
                description="Share of time in which a kernel ran. A full GPU may still do little: look at its power."),
        _series("Memory in use", _here(series.MEMORY_USED_BYTES), _GPU, unit="bytes", least=0),
        _series("Memory in use, of its size", _here(series.MEMORY_USED_SHARE), _GPU, unit="percentunit", least=0, most=1),
        _series("Memory read or written", f"stackmark_gpu_memory_utilization_ratio{{{_INSTANCE}}}", _GPU, unit="percentunit"),
        _series("Programs that compute", f"stackmark_gpu_processes{{{_INSTANCE}}}", _GPU, least=0),
        _series("Runs in progress", "stackmark_runs_in_progress", _WHAT, least=0),
    )  # fmt: skip
    return Dashboard(
        uid="stackmark-gpu-use", title="stackmark: use of GPUs and their memory", variables=_GPU_VARIABLES, panels=panels,
        description="How busy each GPU is, and its memory.",
    )  # fmt: skip


def _power() -> Dashboard:
    clock = f'stackmark_gpu_clock_hertz{{clock="sm", {_INSTANCE}}}'
    highest = f"stackmark_gpu_clock_sm_max_hertz{{{_INSTANCE}}}"
    limited = f"rate(stackmark_gpu_clock_limited_seconds_total{{{_INSTANCE}}}[5m])"
    panels = (
        Panel(
            "Power and its limit",
            (Query(_here(series.POWER_W), _GPU), Query(f"stackmark_gpu_power_limit_watts{{{_INSTANCE}}}", _GPU + ", limit")),
            unit="watt", least=0,
        ),
        _series("Power over five minutes, by the energy counter", _here(series.ENERGY_W), _GPU, unit="watt", least=0,
                description="The energy counter misses nothing between two scrapes; the power reading does."),
        _series("Temperature", _here(series.TEMPERATURE_C), _GPU, unit="celsius"),
        _series("Distance to slowdown", f"stackmark_gpu_temperature_margin_celsius{{{_INSTANCE}}}", _GPU, unit="celsius"),
        Panel(
            "Clock", (Query(_here(series.SM_CLOCK_HZ), _GPU), Query(highest, _GPU + ", highest")),
            unit="hertz", least=0,
        ),
        _series("Clock, of the highest", f"{clock} / ignoring (clock) {highest}", _GPU,
                unit="percentunit", least=0, most=1),
        _series("Why clocks are not higher", f"stackmark_gpu_clock_limited{{{_INSTANCE}}}", _GPU + ": {{reason}}",
                kind="state-timeline", width=24, thresholds=_RED_ABOVE_ZERO),
        _series("Share of time under each limit", limited, _GPU + ": {{reason}}", unit="percentunit", least=0),
        Panel(
            "Errors in the last hour",
            (
                Query(f"increase(stackmark_gpu_ecc_errors_total{{{_INSTANCE}}}[1h])", _GPU + ": {{kind}} memory errors"),
                Query(f"increase(stackmark_gpu_xid_errors_total{{{_INSTANCE}}}[1h])", _GPU + ": XID {{xid}}"),
                Query(f"increase(stackmark_gpu_rows_remapped_total{{{_INSTANCE}}}[1h])", _GPU + ": {{kind}} rows remapped"),
                Query(f"increase(stackmark_gpu_pcie_replays_total{{{_INSTANCE}}}[1h])", _GPU + ": PCIe replays"),
            ),
        ),
    )  # fmt: skip
    return Dashboard(
        uid="stackmark-gpu-power", title="stackmark: power, temperature and clocks of GPUs", variables=_GPU_VARIABLES,
        panels=panels, description="What a GPU draws, how warm it is, and what holds its clocks down.",
    )  # fmt: skip


def _overview() -> Dashboard:
    slowest = "sort(min by (machine, workload) (stackmark_baseline_ratio))"
    failures = "sum by (workload, place, kind) (increase(stackmark_run_failures_total[1d]))"
    verdicts = 'count(stackmark_check_verdict{{verdict=~"{}"}} == 1) or vector(0)'

    def number(title: str, expression: str, **options: object) -> Panel:
        return Panel(title, (Query(expression, table=True),), kind="stat", width=4, height=4, **options)  # type: ignore[arg-type]

    panels = (
        number("Machines", "count(count by (machine) (stackmark_result_timestamp_seconds))"),
        number("GPUs", "sum(stackmark_gpus)"),
        number("GPUs missing", "sum(stackmark_gpus_expected) - sum(stackmark_gpus)", thresholds=_RED_ABOVE_ZERO),
        number("Slower", verdicts.format(series.SLOWER), thresholds=_RED_ABOVE_ZERO),
        number("Likely slower", verdicts.format(series.LIKELY), thresholds=_RED_ABOVE_ZERO),
        number("Power", f"sum({series.POWER_W})", unit="watt"),
        Panel("Worst ratio to the baseline, by workload", (Query("stackmark:baseline_ratio:min", "{{baseline}}: {{workload}}"),),
              unit="percentunit"),
        Panel("Verdicts", (Query("stackmark:checks:count", "{{verdict}}"),)),
        Panel("Machines by their slowest result",
              (Query(slowest, table=True),), unit="percentunit", kind="table",
              thresholds=_RATIO_COLOURS),
        Panel("Failed runs in the last day",
              (Query(failures, "{{workload}} on {{place}}: {{kind}}"),)),
        Panel("GPUs in use, of all", (Query("stackmark:gpu_utilization:avg", "average"),), unit="percentunit", least=0, most=1),
        Panel("Power of all GPUs", (Query("stackmark:gpu_power_watts:sum", "all"),), unit="watt", least=0),
        Panel(
            "The exporters",
            (
                Query("stackmark_ledger_up", "{{instance}} reads its ledger"),
                Query("rate(stackmark_exporter_scrape_seconds_total[5m]) / rate(stackmark_exporter_scrapes_total[5m])",
                      "{{instance}}: seconds a scrape"),
                Query("rate(stackmark_ledger_errors_total[5m])", "{{instance}}: ledger errors a second"),
            ),
        ),
        Panel("What the newest results were measured with", (Query("stackmark_result_info", table=True),), kind="table"),
    )  # fmt: skip
    return Dashboard(
        uid="stackmark-overview", title="stackmark: cluster overview", variables=(), panels=panels,
        description="All machines that the ledger has results of, and their GPUs. It needs the recording rules.",
    )  # fmt: skip


def dashboards() -> tuple[Dashboard, ...]:
    return (_overview(), _results(), _use(), _power())


def write_dashboards(folder: Path) -> list[Path]:
    """Write each dashboard to a file of a folder, which is made if it is missing; return the files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise SpecError(f"-o {folder} is a file, not a folder", hint="name a folder") from error
    except OSError as error:
        raise PlaceError(f"cannot create the folder {folder}: {error.strerror}", hint="name another with -o") from error
    files = []
    for one in dashboards():
        path = folder / one.file
        write_whole(path, (json.dumps(one.to_dict(), indent=2) + "\n").encode())
        files.append(path)
    return files
