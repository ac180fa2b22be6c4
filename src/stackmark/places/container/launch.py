"""Build the one command that starts a worker in a container: all its options, in one list that is shown and stored.

Values of the host's environment are handed over by name only (`--env NAME`), so that nothing of a person's environment is
stored or seen in a process list; the values come from the client's own environment.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stackmark.errors import PlaceError, SpecError
from stackmark.machine.host import boot_id
from stackmark.machine.orphans import MARK_VARIABLE, start_ticks
from stackmark.places.bundle import TARGET
from stackmark.places.container import gpus
from stackmark.places.container.engine import DRIVER_LABEL, RUN_LABEL, Engine, container_name
from stackmark.places.container.options import UNLIMITED, ContainerOptions
from stackmark.places.container.settings import podman_ulimits
from stackmark.places.container.software import (
    NEVER,
    HostSoftware,
    holds_home,
    off_the_root,
    outermost,
    program_folders,
    user_name,
    within,
    without_home,
)
from stackmark.places.image_python import image_command
from stackmark.places.mounts import require_sources, targets
from stackmark.places.place import CACHE_VARIABLES, cache_variables
from stackmark.spec import (
    ABOUT_VARIABLE,
    AUTO,
    BIND_VARIABLE,
    LEDGER_VARIABLE,
    LOG_VARIABLE,
    PYTHONS_VARIABLE,
    SCRATCH_VARIABLE,
    SPEC_VARIABLE,
    Scalar,
    Task,
)
from stackmark.workloads.registry import is_own_program

HOME = "/tmp"  # noqa: S108 - the container's own, new for each run
# Settings of the libraries under test, wherever their software comes from.
TUNING = (
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "ATEN_", "ONEDNN_", "DNNL_", "MALLOC_", "CUDA_", "CUBLAS", "CUDNN_",
    "NVIDIA_TF32_OVERRIDE", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "NCCL_", "GLOO_", "UCX_", "FI_",
    "HIP_", "ROCR_", "HSA_", "MIOPEN_", "LANG", "LC_ALL", "TZ", "STACKMARK_",
)  # fmt: skip
# Settings that only mean something where the host's own files are.
HOST_ONLY = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHON")
FILE_ENDINGS = ("_HOME", "_PATH", "_DIR", "_DIRECTORY", "_FILE", "_ROOT")
# Parameters of workloads that name a folder or file of the host, and whether they are written. A file's folder is mounted.
PATH_PARAMETERS = {"data": False, "checkpoint_dir": True, "trace_file": True}
# The folder of the container that a user's own program may write to; its contents are deleted after the run.
SCRATCH = "/scratch"


@dataclass(frozen=True)
class Image:
    """The software that runs: the host's own (in the bare image, or on an overlay of the host's root), or a user's image."""

    name: str | None
    digest: str | None
    # None for a user's image.
    software: HostSoftware | None

    @property
    def kind(self) -> str:
        return "image" if self.software is None else "host" if self.name else "rootfs"


@dataclass(frozen=True)
class Launch:
    argv: list[str]
    name: str
    gpu_way: str


def launch(
    engine: Engine, options: ContainerOptions, image: Image, task: Task, mark: str, cache: Path | None,
    environment: Mapping[str, str], scratch: Path | None = None, bundle: Path | None = None,
    program: Sequence[str] | None = None,
) -> Launch:  # fmt: skip
    """Make the command of a worker or, with `program`, of a user's own in an image: no words are the image's entry point.

    `bundle` is the worker's zip file, which a user's image is given: it has none of our code.
    """
    gpu = gpus.given(engine, options, environment) if gpus.wanted(options, task) else gpus.NOTHING
    about = {
        "engine_version": engine.version,
        "software": image.kind,
        "image": image.name,
        "image_digest": image.digest,
        "gpus_by": gpu.way,
        **({"mounts": targets(options.mounts)} if options.mounts else {}),
    }
    mounts, folder = _mounts(options, image, task, cache, environment)
    if scratch is not None:
        mounts.setdefault(SCRATCH, (str(scratch), False))
    if bundle is not None:
        mounts[TARGET] = (str(bundle), True)
    argv = [
        *engine.command, "run", *(("--rm", "--interactive") if program is None else ()),
        f"--name={container_name(mark)}", f"--label={RUN_LABEL}={mark}",
        f"--label={DRIVER_LABEL}={driver_name()}",
        # Its output goes through a pipe to us; a second copy on disk would be work that the host's worker does not have.
        "--log-driver=none",
        *_limits(engine, options, environment), *_rights(engine, options), *_root(engine, options, mounts), *gpu.flags,
        *(f"--volume={source}:{target}{':ro' if read_only else ''}" for target, (source, read_only) in mounts.items()),
        *([f"--workdir={folder}"] if program is None or folder != HOME else []),
        *_variables(options, image, environment, cache), f"--env={MARK_VARIABLE}={mark}",
        *([f"--env={SCRATCH_VARIABLE}={SCRATCH}"] if scratch is not None else []),
        *([f"--env={ABOUT_VARIABLE}={json.dumps(about, separators=(',', ':'))}"] if program is None else []),
        *(_what(image, options) if program is None else _program(engine, image, program)),
    ]  # fmt: skip
    return Launch(argv, container_name(mark), gpu.way)


