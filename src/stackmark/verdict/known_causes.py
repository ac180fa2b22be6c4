"""Tables of facts: those known to matter, those that say nothing, and those that only follow from another.

A weight is a rank, not a probability: 90 and above decides a rate, 60 to 89 often does, 30 to 59 does in some workloads, below
that it rarely does or only in set-up. Where a judge (cause_judges.py) can tell more from the values and the measurements,
it has the last word. The first row that matches wins, so the particular stands before the general. Names are shell patterns
over `subject.path`.

Where the weights are from: throttling, /dev/shm, seccomp, overlay and autotuning we measured ourselves; clocks, power limits,
ECC, NUMA, governors and threads are in every vendor's tuning guide; the rest is judgement, and a row is the place to mend it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from stackmark.verdict import cause_judges as judges
from stackmark.verdict.cause_judges import DifferingFact, Judged

NOT_KNOWN = "differs; not known to matter"
UNKNOWN_WEIGHT = 5
# The last row of the packages: those that no row before it names.
OTHER_PACKAGES = "packages.*"


@dataclass(frozen=True)
class Cause:
    """A known cause. `options` are the keys of `--arm` that set it; `none_says` is the meaning of a missing value."""

    pattern: str
    weight: int
    why: str
    judge: Callable[[DifferingFact], Judged | None] | None = None
    options: tuple[str, ...] = ()
    none_says: str = "unknown"


def _set(name: str, weight: int, why: str, judge: Callable[[DifferingFact], Judged | None] | None = None) -> Cause:
    """A variable of the environment, which an arm may set with `env`."""
    return Cause(f"environment.{name}", weight, why, judge, ("env",), "not set")


CAUSES = (
    # The chip
    Cause("gpu.under_test", 95, "different GPU: two of one model differ by some percent"),
    Cause("gpu*.devices.0.name", 95, "different GPU model"),
    Cause("gpu*.devices.0.power_limit_w", 85, "the power limit lowers the clock under full load", judges.power_limit),
    Cause("gpu.devices.0.mig_device*", 80, "a MIG slice behaves like a smaller GPU"),
    Cause("gpu.devices.0.mig", 80, "MIG slices share one GPU"),
    Cause("gpu.devices.0.processes", 80, "another process uses this GPU"),
    Cause("gpu.devices.0.ecc", 70, "error correction costs memory bandwidth on chips without it built in"),
    Cause("gpu.devices.0.application_clock_*", 80, "the clocks were set manually"),
    Cause("gpu*.devices.0.pcie_width", 60, "fewer lanes: copies to and from the host take longer"),
    Cause("gpu*.devices.0.pcie_*", 45, "different bus speed: copies to and from the host"),
    Cause("gpu*.devices.0.numa_node", 50, "the GPU is attached to a different NUMA node"),
    Cause("gpu*.devices.0.near_cpus", 40, "different CPUs are near the GPU"),
    Cause("gpu.devices.0.nvlinks_active", 50, "links between GPUs"),
    Cause("gpu.devices.0.virtualisation", 55, "the GPU is passed through differently"),
    Cause("gpu_amd.devices.0.*_partition", 70, "the chip is partitioned differently"),
    Cause("gpu_amd.devices.0.performance_level", 70, "the driver chooses clocks differently"),
    Cause("gpu.devices.0.clock_*_max_mhz", 60, "different maximum clock"),
    Cause("gpu.devices.0.vbios", 35, "different GPU firmware: different clock and power tables"),
    Cause("gpu.devices.0.persistence_mode", 20, "without it the driver is loaded again: set-up, not the measured part"),
    Cause("gpu.driver", 75, "different driver: it compiles, schedules and sets clocks"),
    Cause("gpu_amd.driver", 75, "different driver"),
    Cause("gpu.count", 25, "different number of visible GPUs", None, ("gpus",)),
    Cause("gpu.device_nodes", 20, "different GPUs are passed in", None, ("gpus",)),
    # What ran
    Cause("command.program", 92, "the program with this name differs: two programs are compared", None, ("cmd",)),
    Cause("kernels.hash", 85, "different kernels chosen", judges.kernels),
    Cause("software.torch", 80, "different PyTorch: different kernels and defaults"),
    Cause("software.torch_cpu_capability", 75, "PyTorch chose kernels for different CPU instructions"),
    Cause("software.torch_threads", 70, "different number of compute threads", judges.threads),
    Cause("software.torch_interop_threads", 20, "threads across operators, which few models use"),
    Cause("software.cuda", 72, "different CUDA libraries: different kernels for matrix products", none_says="none"),
    Cause("software.cudnn", 70, "different cuDNN: different algorithms for convolutions and attention", none_says="none"),
    Cause("software.cublas", 70, "different cuBLAS: different kernels for matrix products"),
    Cause("software.hip", 70, "different ROCm libraries", none_says="none"),
    Cause("software.torch_cuda_archs", 55, "PyTorch has kernels for different chips: other chips compile or fall back"),
    Cause("software.mkl", 50, "different MKL: matrix products on the CPU"),
    Cause("software.onednn", 50, "different oneDNN: convolutions and matrix products on the CPU"),
    Cause("software.numpy_blas", 18, "different library for NumPy's matrix products, if NumPy prepares the data"),
    Cause("software.torch_build.*", 50, "PyTorch was built differently"),
    Cause("software.triton", 50, "different Triton: compiled kernels differ", none_says="not installed"),
    Cause("software.nccl", 60, "different NCCL: how ranks exchange gradients", judges.nccl),
    Cause("software.gil", 45, "Python with and without the global interpreter lock"),
    Cause("software.implementation", 45, "different Python"),
    Cause("software.python", 55, "different Python: the host's share of each step"),
    Cause("software.libc", 25, "different C library: memory functions and allocator"),
    Cause("software.numpy", 20, "different NumPy, if it prepares the data", none_says="not installed"),
    Cause(
        "command.watched", 90,
        "time stamps differ in precision: 0.02 s from an engine, 1 s from a cluster, 1 µs from a worker",
        none_says="inside",
    ),
    Cause("stackmark.version", 60, "two versions of the worker measured the arms"),
    Cause("stackmark.commit", 50, "two versions of the worker measured the arms", judges.commit),
    *(
        Cause(f"packages.{name}", weight, why, none_says="not installed")
        for name, weight, why in (
            ("nvidia-cudnn*", 70, "different cuDNN: different algorithms for convolutions and attention"),
            ("nvidia-cublas*", 70, "different cuBLAS: different kernels for matrix products"),
            ("nvidia-nccl*", 45, "different NCCL: how ranks exchange gradients"),
            ("nvidia-ml-py", 2, "reads counters, but not in the measured part"),
            ("nvidia-*", 30, "different NVIDIA library"),
            ("transformer-engine*", 60, "different kernels for transformers and 8-bit arithmetic"),
            ("flash-attn*", 60, "different kernels for attention"),
            ("xformers", 45, "different kernels for attention"),
            ("apex", 45, "different fused kernels and optimizers"),
            ("torch-tensorrt*", 40, "different network compiler"),
            ("pytorch-triton*", 50, "different Triton: compiled kernels differ"),
            ("torchvision", 30, "different torchvision: how images are read and augmented"),
            ("pillow*", 25, "different Pillow: how images are read"),
            ("mkl*", 50, "different library for matrix products on the CPU"),
            ("*openblas*", 45, "different library for matrix products on the CPU"),
            ("intel-openmp", 50, "different threading library"),
            ("*", 5, "different version; not known to matter"),
        )
    ),
    # What the process may use
    Cause("cgroup.cpu_limit_cpus", 70, "a limit on CPU time", judges.cpu_limit, ("cpus",), "no limit"),
    Cause("cgroup.cpuset", 65, "different CPUs to run on", judges.cpu_set, ("cpuset",)),
    Cause("binding.bind", 65, "processes are bound to other CPUs", None, ("bind",), "none"),
    Cause("process.cpus", 65, "different CPUs to run on", judges.cpu_set, ("cpuset", "bind")),
    Cause("process.cpus_usable", 65, "different number of usable CPUs", None, ("cpus", "cpuset", "bind")),
    Cause("process.memory_nodes", 50, "memory from different NUMA nodes", None, ("cpuset",)),
    Cause("process.nice", 55, "different priority: matters when other programs want the CPU"),
    Cause("process.scheduler", 55, "different scheduling class"),
    Cause("cgroup.memory_high_mib", 45, "above it the kernel slows down every allocation", None, ("memory",), "no limit"),
    Cause(
        "cgroup.memory_limit_mib",
        35,
        "the page cache counts against it: a data set that does not fit is read again and again",
        judges.memory_limit,
        ("memory",),
        "no limit",
    ),
    Cause("cgroup.swap_limit_mib", 8, "follows the memory limit", None, ("memory",), "no limit"),
    Cause(
        "cgroup.pids_limit", 8, "too few processes would make a run fail, not slow it down", None, (), "no limit"
    ),
    Cause("limits.shm_mib", 50, "shared memory: data workers and NCCL pass data through it", judges.shm, ("shm", "ipc")),
    Cause(
        "limits.locked_memory_mib", 35, "locked memory: RDMA between nodes needs it", judges.alone, ("ulimit",)
    ),
    Cause("limits.open_files", 10, "different limit of open files", judges.open_files, ("ulimit",)),
    Cause("limits.stack_mib", 5, "different stack size", None, ("ulimit",)),
    Cause("limits.processes", 4, "too few processes would make a run fail, not slow it down", None, ("ulimit",)),
    Cause("limits.seccomp", 32, "a filter checks every system call: about 0.1 µs each", None, ("seccomp", "privileged")),
    Cause(
        "limits.capabilities",
        10,
        "what the process may ask of the kernel, such as pinning memory or raising its priority",
        None,
        ("cap_add", "cap_drop", "privileged"),
    ),
    Cause("limits.ulimits.*", 3, "a process limit; too low a limit would make a run fail, not slow it down", None, ("ulimit",)),
    Cause("limits.security_label", 8, "different security profile: it checks opened files"),
    Cause("limits.no_new_privileges", 3, "programs cannot gain privileges; costs nothing"),
    Cause("container.root_filesystem", 30, "different root file system", judges.root_file_system, ("image", "rootfs")),
    Cause("container.root_read_only", 5, "a read-only root file system; caches are elsewhere", None, ("read_only",)),
    Cause("container.rootless", 25, "without root, files and network may go through helper processes"),
    Cause("container.user_namespace", 10, "its user ids differ from the host's"),
    Cause("container.engine", 10, "the layer itself; what it changes is listed separately", None, ("engine",)),
    Cause("container.engine_version", 8, "different engine version"),
    Cause("container.image*", 50, "different image: differences in its software are listed separately", judges.image, ("image",),
          "none"),
    Cause("container.software", 25, "software of an image, or of the host", judges.image, ("image", "rootfs"), "none"),
    Cause("container.gpus_by", 15, "GPUs are passed in differently", None, ("gpus", "engine")),
    Cause("container.network", 5, "network access", judges.not_in_the_loop, ("network",)),
    Cause("container.kubernetes", 10, "the layer itself; what it changes is listed separately"),
    Cause("cgroup.version", 4, "how limits are set, not their values"),
    # The machine
    Cause("host.boot_id", 55, "different boot: not one series", judges.boot),
    Cause("host.architecture", 95, "different processor architecture"),
    Cause("host.kernel", 60, "different kernel: scheduler, memory, mitigations"),
    Cause("host.clocksource", 60, "a slow clock source makes every time stamp expensive"),
    Cause("host.virtualisation", 60, "different virtual machine, or none"),
    Cause("host.transparent_hugepages", 45, "huge pages: fewer TLB misses"),
    Cause("host.distribution", 15, "different distribution: different system libraries"),
    Cause("cpu.model", 85, "different CPU"),
    Cause("cpu.governor", 75, "the governor chooses the CPU's clock"),
    Cause("cpu.turbo", 75, "without turbo the CPU's clock is lower"),
    Cause("cpu.clock_limit_mhz", 70, "different maximum CPU clock"),
    Cause("cpu.clock_max_mhz", 60, "different maximum CPU clock"),
    Cause("cpu.flags", 70, "different instructions: libraries choose different kernels"),
    # How ranks exchange
    Cause("ranks.backend", 92, "ranks exchange through another library"),
    Cause("ranks.strategy", 92, "ranks exchange in another way"),
    Cause("ranks.interface", 80, "gloo exchanges over another network interface"),
    Cause("ranks.nccl.network", 90, "ranks of several nodes exchange through another network"),
    Cause("ranks.nccl.transports", 90, "GPUs exchange over other links: NVLink or PCIe, directly or through the host's memory"),
    Cause("ranks.nccl.*", 50, "NCCL chose differently"),
    Cause("network.rdma_ports", 50, "different InfiniBand or RoCE ports"),
    Cause("network.*", 25, "different network interfaces"),
    Cause("cpu.threads", 60, "different number of CPUs"),
    Cause("cpu.cores", 60, "different number of cores"),
    Cause("cpu.smt", 50, "two threads per core, or one"),
    Cause("cpu.energy_preference", 55, "how the CPU weighs power against speed"),
    Cause("cpu.frequency_driver", 40, "different driver for the CPU's clock"),
    Cause("cpu.microcode", 40, "different microcode: it contains mitigations"),
    Cause("cpu.mitigated", 40, "mitigations make system calls and interrupts slower"),
    Cause("cpu.vulnerable", 40, "mitigations make system calls and interrupts slower"),
    Cause("numa.nodes", 45, "different number of NUMA nodes"),
    Cause("numa.balancing", 35, "the kernel moves memory between nodes during the run"),
    Cause("numa.node.*.cpus", 30, "NUMA nodes have different CPUs"),
    Cause("memory.total_mib", 25, "different memory size"),
    Cause("memory.hugepages_total", 25, "different number of reserved huge pages"),
    Cause("memory.swappiness", 8, "matters when memory is short"),
    # The environment
    _set("CUDA_LAUNCH_BLOCKING", 92, "the host waits for every kernel"),
    _set("PYTORCH_NO_CUDA_MEMORY_CACHING", 92, "every tensor is allocated again"),
    _set("*TF32*", 85, "TF32 is switched manually"),
    _set("OMP_NUM_THREADS", 70, "number of compute threads"),
    _set("*_NUM_THREADS", 65, "number of compute threads"),
    _set("OMP_*", 55, "how threads are placed and how they wait"),
    _set("KMP_*", 55, "how threads are placed and how they wait"),
    _set("GOMP_*", 55, "how threads are placed"),
    _set("MKL_*", 55, "how the library for matrix products works"),
    _set("*_MAX_CPU_ISA", 65, "limits the CPU instructions used"),
    _set("ATEN_CPU_CAPABILITY", 65, "limits the CPU instructions used"),
    Cause("environment.LD_PRELOAD_is_set", 50, "a preloaded library, such as an allocator or a profiler"),
    _set("MALLOC_*", 45, "how memory is allocated"),
    _set("PYTORCH_*ALLOC_CONF", 45, "how GPU memory is allocated"),
    _set("CUDA_MPS_*", 60, "the GPU is shared through MPS"),
    _set("*CACHE_PATH", 8, "where compiled kernels are stored: set-up"),
    _set("*CACHE_DIR", 8, "where compiled kernels are stored: set-up"),
    _set("NCCL_*", 40, "how GPUs communicate", judges.alone),
    _set("TORCH*", 45, "how PyTorch and its compiler work"),
    _set("NVIDIA_*", 3, "read by a container runtime, not by CUDA"),
    _set("CUDA_VISIBLE_DEVICES", 15, "which GPUs are visible; the GPU used is compared separately"),
    _set("CU*", 35, "how CUDA works"),
    _set("TRITON_*", 25, "how Triton compiles"),
    _set("LD_LIBRARY_PATH", 20, "libraries may be found elsewhere; their versions are compared"),
    _set("LANG", 2, "the language of messages"),
    _set("LC_ALL", 2, "the language of messages"),
    _set("TZ", 2, "the time zone"),
    _set("PYTHONUNBUFFERED", 2, "when output is written"),
    # A variable outside the list is read only in the arm that sets it: elsewhere it may have any value.
    Cause("environment.*", 15, "different setting", None, ("env",), "not given"),
)  # fmt: skip

# What differs between two runs of one arm as well, or between any two containers. Each with its reason.
NOISE = {
    "host.hostname": "a name",
    "host.uptime_s": "time passes",
    "host.load_*": "a momentary value; the covariates record it for every run",
    "host.machine_id": "belongs to a root file system: a container has its image's; the boot id identifies the machine",
    "host.dmi_*": "not visible in every container; the boot id identifies the machine",
    "cgroup.path": "contains the container's id",
    "cgroup.memory_now_mib": "a momentary value",
    "cgroup.throttled_*": "counted since the cgroup was created; the covariates cover the measured part",
    "cgroup.oom_kills": "counted since the cgroup was created; one during a run makes it invalid",
    "container.mark": "how the engine was detected",
    "container.pod_uid": "an id",
    "container.namespace": "a name",
    "container.node": "a name; the boot id identifies the machine",
    "container.pod": "a name",
    "container.devices_given": "the device under test is compared",
    "container.kubernetes": "the layer itself",
    "container.kubernetes_version": "the layer itself",
    "environment.STACKMARK_*": "what the place tells the run",
    "container.slurm_job_id": "an id",
    "binding.allowed": "the CPUs that the process may use are compared",
    "binding.processes": "follows from how the processes are bound",
    "ranks.clock_*": "measured in each run",
    "ranks.notes": "library, transports and threads are compared",
    "ranks.nccl.peers": "the transports are compared",
    "limits.shm_free_mib": "a momentary value; the size is compared",
    "memory.available_mib": "a momentary value",
    "memory.*_free*": "a momentary value",
    "numa.node.*.free_mib": "a momentary value",
    "numa.node.*.memory_mib": "the machine's memory is compared",
    "process.uid": "an id",
    "process.gid": "an id",
    "process.pid_namespaces_seen": "the container itself",
    "process.init_process": "a name",
    "process.oom_score_adjustment": "which process is killed first when memory runs out",
    "pci.*": "the machine's bus; the GPU's own link is compared",
    "gpu*.devices.0.index": "numbering",
    "gpu*.devices.0.card": "numbering",
    "gpu*.devices.0.uuid": "the device under test is compared",
    "gpu.used*": "the device under test is compared",
    "gpu.chip_by": "how the device was found, not how it works",
    "gpu*.devices.0.pci_address": "numbering",
    "gpu*.devices.0.memory_used_mib": "a momentary value",
    "gpu*.devices.0.power_w": "a momentary value; the covariates cover the measured part",
    "gpu*.devices.0.temperature_*": "a momentary value; the covariates record it for every run",
    "gpu*.devices.0.clock_sm_mhz": "a momentary value; the covariates record it for every run",
    "gpu*.devices.0.clock_memory_mhz": "a momentary value",
    "gpu*.devices.0.clock_mhz": "a momentary value",
    "gpu*.devices.0.clock_reasons": "a momentary value; the covariates have the share of time under each limit",
    "gpu*.devices.0.performance_state": "a momentary value",
    "gpu*.devices.0.busy_percent": "a momentary value",
    "gpu*.devices.0.processes_besides_us": "in a container our own process counts as another one; all are compared",
    "gpu*.devices.0.processes_memory_mib": "a momentary value",
    "gpu*.devices.0.mig_device.memory_used_mib": "a momentary value",
    "gpu*.devices.[1-9]*": "not the device under test; the number of visible GPUs is compared",
    "software.executable": "a path",
    "software.torch_loaded": "whether the workload uses PyTorch, which depends on the workload",
    "software.compiler": "what compiled Python",
    "stackmark.checkout": "where our own files are",
    "stackmark.bundle_sha256": "an image gets the worker as one file, which its place verifies; other arms run its folder",
    "stackmark.outside": "command.watched has it",
    "kernels.count": "the hash says whether they differ",
    "kernels.heaviest*": "the hash says whether they differ",
    "environment.SLURM_*_ID": "an id",
    "environment.*RANK": "rank of the process in its group",
    "problems.*": "what could not be read",
    "import.*": "the name of a log file",
}

# What is only another sight of something that differs too: the pattern, and any of the facts it follows from.
FOLLOWS = (
    ("process.cpus_usable", ("cgroup.cpu_limit_cpus", "cgroup.cpuset", "process.cpus")),
    ("process.cpus", ("cgroup.cpuset",)),
    ("limits.ulimits.memlock", ("limits.locked_memory_mib",)),
    ("limits.ulimits.nofile", ("limits.open_files",)),
    ("limits.ulimits.nproc", ("limits.processes",)),
    ("limits.ulimits.stack", ("limits.stack_mib",)),
    ("gpu.device_nodes", ("gpu.count",)),
    ("binding.cpus", ("process.cpus",)),
    ("process.cpus_allowed", ("cgroup.cpuset", "process.cpus")),
    ("cgroup.cpuset_cpus", ("cgroup.cpuset",)),
    ("cgroup.swap_limit_mib", ("cgroup.memory_limit_mib",)),
    ("gpu.cuda_driver", ("gpu.driver",)),
    ("software.torch_git", ("software.torch",)),
    ("packages.torch", ("software.torch",)),
    ("packages.triton", ("software.triton",)),
    ("packages.numpy", ("software.numpy",)),
    ("packages.nvidia-cudnn*", ("software.cudnn",)),
    ("packages.nvidia-nccl*", ("software.nccl",)),
    ("packages.nvidia-cublas*", ("software.cublas",)),
    # Each comes with its CUDA, and under another name with each major version of it.
    ("packages.nvidia-*", ("software.cuda",)),
    ("packages.cuda-*", ("software.cuda",)),
    ("packages.pytorch-triton*", ("software.triton",)),
    ("packages.stackmark", ("stackmark.version",)),
    ("stackmark.commit", ("stackmark.version",)),
    ("host.kernel_version", ("host.kernel",)),
    ("host.hypervisor_flag", ("host.virtualisation",)),
    ("cpu.l[0-9]_cache", ("cpu.model",)),
    ("cpu.vendor", ("cpu.model",)),
    ("gpu*.devices.0.power_limit_*_w", ("gpu*.devices.0.power_limit_w", "gpu*.devices.0.name")),
    ("gpu*.devices.0.mig_device.*", ("gpu.under_test",)),
    *(
        (f"gpu*.devices.0.{key}", ("gpu*.devices.0.name",))
        for key in (
            "architecture",
            "compute_capability",
            "memory_total_mib",
            "cuda_cores",
            "vbios",
            "*_max",
            "*_max_mhz",
        )
    ),
)


def cause_of(subject: str, key: str) -> Cause:
    name = f"{subject}.{key}"
    found = next((cause for cause in CAUSES if fnmatchcase(name, cause.pattern)), None)
    return found or Cause(name, UNKNOWN_WEIGHT, NOT_KNOWN)


def is_noise(subject: str, key: str) -> bool:
    name = f"{subject}.{key}"
    return any(fnmatchcase(name, pattern) for pattern in NOISE)


def follows(subject: str, key: str, others: set[str]) -> bool:
    """Return whether the fact only shows something that is also among `others`."""
    name = f"{subject}.{key}"
    return any(
        fnmatchcase(name, pattern)
        and any(fnmatchcase(other, lead) for lead in leads for other in others if other != name)
        for pattern, leads in FOLLOWS
    )
