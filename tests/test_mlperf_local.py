"""The reference application's one-liner: its line from a run of ours, and from a log next to it."""

import json
import re
from pathlib import Path

import pytest

from asking import ask
from refusing import refused
from stackmark.api.mlperf_local import plan_local, read_reference_log, read_scenarios
from stackmark.experiments.serving import ServingResult
from stackmark.histogram import Histogram
from stackmark.show.reference_app import NAMES, lines_of_log, reference_line

LINE = (
    "TestScenario.SingleStream qps=163.51, mean=0.0061, time=60.040, queries=9817, "
    "tiles=50.0:0.0059,80.0:0.0063,90.0:0.0066,95.0:0.0070,99.0:0.0083,99.9:0.0108"
)
SHAPE = re.compile(
    r"TestScenario\.\w+ qps=[0-9.]+, mean=[0-9.]+, time=[0-9.]+, queries=[0-9]+, tiles="
    r"50\.0:[0-9.]+,80\.0:[0-9.]+,90\.0:[0-9.]+,95\.0:[0-9.]+,99\.0:[0-9.]+,99\.9:[0-9.]+"
)


def served(name: str, times_ms: list[int], seconds: float, samples: int) -> ServingResult:
    histogram = Histogram(name).record_all(1_000_000 * one for one in times_ms)
    return ServingResult((), 1, 1, latencies={name: histogram}, samples=samples, test_s=seconds)


def test_the_line_is_the_one_of_the_reference_application() -> None:
    line = reference_line("single-stream", served("latency", list(range(1, 1001)), 2.0, 1000))
    assert line == (
        "TestScenario.SingleStream qps=500.00, mean=0.5005, time=2.000, queries=1000, "
        "tiles=50.0:0.5000,80.0:0.8000,90.0:0.9000,95.0:0.9500,99.0:0.9900,99.9:0.9990"
    )
    assert SHAPE.fullmatch(line)
    assert SHAPE.fullmatch(LINE)


def test_percentiles_of_few_queries_are_printed_as_the_application_prints_them() -> None:
    line = reference_line("single-stream", served("latency", [1, 2, 3, 40], 1.0, 4))
    assert line.endswith("tiles=50.0:0.0020,80.0:0.0400,90.0:0.0400,95.0:0.0400,99.0:0.0400,99.9:0.0400")


def test_offline_counts_samples_and_times_batches() -> None:
    line = reference_line("offline", served("since_start", [100, 200], 0.2, 16))
    assert line.startswith("TestScenario.Offline qps=80.00, mean=0.1500, time=0.200, queries=16, tiles=50.0:0.1000")


def test_a_run_without_latencies_has_no_line() -> None:
    assert reference_line("server", ServingResult((), 0, 1)) == ""


def test_lines_of_a_log_are_those_of_the_scenarios_that_ran() -> None:
    log = ["noise", f"INFO:main: {LINE}", LINE.replace("SingleStream", "Server"), "TestScenario.Server qps=x"]
    assert lines_of_log(log, ["single-stream"]) == [LINE]
    assert len(lines_of_log([LINE] * 1000, ["single-stream"])) == 20
    assert lines_of_log(["TestScenario.SingleStream qps=1" + "x" * 10**6], ["single-stream"])[0].startswith("TestSc")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("SingleStream,offline", ["single-stream", "offline"]), ("all", list(NAMES.values())), ("Server", ["server"])],
)
def test_scenarios_are_named_as_the_application_names_them(typed: str, expected: list[str]) -> None:
    assert read_scenarios(typed) == expected


def test_wrong_arguments_are_sentences(tmp_path: Path) -> None:
    with refused("Burst", "MultiStream"):
        read_scenarios("Burst")
    with refused("vgg99", "resnet50"):
        plan_local("vgg99", "cpu", ["single-stream"], {})
    with refused("tpu", "cpu"):
        plan_local("resnet50", "tpu", ["single-stream"], {})
    with refused("none.log"):
        read_reference_log(tmp_path / "none.log", ["server"])
    (tmp_path / "other.log").write_text(LINE)
    with refused("Server"):
        read_reference_log(tmp_path / "other.log", ["server"])


def test_only_the_server_takes_a_rate_and_a_bound() -> None:
    plans = plan_local(
        "resnet20", "cpu", ["single-stream", "server"], {"rate": "5", "latency_bound": "1s", "batch": None}
    )
    single, server = (plan.request.params for plan in plans)
    assert "rate" not in single
    assert "batch" not in single
    assert (server["rate"], server["latency_bound"]) == (5.0, 1.0)


@pytest.mark.slow
def test_the_printed_line_is_of_a_stored_run_and_the_importer_reads_it_back(tmp_path: Path) -> None:
    ledger, log = str(tmp_path / "l.sqlite3"), tmp_path / "theirs.log"
    log.write_text(f"{LINE}\n")
    words = [
        "mlperf",
        "local",
        "empty",
        "cpu",
        "--time",
        "0.2s",
        "--scenario",
        "SingleStream",
        "--reference-log",
        str(log),
    ]
    done = ask(*words, "--json", "--ledger", ledger)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    (one,) = found["results"]
    assert SHAPE.fullmatch(one["line"])
    assert found["reference_lines"] == [LINE]
    queries = int(re.search(r"queries=(\d+)", one["line"])[1])  # type: ignore[index]
    assert ask("show", one["experiment"], "--ledger", ledger).code == 0
    # The line has seconds with four decimals, too few for what answers within microseconds.
    (tmp_path / "ours.log").write_text(re.sub(r"0\.0000", "0.0001", one["line"]) + "\n")
    imported = ask(
        "import",
        str(tmp_path / "ours.log"),
        "--workload",
        "serve/empty",
        "--json",
        "--ledger",
        str(tmp_path / "i.sqlite3"),
    )
    assert imported.code == 0, imported.err
    (run,) = json.loads(imported.out)["runs"]
    assert run["spec"]["params"]["scenario"] == "SingleStream"
    assert run["rate_per_s"] == pytest.approx(queries / run["wall_s"], rel=0.01)


def test_a_histogram_without_its_slowest_times_makes_a_line_and_no_crash() -> None:
    """As a worker may send it: cells, and no single times."""
    hostile = Histogram("latency")
    hostile.add_piece([(5, 3)])
    found = ServingResult((), 1, 1, latencies={"latency": hostile}, samples=3, test_s=1.0)
    assert SHAPE.fullmatch(reference_line("single-stream", found))
