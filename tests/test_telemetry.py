"""What is sampled next to a run: by a real sampler here, by a driver of GPUs that we do not have, from made streams."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_nvml import MIB, UUID, FakeNvml
from recorded import read
from stackmark import events
from stackmark.api.ledgers import export
from stackmark.api.stored import load
from stackmark.errors import StreamError
from stackmark.events import Event, Phase, Sample, Sampled, Steps
from stackmark.ids import new_id
from stackmark.ledger.rows import Experiment, RunEnd, RunStart
from stackmark.ledger.store import Ledger
from stackmark.machine.nvml import Nvml
from stackmark.machine.sampler import MOST_SAMPLES, Samples, sample
from stackmark.machine.telemetry import Rates, Telemetry, host
from stackmark.machine.telemetry_gpu import Gpus
from stackmark.spec import Task
from stackmark.verdict.telemetry import moved_with_steps, read_telemetry, say_waited
from worker_process import environment, eventually, install, trick, work


def test_a_worker_samples_its_machine_and_tells_it_after_the_measured_part(tmp_path: Path) -> None:
    spec = trick("calm", steps=20, step_s=0.05)
    done = work(Task(do="run", spec=spec, sample_hz=10), environment(install(tmp_path)))
    assert done.code == 0, done.stderr
    stream = events.Stream()
    for line in done.lines:
        stream.feed(line)
    kinds = done.kinds()
    measured = max(number for number, one in enumerate(done.events) if one.get("phase") == "measure")
    assert kinds.index("sampled") > measured
    found = read_telemetry(stream.events, {})
    assert found is not None
    assert {"cpu.busy", "run.cpus", "memory.used_mib", "run.memory_mib"} <= set(found.spans)
    assert 0 <= found.spans["run.cpus"].mean < 2  # it sleeps
    times = [one["at_s"] for one in done.events if one["event"] == "sample"]
    assert times == sorted(times)
    assert found.begin_s is not None
    assert found.begin_s < times[-1]


def test_a_worker_that_is_not_asked_to_samples_nothing(tmp_path: Path) -> None:
    done = work(Task(do="run", spec=trick("calm")), environment(install(tmp_path)))
    assert done.code == 0
    assert not {"sample", "sampled"} & set(done.kinds())


def test_only_one_rank_of_a_machine_samples(tmp_path: Path) -> None:
    spec = trick("calm").model_copy(update={"ranks": 2})
    done = work(Task(do="run", spec=spec, sample_hz=10), environment(install(tmp_path)))
    assert [one["rank"] for one in done.events if one["event"] == "sampled"] == [0]


def test_a_sampler_ends_with_its_parent_though_a_forked_process_holds_its_input(tmp_path: Path) -> None:
    source = """
import os, sys, time
from stackmark.machine.sampler import Sampler
sampler = Sampler(os.getpid(), 0.001)
if os.fork() == 0:
    time.sleep(600)
print(sampler._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    parent = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, start_new_session=True)
    assert parent.stdout is not None
    try:
        pid = int(parent.stdout.readline())
        assert parent.wait() == -9
        eventually(lambda: not Path(f"/proc/{pid}").exists())
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


def test_a_long_run_is_thinned_to_a_bound_and_keeps_its_beginning_and_its_end() -> None:
    samples = Samples(interval_s=0.5)
    at_s = 0.0
    while at_s < 86_400:
        samples.add(at_s, {"x": at_s})
        at_s += samples.interval_s
    assert len(samples.taken) <= MOST_SAMPLES
    assert samples.taken[0][0] == 0.0
    assert samples.taken[-1][0] >= 86_400 - 2 * samples.interval_s


def test_a_collector_that_fails_says_so_once_and_is_left_out() -> None:
    calls = []

    def broken() -> dict[str, float]:
        calls.append(1)
        raise OSError("no such sensor")

    telemetry = Telemetry({"good": lambda: {"good": 1.0}, "broken": broken})
    assert [telemetry.read(), telemetry.read()] == [{"good": 1.0}] * 2
    assert len(calls) == 1
    assert telemetry.problems == {"broken": "broken is not sampled: no such sensor"}


