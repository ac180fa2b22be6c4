"""Facts: read for real on the machine the tests run on, and from trees of files as other machines have them."""

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pynvml
import pytest

from fake_nvml import FakeNvml
from stackmark.events import Facts as FactsEvent
from stackmark.events import gathered_facts
from stackmark.machine import amd as amd_facts
from stackmark.machine import cgroup as cgroup_facts
from stackmark.machine import container as container_facts
from stackmark.machine import cpu as cpu_facts
from stackmark.machine import environment as environment_facts
from stackmark.machine import gpu as gpu_facts
from stackmark.machine import host as host_facts
from stackmark.machine import host as machine
from stackmark.machine import limits as limits_facts
from stackmark.machine import memory as memory_facts
from stackmark.machine import pci as pci_facts
from stackmark.machine import software as software_facts
from stackmark.machine.facts import COLLECTORS, SUBJECT_LIMIT_BYTES, Reading, collect
from stackmark.machine.reading import Json, cpu_list, cpu_set

UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER = "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
SLICE = "MIG-99999999-8888-7777-6666-555555555555"


def plant(root: Path, files: dict[str, str]) -> Path:
    """A tree of files, as the kernel's documentation and other machines have them."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def record(value: Json) -> dict[str, Json]:
    assert isinstance(value, dict)
    return value


def first(reading: Reading) -> dict[str, Json]:
    devices = reading.facts["devices"]
    assert isinstance(devices, list)
    return record(devices[0])


# --- collecting ---------------------------------------------------------------------------------------------------


def test_every_subject_is_told_and_fits_into_an_event() -> None:
    told = list(collect("cpu"))
    assert {subject.subject for subject in told} == set(COLLECTORS)
    for subject in told:
        assert len(json.dumps(subject.facts)) <= SUBJECT_LIMIT_BYTES


def test_a_collector_that_fails_leaves_the_others() -> None:
    def broken() -> Reading:
        raise PermissionError(13, "Permission denied", "/proc/secret")

    told = list(collect(collectors={"a": lambda: Reading({"x": 1}), "broken": broken, "b": lambda: Reading({"y": 2})}))
    assert [(subject.subject, subject.facts) for subject in told] == [("a", {"x": 1}), ("broken", {}), ("b", {"y": 2})]
    assert "Permission denied" in told[1].problems[0]


def test_a_long_subject_is_cut_into_pieces_that_merge_into_the_whole() -> None:
    whole: dict[str, Json] = {f"package-{i}": "1.2.3" for i in range(2000)}
    told = list(collect(collectors={"packages": lambda: Reading(whole, ("a problem",))}))
    assert len(told) > 1
    assert all(len(json.dumps(piece.facts)) <= SUBJECT_LIMIT_BYTES for piece in told)
    events = [FactsEvent(seq=i, rank=0, t=0.0, subject=s.subject, facts=s.facts) for i, s in enumerate(told)]
    assert gathered_facts(list(events))["packages"] == whole
    assert [piece.problems for piece in told[:2]] == [("a problem",), ()]


def test_a_value_longer_than_an_event_is_left_out_and_said() -> None:
    (told,) = collect(collectors={"odd": lambda: Reading({"long": "x" * 10_000, "short": 1})})
    assert told.facts == {"long": None, "short": 1}
    assert all(name in told.problems[0] for name in ("long", "odd"))


def test_a_tree_with_nothing_in_it_raises_only_what_the_border_catches(tmp_path: Path) -> None:
    readers: dict[str, Callable[[], Reading]] = {
        "host": lambda: host_facts.read(tmp_path, None),
        "cpu": lambda: cpu_facts.read(tmp_path),
        "numa": lambda: memory_facts.read_numa(tmp_path),
        "memory": lambda: memory_facts.read(tmp_path),
        "cgroup": lambda: cgroup_facts.read(tmp_path),
        "container": lambda: container_facts.read(tmp_path, {}),
        "limits": lambda: limits_facts.read(tmp_path),
        "process": lambda: limits_facts.read_process(tmp_path),
        "gpu_amd": lambda: amd_facts.read(tmp_path),
    }
    failed = {subject.subject for subject in collect(collectors=readers) if subject.problems}
    assert failed == {"host", "cpu", "numa", "memory", "cgroup", "limits"}


def test_the_printer_prints_one_json_object() -> None:
    printed = subprocess.run([sys.executable, "-m", "stackmark.machine"], capture_output=True, check=True).stdout
    assert set(COLLECTORS) < set(json.loads(printed))


@pytest.mark.parametrize(("listed", "cpus"), [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set())])
def test_cpu_lists_are_read_and_written_as_the_kernel_does(listed: str, cpus: set[int]) -> None:
    assert cpu_set(listed) == cpus
    assert cpu_list(cpus) == listed


# --- this machine -------------------------------------------------------------------------------------------------


def test_this_machine_has_a_kernel_a_boot_and_a_load() -> None:
    facts = host_facts.read().facts
    assert facts["kernel"] == os.uname().release
    assert facts["hostname"] == os.uname().nodename
    assert re.fullmatch(r"[0-9a-f-]{36}", str(facts["boot_id"]))
    assert float(str(facts["uptime_s"])) > 0


def test_the_machine_id_is_derived_as_systemd_derives_it() -> None:
    # The vector of systemd's own src/test/test-id128.c.
    raw = bytes.fromhex("51df0b4bc3b04c9780e299b98ca373b8")
    application = bytes.fromhex("f03daaeb1c334b43a732172944bf772e")
    assert machine.app_specific_id(raw, application) == "1dee5954e75c4d6fb96cc6c04ca18a86"


def test_a_derived_machine_id_is_a_well_formed_random_uuid() -> None:
    for number in range(32):
        derived = uuid.UUID(machine.app_specific_id(bytes([number] * 16), machine.APPLICATION_ID))
        assert (derived.version, derived.variant) == (4, uuid.RFC_4122)


def test_the_machine_id_itself_is_not_told(tmp_path: Path) -> None:
    raw = hashlib.md5(b"a machine").hexdigest()
    plant(tmp_path, {"etc/machine-id": raw + "\n"})
    told = machine.machine_id(tmp_path)
    assert told is not None
    assert raw not in told


def test_an_image_that_never_booted_has_no_machine_id(tmp_path: Path) -> None:
    assert machine.machine_id(plant(tmp_path, {"etc/machine-id": "uninitialized\n"})) is None


def test_this_processor_has_a_name_and_as_many_threads_as_the_kernel_says() -> None:
    facts = cpu_facts.read().facts
    assert facts["model"]
    assert facts["threads"] == os.sysconf("SC_NPROCESSORS_ONLN")


@pytest.mark.skipif(shutil.which("lscpu") is None, reason="lscpu is not installed")
def test_cores_and_sockets_agree_with_lscpu() -> None:
    printed = subprocess.run(["lscpu", "-p=SOCKET,CORE"], capture_output=True, text=True, check=True).stdout
    pairs = {tuple(line.split(",")) for line in printed.splitlines() if not line.startswith("#")}
    facts = cpu_facts.read().facts
    assert (facts["sockets"], facts["cores"]) == (len({socket for socket, _ in pairs}), len(pairs))


def test_memory_agrees_with_the_c_library() -> None:
    total_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20
    assert memory_facts.read().facts["total_mib"] == pytest.approx(total_mib, abs=1)


def test_shared_memory_is_what_the_file_system_says() -> None:
    room = os.statvfs("/dev/shm")
    assert limits_facts.read().facts["shm_mib"] == round(room.f_blocks * room.f_frsize / 2**20, 3)


def test_the_open_file_limit_is_the_c_librarys() -> None:
    import resource

    assert limits_facts.read().facts["open_files"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_the_affinity_is_the_processs_own() -> None:
    facts = limits_facts.read_process().facts
    assert facts["cpus_allowed"] == len(os.sched_getaffinity(0))
    assert cpu_set(str(facts["cpus"])) == os.sched_getaffinity(0)


def test_the_control_group_is_one_that_the_kernel_lists_for_this_process() -> None:
    facts = cgroup_facts.read().facts
    listed = [line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    assert facts["path"] in listed
    assert facts["version"] in ("v1", "v2", "hybrid")


def test_the_processes_of_a_pod_are_those_whose_control_group_names_its_uid(tmp_path: Path) -> None:
    uid, other = "0b4f6f0e-1c2d-4e5f-8a9b-0c1d2e3f4a5b", "0b4f6f0e-1c2d-4e5f-8a9b-0c1d2e3f4a5c"
    slices = f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice"
    plant(
        tmp_path,
        {
            "proc/11/cgroup": f"0::/kubepods/besteffort/pod{uid}/ctr\n",
            "proc/12/cgroup": f"0::/kubepods.slice/{slices}/cri-containerd-1.scope\n",
            "proc/13/cgroup": f"0::/kubepods/besteffort/pod{other}/ctr\n",
            "proc/14/cgroup": "0::/user.slice\n",
            "proc/15/stat": "it has ended\n",
        },
    )
    assert cgroup_facts.processes_of_pod(uid, tmp_path) == {11, 12}
    assert cgroup_facts.processes_of_pod("", tmp_path) == set()


# --- machines we do not have --------------------------------------------------------------------------------------

MOUNT_V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def test_the_tightest_limit_on_the_way_up_wins_in_version_2(tmp_path: Path) -> None:
    pod = "sys/fs/cgroup/kubepods.slice/pod1"
    plant(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kubepods.slice/pod1/ctr\n",
            "proc/self/mountinfo": MOUNT_V2,
            f"{pod}/ctr/cpu.max": "400000 100000\n",
            f"{pod}/ctr/memory.max": "max\n",
            f"{pod}/ctr/memory.swap.max": "0\n",
            f"{pod}/ctr/pids.max": "max\n",
            f"{pod}/ctr/cpuset.cpus.effective": "0-3,16-19\n",
            f"{pod}/ctr/cpu.stat": "usage_usec 5\nnr_periods 10\nnr_throttled 3\nthrottled_usec 250000\n",
            f"{pod}/ctr/memory.events": "low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n",
            f"{pod}/cpu.max": "150000 100000\n",
            f"{pod}/memory.max": "1073741824\n",
            f"{pod}/pids.max": "512\n",
            f"{pod}/cpu.stat": "nr_periods 10\nnr_throttled 2\nthrottled_usec 500000\n",
        },
    )
    facts = cgroup_facts.read(tmp_path).facts
    assert facts["version"] == "v2"
    assert facts["cpu_limit_cpus"] == 1.5
    assert facts["memory_limit_mib"] == 1024
    assert facts["swap_limit_mib"] == 0
    assert facts["pids_limit"] == 512
    assert (facts["cpuset"], facts["cpuset_cpus"]) == ("0-3,16-19", 8)
    assert (facts["throttled_times"], facts["throttled_s"]) == (5, 0.75)
    assert facts["oom_kills"] == 1


def test_the_usable_cpus_are_the_quota_where_it_is_less_than_the_affinity(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": MOUNT_V2, "sys/fs/cgroup/cpu.max": "50000 100000\n"}
    assert limits_facts.read_process(plant(tmp_path, files)).facts["cpus_usable"] == 0.5


def test_a_docker_container_on_version_1_reads_its_own_part_of_the_tree(tmp_path: Path) -> None:
    # Without a cgroup namespace the path is the host's, and the mount shows only what is under it.
    point = "sys/fs/cgroup"
    plant(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/docker/abc\n",
            "proc/self/mountinfo": (
                f"40 30 0:30 /docker/abc /{point}/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
                f"41 30 0:31 /docker/abc /{point}/memory ro - cgroup cgroup rw,memory\n"
                f"42 30 0:32 /docker/abc /{point}/cpuset ro - cgroup cgroup rw,cpuset\n"
            ),
            f"{point}/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
            f"{point}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            f"{point}/cpu,cpuacct/cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_time 1500000000\n",
            f"{point}/memory/memory.limit_in_bytes": "2147483648\n",
            f"{point}/memory/memory.memsw.limit_in_bytes": "4294967296\n",
            f"{point}/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            f"{point}/cpuset/cpuset.cpus": "2-5\n",
        },
    )
    facts = cgroup_facts.read(tmp_path).facts
    assert facts["version"] == "v1"
    assert facts["path"] == "/docker/abc"
    assert facts["cpu_limit_cpus"] == 2.5
    assert (facts["memory_limit_mib"], facts["swap_limit_mib"]) == (2048, 2048)
    assert facts["cpuset"] == "2-5"
    assert (facts["throttled_times"], facts["throttled_s"]) == (4, 1.5)
    assert facts["oom_kills"] == 2


def test_version_1_without_limits_has_none(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/\n4:cpu:/\n",
            "proc/self/mountinfo": (
                "40 30 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                "41 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            ),
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    facts = cgroup_facts.read(tmp_path).facts
    assert facts["cpu_limit_cpus"] is None
    assert facts["memory_limit_mib"] is None


def test_in_a_hybrid_set_up_each_controller_is_read_where_it_lives(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "proc/self/cgroup": "1:memory:/a\n0::/b\n",
            "proc/self/mountinfo": (
                "41 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "42 30 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            ),
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1048576\n",
            "sys/fs/cgroup/unified/b/memory.max": "4096\n",
            "sys/fs/cgroup/unified/b/cpu.max": "300000 100000\n",
        },
    )
    facts = cgroup_facts.read(tmp_path).facts
    assert facts["version"] == "hybrid"
    assert facts["memory_limit_mib"] == 1
    assert facts["cpu_limit_cpus"] == 3


def two_sockets(root: Path) -> Path:
    """Two sockets of two cores of two threads, one node each; the second socket's governor was forgotten."""
    base = "sys/devices/system"
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\nflags\t\t: avx2 amx_bf16 fpu\n",
        f"{base}/cpu/online": "0-7\n",
        f"{base}/cpu/smt/active": "1\n",
        f"{base}/cpu/intel_pstate/no_turbo": "1\n",
        f"{base}/cpu/vulnerabilities/meltdown": "Not affected\n",
        f"{base}/cpu/vulnerabilities/spectre_v2": "Mitigation: Enhanced IBRS\n",
        f"{base}/cpu/vulnerabilities/mds": "Vulnerable: no microcode\n",
        f"{base}/cpu/cpufreq/policy0/cpuinfo_max_freq": "3800000\n",
        f"{base}/cpu/cpufreq/policy0/scaling_driver": "intel_pstate\n",
    }
    for cpu in range(8):
        core = cpu % 4
        files[f"{base}/cpu/cpu{cpu}/topology/physical_package_id"] = f"{core // 2}\n"
        files[f"{base}/cpu/cpu{cpu}/topology/core_cpus_list"] = f"{core},{core + 4}\n"
        governor = "performance" if core < 2 else "powersave"
        files[f"{base}/cpu/cpufreq/policy{cpu}/scaling_governor"] = governor
    for node in range(2):
        files[f"{base}/node/node{node}/cpulist"] = f"{2 * node}-{2 * node + 1},{2 * node + 4}-{2 * node + 5}\n"
        memory = f"Node {node} MemTotal:       {65536 * 1024} kB\nNode {node} MemFree:  1024 kB\n"
        files[f"{base}/node/node{node}/meminfo"] = memory
        files[f"{base}/node/node{node}/distance"] = "10 21\n" if node == 0 else "21 10\n"
    return plant(root, files)


