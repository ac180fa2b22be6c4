"""What may be asked of a container. Each field is a key of `--arm`; a value is kept as it was typed, since it is stored so.

Quantities are typed in one grammar (units.py) and translated for the engines here: bytes for both. What an engine would
accept and ignore, or refuse in words of its own, is refused here with the key's name.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from stackmark.errors import SpecError
from stackmark.places.image_python import PYTHONS
from stackmark.places.place import PlaceOptions
from stackmark.secrets_masking import is_by_name, put_aside
from stackmark.units import parse_size

# The kernel's limits by the names that both engines take, and whether a number of bytes may be typed with a unit.
ULIMITS = {
    "core": True, "cpu": False, "data": True, "fsize": True, "locks": False, "memlock": True, "msgqueue": True, "nice": False,
    "nofile": False, "nproc": False, "rss": True, "rtprio": False, "rttime": False, "sigpending": False, "stack": True,
}  # fmt: skip
UNLIMITED = -1
# Reserved for what the place says itself: an env or label of the user's must not pretend to be ours.
OUR_VARIABLES = "STACKMARK_"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
PYTHON_PATH = re.compile(r"/?[A-Za-z0-9_.][A-Za-z0-9_.+-]*(/[A-Za-z0-9_.][A-Za-z0-9_.+-]*)*")
_CPUS = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")


def _text(value: object) -> object:
    """A number that came from JSON is text as well; yes and no are not."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _texts(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _without_secrets(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(put_aside(text) for text in texts)


Typed = Annotated[str, BeforeValidator(_text)]
Several = Annotated[tuple[str, ...], BeforeValidator(_texts)]
Variables = Annotated[tuple[str, ...], BeforeValidator(_texts), AfterValidator(_without_secrets)]
PYTHON_HELP = (
    f"the path of the image's Python that runs the worker; without it the first with PyTorch of {', '.join(PYTHONS)}"
)
VARIABLES_HELP = "a variable: NAME=VALUE, or NAME for its value in this environment; may be repeated"


class MemoryAndVariables:
    """What options of a container and of a pod have in common. Each of the two declares the fields, with help of its own."""

    if TYPE_CHECKING:  # not fields: these would come first in help
        memory: str | None
        shm: str | None
        env: tuple[str, ...]

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else size_of("memory", self.memory)

    @property
    def shm_bytes(self) -> int | None:
        return None if self.shm is None else size_of("shm", self.shm)

    @property
    def variables(self) -> dict[str, str]:
        """Variables whose values were typed."""
        return {name: value for name, value in variables_of(self.env).items() if value is not None}

    @property
    def named_variables(self) -> tuple[str, ...]:
        """Variables that are given by name: their values are looked up when a worker is started."""
        return tuple(name for name, value in variables_of(self.env).items() if value is None)

    def _check_memory(self) -> None:
        if self.memory_bytes is not None and self.memory_bytes < 6 * 2**20:
            raise SpecError(f"memory: {self.memory!r} is less than the 6 MiB that any container runtime takes")
        if self.shm_bytes is not None and self.shm_bytes < 1:
            raise SpecError(f"shm: {self.shm!r} is no size of a file system")


