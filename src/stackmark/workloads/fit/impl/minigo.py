"""`fit/minigo`: Go learned by self-play alone, until a win rate is reached (MLPerf: MiniGo, 9 × 9).

An epoch is a generation: the network plays games against itself, each move found by a tree search, and is then trained on the
newest generations to foresee the search's moves and the games' winners. `full` has the network, the search and the schedule of
MLPerf's reference; `tiny` is the same code on a board of 5 × 5 points.

The quality is the share of games that the network's policy alone, without a search, wins against a mover that draws its moves;
with `--source real` the share that the network with its search wins against GNU Go. The reference's is the win rate against a
given network, which is not available: no run of this task is an MLPerf result.
"""

import contextlib
import copy
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.fit.definition import FitParams
from stackmark.workloads.fit.impl.go import BLACK, Go, Positions, Rules, symmetries
from stackmark.workloads.fit.impl.go_gtp import OPTIONS, GtpPlayer, found_program, gtp_program, program_version
from stackmark.workloads.fit.impl.go_match import Player, match
from stackmark.workloads.fit.impl.go_search import Effort, Predict, Search
from stackmark.workloads.fit.impl.hashing import hashed
from stackmark.workloads.fit.impl.learner import Bench, Supervised, fused_option, share_of_rank
from stackmark.workloads.workload import Values, WorkloadFailure

QUALITY = "win rate"
MOMENTUM, DECAY = 0.9, 1e-4
# Games that are played together: more would only need more memory.
TOGETHER = 1024
# Statistics of batches change slowly, as in the reference (PyTorch counts from the other side).
NORM_MOMENTUM = 0.05
# Games of an evaluation against GNU Go, which plays them one after the other, and the least readouts of the network's moves. The
# first moves of a game are drawn: neither side draws much else, and forty times the same game would say little.
PROGRAM_GAMES, PROGRAM_READOUTS, PROGRAM_DRAWN_MOVES = 40, 64, 2
# What a generator draws: games, batches, games of the gate, games of the evaluation.
PLAY, BATCHES, GATE, EVALUATION = range(4)


@dataclass(frozen=True)
class Size:
    rules: Rules
    # Of the network: boards that it sees, residual blocks, their width, and the width before the value.
    history: int
    blocks: int
    width: int
    value_width: int
    # Games of a generation and the search's effort; of the first generation, whose network knows nothing.
    games: int
    effort: Effort
    first_games: int
    first_readouts: int
    # Moves that are drawn by their visits; later ones are the most visited.
    drawn_moves: int
    # A player resigns below this value, except in a share of the games.
    resign: float
    never_resigned: float
    # Generations that are trained, and how often each of their positions is in an epoch.
    window: int
    passes: float
    # Of the value's error in the loss.
    value_share: float
    # Updates after which the learning rate is divided by ten.
    boundaries: tuple[int, ...]
    # Games against the best network so far, and the share that a new one must win to play the next generation; none: always.
    gate_games: int
    gate: float
    # Games of an evaluation.
    evaluated: int


SIZES = {
    "tiny": Size(
        Rules(5, 6.5, 40), history=1, blocks=3, width=24, value_width=24,
        games=48, effort=Effort(16, 2, only_sensible=True, exploration=1.25), first_games=96, first_readouts=4, drawn_moves=8,
        resign=-1.0, never_resigned=1.0, window=4, passes=2.0, value_share=1.0, boundaries=(),
        gate_games=0, gate=0.0, evaluated=200,
    ),
    "full": Size(
        Rules(9, 7.5, 113), history=8, blocks=9, width=32, value_width=64,
        games=4096, effort=Effort(240, 8, only_sensible=False), first_games=8192, first_readouts=20, drawn_moves=6,
        resign=-0.99, never_resigned=0.1, window=10, passes=0.5, value_share=0.25, boundaries=(25_000, 37_500),
        gate_games=100, gate=0.49, evaluated=200,
    ),
}  # fmt: skip


def data_sha256(params: FitParams) -> str:
    """Return the hash of what a run is about, since it makes its data itself: the rules and the opponent."""
    if params.data:
        raise WorkloadFailure(
            "bad_parameter", "fit/minigo reads no data: it learns from games against itself", "leave out --data"
        )
    size = SIZES[params.preset]
    opponent = f"GNU Go {program_version()} {' '.join(OPTIONS)}" if params.source == "real" else "random mover"
    said = {"rules": asdict(size.rules), "evaluated": _evaluated(params), "opponent": opponent}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _evaluated(params: FitParams) -> int:
    return PROGRAM_GAMES if params.source == "real" else SIZES[params.preset].evaluated


