"""Matches between two players of Go: many games at once, half of them with either player as Black."""

from collections.abc import Callable

import torch
from torch import Tensor

from stackmark.workloads.fit.impl.go import BLACK, Go, Positions

# Chooses a move in each game, from its position and the moves that were played in it.
Player = Callable[[Positions, Tensor], Tensor]


def match(go: Go, player: Player, opponent: Player, black: Tensor) -> int:
    """Return how many games the player wins. `black` tells for each game whether the player is Black."""
    positions, played = go.start(len(black)), torch.zeros((len(black), 0), dtype=torch.long, device=go.device)
    black, wins = black.to(go.device), 0
    while len(positions):
        # All games have played as many moves, so the same colour is to play in all of them.
        to_play = int(positions.to_play[0])
        own = black == (to_play == BLACK)
        moves = torch.zeros(len(positions), dtype=torch.long, device=go.device)
        for mover, rows in ((player, own.nonzero()[:, 0]), (opponent, (~own).nonzero()[:, 0])):
            if len(rows):
                moves[rows] = mover(positions.take(rows), played[rows])
        positions, played = go.play(positions, moves), torch.cat((played, moves[:, None]), 1)
        over = go.over(positions)
        winners = go.winners(positions.take(over))
        wins += int(((winners == BLACK) == black[over]).sum())
        positions, played, black = positions.take(~over), played[~over], black[~over]
    return wins
