"""Tree search for Go (PUCT) in many games at once: the nodes of all trees are rows of tensors.

A search descends in every game by the same operations until each has a leaf, and one call of the network evaluates all leaves, so
the number of operations of a readout does not depend on how many games there are. With several leaves for a call, a descent
counts as lost until its leaf is evaluated (virtual loss), so that the next one goes elsewhere.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stackmark.workloads.fit.impl.go import Go, Positions

# Returns logits of the moves and the value for the player to move, between -1 and 1.
Predict = Callable[[Positions], tuple[Tensor, Tensor]]
# The reference's 2 × 1.25; that it grows with the logarithm of the visits is 1 % at 240 readouts.
EXPLORATION = 2.5
# Of the noise at the root: its share, and how concentrated it is, for a board of 19 × 19 points.
NOISE_SHARE, NOISE_CONCENTRATION, NOISE_POINTS = 0.25, 0.03, 361


@dataclass(frozen=True)
class Effort:
    readouts: int
    # Leaves that the network sees in one call, of each game.
    leaves: int
    # Whether eyes of one's own and passes before the end are left out.
    only_sensible: bool
    # How much the priors count: with few readouts less, or all moves would be tried alike.
    exploration: float = EXPLORATION


@dataclass
class Descents:
    """One way from the root to a leaf in each game: nodes and moves by depth, and which games were that deep.

    `made` tells which leaves are new nodes; `move` led there from `parent`.
    """

    nodes: list[Tensor]
    moves: list[Tensor]
    on_way: list[Tensor]
    leaf: Tensor
    made: Tensor
    parent: Tensor
    move: Tensor


class Search:
    def __init__(self, go: Go, predict: Predict, roots: Positions, effort: Effort) -> None:
        self._go, self._predict, self._effort = go, predict, effort
        self._games, each = len(roots), effort.readouts + 1
        device, nodes = go.device, len(roots) * each
        self._roots = torch.arange(self._games, device=device) * each
        self._nodes = go.start(nodes)
        self._child = torch.full((nodes, go.moves), -1, device=device)
        self._allowed = torch.zeros((nodes, go.moves), dtype=torch.bool, device=device)
        self._prior, self._visits, self._total = (torch.zeros((nodes, go.moves), device=device) for _ in range(3))
        self._value = torch.zeros(nodes, device=device)
        self._over = torch.zeros(nodes, dtype=torch.bool, device=device)
        self._evaluated = torch.zeros(nodes, dtype=torch.bool, device=device)
        self._nodes.put(self._roots, roots)
        self._evaluate(self._roots)

    def add_noise(self, generator: torch.Generator) -> None:
        """Mix noise into the priors of the roots, so that games differ and moves are tried that the network does not know."""
        concentration = NOISE_CONCENTRATION * NOISE_POINTS / self._go.points
        allowed = self._allowed[self._roots]
        drawn = torch._standard_gamma(torch.full(allowed.shape, concentration, device=self._go.device), generator)
        drawn = (drawn + 1e-20) * allowed
        noise = drawn / drawn.sum(1, keepdim=True)
        self._prior[self._roots] = (1 - NOISE_SHARE) * self._prior[self._roots] + NOISE_SHARE * noise

    def run(self) -> tuple[Tensor, Tensor]:
        """Return how often each move was tried in each game, and the value of the roots for their players."""
        done = 0
        while done < self._effort.readouts:
            count = min(self._effort.leaves, self._effort.readouts - done)
            descents = [self._descend(done + number + 1) for number in range(count)]
            self._make_nodes(descents)
            self._evaluate(torch.cat([one.leaf for one in descents]))
            for one in descents:
                self._back_up(one)
            done += count
        visits = self._visits[self._roots]
        return visits, self._total[self._roots].sum(1) / visits.sum(1)

    def _descend(self, number: int) -> Descents:
        """Find a leaf in each game; one that is new becomes the node with this number."""
        node, new = self._roots, self._roots + number
        going = torch.ones(self._games, dtype=torch.bool, device=self._go.device)
        way = Descents([], [], [], node, ~going, node, node)
        while True:
            move = self._scores(node).argmax(1)
            # Counted as a visit and a loss until its leaf is evaluated.
            self._visits[node, move] += going
            self._total[node, move] -= going.float()
            way.nodes.append(node)
            way.moves.append(move)
            way.on_way.append(going)
            child = self._child[node, move]
            made = going & (child < 0)
            child = torch.where(made, new, child)
            self._child[node, move] = child
            way.made = way.made | made
            way.parent, way.move = torch.where(made, node, way.parent), torch.where(made, move, way.move)
            node = torch.where(going, child, node)
            going = going & ~made & self._evaluated[node] & ~self._over[node]
            if not bool(going.any()):
                way.leaf = node
                return way

    def _make_nodes(self, descents: list[Descents]) -> None:
        """Play the moves that led to new nodes."""
        made = torch.cat([one.made for one in descents])
        parents, moves, leaves = (
            torch.cat(parts)[made]
            for parts in zip(*((one.parent, one.move, one.leaf) for one in descents), strict=True)
        )
        self._nodes.put(leaves, self._go.play(self._nodes.take(parents), moves))

    def _scores(self, node: Tensor) -> Tensor:
        """Return value and curiosity of each move; of one that was not tried the value is that of the node itself."""
        visits = self._visits[node]
        tried = torch.where(visits > 0, self._total[node] / visits.clamp(min=1), self._value[node][:, None])
        curiosity = self._prior[node] * visits.sum(1, keepdim=True).clamp(min=1).sqrt() / (1 + visits)
        return (tried + self._effort.exploration * curiosity).masked_fill(~self._allowed[node], -torch.inf)

    def _evaluate(self, nodes: Tensor) -> None:
        """Ask the network about nodes, or the rules where the game is over."""
        positions, go = self._nodes.take(nodes), self._go
        logits, values = self._predict(positions)
        allowed = go.sensible(positions) if self._effort.only_sensible else positions.legal
        over = go.over(positions)
        if bool(over.any()):
            outcome = (go.winners(positions) * positions.to_play).float()
            values = torch.where(over, outcome, values)
        self._allowed[nodes], self._over[nodes], self._evaluated[nodes] = allowed, over, True
        self._prior[nodes] = logits.masked_fill(~allowed, -torch.inf).softmax(1)
        self._value[nodes] = values

    def _back_up(self, way: Descents) -> None:
        """Add a leaf's value to all moves that led to it, for the player of each; take back the loss that stood for it."""
        value = self._value[way.leaf] * self._nodes.to_play[way.leaf]
        for node, move, on_way in zip(way.nodes, way.moves, way.on_way, strict=True):
            self._total[node, move] += on_way * (1 + value * self._nodes.to_play[node])
