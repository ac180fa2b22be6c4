"""The options of a Slurm job. Each field is a key of `--arm`; a value is kept as typed, because it is stored so.

Names are Slurm's own (`partition`, `qos`, `gres`), except where another place has an option for the same: `cpus`, `memory`,
`gpus`, `wait` and `ranks_per_node`. What srun would refuse in words of its own is refused here with the key's name, as far as
it can be known without asking Slurm.
"""

import re
from collections.abc import Callable
from typing import ClassVar

from pydantic import Field

from stackmark.errors import SpecError
from stackmark.places.container.options import Typed, check_python, size_of
from stackmark.places.image_python import PYTHONS
from stackmark.places.place import PlaceOptions
from stackmark.places.variables import BIND_HELP, VARIABLES_HELP, Bind, Variables, WithVariables
from stackmark.ranks import MOST_LOCAL_RANKS
from stackmark.spec import AUTO
from stackmark.units import MIB, parse_seconds

# No node has more devices of one kind.
MOST_DEVICES = 1024
MOST_CPUS = 4096
LONGEST_WAIT_S = 30 * 86_400
# The names that Slurm gives such things. None begins with a dash, so that it could be read as an option of srun.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,+-]{0,254}")
_NODES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]{0,1023}")
_CONSTRAINT = re.compile(r"[A-Za-z0-9_\[(][A-Za-z0-9_.,&|*()\[\]:-]{0,254}")
_GRES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:/=()-]{0,254}")
_HAS_GPU = re.compile(r"(^|,)(gres[:/])?gpu\b")


class SlurmOptions(WithVariables, PlaceOptions):
    """A Slurm job's options."""

    PLAIN: ClassVar[frozenset[str]] = frozenset(
        {
            "partition", "qos", "constraint", "gres", "gpus", "nodelist", "ranks_per_node", "cpus", "memory", "exclusive",
            "reservation", "wait", "bind",
        }
    )  # fmt: skip

    partition: str | None = Field(default=None, description="partition; default: Slurm's own")
    account: str | None = Field(default=None, description="account that the job is charged to")
    qos: str | None = Field(default=None, description="quality of service")
    constraint: str | None = Field(default=None, description="features that nodes must have: h200, 'a100|h100'")
    reservation: str | None = Field(default=None, description="reservation to run in")
    nodelist: str | None = Field(default=None, description="nodes to run on: n1, or n[1-4]")
    exclusive: bool = Field(default=False, description="share the nodes with no other job")
    gpus: Typed = Field(
        default=AUTO,
        description="number of GPUs on each node, or none; auto: one for each rank of the node, unless the workload runs on "
        "the CPU or no node has a GPU",
    )
    gres: str | None = Field(default=None, description="generic resources of each node, in place of gpus: gpu:h200:8")
    ranks_per_node: Typed | None = Field(
        default=None, description="how many ranks each node gets; default: all on one node"
    )
    cpus: Typed | None = Field(default=None, description="CPUs on each node; default: Slurm's own, often 1")
    bind: Bind = Field(default="none", description=BIND_HELP)
    memory: Typed | None = Field(default=None, description="memory on each node: 16g; default: Slurm's own")
    env: Variables = Field(default=(), description=VARIABLES_HELP)
    python: str | None = Field(
        default=None,
        description="path of the nodes' Python that runs the worker; default: the first with PyTorch among the Python that "
        f"runs stackmark, {', '.join(PYTHONS)}",
    )
    wait: Typed = Field(default="10min", description="how long a job may wait for its nodes")

    def _checks(self) -> tuple[Callable[[], None], ...]:
        return (self._quantities, self._names, self._fit_together)

    # What Slurm is told

    @property
    def gpu_count(self) -> int | None:
        """Return the number of GPUs on each node; None for auto: then the ranks decide."""
        if self.gpus == AUTO:
            return None
        return 0 if self.gpus == "none" else _number("gpus", self.gpus, MOST_DEVICES, " GPUs, or none")

    @property
    def ranks_each(self) -> int | None:
        if self.ranks_per_node is None:
            return None
        return _number("ranks_per_node", self.ranks_per_node, MOST_LOCAL_RANKS)

    @property
    def cpu_count(self) -> int | None:
        return None if self.cpus is None else _number("cpus", self.cpus, MOST_CPUS, ": Slurm gives whole CPUs")

    @property
    def memory_mib(self) -> int | None:
        """Return the memory in Slurm's unit, rounded up."""
        return None if self.memory is None else -(-size_of("memory", self.memory) // MIB)

    @property
    def wait_s(self) -> int:
        try:
            seconds = parse_seconds(self.wait)
        except SpecError as error:
            raise SpecError(f"wait: {error.message}", hint=error.hint) from error
        if not 1 <= seconds <= LONGEST_WAIT_S:
            raise SpecError(f"wait must be between 1 s and 30 days, got {self.wait!r}")
        return round(seconds)

    # What cannot be

    def _quantities(self) -> None:
        _ = self.gpu_count, self.ranks_each, self.cpu_count, self.wait_s, self.variables, self.named_variables
        if self.memory_mib is not None and self.memory_mib < 6:
            raise SpecError(f"memory: {self.memory!r} is below 6 MiB, less than a Python takes")

    def _names(self) -> None:
        for key, value, form, example in (
            ("partition", self.partition, _NAME, "gpu"), ("account", self.account, _NAME, "physics"),
            ("qos", self.qos, _NAME, "normal"), ("constraint", self.constraint, _CONSTRAINT, "h200 or 'a100|h100'"),
            ("reservation", self.reservation, _NAME, "maintenance"), ("nodelist", self.nodelist, _NODES, "n1 or n[1-4]"),
            ("gres", self.gres, _GRES, "gpu:2 or gpu:h200:8"),
        ):  # fmt: skip
            if value is not None and not form.fullmatch(value):
                raise SpecError(f"{key}: {value!r} is not something that Slurm names", hint=f"write it like {example}")
        if self.python is not None:
            check_python(self.python)

    def _fit_together(self) -> None:
        if self.gres is not None and self.gpus != AUTO and _HAS_GPU.search(self.gres):
            raise SpecError("gpus and gres both say how many GPUs each node gives", hint="give one of the two")


def _number(key: str, text: str, most: int, what: str = "") -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= most:
        raise SpecError(f"{key} must be a number from 1 to {most}{what}, got {text!r}")
    return int(text)