def test_what_only_rises_becomes_a_rate_and_a_counter_that_began_again_is_none() -> None:
    rates = Rates()
    assert rates("bytes", 100.0, 1.0) == {}
    assert rates("bytes", 300.0, 2.0) == {"bytes": 200.0}
    assert rates("bytes", 10.0, 3.0) == {}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_a_containers_control_group_and_its_network_are_read(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    files = {
        "proc/1/cgroup": "0::/\n",
        "proc/self/mountinfo": "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
        "proc/1/net/dev": "a\nb\n    lo: 9 0 0 0 0 0 0 0 9 0\n  eth0: 1048576 0 0 0 0 0 0 0 0 0\n",
        f"{group}/cpu.stat": "usage_usec 1000000\nnr_periods 10\nnr_throttled 1\nthrottled_usec 0\n",
        f"{group}/memory.current": str(64 * MIB),
        f"{group}/cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        f"{group}/memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull total=0\n",
        f"{group}/io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull total=0\n",
    }
    collectors = host(1, tree(tmp_path, files))
    telemetry = Telemetry({name: collectors[name] for name in ("group", "network")})
    assert telemetry.read() == {"group.memory_mib": 64.0}
    tree(
        tmp_path,
        {
            "proc/1/net/dev": files["proc/1/net/dev"].replace("1048576", str(100 * MIB)),
            f"{group}/cpu.stat": "usage_usec 9000000\nnr_periods 99\nnr_throttled 50\nthrottled_usec 4000000\n",
        },
    )
    second = telemetry.read()
    assert second["group.cpus"] == pytest.approx(2 * second["group.stopped"], rel=0.01)
    assert second["network.received_mib_s"] > 0
    assert second["network.sent_mib_s"] == 0
    assert telemetry.problems == {}


# --- GPUs, by the answers of a driver that is not there -----------------------------------------------------------------


def h200(**more: object) -> FakeNvml:
    """A driver with one GPU under load."""
    answers: dict[str, object] = {
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "gpu",
        "nvmlDeviceGetUUID": UUID,
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=66, memory=7),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=140_000 * MIB, used=2_000 * MIB),
        "nvmlDeviceGetPowerUsage": 626_300,
        "nvmlDeviceGetTotalEnergyConsumption": 5_000_000,
        "nvmlDeviceGetTemperature": 52,
        "nvmlDeviceGetClockInfo": lambda _handle, kind: {1: 1980, 2: 3201}[kind],
        "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
        "nvmlDeviceGetComputeRunningProcesses_v3": [SimpleNamespace(pid=1, usedGpuMemory=MIB)],
        "nvmlDeviceGetPcieThroughput": lambda _handle, direction: 1024 * (1 + direction),
        "nvmlDeviceGetFieldValues": lambda _handle, wanted: [
            SimpleNamespace(nvmlReturn=0, fieldId=82, valueType=1, value=SimpleNamespace(uiVal=61))
            for field in wanted
            if field == 82
        ],
    }
    return FakeNvml(**{**answers, **more})


def test_a_gpu_is_sampled_and_pcie_traffic_only_now_and_then() -> None:
    with Gpus(h200()) as gpus:
        telemetry = Telemetry(dict(gpus.collectors()))
        first, second = telemetry.read(), telemetry.read()
        assert gpus.facts() == {"gpu0": {"uuid": UUID, "name": "NVIDIA H200"}}
    assert first == {
        "gpu0.use": 0.66, "gpu0.memory_use": 0.07, "gpu0.memory_mib": 2000.0, "gpu0.power_w": 626.3, "gpu0.energy_j": 5000.0,
        "gpu0.temperature_c": 52.0, "gpu0.memory_temperature_c": 61.0, "gpu0.clock_sm_mhz": 1980.0,
        "gpu0.clock_memory_mhz": 3201.0, "gpu0.reasons": 4.0, "gpu0.processes": 1.0, "gpu0.pcie_sent_mib_s": 1.0,
        "gpu0.pcie_received_mib_s": 2.0,
    }  # fmt: skip
    assert set(first) - set(second) == {"gpu0.pcie_sent_mib_s", "gpu0.pcie_received_mib_s"}


def test_a_gpu_that_is_lost_ends_its_own_samples_and_no_other() -> None:
    def lost(_handle: object) -> int:
        raise FakeNvml.NVMLError(15)

    with Gpus(h200(nvmlDeviceGetPowerUsage=lost)) as gpus:
        telemetry = Telemetry({**dict(gpus.collectors()), "host": lambda: {"x": 1.0}})
        assert telemetry.read() == {"x": 1.0}
        assert "does not answer" in telemetry.problems["gpu0"]


