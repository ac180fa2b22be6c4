"""Efficiencies that follow from published rates: one device and several, of one source and one recipe."""

from collections.abc import Iterable, Sequence

from stackmark.published.chips import chip_distance, parse_chip
from stackmark.published.lookup import published_name
from stackmark.published.table import Published
from stackmark.spec import Spec
from stackmark.verdict.scaling import PublishedScaling

# Lines under a result; those of the nearest chip first.
SHOWN = 3


def published_scaling(rows: Iterable[Published]) -> list[tuple[PublishedScaling, Published]]:
    """Return the efficiency of every rate of several devices that has one of one device by its side, with its row."""
    groups: dict[tuple[object, ...], dict[int, Published]] = {}
    for row in rows:
        if row.unit.endswith("/s"):
            recipe = (row.workload, row.model, row.task, row.chip, row.framework, row.precision, row.batch, row.unit, row.data,
                      row.source, row.date, *_further(row))  # fmt: skip
            groups.setdefault((*recipe, _maker(row)), {}).setdefault(row.count, row)
    found = []
    for counts in groups.values():
        one = counts.get(1)
        for count, row in sorted(counts.items()) if one else ():
            if one and count > 1:
                found.append((_scaling(one, row), row))
    return found


def _scaling(one: Published, several: Published) -> PublishedScaling:
    batch = f", batch {several.batch}" if several.batch else ""
    return PublishedScaling(
        ranks=several.count,
        efficiency=several.value / (several.count * one.value),
        one=one.value,
        several=several.value,
        unit=several.unit,
        what=f"{several.model}, {several.count} × {several.chip}{batch}",
        framework=several.framework,
        data=several.data,
        source=several.source,
        date=several.date,
    )


# Of how many printed rows a rate is the mean: no part of a recipe.
_NOT_THE_RECIPE = "rows"


def _further(row: Published) -> list[tuple[str, str]]:
    return sorted((name, str(value)) for name, value in row.extra.items() if name != _NOT_THE_RECIPE)


def _maker(row: Published) -> str:
    """A row's system without the number of its devices: a source names each size of one system."""
    return " ".join(word for word in row.system.split() if not word.strip("x×").isdecimal())


def nearest_scaling(
    rows: Sequence[Published], spec: Spec, chip: str | None, ranks: Sequence[int]
) -> tuple[PublishedScaling, ...]:
    """Return the published efficiencies for these numbers of devices: those of the nearest chip and batch first."""
    batch = spec.params.get("batch")
    mine = parse_chip(chip) if chip else None

    synthetic = str(spec.params.get("data") or "device") in ("device", "host")

    def distance(one: tuple[PublishedScaling, Published]) -> tuple[float, bool, bool]:
        row = one[1]
        away = float(chip_distance(mine, parse_chip(row.chip))) if mine else 0.0
        return away, (row.data == "synthetic") != synthetic, row.batch != batch

    name = published_name(spec.workload, spec.params)
    found = [one for one in published_scaling(row for row in rows if row.workload == name) if one[0].ranks in ranks]
    shown: list[PublishedScaling] = []
    for said, _ in sorted(found, key=distance):
        if said.ranks not in [one.ranks for one in shown] and len(shown) < SHOWN:
            shown.append(said)
    return tuple(sorted(shown, key=lambda one: one.ranks))
