"""The options of a container. Each field is a key of `--arm`; a value is kept as typed, because it is stored so.

Quantities are typed in one grammar (units.py) and translated for the engines here: bytes for both. What an engine would
accept and ignore, or refuse in words of its own, is refused here with the key's name.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from stackmark.errors import SpecError
from stackmark.places.bundle import FOLDER
from stackmark.places.image_python import PYTHONS
from stackmark.places.mounts import MOUNT, Mount, read_mounts, refuse_cluster_sources
from stackmark.places.place import GPU_IDS, NamesGpus, Several
from stackmark.places.variables import BIND_HELP, VARIABLES_HELP, Bind, Variables, WithVariables
from stackmark.units import parse_size

# The kernel's limits by the names that both engines take, and whether a number of bytes may be typed with a unit.
ULIMITS = {
    "core": True, "cpu": False, "data": True, "fsize": True, "locks": False, "memlock": True, "msgqueue": True, "nice": False,
    "nofile": False, "nproc": False, "rss": True, "rtprio": False, "rttime": False, "sigpending": False, "stack": True,
}  # fmt: skip
UNLIMITED = -1
# What container runtimes and Kubernetes accept for a UID or a GID.
MOST_UID = 2**31 - 1
REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
PYTHON_PATH = re.compile(r"/?[A-Za-z0-9_.][A-Za-z0-9_.+-]*(/[A-Za-z0-9_.][A-Za-z0-9_.+-]*)*")
_CPUS = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")


def _text(value: object) -> object:
    """A number that came from JSON is text as well; yes and no are not."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Typed = Annotated[str, BeforeValidator(_text)]
PYTHON_HELP = (
    f"path of the image's Python that runs the worker; default: the first with PyTorch among {', '.join(PYTHONS)}"
)


class MemoryAndVariables(WithVariables):
    """Options that containers and pods share. Each of the two declares the fields, with its own help."""

    if TYPE_CHECKING:  # not fields: these would come first in help
        memory: str | None
        shm: str | None

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else size_of("memory", self.memory)

    @property
    def shm_bytes(self) -> int | None:
        return None if self.shm is None else size_of("shm", self.shm)

    def _check_memory(self) -> None:
        if self.memory_bytes is not None and self.memory_bytes < 6 * 2**20:
            raise SpecError(f"memory: {self.memory!r} is below 6 MiB, the least that container runtimes accept")
        if self.shm_bytes is not None and self.shm_bytes < 1:
            raise SpecError(f"shm: {self.shm!r} is not a valid size")


