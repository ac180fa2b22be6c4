"""Recommendation with NeuMF: the model, what is drawn, HR@10, the files it reads, and a run to its target."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from fit_rig import fit_params, trained
from refusing import fails_as
from stackmark.events import Evaluation, Facts, Log, Probe, Result, Stream
from stackmark.ranks import Rank
from stackmark.spec import Request, Task
from stackmark.workloads.fit.impl.hashing import hashed, normal
from stackmark.workloads.fit.impl.learner import Bench
from stackmark.workloads.fit.impl.ncf import SIZES, NcfLearner, NeuMF, Size, build, count_hits, draw_candidates
from stackmark.workloads.fit.impl.ratings import (
    FULL_ITEMS,
    FULL_RATINGS,
    FULL_USERS,
    Ratings,
    Unrated,
    generate_ratings,
    leave_one_out,
    read_ratings,
    synthetic_ratings,
)
from worker_process import environment, work

CPU = torch.device("cpu")
HEADER = "userId,movieId,rating,timestamp"


ALONE = Rank(0, 1, 0, 1)


def learner(rank: Rank = ALONE, **given: Any) -> NcfLearner:
    return build(Bench(fit_params("ncf", **given), CPU, 1, rank))


def rated_pairs(ratings: Ratings) -> list[tuple[int, int]]:
    return list(zip(ratings.train_users.tolist(), ratings.train_items.tolist(), strict=True))


# The model


def test_full_has_the_parameters_of_the_reference() -> None:
    """Four tables of MovieLens 20M's users and items, three layers and the last one."""
    with torch.device("meta"):
        net = NeuMF(SIZES["full"], FULL_USERS, FULL_ITEMS)
    layers = 256 * 256 + 256 + 256 * 128 + 128 + 128 * 64 + 64 + (64 + 64 + 1)
    assert sum(p.numel() for p in net.parameters()) == (138_493 + 26_744) * (64 + 128) + layers == 31_832_577


@pytest.mark.slow
def test_full_trains_a_batch() -> None:
    torch.manual_seed(1)
    net = NeuMF(SIZES["full"], FULL_USERS, FULL_ITEMS)
    users, items = torch.randint(FULL_USERS, (64,)), torch.randint(FULL_ITEMS, (64,))
    logits = net(users, items)
    assert logits.shape == (64,)
    loss = F.binary_cross_entropy_with_logits(logits, torch.rand(64).round())
    assert loss.item() == pytest.approx(0.693, abs=0.1)
    loss.backward()
    for parameter in net.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())
        assert bool(parameter.grad.any())
    assert net.users.weight.grad is not None
    assert set(net.users.weight.grad.abs().sum(1).nonzero().flatten().tolist()) == set(users.tolist())


def test_the_logit_is_that_of_four_tables_in_plain_python() -> None:
    torch.manual_seed(2)
    net = NeuMF(Size(2, (4, 3), 9), 5, 6)
    user, item = net.users.weight[3].tolist(), net.items.weight[4].tolist()
    product = [one * other for one, other in zip(user[:2], item[:2], strict=True)]
    inputs = [*user[2:], *item[2:]]
    (layer,) = net.layers
    assert isinstance(layer, torch.nn.Linear)
    hidden = [
        max(0.0, bias + sum(weight * x for weight, x in zip(row, inputs, strict=True)))
        for row, bias in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    ]
    last = net.last.weight[0].tolist()
    expected = net.last.bias.item() + sum(w * x for w, x in zip(last, [*product, *hidden], strict=True))
    assert net(torch.tensor([3]), torch.tensor([4])).item() == pytest.approx(expected, rel=1e-5)


def test_the_weights_begin_as_the_reference_says() -> None:
    torch.manual_seed(3)
    net = NeuMF(SIZES["full"], 1000, 500)
    assert float(net.users.weight.detach().std()) == pytest.approx(0.01, rel=0.02)
    first = net.layers[0]
    assert isinstance(first, torch.nn.Linear)
    assert float(first.weight.detach().abs().max()) == pytest.approx((6 / 512) ** 0.5, rel=0.01)
    assert float(net.last.weight.detach().abs().max()) == pytest.approx((3 / 128) ** 0.5, rel=0.1)


def test_logits_are_fine_enough_for_a_rank_in_bf16_too() -> None:
    """In bf16 a thousand logits near each other would be a few values, and every tie is a miss."""
    torch.manual_seed(4)
    net = NeuMF(SIZES["tiny"], 10, 5000)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(torch.zeros(1000, dtype=torch.long), torch.arange(1000))
    assert logits.dtype == torch.float32
    assert len(logits.unique()) > 900


