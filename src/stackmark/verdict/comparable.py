"""Decide whether runs can be compared at all.

A ratio of two rates says something about what differs between them only where the rest did not. Another workload, another
batch, another unit: the ratio is a number about nothing. Another chip: it is about the chip, whatever was asked. Each of
these is a sentence; `--anyway` is for those who know better.

What was typed for an arm is the question and never a reason. Nor are driver and versions: before and after an upgrade they are
the question, and between arms they are listed by the explanation.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from stackmark.figures import figure_unit
from stackmark.remarks import Remark
from stackmark.spec import Scalar
from stackmark.units import counted

# For how long and from which seed is measured, not what; and where a run writes to. A rate is one per second either way.
NOT_THE_WORK = frozenset(
    {
        "seconds",
        "steps",
        "at_least_steps",
        "warmup_steps",
        "warmup_seconds",
        "seed",
        "checkpoint_dir",
        "checkpoint_keep",
        "trace_file",
    }
)
# Parameters by which one asks for another chip.
ASKS_FOR_A_CHIP = frozenset({"device", "gpus", "node"})
# Settings that follow from the chip and leave the work as it is: between two chips they are listed, and no reason to refuse.
FOLLOWS_FROM_CHIP = ASKS_FOR_A_CHIP | {
    "tune",
    "layout",
    "autotune",
    "fused",
    "cuda_graph",
    "compile",
    "threads",
    "data_workers",
}
SHOWN = 60


@dataclass(frozen=True)
class Subject:
    """What a run, or all runs of an arm, measured and on what. None, or an empty name, means unknown."""

    label: str
    workload: str
    params: Mapping[str, Scalar]
    unit: str | None = None
    samples_per_step: int | None = None
    ranks: int = 1
    # Operations per sample count the model as it was built: they change when the model does, under whatever name.
    operations_per_sample: float | None = None
    chip: str | None = None
    chip_uuid: str | None = None
    machine_id: str | None = None


def reasons_not_comparable(
    a: Subject, b: Subject, *, typed_keys: Collection[str] = (), may_differ_chip: bool = False
) -> list[Remark]:
    """Return why a ratio of the two would mean nothing, one sentence per reason; empty where they are comparable.

    `typed_keys` are the parameters that were typed for an arm, and those that the program derived from them. `may_differ_chip`:
    another chip or machine is the question.
    """
    typed = set(typed_keys)
    if a.workload != b.workload:
        text = f"{a.label} measured {a.workload}, {b.label} {b.workload}; their rates count different work"
        return [Remark(text, "other-workload")]
    reasons = _params(a, b, typed | FOLLOWS_FROM_CHIP if may_differ_chip else typed)
    if a.ranks != b.ranks and "ranks" not in typed:
        reasons.append(Remark(f"{a.label} ran on {counted(a.ranks, 'rank')}, {b.label} on {b.ranks}", "other-ranks"))
    if _differ(a.unit, b.unit):
        units = [f"{unit.name}{unit.direction}" for unit in (figure_unit(a.unit), figure_unit(b.unit))]
        text = f"{a.label} is in {units[0]}; {b.label} in {units[1]}; these have no ratio"
        reasons.append(Remark(text, "other-unit"))
    if typed or reasons:
        # What is left to compare follows from what was typed, or from what is named already.
        return reasons + _chips(a, b, typed, may_differ_chip)
    if _differ(a.samples_per_step, b.samples_per_step):
        text = f"a step has {a.samples_per_step} samples in {a.label} and {b.samples_per_step} in {b.label}"
        reasons.append(Remark(f"{text}, though the parameters are equal", "other-samples"))
    if _other_model(a, b):
        text = f"{a.operations_per_sample:.6g} operations in {a.label} and {b.operations_per_sample:.6g} in {b.label}"
        why = "the models differ, for example because the program's versions differ"
        reasons.append(Remark(f"a sample takes {text}: {why}", "other-model"))
    return reasons + _chips(a, b, typed, may_differ_chip)


def not_known(a: Subject, b: Subject) -> list[Remark]:
    """Return what could not be verified, one sentence each: not a reason to refuse, but readers of the ratio should know."""
    found = []
    for what, known_a, known_b in (
        ("chip", bool(a.chip), bool(b.chip)),
        ("machine", bool(a.machine_id), bool(b.machine_id)),
        ("unit", bool(a.unit), bool(b.unit)),
    ):
        missing = [one.label for one, known in ((a, known_a), (b, known_b)) if not known]
        if missing:
            of = " and ".join(dict.fromkeys(missing))
            found.append(Remark(f"the {what} of {of} is unknown, so it was not compared", f"unknown-{what}"))
    return found


def _params(a: Subject, b: Subject, typed: set[str]) -> list[Remark]:
    """A parameter that one side does not have, as after an update of the program, is not a difference that is known."""
    names = [name for name in a.params if name in b.params and name not in typed | NOT_THE_WORK]
    return [
        Remark(
            f"{name} is {_said(a.params[name])} in {a.label} and {_said(b.params[name])} in {b.label}",
            "other-parameter",
        )
        for name in names
        if a.params[name] != b.params[name]
    ]


def _chips(a: Subject, b: Subject, typed: set[str], may_differ: bool) -> list[Remark]:
    if may_differ or typed & ASKS_FOR_A_CHIP:
        return []
    if _differ(a.chip, b.chip):
        text = (
            f"{a.label} ran on {a.chip}, {b.label} on {b.chip}: the ratio would show the difference between the chips"
        )
        return [Remark(text, "other-chip-model")]
    if _differ(a.chip_uuid, b.chip_uuid):
        text = f"{a.label} and {b.label} ran on two different chips of one model ({a.chip_uuid} and {b.chip_uuid})"
        return [Remark(f"{text}; chips of one model differ by some percent", "other-chip")]
    if _differ(a.machine_id, b.machine_id):
        return [Remark(f"{a.label} and {b.label} ran on different machines", "other-machine")]
    return []


def _other_model(a: Subject, b: Subject) -> bool:
    one, other = a.operations_per_sample, b.operations_per_sample
    return bool(one and other and abs(one / other - 1) > 1e-6)


def _differ(one: str | int | None, other: str | int | None) -> bool:
    return bool(one) and bool(other) and one != other


def _said(value: Scalar) -> str:
    text = str(value).lower() if isinstance(value, bool) else "not set" if value is None else str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
