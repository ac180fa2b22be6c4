"""Go by self-play: the network, the games it learns from, the gate, ranks, checkpoints, and a run to its target."""

import io
import itertools
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fit_rig import Course, fit_params, trained
from refusing import fails_as
from stackmark.events import Evaluation, Log, Result, Stream
from stackmark.ranks import Rank, variables
from stackmark.spec import Request, Task
from stackmark.workloads.fit.impl import minigo
from stackmark.workloads.fit.impl.go import BLACK, WHITE, Go, Positions, Rules, symmetries
from stackmark.workloads.fit.impl.go_search import Effort, Predict
from stackmark.workloads.fit.impl.learner import Bench
from stackmark.workloads.fit.impl.minigo import SIZES, GoNet, MinigoLearner, Size, build, planes_of, self_play
from stackmark.workloads.workload import Evaluated, WorkloadFailure
from test_node_groups import free_port
from worker_process import SOURCE, environment, work

CPU = torch.device("cpu")
ALONE = Rank(0, 1, 0, 1)
# Games of 3 × 3 points, two generations of which are a second of work.
SMALL = Size(
    Rules(3, 0.5, 12), history=2, blocks=1, width=4, value_width=4,
    games=6, effort=Effort(4, 2, only_sensible=True), first_games=8, first_readouts=2, drawn_moves=4,
    resign=-1.0, never_resigned=1.0, window=2, passes=1.5, value_share=1.0, boundaries=(2,),
    gate_games=0, gate=0.0, evaluated=20,
)  # fmt: skip


def learner(rank: Rank = ALONE, seed: int = 1, **given: Any) -> MinigoLearner:
    return build(Bench(fit_params("minigo", **{"batch": 16, **given}), CPU, seed, rank))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from more, and lose much where other programs have the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Size:
    monkeypatch.setitem(SIZES, "tiny", SMALL)
    return SMALL


def knows(value: float) -> Predict:
    """A network that likes all moves alike and always expects this value."""

    def predict(positions: Positions) -> tuple[Tensor, Tensor]:
        return torch.zeros(positions.legal.shape), torch.full((len(positions),), value)

    return predict


# The network


def test_the_full_network_has_the_parameters_of_the_reference() -> None:
    convolution, norm = 32 * 32 * 9, 2 * 32
    trunk = 17 * 32 * 9 + norm + 9 * 2 * (convolution + norm)
    moves = 32 * 2 + (2 * 81 * 82 + 82)
    value = 32 + (81 * 64 + 64) + (64 + 1)
    assert sum(p.numel() for p in GoNet(SIZES["full"]).parameters()) == trunk + moves + value == 190_775
    assert sum(p.numel() for p in GoNet(SIZES["tiny"]).parameters()) == 34_135


@pytest.mark.slow
def test_the_full_network_trains_a_batch() -> None:
    one = learner(preset="full")
    go = one.go
    positions = go.play(go.start(4), torch.tensor([0, 40, 80, 81]))
    shares = torch.zeros(4, 82)
    shares[:, 40] = 1
    loss = one.loss(minigo.Examples(positions.boards, positions.to_play, shares, torch.tensor([1.0, -1, 1, -1])))
    loss.backward()
    # A network that knows nothing: as bad as guessing one of 82 moves, and a value of nearly zero.
    assert loss.item() == pytest.approx(math.log(82) + 0.25, abs=1)
    for parameter in one.net.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())
        assert bool(parameter.grad.any())
    decay = {group["weight_decay"]: len(group["params"]) for group in one.optimizer.param_groups}
    # Weights and scales decay; shifts and biases do not.
    assert decay == {1e-4: 1 + 1 + 9 * 4 + 2 + 3, 0: 1 + 9 * 2 + 1 + 2}


def test_the_network_sees_own_and_other_stones_of_the_last_boards_and_the_colour() -> None:
    go = Go(Rules(3, 0.5, 9), 2, CPU)
    positions = go.play(go.play(go.start(1), torch.tensor([0])), torch.tensor([4]))
    black = planes_of(positions.boards, positions.to_play)[0].flatten(1)
    assert black.shape == (5, 9)
    assert [plane.nonzero()[:, 0].tolist() for plane in black] == [[0], [0], [4], [], [*range(9)]]
    positions = go.play(positions, torch.tensor([8]))
    white = planes_of(positions.boards, positions.to_play)[0].flatten(1)
    assert [plane.nonzero()[:, 0].tolist() for plane in white] == [[4], [4], [0, 8], [0], []]


def test_the_learning_rate_falls_after_the_updates_of_the_schedule() -> None:
    one = learner(preset="full", warmup_updates=4)
    rates = [one.rate(update) for update in (0, 3, 24_999, 25_000, 37_500)]
    assert rates == pytest.approx([0.04, 0.16, 0.16, 0.016, 0.0016])


# Games