# The quality


def plain_hits(scores: list[list[float]], candidates: list[list[int]]) -> int:
    """As the rule reads: the rank of the first among distinct others; as many as are not worse stand before it."""
    hits = 0
    for row, items in zip(scores, candidates, strict=True):
        others = dict(zip(items[1:], row[1:], strict=True))
        hits += sum(not score < row[0] for score in others.values()) < 10
    return hits


def test_hits_are_those_of_a_plain_count() -> None:
    draw = random.Random(5)
    candidates = [[1000, *sorted(draw.choices(range(60), k=40))] for _ in range(300)]
    by_item = [{item: float(draw.randrange(12)) for item in row} for row in candidates]
    scores = [[values[item] for item in row] for values, row in zip(by_item, candidates, strict=True)]
    expected = plain_hits(scores, candidates)
    assert 0 < expected < 300
    assert int(count_hits(torch.tensor(scores), torch.tensor(candidates))) == expected


def test_the_positive_loses_ties() -> None:
    items = torch.arange(12)[None]
    scores = torch.zeros(1, 12)
    assert int(count_hits(scores, items)) == 0
    scores[0, 3:] = -1
    assert int(count_hits(scores, items)) == 1
    assert int(count_hits(torch.full((1, 12), float("nan")), items)) == 0


def test_a_candidate_that_comes_twice_counts_once() -> None:
    scores = torch.tensor([[0.0] + [1.0] * 10])
    assert int(count_hits(scores, torch.arange(11)[None])) == 0
    assert int(count_hits(scores, torch.tensor([[0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9]]))) == 1


def test_a_model_that_scores_everything_alike_has_no_hit() -> None:
    one = learner()
    for parameter in one.net.parameters():
        torch.nn.init.zeros_(parameter)
    assert one.evaluate() == {"HR@10": 0.0}


def test_an_untrained_model_hits_as_often_as_chance() -> None:
    assert 0.05 < learner().evaluate()["HR@10"] < 0.17


def test_a_model_that_likes_one_item_hits_where_that_is_the_test() -> None:
    one = learner()
    for parameter in one.net.parameters():
        torch.nn.init.zeros_(parameter)
    test = generate_ratings().test_items
    net = one.net
    assert isinstance(net, NeuMF)
    torch.nn.init.ones_(net.users.weight)
    torch.nn.init.ones_(net.last.weight)
    with torch.no_grad():
        net.items.weight[7, 0] = 1.0
    assert one.evaluate() == {"HR@10": int((test == 7).sum()) / 1000}


def test_the_quality_is_that_of_plain_python() -> None:
    one = learner()
    one.train_epoch(0)
    ratings = generate_ratings()
    candidates = draw_candidates(ratings, torch.arange(ratings.users), 99)
    with torch.no_grad():
        scores = one.net(torch.arange(ratings.users)[:, None].expand_as(candidates), candidates)
    expected = plain_hits(scores.tolist(), candidates.tolist()) / ratings.users
    assert one.evaluate()["HR@10"] == pytest.approx(expected, abs=0.002)


def test_candidates_are_the_test_item_and_what_a_user_has_not_rated() -> None:
    ratings = generate_ratings()
    found = draw_candidates(ratings, torch.arange(ratings.users), 99)
    assert found.shape == (1000, 100)
    assert found[:, 0].tolist() == ratings.test_items.tolist()
    rated = {*rated_pairs(ratings), *enumerate(ratings.test_items.tolist())}
    assert not [user for user in range(1000) if any((user, item) in rated for item in found[user, 1:].tolist())]
    assert bool((found[:, 1:].diff() >= 0).all())


def test_candidates_do_not_depend_on_how_users_are_shared() -> None:
    ratings = generate_ratings()
    whole = draw_candidates(ratings, torch.arange(ratings.users), 99)
    assert torch.equal(whole[1::3], draw_candidates(ratings, torch.arange(1, ratings.users, 3), 99))


# What is drawn


def test_unrated_items_are_found_by_number() -> None:
    draw = random.Random(6)
    rated = {user: sorted(draw.sample(range(30), draw.choice((0, 1, 5, 28, 29)))) for user in range(40)}
    rated[0], rated[39] = list(range(29)), [*range(1, 30)]
    users = torch.tensor([user for user, items in rated.items() for _ in items])
    items = torch.tensor([item for own in rated.values() for item in own])
    unrated = Unrated(users, items, 40, 30)
    for user, own in rated.items():
        left = [item for item in range(30) if item not in own]
        assert int(unrated.counts[user]) == len(left)
        numbers = torch.arange(len(left))
        assert unrated.item(torch.full_like(numbers, user), numbers).tolist() == left