def test_an_amd_card_is_sampled_by_the_kernels_files(tmp_path: Path) -> None:
    card = "sys/class/drm/card0/device"
    files = {
        f"{card}/vendor": "0x1002\n", f"{card}/unique_id": "abc\n", f"{card}/product_name": "MI300X\n",
        f"{card}/gpu_busy_percent": "80\n", f"{card}/mem_info_vram_used": str(512 * MIB),
        f"{card}/pp_dpm_sclk": "0: 132Mhz\n1: 2100Mhz *\n", f"{card}/hwmon/hwmon1/power1_average": "600000000\n",
        f"{card}/hwmon/hwmon1/temp1_input": "55000\n", f"{card}/hwmon/hwmon1/temp1_label": "edge\n",
    }  # fmt: skip
    with Gpus(FakeNvml(nvmlDeviceGetCount=0), tree(tmp_path, files)) as gpus:
        assert Telemetry(dict(gpus.collectors())).read() == {
            "gpu0.use": 0.8, "gpu0.memory_mib": 512.0, "gpu0.power_w": 600.0, "gpu0.temperature_c": 55.0,
            "gpu0.clock_sm_mhz": 2100.0,
        }  # fmt: skip


def test_sampling_ends_when_it_is_told_to() -> None:
    left = iter([False, False, True])
    with Gpus(h200()) as gpus:
        samples = sample(Telemetry(dict(gpus.collectors())), 10.0, lambda _wait_s: next(left))
    assert len(samples.taken) == 3
    assert isinstance(gpus.found[0].nvml, Nvml)  # type: ignore[union-attr]


# --- what it says -------------------------------------------------------------------------------------------------------

FACTS: dict[str, dict[str, Any]] = {"gpu": {"under_test": UUID, "devices": [{"uuid": UUID}]}}


def made(values: Callable[[int], dict[str, float]], step_s: Sequence[float] = (0.1,) * 100) -> list[Event]:
    """The events of a run of ten seconds, of which each half second was sampled, from two seconds on."""
    return [
        Phase(seq=0, t=2.0, phase="measure", state="begin"),
        Steps(seq=1, t=3.0, phase="measure", first=0, step_s=list(step_s)),
        Phase(seq=2, t=2.0 + sum(step_s), phase="measure", state="end", seconds=sum(step_s)),
        Sampled(
            seq=3,
            t=12.2,
            gpus={"gpu0": {"uuid": "GPU-other"}, "gpu1": {"uuid": UUID}},
            hz=2.0,
            interval_s=0.5,
            samples_all=30,
            cpu_s=0.02,
            elapsed_s=14.0,
        ),
        *(Sample(seq=4 + n, t=12.3, at_s=n / 2, values=values(n)) for n in range(28)),
    ]


def test_a_quantity_is_summed_up_over_the_measured_part_alone() -> None:
    found = read_telemetry(made(lambda n: {"gpu1.use": 0.0 if n < 4 else 0.5 if n < 14 else 0.9}), FACTS)
    assert found is not None
    span = found.spans["gpu1.use"]
    assert (found.gpu, span.minimum, span.maximum, span.samples) == ("gpu1", 0.5, 0.9, 20)
    assert found.gpu_waited == pytest.approx(0.3)
    assert found.cost_share == pytest.approx(0.02 / 14)
    assert "30 %" in say_waited([found], None)
    assert "10 %" in say_waited([found], 0.1)


def test_a_run_that_ended_early_or_was_never_sampled_says_so() -> None:
    cut_off = [one for one in made(lambda n: {"cpu.busy": 1.0}) if not (isinstance(one, Phase) and one.state == "end")]
    found = read_telemetry(cut_off, {})
    assert found is not None
    assert (found.spans, found.end_s, found.gpu_waited) == ({}, None, None)
    assert read_telemetry([one for one in cut_off if not isinstance(one, Sampled)], {}) is None


def test_a_clock_that_falls_while_steps_grow_is_named_and_one_that_stands_is_not() -> None:
    steps = [0.1 * (1 + 0.3 * (n >= 45)) for n in range(90)]
    falling = read_telemetry(made(lambda n: {"gpu1.clock_sm_mhz": 1980.0 if n < 13 else 1500.0}, steps), FACTS)
    assert falling is not None
    assert falling.with_steps["gpu1.clock_sm_mhz"] < -0.9
    (said,) = moved_with_steps([falling, falling])
    assert "lower" in said
    assert "1,500 MHz to 1,980 MHz" in said
    still = read_telemetry(made(lambda n: {"gpu1.clock_sm_mhz": 1980.0}, steps), FACTS)
    wild = read_telemetry(made(lambda n: {"gpu1.clock_sm_mhz": 1900.0 + 80 * (n % 2)}, steps), FACTS)
    assert still is not None
    assert wild is not None
    assert moved_with_steps([still, still]) == []
    assert moved_with_steps([wild, wild]) == []