def test_examples_are_legal_shares_of_moves_and_who_won() -> None:
    size = replace(SMALL, history=1)
    go = Go(size.rules, 1, CPU)
    examples = self_play(go, knows(0.0), size, 5, 6, torch.Generator().manual_seed(1))
    assert bool(((examples.shares > 0)[:, :-1] & (examples.boards[:, 0] != 0)).sum() == 0)
    assert examples.shares.float().sum(1).tolist() == pytest.approx([1.0] * len(examples), abs=1e-2)
    # All of the first moves, then all of the second ones: a winner is one for a whole game.
    assert examples.to_play[:10].tolist() == [BLACK] * 5 + [WHITE] * 5
    assert torch.equal(examples.outcomes[:5], -examples.outcomes[5:10])
    assert set(examples.outcomes.tolist()) <= {-1, 1}


def test_games_follow_from_the_seed_of_the_generator() -> None:
    go = Go(SMALL.rules, SMALL.history, CPU)
    games = [self_play(go, knows(0.0), SMALL, 5, 4, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)]
    assert torch.equal(games[0].boards, games[1].boards)
    assert torch.equal(games[0].shares, games[1].shares)
    assert games[0].boards.shape != games[2].boards.shape or not torch.equal(games[0].boards, games[2].boards)


def test_a_player_without_hope_resigns_except_where_games_are_played_to_the_end() -> None:
    go = Go(SMALL.rules, SMALL.history, CPU)

    def hopeless(positions: Positions) -> tuple[Tensor, Tensor]:
        """Black always loses."""
        return torch.zeros(positions.legal.shape), -1.0 * positions.to_play

    def games(share_played_out: float) -> minigo.Examples:
        size = replace(SMALL, resign=-0.99, never_resigned=share_played_out)
        return self_play(go, hopeless, size, 40, 1, torch.Generator().manual_seed(1))

    resigned, some, played_out = games(0.0), games(0.5), games(1.0)
    assert (len(resigned), set(resigned.outcomes.tolist())) == (40, {-1})
    assert len(resigned) < len(some) < len(played_out)


def canonical(board: Tensor, share: Tensor, orders: Tensor) -> Any:
    return min((board[:, one[:-1]].tolist(), [round(x, 3) for x in share[one].tolist()]) for one in orders)


