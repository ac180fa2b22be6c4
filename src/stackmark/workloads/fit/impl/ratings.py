"""Ratings of items by users for the recommendation task: generated, or read from a folder, and what nobody rated.

Whatever the stars, a rating counts as interest, as in MLPerf's reference. The newest rating of each user is the test (leave one
out); all others are trained. Users with fewer than 20 ratings are left out, which is the reference's rule too.

A folder has MovieLens' `ratings.csv` (userId,movieId,rating,timestamp), or the `ml-100k.inter` that recbole's wheel has.
Generated ratings follow from a hash of the seed and their place, computed in integers: any user's can be made without the others,
and all machines make the same ones.
"""

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stackmark.workloads.fit.impl.hashing import hashed, normal, sha256_of, uniform
from stackmark.workloads.workload import WorkloadFailure

# Name, separator and first line of the files that are read.
FORMATS = (
    ("ratings.csv", b",", (b"userId", b"movieId", b"rating", b"timestamp")),
    ("ml-100k.inter", b"\t", (b"user_id:token", b"item_id:token", b"rating:float", b"timestamp:float")),
)
LEAST_RATINGS = 20
# The positive is ranked among what its user has not rated: where that is almost nothing, every model hits.
LEAST_UNRATED = 20
# What is read of a file at a time, and the longest line: a damaged file must not fill the memory.
READ_BYTES, LONGEST_LINE = 1 << 24, 1000
MOST_RATINGS = 500_000_000
DATA_SEED = 20190710
# Generated, small: ratings follow from a few hidden factors of users and items, the item's popularity, and chance.
TINY_USERS, TINY_ITEMS, TINY_RATINGS, FACTORS = 1000, 500, 21, 6
TASTE, POPULARITY = 4.0, 1.0
# Synthetic, of MovieLens 20M's shape: each user has 144 or 145 ratings.
FULL_USERS, FULL_ITEMS, FULL_RATINGS = 138_493, 26_744, 20_000_263
# A share q of the ratings falls on a share q³ of the items: few are popular, as of films.
SKEW = 3


@dataclass(frozen=True)
class Ratings:
    """Who rated what, by consecutive numbers: what is trained, by user and then item, and one test item for each user."""

    users: int
    items: int
    train_users: Tensor
    train_items: Tensor
    test_items: Tensor
    sha256: str


# --- leave one out ------------------------------------------------------------------------------------------------------


def leave_one_out(users: Tensor, items: Tensor, times: Tensor, counts: tuple[int, int], kind: str) -> Ratings:
    """Keep the newest rating of each user for the test. Users and items are numbered from 0, and `counts` says how many.

    Of ratings of one time the last in the file is the newest. Of several ratings of one item by one user the newest counts.
    """
    user_count, item_count = counts
    # In the order of time first: what follows keeps it among equals.
    order = times.argsort(stable=True)
    pairs, place = (users * item_count + items)[order].sort(stable=True)
    last = torch.ones(len(pairs), dtype=torch.bool)
    last[:-1] = pairs[1:] != pairs[:-1]
    pairs, place = pairs[last], place[last]
    users, items = pairs // item_count, pairs % item_count
    newest = torch.zeros(user_count, dtype=torch.long).scatter_reduce_(0, users, place, "amax")
    test = place == newest[users]
    most = int(torch.bincount(users, minlength=user_count).max())
    if item_count - most < LEAST_UNRATED:
        raise WorkloadFailure(
            "bad_data",
            f"a user has rated {most} of {item_count} items; HR@10 needs at least {LEAST_UNRATED} that a user has not rated",
        )
    return Ratings(
        user_count,
        item_count,
        users[~test],
        items[~test],
        items[test],
        sha256_of(f"{kind} {user_count} {item_count}", *(part.to(torch.int32) for part in (users, items, test))),
    )


# --- generated ----------------------------------------------------------------------------------------------------------