def test_a_server_of_two_sockets_is_counted_and_its_uneven_governors_are_seen(tmp_path: Path) -> None:
    facts = cpu_facts.read(two_sockets(tmp_path)).facts
    assert (facts["sockets"], facts["cores"], facts["threads"], facts["smt"]) == (2, 4, 8, True)
    assert facts["governor"] == "performance ×4, powersave ×4"
    assert facts["turbo"] is False
    assert facts["clock_max_mhz"] == 3800
    assert facts["flags"] == ["avx2", "amx_bf16"]
    assert (facts["vulnerable"], facts["mitigated"]) == (["mds"], ["spectre_v2"])


def test_a_server_of_two_nodes_shows_what_is_near_what(tmp_path: Path) -> None:
    facts = memory_facts.read_numa(two_sockets(tmp_path)).facts
    assert facts["nodes"] == 2
    expected = {"cpus": "2-3,6-7", "memory_mib": 65536, "free_mib": 1, "distance": [21, 10]}
    assert record(facts["node"])["1"] == expected


def test_an_arm_server_without_a_model_name_is_named_by_maker_and_part(tmp_path: Path) -> None:
    block = "processor\t: {}\nFeatures\t: fp asimd sve2 bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
    plant(tmp_path, {"proc/cpuinfo": "\n".join(block.format(i) for i in range(2))})
    facts = cpu_facts.read(tmp_path).facts
    assert facts["model"] == "Arm part 0xd4f"
    assert facts["flags"] == ["asimd", "bf16", "sve2"]
    assert (facts["cores"], facts["threads"]) == (2, 2)


