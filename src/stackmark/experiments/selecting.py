"""Select stored runs by what they are: `chip=V100,workload=train/resnet50`.

A selection is a list of conditions, all of which apply. What the two sides of a comparison name with different values is the
question: `chip=V100` against `chip=P100` asks about the chips, so they are not refused for having two chips.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from stackmark.errors import SpecError, nearest_names
from stackmark.events import gathered_facts
from stackmark.experiments.fitting import refuse_censored
from stackmark.experiments.judging import read_stored
from stackmark.ledger.rows import RunDetail, RunFilter
from stackmark.ledger.several import SeveralLedgers
from stackmark.units import counted
from stackmark.verdict.comparable import NOT_THE_WORK
from stackmark.verdict.examined import CHIP_KEYS

# Columns with an index, in which a value is found without reading every run.
INDEXED = ("workload", "chip", "place")
# What a run is asked for besides its parameters.
_COLUMNS: Mapping[str, Callable[[RunDetail], object]] = {
    "workload": lambda row: row.workload,
    "chip": lambda row: row.chip,
    "gpu": lambda row: row.chip_uuid,
    "machine": lambda row: row.ran_on or None,
    "node": lambda row: row.handle.get("node"),
    "place": lambda row: row.place,
    "framework": lambda row: row.framework,
    "ranks": lambda row: row.spec.ranks,
    "label": lambda row: row.handle.get("label"),
    "experiment": lambda row: row.experiment_id,
    "version": lambda row: row.stackmark_version,
}
HOST = "host"
KEYS = (*_COLUMNS, HOST)
# Parameters that most workloads have, for messages; any parameter may be named.
USUAL_PARAMETERS = ("precision", "batch", "device", "mode", "data")
# More runs than anybody compares by hand; each has a stream that is read.
MOST_RUNS = 5000
_VALUES_SHOWN = 8
_CONDITION = re.compile(r"[a-z][a-z0-9_.]{0,60}=", re.IGNORECASE)
NOT_GIVEN = "not given"


@dataclass(frozen=True)
class Selected:
    """The successful runs that the conditions select, oldest first, and sentences about what is not counted."""

    conditions: Mapping[str, str]
    rows: tuple[RunDetail, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """What two sides name with different values: the keys, and the values of the first and of the second side."""

    keys: tuple[str, ...] = ()
    values: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    parameters: frozenset[str] = field(default=frozenset())

    @property
    def is_about_chips(self) -> bool:
        return bool(CHIP_KEYS & set(self.keys))

    @property
    def labels(self) -> tuple[str, str] | None:
        """Return what to call the sides: the values that tell them apart."""
        return (" ".join(self.values[0]), " ".join(self.values[1])) if self.keys else None

    def typed(self, side: int) -> dict[str, str]:
        """Return the parameters that were named for a side, with their values."""
        return {key: value for key, value in zip(self.keys, self.values[side], strict=True) if key in self.parameters}


def question_of(before: Mapping[str, str], after: Mapping[str, str]) -> Question:
    keys = tuple(key for key in before if key in after and before[key] != after[key])
    values = tuple(before[key] for key in keys), tuple(after[key] for key in keys)
    return Question(keys, values, frozenset(keys) - set(KEYS) | frozenset(keys) & {"ranks"})


def is_selection(text: str) -> bool:
    """Tell `chip=V100` from the id of a run or an experiment."""
    return bool(_CONDITION.match(text.strip()))


def read_conditions(texts: Sequence[str], option: str) -> dict[str, str]:
    """Read `chip=V100,precision=fp16`; several texts are conditions that all apply."""
    found: dict[str, str] = {}
    for part in (part for text in texts for part in text.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        key = key.lower()
        if not equals or not value or not _CONDITION.match(f"{key}="):
            raise SpecError(
                f"{option}: {part.strip()!r} is not a condition",
                hint="write KEY=VALUE, e.g. chip=V100,workload=train/resnet50",
            )
        if found.setdefault(key, value) != value:
            raise SpecError(f"{option}: {key} is given twice, as {found[key]} and {value}", hint="give it once")
    return found


def select_runs(sources: SeveralLedgers, conditions: Mapping[str, str], option: str) -> Selected:
    """Find the runs that meet all conditions. A selection that finds nothing says which values there are."""
    search = _Search(sources, conditions, option)
    rows = sources.details(search.matching())
    if len(rows) > MOST_RUNS:
        raise SpecError(
            f"{option}: {say_conditions(conditions)} selects {len(rows):,} runs; at most {MOST_RUNS:,} are compared",
            hint="add a condition, e.g. workload=train/resnet50 or experiment=x-…",
        )
    refuse_censored(rows, say_conditions(conditions))
    good = [row for row in rows if row.status == "done" and row.rate_per_s]
    if not good:
        search.refuse_nothing(len(rows))
    bad = len(rows) - len(good)
    left_out = f"{counted(bad, 'selected run')} ({say_conditions(conditions)}) without a result: not counted"
    ordered = sorted(good, key=lambda row: (row.started_unix_s, row.id))
    return Selected(conditions, tuple(ordered), (left_out,) if bad else ())


def say_conditions(conditions: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in conditions.items())


def value_of(row: RunDetail, key: str) -> str:
    """Return a run's value of a key as text; empty where it has none."""
    value = _COLUMNS[key](row) if key in _COLUMNS else row.spec.params.get(key.removeprefix("param."))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def varying_keys(*sides: Sequence[RunDetail]) -> tuple[str, ...]:
    """Return in which keys the specs of a side differ: the workload, the ranks, and parameters that change the work."""
    names = dict.fromkeys(
        name for rows in sides for row in rows for name in row.spec.params if name not in NOT_THE_WORK
    )
    keys = ("workload", *names, "ranks")
    found = [key for key in keys if any(len({value_of(row, key) for row in rows}) > 1 for rows in sides)]
    return tuple(found) or ("workload",)


