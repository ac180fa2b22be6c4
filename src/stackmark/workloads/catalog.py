"""The static table of what can be measured, without importing a framework.

The command line reads names, parameters and help texts from here, so it may be imported from the driver's side, unlike
the workloads themselves. A built-in family stands in this table; other people's packages announce theirs by the entry
point group `stackmark.workloads`, whose object is a `Family`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from stackmark.errors import SpecError, nearest_names
from stackmark.spec import AnyParams, Request, Spec, explain
from stackmark.workloads.check.params import CheckParams
from stackmark.workloads.command.params import CommandParams
from stackmark.workloads.op.params import OpParams
from stackmark.workloads.train.params import TrainParams
from stackmark.workloads.train.zoo import MODELS
from stackmark.workloads.workload import Workload

# What `--cmd` asks for without a name.
OWN_COMMAND = "command/own"


@dataclass(frozen=True)
class Entry:
    """One workload, as `stackmark workloads` lists it. Counts are of one forward pass of one sample; 0: not counted."""

    name: str
    title: str
    sample: str
    sequence_tokens: int = 0
    params: int = 0
    forward_macs: int = 0
    training_flops: int = 0


@dataclass(frozen=True)
class Family:
    name: str
    params: type[AnyParams]
    module: str
    entries: tuple[Entry, ...]

    def load(self) -> Workload:
        """Imports the family's module, and with it the framework: only a worker does this."""
        return cast(Workload, import_module(self.module))


def _train() -> Family:
    entries = tuple(
        Entry(f"train/{m.name}", m.title, m.sample, m.sequence_tokens, m.params, m.forward_macs, m.training_flops)
        for m in MODELS.values()
    )
    return Family("train", TrainParams, "stackmark.workloads.train.impl.train", entries)


def _command() -> Family:
    entry = Entry(OWN_COMMAND, "Your own program (--cmd), run whole: the figure that it prints, or its time", "run")
    return Family("command", CommandParams, "stackmark.workloads.command.impl.command", (entry,))


def _check() -> Family:
    entry = Entry("check/vector-add", "Two vectors added on the device, each sum compared with the host's", "run")
    return Family("check", CheckParams, "stackmark.workloads.check.impl.vector_add", (entry,))


OPERATORS = {
    "gemm": "Matrix products: DeepBench's lists, a transformer's, or one of your own (--m --n --k)",
    "batched-gemm": "Many matrix products of one shape in one call",
    "grouped-gemm": "A mixture of experts: rows fall unevenly to many matrices",
    "sparse-gemm": "A sparse matrix times a dense one, by DeepBench's lists",
    "conv": "Convolutions forward, and backward by inputs and by weights: DeepBench's lists",
    "rnn": "Recurrent layers (vanilla, LSTM, GRU), forward and backward: DeepBench's lists",
    "attention": "Scaled dot-product attention of several lengths, forward and backward",
    "layer-norm": "Layer normalisation, forward and backward",
    "embedding": "Rows of a table looked up, and their gradient",
    "optimizer": "One step of an optimizer over all parameters of a model",
    "copy": "Copies within the device's own memory",
    "transfer": "Between host and device from each NUMA node, and between devices as a matrix",
    "all-reduce": "The sum over all ranks, at every rank (--ranks N)",
    "all-gather": "Every rank's part, at every rank (--ranks N)",
    "reduce-scatter": "The sum over all ranks, a part at each (--ranks N)",
    "all-to-all": "A part from every rank to every rank (--ranks N)",
    "broadcast": "One rank's buffer, at every rank (--ranks N)",
    "ceilings": "The machine's limits: matrix rate by precision, copies, transfers, launches",
}


def _op() -> Family:
    entries = tuple(Entry(f"op/{name}", title, "call") for name, title in OPERATORS.items())
    return Family("op", OpParams, "stackmark.workloads.op.impl.entry", entries)


def families() -> dict[str, Family]:
    """Ours, and those of other packages; a name of ours cannot be taken by another."""
    from importlib.metadata import entry_points

    table = {"train": _train(), "op": _op(), "command": _command(), "check": _check()}
    for point in entry_points(group="stackmark.workloads"):
        try:
            family = point.load()
        except (ImportError, AttributeError) as error:
            family = error
        if not isinstance(family, Family):
            package = point.dist.name if point.dist else point.value
            raise SpecError(
                f"the package {package} announces the workloads {point.name!r}, but {point.value} is no Family: {family}",
                hint=f"repair or remove it: pip uninstall {package}",
            )
        table.setdefault(family.name, family)
    return table


def entries() -> Iterator[Entry]:
    for family in families().values():
        yield from family.entries


def find(workload: str) -> tuple[Family, Entry]:
    """The family and entry of a name; a name nobody knows is a sentence with the nearest ones."""
    table = families()
    family = table.get(workload.partition("/")[0])
    for entry in family.entries if family else ():
        if entry.name == workload:
            assert family is not None
            return family, entry
    known = [entry.name for entry in entries()]
    raise SpecError(
        f"there is no workload {workload!r}{nearest_names(workload, known)}", hint="list them with: stackmark workloads"
    )


def check_request(request: Request) -> None:
    """Refuses what can be refused without seeing the device: names, types and ranges of what was typed."""
    family, _ = find(request.workload)
    fields = family.params.model_fields
    for name, field in fields.items():
        if field.is_required() and name not in request.typed() and not _may_be_auto(field):
            raise SpecError(
                f"{request.workload} needs --{name.replace('_', '-')}: {field.description}",
                hint="see: stackmark run --help",
            )
    for name, value in request.typed().items():
        if name not in fields:
            raise SpecError(
                f"{request.workload} has no parameter {name!r}{nearest_names(name, list(fields))}",
                hint="list them with: stackmark run --help",
            )
        try:
            TypeAdapter(fields[name].rebuild_annotation()).validate_python(value)
        except ValidationError as error:
            option = f"--{name.replace('_', '-')}"
            raise SpecError(f"{option}: {explain(error)}", hint="see: stackmark run --help") from error


def check_spec(spec: Spec) -> None:
    """Refuse a stored spec that its workload does not know: another name, a field too many, a value out of bounds."""
    family, _ = find(spec.workload)
    try:
        family.params.model_validate(spec.params)
    except ValidationError as error:
        raise SpecError(
            f"the stored spec of {spec.workload} is not one that this stackmark runs: {explain(error)}",
            hint="it was changed, or made by another version: measure anew",
        ) from error


def _may_be_auto(field: FieldInfo) -> bool:
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("auto"))
