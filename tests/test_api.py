"""The Python API: it gives what the commands give, and the examples of its page run."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stackmark as sm
from asking import ask
from experiment_asking import ledger_of_a_command

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
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


def test_names_are_loaded_when_they_are_used() -> None:
    code = "import sys, stackmark as sm; assert 'stackmark.api' not in sys.modules; sm.run; dir(sm)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
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
        [sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()
