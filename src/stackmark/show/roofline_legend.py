"""Who is who in a roofline, and what stands below it: the words of the picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stackmark.show.roofline import CALLED, LEAST, labels
from stackmark.show.wording import LETTERS, letter
from stackmark.verdict.roofline import Point, Roofline, Standing, say_bound, say_operations, say_share

# More points than there are signs are drawn as groups.
MOST_NAMED = len(LETTERS)


@dataclass(frozen=True)
class Group:
    """Points under one sign, and what the legend says of them."""

    index: int
    said: str
    points: tuple[tuple[str, Standing], ...]


def groups_of(found: Roofline) -> list[Group]:
    names = labels(found.points)
    pairs = [(name, found.standing(point)) for name, point in zip(names, found.points, strict=True)]
    if len(pairs) <= MOST_NAMED:
        return [
            Group(index, f"{letter(index)}  {name}: {say_one(standing)}", ((name, standing),))
            for index, (name, standing) in enumerate(pairs)
        ]
    gathered: dict[str, list[tuple[str, Standing]]] = {}
    for point, pair in zip(found.points, pairs, strict=True):
        gathered.setdefault(_group_of(point), []).append(pair)
    return [
        Group(index, f"{name}: {_say_many(members)}", tuple(members))
        for index, (name, members) in enumerate(gathered.items())
    ]


def _group_of(point: Point) -> str:
    return ", ".join(filter(None, (point.workload, point.work.precision, point.details.get("arm", ""))))


def say_one(standing: Standing) -> str:
    """What the long sentence says, in few words."""
    bound, parts = say_bound(standing), []
    if standing.matrix_share is not None:
        parts.append(f"{say_share(standing.matrix_share)} of the {standing.work.precision} matrix rate")
    least, called = standing.least_share, standing.called_share
    if least is not None and called is not None:
        parts.append(f"{say_share(least).removesuffix(' %')} to {say_share(called)} of copy")
    elif least is not None:
        parts.append(f"{say_share(least)} of copy")
    done = say_operations(standing.operations_per_s, standing.work.precision)
    return ", ".join([done, *filter(None, [bound]), *parts])


def _say_many(members: Sequence[tuple[str, Standing]]) -> str:
    shares = sorted(share for _, one in members if (share := one.matrix_share) is not None)
    if not shares:
        return f"{len(members)} points"
    reach = f"{say_share(shares[0]).removesuffix(' %')} to {say_share(shares[-1])} of the matrix rate"
    return f"{len(members)} points, {reach}, half of them above {say_share(shares[len(shares) // 2])}"


def caption_of(found: Roofline) -> Iterator[str]:
    bars = any(point.work.called_bytes for point in found.points)
    if bars:
        yield "A sign stands at its intensity as the operators are called; its bar ends where the fewest bytes would put it."
        yield f"Bytes {CALLED}."
    yield f"Bytes {LEAST}."
    yield (
        "Slope: a copy within the device's memory. Level: the matrix rate of each precision, sustained; dashed: cold; dotted: of "
        "precisions that nothing here computes in."
    )
    yield from found.left_out
