"""Read a suite and expand it: a TOML file, a suite that ships, or the lists of a command line become rows and their arms.

A row is one workload with one value of each axis; where an axis is compared, the values of that axis are the arms of the row, and
the row is one comparison in blocks. Without a compared axis a row is one cell, and all rows are interleaved run by run. Whatever
can be refused is refused here, before anything runs: names, types, an axis that no workload and no place has, an empty matrix.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue, ValidationError, field_validator

from stackmark.errors import SpecError, nearest_names
from stackmark.experiments.arms import ArmRequest, read_arms
from stackmark.experiments.design import MARGIN, MOST_ARMS, MOST_BLOCKS, check_margin
from stackmark.experiments.toml_files import parse_toml
from stackmark.experiments.trust import Part, parts_of
from stackmark.experiments.typed import canonical_place, canonical_workload, read_value
from stackmark.frozen import Frozen
from stackmark.places.place import PlaceKind
from stackmark.places.registry import find_kind, place_kinds
from stackmark.ranks import MOST_RANKS
from stackmark.secrets_masking import masked_arm, masked_variable
from stackmark.spec import MOST_SAMPLE_HZ, SAMPLE_HZ, Request, Scalar, Spec, explain
from stackmark.units import counted, parse_seconds, parse_share
from stackmark.workloads.registry import check_ranks, check_request, definitions, find

# A matrix beyond this is a mistake: at ten seconds a run it takes a month.
MOST_CELLS = 100_000
# A suite is some dozens of lines; whatever is longer is something else.
MOST_BYTES = 1 << 20
SUFFIX = ".toml"
HINT = "docs/suites.md shows every key; start from one that ships: stackmark suite show quick --toml"
WORKLOAD, PLACE, RANKS = "workload", "place", "ranks"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,79}")

Value = str | int | float | bool


class SuiteFile(Frozen):
    """A suite as it is written."""

    name: str = ""
    title: str = Field(default="", max_length=300)
    about: str = Field(default="", max_length=10_000)
    workloads: list[str] = Field(min_length=1, max_length=1000)
    axes: dict[str, list[Value]] = {}
    compare: str = ""
    reference: Value | None = None
    columns: list[str] = []
    exclude: list[dict[str, Value | list[Value]]] = []
    options: dict[str, Value | list[str]] = {}
    margin: str | float = ""
    blocks: int | None = Field(default=None, ge=1, le=MOST_BLOCKS)
    runs: int | None = Field(default=None, ge=1, le=1000)
    budget: str | float | None = None
    missing: list[str] = []

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if name and not _NAME.fullmatch(name):
            raise ValueError("a name has letters, digits, spaces, '.', '_' and '-', at most 80 of them")
        return name


class PlannedArm(Frozen):
    """One cell of a row. `label` is its column; `text` is the arm as `--arm` takes it."""

    label: str
    text: str


class PlannedRow(Frozen):
    """One comparison, or one cell where nothing is compared. The reference, if it was not excluded, is the first arm."""

    workload: str
    # By axis, as text; without the compared one.
    values: dict[str, str] = {}
    params: dict[str, Scalar] = {}
    ranks: int = Field(default=1, ge=1)
    place_options: dict[str, JsonValue] = {}
    arms: list[PlannedArm] = Field(min_length=1, max_length=MOST_ARMS)

    @property
    def request(self) -> Request:
        return Request(workload=self.workload, params=self.params, ranks=self.ranks)

    def read(self) -> list[ArmRequest]:
        """Return its arms as requests; raises where a place does not take what is asked."""
        return read_arms([arm.text for arm in self.arms], self.workload, self.place_options, least=1)


class PlannedAxis(Frozen):
    name: str
    values: list[str]


class SuitePlan(Frozen):
    """A suite written out. It is stored as the design of its experiment, and never changed after that."""

    name: str
    title: str = ""
    about: str = ""
    axes: list[PlannedAxis]
    compare: str = ""
    reference: str = ""
    columns: list[str] = []
    margin: float = Field(gt=0, lt=1)
    # Runs of each cell; None: as many as `run` makes.
    blocks: int | None = Field(default=None, ge=1, le=MOST_BLOCKS)
    budget_s: float | None = Field(default=None, gt=0)
    # Decides the order of the rows, and of the runs within them.
    seed: int = Field(default=0, ge=0)
    # As `compare` has them.
    pause_s: float = Field(default=0.0, ge=0)
    most_repeats: int = Field(default=2, ge=0)
    primers: bool = True
    # As `run` has it: choose what is not typed again, and not as it was chosen before.
    choose_again: bool = False
    # How runs are observed, and nothing of what they measure.
    sample_hz: float = Field(default=SAMPLE_HZ, ge=0, le=MOST_SAMPLE_HZ)
    missing: list[str] = []
    rows: list[PlannedRow] = Field(min_length=1, max_length=MOST_CELLS)

    @property
    def arms(self) -> tuple[str, ...]:
        """Return the columns: the values of the compared axis."""
        return tuple(next((axis.values for axis in self.axes if axis.name == self.compare), [""]))

    @property
    def cells(self) -> int:
        return sum(len(row.arms) for row in self.rows)

    @property
    def digest(self) -> str:
        """Return the same for two plans that measure the same; the order is drawn again for each."""
        whole = self.model_dump(mode="json", exclude={"seed", "title", "about", "missing", "sample_hz"})
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Axes:
    """What is asked for, wherever it was written: in a file, or in lists on the command line."""

    name: str
    workloads: Sequence[str]
    axes: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    compare: str = ""
    reference: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    exclude: Sequence[Mapping[str, Any]] = ()


# --- files ------------------------------------------------------------------------------------------------------------------


def named_suites() -> dict[str, str]:
    """Return the suites that ship: their TOML by name."""
    folder = files("stackmark.experiments.suite").joinpath("data")
    found = {one.name.removesuffix(SUFFIX): one for one in folder.iterdir() if one.name.endswith(SUFFIX)}
    return {name: found[name].read_text("utf-8") for name in sorted(found)}


def find_suite(text: str) -> SuitePlan:
    """Read a file, or the suite that ships under this name."""
    if is_path(text):
        return read_file(Path(text))
    shipped = named_suites()
    if text not in shipped:
        raise SpecError(
            f"no suite {text!r} ships{nearest_names(text, list(shipped))}",
            hint=f"those that ship: {', '.join(shipped)}; a file of your own ends in {SUFFIX}",
        )
    return expand(parse(shipped[text].encode(), text), text, text)


def is_path(text: str) -> bool:
    return text.endswith(SUFFIX) or os.sep in text


def read_file(path: Path) -> SuitePlan:
    """Read a suite from a file. Its name is the file's, unless it says one."""
    try:
        if path.is_dir():
            raise SpecError(f"{path} is a folder, not a suite", hint=HINT)
        with path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}", hint="name a TOML file") from error
    if len(data) > MOST_BYTES:
        raise SpecError(f"{path} has more than 1 MiB: a suite is some dozens of lines", hint=HINT)
    suite = parse(data, str(path))
    plan = expand(suite, str(path), suite.name or path.stem)
    shipped = named_suites().get(plan.name)
    if shipped is not None and expand(parse(shipped.encode(), plan.name), plan.name, plan.name).digest != plan.digest:
        raise SpecError(
            f"{path}: {plan.name!r} is the name of a suite that ships, and this one has other cells",
            hint='give it a name of its own: name = "my-study"',
        )
    return plan


