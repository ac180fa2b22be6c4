"""Joules per output token of a server on this machine: by a driver whose counters are a formula of what the server wrote."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from endpoint_server import KnownServer, known_server
from fake_nvml import FakeNvml
from stackmark.experiments.serving import ServingResult
from stackmark.show.serving import served_lines
from stackmark.workloads.serve.endpoint import Address, EndpointParams, read_address
from stackmark.workloads.serve.impl import endpoint
from stackmark.workloads.serve.impl.client import energy
from stackmark.workloads.serve.impl.client.energy import Meter, Refused, idle_power, is_this_machine, open_meter
from stackmark.workloads.workload import TimedFigure
from test_endpoint import params_of
from train_rig import RecordingRig

IDLE_W, JOULES_EACH = 90.0, 0.5
HERE = Address(False, "127.0.0.1", 8000, "/v1")


def driver(joules: Callable[[], float] | None = None, gpus: int = 1, **answers: Any) -> FakeNvml:
    """A driver whose counters move every 20 ms; only GPU 0 has a program. It answers by the numbers of its GPUs."""

    def counter(_gpu: int) -> int:
        return int(1000 * (joules or (lambda: IDLE_W * (time.monotonic() // 0.02 * 0.02)))())

    usual: dict[str, Any] = {
        "nvmlDeviceGetCount": gpus,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}",
        "nvmlDeviceGetMaxMigDeviceCount": 0,
        "nvmlDeviceGetComputeRunningProcesses_v3": lambda gpu: [SimpleNamespace(pid=7)] if gpu == 0 else [],
        "nvmlDeviceGetUtilizationRates": lambda _gpu: SimpleNamespace(gpu=0, memory=0),
        "nvmlDeviceGetTotalEnergyConsumption": counter,
    }
    return FakeNvml(**{**usual, **answers})


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that a test has time for."""
    for name, value in {"LEAST_S": 1.0, "SETTLE_S": 0.0, "IDLE_S": 1.0, "MOST_SHARE": 0.1}.items():
        monkeypatch.setattr(energy, name, value)


def opened(module: FakeNvml, held: ExitStack, asked: str = "", address: Address = HERE) -> Meter:
    meter = open_meter(address, asked, held, module)
    assert meter is not None
    return meter


def measured(params: EndpointParams) -> tuple[TimedFigure, RecordingRig]:
    """Run the workload in this process."""
    rig = RecordingRig()
    session = endpoint.run("endpoint", params, rig)
    try:
        told = next(session).run(lambda _line: None)
        next(session, None)
    finally:
        session.close()
    return told, rig


def computed(monkeypatch: pytest.MonkeyPatch, root: Path, module: FakeNvml) -> None:
    """Give this machine a driver."""
    (root / "dev").mkdir()
    (root / "dev/nvidiactl").touch()
    monkeypatch.setattr(energy, "ROOT", root)
    monkeypatch.setitem(sys.modules, "pynvml", module)


def of_server(server: KnownServer) -> Callable[[], float]:
    """Idling costs 90 W, and each token half a joule."""

    def joules() -> float:
        now_s = time.monotonic() // 0.02 * 0.02
        wrote = sum(at_ns * 1e-9 <= now_s for one in server.seen for at_ns in one.wrote_ns)
        return IDLE_W * now_s + JOULES_EACH * wrote

    return joules


def test_a_token_costs_what_the_counter_shows_with_and_without_idling(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short: None
) -> None:
    with known_server(ttft_s=0.01, itl_s=0.005) as server:
        computed(monkeypatch, tmp_path, driver(of_server(server)))
        told, rig = measured(params_of(url=server.url, generate="20", requests=0, seconds=2.0))
    metrics = {one.name: one for one in told.metrics}
    net, error = metrics["energy_per_output_token_net"], metrics["energy_per_output_token_net_error"]
    assert (net.unit, net.higher_is_better) == ("J", False)
    assert net.value == pytest.approx(JOULES_EACH, rel=0.1, abs=error.value)
    tokens = 2.0 * metrics["output_per_s"].value
    idle = metrics["idle_power"].value
    assert idle == pytest.approx(IDLE_W, rel=0.05)
    gross = metrics["energy_per_output_token"].value
    assert gross == pytest.approx(net.value + 2.0 * idle / tokens)
    assert metrics["energy_gpu0"].value == pytest.approx(gross * tokens)
    assert "idle power" in rig.parts
    assert not [flag for flag in rig.flags if "energy" in flag or "idle" in flag]


def test_a_window_that_is_too_short_for_the_counter_gives_no_energy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short: None
) -> None:
    with known_server() as server:
        computed(monkeypatch, tmp_path, driver())
        told, rig = measured(params_of(url=server.url, requests=0, seconds=0.5))
    assert not [one for one in told.metrics if "energy" in one.name]
    assert [flag for flag in rig.flags if flag.startswith("no-energy") and "--seconds" in flag]