def driver_name() -> str:
    """Name the process that started a container, so that the next can see whether it lives: boot, pid namespace, pid, start."""
    return ":".join(map(str, (boot_id(), os.stat("/proc/self/ns/pid").st_ino, os.getpid(), start_ticks(os.getpid()))))


def driver_lives(name: str) -> bool:
    """Return whether the process behind a container may still live; true where it cannot be seen from here."""
    boot, namespace, pid, ticks, *_ = [*name.split(":"), "", "", "", ""]
    if boot != boot_id():
        return False  # no container runs on through a restart with a lifeline that does not
    if namespace != str(os.stat("/proc/self/ns/pid").st_ino) or not pid.isdecimal():
        return True
    return str(start_ticks(int(pid))) == ticks


def _what(image: Image, options: ContainerOptions) -> list[str]:
    """What runs in what: the worker's zip file by the image's own Python, or our code by the host's."""
    if image.software is None:
        assert image.name is not None
        program, *rest = image_command(options.python)
        return ["--pull=never", f"--entrypoint={program}", image.name, *rest]
    worker = ["-P", "-m", "stackmark.worker"]
    if image.name is None:
        return ["--rootfs", "/:O", image.software.python, *worker]
    return ["--pull=never", image.name, image.software.python, *worker]


def _program(engine: Engine, image: Image, words: Sequence[str]) -> list[str]:
    """A user's program in an image: what the image's own entry point is, is replaced by it."""
    assert image.name is not None
    # podman reads a list of words, and a text that begins like one as a list.
    entry = json.dumps(words[:1]) if engine.kind == "podman" else "".join(words[:1])
    return ["--pull=never", *([f"--entrypoint={entry}"] if words else []), image.name, *words[1:]]


def _limits(engine: Engine, options: ContainerOptions, environment: Mapping[str, str]) -> list[str]:
    flags = []
    if options.cpus is not None:
        flags.append(f"--cpus={options.cpu_count:g}")
    if options.cpuset is not None:
        flags.append(f"--cpuset-cpus={options.cpuset}")
    if options.memory_bytes is not None:
        # Without the second, an engine allows as much swap again, and a run that should fail becomes a slow one.
        flags += [f"--memory={options.memory_bytes}b", f"--memory-swap={options.memory_bytes}b"]
    if options.shm_bytes is not None:
        flags.append(f"--shm-size={options.shm_bytes}b")
    ulimits = options.ulimits
    if engine.kind == "podman":
        ulimits = {**podman_ulimits(environment, ulimits), **ulimits}
    flags += [f"--ulimit={name}={_limit(soft)}:{_limit(hard)}" for name, (soft, hard) in ulimits.items()]
    return flags


def _limit(value: int) -> str:
    return "-1" if value == UNLIMITED else str(value)


def _rights(engine: Engine, options: ContainerOptions) -> list[str]:
    flags = [f"--network={options.network}"]
    if options.ipc:
        flags.append(f"--ipc={options.ipc}")
    if options.seccomp != "default":
        flags.append(f"--security-opt=seccomp={options.seccomp}")
    if Path("/sys/fs/selinux/enforce").exists():
        # The host's folders carry the host's labels, which a container may not read, and must not be relabelled.
        flags.append("--security-opt=label=disable")
    flags += [f"--cap-add={name.upper()}" for name in options.cap_add]
    flags += [f"--cap-drop={name.upper()}" for name in options.cap_drop]
    if options.privileged:
        flags.append("--privileged")
    if options.user is not None:
        flags.append(f"--user={options.user}")
    elif engine.kind == "docker" and os.getuid() != 0:
        # Docker's daemon is root: without this, so would the worker be, and what it writes into the cache.
        flags.append(f"--user={os.getuid()}:{os.getgid()}")
    return flags


def _root(engine: Engine, options: ContainerOptions, mounts: Mapping[str, object]) -> list[str]:
    if not options.read_only:
        return []
    # Temporary files are allowed, and executable ones: compilers load what they made. Docker's own default forbids that.
    # Podman would copy what the root has in /tmp into it.
    how = "exec,mode=1777" + (",notmpcopyup" if engine.kind == "podman" else "")
    return ["--read-only", *([f"--tmpfs={HOME}:{how}"] if HOME not in mounts else [])]