def drawn(of: NcfLearner, epoch: int) -> list[tuple[int, int, bool]]:
    found: list[tuple[int, int, bool]] = []
    for pairs, count in of.batches(epoch):
        assert count == len(pairs.users)
        found += zip(pairs.users.tolist(), pairs.items.tolist(), map(bool, pairs.labels.tolist()), strict=True)
    return found


def test_an_epoch_has_every_rating_once_and_four_that_were_not_rated_for_each() -> None:
    one, ratings = learner(), generate_ratings()
    torch.manual_seed(7)
    pairs = drawn(one, 0)
    rated = rated_pairs(ratings)
    assert sorted((user, item) for user, item, label in pairs if label) == rated
    others = [(user, item) for user, item, label in pairs if not label]
    assert not {*others} & {*rated}
    assert Counter(user for user, _ in others) == {
        user: 4 * count for user, count in Counter(u for u, _ in rated).items()
    }
    # The test item is drawn as often as any other: to leave it out would give it away.
    test = {*enumerate(ratings.test_items.tolist())}
    share = sum(pair in test for pair in others) / len(others)
    assert share == pytest.approx(1 / 480, rel=0.25)


def test_draws_are_uniform_over_what_was_not_rated() -> None:
    one, ratings = learner(), generate_ratings()
    torch.manual_seed(8)
    popular = int(torch.bincount(ratings.train_items).argmax())
    raters = {user for user, item in rated_pairs(ratings) if item == popular}
    others = [(user, item) for user, item, label in drawn(one, 0) if not label]
    asked = sum(user not in raters for user, _ in others)
    expected = asked / 480
    assert sum(item == popular for _, item in others) == pytest.approx(expected, abs=5 * expected**0.5)


def test_epochs_differ_and_the_same_one_is_the_same_again() -> None:
    one = learner()

    def epoch(number: int, seed: int) -> list[tuple[int, int, bool]]:
        torch.manual_seed(seed)
        return drawn(one, number)

    first = epoch(0, 9)
    assert epoch(0, 9) == first
    again = epoch(0, 10)
    assert [label for _, _, label in again] == [label for _, _, label in first]
    assert again != first
    assert [label for _, _, label in epoch(1, 9)] != [label for _, _, label in first]