def test_a_slow_counter_needs_two_hundred_times_its_update() -> None:
    with ExitStack() as held:
        meter = opened(driver(), held)
        meter.resolution_s = 0.1
        with meter.reading():
            now = time.monotonic_ns()
        with pytest.raises(Refused, match="needs 20"):
            meter.joules(now - 10 * 10**9, now)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"nvmlDeviceGetUtilizationRates": lambda _gpu: SimpleNamespace(gpu=3, memory=0)}, "busy"),
        ({"nvmlDeviceGetComputeRunningProcesses_v3": lambda _gpu: [SimpleNamespace(pid=pid) for pid in (1, 2)]}, "2 programs"),
    ],
)  # fmt: skip
def test_idle_power_is_not_measured_while_somebody_else_may_use_the_gpu(
    answers: dict[str, Any], why: str, short: None
) -> None:
    with ExitStack() as held:
        meter = opened(driver(**answers), held)
        meter.rest()
        with meter.reading():
            began = time.monotonic_ns()
            time.sleep(0.05)
        metrics, flags = meter.per_token(began, began + 11 * 10**8, 10.0)
    assert meter.idle is None
    assert why in meter.not_idle
    assert {one.name for one in metrics} == {"energy_per_output_token", "energy_gpu0"}
    assert [flag.partition(":")[0] for flag in flags] == ["no-idle-power"]


def test_a_counter_that_stands_still_is_refused(short: None) -> None:
    with ExitStack() as held, pytest.raises(Refused, match="stood still"):
        opened(driver(lambda: 5.0), held).rest()


def test_a_counter_that_fails_or_goes_back_gives_no_energy(short: None) -> None:
    values = iter([100.0, 90.0, 80.0, 70.0])
    with ExitStack() as held:
        meter = opened(driver(lambda: next(values, 60.0)), held)
        with meter.reading():
            now = time.monotonic_ns()
        metrics, flags = meter.per_token(now, now + 11 * 10**8, 10.0)
    assert metrics == []
    assert "went back" in flags[0]
    module = driver()
    del module.answers["nvmlDeviceGetTotalEnergyConsumption"]
    with ExitStack() as held, pytest.raises(Refused, match="cannot be read"):
        opened(module, held).rest()


def test_the_gpus_with_a_program_are_counted_unless_others_are_named() -> None:
    with ExitStack() as held:
        assert opened(driver(gpus=3), held).names == "0"
        assert opened(driver(gpus=3), held, "1+2").names == "1+2"
        with pytest.raises(Refused, match="no GPU 7"):
            opened(driver(gpus=3), held, "7")
        with pytest.raises(Refused, match="--server-gpu-ids"):
            opened(driver(nvmlDeviceGetComputeRunningProcesses_v3=lambda _gpu: []), held)
        sliced: dict[str, Any] = {
            "nvmlDeviceGetMaxMigDeviceCount": 1,
            "nvmlDeviceGetMigDeviceHandleByIndex": lambda _gpu, _place: "part",
        }
        with pytest.raises(Refused, match="MIG"):
            opened(driver(**sliced), held)


def test_gpus_of_another_machine_are_never_counted() -> None:
    elsewhere = Address(False, "192.0.2.1", 8000, "")
    assert not is_this_machine(elsewhere)
    assert [is_this_machine(read_address(f"http://{host}:1")) for host in ("127.0.0.1", "localhost", "[::1]")] == [
        True
    ] * 3
    with ExitStack() as held:
        assert open_meter(elsewhere, "", held, driver()) is None
        with pytest.raises(Refused, match="not this machine"):
            open_meter(elsewhere, "0", held, driver())


@pytest.mark.parametrize("ids", ["0,1", "x", "0+0", "-1"])
def test_numbers_of_gpus_that_cannot_be_are_refused(ids: str) -> None:
    with pytest.raises(ValueError):
        params_of(server_gpu_ids=ids)


def test_a_spec_without_the_gpus_keeps_its_hash() -> None:
    assert "server_gpu_ids" not in params_of().model_dump(mode="json")
    assert params_of(server_gpu_ids="0+1").model_dump(mode="json")["server_gpu_ids"] == "0+1"


def test_the_error_of_idle_power_follows_its_spread() -> None:
    even = [(at_ns, 100.0 * at_ns * 1e-9) for at_ns in range(0, 5 * 10**9, 10**8)]
    assert idle_power([even]).power_w == pytest.approx(100)
    assert idle_power([even, even]).power_w == pytest.approx(200)
    uneven = [(at_ns, joules + (20.0 if at_ns > 4 * 10**9 else 0.0)) for at_ns, joules in even]
    assert idle_power([even]).error_w < 1 < 5 < idle_power([uneven]).error_w


def test_the_screen_says_both_and_whose_counters_they_are() -> None:
    said = {
        "energy_per_output_token": 1.25, "energy_per_output_token_net": 0.75, "energy_per_output_token_net_error": 0.02,
        "idle_power": 180.0, "energy_gpu0": 300.0, "energy_gpu2": 310.0,
    }  # fmt: skip
    lines = dict(served_lines(ServingResult((), None, 2, client=said)))
    assert lines["energy"].startswith("1.25 J per output token (GPU 0+2")
    assert "0.75 ± 0.02 J without the 180 W" in lines["energy"]
    gross = {name: value for name, value in said.items() if "net" not in name and "idle" not in name}
    assert "idle power included" in dict(served_lines(ServingResult((), None, 2, client=gross)))["energy"]
    assert "energy" not in dict(served_lines(ServingResult((), None, 2, client={})))