def generate_ratings(seed: int = DATA_SEED, users: int = TINY_USERS, items: int = TINY_ITEMS) -> Ratings:
    """Let each user rate the items that they like best, by taste, popularity and chance (Gumbel noise)."""
    user, item = torch.arange(users), torch.arange(items)
    factor = torch.arange(FACTORS)
    tastes = normal(seed, 1, user[:, None], factor)
    traits = normal(seed, 2, item[:, None], factor)
    liking = tastes @ traits.T * (TASTE / math.sqrt(FACTORS)) + POPULARITY * normal(seed, 3, item)
    liking -= (-uniform(seed, 4, user[:, None], item).log()).log()
    chosen = liking.topk(TINY_RATINGS, 1).indices.sort(1).values
    when = hashed(seed, 5, user[:, None], chosen)
    return leave_one_out(
        user.repeat_interleave(TINY_RATINGS), chosen.flatten(), when.flatten(), (users, items), "generated"
    )


def synthetic_ratings(
    seed: int = DATA_SEED, users: int = FULL_USERS, items: int = FULL_ITEMS, ratings: int = FULL_RATINGS
) -> Ratings:
    """Return ratings of the full shape, for the speed of the full model without its data: only popularity can be learned."""
    least, more = divmod(ratings, users)
    user, place = _places(users, least, more)
    count = least + (user < more).long()
    share = (place.double() + uniform(seed, 6, user, place)) / count
    raw = (share**SKEW * items).long().clamp(max=items - 1)
    # Where two fall on one item, the second takes the next one: what a user has rated is ascending, each item once.
    item = _ascending(raw - place, user, items) + place
    return leave_one_out(user, item, hashed(seed, 7, user, place), (users, items), "synthetic")


def _places(users: int, least: int, more: int) -> tuple[Tensor, Tensor]:
    """Number the ratings of users within each: `least` of them, and one more of the first `more` users."""
    counts = torch.full((users,), least)
    counts[:more] += 1
    user = torch.arange(users).repeat_interleave(counts)
    return user, torch.arange(len(user)) - (counts.cumsum(0) - counts)[user]


def _ascending(values: Tensor, user: Tensor, items: int) -> Tensor:
    """Return the largest value so far, for each user alone."""
    offset = user * (4 * items)
    return (values + offset).cummax(0).values - offset


# --- a folder -----------------------------------------------------------------------------------------------------------


def read_ratings(folder: Path) -> Ratings:
    for name, separator, header in FORMATS:
        if (folder / name).is_file():
            return leave_one_out(*_renumbered(*_columns(folder / name, separator, header)), name)
    names = " nor ".join(name for name, _, _ in FORMATS)
    raise WorkloadFailure(
        "bad_data",
        f"{folder} has neither {names}",
        "ratings.csv is in MovieLens' archives (files.grouplens.org/datasets/movielens), ml-100k.inter in the wheel of recbole",
    )


def _renumbered(users: Tensor, items: Tensor, times: Tensor) -> tuple[Tensor, Tensor, Tensor, tuple[int, int]]:
    """Leave out users with few ratings, and number the users and the items that are left from 0, in the order of their ids."""
    _, numbered, counts = users.unique(return_inverse=True, return_counts=True)
    keep = counts[numbered] >= LEAST_RATINGS
    if not bool(keep.any()):
        raise WorkloadFailure(
            "bad_data", f"no user has {LEAST_RATINGS} ratings or more", "users with fewer are left out, as MLPerf does"
        )
    users_left, users = users[keep].unique(return_inverse=True)
    items_left, items = items[keep].unique(return_inverse=True)
    return users, items, times[keep], (len(users_left), len(items_left))


