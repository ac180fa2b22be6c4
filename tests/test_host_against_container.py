"""The question itself, for real: a network trained on the host and in podman, by the command line, down to the report.

This machine may be noisy: runs differ by 5 to 8 %, and no test here asserts a verdict that chance could turn.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from asking import ask_process

SMALL = ("train/resnet20", "--batch", "2", "--steps", "6", "--warmup-seconds", "0", "--warmup-steps", "2")
LIMITS = "container,engine=podman,cpus=1.5,memory=2g,shm=128m"


@dataclass(frozen=True)
class Compared:
    ledger: Path
    shown: dict[str, Any]
    err: str

    def arm(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self.shown["arms"][number]
        return found


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, podman_reach: dict[str, str]) -> Compared:
    folder = tmp_path_factory.mktemp("compared")
    arms = ("--arm", "host", "--arm", LIMITS, "--blocks", "2", "--no-primers")
    answer = ask_process(
        folder / "ledger.sqlite3",
        "compare",
        *SMALL,
        *arms,
        "--json",
        XDG_CACHE_HOME=str(folder / "cache"),
        **podman_reach,
    )
    assert answer.code == 0, answer.err
    return Compared(folder / "ledger.sqlite3", json.loads(answer.out), answer.err)


def test_it_ends_in_a_verdict_with_an_interval(compared: Compared) -> None:
    (pair,) = compared.shown["comparisons"]
    assert pair["word"] in ("EQUIVALENT", "SLOWER", "FASTER", "INCONCLUSIVE")
    assert 0 < pair["interval_90"]["low"] < pair["ratio"] < pair["interval_90"]["high"]
    # Blocks that a busy machine disturbed are repeated, so that there may be more of them.
    assert compared.shown["state"] == "done"
    assert compared.shown["blocks_whole"] >= 2
    # A ratio over all blocks contains those, too, that were disturbed and measured again.
    rates = [
        {(run["block"], run["attempt"]): run["rate_per_s"] for run in compared.shown["runs"] if run["arm"] == n}
        for n in (0, 1)
    ]
    ratios = [rates[1][whole] / rates[0][whole] for whole in rates[0].keys() & rates[1].keys()]
    assert min(ratios) <= pair["ratio"] <= max(ratios)


def test_the_container_arm_was_in_a_container_with_its_limits(compared: Compared) -> None:
    facts = compared.arm(1)["facts"]
    assert facts["container"]["engine"] == "podman"
    assert facts["container"]["software"] == "host"
    assert facts["cgroup"]["cpu_limit_cpus"] == pytest.approx(1.5)
    assert facts["cgroup"]["memory_limit_mib"] == 2048
    assert facts["limits"]["shm_mib"] == 128
    assert compared.arm(0)["facts"]["cgroup"]["cpu_limit_cpus"] is None


def test_both_arms_ran_the_same_software_and_the_same_kernels(compared: Compared) -> None:
    host, container = (compared.arm(n)["facts"] for n in (0, 1))
    assert container["software"] == host["software"] | {"executable": container["software"]["executable"]}
    assert container["kernels"]["hash"] == host["kernels"]["hash"]
    assert any(sentence.startswith("the kernels:") for sentence in compared.shown["held"])


def test_the_start_of_the_container_is_timed_apart(compared: Compared) -> None:
    parts = [[one["part"] for one in compared.arm(n)["setup"]] for n in (0, 1)]
    assert parts[0] == parts[1]
    assert parts[0][:2] == ["start", "import"]


def test_nothing_is_left_of_it(compared: Compared) -> None:
    ids = [run["run_id"] for run in compared.shown["runs"]]
    left = subprocess.run(
        ["podman", "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True, check=True
    ).stdout
    assert not any(run_id in left for run_id in ids)
    assert not list((compared.ledger.parent / "cache" / "stackmark" / "experiments").iterdir())


def test_the_verdict_is_recomputed_at_another_margin_and_written_as_a_report(compared: Compared) -> None:
    again = ask_process(compared.ledger, "verdict", "last", "--margin", "40%", "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["comparisons"][0]["ratio"] == compared.shown["comparisons"][0]["ratio"]
    page = compared.ledger.parent / "report.html"
    assert ask_process(compared.ledger, "report", "last", "-o", str(page)).code == 0
    assert "memory=2g" in page.read_text()


def test_a_limit_of_cpu_time_is_named_with_how_often_it_was_reached(
    tmp_path: Path, podman_reach: dict[str, str]
) -> None:
    """What it costs depends on the machine's load, and is not asserted."""
    arms = (
        "--arm",
        "container,engine=podman",
        "--arm",
        "container,engine=podman,cpus=0.1",
        "--blocks",
        "2",
        "--no-primers",
    )
    answer = ask_process(
        tmp_path / "ledger.sqlite3",
        "compare",
        "--cmd",
        f"{sys.executable} -c 'sum(range(5_000_000))'",
        *arms,
        "--json",
        XDG_CACHE_HOME=str(tmp_path / "cache"),
        **podman_reach,
    )
    assert answer.code == 0, answer.err
    shown = json.loads(answer.out)
    (limit,) = [one for one in shown["differences"] if one["key"] == "cpu_limit_cpus"]
    assert (limit["subject"], limit["values"][1], limit["shows_effect"]) == ("cgroup", "0.1 CPUs", True)
    stops = [(run["arm"], run["covariates"]["cpu_quota_stops"]) for run in shown["runs"]]
    assert any(count for arm, count in stops if arm == 1)
    assert not any(count for arm, count in stops if arm == 0)