def suggested_command(rows: Sequence[RunDetail], experiment_id: str) -> str:
    """Return the command that compares runs of several settings row by row; empty where nothing could be compared."""
    vary = varying_keys(rows)
    chips = "chip" if len({row.chip for row in rows if row.chip}) > 1 else None
    axis = chips or next(
        (key for key in vary if key != "workload" and len({value_of(row, key) for row in rows}) > 1), None
    )
    if axis is None:
        return ""
    first, second = list(dict.fromkeys(value for row in rows if (value := value_of(row, axis))))[:2]
    of = f"experiment={experiment_id}"
    by = ",".join(key for key in vary if key != axis)
    words = ["stackmark", "verdict", "--runs", f"{of},{axis}={first}", "--against", f"{of},{axis}={second}"]
    return shlex.join([*words, *(["--by", by] if by else [])])


def check_keys(keys: Sequence[str], rows: Collection[RunDetail], option: str) -> None:
    """Refuse a key that no run has."""
    parameters = dict.fromkeys(name for row in rows for name in row.spec.params)
    for key in keys:
        if key not in _COLUMNS and key.removeprefix("param.") not in parameters:
            known = [*_COLUMNS, *parameters]
            raise SpecError(
                f"{option}: no selected run has {key!r}{nearest_names(key, known)}",
                hint=f"use one of {', '.join(_COLUMNS)}, or a parameter: {_some(list(parameters) or USUAL_PARAMETERS)}",
            )


class _Search:
    """One selection: the values that each condition met, for the message where nothing is left."""

    def __init__(self, sources: SeveralLedgers, conditions: Mapping[str, str], option: str) -> None:
        self._sources, self._option = sources, option
        # Those with an index first: they are cheap, and leave the values of the rest within what they select.
        self._conditions = dict(sorted(conditions.items(), key=lambda one: one[0] not in INDEXED))
        self._seen: dict[str, set[str]] = {key: set() for key in self._conditions}
        self._hosts: dict[str, str] = {}
        self._any_parameter: set[str] = set()

    def matching(self) -> Iterator[Mapping[str, object]]:
        within: dict[str, list[str]] = {}
        for key in INDEXED:
            if key in self._conditions:
                values = self._sources.values_of(key)
                within[key] = matching_values(key, self._conditions[key], values)
                self._seen[key] |= set(values)
                if not within[key]:
                    return
        kept = 0
        for columns in self._sources.every(within, RunFilter()):
            if columns["role"] != "measured" or columns["piece"] or not self._meets(columns, within):
                continue
            yield columns
            kept += 1
            if kept > 2 * MOST_RUNS:
                return

    def _meets(self, columns: Mapping[str, object], within: Mapping[str, object]) -> bool:
        rest = [key for key in self._conditions if key not in within]
        if not rest:
            return True
        row = RunDetail.model_validate(dict(columns))
        self._any_parameter |= set(row.spec.params)
        for key in rest:
            value = self._host(row) if key == HOST else value_of(row, key)
            if value:
                self._seen[key].add(value)
            if not value or not matching_values(key, self._conditions[key], [value]):
                return False
        return True

    def _host(self, row: RunDetail) -> str:
        """Return the host's name, which only the facts in a stream say: one stream a machine is read."""
        if row.ran_on not in self._hosts:
            host = gathered_facts(read_stored(self._sources.stream(row.id)).stream.events).get("host", {})
            self._hosts[row.ran_on] = str(host.get("hostname") or "")
        return self._hosts[row.ran_on]

    def refuse_nothing(self, without_result: int) -> None:
        said = say_conditions(self._conditions)
        if without_result:
            raise SpecError(
                f"{self._option}: none of the {counted(without_result, 'run')} with {said} has a result",
                hint="see why: stackmark results --status failed",
            )
        for key, wanted in self._conditions.items():
            seen = self._seen[key]
            if matching_values(key, wanted, seen):
                continue
            if not seen and key not in KEYS:
                known = [*KEYS, *sorted(self._any_parameter)]
                raise SpecError(
                    f"{self._option}: no run has {key!r}{nearest_names(key, known)}",
                    hint=f"use one of {', '.join(KEYS)}, or a parameter: {', '.join(USUAL_PARAMETERS)} …",
                )
            there = _some(sorted(seen)) if seen else "none"
            raise SpecError(
                f"{self._option}: no run with {said} in {self._sources.where}",
                hint=f"values of {key} among these runs: {there}",
            )
        raise SpecError(
            f"{self._option}: no run with {said} in {self._sources.where}", hint="`stackmark results` lists the runs"
        )


def matching_values(key: str, wanted: str, values: Collection[str]) -> list[str]:
    """Return the values that a condition stands for.

    A value is matched as it is, else as a glob, else (chips) by its words: V100 is a Tesla V100-SXM2-16GB but A10 is not A100.
    Ids of machines, GPUs and experiments may be shortened.
    """
    typed = wanted.casefold()
    if exact := [value for value in values if value.casefold() == typed]:
        return exact
    if any(sign in wanted for sign in "*?["):
        return [value for value in values if fnmatchcase(value.casefold(), typed)]
    if key == "chip":
        words = _words(typed)
        return [value for value in values if words and words <= _words(value)]
    if key in ("machine", "gpu", "experiment"):
        return [
            value for value in values if value.casefold().removeprefix("gpu-").startswith(typed.removeprefix("gpu-"))
        ]
    return []


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.casefold()))


def _some(values: Sequence[str]) -> str:
    more = len(values) - _VALUES_SHOWN
    return ", ".join(values[:_VALUES_SHOWN]) + (f" and {more} more" if more > 0 else "")