def _mounts(
    options: ContainerOptions, image: Image, task: Task, cache: Path | None, environment: Mapping[str, str]
) -> tuple[dict[str, tuple[str, bool]], str]:
    """By target: source, and whether it is read-only; and the working folder. What was typed comes last, and wins."""
    read, written, folder = paths_of(task, targets(options.mounts), own_files=image.software is None)
    if cache:
        cache.mkdir(parents=True, exist_ok=True)
        written.append(str(cache))
    if image.software is not None:
        software = without_home([*image.software.folders, *program_of(task, folder, environment)])
        read += software if image.name else off_the_root(software)
    written_all = outermost(written)
    mounts = {path: (path, True) for path in outermost(read) if not within(path, written_all)}
    mounts |= {path: (path, False) for path in written_all}
    require_sources(options.mounts)
    mounts |= {mount.target: (mount.source, mount.read_only) for mount in options.mounts}
    for source, _ in mounts.values():
        if ":" in source:
            raise PlaceError(f"{source} cannot be mounted: engines read a colon as the end of a path", hint="rename it")
    return mounts, folder


def paths_of(task: Task, mounted: Sequence[str] = (), *, own_files: bool = False) -> tuple[list[str], list[str], str]:
    """Return the host's folders that the workload's parameters name: to read, to write; and the folder to work in.

    `mounted` are folders of the container that were asked for by hand; `own_files`: it runs a user's image.
    """
    asked = task.spec or task.request
    if asked is None:
        return [], [], HOME
    read: list[str] = []
    written: list[str] = []
    folder = HOME
    if is_own_program(asked.workload) and (own := _folder_of_program(asked.params.get("cwd"), mounted, own_files)):
        folder = own
        if not within(own, mounted) and os.path.isdir(own):
            read.append(own)
    for name, writes in PATH_PARAMETERS.items():
        value = asked.params.get(name)
        if not isinstance(value, str) or not value or (name == "data" and not os.path.isdir(value)):
            continue
        if not os.path.isabs(value) and os.getcwd() != "/":
            folder = os.getcwd()
        path = os.path.abspath(value)
        path = os.path.dirname(path) if name.endswith("_file") else path
        if within(path, mounted):
            continue  # what was asked for is there already, and the host's folder of that name is another one
        if writes:
            os.makedirs(path, exist_ok=True)
        (written if writes else read).append(path)
    return read, written, folder


def _folder_of_program(cwd: Scalar, mounted: Sequence[str], own_files: bool) -> str | None:
    """Where a user's program runs: where they are unless they said; `.` is the container's own folder.

    A folder that this machine does not have may be one of the image.
    """
    if cwd == ".":
        return None
    folder = os.path.abspath(str(cwd)) if cwd and cwd != AUTO else os.getcwd()
    if within(folder, mounted):
        return folder
    if holds_home(folder):
        raise SpecError(
            f"the program runs in {folder}, which is or contains your home folder; that is mounted only on request",
            hint=f"run it from its own folder, use --cwd . for the container's folder, or --mount {folder}:{folder}",
        )
    if folder in NEVER:
        raise PlaceError(
            f"the program runs in {folder}, but each container has its own",
            hint="run it from its own folder, or use --cwd . for the container's folder",
        )
    if not own_files and not os.path.isdir(folder):
        raise PlaceError(
            f"the program's folder {folder} does not exist",
            hint="set another --cwd, or use --cwd . for the container's folder",
        )
    return folder


def program_of(task: Task, folder: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    asked = task.spec or task.request
    command = asked.params.get("cmd") if asked and is_own_program(asked.workload) else None
    return program_folders(str(command), folder, environment) if command else ()


def _variables(
    options: ContainerOptions, image: Image, environment: Mapping[str, str], cache: Path | None
) -> list[str]:
    values = dict(cache_variables(cache))
    if image.software is not None:
        values |= {"HOME": HOME, "USER": user_name(environment)}
    values |= {**options.variables, **options.worker_variables}
    values = {name: value for name, value in values.items() if name not in options.named_variables}
    passed = [name for name in sorted(environment) if name not in values and _passes(name, image)]
    by_name = dict.fromkeys((*passed, *options.named_variables))
    return [*(f"--env={name}" for name in by_name), *(f"--env={name}={value}" for name, value in values.items())]


def _passes(name: str, image: Image) -> bool:
    if name in CACHE_VARIABLES or name in (
        SPEC_VARIABLE,
        MARK_VARIABLE,
        ABOUT_VARIABLE,
        SCRATCH_VARIABLE,
        LEDGER_VARIABLE,
        LOG_VARIABLE,
        PYTHONS_VARIABLE,
        BIND_VARIABLE,
    ):
        return False
    tuning = name.startswith(TUNING)
    if image.software is not None:
        return tuning or name.startswith(HOST_ONLY)
    return tuning and not name.endswith(FILE_ENDINGS)
