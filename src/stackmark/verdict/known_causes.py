"""What is known to matter, in one table; what says nothing, in another; what only follows from something else, in a third.

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
    """`options` are the keys of `--arm` that set it; `none_says` is what it means that there is no value."""

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
    Cause("gpu.under_test", 95, "another GPU: two of one model differ by per cents"),
    Cause("gpu*.devices.0.name", 95, "another model of GPU"),
    Cause("gpu*.devices.0.power_limit_w", 85, "the power limit bounds the clock under full load", judges.power_limit),
    Cause("gpu.devices.0.mig_device*", 80, "a slice of a GPU is a chip of its own"),
    Cause("gpu.devices.0.mig", 80, "a GPU in slices shares what it has"),
    Cause("gpu.devices.0.processes", 80, "another process uses this GPU"),
    Cause("gpu.devices.0.ecc", 70, "error correction costs memory bandwidth on chips without it built in"),
    Cause("gpu.devices.0.application_clock_*", 80, "the clocks were set by hand"),
    Cause("gpu*.devices.0.pcie_width", 60, "fewer lanes: copies to and from the host take longer"),
    Cause("gpu*.devices.0.pcie_*", 45, "another speed of the bus: copies to and from the host"),
    Cause("gpu*.devices.0.numa_node", 50, "the GPU hangs on another NUMA node"),
    Cause("gpu*.devices.0.near_cpus", 40, "other CPUs are near the GPU"),
    Cause("gpu.devices.0.nvlinks_active", 50, "links between GPUs"),
    Cause("gpu.devices.0.virtualisation", 55, "the GPU is handed through another way"),
    Cause("gpu_amd.devices.0.*_partition", 70, "the chip is partitioned another way"),
    Cause("gpu_amd.devices.0.performance_level", 70, "the driver chooses clocks another way"),
    Cause("gpu.devices.0.clock_*_max_mhz", 60, "another highest clock"),
    Cause("gpu.devices.0.vbios", 35, "another firmware of the GPU: other tables of clock and power"),
    Cause("gpu.devices.0.persistence_mode", 20, "without it the driver loads anew: set-up, not the measured part"),
    Cause("gpu.driver", 75, "another driver: it compiles, schedules and sets clocks"),
    Cause("gpu_amd.driver", 75, "another driver"),
    Cause("gpu.count", 25, "another number of GPUs is seen", None, ("gpus",)),
    Cause("gpu.device_nodes", 20, "other GPUs are handed in", None, ("gpus",)),
    # What ran
    Cause("command.program", 92, "another program has this name there: two programs are compared", None, ("cmd",)),
    Cause("kernels.hash", 85, "other kernels chosen", judges.kernels),
    Cause("software.torch", 80, "another PyTorch: other kernels and other defaults"),
    Cause("software.torch_cpu_capability", 75, "PyTorch picked kernels for other instructions"),
    Cause("software.torch_threads", 70, "another number of threads computes", judges.threads),
    Cause("software.torch_interop_threads", 20, "threads between operators, which few models use"),
    Cause("software.cuda", 72, "different CUDA libraries: other kernels for matrix products", none_says="none"),
    Cause("software.cudnn", 70, "different cuDNN: other algorithms for convolutions and attention", none_says="none"),
    Cause("software.cublas", 70, "different cuBLAS: other kernels for matrix products"),
    Cause("software.hip", 70, "different ROCm libraries", none_says="none"),
    Cause("software.torch_cuda_archs", 55, "PyTorch has kernels for other chips: without its own, a chip compiles or falls back"),
    Cause("software.mkl", 50, "another MKL: matrix products on the CPU"),
    Cause("software.onednn", 50, "another oneDNN: convolutions and matrix products on the CPU"),
    Cause("software.numpy_blas", 18, "another library for NumPy's matrix products, where data are made ready with it"),
    Cause("software.torch_build.*", 50, "PyTorch was built another way"),
    Cause("software.triton", 50, "another Triton: compiled kernels differ", none_says="not installed"),
    Cause("software.nccl", 60, "another NCCL: how ranks exchange their gradients", judges.nccl),
    Cause("software.gil", 45, "Python with and without its global lock"),
    Cause("software.implementation", 45, "another Python"),
    Cause("software.python", 55, "another Python: the host's side of each step"),
    Cause("software.libc", 25, "another C library: its memory functions and its allocator"),
    Cause("software.numpy", 20, "another NumPy, where data are made ready with it", none_says="not installed"),
    Cause(
        "command.watched", 90,
        "where the figure is a time: an engine's time stamps are good to 0.02 s, a cluster's to 1 s, a worker's to a microsecond",
        none_says="inside",
    ),
    Cause("stackmark.version", 60, "the arms were measured by two versions of the worker"),
    Cause("stackmark.commit", 50, "the arms were measured by two versions of the worker"),
    *(
        Cause(f"packages.{name}", weight, why, none_says="not installed")
        for name, weight, why in (
            ("nvidia-cudnn*", 70, "different cuDNN: other algorithms for convolutions and attention"),
            ("nvidia-cublas*", 70, "different cuBLAS: other kernels for matrix products"),
            ("nvidia-nccl*", 45, "another NCCL: how ranks exchange their gradients"),
            ("nvidia-ml-py", 2, "reads counters, and not in the measured part"),
            ("nvidia-*", 30, "another library of NVIDIA's"),
            ("transformer-engine*", 60, "other kernels for transformers and 8-bit arithmetic"),
            ("flash-attn*", 60, "other kernels for attention"),
            ("xformers", 45, "other kernels for attention"),
            ("apex", 45, "other fused kernels and optimizers"),
            ("torch-tensorrt*", 40, "another compiler of networks"),
            ("pytorch-triton*", 50, "another Triton: compiled kernels differ"),
            ("torchvision", 30, "another torchvision: how images are read and augmented"),
            ("pillow*", 25, "another Pillow: how images are read"),
            ("mkl*", 50, "another library for matrix products on the CPU"),
            ("*openblas*", 45, "another library for matrix products on the CPU"),
            ("intel-openmp", 50, "another library that runs the threads"),
            ("*", 5, "another version; not known to matter"),
        )
    ),
    # What the process may use
    Cause("cgroup.cpu_limit_cpus", 70, "a limit on CPU time", judges.cpu_limit, ("cpus",), "no limit"),
    Cause("cgroup.cpuset", 65, "other CPUs to run on", judges.cpu_set, ("cpuset",)),
    Cause("process.cpus", 65, "other CPUs to run on", judges.cpu_set, ("cpuset",)),
    Cause("process.cpus_usable", 65, "another number of CPUs can be used", None, ("cpus", "cpuset")),
    Cause("process.memory_nodes", 50, "memory from other NUMA nodes", None, ("cpuset",)),
    Cause("process.nice", 55, "another priority: it matters where others want the CPU"),
    Cause("process.scheduler", 55, "another scheduling class"),
    Cause("cgroup.memory_high_mib", 45, "above it the kernel slows every allocation", None, ("memory",), "no limit"),
    Cause(
        "cgroup.memory_limit_mib",
        35,
        "files that were read count against it: a data set that no longer fits is read again and again",
        judges.memory_limit,
        ("memory",),
        "no limit",
    ),
    Cause("cgroup.swap_limit_mib", 8, "follows the memory limit", None, ("memory",), "no limit"),
    Cause(
        "cgroup.pids_limit", 8, "too few processes would fail a run, not slow it", None, (), "no limit"
    ),
    Cause("limits.shm_mib", 50, "shared memory: data workers and NCCL hand data through it", judges.shm, ("shm", "ipc")),
    Cause(
        "limits.locked_memory_mib", 35, "locked memory: RDMA between nodes needs it", judges.alone, ("ulimit",)
    ),
    Cause("limits.open_files", 10, "another number of open files allowed", judges.open_files, ("ulimit",)),
    Cause("limits.stack_mib", 5, "another size of stacks", None, ("ulimit",)),
    Cause("limits.processes", 4, "too few processes would fail a run, not slow it", None, ("ulimit",)),
    Cause("limits.seccomp", 32, "a filter looks at every system call: some 0.1 µs each", None, ("seccomp", "privileged")),
    Cause(
        "limits.capabilities",
        10,
        "what it may ask of the kernel: to pin memory, to raise its priority",
        None,
        ("cap_add", "cap_drop", "privileged"),
    ),
    Cause("limits.ulimits.*", 3, "a limit of the process; too little would fail a run, not slow it", None, ("ulimit",)),
    Cause("limits.security_label", 8, "another security profile: it looks at opened files"),
    Cause("limits.no_new_privileges", 3, "no program may gain privileges; costs nothing"),
    Cause("container.root_filesystem", 30, "another root file system", judges.root_file_system, ("image", "rootfs")),
    Cause("container.root_read_only", 5, "a root file system that cannot be written; caches lie elsewhere", None, ("read_only",)),
    Cause("container.rootless", 25, "without root, files and network may go through helpers"),
    Cause("container.user_namespace", 10, "its users are others than the host's"),
    Cause("container.engine", 10, "the layer itself; what it changes stands in lines of its own", None, ("engine",)),
    Cause("container.engine_version", 8, "another version of the engine"),
    Cause("container.image*", 50, "another image: its software is compared in lines of its own", judges.image, ("image",),
          "none"),
    Cause("container.software", 25, "an image's software, or the host's own", judges.image, ("image", "rootfs"), "none"),
    Cause("container.gpus_by", 15, "GPUs are handed in another way", None, ("gpus", "engine")),
    Cause("container.network", 5, "whether a way leads out of it", judges.not_in_the_loop, ("network",)),
    Cause("container.kubernetes", 10, "the layer itself; what it changes stands in lines of its own"),
    Cause("cgroup.version", 4, "how limits are written, not what they are"),
    # The machine
    Cause("host.boot_id", 55, "another boot: not one series", judges.boot),
    Cause("host.architecture", 95, "another kind of processor"),
    Cause("host.kernel", 60, "another kernel: scheduler, memory, mitigations"),
    Cause("host.clocksource", 60, "a slow clock makes every look at the time expensive"),
    Cause("host.virtualisation", 60, "another virtual machine, or none"),
    Cause("host.transparent_hugepages", 45, "large pages: fewer misses in the address cache"),
    Cause("host.distribution", 15, "another distribution: other libraries below Python"),
    Cause("cpu.model", 85, "another CPU"),
    Cause("cpu.governor", 75, "the governor chooses the CPU's clock"),
    Cause("cpu.turbo", 75, "without turbo the CPU's clock is lower"),
    Cause("cpu.clock_limit_mhz", 70, "another highest clock of the CPU"),
    Cause("cpu.clock_max_mhz", 60, "another highest clock of the CPU"),
    Cause("cpu.flags", 70, "other instructions: libraries pick other kernels"),
    Cause("cpu.threads", 60, "another number of CPUs"),
    Cause("cpu.cores", 60, "another number of cores"),
    Cause("cpu.smt", 50, "two threads a core, or one"),
    Cause("cpu.energy_preference", 55, "how the CPU weighs power against speed"),
    Cause("cpu.frequency_driver", 40, "another driver chooses the CPU's clock"),
    Cause("cpu.microcode", 40, "another microcode: mitigations are in it"),
    Cause("cpu.mitigated", 40, "mitigations make system calls and interrupts slower"),
    Cause("cpu.vulnerable", 40, "mitigations make system calls and interrupts slower"),
    Cause("numa.nodes", 45, "another number of NUMA nodes"),
    Cause("numa.balancing", 35, "the kernel moves memory between nodes while it runs"),
    Cause("numa.node.*.cpus", 30, "NUMA nodes have other CPUs"),
    Cause("memory.total_mib", 25, "another size of memory"),
    Cause("memory.hugepages_total", 25, "another number of large pages set aside"),
    Cause("memory.swappiness", 8, "matters where memory is short"),
    # The environment
    _set("CUDA_LAUNCH_BLOCKING", 92, "every kernel is waited for"),
    _set("PYTORCH_NO_CUDA_MEMORY_CACHING", 92, "every tensor is allocated anew"),
    _set("*TF32*", 85, "TF32 is switched by hand"),
    _set("OMP_NUM_THREADS", 70, "how many threads compute"),
    _set("*_NUM_THREADS", 65, "how many threads compute"),
    _set("OMP_*", 55, "how threads are placed and how they wait"),
    _set("KMP_*", 55, "how threads are placed and how they wait"),
    _set("GOMP_*", 55, "how threads are placed"),
    _set("MKL_*", 55, "how the library for matrix products works"),
    _set("*_MAX_CPU_ISA", 65, "instructions are held back"),
    _set("ATEN_CPU_CAPABILITY", 65, "instructions are held back"),
    Cause("environment.LD_PRELOAD_is_set", 50, "a library is put before all others: an allocator, a profiler"),
    _set("MALLOC_*", 45, "how memory is allocated"),
    _set("PYTORCH_*ALLOC_CONF", 45, "how GPU memory is allocated"),
    _set("CUDA_MPS_*", 60, "the GPU is shared through MPS"),
    _set("*CACHE_PATH", 8, "where compiled kernels are kept: set-up"),
    _set("*CACHE_DIR", 8, "where compiled kernels are kept: set-up"),
    _set("NCCL_*", 40, "how GPUs talk to each other", judges.alone),
    _set("TORCH*", 45, "how PyTorch and its compiler work"),
    _set("NVIDIA_*", 3, "speaks to a container runtime, not to CUDA"),
    _set("CUDA_VISIBLE_DEVICES", 15, "which GPUs are seen; which one ran is looked at apart"),
    _set("CU*", 35, "how CUDA works"),
    _set("TRITON_*", 25, "how Triton compiles"),
    _set("LD_LIBRARY_PATH", 20, "libraries may be found elsewhere; their versions are looked at"),
    _set("LANG", 2, "the language of messages"),
    _set("LC_ALL", 2, "the language of messages"),
    _set("TZ", 2, "the time zone"),
    _set("PYTHONUNBUFFERED", 2, "when output is written"),
    _set("*", 15, "another setting"),
)  # fmt: skip

# What differs between two runs of one arm as well, or between any two containers. Each with its reason.
NOISE = {
    "host.hostname": "a name",
    "host.uptime_s": "time passes",
    "host.load_*": "a moment's value; the covariates have it for every run",
    "host.machine_id": "belongs to a root file system, so that a container has its image's; the boot says which machine it is",
    "host.dmi_*": "not shown in every container; the boot says which machine it is",
    "cgroup.path": "holds the container's id",
    "cgroup.memory_now_mib": "a moment's value",
    "cgroup.throttled_*": "counted since the group began; the covariates have the measured part",
    "cgroup.oom_kills": "counted since the group began; one during a run makes it invalid",
    "container.mark": "how the engine was known",
    "container.pod_uid": "an id",
    "container.namespace": "a name",
    "container.node": "a name; the boot says which machine it is",
    "container.pod": "a name",
    "container.devices_given": "the device under test is compared",
    "container.kubernetes": "the layer itself",
    "container.kubernetes_version": "the layer itself",
    "environment.STACKMARK_*": "what the place says of the run",
    "container.slurm_job_id": "an id",
    "limits.shm_free_mib": "a moment's value; the size is compared",
    "memory.available_mib": "a moment's value",
    "memory.*_free*": "a moment's value",
    "numa.node.*.free_mib": "a moment's value",
    "numa.node.*.memory_mib": "the machine's memory is compared",
    "process.uid": "an id",
    "process.gid": "an id",
    "process.pid_namespaces_seen": "the container itself",
    "process.init_process": "a name",
    "process.oom_score_adjustment": "who is killed first where memory ends",
    "pci.*": "the bus of the machine; what was used of it is compared by the GPU itself",
    "gpu*.devices.0.index": "numbering",
    "gpu*.devices.0.card": "numbering",
    "gpu*.devices.0.uuid": "the device under test is compared",
    "gpu.used*": "the device under test is compared",
    "gpu.chip_by": "how the device was found, and not how it works",
    "gpu*.devices.0.pci_address": "numbering",
    "gpu*.devices.0.memory_used_mib": "a moment's value",
    "gpu*.devices.0.power_w": "a moment's value; the covariates have it over the measured part",
    "gpu*.devices.0.temperature_*": "a moment's value; the covariates have it for every run",
    "gpu*.devices.0.clock_sm_mhz": "a moment's value; the covariates have it for every run",
    "gpu*.devices.0.clock_memory_mhz": "a moment's value",
    "gpu*.devices.0.clock_mhz": "a moment's value",
    "gpu*.devices.0.clock_reasons": "a moment's value; the covariates have the share of time under each limit",
    "gpu*.devices.0.performance_state": "a moment's value",
    "gpu*.devices.0.busy_percent": "a moment's value",
    "gpu*.devices.0.processes_besides_us": "in a container our own process is counted among the others; all are compared",
    "gpu*.devices.0.processes_memory_mib": "a moment's value",
    "gpu*.devices.0.mig_device.memory_used_mib": "a moment's value",
    "gpu*.devices.[1-9]*": "not the device under test; that other GPUs are seen is compared",
    "software.executable": "a path",
    "software.torch_loaded": "whether the workload uses PyTorch, which is a matter of the workload",
    "software.compiler": "what compiled Python",
    "stackmark.checkout": "where our own files lie",
    "stackmark.bundle_sha256": "an image gets the worker as a file, which its place verifies; other arms run it from its folder",
    "stackmark.outside": "command.watched says it",
    "kernels.count": "the hash says whether they differ",
    "kernels.heaviest*": "the hash says whether they differ",
    "environment.SLURM_*_ID": "an id",
    "environment.*RANK": "which process of its group this is",
    "problems.*": "what could not be read",
    "import.*": "which file a log is",
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
    """Whether it is only another sight of something among `others`."""
    name = f"{subject}.{key}"
    return any(
        fnmatchcase(name, pattern)
        and any(fnmatchcase(other, lead) for lead in leads for other in others if other != name)
        for pattern, leads in FOLLOWS
    )
