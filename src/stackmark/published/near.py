"""Find the published rows nearest to a result, and what differs between the two.

A published number almost never has the recipe of the run it is compared with. So `nearest` gives no ratio and no verdict: it
gives the row, and in words everything about it that is different or was not stated. Refusing all rows but exact matches was
the alternative; it would leave nearly everybody with nothing, and tell them less.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from stackmark.figures import figure_unit
from stackmark.published.chips import Chip, chip_distance, parse_chip
from stackmark.published.serving import ServedQuery, served_differences, served_relation
from stackmark.published.table import TO_TARGET, UNIT_SPELLINGS, Published
from stackmark.remarks import Remark

# Precisions whose matrix products are done in 16 bits: people call them all "half".
_HALF = frozenset({"mixed", "bf16", "fp16"})
# An unstated batch ranks behind one within a factor of four, and before one that is farther away.
_UNSTATED_BATCH = 2.5
# Few chips have many rows.
_chip = cache(parse_chip)


@dataclass(frozen=True, slots=True)
class Match:
    """A published row next to a result: `differs` says in words what differs, each with the field as its kind; `distance`
    only ranks."""

    row: Published
    differs: tuple[str, ...]
    distance: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Query:
    workload: str
    chip: Chip | None
    count: int
    precision: str
    batch: int | None
    framework: str
    data: str
    sequence_length: int | None
    preset: str
    served: ServedQuery | None
    unit: str


def nearest(
    rows: Iterable[Published],
    *,
    workload: str,
    chip: str | None,
    count: int,
    precision: str,
    batch: int | None,
    unit: str,
    framework: str | None = None,
    data: str | None = None,
    sequence_length: int | None = None,
    preset: str = "",
    served: ServedQuery | None = None,
    limit: int = 3,
) -> list[Match]:
    """Find the rows nearest to a result, nearest first, each with what differs.

    The same workload comes first, then its close relations; within them the same chip, count, precision and batch; the
    newest where those are equal. Only rows of the same unit are taken; `unit` is a figure's (`min`), or as the ledger has
    it (`1/min`). If a relation was measured on a nearer chip than any row of the workload itself, the last place is its:
    what an H200 does with ResNet-50 v1.5 says more to somebody with an H200 than one more P100. `data` is `synthetic`
    (also `device`, `host`) or else a folder; `chip` as NVML or /proc/cpuinfo names it.
    """
    unit = figure_unit(unit).name
    unit = UNIT_SPELLINGS.get(unit, unit)
    wanted = _Query(
        workload=_key(workload),
        chip=parse_chip(chip) if chip else None,
        count=count,
        precision=precision,
        batch=batch,
        framework=framework or "",
        data="" if not data else "synthetic" if data in {"synthetic", "device", "host"} else "real",
        sequence_length=sequence_length,
        preset=preset,
        served=served,
        unit=unit,
    )
    newest_first = sorted(rows, key=lambda row: row.date, reverse=True)
    found = [match for row in newest_first if (served or row.unit == unit) and (match := _match(wanted, row))]
    found.sort(key=lambda match: match.distance)  # stable: the newest stay first among equals
    chosen = found[: max(limit, 0)]
    relation = next((match for match in found if match.distance[0] > 0), None)
    if relation and len(chosen) > 1 and relation not in chosen and relation.distance[1] < chosen[0].distance[1]:
        chosen[-1] = relation
    return chosen


def _match(wanted: _Query, row: Published) -> Match | None:
    if wanted.served:
        related = served_relation(wanted.workload, wanted.served, wanted.unit, row)
    else:
        related = _relation(wanted.workload, row)
    if related is None:
        return None
    chip = _chip(row.chip)
    distance = (
        float(bool(related)),
        float(chip_distance(wanted.chip, chip)),
        abs(math.log2(row.count / max(wanted.count, 1))),
        _precision_distance(wanted.precision, row),
        float("sparsity" in row.extra),
        float(wanted.sequence_length is not None and row.extra.get("sequence_length") != wanted.sequence_length),
        abs(math.log2(row.batch / wanted.batch)) if row.batch and wanted.batch else _UNSTATED_BATCH,
        float(_family(row.framework) != _family(wanted.framework)),
        float(row.data != wanted.data),
    )
    return Match(row, tuple(_differences(wanted, row, chip, related)), distance)


def _key(workload: str) -> str:
    return workload.replace("-", "_")


def _relation(workload: str, row: Published) -> str | None:
    """'' for the same workload, words for a close relation of it, None for anything else."""
    if row.workload and _key(row.workload) == workload:
        return ""
    family, _, name = workload.partition("/")
    if family == "fit":
        return "" if row.task == TO_TARGET and _key(row.model) == name else None
    if workload == "train/bert_large" and row.task == "fine-tuning" and _key(row.model).startswith("bert_large"):
        return "fine-tuning on SQuAD (another head) instead of pre-training"
    asked = re.fullmatch(r"(resnet(\d+))(?:_(v1\.5|v2))?", name)
    if not asked:
        return None
    mine = asked[3] or "v1"
    if not row.workload and row.task == "training" and family == "train" and row.model == asked[1]:
        return f"{asked[1]} of an unstated variant instead of {mine}"
    its = re.fullmatch(rf"{family}/{asked[1]}(?:_(v1\.5|v2))?", row.workload)
    return _variant_words(asked[2], mine, its[1] or "v1") if its else None


def _variant_words(depth: str, mine: str, its: str) -> str:
    words = f"resnet{depth} {its} instead of {mine}"
    if depth == "50" and "v1.5" in (mine, its):
        # 4.089 against 3.858 billion for v1 and v2: the stride moved from the 1×1 to the 3×3 convolution.
        words += f" (v1.5 has 6 % more multiply-adds than {mine if its == 'v1.5' else its})"
    return words


def _precision_distance(precision: str, row: Published) -> float:
    if row.precision == precision and "may_be_tf32" not in row.extra:
        return 0.0
    if {row.precision, precision} <= _HALF or ("may_be_tf32" in row.extra and precision in {"fp32", "tf32"}):
        return 1.0
    return 2.0 if {row.precision, precision} <= {"fp32", "tf32"} else 3.0


def _family(framework: str) -> str:
    return framework.split(" ")[0].lower()


def _differences(wanted: _Query, row: Published, chip: Chip, related: str) -> Iterator[Remark]:
    if related:
        yield Remark(related, "workload")
    if wanted.served:
        yield from served_differences(wanted.served, row)
    if wanted.preset == "tiny":
        yield Remark("MLPerf's task instead of the preset tiny", "preset")
    if row.task == "operator":
        yield Remark(row.model, "shape")  # the shape is the recipe
    yield from _chip_words(wanted, row, chip)
    if row.extra.get("may_be_tf32") and wanted.precision in {"fp32", "tf32"}:
        yield Remark("fp32 that may be TF32 (not stated)", "may-be-tf32")
    elif row.precision != wanted.precision:
        its = {"mixed": "mixed (AMP)", "unknown": "precision not stated,"}.get(row.precision, row.precision)
        may_be = " (may be TF32, not stated)" if row.extra.get("may_be_tf32") else ""
        mine = "(the precision here is unknown)" if wanted.precision == "unknown" else f"instead of {wanted.precision}"
        yield Remark(f"{its}{may_be} {mine}", "precision")
    length = row.extra.get("sequence_length")
    if length is None and row.unit == "sequences/s":
        yield Remark("sequence length not stated", "sequence-length-not-stated")
    elif length is not None and length != wanted.sequence_length:
        yield Remark(f"{length} tokens per sequence" + _instead_of(wanted.sequence_length), "sequence-length")
    if row.batch is None:
        yield Remark("batch not stated", "batch-not-stated")
    elif row.batch != wanted.batch:
        yield Remark(f"batch {row.batch}" + _instead_of(wanted.batch), "batch")
    yield from _stack_words(wanted, row)


def _instead_of(mine: str | int | None) -> str:
    return f" instead of {mine}" if mine else ""


def _chip_words(wanted: _Query, row: Published, chip: Chip) -> Iterator[Remark]:
    if wanted.chip is None:
        yield Remark(f"{chip.short} (the chip here is unknown)", "chip")
    elif chip_distance(wanted.chip, chip) == 1 and wanted.chip.memory and not chip.memory:
        yield Remark(f"{chip.short} (memory not stated) instead of {wanted.chip.short}", "chip-memory")
    elif chip_distance(wanted.chip, chip):
        yield Remark(f"{chip.short} instead of {wanted.chip.short}", "chip")
    if row.count != wanted.count:
        things = {"cpu": "CPU", "gpu": "GPU"}.get(chip.kind, "device")
        text = f"{row.count} {things}{'s' if row.count > 1 else ''} instead of {wanted.count}"
        yield Remark(text, "count")
    if variant := row.extra.get("variant"):
        yield Remark(f"{variant}", "chip-variant")


# What a row says of its recipe that no field of a result stands against: said as it is.
_RECIPE = (
    ("layout", "layout {}"),
    ("compiler", "compiled with {}"),
    ("sparsity", "with {} sparsity"),
    ("place", "in a {}"),
)


def _stack_words(wanted: _Query, row: Published) -> Iterator[Remark]:
    if not row.framework:
        yield Remark("framework not stated", "framework-not-stated")
    elif row.framework != wanted.framework:
        stated = re.search(r"\d", row.framework) or _family(row.framework) != _family(wanted.framework)
        text = row.framework + ("" if stated else " (version not stated)") + _instead_of(wanted.framework)
        yield Remark(text, "framework" if stated else "framework-version-not-stated")
    if row.data == "unknown":
        yield Remark("data path not stated", "data-not-stated")
    elif wanted.data and row.data != wanted.data:
        yield Remark(f"{row.data} data instead of {wanted.data}", "data")
    for name, words in _RECIPE:
        if (said := row.extra.get(name)) and said != "host":
            yield Remark(words.format(said), name)
