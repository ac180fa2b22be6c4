"""A busy machine is said before the first run: what others keep busy, and not what is ours."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from asking import ask
from fake_nvml import FakeNvml
from naming import missing
from stackmark.experiments import surroundings
from stackmark.experiments.surroundings import Surroundings, idle_cpus_before, look_around
from stackmark.ledger.rows import Experiment
from stackmark.ledger.store import Ledger
from stackmark.machine import busy
from stackmark.machine.busy import Busy, BusyGpu, Program, busy_gpus, look

HERTZ = os.sysconf("SC_CLK_TCK")


def machine(root: Path, cpu_s: float, programs: dict[int, tuple[str, int, float]]) -> None:
    """A /proc whose CPUs worked for so long; of each process its name, its parent and its own CPU time."""
    ticks = round(cpu_s * HERTZ)
    (root / "proc").mkdir(parents=True, exist_ok=True)
    (root / "proc/stat").write_text(f"cpu  {ticks} 0 0 99999 77 0 0 0 0 0\n")
    for pid, (name, parent, used_s) in programs.items():
        folder = root / "proc" / str(pid)
        folder.mkdir(exist_ok=True)
        fields = ["S", str(parent), *["0"] * 9, str(round(used_s * HERTZ)), "0", *["0"] * 20]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        (folder / "comm").write_text(f"{name}\n")


def passing(monkeypatch: pytest.MonkeyPatch, seconds: float, what: Callable[[], None]) -> None:
    """Let time pass where the machine is looked at: `what` happens meanwhile."""
    now = [100.0]

    def sleep(_: float) -> None:
        what()
        now[0] += seconds

    monkeypatch.setattr(busy, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))


def test_the_busiest_programs_are_named_and_what_is_ours_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.getpid()
    before = {7: ("python (x) y", 1, 5.0), 8: ("cc", 1, 1.0), 9: ("idle", 1, 2.0), me: ("us", 1, 3.0)}
    machine(tmp_path, 50.0, before)
    after = {**before, 7: ("python (x) y", 1, 5.92), 8: ("cc", 1, 1.5), me: ("us", 1, 3.2), 11: ("child", me, 0.1)}
    passing(monkeypatch, 1.0, lambda: machine(tmp_path, 51.72, after))
    found = look(root=tmp_path)
    assert found is not None
    assert found.cpus == pytest.approx(1.72 - 0.3)
    assert [(one.name, round(one.cpus, 2)) for one in found.programs] == [("python (x) y", 0.92), ("cc", 0.5)]


def test_a_machine_without_proc_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert look(0.0, tmp_path) is None


def test_looking_at_this_machine_gives_a_share_of_its_cores() -> None:
    began = time.monotonic()
    found = look(0.1)
    assert found is not None
    assert 0.0 <= found.cpus <= found.cores * 1.5
    assert time.monotonic() - began < 5


def test_programs_on_a_gpu_are_counted_and_named_where_they_can_be_seen(tmp_path: Path) -> None:
    machine(tmp_path, 1.0, {41: ("trainer", 1, 1.0)})
    listed = {"gpu0": [41, 4_000_001, os.getpid()], "gpu1": []}
    nvml = FakeNvml(
        nvmlDeviceGetCount=2,
        nvmlDeviceGetHandleByIndex=lambda index: f"gpu{index}",
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetName=lambda _: "NVIDIA H200",
        nvmlDeviceGetComputeRunningProcesses_v3=lambda handle: [SimpleNamespace(pid=pid) for pid in listed[handle]],
    )
    assert busy_gpus(nvml, tmp_path) == (BusyGpu(0, "NVIDIA H200", 2, ("trainer",)),)


@pytest.mark.parametrize(
    ("cpus", "cores", "said"), [(0.2, 2, False), (0.3, 2, True), (1.0, 64, False), (1.4, 64, True)]
)
def test_a_load_is_said_from_the_amount_on_that_disturbs_a_run(cpus: float, cores: int, said: bool) -> None:
    assert bool(Surroundings(Busy(cpus, cores)).sentences()) == said


def test_what_is_said_has_the_cores_the_programs_and_the_gpus() -> None:
    found = Surroundings(Busy(1.94, 2, (Program("python", 0.92),)), (BusyGpu(1, "NVIDIA H200", 2, ("trainer",)),))
    cpus, gpu = found.sentences()
    assert missing(cpus, "1.9", "2 cores", "python 92 %") == []
    assert missing(gpu, "GPU 1", "NVIDIA H200", "2", "trainer") == []


def test_nothing_is_looked_at_here_for_runs_in_pods_alone() -> None:
    assert look_around(pytest.fail, ["pod", "pod"], 0.0) == Surroundings()


@pytest.mark.parametrize(
    "words", [("run", "--runs", "1"), ("compare", "--arm", "host", "--arm", "host", "--blocks", "2")]
)
def test_a_busy_machine_is_said_on_standard_error_and_stored(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "look", lambda _: Busy(1.9, 2, (Program("python", 0.92),)))
    monkeypatch.setattr(surroundings, "busy_gpus", lambda: ())
    ledger = str(tmp_path / "ledger.sqlite3")
    verb, *more = words
    answer = ask(verb, "--cmd", "echo rate: 12.5", "--metric", "rate: ([0-9.]+)", *more, "--json", "--ledger", ledger)
    assert missing(answer.err.splitlines()[0], "1.9", "2 cores", "python 92 %") == []
    with Ledger.open(ledger) as book:
        kept = book.experiment("last")
    assert idle_cpus_before(kept) == 1.9
    assert kept.request["surroundings"]["programs"] == [{"name": "python", "cpus": 0.92}]  # type: ignore[call-overload, index]


@pytest.mark.parametrize("kept", [None, 3, {}, {"busy_cpus": "many"}, {"busy_cpus": -1}, {"busy_cpus": 1e300}])
def test_a_ledger_that_holds_something_else_says_nothing_of_the_surroundings(kept: object) -> None:
    request = {} if kept is None else {"surroundings": kept}
    experiment = Experiment.model_validate({"id": f"x-{'0' * 26}", "created_unix_s": 1.0, "request": request})
    assert idle_cpus_before(experiment) is None