class ContainerOptions(MemoryAndVariables, PlaceOptions):
    """A container's options."""

    PLAIN: ClassVar[frozenset[str]] = frozenset(
        {"engine", "cpus", "cpuset", "memory", "shm", "ulimit", "cap_drop", "gpus"}
    )

    engine: Literal["auto", "podman", "docker"] = Field(
        default="auto", description="which engine: podman or docker; auto: podman where there is one, else docker"
    )
    image: str | None = Field(
        default=None, description="run in this image, which must be here; without it the host's own software is mounted"
    )
    python: str | None = Field(default=None, description=PYTHON_HELP)
    rootfs: bool = Field(
        default=False,
        description="with podman: the whole host as root file system; what is written is thrown away",
    )
    cpus: Typed | None = Field(default=None, description="CPU time, in CPUs: 1.5")
    cpuset: Typed | None = Field(default=None, description="the CPUs it may run on: 0-3,8")
    memory: Typed | None = Field(default=None, description="memory limit, without swap: 16g")
    shm: Typed | None = Field(default=None, description="size of /dev/shm: 1g; engines give 64 MB")
    ulimit: Several = Field(
        default=(), description="a limit of the kernel: memlock=-1, nofile=1024:65536; may be repeated"
    )
    network: str = Field(default="none", description="which network: none, host, bridge, or one of the engine's")
    seccomp: str = Field(
        default="default", description="which filter of system calls: default, unconfined, or a profile's file"
    )
    cap_add: Several = Field(default=(), description="a capability to add, e.g. SYS_NICE, IPC_LOCK; may be repeated")
    cap_drop: Several = Field(default=(), description="a capability to drop, or ALL; may be repeated")
    privileged: bool = Field(default=False, description="all capabilities and devices, no seccomp")
    gpus: Typed = Field(
        default="auto",
        description="which GPUs: all, none, numbers or UUIDs (0,1); auto: all where the workload may use one",
    )
    mount: Several = Field(
        default=(), description="a folder of the host: SRC:DST[:ro|rw], read-only unless said; may be repeated"
    )
    env: Variables = Field(default=(), description=VARIABLES_HELP)
    user: Typed | None = Field(default=None, description="who it runs as: UID[:GID], or a name that the image knows")
    ipc: str | None = Field(default=None, description="whose shared memory: host, private, shareable")
    read_only: bool = Field(default=False, description="a read-only root file system, with a /tmp in memory")

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
        """Soft and hard limit by name; -1 is unlimited. A name given twice has its last value."""
        return dict(_ulimit(text) for text in self.ulimit)

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """The GPUs that were named; empty for auto, all and none."""
        if self.gpus in ("auto", "all", "none"):
            return ()
        return tuple(name.strip() for name in self.gpus.split(","))

    @property
    def mounts(self) -> tuple[tuple[str, str, bool], ...]:
        """Source, target, and whether it is read-only."""
        return tuple(_mount(text) for text in self.mount)

    # What cannot be

    def _sizes(self) -> None:
        _ = self.cpu_count, self.cpuset_list, self.ulimits, self.mounts, self.variables, self.named_variables
        self._check_memory()

    def _lists(self) -> None:
        for name in self.gpu_names:
            if not re.fullmatch(r"\d{1,3}|(GPU|MIG)-[0-9a-fA-F-]{8,40}", name):
                raise SpecError(
                    f"gpus: {name!r} is no GPU",
                    hint="write all, none, numbers (0,1) or UUIDs, as nvidia-smi -L shows them",
                )
        for key, names in (("cap_add", self.cap_add), ("cap_drop", self.cap_drop)):
            for name in names:
                if not re.fullmatch(r"[A-Za-z_]+", name):
                    raise SpecError(f"{key}: {name!r} is no capability", hint="one at a time, like SYS_NICE")

    def _names(self) -> None:
        if self.image is not None and not REFERENCE.fullmatch(self.image):
            raise SpecError(
                f"image: {self.image!r} is no name of an image", hint="write it like docker.io/library/python:3.12"
            )
        if self.python is not None:
            check_python(self.python)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", self.network):
            raise SpecError(f"network: {self.network!r} is no network", hint="none, host, bridge, or a network's name")
        if self.seccomp not in ("default", "unconfined") and not self.seccomp.startswith("/"):
            raise SpecError(
                f"seccomp: {self.seccomp!r} is neither default, unconfined nor a file", hint="give its whole path"
            )
        if self.ipc not in (None, "host", "private", "shareable"):
            raise SpecError(f"ipc: {self.ipc!r} is none of host, private, shareable")
        if self.user is not None and not re.fullmatch(
            r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?", self.user
        ):
            raise SpecError(f"user: {self.user!r} is no user", hint="write it like 1000, 1000:1000 or nobody")

    def _fit_together(self) -> None:
        if self.image and self.rootfs:
            raise SpecError("image and rootfs do not go together: both say what the root file system is")
        if self.python and not self.image:
            raise SpecError(
                f"python: {self.python!r} names the Python of an image, and there is no image",
                hint="name one: image=REF; without an image the worker runs on the Python that runs stackmark",
            )
        if self.rootfs and self.read_only:
            raise SpecError(
                "rootfs and read_only do not go together: podman copies the host's /run into the container then"
            )
        if self.rootfs and self.engine == "docker":
            raise SpecError("rootfs needs podman: docker runs images only")
        if self.ipc == "host" and self.shm:
            raise SpecError("shm and ipc=host do not go together: the host's /dev/shm has its own size")
        if self.privileged and (self.cap_drop or self.seccomp != "default"):
            raise SpecError("privileged goes with neither cap_drop nor seccomp: it gives all and filters nothing")


