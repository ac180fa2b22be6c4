"""The Python API: it gives what the commands give, and the examples of its page run."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stackmark as sm
from asking import ask
from experiment_asking import ledger_of_a_command

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
LOGS = Path(__file__).parent / "data" / "logs"
CALM: dict[str, Any] = {"steps": 4, "warmup_steps": 0}


@pytest.fixture
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from ledger_of_a_command(tmp_path, monkeypatch)


def shown(*arguments: str) -> Any:
    answer = ask(*arguments, "--json")
    assert answer.out, answer.err
    return json.loads(answer.out)


def test_a_run_gives_what_the_command_gives(ledger_file: Path) -> None:
    result = sm.run("trick/calm", runs=2, **CALM)
    assert result.ok
    assert result.rate_per_s
    assert result.interval_per_s
    assert result.interval_per_s[0] < result.rate_per_s < result.interval_per_s[1]
    assert shown("show", result.id) == sm.load(result.id).to_dict()
    assert shown("show", result.runs()[0].id) == sm.load_run(result.runs()[0].id).to_dict()


def test_the_stored_command_repeats_it(ledger_file: Path) -> None:
    result = sm.run("trick/calm", runs=1, **CALM)
    command = result.row.command.split()
    assert command[:3] == ["stackmark", "run", "trick/calm"]
    (again,) = shown(*command[1:])["results"]
    assert again.keys() == result.to_dict().keys()
    assert again["spec_digest"] == result.to_dict()["spec_digest"]


def test_a_comparison_gives_what_the_command_gives(ledger_file: Path, tmp_path: Path) -> None:
    verdict = sm.compare("trick/calm", arms=["host", "host"], blocks=2, margin=0.4, order_seed=1, **CALM)
    assert len(verdict.comparisons) == 1
    assert verdict.to_dict() == shown("verdict", "last")
    assert str(verdict) == ask("verdict", "last").out
    wider = sm.load("last").verdict(margin=0.3)
    assert wider.to_dict() == shown("verdict", "last", "--margin", "30%")
    assert verdict.report(tmp_path / "r.md").read_text() == ask("report", "last", "--format", "markdown").out
    assert "<!doctype html>" in sm.load("last").report(tmp_path / "r.html").read_text()


def test_a_failed_run_is_a_result_and_an_error_where_it_is_asked_for(ledger_file: Path) -> None:
    result = sm.run("command/own", cmd="false", runs=1)
    assert not result.ok
    assert result.rate_per_s is None
    with pytest.raises(sm.WorkerError):
        result.raise_for_failure()


@pytest.mark.parametrize(
    "given", [{"steps": "many"}, {"nothing": 1}, {"on": "nowhere"}, {"ranks": 0}, {"on": "host,steps=3"}, {"shm": "1g"}]
)
def test_what_cannot_be_is_our_own_error(given: dict[str, Any], ledger_file: Path) -> None:
    with pytest.raises(sm.SpecError) as found:
        sm.run("trick/calm", **given)
    assert found.value.message
    assert not ledger_file.exists()


def test_a_ledger_may_be_open_or_named(ledger_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite3"
    with sm.Ledger.open(str(other)) as ledger:
        first = sm.run("trick/calm", runs=1, ledger=ledger, **CALM)
        assert [row.experiment_id for row in ledger.runs()] == [first.id]
    second = sm.run("trick/calm", runs=1, ledger=other, **CALM)
    assert sm.load("last", other).id == second.id
    assert not ledger_file.exists()


def test_a_callback_hears_what_happens(ledger_file: Path) -> None:
    heard: list[sm.Progress] = []
    result = sm.run("trick/calm", runs=2, progress=heard.append, **CALM)
    ended = [one for one in heard if one.kind == "ended"]
    assert [(one.number, one.of) for one in ended] == [(1, 2), (2, 2)]
    assert [one.rate_per_s for one in ended] == [row.rate_per_s for row in result.runs()]
    assert {"probe", "run", "phase"} <= {one.kind for one in heard}


def test_an_interrupted_comparison_goes_on(ledger_file: Path) -> None:
    def stop(progress: sm.Progress) -> None:
        if progress.kind == "ended" and progress.number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sm.compare("trick/calm", arms=["host", "host"], blocks=2, primers=False, progress=stop, **CALM)
    experiment = sm.load("last")
    assert experiment.is_open()
    verdict = experiment.resume()
    assert verdict.examined.state == "done"
    assert len(experiment.runs()) == 4


def test_results_show_themselves_in_a_notebook(ledger_file: Path) -> None:
    verdict = sm.compare("trick/calm", arms=["host", "host"], blocks=2, **CALM)
    page = verdict._repr_html_()
    assert "data:image/svg+xml;base64," in page
    assert "<script" not in page
    result = sm.run("command/own", cmd="echo '<b>'", runs=1)
    assert "&lt;b&gt;" in result._repr_html_()
    assert "<b>'" not in result._repr_html_()
    assert "<table>" in sm.load_run("last")._repr_html_()


def test_a_baseline_is_saved_and_checked_as_by_the_commands(ledger_file: Path) -> None:
    first = sm.run("trick/calm", runs=2, **CALM)
    saved = sm.save_baseline("before", experiments=[first.id])
    assert saved.to_dict()["saved"] == [{"experiment": first.id, "new": True}]
    again = sm.save_baseline("before", runs=1)
    assert [one.label for one in again.series] == ["trick/calm"]
    assert again.to_dict()["holds"] == [{"workload": "trick/calm", "series": 1, "runs": 3}]
    assert sm.list_baselines().to_dict() == shown("baseline", "list")
    checked = sm.check("before", runs=1, margin=0.4)
    (one,) = checked.workloads
    assert one.comparison
    assert sm.load(one.experiment_id).row.command == "stackmark check before --margin 0.4 --runs 1"
    assert checked.exit_code() == 0
    assert checked.to_dict().keys() == shown("check", "before", "--runs", "1", "--margin", "40%").keys()
    assert checked.junit().count("<testcase") == 1
    assert sm.delete_baseline("before") == 2


def test_a_baseline_of_a_new_workload_is_measured(ledger_file: Path) -> None:
    saved = sm.save_baseline("new", "trick/calm", runs=1, **CALM)
    assert saved.exit_code == 0
    assert sm.load("last").row.command == "stackmark baseline save new trick/calm --runs 1 --steps 4 --warmup-steps 0"
    with pytest.raises(sm.SpecError):
        sm.save_baseline("new", steps=3)


def test_runs_are_listed_exported_and_recovered_as_by_the_commands(ledger_file: Path, tmp_path: Path) -> None:
    for _ in range(2):
        sm.run("command/own", cmd="false", runs=1)
    listed = sm.list_runs(sm.RunFilter(status="failed"), limit=1)
    assert (len(listed.runs), listed.total) == (1, 2)
    assert listed.to_dict() == shown("results", "--status", "failed", "--limit", "1")
    assert sm.export(tmp_path / "runs.csv") == 2
    assert (tmp_path / "runs.csv").read_bytes().decode() == ask("export", "--format", "csv").out
    with pytest.raises(sm.SpecError):
        sm.export(tmp_path / "runs.xls")
    assert sm.recover().to_dict() == shown("recover")


def test_logs_are_imported_and_compared_as_by_the_command(ledger_file: Path) -> None:
    log = str(LOGS / "tf_cnn" / "t4_host_1gpu.log")
    imported = sm.import_logs(log, place="host", params={"precision": "fp32"})
    assert imported.exit_code == 0
    assert [run.place for run in imported.runs] == ["host"]
    again = sm.import_logs([log])
    assert (again.exit_code, again.experiment_id) == (2, None)
    assert again.to_dict() == shown("import", log)
    arms = sm.import_arms({"host": [log], "container": [str(LOGS / "tf_cnn" / "t4_container_1gpu.log")]}, again=True)
    assert arms.verdict().comparisons[0].ratio
    scores = sm.score_mlperf([str(LOGS / "mlperf_v0.6")])
    assert scores.to_dict() == shown("mlperf", "score", str(LOGS / "mlperf_v0.6"))


def test_published_rows_are_found_as_by_the_command(ledger_file: Path) -> None:
    assert sm.search_published("resnet50 V100", unit="images/s").to_dict() == shown(
        "published", "search", "resnet50", "V100", "--unit", "images/s"
    )
    gemm = sm.search_published("op/gemm", sizes={"m": "7680"})
    assert gemm.to_dict() == shown("published", "search", "op/gemm", "--m", "7680")
    nothing = sm.search_published("no-such-model")
    assert (nothing.total, bool(nothing.why)) == (0, True)


def test_facts_manifest_and_image_are_those_of_the_commands(ledger_file: Path) -> None:
    assert sm.facts(["software"]).facts.keys() == shown("facts", "software")["facts"].keys()
    job = sm.manifest("train/lenet", image="registry.example/w:1", gpus="none", device="cpu")
    asked = ("manifest", "train/lenet", "--image", "registry.example/w:1", "--gpus", "none", "--device", "cpu")
    assert job.to_dict() == shown(*asked)
    assert job.yaml() == ask(*asked).out
    assert sm.image(base="ubi9").to_dict() == shown("image", "--base", "ubi9")
    with pytest.raises(sm.SpecError):
        sm.image(foundation="ubi9")


@pytest.mark.parametrize(
    "call",
    [
        lambda: sm.doctor(kubeconfig="/nowhere"),
        lambda: sm.run_cluster_tests(kubeconfig="/nowhere"),
        lambda: sm.clean_cluster(kubeconfig="/nowhere"),
        lambda: sm.plan_fault("kubelet", "train/lenet", kubeconfig="/nowhere"),
        lambda: sm.sweep("train/lenet", kubeconfig="/nowhere"),
        lambda: sm.plan_fault("roof", "train/lenet"),
        lambda: sm.plan_fault("kubelet", "train/lenet", seconds=0.5),
        lambda: sm.sweep("train/lenet", confirm=1),
        lambda: sm.kept_ceilings(),
        lambda: sm.roofline("last"),
        lambda: sm.check("nothing"),
    ],
)
def test_what_is_not_there_is_our_own_error(call: Callable[[], object], ledger_file: Path) -> None:
    with pytest.raises(sm.StackmarkError) as found:
        call()
    assert found.value.message


@pytest.mark.parametrize(
    ("name", "not_loaded"),
    [
        ("list_runs", "stackmark.experiments.recorder"),
        ("search_published", "stackmark.experiments.recorder"),
        ("run", "stackmark.cluster.doctor"),
        ("doctor", "stackmark.experiments.sweep.sweep"),
    ],
)
def test_a_name_loads_its_own_chapter_only(name: str, not_loaded: str) -> None:
    code = (
        "import sys, stackmark as sm; assert 'stackmark.api' not in sys.modules; dir(sm); "
        f"sm.{name}; assert {not_loaded!r} not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_public_name_is_there() -> None:
    with pytest.raises(AttributeError):
        _ = sm.nothing  # type: ignore[attr-defined]
    assert all(hasattr(sm, name) for name in sm.__all__)


def test_the_examples_of_its_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 6
    env = {
        **os.environ,
        "STACKMARK_LEDGER": str(tmp_path / "ledger.sqlite3"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()
