"""The rules of Go for many games at once: boards are rows of tensors, and a move is played in all of them by the same operations.

Captures are removed, suicide is forbidden, and no move may bring back a board of the same game (positional superko). A game ends
with two passes, or after a fixed number of moves, and is scored by area: stones, and empty regions that touch one colour only.

Groups are kept as labels, the number of one of their points. A move joins labels and removes some, so that no group is ever
searched for. A board's hash is the sum of one number for each stone: what a capture would leave is known without playing it.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

BLACK, WHITE = 1, -1
HASH_SEED = 20190710
# So small that the sum over a board does not overflow.
HASH_BITS = 55


@dataclass(frozen=True)
class Rules:
    size: int
    # Points that White gets for playing second.
    komi: float
    # Moves after which a game is scored as it stands.
    longest: int


@dataclass
class Positions:
    """Positions of many games, a row each. A point is numbered by line; the number after the last one is the pass."""

    # The newest boards, the present one first: 1 is black, -1 white.
    boards: Tensor
    to_play: Tensor
    # The label of each stone's group; of an empty point the number of points.
    labels: Tensor
    # Of each label.
    liberties: Tensor
    legal: Tensor
    # Passes since the last stone, and moves since the start.
    passes: Tensor
    moves: Tensor
    # Hashes of all boards of the game; that of the empty board is zero.
    seen: Tensor

    def __len__(self) -> int:
        return len(self.to_play)

    @property
    def stones(self) -> Tensor:
        return self.boards[:, 0]

    def take(self, rows: Tensor) -> "Positions":
        return Positions(*(getattr(self, field.name)[rows] for field in fields(self)))

    def put(self, rows: Tensor, those: "Positions") -> None:
        for field in fields(self):
            getattr(self, field.name)[rows] = getattr(those, field.name)


class Go:
    """The rules with their tables on a device. `history` is how many boards a position keeps for the network."""

    def __init__(self, rules: Rules, history: int, device: torch.device) -> None:
        self.rules, self.history, self.device = rules, history, device
        size, points = rules.size, rules.size**2
        self.points, self.moves = points, points + 1
        self._near = _table(size, ((-1, 0), (1, 0), (0, -1), (0, 1))).to(device)
        self._corners = _table(size, ((-1, -1), (-1, 1), (1, -1), (1, 1))).to(device)
        self._numbers = torch.arange(points, device=device)
        generator = torch.Generator().manual_seed(HASH_SEED)
        hashes = torch.randint(1 << HASH_BITS, (2, points), generator=generator)
        self._black, self._white = hashes.to(device)
        self._at_edge = (self._near == points).any(1)

    def start(self, count: int) -> Positions:
        """Return empty boards with Black to play."""

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros((count, *shape), dtype=dtype, device=self.device)

        return Positions(
            boards=zeros(self.history, self.points, dtype=torch.int8),
            to_play=zeros(dtype=torch.int8) + BLACK,
            labels=zeros(self.points, dtype=torch.int16) + self.points,
            liberties=zeros(self.moves, dtype=torch.int8),
            legal=~zeros(self.moves, dtype=torch.bool),
            passes=zeros(dtype=torch.int8),
            moves=zeros(dtype=torch.int16),
            seen=zeros(self.rules.longest + 1, dtype=torch.long),
        )

    def play(self, before: Positions, moves: Tensor) -> Positions:
        """Play one legal move in each game."""
        points, colour = self.points, before.to_play[:, None]
        placed = (moves < points)[:, None]
        at = moves.clamp(max=points - 1)[:, None]
        stones, labels = before.stones, before.labels.long()
        near = self._near[at[:, 0]]
        near_stones = _padded(stones, 0).gather(1, near)
        near_labels = _padded(labels, points).gather(1, near)
        in_atari = before.liberties.gather(1, near_labels) == 1
        captured = (near_stones == -colour) & in_atari & placed
        joined = (near_stones == colour) & placed
        dead = _with_labels(labels, near_labels, captured)
        point = (self._numbers == at) & placed
        own = _with_labels(labels, near_labels, joined) | point
        stones = torch.where(point, colour, stones.masked_fill(dead, 0))
        labels = torch.where(own, at, labels.masked_fill(dead, points))
        made = before.moves + 1
        values = torch.where(stones == BLACK, self._black, torch.where(stones == WHITE, self._white, 0))
        hashes = values.sum(1)
        seen = before.seen.scatter(1, made[:, None].long(), hashes[:, None])
        to_play = -before.to_play
        liberties, legal = self._analysed(stones, labels, to_play, values, hashes, seen)
        return Positions(
            boards=torch.cat((stones[:, None], before.boards[:, :-1]), 1),
            to_play=to_play,
            labels=labels.to(torch.int16),
            liberties=liberties,
            legal=legal,
            passes=torch.where(placed[:, 0], 0, before.passes + 1).to(torch.int8),
            moves=made,
            seen=seen,
        )

    def _analysed(
        self, stones: Tensor, labels: Tensor, to_play: Tensor, values: Tensor, hashes: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the liberties of each label, and the legal moves."""
        count, points = stones.shape
        flat = self._near.flatten()
        near_labels = _padded(labels, points)[:, flat].view(count, points, 4)
        near_stones = _padded(stones, 2)[:, flat].view(count, points, 4)
        # A group that touches a point on two sides counts once.
        first = torch.ones_like(near_labels, dtype=torch.bool)
        for side in range(1, 4):
            first[:, :, side] = (near_labels[:, :, :side] != near_labels[:, :, side, None]).all(2)
        empty = stones == 0
        counted = (first & empty[:, :, None]).to(torch.int32).flatten(1)
        index = near_labels.flatten(1)
        liberties = torch.zeros((count, self.moves), dtype=torch.int32, device=self.device).scatter_add(
            1, index, counted
        )
        near_liberties = liberties.gather(1, index).view(count, points, 4)
        own, other = (near_stones == sign * to_play[:, None, None] for sign in (1, -1))
        captures = other & (near_liberties == 1)
        lives = ((near_stones == 0) | captures | (own & (near_liberties > 1))).any(2)
        # What the board would be: a stone more, and less the groups whose last liberty this is.
        of_labels = torch.zeros((count, self.moves), dtype=torch.long, device=self.device).scatter_add(
            1, labels, values
        )
        lost = (of_labels.gather(1, index).view(count, points, 4) * (captures & first)).sum(2)
        stone = torch.where(to_play[:, None] == BLACK, self._black, self._white)
        after = hashes[:, None] + stone - lost
        repeated = (after[:, :, None] == seen[:, None]).any(2)
        legal = _padded(empty & lives & ~repeated, True)
        return liberties.to(torch.int8), legal

    def over(self, positions: Positions) -> Tensor:
        return (positions.passes >= 2) | (positions.moves >= self.rules.longest)

    def sensible(self, positions: Positions) -> Tensor:
        """Return the legal moves that fill no eye of one's own; a pass is one where there is no other."""
        colour, points = positions.to_play[:, None, None], self.points
        count = len(positions)
        near = _padded(positions.stones, 2)[:, self._near.flatten()].view(count, points, 4)
        corners = _padded(positions.stones, 2)[:, self._corners.flatten()].view(count, points, 4)
        enclosed = ((near == colour) | (near == 2)).all(2)
        # An eye is false where the opponent has two corners of it, at the edge of the board one.
        eyes = enclosed & ((corners == -colour).sum(2) < torch.where(self._at_edge, 1, 2))
        moves = positions.legal[:, :points] & ~eyes
        return torch.cat((moves, ~moves.any(1, keepdim=True)), 1)

    def winners(self, positions: Positions) -> Tensor:
        """Return 1 where Black has the larger area with komi, else -1."""
        return torch.where(self.areas(positions.stones) > self.rules.komi, BLACK, WHITE)

    def areas(self, stones: Tensor) -> Tensor:
        """Return how many points more Black has than White, without komi."""
        empty = stones == 0
        reached = []
        for colour in (BLACK, WHITE):
            reach = stones == colour
            while True:
                near = _padded(reach, False)[:, self._near.flatten()].view(*reach.shape, 4)
                wider = reach | (empty & near.any(2))
                if torch.equal(wider, reach):
                    break
                reach = wider
            reached.append(reach)
        black, white = reached
        return (black & ~white).sum(1) - (white & ~black).sum(1)


def _table(size: int, steps: tuple[tuple[int, int], ...]) -> Tensor:
    """Return the four points at these steps from each point; outside the board the number of points."""
    return torch.tensor(
        [
            [
                (line + down) * size + column + right
                if 0 <= line + down < size and 0 <= column + right < size
                else size**2
                for down, right in steps
            ]
            for line in range(size)
            for column in range(size)
        ]
    )


def _padded(rows: Tensor, value: int | bool) -> Tensor:
    """Add a column, for what is outside the board."""
    return torch.nn.functional.pad(rows, (0, 1), value=value)


def _with_labels(labels: Tensor, those: Tensor, chosen: Tensor) -> Tensor:
    """Return the stones that have one of the chosen labels."""
    return (labels[:, :, None] == torch.where(chosen, those, -1)[:, None]).any(2)


def symmetries(size: int) -> Tensor:
    """Return the eight orders of the moves by which a board is turned and mirrored; the pass stays."""
    board = torch.arange(size**2).view(size, size)
    turned = [board.rot90(turns) for turns in range(4)]
    orders = torch.stack([one.flatten() for board in turned for one in (board, board.flip(1))])
    return torch.nn.functional.pad(orders, (0, 1), value=size**2)
