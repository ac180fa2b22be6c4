"""Decide when and how a container gets GPUs.

By CDI (`--device nvidia.com/gpu=…`), which both engines know by now; by docker's `--gpus` where docker is older or has no
specification. Never `--gpus` with podman: 4.3 accepts it, ignores it and ends with 0. With the host's own software the
driver's libraries are mounted anyway, so where the machine has neither a specification nor NVIDIA's tools, the bare device
nodes are enough.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from stackmark.errors import PlaceError
from stackmark.places.container.engine import Engine
from stackmark.places.container.options import ContainerOptions
from stackmark.spec import Task
from stackmark.units import counted

ROOT = Path("/")
CDI_KIND = "nvidia.com/gpu"
CDI_FOLDERS = ("etc/cdi", "var/run/cdi")
# What CUDA opens besides the GPU's own node, where they are there.
COMMON_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
# docker 25 was the first to know CDI; whether it is switched on, `docker info` says.
DOCKER_WITH_CDI = 25


class GpuFlags(NamedTuple):
    """The engine's flags, and the method in a word, for the record."""

    flags: list[str]
    way: str


NOTHING = GpuFlags([], "none")


def wanted(options: ContainerOptions, task: Task, root: Path = ROOT) -> bool:
    """Return whether this task gets GPUs. A probe that may choose its device gets what the host has."""
    if options.gpus != "auto":
        return options.gpus != "none"
    asked = task.spec or task.request
    device = str(asked.params.get("device", "auto")) if asked else "auto"
    return device.startswith("cuda") or (device != "cpu" and bool(nodes(root)))


def given(engine: Engine, options: ContainerOptions, environment: Mapping[str, str], root: Path = ROOT) -> GpuFlags:
    """Return the engine's flags that select these GPUs."""
    chosen = options.gpu_names(environment)
    _require(options, chosen, root)
    names = chosen or ("all",)
    specified = has_cdi(root)
    tools = shutil.which("nvidia-container-cli", path=environment.get("PATH")) is not None
    by_cdi = GpuFlags([f"--device={CDI_KIND}={_in_specification(name, root)}" for name in names], "cdi")
    if engine.kind == "podman":
        return by_cdi if specified or options.image else _by_nodes(chosen, root) or by_cdi
    if specified and engine.major >= DOCKER_WITH_CDI and _docker_has_cdi(engine):
        return by_cdi
    if tools or options.image:
        # The inner quotes are for docker, which reads a comma as the next field.
        value = "all" if names == ("all",) else f'"device={",".join(names)}"'
        return GpuFlags(["--gpus", value], "--gpus")
    return _by_nodes(chosen, root) or GpuFlags(["--gpus", "all"], "--gpus")


def _require(options: ContainerOptions, chosen: Sequence[str], root: Path) -> None:
    """Refuse a count that this machine cannot give. Where no device node tells how many there are, the engine will say it."""
    there, count = nodes(root), options.gpu_count or 0
    if len(chosen) < count or (there and len(there) < count):
        raise PlaceError(
            f"--gpus {count}: only {counted(min(len(chosen), len(there) or count), 'GPU')} can be given here",
            hint="ask for fewer, or name them: --gpu-ids 0+1; for the CPU: --gpus none",
        )


def _by_nodes(names: Sequence[str], root: Path) -> GpuFlags | None:
    """The device nodes alone; None where there are none, or where a UUID was named that the driver does not know."""
    there = nodes(root)
    named = [name if name.isdecimal() else _number(name, "nvmlDeviceGetMinorNumber") for name in names]
    if not there or not all(name.isdecimal() for name in named):
        return None
    missing = [name for name in named if f"/dev/nvidia{name}" not in there]
    if missing:
        raise PlaceError(f"this host has no GPU {missing[0]}", hint=f"it has: {', '.join(there)}")
    chosen = [f"/dev/nvidia{name}" for name in named] or there
    common = [f"/dev/{name}" for name in COMMON_NODES if (root / "dev" / name).exists()]
    return GpuFlags([f"--device={node}" for node in (*chosen, *common)], "device nodes")


def nodes(root: Path = ROOT) -> list[str]:
    """Return the host's GPUs as device nodes."""
    found = [path.name for path in (root / "dev").glob("nvidia[0-9]*") if path.name[6:].isdecimal()]
    return [f"/dev/{name}" for name in sorted(found, key=lambda name: int(name[6:]))]


def has_cdi(root: Path = ROOT) -> bool:
    """Return whether a CDI specification on this machine describes NVIDIA's GPUs."""
    return any(_specifications(root))


def _specifications(root: Path) -> Iterator[str]:
    for folder in CDI_FOLDERS:
        for path in sorted((root / folder).glob("*")):
            if path.suffix not in (".yaml", ".yml", ".json"):
                continue
            try:
                text = path.read_text(errors="replace")
            except OSError:
                continue
            if re.search(rf"kind[\"']?\s*:\s*[\"']?{re.escape(CDI_KIND)}\b", text):
                yield text


def _in_specification(name: str, root: Path) -> str:
    """The name by which a specification has a GPU: many know GPUs by number only."""
    if name.isdecimal() or name == "all" or any(name in text for text in _specifications(root)):
        return name
    return _number(name, "nvmlDeviceGetIndex")


def _number(uuid: str, question: str) -> str:
    """The driver's number of a GPU by its UUID; the UUID itself where the driver cannot be asked."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return uuid
    try:
        return str(getattr(pynvml, question)(pynvml.nvmlDeviceGetHandleByUUID(uuid)))
    except pynvml.NVMLError:
        return uuid
    finally:
        pynvml.nvmlShutdown()


def _docker_has_cdi(engine: Engine) -> bool:
    answer = engine.ask("info", "--format", "{{json .CDISpecDirs}}")
    return answer.code == 0 and "/" in answer.out