def parse(data: bytes, shown: str) -> SuiteFile:
    """Read the TOML of a suite. `shown` is how messages name it."""
    text, tables = parse_toml(data, shown, HINT)
    known = list(SuiteFile.model_fields)
    for key in tables:
        if key not in known:
            raise SpecError(
                f"{shown}:{_line(text, key)}: a suite has no key {key!r}{nearest_names(key, known)}", hint=HINT
            )
    try:
        return SuiteFile.model_validate(tables)
    except ValidationError as error:
        path = [str(step) for step in error.errors()[0]["loc"][:2]]
        raise SpecError(f"{shown}:{_line(text, *path)}: {explain(error)}", hint=HINT) from error


def _line(text: str, *path: str) -> int:
    """Find the line on which a key stands, or its table; of a key in a table the line below that one."""
    found = 0
    for key in path:
        pattern = re.compile(rf"\s*(?:\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*(?:[=.\]]|$)")
        below = enumerate(text.splitlines()[found:], found + 1)
        found = next((number for number, line in below if pattern.match(line)), found)
    return max(found, 1)


def expand(suite: SuiteFile, shown: str, name: str) -> SuitePlan:
    """Write out all rows and arms; `shown` begins each message."""
    try:
        if suite.blocks is not None and suite.runs is not None:
            raise SpecError("blocks and runs are the same number: the runs of each cell", hint="keep one of them")
        return written_out(
            Axes(
                name,
                suite.workloads,
                suite.axes,
                suite.compare,
                _text(suite.reference) if suite.reference is not None else None,
                suite.options,
                suite.exclude,
            ),
            title=suite.title,
            about=suite.about,
            columns=suite.columns,
            margin=_margin(suite.margin),
            blocks=suite.blocks or suite.runs,
            budget_s=_budget(suite.budget),
            missing=suite.missing,
        )
    except SpecError as error:
        raise SpecError(f"{shown}: {error.message}", hint=error.hint or HINT) from error