# --- the network --------------------------------------------------------------------------------------------------------


def _norm(width: int, *, affine: bool = True) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, momentum=NORM_MOMENTUM, affine=affine)


def _conv(inputs: int, outputs: int, kernel: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.first_norm = _conv(width, width), _norm(width)
        self.second, self.second_norm = _conv(width, width), _norm(width)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(x + self.second_norm(self.second(inner)))


class GoNet(nn.Module):
    """Residual blocks with two heads, for the moves and for the value."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        points = size.rules.size**2
        self.trunk = nn.Sequential(
            _conv(2 * size.history + 1, size.width),
            _norm(size.width),
            nn.ReLU(),
            *(Block(size.width) for _ in range(size.blocks)),
        )
        self.moves = nn.Sequential(
            _conv(size.width, 2, 1), _norm(2, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(2 * points, points + 1)
        )
        self.value = nn.Sequential(
            _conv(size.width, 1, 1),
            _norm(1, affine=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(points, size.value_width),
            nn.ReLU(),
            nn.Linear(size.value_width, 1),
            nn.Tanh(),
        )

    def forward(self, planes: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of the moves, and the value for the player to move."""
        x = self.trunk(planes)
        return self.moves(x), self.value(x)[:, 0]


def planes_of(boards: Tensor, to_play: Tensor) -> Tensor:
    """Return what the network sees: for each board own and other stones, and a plane that is 1 for Black."""
    count, history, points = boards.shape
    size = round(points**0.5)
    own = boards * to_play[:, None, None]
    colour = (to_play == BLACK)[:, None, None].expand(count, 1, points)
    return torch.cat((own == 1, own == -1, colour), 1).float().view(count, 2 * history + 1, size, size)


# --- players ------------------------------------------------------------------------------------------------------------


def random_player(go: Go, generator: torch.Generator) -> Player:
    def moves(positions: Positions, _played: Tensor) -> Tensor:
        drawn = torch.rand((len(positions), go.moves), generator=generator, device=go.device)
        return (drawn * go.sensible(positions)).argmax(1)

    return moves


def policy_player(go: Go, predict: Predict) -> Player:
    """The network's first choice, without a search."""

    def moves(positions: Positions, _played: Tensor) -> Tensor:
        logits, _ = predict(positions)
        return logits.masked_fill(~go.sensible(positions), -torch.inf).argmax(1)

    return moves


def search_player(go: Go, predict: Predict, effort: Effort, drawn: int, generator: torch.Generator) -> Player:
    """The network with its search, which draws the first moves of a game."""

    def moves(positions: Positions, _played: Tensor) -> Tensor:
        visits, _ = Search(go, predict, positions, effort).run()
        return _chosen(visits, positions.moves < drawn, generator)

    return moves


def _chosen(visits: Tensor, drawn: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a move by its visits, or take the most visited one."""
    return torch.where(drawn, torch.multinomial(visits, 1, generator=generator)[:, 0], visits.argmax(1))


# --- self-play ----------------------------------------------------------------------------------------------------------


@dataclass
class Examples:
    """Positions with the search's share of each move, and 1 where the player to move won, else -1."""

    boards: Tensor
    to_play: Tensor
    shares: Tensor
    outcomes: Tensor

    def __len__(self) -> int:
        return len(self.to_play)

    @property
    def tensors(self) -> list[Tensor]:
        return [self.boards, self.to_play, self.shares, self.outcomes]


def joined(those: list[Examples]) -> Examples:
    return Examples(*(torch.cat(parts) for parts in zip(*(one.tensors for one in those), strict=True)))


def self_play(go: Go, predict: Predict, size: Size, count: int, readouts: int, generator: torch.Generator) -> Examples:
    """Let the network play games against itself; the examples come in the order of moves."""
    effort = replace(size.effort, readouts=readouts)
    positions, game = go.start(count), torch.arange(count, device=go.device)
    winners = torch.zeros(count, dtype=torch.int8, device=go.device)
    resigns = torch.rand(count, generator=generator, device=go.device) >= size.never_resigned
    played: list[tuple[Tensor, Examples]] = []
    while len(game):
        search = Search(go, predict, positions, effort)
        search.add_noise(generator)
        visits, value = search.run()
        shares = (visits / visits.sum(1, keepdim=True)).half()
        played.append((game, Examples(positions.boards, positions.to_play, shares, positions.to_play)))
        resigned = resigns[game] & (value < size.resign)
        winners[game] = torch.where(resigned, -positions.to_play, 0).to(torch.int8)
        positions = go.play(positions, _chosen(visits, positions.moves < size.drawn_moves, generator))
        over = go.over(positions) & ~resigned
        winners[game[over]] = go.winners(positions.take(over)).to(torch.int8)
        going = ~(over | resigned)
        positions, game = positions.take(going), game[going]
    for of, examples in played:
        examples.outcomes = winners[of] * examples.to_play
    return joined([examples for _, examples in played])


# --- the task -----------------------------------------------------------------------------------------------------------


class MinigoLearner(Supervised[Examples]):
    def __init__(self, bench: Bench) -> None:
        params, size = bench.params, SIZES[bench.params.preset]
        if bench.rank.size > size.games:
            raise WorkloadFailure(
                "bad_parameter",
                f"{bench.rank.size} ranks cannot share the {size.games} games of a generation",
                f"use at most --ranks {size.games}",
            )
        torch.manual_seed(bench.seed)
        net = GoNet(size).to(bench.device)
        # Neither biases nor the shifts of normalisation decay, as in the reference.
        kept = [p for name, p in net.named_parameters() if name.endswith("bias")]
        decayed = [p for name, p in net.named_parameters() if not name.endswith("bias")]
        groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": DECAY}, {"params": kept}]
        optimizer = torch.optim.SGD(groups, params.learning_rate, momentum=MOMENTUM, **fused_option(params))
        # The data are made while it trains, so there is no number of samples before.
        super().__init__(bench, net, optimizer, self._learning_rate, samples=0, data_sha256=data_sha256(params))
        self.size, self.go = size, Go(size.rules, size.history, bench.device)
        self.generation = 0
        self.window: list[Examples] = []
        # Plays the games: the newest network, or where there is a gate the newest one that passed it.
        self.best: nn.Module = copy.deepcopy(net) if size.gate_games else net
        self._symmetries = symmetries(size.rules.size).to(bench.device)
        self.logged = {
            "opt_name": "sgd",
            "opt_base_learning_rate": [params.learning_rate],
            "opt_learning_rate_decay_boundary_steps": list(size.boundaries),
            "opt_weight_decay": DECAY,
            "virtual_losses": size.effort.leaves,
            "eval_samples": _evaluated(params),
        }

    def _learning_rate(self, update: int) -> float:
        params = self.bench.params
        warm = min(1.0, (update + 1) / max(1, params.warmup_updates))
        return params.learning_rate * warm * 0.1 ** sum(update >= one for one in self.size.boundaries)

    def _generator(self, purpose: int, *, of_rank: bool = True) -> torch.Generator:
        """Return what draws in this generation: the same in a run that goes on from a checkpoint."""
        number = self.bench.rank.number if of_rank else 0
        generator = torch.Generator(self.bench.device)
        generator.manual_seed(int(hashed(self.bench.seed, self.generation, purpose, number)))
        return generator

    # A generation

    def train_epoch(self, number: int) -> int:
        self.generation = number
        self._play()
        trained = super().train_epoch(number)
        self._pass_gate()
        return trained

    def _play(self) -> None:
        size, rank = self.size, self.bench.rank
        first = self.generation == 0
        left = len(share_of_rank(size.first_games if first else size.games, rank))
        readouts = size.first_readouts if first else size.effort.readouts
        generator, played = self._generator(PLAY), []
        with self._playing(self.best) as predict:
            while left > 0:
                count = min(left, TOGETHER)
                played.append(self_play(self.go, predict, size, count, readouts, generator))
                left -= count
        mine = joined(played)
        everyones = Examples(*(self.bench.concatenated(one) for one in mine.tensors))
        self.window = [*self.window, everyones][-size.window :]

    @contextlib.contextmanager
    def _playing(self, net: nn.Module) -> Iterator[Predict]:
        """Let a network play, as it is used and not as it is trained."""

        def predict(positions: Positions) -> tuple[Tensor, Tensor]:
            # Only here: games and searches are exact.
            with self.bench.autocast():
                logits, values = net(planes_of(positions.boards, positions.to_play))
            return logits.float(), values.float()

        net.eval()
        with torch.inference_mode():
            yield predict
        net.train()

    def batches(self, epoch: int) -> Iterator[tuple[Examples, int]]:
        """Yield this rank's batches of the window, in one order that all ranks draw alike, each position turned or mirrored."""
        rank, batch = self.bench.rank, self.bench.params.batch
        examples = joined(self.window)
        generator, device = self._generator(BATCHES, of_rank=False), self.bench.device
        count, left = len(examples), round(len(examples) * self.size.passes)
        orders = []
        while left > 0:
            orders.append(torch.randperm(count, generator=generator, device=device)[:left])
            left -= len(orders[-1])
        order = torch.cat(orders)
        turns = torch.randint(len(self._symmetries), order.shape, generator=generator, device=device)
        each = len(order) // rank.size
        # All ranks make as many updates; what does not fill a batch is left out, unless there is nothing else.
        each = each - each % batch if each >= batch else each
        mine = slice(rank.number * each, (rank.number + 1) * each)
        for rows, turn in zip(order[mine].split(batch), turns[mine].split(batch), strict=True):
            moves = self._symmetries[turn]
            boards, points = examples.boards[rows], moves[:, None, :-1]
            yield (
                Examples(
                    boards.gather(2, points.expand_as(boards)),
                    examples.to_play[rows],
                    examples.shares[rows].float().gather(1, moves),
                    examples.outcomes[rows].float(),
                ),
                len(rows),
            )

    def loss(self, batch: Examples) -> Tensor:
        logits, values = self.strategy.net(planes_of(batch.boards, batch.to_play))
        of_moves: Tensor = -(batch.shares * logits.float().log_softmax(1)).sum(1).mean()
        of_value: Tensor = F.mse_loss(values.float(), batch.outcomes)
        return of_moves + self.size.value_share * of_value

    def _pass_gate(self) -> None:
        """Let the network play the next generation, if it wins enough games against the one that played this generation."""
        size = self.size
        if not size.gate_games:
            return
        generator = self._generator(GATE)
        black = self._as_black(size.gate_games)
        with self._playing(self.net) as new, self._playing(self.best) as best:
            one, other = (search_player(self.go, net, size.effort, size.drawn_moves, generator) for net in (new, best))
            wins = match(self.go, one, other, black)
        if sum(self.bench.gathered([wins])) >= size.gate * size.gate_games:
            self.best.load_state_dict(self.net.state_dict())

    def _as_black(self, games: int) -> Tensor:
        """Return for this rank's share of games whether the evaluated player is Black: in the first half of all."""
        return torch.tensor([2 * number < games for number in share_of_rank(games, self.bench.rank)], dtype=torch.bool)

    def evaluate(self) -> Values:
        games, generator = _evaluated(self.bench.params), self._generator(EVALUATION)
        with self._playing(self.net) as predict, self._opponent(generator) as opponent:
            if self.bench.params.source == "real":
                effort = replace(self.size.effort, readouts=max(PROGRAM_READOUTS, self.size.effort.readouts))
                player = search_player(self.go, predict, effort, PROGRAM_DRAWN_MOVES, generator)
            else:
                player = policy_player(self.go, predict)
            wins = match(self.go, player, opponent, self._as_black(games))
        return {QUALITY: sum(self.bench.gathered([wins])) / games}

    @contextlib.contextmanager
    def _opponent(self, generator: torch.Generator) -> Iterator[Player]:
        if self.bench.params.source != "real":
            yield random_player(self.go, generator)
            return
        with gtp_program([found_program(), *OPTIONS, "--seed", str(generator.initial_seed() % (1 << 31))]) as program:
            yield GtpPlayer(self.go, program)

    # A checkpoint

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "generation": self.generation,
            "best": self.best.state_dict(),
            "window": [one.tensors for one in self.window],
        }

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.generation = int(state["generation"])
        self.best.load_state_dict(state["best"])
        self.window = [Examples(*tensors) for tensors in state["window"]]


def build(bench: Bench) -> MinigoLearner:
    return MinigoLearner(bench)