@pytest.mark.parametrize(
    ("files", "environ", "engine"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": 'engine="podman-5.4.0"\nrootless=1\n'}, {}, "podman"),
        ({"proc/self/cgroup": "0::/kubepods/besteffort/pod1/cri-containerd-abc.scope\n"}, {}, "containerd"),
        ({"proc/self/cgroup": "0::/kubepods.slice/crio-abc.scope\n"}, {}, "cri-o"),
        ({}, {"container": "lxc"}, "lxc"),
        ({}, {"APPTAINER_CONTAINER": "/image.sif"}, "apptainer"),
        ({}, {}, "none"),
    ],
)
def test_container_engines_are_known_by_their_marks(
    tmp_path: Path, files: dict[str, str], environ: dict[str, str], engine: str
) -> None:
    assert container_facts.read(plant(tmp_path, files), environ).facts["engine"] == engine


def test_a_pod_is_known_by_its_namespace_and_its_token_is_not_read(tmp_path: Path) -> None:
    account = "var/run/secrets/kubernetes.io/serviceaccount"
    plant(
        tmp_path,
        {
            f"{account}/namespace": "bench",
            f"{account}/token": "TOP-SECRET",
            "proc/self/cgroup": "0::/kubepods/pod12345678-1234-1234-1234-123456789abc/x\n",
        },
    )
    facts = container_facts.read(tmp_path, {"SLURM_JOB_ID": "77"}).facts
    assert (facts["kubernetes"], facts["namespace"], facts["slurm_job_id"]) == (True, "bench", "77")
    assert facts["pod_uid"] == "12345678-1234-1234-1234-123456789abc"
    assert "TOP-SECRET" not in json.dumps(facts)