def _columns(path: Path, separator: bytes, header: Sequence[bytes]) -> tuple[Tensor, Tensor, Tensor]:
    """Return users, items and times of all lines.

    Lines are taken apart many at a time, by what C does of it: 20 million lines take about 11 s on one core.
    """
    users, items, times = array("q"), array("q"), array("d")
    first = 2
    for number, lines in enumerate(_stretches(path)):
        if number == 0:
            if [part.strip() for part in lines[0].split(separator)] != list(header):
                raise WorkloadFailure(
                    "bad_data",
                    f"the first line of {path} is not {separator.join(header).decode()!r}",
                    "it must be the file as it comes, with its header",
                )
            lines = lines[1:]
        if not lines:
            continue
        fields = separator.join(lines).split(separator)
        try:
            if any(line.count(separator) != 3 for line in lines):
                raise ValueError
            users.extend(map(int, fields[0::4]))
            items.extend(map(int, fields[1::4]))
            times.extend(map(float, fields[3::4]))
        except (ValueError, OverflowError):
            raise _bad_line(path, separator, lines, first) from None
        first += len(lines)
        if len(users) > MOST_RATINGS:
            raise WorkloadFailure("bad_data", f"{path} has more than {MOST_RATINGS:,} lines")
    if not len(users):
        raise WorkloadFailure("bad_data", f"{path} has no ratings")
    seconds = torch.frombuffer(times, dtype=torch.float64)
    if not bool(seconds.isfinite().all()):
        line = int((~seconds.isfinite()).nonzero()[0]) + 2
        raise WorkloadFailure("bad_data", f"line {line} of {path} has no time that is a number")
    return torch.frombuffer(users, dtype=torch.long), torch.frombuffer(items, dtype=torch.long), seconds


def _stretches(path: Path) -> Iterator[list[bytes]]:
    """Yield the lines of a file, many at a time."""
    try:
        with path.open("rb") as file:
            rest = b""
            while data := file.read(READ_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > LONGEST_LINE:
                    raise WorkloadFailure("bad_data", f"{path} has a line of more than {LONGEST_LINE} characters")
                if lines:
                    yield lines
            if rest:
                yield [rest]
    except OSError as error:
        raise WorkloadFailure("bad_data", f"{path} cannot be read: {error.strerror}") from error


def _bad_line(path: Path, separator: bytes, lines: Sequence[bytes], first: int) -> WorkloadFailure:
    """Find the line that could not be read, and show it."""
    number, line = next(
        ((number, line) for number, line in enumerate(lines, first) if not _is_rating(line, separator)), (first, b"")
    )
    return WorkloadFailure(
        "bad_data",
        f"line {number} of {path} is not a user, an item, a rating and a time: {line[:60].decode(errors='replace')!r}",
        "is the file complete? get it again",
    )


def _is_rating(line: bytes, separator: bytes) -> bool:
    fields = line.split(separator)
    try:
        float(fields[-1])
        return len(fields) == 4 and all(-(2**63) <= int(field) < 2**63 for field in fields[:2])
    except ValueError:
        return False


# --- what was not rated -------------------------------------------------------------------------------------------------


class Unrated:
    """Finds what users have not rated, for many of them at once: the n-th item that is not theirs, by one binary search.

    A number drawn below `counts[user]` is so a uniform draw; none is rejected and drawn again.
    """

    def __init__(self, users: Tensor, items: Tensor, user_count: int, item_count: int) -> None:
        """Take who rated what, by user and then item, each pair once."""
        rated = torch.bincount(users, minlength=user_count)
        self.counts = item_count - rated
        self._starts = rated.cumsum(0) - rated
        self._item_count = item_count
        # Before the j-th item of a user there are `item - j` that they have not rated: ascending for each user.
        before = items - (torch.arange(len(items), device=items.device) - self._starts[users])
        self._keys = users * item_count + before

    def item(self, users: Tensor, numbers: Tensor) -> Tensor:
        """Return the item with this number, counted from 0, among those that each user has not rated."""
        found = torch.searchsorted(self._keys, users * self._item_count + numbers, right=True)
        return numbers + found - self._starts[users]