def test_an_epoch_has_each_position_as_often_as_the_size_says_turned_or_mirrored(small: Size) -> None:
    one = learner()
    one._play()
    orders = symmetries(3)
    (window,) = one.window

    def counted(boards: Tensor, shares: Tensor) -> Counter[str]:
        return Counter(str(canonical(*pair, orders)) for pair in zip(boards, shares.float(), strict=True))

    own = counted(window.boards, window.shares)
    batches = [batch for batch, _ in one.batches(0)]
    seen = counted(torch.cat([one.boards for one in batches]), torch.cat([one.shares for one in batches]))
    assert set(seen) <= set(own)
    assert all(seen[key] <= 2 * own[key] for key in seen)
    assert seen.total() == 16 * (round(1.5 * len(window)) // 16)
    turned = torch.cat([batch.boards for batch in batches])
    assert not torch.equal(turned[: len(window)].sort(0).values, window.boards.sort(0).values)


def test_ranks_share_the_games_and_the_batches_of_a_generation(small: Size) -> None:
    ranks = [learner(Rank(number, 2, number, 2)) for number in range(2)]
    for one in ranks:
        one._play()
    first, second = (one.window[0] for one in ranks)
    assert first.to_play[:8].tolist() == [BLACK] * 4 + [WHITE] * 4
    assert first.boards.shape != second.boards.shape or not torch.equal(first.boards, second.boards)
    ranks[1].window = ranks[0].window
    counts = [[count for _, count in one.batches(0)] for one in ranks]
    assert counts[0] == counts[1]
    assert sum(counts[0]) <= round(1.5 * len(first)) / 2


def test_more_ranks_than_games_are_refused(small: Size) -> None:
    with fails_as("bad_parameter", "6", "--ranks"):
        learner(Rank(0, 7, 0, 7))


def test_the_window_keeps_the_newest_generations(small: Size) -> None:
    one, windows = learner(), []
    for number in range(3):
        one.train_epoch(number)
        windows.append(one.window)
    assert [len(window) for window in windows] == [1, 2, 2]
    assert windows[2][0] is windows[1][1]


@pytest.mark.parametrize(("gate", "passes"), [(0.0, True), (1.1, False)])
def test_a_network_plays_the_next_generation_only_if_it_passes_the_gate(
    gate: float, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "tiny", replace(SMALL, gate_games=4, gate=gate))
    one = learner()
    before = [p.clone() for p in one.best.parameters()]
    one.train_epoch(0)
    plays = list(one.best.parameters())
    assert all(torch.equal(*pair) for pair in zip(plays, one.net.parameters(), strict=True)) == passes
    assert all(torch.equal(*pair) for pair in zip(plays, before, strict=True)) != passes


def test_data_in_files_are_refused(tmp_path: Path) -> None:
    with fails_as("bad_parameter", "--data"):
        fit_params("minigo", data=str(tmp_path))


# Gone on from a checkpoint, and several ranks


@pytest.mark.slow
def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_network_and_quality(small: Size) -> None:
    """The window and the network that plays are in it: the third generation is the same."""

    def generation(one: MinigoLearner, number: int) -> float:
        torch.manual_seed(number)
        one.train_epoch(number)
        return one.evaluate()["win rate"]

    whole = learner()
    for number in range(2):
        generation(whole, number)
    file = io.BytesIO()
    torch.save(whole.state(), file)
    file.seek(0)
    resumed = learner()
    resumed.load(torch.load(file, weights_only=True))
    assert generation(resumed, 2) == generation(whole, 2)
    for one, other in zip(whole.net.state_dict().values(), resumed.net.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert [len(one) for one in resumed.window] == [len(one) for one in whole.window]


class Killed(Exception):
    pass


class UntilThird(list[Evaluated]):
    """Ends a run in its third evaluation, as a kill would."""

    def append(self, one: Evaluated) -> None:
        if len(self) == 2:
            raise Killed
        super().append(one)


@pytest.mark.slow
def test_a_run_that_was_killed_has_the_qualities_of_one_that_was_not(small: Size, tmp_path: Path) -> None:
    def course_of(found: Course, **given: Any) -> Course:
        params = fit_params("minigo", batch=16, target="1.1", most_epochs=4, **given)
        with pytest.raises((WorkloadFailure, Killed)):
            trained("minigo", params, course=found)
        return found

    whole = course_of(Course())
    course_of(Course(evaluations=UntilThird()), checkpoint_dir=str(tmp_path))
    assert list(tmp_path.iterdir())
    resumed = course_of(Course(), checkpoint_dir=str(tmp_path))
    assert "resumed_at_s" in resumed.facts
    assert [one.quality for one in resumed.evaluations] == [one.quality for one in whole.evaluations]
    assert [one.samples for one in resumed.evaluations] == [one.samples for one in whole.evaluations]
    assert len(whole.evaluations) == 4


RANK = """
import os, sys
import torch
from stackmark.ranks import own_rank
from stackmark.workloads.fit.impl.learner import Bench
from stackmark.workloads.fit.impl.minigo import SIZES, build
from stackmark.workloads.impl.process_group import joined_as
from test_fit_minigo import CPU, SMALL, fit_params
from dataclasses import replace

torch.set_num_threads(1)
SIZES["tiny"] = replace(SMALL, gate_games=4, gate=0.5)
rank = own_rank(os.environ)
with joined_as(rank, CPU) as group:
    one = build(Bench(fit_params("minigo", batch=16), CPU, 1, rank, group))
    counts = []
    for number in range(2):
        torch.manual_seed(10 * number + rank.number)
        counts.append(one.train_epoch(number))
    state = {"quality": one.evaluate(), "counts": counts, **one.state()}
    torch.save(state, sys.argv[1])
"""


@pytest.mark.slow
def test_two_ranks_have_one_network_one_window_and_one_quality(tmp_path: Path) -> None:
    port = free_port()
    here = os.pathsep.join((str(SOURCE), str(Path(__file__).parent)))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path / str(number))],
            env={
                **environment(), **variables(Rank(number, 2, number, 2), "127.0.0.1", port),
                "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": here,
            },
            stderr=subprocess.PIPE, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    first, second = (torch.load(tmp_path / str(number), weights_only=True) for number in range(2))
    assert first["quality"] == second["quality"]
    assert first["counts"] == second["counts"]
    for name in ("net", "best"):
        for one, other in zip(first[name].values(), second[name].values(), strict=True):
            assert torch.equal(one, other)
    for one, other in zip(itertools.chain(*first["window"]), itertools.chain(*second["window"]), strict=True):
        assert torch.equal(one, other)


# To the target


@pytest.mark.slow
def test_tiny_reaches_its_target_by_the_worker() -> None:
    request = Request(workload="fit/minigo", params={"device": "cpu"})
    finished = work(Task(do="run", request=request), environment())
    stream = Stream()
    for line in finished.lines:
        assert stream.feed(line) is not None, line
    assert isinstance(stream.ended(), Result), finished.stderr
    evaluations = [event for event in stream.events if isinstance(event, Evaluation)]
    assert evaluations[-1].quality["win rate"] >= 0.85
    assert [one.reached for one in evaluations] == [False] * (len(evaluations) - 1) + [True]
    assert 2 <= len(evaluations) <= 12
    lines = [event.line for event in stream.events if isinstance(event, Log)]
    assert [line for line in lines if "submission_division" in line and '"open"' in line]
    assert [line for line in lines if '"virtual_losses", "value": 2' in line]


def test_not_even_the_full_preset_claims_the_closed_division(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its quality is another than that of MLPerf."""
    monkeypatch.setitem(SIZES, "full", SMALL)
    course = trained("minigo", fit_params("minigo", preset="full", batch=16, target="0.01"))
    assert course.told is not None
    (division,) = [line for line in course.lines if "submission_division" in line]
    assert '"open"' in division