def test_a_container_engines_usual_privileges_are_named() -> None:
    # 00000000a80425fb is what docker gives by default.
    named = limits_facts.capabilities("00000000a80425fb", 40)
    assert named == (
        "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw "
        "sys_chroot mknod audit_write setfcap"
    )
    assert limits_facts.capabilities("000001ffffffffff", 40) == "all"
    assert limits_facts.capabilities("0000000000000000", 40) == "none"
    assert str(limits_facts.capabilities("000001fffeffffff", 40)).endswith(" sys_resource")


@pytest.mark.parametrize(
    ("flags", "vendor", "product", "virtualisation"),
    [
        ("fpu hypervisor", "QEMU", "Standard PC", "qemu"),
        ("fpu hypervisor", "Acme", "Cloud", "unknown hypervisor"),
        ("fpu", "Amazon EC2", "p5.48xlarge.metal", "none"),
    ],
)
def test_a_virtual_machine_is_told_from_a_machine(
    tmp_path: Path, flags: str, vendor: str, product: str, virtualisation: str
) -> None:
    plant(
        tmp_path,
        {
            "proc/cpuinfo": f"flags\t: {flags}\n",
            "proc/sys/kernel/osrelease": "6.1\n",
            "sys/class/dmi/id/sys_vendor": vendor,
            "sys/class/dmi/id/product_name": product,
        },
    )
    assert host_facts.read(tmp_path, detect_virt=None).facts["virtualisation"] == virtualisation