class ContainerOptions(MemoryAndVariables, NamesGpus):
    """A container's options."""

    PLAIN: ClassVar[frozenset[str]] = frozenset(
        {"engine", "cpus", "cpuset", "memory", "shm", "ulimit", "cap_drop", "gpus", GPU_IDS, "bind"}
    )

    engine: Literal["auto", "podman", "docker"] = Field(
        default="auto", description="podman, docker or auto: podman if installed, else docker"
    )
    image: str | None = Field(
        default=None,
        description="run in this image, which must be on this machine; without it the host's software is mounted",
    )
    python: str | None = Field(default=None, description=PYTHON_HELP)
    rootfs: bool = Field(
        default=False,
        description="podman only: use the whole host as root file system; changes are discarded",
    )
    cpus: Typed | None = Field(default=None, description="CPU time limit, in CPUs: 1.5")
    cpuset: Typed | None = Field(default=None, description="CPUs to run on: 0-3,8")
    bind: Bind = Field(default="none", description=BIND_HELP)
    memory: Typed | None = Field(default=None, description="memory limit, without swap: 16g")
    shm: Typed | None = Field(default=None, description="size of /dev/shm: 1g; engines use 64 MB by default")
    ulimit: Several = Field(default=(), description="kernel limit: memlock=-1, nofile=1024:65536; may be repeated")
    network: str = Field(default="none", description="network: none, host, bridge, or one of the engine's")
    seccomp: str = Field(
        default="default", description="system call filter: default, unconfined, or the file of a profile"
    )
    cap_add: Several = Field(default=(), description="capability to add, e.g. SYS_NICE, IPC_LOCK; may be repeated")
    cap_drop: Several = Field(default=(), description="capability to drop, or ALL; may be repeated")
    privileged: bool = Field(default=False, description="give all capabilities and devices, no seccomp")
    mount: Several = MOUNT
    env: Variables = Field(default=(), description=VARIABLES_HELP)
    user: Typed | None = Field(default=None, description="user to run as: UID[:GID], or a user name of the image")
    ipc: str | None = Field(default=None, description="shared memory to use: host, private, shareable")
    read_only: bool = Field(default=False, description="make the root file system read-only, with /tmp in memory")

    def _checks(self) -> tuple[Callable[[], None], ...]:
        return (self._sizes, self._lists, self._names, self._fit_together)

    # What the engines are told

    @property
    def cpu_count(self) -> float | None:
        return None if self.cpus is None else cpus_of(self.cpus)

    @property
    def cpuset_list(self) -> frozenset[int] | None:
        return None if self.cpuset is None else cpu_numbers(self.cpuset)

    @property
    def ulimits(self) -> dict[str, tuple[int, int]]:
        """Return soft and hard limit by name; -1 is unlimited. A name given twice has its last value."""
        return dict(_ulimit(text) for text in self.ulimit)

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return read_mounts(self.mount, (FOLDER,) if self.image else ())

    # What cannot be

    def _sizes(self) -> None:
        _ = self.cpu_count, self.cpuset_list, self.ulimits, self.variables, self.named_variables
        self._check_memory()

    def _lists(self) -> None:
        refuse_cluster_sources(self.mounts, "container")
        for key, names in (("cap_add", self.cap_add), ("cap_drop", self.cap_drop)):
            for name in names:
                if not re.fullmatch(r"[A-Za-z_]+", name):
                    raise SpecError(f"{key}: {name!r} is not a capability", hint="one at a time, like SYS_NICE")

    def _names(self) -> None:
        if self.image is not None and not REFERENCE.fullmatch(self.image):
            raise SpecError(
                f"image: {self.image!r} is not the name of an image", hint="write it like docker.io/library/python:3.12"
            )
        if self.python is not None:
            check_python(self.python)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", self.network):
            raise SpecError(
                f"network: {self.network!r} is not a network", hint="use none, host, bridge, or a network's name"
            )
        if self.seccomp not in ("default", "unconfined") and not self.seccomp.startswith("/"):
            raise SpecError(
                f"seccomp: {self.seccomp!r} is not default, unconfined or the path of a file",
                hint="use its absolute path",
            )
        if self.ipc not in (None, "host", "private", "shareable"):
            raise SpecError(f"ipc must be host, private or shareable, got {self.ipc!r}")
        if self.user is not None and not re.fullmatch(
            r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?", self.user
        ):
            raise SpecError(f"user: {self.user!r} is not a user", hint="write it like 1000, 1000:1000 or nobody")
        if any(part.isdecimal() and int(part[:11]) > MOST_UID for part in (self.user or "").split(":")):
            raise SpecError(f"user: numbers must be between 0 and {MOST_UID}, got {self.user!r}")

    def _fit_together(self) -> None:
        if self.image and self.rootfs:
            raise SpecError("image and rootfs cannot be combined: both set the root file system")
        if self.python and not self.image:
            raise SpecError(
                f"python: {self.python!r} is for an image, but no image is given",
                hint="add image=REF; without an image the worker uses the Python that runs stackmark",
            )
        if self.rootfs and self.read_only:
            raise SpecError(
                "rootfs and read_only cannot be combined: podman would copy the host's /run into the container"
            )
        if self.rootfs and self.engine == "docker":
            raise SpecError("rootfs needs podman: docker runs images only")
        if self.ipc == "host" and self.shm:
            raise SpecError("shm and ipc=host cannot be combined: the host's /dev/shm has its own size")
        if self.privileged and (self.cap_drop or self.seccomp != "default"):
            raise SpecError(
                "privileged cannot be combined with cap_drop or seccomp: it gives all rights and filters nothing"
            )


def check_python(path: str) -> None:
    """Refuse what cannot be the path of a program in an image."""
    if not PYTHON_PATH.fullmatch(path):
        raise SpecError(
            f"python: {path!r} is not the path of a program", hint="write it like /opt/conda/bin/python or python3.12"
        )


def cpu_numbers(text: str) -> frozenset[int]:
    if not _CPUS.fullmatch(text):
        raise SpecError(f"cpuset: {text!r} is not a list of CPUs", hint="write it like 0-3,8")
    cpus: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        if int(high or low) < int(low):
            raise SpecError(f"cpuset: {part!r} is a descending range", hint="write it like 0-3,8")
        cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


def cpus_of(text: str) -> float:
    if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?|\.\d{1,3}", text) or float(text) < 0.01:
        raise SpecError(f"cpus: {text!r} is not a number of CPUs", hint="write it like 2 or 1.5, at least 0.01")
    return float(text)


def size_of(key: str, text: str) -> int:
    try:
        return parse_size(text)
    except SpecError as error:
        raise SpecError(f"{key}: {error.message}", hint=error.hint) from error


def _ulimit(text: str) -> tuple[str, tuple[int, int]]:
    name, equals, value = text.partition("=")
    if name not in ULIMITS or not equals:
        raise SpecError(
            f"ulimit: {text!r} is not a limit", hint=f"write it like memlock=-1; limits: {', '.join(ULIMITS)}"
        )
    soft, _, hard = value.partition(":")
    pair = _limit(text, name, soft), _limit(text, name, hard or soft)
    if pair[1] != UNLIMITED and (pair[0] == UNLIMITED or pair[0] > pair[1]):
        raise SpecError(f"ulimit: in {text!r} the soft limit is above the hard one")
    return name, pair


def _limit(text: str, name: str, value: str) -> int:
    if value in ("-1", "unlimited"):
        return UNLIMITED
    if ULIMITS[name]:
        return size_of(f"ulimit {name}", value)
    if not value.isdecimal() or len(value) > 18:
        raise SpecError(f"ulimit: {value!r} in {text!r} is not a limit", hint="use a whole number, or -1 for unlimited")
    return int(value)
