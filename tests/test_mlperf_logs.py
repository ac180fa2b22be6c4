"""MLPerf's logs of our own runs: written, read by our own importer, and verified by MLCommons' checker."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import asking
from stackmark.experiments.mlperf_logs import as_v06
from test_fit_transformer import write_folder


def ask(*words: str, code: int = 0) -> asking.Answer:
    answer = asking.ask(*words)
    assert answer.code == code, answer.err
    return answer


def ask_json(*words: str, code: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ask(*words, "--json", code=code).out)
    return told


REFERENCE = Path(__file__).parent / "data" / "logs" / "mlperf_v0.6"


@pytest.fixture(scope="module", params=["fit/transformer", "fit/gnmt"])
def full(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A ledger with a run of the full model on a folder of a few sentences: its target is none, so one epoch reaches it."""
    folder = tmp_path_factory.mktemp("full")
    data, ledger = write_folder(folder / "data"), folder / "ledger.sqlite3"
    ask(
        "run", request.param, "--preset", "full", "--data", str(data), "--target", "0", "--device", "cpu", "--runs", "1",
        "--precision", "fp32", "--ledger", str(ledger),
    )  # fmt: skip
    return ledger


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ledger = tmp_path_factory.mktemp("tiny") / "ledger.sqlite3"
    ask("run", "fit/transformer", "--target", "0", "--device", "cpu", "--runs", "2", "--ledger", str(ledger))
    return ledger


@pytest.mark.slow
def test_the_log_of_a_full_model_passes_the_checker_of_mlcommons(full: Path, tmp_path: Path) -> None:
    ask("mlperf", "log", "last", "-o", str(tmp_path / "logs"), "--style", "v0.6", "--ledger", str(full))
    found = ask_json("mlperf", "check", str(tmp_path / "logs" / "result_0.txt"), "--ruleset", "0.6.0")
    assert found["files"] == [{"file": str(tmp_path / "logs" / "result_0.txt"), "passed": True, "findings": []}]


@pytest.mark.slow
def test_the_log_of_a_tiny_model_claims_nothing_and_is_rejected(tiny: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    written = ask_json("mlperf", "log", "last", "-o", str(logs), "--style", "v0.6", "--ledger", str(tiny))
    assert [Path(one["file"]).name for one in written["files"]] == ["result_0.txt", "result_1.txt"]
    text = (logs / "result_0.txt").read_text()
    assert '"closed"' not in text
    texts = [(logs / name).read_text().splitlines() for name in ("result_0.txt", "result_1.txt")]
    seeds = [line for lines in texts for line in lines if " seed: " in line]
    assert len({line.partition("seed: ")[2] for line in seeds}) == 2
    checked = ask_json("mlperf", "check", str(logs / "result_0.txt"), "--ruleset", "0.6.0", code=3)
    assert any("cache_clear" in finding for finding in checked["files"][0]["findings"])


@pytest.mark.slow
@pytest.mark.parametrize("style", ["mllog", "v0.6"])
def test_a_written_log_imports_as_the_run_that_it_is_of(tiny: Path, tmp_path: Path, style: str) -> None:
    logs, ledger = tmp_path / "logs", tmp_path / "ledger.sqlite3"
    ask("mlperf", "log", "last", "-o", str(logs), "--style", style, "--ledger", str(tiny))
    run = ask_json("results", "--ledger", str(tiny))["runs"][-1]
    imported = ask_json("import", str(logs / "result_0.txt"), "--ledger", str(ledger))["runs"][0]
    # The log has milliseconds.
    assert 60 / imported["rate_per_s"] == pytest.approx(60 / run["rate_per_s"], abs=0.005)
    assert imported["workload"] == "fit/transformer"


@pytest.mark.slow
def test_a_log_is_never_overwritten(tiny: Path, tmp_path: Path) -> None:
    ask("mlperf", "log", "last", "-o", str(tmp_path), "--ledger", str(tiny))
    ask("mlperf", "log", "last", "-o", str(tmp_path), "--ledger", str(tiny), code=2)


def test_a_run_without_a_log_is_a_sentence(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.sqlite3")
    ask("run", "--cmd", "true", "--runs", "1", "--ledger", ledger)
    ask("mlperf", "log", "last", "-o", str(tmp_path / "logs"), "--ledger", ledger, code=2)
    assert not (tmp_path / "logs").exists()


def test_the_spelling_of_v06_has_seconds() -> None:
    start = '{"namespace": "", "time_ms": 1594790166560, "event_type": "INTERVAL_START", "key": "run_start", '
    line = f':::MLLOG {start}"value": null, "metadata": {{"lineno": 3}}}}'
    assert as_v06(line) == ':::MLL 1594790166.560 run_start: {"value": null, "metadata": {"lineno": 3}}'


def test_the_checker_passes_published_logs_and_rejects_cut_ones(tmp_path: Path) -> None:
    good = next(iter(sorted((REFERENCE / "ssd").glob("result_*.txt"))))
    cut = tmp_path / "cut.txt"
    cut.write_text("".join(line for line in good.read_text().splitlines(keepends=True) if "run_stop" not in line))
    checked = ask_json("mlperf", "check", str(good), str(cut), "--ruleset", "0.6.0", code=7)
    assert [one["passed"] for one in checked["files"]] == [True, False]
    assert any("run_stop" in finding for finding in checked["files"][1]["findings"])


@pytest.mark.parametrize(("file", "ruleset"), [("nowhere.txt", "0.6.0"), (".", "0.6.0"), (__file__, "9.9.9")])
def test_wrong_files_and_rules_are_sentences(file: str, ruleset: str) -> None:
    ask("mlperf", "check", file, "--ruleset", ruleset, code=2)


def test_a_benchmark_that_a_ruleset_does_not_have_is_a_sentence(tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    entry = '{"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": "%s", "value": "%s", "metadata": {}}'
    said = [("submission_division", "open"), ("submission_benchmark", "gnmt")]
    log.write_text("".join(f":::MLLOG {entry % one}\n" for one in said))
    (finding,) = ask_json("mlperf", "check", str(log), "--ruleset", "4.1.0", code=3)["files"][0]["findings"][-1:]
    assert {"gnmt", "open", "4.1.0"} <= set(finding.split())
    assert "FileNotFoundError" not in finding