def test_an_amd_gpu_is_read_from_the_kernels_files(tmp_path: Path) -> None:
    card = "sys/class/drm/card1/device"
    plant(
        tmp_path,
        {
            "sys/class/drm/card0/device/vendor": "0x1a03\n",  # the board's own display chip
            "sys/class/drm/card1-DP-1/status": "disconnected\n",
            f"{card}/vendor": "0x1002\n",
            f"{card}/product_name": "AMD Instinct MI300X OAM\n",
            f"{card}/unique_id": "9246aa2b6f5b1234\n",
            f"{card}/mem_info_vram_total": f"{192 * 2**30}\n",
            f"{card}/pp_dpm_sclk": "0: 132Mhz\n1: 1700Mhz *\n2: 2100Mhz\n",
            f"{card}/uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:0c:00.0\n",
            f"{card}/numa_node": "-1\n",
            f"{card}/hwmon/hwmon3/power1_cap": "750000000\n",
            f"{card}/hwmon/hwmon3/temp2_input": "41000\n",
            f"{card}/hwmon/hwmon3/temp2_label": "junction\n",
            "sys/module/amdgpu/version": "6.10.5\n",
        },
    )
    reading = amd_facts.read(tmp_path)
    assert reading.facts["driver"] == "6.10.5"
    facts = first(reading)
    assert (facts["card"], facts["name"]) == ("card1", "AMD Instinct MI300X OAM")
    assert facts["memory_total_mib"] == 192 * 1024
    assert (facts["clock_mhz"], facts["clock_max_mhz"]) == (1700, 2100)
    assert facts["power_limit_w"] == 750
    assert facts["temperature_junction_c"] == 41
    assert facts["numa_node"] is None
    assert facts["pci_address"] == "0000:0c:00.0"


# --- NVIDIA -------------------------------------------------------------------------------------------------------