def check_python(path: str) -> None:
    """Refuse what cannot be the path of a program in an image."""
    if not PYTHON_PATH.fullmatch(path):
        raise SpecError(
            f"python: {path!r} is not the path of a program", hint="write it like /opt/conda/bin/python or python3.12"
        )


def cpu_numbers(text: str) -> frozenset[int]:
    if not _CPUS.fullmatch(text):
        raise SpecError(f"cpuset: {text!r} is no list of CPUs", hint="write it like 0-3,8")
    cpus: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        if int(high or low) < int(low):
            raise SpecError(f"cpuset: {part!r} runs backwards", hint="write it like 0-3,8")
        cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


def cpus_of(text: str) -> float:
    if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?|\.\d{1,3}", text) or float(text) < 0.01:
        raise SpecError(f"cpus: {text!r} is no number of CPUs", hint="write it like 2 or 1.5; at least 0.01")
    return float(text)


def size_of(key: str, text: str) -> int:
    try:
        return parse_size(text)
    except SpecError as error:
        raise SpecError(f"{key}: {error.message}", hint=error.hint) from error


def _ulimit(text: str) -> tuple[str, tuple[int, int]]:
    name, equals, value = text.partition("=")
    if name not in ULIMITS or not equals:
        raise SpecError(f"ulimit: {text!r} is no limit", hint=f"write it like memlock=-1; limits: {', '.join(ULIMITS)}")
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
        raise SpecError(f"ulimit: {value!r} in {text!r} is no limit", hint="a whole number, or -1 for unlimited")
    return int(value)


def _mount(text: str) -> tuple[str, str, bool]:
    parts = text.split(":")
    mode = parts.pop() if len(parts) == 3 else "ro"
    if len(parts) != 2 or mode not in ("ro", "rw") or not all(part.startswith("/") and len(part) > 1 for part in parts):
        raise SpecError(
            f"mount: {text!r} is no mount",
            hint="write it like /data:/data, or /out:/out:rw to write to it, with whole paths",
        )
    return parts[0], parts[1], mode == "ro"


def variables_of(texts: Sequence[str]) -> dict[str, str | None]:
    """Variables by name, each with its value, or None where only the name is given. The last of several counts."""
    return dict(_variable(text) for text in texts)


def _variable(text: str) -> tuple[str, str | None]:
    name, _, value = text.partition("=")
    if not NAME.fullmatch(name):
        # Without the value: it may be a secret, whatever its name is.
        raise SpecError(
            f"env: {name!r} is not the name of a variable", hint="write it like OMP_NUM_THREADS=4, or HF_TOKEN"
        )
    if name.startswith(OUR_VARIABLES):
        raise SpecError(f"env: {name} is one of stackmark's own", hint="it cannot be set from outside")
    if "\0" in value or "\n" in value:
        raise SpecError(f"env: the value of {name} has a line break", hint="put it into a file, and mount that")
    return name, None if is_by_name(text) else value
