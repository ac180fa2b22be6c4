"""`fit/ncf`: recommendation with neural collaborative filtering (NeuMF), trained until its hit rate is reached.

The model is that of MLPerf's reference: a product of factors of user and item, a perceptron over other factors of both, and one
logit from the two together. `full` has its size (31.8 M parameters for MovieLens 20M); `tiny` is the same code with 16 factors.

An epoch has every rating once and, drawn for each, four items that the user has not rated. Both are drawn where the model
is, many batches at a time, so that no step waits for data. The quality is HR@10: the share of users whose newest rating, which
was not trained, is among the ten best of it and items that they have not rated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.fit.definition import FitParams
from stackmark.workloads.fit.impl.hashing import hashed
from stackmark.workloads.fit.impl.learner import Bench, Supervised, share_of_rank
from stackmark.workloads.fit.impl.ratings import (
    DATA_SEED,
    Ratings,
    Unrated,
    generate_ratings,
    read_ratings,
    synthetic_ratings,
)
from stackmark.workloads.workload import Values

QUALITY = "HR@10"
BEST = 10
# Of each rating, in training.
NEGATIVES = 4
# Pairs whose items are drawn together, and pairs that are evaluated together: few calls, little memory.
DRAWN_TOGETHER, EVALUATED_TOGETHER = 1 << 22, 1 << 20
# On a CPU what is evaluated together should stay in its caches.
EVALUATED_ON_CPU = 1 << 14
BETAS, EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Size:
    # Factors that are multiplied, and the widths of the perceptron: half of the first are a user's, half an item's.
    factors: int
    layers: tuple[int, ...]
    # Items that the test item is ranked among.
    ranked_among: int


SIZES = {
    "tiny": Size(16, (32, 32, 16, 8), 99),
    "full": Size(64, (256, 256, 128, 64), 999),
}


def load_ratings(params: FitParams) -> Ratings:
    if params.data:
        return read_ratings(Path(params.data))
    return synthetic_ratings() if params.preset == "full" else generate_ratings()


def data_sha256(params: FitParams) -> str:
    return load_ratings(params).sha256


# --- the model ----------------------------------------------------------------------------------------------------------


class NeuMF(nn.Module):
    """One table has both kinds of a user's factors, and one an item's: the reference's four, with half of the look-ups."""

    def __init__(self, size: Size, users: int, items: int) -> None:
        super().__init__()
        self.factors = size.factors
        width = size.factors + size.layers[0] // 2
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(size.layers, size.layers[1:], strict=False))
        self.last = nn.Linear(size.factors + size.layers[-1], 1)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.01)
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_uniform_(layer.weight)
        bound = (3 / self.last.in_features) ** 0.5
        nn.init.uniform_(self.last.weight, -bound, bound)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Return a logit for each pair."""
        user, item = self.users(users), self.items(items)
        product = user[..., : self.factors] * item[..., : self.factors]
        x = torch.cat((user[..., self.factors :], item[..., self.factors :]), -1)
        for layer in self.layers:
            x = torch.relu(layer(x))
        # Logits in bf16 would make ties of most ranks.
        with torch.autocast(x.device.type, enabled=False):
            logits: Tensor = self.last(torch.cat((product.float(), x.float()), -1))
        return logits.squeeze(-1)


# --- the quality --------------------------------------------------------------------------------------------------------


def draw_candidates(ratings: Ratings, users: Tensor, count: int) -> Tensor:
    """Return each user's test item, then `count` items that they have not rated, in order; an item may come twice.

    The draws are hashes of user and place: the same in all runs, on all devices, however users are shared among ranks.
    """
    device = users.device
    everyone = torch.arange(ratings.users, device=device)
    rated_users = torch.cat((ratings.train_users.to(device), everyone))
    rated_items = torch.cat((ratings.train_items.to(device), ratings.test_items.to(device)))
    pairs = (rated_users * ratings.items + rated_items).sort().values
    unrated = Unrated(pairs // ratings.items, pairs % ratings.items, ratings.users, ratings.items)
    places = torch.arange(count, device=device)
    found = torch.empty((len(users), 1 + count), dtype=torch.int32, device=device)
    found[:, 0] = ratings.test_items.to(device)[users]
    rows = max(1, EVALUATED_TOGETHER // count)
    for start in range(0, len(users), rows):
        some = users[start : start + rows, None]
        numbers = (hashed(DATA_SEED, 8, some, places) * unrated.counts[some]) >> 32
        found[start : start + rows, 1:] = unrated.item(some, numbers).sort(1).values
    return found


def count_hits(scores: Tensor, candidates: Tensor) -> Tensor:
    """Return for how many rows the first candidate is among the ten best.

    It loses ties, and what is not a number beats it: a model that scores everything alike has no hit. The other candidates are
    in order, so that one that comes twice counts once.
    """
    better = ~(scores[:, 1:] < scores[:, :1])
    better[:, 1:] &= candidates[:, 2:] != candidates[:, 1:-1]
    return (better.sum(1) < BEST).sum()


# --- the task -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """Users, items and whether the user rated the item."""

    users: Tensor
    items: Tensor
    labels: Tensor


class NcfLearner(Supervised[Pairs]):
    def __init__(self, bench: Bench) -> None:
        params, size, device = bench.params, SIZES[bench.params.preset], bench.device
        ratings = load_ratings(params)
        torch.manual_seed(bench.seed)
        with device:
            net = NeuMF(size, ratings.users, ratings.items)
        optimizer = torch.optim.Adam(
            net.parameters(), params.learning_rate, betas=BETAS, eps=EPSILON, fused=params.fused or None
        )
        super().__init__(
            bench, net, optimizer, self._learning_rate, samples=len(ratings.train_users), data_sha256=ratings.sha256
        )
        self._users, self._items = ratings.train_users.to(device), ratings.train_items.to(device)
        # The test item may be drawn: to leave it out would tell the model which item of all it is.
        self._unrated = Unrated(self._users, self._items, ratings.users, ratings.items)
        self._everyone = ratings.users
        mine = share_of_rank(ratings.users, bench.rank)
        self._tested = torch.arange(mine.start, mine.stop, mine.step, device=device)
        self._candidates = draw_candidates(ratings, self._tested, size.ranked_among)
        self.logged = {
            "opt_name": "adam",
            "opt_base_learning_rate": params.learning_rate,
            "opt_adam_beta_1": BETAS[0],
            "opt_adam_beta_2": BETAS[1],
            "opt_adam_epsilon": EPSILON,
            "train_samples": len(ratings.train_users),
            "eval_samples": ratings.users,
        }

    def _learning_rate(self, update: int) -> float:
        params = self.bench.params
        return params.learning_rate * min(1.0, (update + 1) / max(1, params.warmup_updates))

    def batches(self, epoch: int) -> Iterator[tuple[Pairs, int]]:
        """Yield batches of one order that all ranks draw alike; up to size − 1 pairs are left out, so that all do as many."""
        rank, batch = self.bench.rank, self.bench.params.batch
        generator = torch.Generator(self.bench.device)
        generator.manual_seed(int(hashed(self.bench.seed, epoch)))
        order = torch.randperm((1 + NEGATIVES) * self.samples, generator=generator, device=self.bench.device)
        each = len(order) // rank.size
        mine = order[rank.number * each : (rank.number + 1) * each]
        for stretch in mine.split(max(1, DRAWN_TOGETHER // batch) * batch):
            pairs = self._drawn(stretch)
            for parts in zip(*(part.split(batch) for part in pairs), strict=True):
                yield Pairs(*parts), len(parts[0])

    def _drawn(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return users, items and labels: the numbers up to that of ratings are ratings, the others are drawn for one."""
        rating, rated = numbers % self.samples, numbers < self.samples
        users = self._users[rating]
        # In whole numbers: 31 random bits times a count, without the bits.
        draws = (torch.randint(1 << 31, users.shape, device=users.device) * self._unrated.counts[users]) >> 31
        return users, torch.where(rated, self._items[rating], self._unrated.item(users, draws)), rated.float()

    def loss(self, batch: Pairs) -> Tensor:
        logits = self.strategy.net(batch.users, batch.items)
        return F.binary_cross_entropy_with_logits(logits, batch.labels)

    def evaluate(self) -> Values:
        hits = torch.zeros((), dtype=torch.long, device=self.bench.device)
        most = EVALUATED_ON_CPU if self.bench.device.type == "cpu" else EVALUATED_TOGETHER
        rows = max(1, most // self._candidates.shape[1])
        with self.evaluating():
            for users, candidates in zip(self._tested.split(rows), self._candidates.split(rows), strict=True):
                scores = self.net(users[:, None].expand_as(candidates), candidates)
                hits += count_hits(scores, candidates)
        return {QUALITY: sum(self.bench.gathered([int(hits)])) / self._everyone}


def build(bench: Bench) -> NcfLearner:
    return NcfLearner(bench)