def two_gpus(**more: object) -> FakeNvml:
    """A box with two H100, the second of which is cut into slices. Handles are names."""
    names = {"gpu0": UUID, "gpu1": OTHER, "slice": SLICE}
    memory = {"slice": SimpleNamespace(total=10 * 2**30, used=0)}
    answers: dict[str, object] = {
        "nvmlSystemGetDriverVersion": "580.65.06",
        "nvmlSystemGetCudaDriverVersion": 13000,
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": lambda index: f"gpu{index}",
        "nvmlDeviceGetUUID": lambda handle: names[handle],
        "nvmlDeviceGetName": lambda handle: "NVIDIA H100" + (" MIG 1g.10gb" if handle == "slice" else ""),
        "nvmlDeviceGetMemoryInfo": lambda handle: memory.get(handle, SimpleNamespace(total=80 * 2**30, used=2**30)),
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetPowerUsage": 312_500,
        "nvmlDeviceGetEnforcedPowerLimit": 500_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetPowerManagementLimitConstraints": [200_000, 700_000],
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1755, 2: 2619}[kind],
        "nvmlDeviceGetTemperature": 61,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x40,
        "nvmlDeviceGetEccMode": [1, 1],
        "nvmlDeviceGetMigMode": lambda handle: [1, 1] if handle == "gpu1" else [0, 0],
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7 if handle == "gpu1" else 0,
        "nvmlDeviceGetMigDeviceHandleByIndex": lambda handle, index: "slice" if index == 2 else None,
        "nvmlDeviceGetVirtualizationMode": 1,
        "nvmlDeviceGetPciInfo_v3": SimpleNamespace(busId="00000000:0F:00.0"),
        "nvmlDeviceGetNvLinkState": _eighteen_links,
        "nvmlDeviceGetComputeRunningProcesses_v3": [
            SimpleNamespace(pid=os.getpid(), usedGpuMemory=2**30),
            SimpleNamespace(pid=4_000_000, usedGpuMemory=None),
        ],
    }
    return FakeNvml(**(answers | more))


def _eighteen_links(handle: object, link: int) -> int:
    if link >= 18:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return 1


def _no_library() -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def test_without_a_driver_the_gpu_says_what_to_do() -> None:
    reading = gpu_facts.read(module=FakeNvml(nvmlInit=_no_library))
    assert reading.facts["devices"] == []
    assert "libnvidia-ml.so.1" in reading.problems[0]


@pytest.mark.parametrize("name", [OTHER, OTHER.removeprefix("GPU-"), OTHER.upper()])
def test_the_gpu_under_test_is_found_by_its_uuid_and_comes_first(name: str) -> None:
    reading = gpu_facts.read("cuda:0", name, module=two_gpus())
    assert reading.facts["under_test"] == OTHER
    assert first(reading)["index"] == 1
    assert reading.facts["count"] == 2
    assert not reading.problems


@pytest.mark.parametrize(
    ("names", "absent"),
    [
        (["0", "1"], []),
        (["0", " 2 "], [" 2 "]),
        ([OTHER, OTHER[:12], SLICE], []),
        (["GPU-00000000-1111"], ["GPU-00000000-1111"]),
        ([], []),
    ],
)
def test_gpus_that_are_not_here_are_told_by_number_and_uuid(names: list[str], absent: list[str]) -> None:
    assert gpu_facts.not_here(names, module=two_gpus()) == (absent, 2)


@pytest.mark.parametrize(("nodes", "absent"), [(0, ["0", UUID, "1"]), (1, ["1"]), (2, [])])
def test_without_a_driver_that_answers_gpus_are_counted_by_their_nodes(
    tmp_path: Path, nodes: int, absent: list[str]
) -> None:
    root = plant(tmp_path, {f"dev/nvidia{number}": "" for number in range(nodes)})
    assert gpu_facts.not_here(["0", UUID, "1"], root, FakeNvml(nvmlInit=_no_library)) == (absent, nodes)


def test_a_gpu_is_told_in_full_with_units(tmp_path: Path) -> None:
    bus = "sys/bus/pci/devices/0000:0f:00.0"
    root = plant(tmp_path, {f"{bus}/numa_node": "1\n", f"{bus}/local_cpulist": "48-95\n"})
    reading = gpu_facts.read("cuda:0", UUID, root, two_gpus())
    assert (reading.facts["driver"], reading.facts["cuda_driver"]) == ("580.65.06", "13.0")
    facts = first(reading)
    assert facts["compute_capability"] == "9.0"
    assert facts["memory_total_mib"] == 80 * 1024
    assert (facts["power_w"], facts["power_limit_w"], facts["power_limit_default_w"]) == (312.5, 500, 700)
    assert facts["clock_reasons"] == ["power cap", "hardware thermal slowdown"]
    assert (facts["ecc"], facts["mig"], facts["virtualisation"]) == (True, False, "passthrough")
    assert (facts["numa_node"], facts["near_cpus"], facts["nvlinks_active"]) == (1, "48-95", 18)
    assert (facts["processes"], facts["processes_besides_us"], facts["processes_memory_mib"]) == (2, 1, 1024)