def _margin(value: str | float) -> float:
    if value == "":
        return MARGIN
    try:
        margin = parse_share(value) if isinstance(value, str) else float(value)
    except SpecError as error:
        raise SpecError(f"margin: {error.message}", hint=error.hint) from error
    check_margin(margin)
    return margin


def _budget(value: str | float | None) -> float | None:
    if value is None:
        return None
    hint = 'write it like "90min"; a number is minutes'
    try:
        seconds = parse_seconds(value) if isinstance(value, str) else 60.0 * value
    except SpecError as error:
        raise SpecError(f"budget: {error.message}", hint=hint) from error
    if not 0 < seconds < float("inf"):
        raise SpecError(f"budget must be a time, got {value!r}", hint=hint)
    return seconds


# --- expansion --------------------------------------------------------------------------------------------------------------


def written_out(asked: Axes, *, columns: Sequence[str] = (), margin: float = MARGIN, **more: Any) -> SuitePlan:
    """Make the plan. `more` are further fields of it."""
    workloads = [canonical_workload(name, (one.name for one in definitions())) for name in asked.workloads]
    for name in workloads:
        find(name)
    _check_once("workloads", workloads)
    axes = {WORKLOAD: workloads, **{_key(name): _values(name, values) for name, values in asked.axes.items()}}
    if len(axes) < len(asked.axes) + 1:
        raise SpecError("an axis is named twice, or is called workload", hint="workloads have a list of their own")
    axes.setdefault(PLACE, ["host"])
    compare = _key(asked.compare)
    _check_axes(axes, compare, workloads)
    for name in columns:
        if _key(name) not in axes:
            raise SpecError(f"columns: there is no axis {name!r}{nearest_names(name, list(axes))}")
    reference = _reference(asked.reference, axes, compare)
    rows = _rows(asked, axes, compare, reference)
    if not rows:
        raise SpecError("the matrix is empty: every cell is excluded", hint="remove an entry of exclude")
    return SuitePlan(
        name=asked.name,
        axes=[PlannedAxis(name=name, values=list(map(masked_arm, values))) for name, values in axes.items()],
        compare=compare,
        reference=masked_arm(reference),
        columns=[_key(name) for name in columns],
        margin=margin,
        rows=rows,
        **more,
    )


def _key(name: str) -> str:
    """`warmup-steps` is `warmup_steps`, and `on` is `place`, as on the command line."""
    key = name.strip().replace("-", "_")
    return {"on": PLACE, "arm": PLACE, "workloads": WORKLOAD}.get(key, key)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value).strip()


def _values(name: str, values: Sequence[Value]) -> list[str]:
    texts = [_text(value) for value in values]
    if not texts:
        raise SpecError(f"axes.{name} is empty: the matrix has no cell", hint="give one value or more, or remove it")
    _check_once(f"axes.{name}", texts)
    return texts


