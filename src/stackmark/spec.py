"""The input of a worker: the request a person made, the spec that a probe froze, the task that carries either.

A request holds only what was typed. Only a worker sees the device, so a probe (a worker too) turns the request into a
spec, in which every parameter is written out; that spec is then the same for all runs. Its hash covers its canonical
JSON and neither the place nor our version: two runs with one hash did the same work.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

from stackmark.errors import SpecError
from stackmark.model import Field, Model, ValidationError
from stackmark.ranks import MOST_DEVICES
from stackmark.secrets_masking import masked_url

SCHEMA_VERSION: Literal[1] = 1
AUTO = "auto"
SPEC_VARIABLE = "STACKMARK_SPEC"
# Blocks or runs of one experiment; seeds stay below 2**32.
MOST_REPETITIONS = 1_000_000
# What a place knows and a worker cannot see (engine's version, image's digest), as JSON: it comes back in the facts.
ABOUT_VARIABLE = "STACKMARK_PLACE"
# A folder that a user's own program may write to, wherever it runs; it is deleted after the run.
SCRATCH_VARIABLE = "STACKMARK_SCRATCH"
# A file that each event goes to before it goes to standard output: a heartbeat that needs no log.
COPY_VARIABLE = "STACKMARK_COPY"
# Which lines for people a worker prints next to its events: `text`, or JSON with `format` and what else that one needs. Only in
# a pod, whose log people read. A worker that does not know the format, or the variable, prints events alone.
LOG_VARIABLE = "STACKMARK_WORKER_LOG"
# Where the ledger is. The address of a database may hold a password, so no worker and no program of a user is given it.
LEDGER_VARIABLE = "STACKMARK_LEDGER"
# Which Pythons of an image were looked at, where none of them has torch: for the worker's sentence.
PYTHONS_VARIABLE = "STACKMARK_PYTHONS"
# Names of the variables that a user typed with their values, with commas: a worker says those in its facts too.
TYPED_VARIABLE = "STACKMARK_TYPED"
# How a worker binds its processes to CPUs (machine/binding.py): `numa` or `cores`. Not STACKMARK_BIND, which is the default of
# the option --bind.
BIND_VARIABLE = "STACKMARK_BINDING"
# Linux refuses an environment string past 128 KiB; the rest is left to the variable's name and to growth.
SPEC_LIMIT_BYTES = 100 * 1024
# What a sentence about wrong input shows of it: a value may be of any length, and one input may be wrong in many ways.
SHOWN_CHARACTERS = 80
SHOWN_FINDINGS = 5

# How often a run's machine is sampled, where nothing else is asked: clocks and temperatures take seconds to change.
SAMPLE_HZ, MOST_SAMPLE_HZ = 2.0, 10.0

Scalar = str | int | float | bool | None
WorkloadName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*/[a-z0-9][a-z0-9._-]*$")]


class Request(Model):
    """A person's request. A parameter that is absent or `auto` is chosen by the probe."""

    schema_version: Literal[1] = 1
    workload: WorkloadName
    params: Mapping[str, Scalar] = {}
    ranks: int = Field(default=1, ge=1, le=MOST_DEVICES)

    def typed(self) -> dict[str, Scalar]:
        """Return the parameters that the person decided."""
        return {name: value for name, value in self.params.items() if value != AUTO and value is not None}


class Spec(Model):
    """A workload with all its parameters written out. `params` is the dump of the workload's own parameter model."""

    schema_version: Literal[1] = 1
    workload: WorkloadName
    params: Mapping[str, Scalar]
    ranks: int = Field(default=1, ge=1, le=MOST_DEVICES)

    def canonical(self) -> str:
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.canonical().encode()).hexdigest()


class AnyParams(Model):
    """The parameters that all workloads have.

    The command line's options and the documentation are made from these fields: `description` is the help text. A field
    marked `auto` may be left to the probe; one marked `follows` is how the work is done on a device and not what the work
    is, so an arm that types another device or precision has it chosen again, and the difference is said. A text that names
    neither a command nor a path, environment or image is marked `plain`, or has a list of such values there: a stored spec
    with any other text is not run without a question (experiments/trust.py). A field that was added when specs had been stored
    already is marked `later`: a spec leaves it out while it has its default, so that the same work keeps its hash.
    """

    device: str = Field(
        description="cpu or cuda:N", pattern=r"^(cpu|cuda(:\d{1,3})?)$", json_schema_extra={"auto": True}
    )

    def model_dump(self, *, mode: str = "python", exclude_defaults: bool = False) -> dict[str, Any]:
        fields = type(self).model_fields
        dumped = super().model_dump(mode=mode, exclude_defaults=exclude_defaults)
        later = {name for name, field in fields.items() if (field.json_schema_extra or {}).get("later")}
        return {name: value for name, value in dumped.items() if name not in later or value != fields[name].default}


class Params(AnyParams):
    """The parameters of a workload that is measured step by step: how long it warms up and measures."""

    seed: int = Field(default=1, ge=0, lt=2**31, description="random seed of weights, data and their order")
    steps: int = Field(default=0, ge=0, le=10_000_000, description="measure exactly this many steps; 0: use --seconds")
    seconds: float = Field(
        gt=0,
        le=86_400,
        description="measure this long after warm-up; auto: 10 on a GPU, 30 on a CPU",
        json_schema_extra={"auto": True, "follows": True, "quantity": "seconds"},
    )
    at_least_steps: int = Field(
        ge=0,
        description="with --seconds, measure at least this many steps, for up to three times the seconds",
        json_schema_extra={"auto": True, "follows": True},
    )
    warmup_steps: int = Field(
        ge=0, description="warm up for at least this many steps", json_schema_extra={"auto": True, "follows": True}
    )
    warmup_seconds: float = Field(
        ge=0,
        le=3600,
        description="warm up until rate and clock settle, for at most this long; 0: only --warmup-steps",
        json_schema_extra={"auto": True, "follows": True, "quantity": "seconds"},
    )