def test_a_call_that_the_driver_does_not_support_is_none_and_costs_no_other() -> None:
    facts = first(gpu_facts.read("cuda:0", UUID, module=two_gpus()))
    assert facts["pcie_generation"] is None
    assert facts["temperature_margin_c"] is None
    assert facts["temperature_c"] == 61


def test_a_mig_slice_is_found_in_its_gpu() -> None:
    reading = gpu_facts.read("cuda:0", SLICE.removeprefix("MIG-"), module=two_gpus())
    assert reading.facts["under_test"] == SLICE
    facts = first(reading)
    assert (facts["index"], facts["mig"]) == (1, True)
    assert record(facts["mig_device"])["name"] == "NVIDIA H100 MIG 1g.10gb"
    assert record(facts["mig_device"])["memory_total_mib"] == 10 * 1024


@pytest.mark.parametrize(
    ("environ", "under_test"),
    [
        ({"CUDA_VISIBLE_DEVICES": OTHER}, OTHER),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, OTHER),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, OTHER),
        ({"CUDA_VISIBLE_DEVICES": "1"}, None),
        ({}, None),
    ],
)
def test_without_a_uuid_the_device_is_named_only_where_it_cannot_be_another(
    environ: dict[str, str], under_test: str | None
) -> None:
    reading = gpu_facts.read("cuda:0", module=two_gpus(), environ=environ)
    assert reading.facts["under_test"] == under_test
    assert bool(reading.problems) == (under_test is None)


def test_sixteen_gpus_fit_into_one_event() -> None:
    many = two_gpus(
        nvmlDeviceGetCount=16,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle:08d}-2222-3333-4444-555555555555",
        nvmlDeviceGetName="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        nvmlDeviceGetCurrentClocksThrottleReasons=0x7FF,
        nvmlDeviceGetMigMode=[0, 0],
        nvmlDeviceGetMaxMigDeviceCount=0,
    )
    # A kilobyte in hand, for what this driver does not answer.
    assert len(json.dumps(gpu_facts.read("cuda:0", module=many, environ={}).facts)) < SUBJECT_LIMIT_BYTES - 1024


# --- software -----------------------------------------------------------------------------------------------------


def test_torch_is_not_imported_to_be_described() -> None:
    code = "import sys; from stackmark.machine.facts import collect; list(collect()); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_torch_is_described_where_it_is_loaded() -> None:
    torch = pytest.importorskip("torch")
    facts = software_facts.read().facts
    assert (facts["torch"], facts["torch_loaded"]) == (torch.__version__, True)
    assert facts["torch_git"] == torch.version.git_version
    assert facts["torch_threads"] == torch.get_num_threads()
    assert record(facts["torch_build"])["build_type"] == "Release"


def test_the_libraries_of_a_build_for_gpus_are_told_without_loading_them() -> None:
    """With what a build for CUDA answers, as torch 2.9 does; there is none here."""
    built = SimpleNamespace(cuda="12.8", hip=None, git_version="aaaa")
    config = "  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 1\n  - Intel(R) MKL-DNN v3.7.1 (Git"
    torch = SimpleNamespace(
        __version__="2.9.0+cu128", version=built, __config__=SimpleNamespace(show=lambda: config),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91002)),
        get_num_threads=lambda: 2, get_num_interop_threads=lambda: 1,
        _C=SimpleNamespace(_nccl_version=lambda: 2 << 32 | 27 << 16 | 5, _cuda_getArchFlags=lambda: "sm_90 sm_100"),
    )  # fmt: skip
    facts = software_facts.read({"torch": cast(ModuleType, torch)}).facts
    told = {name: facts[name] for name in ("cuda", "cudnn", "nccl", "mkl", "onednn", "torch_cuda_archs")}
    assert told == {
        "cuda": "12.8", "cudnn": 91002, "nccl": "2.27.5", "mkl": "2024.2", "onednn": "3.7.1",
        "torch_cuda_archs": ["sm_90", "sm_100"],
    }  # fmt: skip


def test_a_build_without_nccl_has_none() -> None:
    assert software_facts._nccl(cast(ModuleType, SimpleNamespace(_C=SimpleNamespace()))) is None


def test_torch_that_is_installed_and_not_loaded_is_told_as_that() -> None:
    installed = importlib.metadata.version("torch")
    facts = software_facts.read({}).facts
    assert (facts["torch"], facts["torch_loaded"]) == (installed, False)
    assert "torch_threads" not in facts


def test_without_torch_the_rest_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    modules: dict[str, ModuleType] = {}
    monkeypatch.setattr(software_facts, "_version", lambda package: None if package == "torch" else "1.0")
    facts = software_facts.read(modules).facts
    assert (facts["torch"], facts["torch_loaded"]) == (None, False)
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))