def _check_once(name: str, texts: Sequence[str]) -> None:
    if twice := next((text for text in texts if texts.count(text) > 1), None):
        raise SpecError(f"{name} has {twice!r} twice", hint="a value is one row or column: name it once")


def _check_axes(axes: Mapping[str, Sequence[str]], compare: str, workloads: Sequence[str]) -> None:
    cells = prod(len(values) for values in axes.values())
    if cells > MOST_CELLS:
        raise SpecError(
            f"these axes make {cells:,} cells; at most {MOST_CELLS:,} are planned", hint="make several suites"
        )
    if compare and compare not in axes:
        raise SpecError(
            f"compare: there is no axis {compare!r}{nearest_names(compare, list(axes))}",
            hint=f"axes: {', '.join(axes)}",
        )
    if compare in (WORKLOAD, RANKS):
        why = "they do different work" if compare == WORKLOAD else "they use different devices"
        raise SpecError(
            f"{compare} cannot be compared in one block: {why}", hint="make it an axis, and compare another"
        )
    if compare and len(axes[compare]) < 2:
        raise SpecError(f"compare: the axis {compare} has one value; a comparison needs two or more")
    if compare and len(axes[compare]) > MOST_ARMS:
        raise SpecError(f"the axis {compare} has {len(axes[compare])} values; a comparison takes at most {MOST_ARMS}")
    options = {name for kind in place_kinds().values() for name in kind.options.model_fields}
    params = [set(find(name)[0].params.model_fields) for name in workloads]
    known = {PLACE, RANKS, WORKLOAD} | options | set.union(*params)
    for name in axes:
        if name not in known:
            raise SpecError(
                f"axes.{name}: neither a place nor {_some(workloads)} has an option {name!r}"
                f"{nearest_names(name, sorted(known))}",
                hint="an axis is place, ranks, a parameter (stackmark run --help) or an option of a place",
            )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _reference(typed: str | None, axes: Mapping[str, Sequence[str]], compare: str) -> str:
    if not compare:
        if typed:
            raise SpecError("reference needs a compared axis", hint='add: compare = "place"')
        return ""
    if typed is None:
        return axes[compare][0]
    if typed not in axes[compare]:
        raise SpecError(
            f"reference: {typed!r} is not a value of {compare}{nearest_names(typed, list(axes[compare]))}",
            hint=f"its values: {', '.join(axes[compare])}",
        )
    return typed


def _rows(asked: Axes, axes: Mapping[str, Sequence[str]], compare: str, reference: str) -> list[PlannedRow]:
    exclude = [_exclusion(one, axes) for one in asked.exclude]
    others = {name: values for name, values in axes.items() if name != compare}
    elsewhere = {
        *(name for workload in axes[WORKLOAD] for name in find(workload)[0].params.model_fields),
        *(name for text in axes[PLACE] for name in _kind_of_place(text).options.model_fields),
        *(RANKS for workload in axes[WORKLOAD] if _takes_ranks(workload)),
    }
    found: dict[str, PlannedRow] = {}
    for combination in product(*others.values()):
        values = dict(zip(others, combination, strict=True))
        if compare:
            labels = [one for one in axes[compare] if not _is_excluded({**values, compare: one}, exclude)]
            # The reference is arm A of every pair.
            labels.sort(key=lambda label: label != reference)
        else:
            labels = [] if _is_excluded(values, exclude) else [""]
        if labels:
            row = _row(asked, values, compare, labels, elsewhere)
            # A workload that does not have the parameter of an axis is one row, and not one for each value.
            found.setdefault(row.model_dump_json(), row)
    return list(found.values())