class Task(Model):
    """The one line that a worker reads. A worker that gets a request without a spec resolves it first: for a manifest
    that was made where no device was visible."""

    schema_version: Literal[1] = 1
    do: Literal["run", "probe", "facts"]
    request: Request | None = None
    spec: Spec | None = None
    rank: int = Field(default=0, ge=0)
    # The run's number in its experiment, or its block. Workloads that train to a target add it to their seed: the runs of an
    # experiment then differ in their seeds, the arms of a block do not, and all runs have one spec.
    repetition: int = Field(default=0, ge=0, le=MOST_REPETITIONS)
    # How often the worker samples its machine meanwhile; 0: not at all. How a run is observed is no part of what it is.
    sample_hz: float = Field(default=0.0, ge=0, le=MOST_SAMPLE_HZ)
    # Whether standard input stays open and its end means that the driver is dead. Off in a pod.
    lifeline: bool = True

    def _validate(self) -> None:
        if self.do == "run" and self.spec is None and self.request is None:
            raise ValueError("a run task needs a spec or a request")
        if self.do == "probe" and self.request is None:
            raise ValueError("a probe task needs a request")


def read_task(text: str | bytes) -> Task:
    """Read a task from its JSON line; raise a sentence for what is wrong with it."""
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
    if size > SPEC_LIMIT_BYTES:
        raise SpecError(f"the task exceeds {SPEC_LIMIT_BYTES} bytes, the limit")
    try:
        return Task.model_validate_json(text)
    except ValidationError as error:
        raise SpecError(f"the task cannot be read: {explain(error)}") from error


class Findings(Protocol):
    """The common interface of a model's error, ours or pydantic's."""

    def errors(self, *, include_url: bool) -> list[Any]: ...

    def error_count(self) -> int: ...


def explain(error: Findings) -> str:
    """Return the findings as one sentence: `batch: must be at least 1, got -1; …`."""
    findings = _whole_unions(error.errors(include_url=False))
    parts = []
    for where, said in list(findings.items())[:SHOWN_FINDINGS]:
        shown = _short(where)
        parts.append(f"{shown}: {said}" if shown else said)
    more = len(findings) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more else "")


# Of a field that takes one kind or another pydantic has a finding for each kind, whose name is the last step of the place.
_MUST = "must be "
_KINDS = re.compile(r"str|int|float|bool|(?:list|dict|tuple)\[.*\]|none")


def _whole_unions(findings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return what is wrong by place. What a value of several kinds fails by each of them is one sentence."""
    found: dict[str, str] = {}
    for finding in findings:
        steps = [str(step) for step in finding["loc"]]
        said = _said(finding)
        kind = next((i for i, step in enumerate(steps) if i and _KINDS.fullmatch(step)), None)
        where = ".".join(steps[:kind])
        if where not in found:
            found[where] = said
        elif kind is None:
            found[where] += f"; {said}"
        elif len(steps) == kind + 1 and said.startswith(_MUST):
            before, got, value = found[where].partition(", got ")
            other = said.removeprefix(_MUST).partition(", got ")[0]
            if other not in before.removeprefix(_MUST).split(" or "):
                found[where] = f"{before} or {other}{got}{value}"
    return found


# Kinds of pydantic's findings, in the words of model.py; a name in braces is one of the finding's own values.
_PYDANTIC = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have {min_length} or more entries",
    "too_long": "must have at most {max_length} entries",
    "string_unicode": "must be text in UTF-8",
    "json_invalid": "is not JSON: {error}",
    "json_type": "must be JSON text",
    "none_required": "must be null",
}
# The same for kinds that come in several forms: `int_type`, `int_parsing`, `int_from_float`.
_PYDANTIC_TYPES = {
    "int": "must be a whole number",
    "float": "must be a number",
    "string": "must be text",
    "bool": "must be true or false",
    "list": "must be a list",
    "tuple": "must be a list",
    "dict": "must be an object",
    "mapping": "must be an object",
    "model": "must be an object",
    "dataclass": "must be an object",
}


def _said(finding: Mapping[str, Any]) -> str:
    """Say what is wrong with one value, in our words, and what was found."""
    kind = str(finding.get("type") or "")
    said = masked_url(str(finding["msg"])).removeprefix("Value error, ")  # before the sentences of our own validators
    form = _PYDANTIC.get(kind) or _PYDANTIC_TYPES.get(kind.partition("_")[0])
    if form:
        said = form.format_map({name: _plain(value) for name, value in finding.get("ctx", {}).items()})
    value = finding.get("input")
    if not isinstance(value, str | int | float | bool) or (kind == "value_error" and masked_url(str(value)) in said):
        return said
    return f"{said}, got {_short(masked_url(_plain(value, quoted=True)))}"


def _plain(value: object, *, quoted: bool = False) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.15g}"
    # The choices that pydantic lists are quoted one by one.
    return repr(value) if quoted else str(value).replace("'", "")


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
