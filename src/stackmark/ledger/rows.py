"""The ledger's records of experiments and runs, as frozen data.

A run is written twice: `RunStart` when it begins (the row is `running`), `RunEnd` when it ends. What stands in the spec
(device, precision, batch, tuning) is taken from the spec here, so that a column can never disagree with it; what is
derived from the stream (rate, percentiles, steadiness) is the caller's to derive, and can be derived again from the
stream, which is kept whole. `RunRow` is a row without its spec, for lists; `RunDetail` has the spec too.
"""

import re
from typing import Annotated, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from stackmark.events import LARGEST, SMALLEST
from stackmark.figures import figure_fields
from stackmark.frozen import Frozen
from stackmark.spec import Scalar, Spec

Ended = Literal["done", "failed", "invalid"]
Status = Literal["running", "done", "failed", "invalid"]
# The failure of a run whose process was gone when the next command looked.
LOST = "lost"
# The subject of the facts that say where a run of somebody else's came from.
IMPORT = "import"


def storable(text: str) -> str:
    """Return text that every database accepts: PostgreSQL has no NUL, and neither stores half of a surrogate pair.

    Messages hold what a crashed library printed, and names of files may hold bytes that are not UTF-8, which Python keeps as
    half a pair. A run must not be lost over either; such a byte is stored as it is shown, `\\udcff`.
    """
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "backslashreplace").decode("utf-8")