def _exclusion(one: Mapping[str, Any], axes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, wanted in one.items():
        key = _key(name)
        if key not in axes:
            raise SpecError(f"exclude: there is no axis {name!r}{nearest_names(key, list(axes))}")
        found[key] = [_text(value) for value in (wanted if isinstance(wanted, list) else [wanted])]
        if key == WORKLOAD:
            found[key] = [canonical_workload(value, axes[WORKLOAD]) for value in found[key]]
        if unknown := next((value for value in found[key] if value not in axes[key]), None):
            raise SpecError(f"exclude: {unknown!r} is not a value of {name}{nearest_names(unknown, list(axes[key]))}")
    if not found:
        raise SpecError("exclude: an entry without a key leaves nothing", hint="name an axis and a value")
    return found


def _is_excluded(values: Mapping[str, str], exclude: Iterable[Mapping[str, Sequence[str]]]) -> bool:
    return any(all(values[name] in wanted for name, wanted in one.items()) for one in exclude)


def _row(asked: Axes, values: dict[str, str], compare: str, labels: Sequence[str], elsewhere: set[str]) -> PlannedRow:
    """Make one row. `elsewhere` are parameters and options that some row of the suite takes: this one may lack them."""
    workload = values[WORKLOAD]
    fields = find(workload)[0].params.model_fields
    places = labels if compare == PLACE else [values[PLACE]]
    of_places = {name for text in places for name in _kind_of_place(text).options.model_fields}
    params: dict[str, Scalar] = {}
    place_options: dict[str, JsonValue] = {}
    ranks = 1
    own = {name: text for name, text in values.items() if name not in (WORKLOAD, PLACE)}
    for name, value in [*((_key(name), value) for name, value in asked.options.items()), *own.items()]:
        if name == RANKS and _takes_ranks(workload):
            ranks = _ranks(value)
        elif name in fields:
            params[name] = read_value(name, fields[name], _text(value))
        elif name in of_places:
            place_options[name] = list(value) if isinstance(value, list) else _text(value)
        elif name == RANKS and name not in elsewhere:
            raise SpecError(f"ranks: each workload runs as one rank: {_some(asked.workloads)}", hint="leave out ranks")
        elif name not in elsewhere:
            known = nearest_names(name, [*fields, *of_places])
            raise SpecError(f"{name}: neither {workload} nor {' or '.join(places)} has such an option{known}")
        elif name in own:
            del values[name]
    if compare == PLACE:
        texts = list(labels)
    elif compare:
        texts = [f"{values[PLACE]},{compare}={label}" for label in labels]
    else:
        texts = [values[PLACE]]
    # Reading puts the values of secrets aside; from here on only their names are kept.
    read_arms(texts, workload, place_options, least=1)
    arms = [
        PlannedArm(label=masked_arm(label), text=masked_arm(text)) for label, text in zip(labels, texts, strict=True)
    ]
    row = PlannedRow(
        workload=workload,
        values={name: masked_arm(value) for name, value in values.items()},
        params=params,
        ranks=ranks,
        place_options={name: _masked(value) for name, value in place_options.items()},
        arms=arms,
    )
    check_request(row.request)
    check_ranks(row.request)
    return row


def _kind_of_place(text: str) -> PlaceKind:
    return find_kind(canonical_place(text, place_kinds()).partition(",")[0].strip())


def _masked(value: JsonValue) -> JsonValue:
    return [masked_variable(str(one)) for one in value] if isinstance(value, list) else value


def _takes_ranks(workload: str) -> bool:
    return find(workload)[1].ranks.most > 1


def _ranks(value: object) -> int:
    text = _text(value)
    if not text.isdecimal() or not 1 <= int(text[:9]) <= MOST_RANKS:
        raise SpecError(f"ranks takes whole numbers from 1 to {MOST_RANKS}, got {text!r}")
    return int(text)


def trusted_parts(rows: Iterable[PlannedRow]) -> list[Part]:
    """Return what of rows that were not begun needs trust: commands, paths, images that a ledger could have been given."""
    return parts_of(
        (Spec(workload=row.workload, params={**row.params, **arm.typed}, ranks=row.ranks), arm.place, arm.place_options)
        for row in rows
        for arm in row.read()
    )


def say_size(plan: SuitePlan) -> str:
    """`12 cells: 4 comparisons of 3 arms`."""
    if not plan.compare:
        return counted(plan.cells, "cell")
    return f"{counted(plan.cells, 'cell')} in {counted(len(plan.rows), 'comparison')}"