def test_packages_have_the_versions_that_are_installed() -> None:
    assert software_facts.read_packages().facts["pytest"] == pytest.__version__


def test_no_variable_off_the_list_is_stored() -> None:
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "s1",
        "HF_TOKEN": "s2",
        "NCCL_SECRET": "s3",
        "TORCH_API_KEY": "s4",
        "SLURM_JWT": "s5",
        "CUDA_PASSWORD": "s6",
        "OMP_NUM_THREADS_TOKEN": "s7",
        "LD_PRELOAD": "/opt/s8/lib.so",
    }
    facts = environment_facts.read({**secrets, "OMP_NUM_THREADS": "4"}).facts
    assert facts == {"OMP_NUM_THREADS": "4", "LD_PRELOAD_is_set": True}


def test_no_name_on_the_list_could_be_a_secrets() -> None:
    assert len(environment_facts.ALLOWED) > 50
    words = {word for name in environment_facts.ALLOWED for word in name.split("_")}
    assert not words & {"TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS", "AUTH", "COOKIE", "URL", "DSN"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A real repository with one commit, laid out as ours is."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    plant(tmp_path, {"repo/src/stackmark/__init__.py": ""})
    git(tmp_path / "repo", "init", "--quiet")
    git(tmp_path / "repo", "add", ".")
    git(tmp_path / "repo", "commit", "--quiet", "--message=first")
    return tmp_path / "repo"


def git(folder: Path, *arguments: str) -> str:
    names = {f"GIT_{who}_{what}": "test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ = {**kept, **names, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout.strip()


def test_our_commit_is_the_one_git_names(checkout: Path) -> None:
    reading = software_facts.read_stackmark(checkout / "src/stackmark")
    assert reading.facts["commit"] == git(checkout, "rev-parse", "HEAD")


def test_the_commit_is_found_in_packed_refs_detached_heads_and_worktrees(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    git(checkout, "pack-refs", "--all")
    assert software_facts.git_commit(checkout / ".git") == commit
    git(checkout, "worktree", "add", "--quiet", "-b", "side", str(checkout.parent / "side"))
    assert software_facts.git_commit(checkout.parent / "side/.git") == commit
    git(checkout, "checkout", "--quiet", "--detach")
    assert software_facts.git_commit(checkout / ".git") == commit


def test_an_installation_inside_somebody_elses_checkout_has_no_commit(checkout: Path) -> None:
    package = plant(checkout, {"vendor/stackmark/__init__.py": ""}) / "vendor/stackmark"
    assert software_facts.read_stackmark(package).facts["commit"] is None


def test_gpus_on_the_bus_are_told_with_the_driver_that_holds_them(tmp_path: Path) -> None:
    bus = tmp_path / "sys/bus/pci/devices"
    for address, vendor, kind in (
        ("0000:17:00.0", "0x10de", "0x030200"),
        ("0000:18:00.0", "0x1002", "0x120000"),
        ("0000:19:00.0", "0x10de", "0x068000"),  # an NVSwitch
        ("0000:1a:00.0", "0x8086", "0x030000"),
    ):
        plant(bus / address, {"vendor": f"{vendor}\n", "class": f"{kind}\n", "device": "0x2335\n"})
    plant(tmp_path / "sys/module/nvidia", {"version": "580.95.05\n"})
    (tmp_path / "sys/module/amdgpu").mkdir()
    drivers = tmp_path / "sys/bus/pci/drivers/nvidia"
    drivers.mkdir(parents=True)
    (bus / "0000:17:00.0/driver").symlink_to(drivers)
    plant(tmp_path / "dev", {"nvidia0": "", "nvidiactl": "", "kfd": "", "dri/renderD128": "", "dri/card0": ""})
    found = pci_facts.read(tmp_path).facts
    modules = record(found.pop("modules"))
    assert (modules["nvidia"], bool(modules["amdgpu"])) == ("580.95.05", True)
    assert found == {
        "devices": 4,
        "gpus": [
            {"address": "0000:17:00.0", "vendor": "nvidia", "device": "0x2335", "driver": "nvidia"},
            {"address": "0000:18:00.0", "vendor": "amd", "device": "0x2335", "driver": None},
        ],
        "device_nodes": ["/dev/nvidia0", "/dev/kfd", "/dev/dri/renderD128"],
    }


def test_a_machine_without_a_bus_has_no_gpus_on_it(tmp_path: Path) -> None:
    assert pci_facts.read(tmp_path).facts == {"devices": None, "gpus": [], "modules": {}, "device_nodes": []}
