"""The interface of a place: one method that matters.

A place starts a worker with a task, hands on each line as it comes, and says at the end what the worker could not say
itself: that it was killed, by whom, or that its time was up. Lines are handed on as text: reading them is the recorder's
business, so that a recorded stream can be played back through the same door.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Protocol, Self, runtime_checkable

from pydantic import BeforeValidator, Field, JsonValue, field_validator, model_validator

from stackmark.errors import SpecError
from stackmark.failures import PlaceFailure
from stackmark.frozen import Frozen
from stackmark.machine.reading import told_cpus
from stackmark.remarks import Remark
from stackmark.spec import AUTO, Spec, Task

# What is kept of a worker's standard error: enough for a traceback of a compiler, not for a day of warnings.
STDERR_LINES_KEPT = 400

Handle = dict[str, JsonValue]
Facts = dict[str, dict[str, JsonValue]]
# Where compilers keep what they made. In an experiment all arms share one folder, with these names below it. Not the whole
# of ~/.cache: a user's own program has its downloaded models there.
CACHE_VARIABLES = {
    "CUDA_CACHE_PATH": "cuda",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "PYTORCH_KERNEL_CACHE_PATH": "torch-kernels",
}


def _texts(value: object) -> object:
    return (value,) if isinstance(value, str) else value


# An option that may be given several times.
Several = Annotated[tuple[str, ...], BeforeValidator(_texts)]


class PlaceOptions(Frozen):
    """The base of a place's options. Each field is a key of `--arm` and an option of the command line: `description` is its
    help. Names are disjoint from those of all workloads' parameters. A value is text as typed (`64m`, `1g`), read by the
    field's own validator; a field of type `tuple[str, ...]` may be given several times."""

    # Options that only limit or choose hardware. All others name code, files or rights: one that comes from a ledger and was
    # not typed here is not used without a question (experiments/trust.py).
    PLAIN: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        for check in self._checks():
            try:
                check()
            except SpecError as error:
                raise ValueError(f"{error.message}; {error.hint}" if error.hint else error.message) from error
        return self

    def _checks(self) -> tuple[Callable[[], None], ...]:
        """What may be wrong with the options as they were read: each raises a SpecError."""
        return ()


GPU_IDS = "gpu_ids"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


MOST_GPUS = 256
NOT_NAMED = (AUTO, "all", "none")
_GPU_NAME = re.compile(r"\s*(\d{1,3}|(GPU|MIG)-[0-9a-fA-F-]{8,40})\s*")


