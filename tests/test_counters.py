"""Counters before and after a run: which differences invalidate it, which flag it, and what cannot be known."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from remark_kinds import kinds_of
from stackmark.machine.counters import (
    SLOWDOWNS,
    XIDS,
    Counters,
    CpuCounters,
    GpuCounters,
    XidWatch,
    Zone,
    compare,
    read,
)

UUID = "GPU-11111111-2222-3333-4444-555555555555"
# NVML's own words.
LOST = "GPU is lost"

HEALTHY = GpuCounters(
    ecc_corrected_volatile=5,
    ecc_corrected_aggregate=50,
    ecc_uncorrected_volatile=1,
    ecc_uncorrected_aggregate=2,
    rows_remapped_correctable=1,
    rows_remapped_uncorrectable=0,
    row_remap_pending=0,
    row_remap_failed=0,
    pcie_replays=7,
    limited_s={"power_cap": 100.0, "thermal": 3.0},
    energy_j=1000.0,
    temperature_c=40,
    clock_sm_mhz=1980,
)
BEFORE = Counters(time_s=10.0, uuid=UUID, gpu=HEALTHY, xids=())


def later(seconds: float = 10.0, **changed: object) -> Counters:
    """The healthy GPU a while later, with what changed."""
    return replace(BEFORE, time_s=10.0 + seconds, gpu=replace(HEALTHY, **changed))  # type: ignore[arg-type]


def test_a_run_in_which_nothing_happened_is_valid_and_has_no_flags() -> None:
    findings = compare(BEFORE, later())
    assert findings.invalid == ()
    assert findings.flags == ()
    assert findings.notes == ()


@pytest.mark.parametrize(
    ("counter", "value"),
    [
        ("ecc_uncorrected_volatile", 2),
        ("ecc_uncorrected_aggregate", 4),
        ("rows_remapped_correctable", 2),
        ("rows_remapped_uncorrectable", 1),
        ("row_remap_pending", 1),
        ("row_remap_failed", 1),
    ],
)
def test_an_error_that_was_not_repaired_invalidates(counter: str, value: int) -> None:
    findings = compare(BEFORE, later(**{counter: value}))
    assert kinds_of(findings.invalid) == [counter.replace("_", "-")]


@pytest.mark.parametrize(("counter", "value"), [("ecc_corrected_volatile", 6), ("pcie_replays", 10)])
def test_an_error_that_was_repaired_flags_with_its_number(counter: str, value: int) -> None:
    findings = compare(BEFORE, later(**{counter: value}))
    assert findings.invalid == ()
    (flag,) = findings.flags
    assert kinds_of(findings.flags) == [counter.replace("_", "-")]
    assert flag.startswith(f"{findings.metrics[counter]:.0f} ")


def test_a_counter_that_went_back_is_a_reset_and_invalidates() -> None:
    findings = compare(BEFORE, later(ecc_uncorrected_volatile=0))
    assert kinds_of(findings.invalid) == ["gpu-reset"]


def test_a_new_xid_invalidates_and_an_old_one_does_not() -> None:
    before = replace(BEFORE, xids=(13,))
    assert compare(before, replace(later(), xids=(13,))).invalid == ()
    (said,) = invalid = compare(before, replace(later(), xids=(13, 79))).invalid
    assert kinds_of(invalid) == ["xid"]
    assert "XID 79" in said
    assert XIDS[79] in said


def test_a_gpu_that_cannot_be_read_afterwards_invalidates() -> None:
    findings = compare(BEFORE, replace(later(), gpu=None, gpu_problem=LOST))
    assert kinds_of(findings.invalid) == ["gpu-lost"]
    assert LOST in findings.invalid[0]


def test_another_gpu_afterwards_invalidates() -> None:
    assert kinds_of(compare(BEFORE, replace(later(), uuid="GPU-other")).invalid) == ["gpu-changed"]


def test_a_row_that_already_waited_flags_but_does_not_invalidate() -> None:
    before = replace(BEFORE, gpu=replace(HEALTHY, row_remap_pending=1))
    findings = compare(before, later(row_remap_pending=1))
    assert findings.invalid == ()
    assert kinds_of(findings.flags) == ["row-remap-pending-before"]


def test_the_power_cap_flags_with_its_share_of_the_time() -> None:
    findings = compare(BEFORE, later(10.0, limited_s={"power_cap": 108.3, "thermal": 3.0}))
    assert findings.invalid == ()
    assert findings.metrics["limited_power_cap_share"] == pytest.approx(0.83)
    assert findings.metrics["limited_thermal_share"] == 0
    assert kinds_of(findings.flags) == ["limited-power-cap"]
    assert "83.0 %" in findings.flags[0]


def test_a_moment_under_a_limit_is_measured_but_not_flagged() -> None:
    findings = compare(BEFORE, later(10.0, limited_s={"power_cap": 100.005, "thermal": 3.0}))
    assert findings.metrics["limited_power_cap_share"] == pytest.approx(0.0005)
    assert findings.flags == ()


def test_a_hardware_slowdown_at_the_end_is_flagged_and_idleness_is_not() -> None:
    brake = SLOWDOWNS[-1]
    findings = compare(BEFORE, later(clock_reasons=("idle", brake)))
    (flag,) = findings.flags
    assert kinds_of(findings.flags) == ["slowdown"]
    assert brake in flag


def test_energy_is_the_difference_of_the_counter() -> None:
    assert compare(BEFORE, later(10.0, energy_j=8000.0)).metrics["energy_j"] == 7000


def test_energy_of_a_short_window_is_not_given_and_it_is_said() -> None:
    findings = compare(BEFORE, later(3.0, energy_j=8000.0))
    assert "energy_j" not in findings.metrics
    assert kinds_of(findings.notes) == ["no-energy"]


def test_a_missing_end_gives_no_energy() -> None:
    assert "energy_j" not in compare(BEFORE, later(energy_j=None)).metrics


def test_nothing_is_concluded_from_counters_that_are_missing() -> None:
    before = replace(BEFORE, gpu=GpuCounters())
    findings = compare(before, later(row_remap_failed=1, ecc_uncorrected_volatile=99))
    assert findings.invalid == ()
    assert findings.flags == ()


def test_heat_and_clock_at_both_ends_are_metrics() -> None:
    metrics = compare(BEFORE, later(temperature_c=71, clock_sm_mhz=1755)).metrics
    assert (metrics["temperature_start_c"], metrics["temperature_end_c"]) == (40, 71)
    assert (metrics["clock_sm_start_mhz"], metrics["clock_sm_end_mhz"]) == (1980, 1755)


# --- the host's side ----------------------------------------------------------------------------------------------


def on_cpu(seconds: float, cpu: CpuCounters) -> Counters:
    return Counters(time_s=seconds, cpu=cpu)


def test_a_cpu_quota_that_stopped_the_run_flags_it() -> None:
    before = on_cpu(0.0, CpuCounters(quota_stops=4, quota_stopped_s=1.0))
    findings = compare(before, on_cpu(10.0, CpuCounters(quota_stops=54, quota_stopped_s=3.5)))
    assert findings.metrics["cpu_quota_stopped_s"] == 2.5
    (flag,) = findings.flags
    assert kinds_of(findings.flags) == ["cpu-quota"]
    assert " 50 " in flag


def test_heat_and_a_shared_hypervisor_flag_the_run() -> None:
    before = on_cpu(0.0, CpuCounters(thermal_throttles=1, steal_s=5.0))
    flags = compare(before, on_cpu(10.0, CpuCounters(thermal_throttles=3, steal_s=7.0))).flags
    assert kinds_of(flags) == ["cpu-heat", "cpu-stolen"]
    assert " 2 " in flags[0]
    assert " 0.2 " in flags[1]


def test_a_killed_process_invalidates() -> None:
    findings = compare(on_cpu(0.0, CpuCounters(oom_kills=0)), on_cpu(10.0, CpuCounters(oom_kills=1)))
    assert kinds_of(findings.invalid) == ["oom-kills"]
    assert " 1 " in findings.invalid[0]


def test_cpu_energy_survives_the_counters_wrap() -> None:
    before = on_cpu(0.0, CpuCounters(energy={"package-0": Zone(9_000_000, 10_000_000), "package-1": Zone(0, 10**7)}))
    after = on_cpu(
        10.0, CpuCounters(energy={"package-0": Zone(2_000_000, 10_000_000), "package-1": Zone(10**6, 10**7)})
    )
    assert compare(before, after).metrics["cpu_energy_j"] == pytest.approx(4.0)


def test_the_hosts_counters_are_read_from_the_kernels_files(tmp_path: Path) -> None:
    cpus = "sys/devices/system/cpu"
    files = {
        "proc/self/cgroup": "0::/run\n",
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "proc/stat": "cpu  1 2 3 4 5 6 7 800 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n",
        "sys/fs/cgroup/run/cpu.stat": "nr_throttled 2\nthrottled_usec 1000\n",
        "sys/fs/cgroup/run/memory.events": "oom_kill 3\n",
        f"{cpus}/online": "0-1\n",
        f"{cpus}/cpu0/thermal_throttle/core_throttle_count": "1\n",
        f"{cpus}/cpu1/thermal_throttle/core_throttle_count": "2\n",
        f"{cpus}/cpu0/thermal_throttle/package_throttle_count": "10\n",
        f"{cpus}/cpu1/thermal_throttle/package_throttle_count": "10\n",
        "sys/class/powercap/intel-rapl:0/name": "package-0\n",
        "sys/class/powercap/intel-rapl:0/energy_uj": "123\n",
        "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "1000\n",
        "sys/class/powercap/intel-rapl:0:0/name": "core\n",
        "sys/class/powercap/intel-rapl:0:0/energy_uj": "45\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    cpu = read(root=tmp_path).cpu
    assert (cpu.quota_stops, cpu.quota_stopped_s, cpu.oom_kills) == (2, 0.001, 3)
    assert cpu.thermal_throttles == 1 + 2 + 10
    assert cpu.energy == {"package-0": Zone(123, 1000)}
    assert cpu.steal_s == 8.0


def test_this_machine_can_be_read_twice() -> None:
    findings = compare(read(), read())
    assert findings.invalid == ()
    assert findings.metrics["counters_elapsed_s"] > 0


# --- reading a GPU ------------------------------------------------------------------------------------------------


class FakeNvml:
    """A driver with the GPU we do not have. What it was not told to answer is not supported, as in old drivers."""

    NVMLError = pynvml.NVMLError

    def __init__(self, **answers: object) -> None:
        self.called: list[str] = []
        self.answers: dict[str, object] = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "gpu0",
            "nvmlDeviceGetUUID": UUID,
            **answers,
        }

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            self.called.append(name)
            answer = self.answers.get(name, pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))
            if name not in self.answers or isinstance(answer, Exception):
                raise answer  # type: ignore[misc]
            return answer(*arguments) if callable(answer) else answer

        return call


def fields(handle: object, ids: list[int]) -> object:
    """The real structure, with a power cap of 2.5 s, and no other field known to this driver."""
    values = (pynvml.c_nvmlFieldValue_t * len(ids))()
    for value, number in zip(values, ids, strict=True):
        value.fieldId = number
        value.nvmlReturn = pynvml.NVML_SUCCESS if number == 74 else pynvml.NVML_ERROR_NOT_SUPPORTED
        value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        value.value.ullVal = 2_500_000_000
    return values


def test_a_gpus_counters_are_read_and_the_unsupported_are_none() -> None:
    nvml = FakeNvml(
        nvmlDeviceGetTotalEccErrors=lambda handle, kind, since: {(0, 0): 1, (0, 1): 2, (1, 0): 3, (1, 1): 4}[
            kind, since
        ],
        nvmlDeviceGetRemappedRows=(5, 6, 0, 1),
        nvmlDeviceGetFieldValues=fields,
        nvmlDeviceGetTotalEnergyConsumption=123_456,
    )
    gpu = read(UUID, module=nvml).gpu
    assert gpu == GpuCounters(
        ecc_corrected_volatile=1,
        ecc_corrected_aggregate=2,
        ecc_uncorrected_volatile=3,
        ecc_uncorrected_aggregate=4,
        rows_remapped_correctable=5,
        rows_remapped_uncorrectable=6,
        row_remap_pending=0,
        row_remap_failed=1,
        limited_s={"power_cap": 2.5},
        energy_j=123.456,
    )


def test_a_lost_gpu_is_a_problem_and_not_a_set_of_unknowns() -> None:
    nvml = FakeNvml(nvmlDeviceGetPowerUsage=pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
    counters = read(UUID, module=nvml)
    assert counters.gpu is None
    assert counters.gpu_problem == LOST


def test_without_a_driver_there_is_a_note_and_no_verdict() -> None:
    nvml = FakeNvml(nvmlInit=pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    findings = compare(read(UUID, module=nvml), read(UUID, module=nvml))
    assert findings.invalid == ()
    assert kinds_of(findings.notes) == ["xids-not-watched", "gpu-not-read"]


def events(*xids: int) -> Callable[[object, int], object]:
    waiting = [SimpleNamespace(eventType=8, eventData=xid) for xid in xids]

    def wait(event_set: object, timeout_ms: int) -> object:
        if not waiting:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return waiting.pop(0)

    return wait


def watched(wait: object) -> FakeNvml:
    return FakeNvml(
        nvmlEventSetCreate="set", nvmlDeviceRegisterEvents=None, nvmlEventSetWait_v2=wait, nvmlEventSetFree=None
    )


def test_xids_are_collected_while_watched_and_the_set_is_given_back() -> None:
    nvml = watched(events(31, 94))
    with XidWatch(UUID.removeprefix("GPU-"), nvml) as watch:
        assert watch.poll() == (31, 94)
        assert watch.poll() == (31, 94)
    assert nvml.called.count("nvmlEventSetFree") == 1
    assert nvml.called.count("nvmlInit") == nvml.called.count("nvmlShutdown") == 1


def test_a_reading_takes_the_xids_along() -> None:
    nvml = watched(events(48))
    with XidWatch(UUID, nvml) as watch:
        assert read(UUID, watch, module=nvml).xids == (48,)


def test_a_driver_that_reports_no_xids_is_said_and_not_an_error() -> None:
    with XidWatch(UUID, FakeNvml(nvmlEventSetCreate="set", nvmlEventSetFree=None)) as watch:
        assert watch.poll() is None
        assert "Not Supported" in str(watch.problem)
        before = read(UUID, watch, module=FakeNvml())
    assert "xids-not-watched" in kinds_of(compare(before, before).notes)


def test_a_watch_that_ends_early_keeps_what_it_saw_and_says_so() -> None:
    nvml = watched(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
    with XidWatch(UUID, nvml) as watch:
        assert watch.poll() == ()
        assert LOST in str(watch.problem)


def test_without_a_gpu_under_test_nothing_is_watched() -> None:
    with XidWatch(None) as watch:
        assert watch.poll() is None


def test_other_programs_on_the_gpu_are_counted_without_our_own() -> None:
    assert "other_gpu_processes" not in compare(BEFORE, later()).metrics
    assert BEFORE.gpu is not None
    before = replace(BEFORE, gpu=replace(BEFORE.gpu, processes=1))
    assert compare(before, later(processes=1)).metrics["other_gpu_processes"] == 0
    assert compare(before, later(processes=3)).metrics["other_gpu_processes"] == 2