def test_ranks_share_an_epoch_and_the_users_that_are_evaluated() -> None:
    ratings = generate_ratings()
    size = 3
    ranks = [learner(Rank(number, size, number, size)) for number in range(size)]
    shares = [drawn(one, 0) for one in ranks]
    assert {len(share) for share in shares} == {5 * len(ratings.train_users) // size}
    positives = Counter((user, item) for share in shares for user, item, label in share if label)
    assert set(positives.values()) == {1}
    assert len(positives) >= len(ratings.train_users) - (size - 1)
    hits = [one.evaluate()["HR@10"] * ratings.users for one in ranks]
    assert sum(hits) == pytest.approx(learner().evaluate()["HR@10"] * ratings.users)


def test_hashed_numbers_are_those_of_plain_python() -> None:
    def plain(*parts: int) -> int:
        bits = 0
        for part in parts:
            bits ^= part
            bits = ((bits ^ (bits >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
            bits = ((bits ^ (bits >> 15)) * 0x735A2D97) & 0xFFFFFFFF
            bits ^= bits >> 15
        return bits

    users, places = torch.arange(50) * 84_000_000, torch.arange(20)
    found = hashed(20190710, 4, users[:, None], places).tolist()
    assert found == [[plain(20190710, 4, user, place) for place in range(20)] for user in users.tolist()]


def test_normal_numbers_are_normal() -> None:
    drawn_ones = normal(1, 2, torch.arange(200_000))
    assert float(drawn_ones.mean()) == pytest.approx(0, abs=0.01)
    assert float(drawn_ones.std()) == pytest.approx(1, abs=0.01)
    assert float((drawn_ones.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.005)


# Data


def test_generated_data_are_the_same_everywhere() -> None:
    ratings = generate_ratings()
    assert (ratings.users, ratings.items, len(ratings.train_users)) == (1000, 500, 20_000)
    assert ratings.sha256 == "76cb84a2070806f24dfd4e6663b98f86119f79fa169099ee71bb37f80b766d00"
    assert generate_ratings(seed=2).sha256 != ratings.sha256


def test_synthetic_data_have_their_shape() -> None:
    ratings = synthetic_ratings(users=301, items=2000, ratings=301 * 44 + 7)
    assert (ratings.users, ratings.items, len(ratings.train_users)) == (301, 2000, 301 * 43 + 7)
    pairs = rated_pairs(ratings) + list(enumerate(ratings.test_items.tolist()))
    assert len({*pairs}) == 301 * 44 + 7
    assert all(0 <= item < 2000 for _, item in pairs)
    counts = torch.bincount(ratings.train_items, minlength=2000)
    assert int(counts[:200].sum()) > 3 * int(counts[1800:].sum())
    assert FULL_RATINGS // FULL_USERS == 144


def test_the_newest_rating_is_left_out() -> None:
    draw = random.Random(11)
    rows = [(draw.randrange(50), draw.randrange(80), draw.randrange(30)) for _ in range(4000)]
    users, items, times = (torch.tensor(column) for column in zip(*rows, strict=True))
    found = leave_one_out(users, items, times, (50, 80), "test")
    newest: dict[tuple[int, int], tuple[int, int]] = {}
    for line, (user, item, time) in enumerate(rows):
        newest[user, item] = max(newest.get((user, item), (-1, -1)), (time, line))
    for user in range(50):
        own = {item: when for (one, item), when in newest.items() if one == user}
        test = max(own, key=own.__getitem__)
        assert int(found.test_items[user]) == test
        assert [item for one, item in rated_pairs(found) if one == user] == sorted(own.keys() - {test})


def write_csv(folder: Path, rows: list[str], header: str = HEADER) -> Path:
    (folder / "ratings.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder


def rows_of(user: int, items: range, time: int = 1_000_000_000) -> list[str]:
    return [f"{user},{item},3.5,{time + item}" for item in items]


def test_movielens_csv_is_read(tmp_path: Path) -> None:
    """Ids have gaps; user 9 has too few ratings, and item 999 is theirs alone; user 7 rated item 40 twice."""
    rows = [*rows_of(7, range(10, 90, 2)), "7,40,1.0,2000000000", *rows_of(3, range(100, 130)), "9,999,5.0,1"]
    ratings = read_ratings(write_csv(tmp_path, [*rows, *rows_of(9, range(20, 30))]))
    assert (ratings.users, ratings.items) == (2, 70)
    assert ratings.test_items.tolist() == [69, 15]
    assert [item for user, item in rated_pairs(ratings) if user == 0] == [*range(40, 69)]
    assert [item for user, item in rated_pairs(ratings) if user == 1] == [*range(15), *range(16, 40)]


def test_the_order_of_lines_and_their_ends_change_nothing(tmp_path: Path) -> None:
    rows = [*rows_of(7, range(10, 60)), *rows_of(3, range(40, 90))]
    first = read_ratings(write_csv(tmp_path, rows))
    (tmp_path / "ratings.csv").write_bytes("\r\n".join([HEADER, *rows[::-1]]).encode())
    second = read_ratings(tmp_path)
    assert second.sha256 == first.sha256
    assert torch.equal(second.train_items, first.train_items)
    assert read_ratings(write_csv(tmp_path, rows[1:])).sha256 != first.sha256


def test_a_large_file_is_read_in_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [*rows_of(7, range(10, 60)), *rows_of(3, range(40, 90))]
    whole = read_ratings(write_csv(tmp_path, rows))
    for size in (7, 64, 1000):
        monkeypatch.setattr("stackmark.workloads.fit.impl.ratings.READ_BYTES", size)
        assert read_ratings(tmp_path).sha256 == whole.sha256


def test_the_inter_file_of_recbole_is_read(tmp_path: Path) -> None:
    rows = [row.replace(",", "\t") for row in (*rows_of(7, range(10, 60)), *rows_of(3, range(40, 90)))]
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
    (tmp_path / "ml-100k.inter").write_text("\n".join([header, *rows]) + "\n")
    ratings = read_ratings(tmp_path)
    assert (ratings.users, ratings.items) == (2, 80)
    assert ratings.test_items.tolist() == [89 - 10, 59 - 10]


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (["1,2,3"], ("line 52", "'1,2,3'")),
        (["1,2,3.0,4,5"], ("line 52",)),
        (["1,2,3.0,"], ("line 52",)),
        (["one,2,3.0,4"], ("line 52", "one")),
        ([f"{2**70},2,3.0,4"], ("line 52",)),
        (["", "1,2,3.0,4"], ("line 52",)),
        (["1,2,3.0,nan"], ("line 52", "time")),
    ],
)
def test_a_damaged_line_is_shown(tmp_path: Path, rows: list[str], named: tuple[str, ...]) -> None:
    folder = write_csv(tmp_path, [*rows_of(7, range(10, 60)), *rows])
    with fails_as("bad_data", str(folder / "ratings.csv"), *named):
        read_ratings(folder)


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stackmark.workloads.fit.impl.ratings.READ_BYTES", 2000)
    folder = write_csv(tmp_path, [*rows_of(7, range(10, 60)), "1" * 5000])
    with fails_as("bad_data", str(folder / "ratings.csv"), "1000 characters"):
        read_ratings(folder)


def test_a_line_that_was_cut_off_is_shown(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("\n".join([HEADER, *rows_of(7, range(10, 60)), "8,1"]))
    with fails_as("bad_data", str(tmp_path / "ratings.csv"), "line 52", "complete"):
        read_ratings(tmp_path)


def nothing(_folder: Path) -> None: ...


def other_header(folder: Path) -> None:
    write_csv(folder, rows_of(7, range(10, 60)), "user,item,stars,time")


def empty(folder: Path) -> None:
    (folder / "ratings.csv").write_text("")


def only_header(folder: Path) -> None:
    write_csv(folder, [])


def few_ratings(folder: Path) -> None:
    write_csv(folder, [*rows_of(7, range(19)), *rows_of(8, range(19))])


def all_rated(folder: Path) -> None:
    write_csv(folder, [*rows_of(7, range(60)), *rows_of(8, range(25))])


def a_folder(folder: Path) -> None:
    (folder / "ratings.csv").mkdir()


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (nothing, ("ratings.csv", "ml-100k.inter")),
        (other_header, ("userId,movieId,rating,timestamp",)),
        (empty, ("ratings.csv",)),
        (only_header, ("ratings.csv",)),
        (few_ratings, ("20",)),
        (all_rated, ("60 of 60", "HR@10")),
        (a_folder, ("ratings.csv",)),
    ],
)
def test_a_folder_without_usable_ratings_is_refused(
    tmp_path: Path, make: Callable[[Path], None], named: tuple[str, ...]
) -> None:
    make(tmp_path)
    with fails_as("bad_data", *named):
        read_ratings(tmp_path)


def test_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    with fails_as("bad_data", str(tmp_path / "none")):
        read_ratings(tmp_path / "none")


def test_other_data_than_those_of_the_spec_are_refused() -> None:
    with fails_as("bad_data", "SHA-256"):
        trained("ncf", fit_params("ncf", data_sha256="1" * 64))


# To the target


@pytest.mark.slow
def test_data_in_a_folder_train_by_the_same_code(tmp_path: Path) -> None:
    """The generated ratings, written as MovieLens' file is."""
    ratings = generate_ratings()
    rows = [f"{user + 1},{item + 1},4.0,{100 + place}" for place, (user, item) in enumerate(rated_pairs(ratings))]
    rows += [f"{user + 1},{item + 1},4.0,{10**9}" for user, item in enumerate(ratings.test_items.tolist())]
    folder = write_csv(tmp_path, rows)
    course = trained("ncf", fit_params("ncf", data=str(folder), source="real"), 1)
    assert course.told is not None
    assert course.evaluations[-1].quality["HR@10"] >= 0.8
    assert {one.samples for one in course.evaluations[:1]} == {100_000}


@pytest.mark.slow
def test_tiny_reaches_its_target_by_the_worker() -> None:
    """From a request, so through the probe too, in 4 to 6 epochs; three seeds were tried when it was tuned."""
    request = Request(workload="fit/ncf", params={"device": "cpu"})
    finished = work(Task(do="run", request=request), environment())
    stream = Stream()
    for line in finished.lines:
        assert stream.feed(line) is not None, line
    assert isinstance(stream.ended(), Result), finished.stderr
    (probe,) = (event for event in stream.events if isinstance(event, Probe))
    assert probe.spec.params["data_sha256"] == generate_ratings().sha256
    evaluations = [event for event in stream.events if isinstance(event, Evaluation)]
    assert 4 <= evaluations[-1].epoch <= 6
    assert evaluations[-1].quality["HR@10"] >= 0.8 > evaluations[-2].quality["HR@10"]
    (facts,) = (event.facts for event in stream.events if isinstance(event, Facts) and event.subject == "fit")
    assert facts["train_samples"] == 20_000
    lines = [event.line for event in stream.events if isinstance(event, Log)]
    for key in ("ncf", "opt_adam_beta_2", "global_batch_size", "eval_accuracy", "run_stop"):
        assert [line for line in lines if line.startswith(":::MLLOG") and f'"{key}"' in line], key
    # A tiny log claims no division that has rules about the model.
    assert [line for line in lines if "submission_division" in line and '"open"' in line]