def test_a_stream_that_claims_impossible_samples_is_a_broken_one() -> None:
    line = '{"event":"sample","seq":0,"rank":0,"t":0,"at_s":-1,"values":{"x":1}}'
    with pytest.raises(StreamError):
        events.Stream().feed(line)
    whole = json.loads(events.write_event(made(lambda n: {"x": math.pi})[-1]))
    assert whole["values"] == {"x": math.pi}


# --- in the ledger, as a run of an H200 would have it -------------------------------------------------------------------


def with_samples(lines: Sequence[str], values: Callable[[int], dict[str, float]]) -> list[str]:
    """The stream of a recorded run on a GPU, with samples put behind its measured part."""
    told = [json.loads(line) for line in lines]
    begin = next(one["t"] for one in told if one.get("phase") == "measure" and one.get("state") == "begin")
    at = next(n for n, one in enumerate(told) if one.get("phase") == "measure" and one.get("state") == "end")
    end = told[at]["t"]
    uuid = next(one["facts"] for one in told if one.get("subject") == "gpu" and "devices" in one["facts"])["under_test"]
    about = Sampled(
        seq=0, t=end, hz=2.0, interval_s=0.5, samples_all=20, cpu_s=0.01, elapsed_s=20.0, gpus={"gpu0": {"uuid": uuid}}
    )
    moments = [begin + (end - begin) * n / 20 for n in range(1, 20)]
    samples = [Sample(seq=0, t=end, at_s=moment, values=values(n)) for n, moment in enumerate(moments)]
    added = [json.loads(events.write_event(one)) for one in (about, *samples)]
    return [json.dumps({**one, "seq": seq}) for seq, one in enumerate([*told[: at + 1], *added, *told[at + 1 :]])]


def put(book: Ledger, values: Callable[[int], dict[str, float]]) -> str:
    """The first run of a recorded comparison on an H200, sampled, as an experiment of its own; its id."""
    one = read("h200_noise")["runs"][0]
    row = one["run"]
    experiment = Experiment(id=new_id("x"), created_unix_s=row["started_unix_s"], command="stackmark run")
    start = RunStart.model_validate({key: row[key] for key in RunStart.model_fields if key in row})
    book.start_experiment(experiment)
    alone = {"experiment_id": experiment.id, "role": "measured", "block": None, "arm": 0, "position": 0}
    book.start(start.model_copy(update=alone))
    end = RunEnd.model_validate({key: row[key] for key in RunEnd.model_fields})
    book.finish(start.id, end, with_samples(one["lines"], values))
    return experiment.id


def test_a_gpu_that_waits_is_a_headline_of_run_and_others_on_it_are_interference(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as book:
        put(book, lambda n: {"gpu0.use": 0.66, "gpu0.processes": 1.0 + (n == 5), "gpu0.power_w": 600.0 + n})
        found = load("last", book).measured()
        assert found is not None
        (told,) = found.to_dict()["telemetry"]
        assert told["gpu_waited_share"] == pytest.approx(0.34)
        assert told["quantities"]["gpu0.power_w"]["max"] == 618.0
        (line,) = [line for line in str(found).splitlines() if line.startswith("GPU")]
        assert "waited 34 % of the time" in line
        assert any(one["kind"] == "interference" for one in found.to_dict()["warnings"])
        page = load("last", book).report(tmp_path / "report.html").read_text()
        assert 'id="telemetry"' in page
        assert "GPU: power" in page
        comment = load("last", book).report(tmp_path / "report.md").read_text()
        assert "A: the GPU waited 34 % of the time" in comment
        assert "| GPU: power | 609 W (600 W to 618 W) |" in comment


def test_samples_are_exported_a_row_for_each_quantity_and_moment(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as book:
        put(book, lambda n: {"gpu0.power_w": 600.0 + n, "=1+1": 1.0})
        assert export(tmp_path / "samples.jsonl", samples=True, ledger=book) == 2 * 19
        rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
        assert {row["schema"] for row in rows} == {"stackmark.sample-row/1"}
        power = [row for row in rows if row["name"] == "gpu0.power_w"]
        assert [row["value"] for row in power] == [600.0 + n for n in range(19)]
        assert {(row["unit"], row["measured"]) for row in power} == {("W", True)}
        export(tmp_path / "samples.csv", samples=True, ledger=book)
        assert "'=1+1" in (tmp_path / "samples.csv").read_text()
