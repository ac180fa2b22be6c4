"""A list of stored experiments: a line each, for people and for programs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from stackmark.experiments.kinds import OPERATOR_LIST
from stackmark.experiments.overview import ListedExperiment
from stackmark.show.runs import short_length
from stackmark.show.terminal import Column, is_screen, print_table
from stackmark.units import say_moment, say_zone
from stackmark.verdict.needed import percent

COLUMNS = (
    Column("experiment", style="cyan"),
    Column("date", drop=3),
    Column("kind", drop=4),
    Column("workload"),
    Column("arms", drop=2),
    Column("runs", right=True, drop=1),
    Column("state"),
    Column("verdict"),
)
# The kind as a person types and reads it; the column has room for one word.
SHORT_KINDS = {OPERATOR_LIST.name: "list"}
_GOOD, _BAD = ("EQUIVALENT", "FASTER", "BETTER"), ("SLOWER", "LIKELY SLOWER", "WORSE", "LIKELY WORSE")
STYLES = dict.fromkeys(_GOOD, "green") | dict.fromkeys(_BAD, "red")
NOT_COMPUTED = "not computed"


def print_experiments(found: Sequence[ListedExperiment], console: Console) -> None:
    """On a screen ids are as short as they can be; elsewhere they are whole."""
    length = short_length([one.id for one in found]) if is_screen(console) else None
    cells = [_cells(one, one.id[:length]) for one in found]
    zone = say_zone(max((one.created_unix_s for one in found), default=0.0))
    columns = [replace(one, name=f"date ({zone})") if one.name == "date" and zone else one for one in COLUMNS]
    print_table(console, columns, cells, [STYLES.get(say_verdicts(one), "") for one in found])


def _cells(one: ListedExperiment, shown_id: str) -> list[str]:
    return [
        shown_id, say_moment(one.created_unix_s, "%Y-%m-%d %H:%M"), SHORT_KINDS.get(one.kind, one.kind),
        _several(one.workloads), ", ".join(one.arms), say_runs(one), one.state, say_verdicts(one),
    ]  # fmt: skip


def say_runs(one: ListedExperiment) -> str:
    """Say how many runs gave a number, and of how many: `5`, `1 of 5`."""
    good, made = one.runs.get("done", 0), sum(one.runs.values())
    of = max(one.asked or 0, made) if one.state != "done" else made
    return f"{good} of {of}" if good < of else str(good)


def say_verdicts(one: ListedExperiment) -> str:
    """Say each word once, in the order of the pairs of arms; of two equal arms the margin that they can decide."""
    if one.smallest_margin is not None:
        return f"±{percent(one.smallest_margin)}"
    return NOT_COMPUTED if one.verdicts is None else ", ".join(dict.fromkeys(one.verdicts))


def _several(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} workloads" if names else ""


def experiment_json(one: ListedExperiment) -> dict[str, Any]:
    return {
        "id": one.id,
        "created_unix_s": one.created_unix_s,
        "kind": one.kind,
        "workloads": list(one.workloads),
        "arms": list(one.arms),
        "verdicts": None if one.verdicts is None else list(one.verdicts),
        "state": one.state,
        "runs": dict(one.runs),
        "runs_asked": one.asked,
        "command": one.command,
        "smallest_margin": one.smallest_margin,
    }
