"""The latencies of queries: by our own clock, against LoadGen's log; stored, drawn, and in the report."""

import json
from pathlib import Path

import pytest

from asking import ask
from stackmark.experiments.serving import client_means
from stackmark.histogram import Histogram
from stackmark.workloads.serve.impl.latencies import disagreement, latencies_ns, schedule_ns
from stackmark.workloads.serve.impl.loadgen import Load, LoadResult

QUICK = ["--device", "cpu", "--seconds", "0.3"]


def said_by_loadgen(count: int, **percentiles_ns: int) -> LoadResult:
    names = {"p50": "50.00", "p90": "90.00", "p99": "99.00"}
    values = {f"result_{names[name]}_percentile_latency_ns": value for name, value in percentiles_ns.items()}
    return LoadResult(True, {"result_query_count": count, **values}, (), (), 1.0)


# When LoadGen 6.0.17 sent the first queries of a test with seed 7 at 500 queries/s: each a little after it was due.
SENT_US = (0, 595, 1357, 9031, 10295)


def test_the_schedule_of_a_seed_is_the_one_that_loadgen_draws() -> None:
    due_us = [at / 1000 for at in schedule_ns(7, 500.0, len(SENT_US))]
    assert all(0 <= sent - due < 200 for sent, due in zip(SENT_US, due_us, strict=True))


def test_latencies_of_the_server_count_from_when_a_query_was_due() -> None:
    load = Load("server", 1.0, 100, 4, 7, 0.0, 500.0, 0.1)
    due = schedule_ns(7, 500.0, 4)
    late = [0, 5_000_000, 0, 1_000_000]
    came = [10**9 + at + by for at, by in zip(due, late, strict=True)]
    assert latencies_ns(load, came, [at + 2_000 for at in came]) == [2_000, 5_002_000, 2_000, 1_002_000]


def test_latencies_of_other_scenarios_count_from_when_a_query_came() -> None:
    load = Load("single-stream", 1.0, 100, 4, 7, 1e-3)
    assert latencies_ns(load, [10, 30], [25, 50]) == [15, 20]


def test_clocks_that_disagree_are_said() -> None:
    own = Histogram().record_all([10_000_000] * 2000)
    agree = said_by_loadgen(2000, p50=10_000_000, p90=10_100_000, p99=10_200_000)
    assert disagreement(agree, own) == ""
    for wrong in ({"p50": 20_000_000}, {"p99": 20_000_000}):
        said = disagreement(
            said_by_loadgen(2000, **{"p50": 10_000_000, "p90": 10_000_000, "p99": 10_000_000, **wrong}), own
        )
        assert said.startswith("clocks-disagree: ")
        assert next(iter(wrong)) in said
    assert "2,000" in disagreement(said_by_loadgen(1999, p50=10_000_000, p90=10_000_000, p99=10_000_000), own)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A comparison of one scenario in two arms."""
    ledger = str(tmp_path_factory.mktemp("ledger") / "l.sqlite3")
    words = [
        "compare",
        "serve/empty",
        *QUICK,
        "--arm",
        "host",
        "--arm",
        "host,batch=2",
        "--blocks",
        "2",
        "--no-primers",
    ]
    assert ask(*words, "--ledger", ledger).code == 0
    return ["last", "--ledger", ledger]


@pytest.mark.slow
def test_a_report_has_the_percentiles_and_the_curve_of_each_arm(compared: list[str], tmp_path: Path) -> None:
    page, markdown = tmp_path / "report.html", tmp_path / "report.md"
    for path in (page, markdown):
        assert ask("report", *compared, "-o", str(path)).code == 0
    section = page.read_text().partition('id="latency"')[2].partition("</section>")[0]
    for name in ("p50", "p90", "p99", "latency by percentile"):
        assert name in section
    assert all(f'class="steps a{arm}"' in section for arm in (0, 1))
    assert "- p99: " in markdown.read_text()


@pytest.mark.slow
def test_stored_latencies_are_those_of_all_queries(compared: list[str]) -> None:
    found = json.loads(ask("verdict", *compared, "--json").out)
    runs = [run for run in found["runs"] if run["counted"]]
    for one in found["latencies"]:
        assert one["queries"] == sum(run["covariates"]["queries"] for run in runs if run["arm"] == one["arm"])
        percents, seconds = zip(*one["points"], strict=True)
        assert list(seconds) == sorted(seconds)
        assert percents[0] == 0
    assert [one["arm"] for one in found["latencies"]] == [0, 1]


@pytest.mark.slow
def test_the_curves_are_drawn_alone_and_below_the_verdict(compared: list[str], tmp_path: Path) -> None:
    for kind in (["--kind", "latency"], []):
        picture = tmp_path / "curves.svg"
        assert ask("plot", *compared, *kind, "-o", str(picture)).code == 0
        assert "latency by percentile" in picture.read_text()


@pytest.mark.slow
def test_a_picture_of_latencies_that_are_not_there_is_refused(tmp_path: Path) -> None:
    ledger = str(tmp_path / "l.sqlite3")
    assert ask("run", "serve/empty", "--scenario", "offline", *QUICK, "--runs", "1", "--ledger", ledger).code == 0
    done = ask("plot", "last", "--kind", "latency", "-o", str(tmp_path / "x.svg"), "--ledger", ledger)
    assert done.code == 2
    assert "latenc" in done.err


def test_rates_of_a_client_are_averaged_like_its_figure() -> None:
    each = [{"output_per_s": 50.0, "late": 0.0}, {"output_per_s": 200.0, "late": 3.0}]
    assert client_means(each) == {"output_per_s": pytest.approx(100.0), "late": 1.5}
