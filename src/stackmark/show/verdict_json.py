"""A verdict for programs: everything that the terminal and the report say, under names that stay.

Keys are those of the data types in verdict/examined.py and verdict/comparison.py; a key may come to be, none goes away or
changes its meaning without another `schema`. Step times are not in it: they are thousands of numbers a run, and
`stackmark export` has them.
"""

import math
from dataclasses import asdict, replace
from typing import Any

from pydantic import JsonValue

from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined
from stackmark.verdict.noise import noise_floor

# 2: a comparison of the kind `sittings` is now of the kind `series`.
SCHEMA = 2


def verdict_json(examined: Examined) -> dict[str, JsonValue]:
    made = asdict(replace(examined, runs=tuple(replace(run, step_s=()) for run in examined.runs)))
    for run, seen in zip(made["runs"], examined.runs, strict=True):
        del run["step_s"]
        run["steps"] = len(seen.step_s)
        run["setup"] = _parts(seen.setup)
    made["comparisons"] = [comparison_json(comparison) for comparison in examined.comparisons]
    for arm, shown in zip(made["arms"], examined.arms, strict=True):
        arm["setup"] = _parts(shown.setup)
        arm["steadiness"] = dict(shown.steadiness)
    if examined.kind == "noise":
        floor = noise_floor(examined)
        made["noise"] = asdict(floor) | {"parts": _parts(floor.parts)} if floor else None
    plain = _plain({"schema": SCHEMA, **made})
    assert isinstance(plain, dict)
    return plain


def comparison_json(comparison: Comparison | None) -> dict[str, Any] | None:
    """Make the fields of a comparison, and whether its word is a likely one."""
    if comparison is None:
        return None
    likely = {"likely_slower": "LIKELY SLOWER", "likely_faster": "LIKELY FASTER"}
    return asdict(comparison) | {name: comparison.word == word for name, word in likely.items()}


def _parts(parts: tuple[tuple[str, float], ...]) -> list[dict[str, JsonValue]]:
    """A list and no table: a part may come twice, and their order is the order in which they happened."""
    return [{"part": name, "seconds": seconds} for name, seconds in parts]


def _plain(value: object) -> JsonValue:
    """What JSON has words for: infinity and what is no number have none."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    assert value is None or isinstance(value, str | int | bool)
    return value