# What an experiment is: one arm; arms in blocks; the same arm twice; an imported log; a workload compared with a baseline; a run
# during which a part of its cluster was stopped; one run on every device of a cluster; a table of other experiments; rank counts
# in blocks.
Kind = Literal["run", "compare", "noise", "import", "check", "sweep", "fault", "suite", "scale"]
# A primer fills the caches that all arms share: it is stored, and is part of no statistic.
Role = Literal["measured", "primer"]
Text = Annotated[str, AfterValidator(storable)]
Json = dict[str, JsonValue]
# A ledger is a file that anybody may have changed: numbers that no run has make a row unreadable, and nothing computed from a row
# that is read is infinite.
Rate = Annotated[float, Field(ge=SMALLEST, le=LARGEST)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Natural = Annotated[int, Field(ge=0, lt=2**63)]


class Experiment(Frozen):
    """Runs that were requested together. `request` is what the person asked for; `note` is free text."""

    id: str = Field(pattern=r"^x-[0-9a-z]{26}$")
    created_unix_s: float
    command: Text = ""
    request: Json = {}
    note: Text = ""
    kind: Kind = "run"
    # The dump of experiments.design.Design; None where there is one arm and no order to keep. Of a sweep or a suite: its plan. Of
    # a fault: what was done and seen.
    design: Json | None = None
    # The suite that it is a row of.
    suite_id: Text | None = None


class RunStart(Frozen):
    """A run at its start. `handle` is what its place needs to find the worker again, and may come later."""

    id: str = Field(pattern=r"^r-[0-9a-z]{26}$")
    experiment_id: str
    position: int = Field(default=0, ge=0, description="the run's number in its experiment, from 0")
    arm: int = Field(default=0, ge=0)
    block: int | None = Field(default=None, ge=0)
    attempt: int = Field(default=0, ge=0, description="0, or which repetition of its block it belongs to")
    role: Role = "measured"
    slot: int | None = Field(default=None, ge=0, description="of a sweep: the device of a node")
    suspect: int | None = Field(default=None, ge=0, description="of a sweep: the slot that a repetition is about")
    pass_number: int | None = Field(default=None, ge=0, description="of a sweep or an operator list, from 0")
    piece: int | None = Field(default=None, ge=0, description="of an operator list: which piece of its pass, from 0")
    spec: Spec
    place: Text
    place_options: Json = {}
    started_unix_s: float
    machine_id: Text
    boot_id: Text
    driver_pid: int
    handle: Json = {}
    stackmark_version: Text


class RunEnd(Frozen):
    """A run's end. A failure is never a number, so a failed run has a kind and no rate; an invalid one keeps its
    rate, which is not a result."""

    status: Ended
    ended_unix_s: float
    chip: Text | None = None
    chip_uuid: Text | None = None
    framework: Text | None = None
    rate_per_s: Rate | None = None
    rate_unit: Text | None = None
    steps_total: Natural | None = None
    steps_used: Natural | None = None
    steady: Text | None = None
    step_p50_s: Number | None = None
    step_p90_s: Number | None = None
    step_p99_s: Number | None = None
    step_cv: Number | None = None
    wall_s: Number | None = None
    setup_s: Number | None = None
    memory_peak_mib: Number | None = None
    energy_j: Number | None = None
    data_share: Number | None = None
    failure_kind: Text | None = None
    failure_message: Text | None = None
    failure_hint: Text | None = None
    flags: list[str] = []

    @model_validator(mode="after")
    def _a_failure_is_never_a_number(self) -> "RunEnd":
        if self.status == "failed" and (self.failure_kind is None or self.rate_per_s is not None):
            raise ValueError("a failed run must have a failure_kind and no rate_per_s")
        if self.status == "done" and self.failure_kind is not None:
            raise ValueError("a run with status done cannot have a failure_kind")
        return self


# What only runs of a sweep or an operator list have.
OWN_COLUMNS = frozenset({"slot", "suspect", "pass_number", "piece"})


class Cursor(NamedTuple):
    """The end of a page of a list: the next page is what comes before it."""

    started_unix_s: float
    id: str


class RunRow(Frozen):
    """One run of the ledger, without its spec."""

    id: str
    experiment_id: str
    position: Natural
    workload: str
    spec_digest: str
    place: str
    place_options: Json
    status: Status
    started_unix_s: float
    ended_unix_s: float | None
    machine_id: str
    boot_id: str
    driver_pid: int
    handle: Json
    device: str | None
    chip: str | None
    chip_uuid: str | None
    precision: str | None
    batch: int | None
    tune: str | None
    framework: str | None
    rate_per_s: Rate | None
    rate_unit: str | None
    steps_total: Natural | None
    steps_used: Natural | None
    steady: str | None
    step_p50_s: Number | None
    step_p90_s: Number | None
    step_p99_s: Number | None
    step_cv: Number | None
    wall_s: Number | None
    setup_s: Number | None
    memory_peak_mib: Number | None
    energy_j: Number | None
    data_share: Number | None
    failure_kind: str | None
    failure_message: str | None
    failure_hint: str | None
    flags: list[str]
    stackmark_version: str
    arm: Natural
    block: Natural | None
    attempt: Natural
    role: Role
    slot: Natural | None = None
    suspect: Natural | None = None
    pass_number: Natural | None = None
    piece: Natural | None = None
    # As the spec has it, which is where it is stored: on how many devices the run was made.
    ranks: int = Field(default=1, ge=1)

    @property
    def place_in_order(self) -> tuple[int, int | None, int]:
        """Return the run's arm, block and attempt as in JSON, where a sweep and an operator list have none."""
        if self.slot is not None:
            attempt = self.suspect + 1 if self.suspect is not None else self.pass_number or 0
            return self.slot, self.block, attempt
        if self.pass_number is not None:
            return self.arm, self.pass_number, self.piece or 0
        return self.arm, self.block, self.attempt

    @model_serializer(mode="wrap")
    def _as_json_has_it(self, dump: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        """Leave the kinds' own columns out: programs that read the JSON know the names that were there before."""
        shown: dict[str, JsonValue] = dump(self)
        arm, block, attempt = self.place_in_order
        known = {name: value for name, value in shown.items() if name not in OWN_COLUMNS}
        figure = figure_fields(self.rate_per_s, self.rate_unit)
        return {**known, "arm": arm, "block": block, "attempt": attempt, **figure}

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.started_unix_s, self.id)

    @property
    def ran_on(self) -> str:
        """Return the machine that the worker ran on: the driver's own, unless a pod's node differs (by the kernel's boot id)."""
        node = self.handle.get("node")
        if node is None or self.handle.get("node_boot_id") == self.boot_id:
            return self.machine_id
        return str(self.handle.get("node_machine_id") or node)


class ExperimentRow(Frozen):
    """One experiment of a list, with facts from its runs."""

    experiment: Experiment
    # Of its runs, in the order of the alphabet.
    workloads: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    # How many runs it has of each status, without primers.
    runs: dict[Status, int] = {}
    # The size of what is stored of its runs' output: how long it takes to compute what they show.
    stored_bytes: int = 0


class RunDetail(RunRow):
    """One run with its spec."""

    spec: Spec

    @model_validator(mode="before")
    @classmethod
    def _ranks_of_the_spec(cls, columns: object) -> object:
        spec = columns.get("spec") if isinstance(columns, dict) else None
        ranks = spec.get("ranks", 1) if isinstance(spec, dict) else getattr(spec, "ranks", 1)
        return {**columns, "ranks": ranks} if isinstance(columns, dict) else columns


class RunFilter(Frozen):
    """A filter of runs: all conditions apply. `workload`, `chip` and `place` may be globs (`train/*`)."""

    workload: str | None = None
    since_unix_s: float | None = None
    until_unix_s: float | None = None
    status: Status | None = None
    chip: str | None = None
    place: str | None = None
    experiment_id: str | None = None


class ExperimentFilter(RunFilter):
    """A filter of experiments: those with a run that fits the conditions of runs, of a kind, whose command or note has a text."""

    kind: Kind | None = None
    text: str | None = None


class Edge(NamedTuple):
    """Where a page of a list begins: after a row (`older`), or before it. Without an edge it is the list's own beginning."""

    cursor: Cursor
    older: bool = True


# A spec's last field, in the JSON that the ledger keeps of it.
_RANKS = re.compile(r'"ranks":\s*([1-9][0-9]{0,8})\s*\}\s*$')


def ranks_in(spec_text: str) -> int:
    """Return the number of ranks in a spec's JSON; 1 where it does not say, or is damaged."""
    found = _RANKS.search(spec_text[-40:])
    return int(found[1]) if found else 1


def of_spec(spec: Spec) -> dict[str, Scalar]:
    """Return the columns that repeat the spec, for lists and filters; empty where a workload has no such parameter."""
    params = spec.params
    batch = params.get("batch")
    return {
        "workload": spec.workload,
        "spec_digest": spec.digest,
        "batch": batch if isinstance(batch, int) and not isinstance(batch, bool) else None,
        **{
            name: storable(str(params[name])) if params.get(name) is not None else None
            for name in ("device", "precision", "tune")
        },
    }