class NamesGpus(PlaceOptions):
    """The base for a place on this machine, where GPUs can be counted or named.

    A person types `gpus=2` for the first two and `gpu_ids=0+1` for those by name. What is stored is unambiguous: a count is an
    integer, and names are a text ("0,1"), as they were when `gpus` still took names (`read_typed_gpus`).
    """

    gpus: int | str = Field(
        default=AUTO, description="how many GPUs, the first of those that are visible; all, none; auto: all"
    )
    gpu_ids: str | None = Field(default=None, description="which GPUs: numbers or UUIDs with + between them (0+1)")

    @property
    def gpu_count(self) -> int | None:
        """Return how many GPUs were requested; None where they are named, or not counted."""
        return self.gpus if isinstance(self.gpus, int) else None

    def gpu_names(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return the GPUs that were named, or the first of those that are visible; empty for auto, all and none."""
        if isinstance(self.gpus, str):
            return () if self.gpus in NOT_NAMED else tuple(name.strip() for name in self.gpus.split(","))
        visible = environment.get(VISIBLE_GPUS)
        names = map(str, range(self.gpus)) if visible is None else map(str.strip, visible.split(","))
        return tuple(name for name in names if name)[: self.gpus]

    @model_validator(mode="before")
    @classmethod
    def _ids_are_gpus(cls, given: object) -> object:
        try:
            return with_gpu_ids(given) if isinstance(given, dict) else given
        except SpecError as error:
            raise ValueError(f"{error.message}; {error.hint}") from error

    @field_validator("gpus", mode="after")
    @classmethod
    def _are_gpus(cls, value: int | str) -> int | str:
        if isinstance(value, int):
            if not 1 <= value <= MOST_GPUS:
                raise ValueError(f"a number of GPUs must be between 1 and {MOST_GPUS}, got {value}")
            return value
        names = [] if value in NOT_NAMED else value.split(",")
        if wrong := [name for name in names if not _GPU_NAME.fullmatch(name)]:
            raise ValueError(
                f"{wrong[0]!r} is not a GPU; write --gpu-ids with numbers (0+1) or UUIDs, as nvidia-smi -L shows them"
            )
        return value


def read_typed_gpus(kind: type[PlaceOptions], given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Read `gpus` as a person types it, a count, for a place that stores names as text."""
    asked = given.get("gpus")
    if asked is None or not issubclass(kind, NamesGpus) or str(asked) in NOT_NAMED:
        return dict(given)
    text = str(asked).strip()
    if text.isdecimal() and 1 <= int(text[:9]) <= MOST_GPUS:
        return {**given, "gpus": int(text)}
    if text.strip("0") == "":
        raise SpecError(
            f"--gpus {text} asks for no GPU: it is a number of GPUs, not the number of one",
            hint="for the GPU with the number 0: --gpu-ids 0; for the CPU: --gpus none",
        )
    if not text.isdecimal() and all(_GPU_NAME.fullmatch(name) for name in text.split(",")):
        ids = "+".join(name.strip() for name in text.split(","))
        raise SpecError(f"--gpus takes a number of GPUs, got the names {text}", hint=f"name GPUs with --gpu-ids {ids}")
    raise SpecError(
        f"--gpus: {text!r} is not a number of GPUs from 1 to {MOST_GPUS}",
        hint="write it like 2, all or none; which GPUs: --gpu-ids 0+1",
    )


def with_gpu_ids(given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return options in which `gpu_ids` stands as `gpus`."""
    ids = given.get(GPU_IDS)
    if ids is None:
        return dict(given)
    if "gpus" in given:
        raise SpecError("gpus and gpu_ids both say which GPUs are used", hint="give one of the two")
    others = {name: value for name, value in given.items() if name != GPU_IDS}
    return {**others, "gpus": str(ids).replace("+", ",")}


# Subjects that every worker of ours sends, if only to say that they could not be read.
SUBJECTS = ("host", "cpu", "memory", "cgroup", "container", "limits", "process", "software")


def missing_facts(facts: Facts) -> list[str]:
    """Return a sentence where a worker left out facts by which its place is verified."""
    missing = [subject for subject in SUBJECTS if subject not in facts]
    if not missing:
        return []
    text = f"the worker sent no facts about {', '.join(missing)}: the place's options cannot be verified"
    return [Remark(text, "missing-facts")]


def not_bound(bind: str, facts: Facts) -> list[str]:
    """Return a sentence where a worker did not bind itself as it was asked to, or runs on other CPUs than it says."""
    said = facts.get("binding", {})
    if bind == "none":
        return []
    if said.get("bind") != bind:
        return [f"bind={bind} was requested, but the worker did not bind itself"]
    cpus, own = facts.get("process", {}).get("cpus"), said.get("cpus")
    if not told_cpus(cpus) or not told_cpus(cpus) <= told_cpus(own):
        return [f"bind={bind} was requested, which gives the worker the CPUs {own}, but it runs on {cpus}"]
    return []


def cpus_allowed(facts: Facts) -> JsonValue:
    """Return the CPUs that the place gave: a worker that bound itself says what it had before."""
    return facts.get("binding", {}).get("allowed") or facts.get("process", {}).get("cpus")


def cache_variables(cache: Path | None) -> dict[str, str]:
    """Return the variables of the shared cache for a worker's environment; empty without one."""
    return {name: str(cache / folder) for name, folder in CACHE_VARIABLES.items()} if cache else {}


@dataclass(frozen=True)
class Outcome:
    exit_code: int | None
    failure: PlaceFailure | None = None
    stderr: tuple[str, ...] = ()
    # Ctrl-C or SIGTERM in the driver: raised again by the driver once the run is stored.
    interruption: BaseException | None = field(default=None, compare=False)
    # Where each rank was, in words, of a group on several machines.
    locations: Mapping[int, str] = field(default_factory=dict, compare=False)
    # Whether the worker ran while the driver waited; the times of a recording cannot be compared with the driver's clock.
    live: bool = True


class Watch(Protocol):
    """An observer of a running worker."""

    def started(self, handle: Handle) -> None:
        """Report what the place knows about the run, for the ledger; again whenever it knows more."""

    def waiting(self, sentence: str) -> None:
        """Report why nothing happens yet: a queue, a shortage, an image that is being pulled."""

    def line(self, text: str) -> None: ...
    def stderr(self, text: str) -> None: ...


class Place(Protocol):
    name: str

    def options(self) -> dict[str, JsonValue]:
        """Return the place's options, as they are stored with a run."""

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        """Run one worker to its end. `mark` is the run's id: whatever the place leaves behind carries it."""

    def not_enforced(self, spec: Spec, facts: Facts) -> list[str]:
        """Return what was requested from the place but is not in effect, as the worker saw it; one sentence each."""


@runtime_checkable
class Prepared(Protocol):
    """A place that can tell before its first run whether it is available: `prepare` raises a PlaceError if not."""

    def prepare(self) -> object: ...


@runtime_checkable
class OwnFiles(Protocol):
    """A place that may not have the driver's files: a user's program then runs in the place's own folder."""

    def has_own_files(self) -> bool: ...


@runtime_checkable
class Keeps(Protocol):
    """A place that keeps what a run left (a pod with its log) until everything is stored, and then removes it."""

    def stored(self, mark: str) -> str | None:
        """Remove what the run left; where that failed, return a sentence about what is left."""


@runtime_checkable
class OffersGpus(Protocol):
    """A place that can tell before a worker runs there whether it gives one a GPU."""

    def offers_gpus(self) -> bool: ...


@runtime_checkable
class PrintsTable(Protocol):
    """A place whose log people read: a worker there can print the table of tf_cnn_benchmarks into it."""

    def print_table(self, table: Mapping[str, object]) -> None:
        """Set what that table needs besides the spec."""


@dataclass(frozen=True)
class PlaceKind:
    """A kind of place. `make` gets the parsed options, and the folder for the arms' shared compiler caches, or None."""

    name: str
    options: type[PlaceOptions]
    make: Callable[[PlaceOptions, Path | None], Place]
    # Removes what a run left behind when its driver was killed; gives what it removed, a few words each.
    remove_left: Callable[[str, Mapping[str, JsonValue]], list[str]] = lambda _run_id, _handle: []
    # Which chip it gets is decided elsewhere (a cluster's scheduler): it is probed first, and the other arms follow it.
    leads: bool = False
