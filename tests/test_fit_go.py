"""Go for fit/minigo: its rules on positions written by hand and against a program of sets, the search, and matches."""

import math
import random
from collections.abc import Iterable, Iterator

import pytest
import torch
from torch import Tensor

from stackmark.workloads.fit.impl.go import BLACK, WHITE, Go, Positions, Rules, symmetries
from stackmark.workloads.fit.impl.go_match import match
from stackmark.workloads.fit.impl.go_search import Effort, Predict, Search

CPU = torch.device("cpu")
SIZE = 5
PASS = SIZE**2


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from more, and lose much where other programs have the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def go(size: int = SIZE, komi: float = 2.5, longest: int = 60, history: int = 1) -> Go:
    return Go(Rules(size, komi, longest), history, CPU)


def at(line: int, column: int) -> int:
    """Number a point by line and column from the upper left corner, from 1."""
    return (line - 1) * SIZE + column - 1


def played(moves: Iterable[int], of: Go | None = None) -> Positions:
    rules = of or go()
    positions = rules.start(1)
    for move in moves:
        assert bool(positions.legal[0, move]), move
        positions = rules.play(positions, torch.tensor([move]))
    return positions


def with_stones(picture: str, *, to_play: int = BLACK, of: Go | None = None) -> Positions:
    """Play the stones of a picture, X for black and O for white, with passes between; then let a colour play."""
    rows = picture.split()
    stones = {colour: [place for place, one in enumerate("".join(rows)) if one == sign] for sign, colour in
              (("X", BLACK), ("O", WHITE))}  # fmt: skip
    moves: list[int] = []
    for black in stones[BLACK]:
        moves += [black, PASS]
    moves += [PASS] if stones[WHITE] else []
    for white in stones[WHITE]:
        moves += [white, PASS]
    positions = played(moves, of)
    if int(positions.to_play[0]) != to_play:
        positions = played([*moves, PASS], of)
    assert shown(positions) == "\n".join(rows)
    assert int(positions.to_play[0]) == to_play
    positions.passes.zero_()
    return positions


def shown(positions: Positions) -> str:
    stones = positions.stones[0].view(SIZE, SIZE).tolist()
    return "\n".join("".join({0: ".", BLACK: "X", WHITE: "O"}[one] for one in line) for line in stones)


def after(positions: Positions, move: int, of: Go | None = None) -> Positions:
    return (of or go()).play(positions, torch.tensor([move]))


def legal(positions: Positions, move: int) -> bool:
    return bool(positions.legal[0, move])


# The rules, by hand


def test_a_stone_without_liberties_is_captured() -> None:
    positions = with_stones(
        """
        .X...
        XO...
        .X...
        .....
        .....
        """
    )
    assert shown(after(positions, at(2, 3))).split() == [".X...", "X.X..", ".X...", ".....", "....."]


def test_a_group_is_captured_whole_and_its_points_are_free_again() -> None:
    positions = with_stones(
        """
        OO.X.
        OX...
        XX...
        .....
        .....
        """
    )
    taken = after(positions, at(1, 3))
    assert shown(taken).split() == ["..XX.", ".X...", "XX...", ".....", "....."]
    assert legal(taken, at(1, 1))
    # Black's own group is not the worse for it: all its liberties are counted.
    assert shown(after(taken, at(1, 2))).split()[0] == ".OXX."


def test_two_groups_are_captured_by_one_move() -> None:
    positions = with_stones(
        """
        XO.OX
        .X.X.
        .....
        .....
        .....
        """
    )
    assert shown(after(positions, at(1, 3))).split() == ["X.X.X", ".X.X.", ".....", ".....", "....."]


@pytest.mark.parametrize("to_play", [BLACK, WHITE])
def test_suicide_is_forbidden_of_one_stone_and_of_a_group(to_play: int) -> None:
    positions = with_stones(
        """
        .OX..
        OO...
        X.X..
        .....
        XX...
        """,
        to_play=to_play,
    )
    # Black would have no liberty in the corner; White lives there, its group has another liberty.
    assert legal(positions, at(1, 1)) == (to_play == WHITE)
    enclosed = with_stones(
        """
        .OX..
        OX...
        X....
        .....
        .....
        """,
        to_play=to_play,
    )
    # Black captures two stones by it; White would join them and leave the group without a liberty.
    assert legal(enclosed, at(1, 1)) == (to_play == BLACK)


def test_a_move_that_captures_is_no_suicide() -> None:
    positions = with_stones(
        """
        .OX..
        OX...
        X....
        .....
        .....
        """
    )
    assert shown(after(positions, at(1, 1))).split() == ["X.X..", ".X...", "X....", ".....", "....."]


def test_a_ko_cannot_be_taken_back_at_once_but_after_a_move_elsewhere() -> None:
    positions = with_stones(
        """
        .XO..
        X.XO.
        .XO..
        .....
        .....
        """,
        to_play=WHITE,
    )
    taken = after(positions, at(2, 2))
    assert shown(taken).split()[1] == "XO.O."
    assert not legal(taken, at(2, 3))
    # A pass does not change the board, so the ko stays.
    assert not legal(after(after(taken, PASS), PASS), at(2, 3))
    elsewhere = after(after(taken, at(5, 1)), at(5, 5))
    assert legal(elsewhere, at(2, 3))


def test_no_board_of_the_game_comes_back_after_more_than_two_moves() -> None:
    """Two stones are captured, and one would be taken for them: no rule about single stones forbids it."""
    positions = with_stones(
        """
        .O.O.
        XXO..
        .....
        .....
        .....
        """,
        to_play=WHITE,
    )
    taken = after(after(positions, at(1, 1)), at(1, 3))
    assert shown(taken).split()[0] == "..XO."
    assert not legal(taken, at(1, 2))
    elsewhere = after(after(taken, at(5, 5)), at(5, 1))
    assert shown(after(elsewhere, at(1, 2))).split() == [".O.O.", "XXO..", ".....", ".....", "X...O"]


def test_two_passes_end_a_game_and_so_does_its_last_move() -> None:
    rules = go(longest=4)
    one = played([PASS], rules)
    assert not bool(rules.over(one))
    assert bool(rules.over(played([PASS, PASS], rules)))
    assert not bool(rules.over(played([PASS, 3, PASS], rules)))
    assert bool(rules.over(played([1, 2, 3, 4], rules)))


@pytest.mark.parametrize(
    ("picture", "area"),
    [
        ("..... ..... ..... ..... .....", 0),
        ("..... ..... ..X.. ..... .....", 25),
        (".X.O. .X.O. .X.O. .X.O. .X.O.", 0),
        (".XXO. .XXO. .XXO. .XXO. .XXO.", 5),
        # What both reach is nobody's; a stone without hope counts for who has it.
        ("XX.OO XX.OO XX.OO XX.OO XXOO.", 10 - 11),
        (".X.X. XXXXX ..... OOOOO .O.X.", 11 - 7),
    ],
)
def test_areas_are_stones_and_what_only_one_colour_reaches(picture: str, area: int) -> None:
    stones = torch.tensor([[{".": 0, "X": BLACK, "O": WHITE}[one] for one in picture.replace(" ", "")]])
    assert go().areas(stones).tolist() == [area]
    assert go().areas(-stones).tolist() == [-area]


def test_komi_decides_who_wins() -> None:
    positions = with_stones("XXXXX XXXXX XXX.O OOOOO OOOOO")
    assert go().areas(positions.stones).tolist() == [2]
    assert go(komi=1.5).winners(positions).tolist() == [BLACK]
    assert go(komi=2.5).winners(positions).tolist() == [WHITE]


def test_sensible_moves_fill_no_true_eye_and_pass_only_at_the_end() -> None:
    positions = with_stones(
        """
        .XOX.
        XX.XX
        XXXXX
        OXXXX
        .OX.X
        """
    )
    points = go().sensible(positions)[0].nonzero()[:, 0].tolist()
    # The corners are eyes; that between the stones of the second line captures.
    assert at(1, 1) not in points
    assert at(1, 5) not in points
    assert at(2, 3) in points
    assert PASS not in points
    lived = with_stones("XXXXX X.X.X XXXXX XXXXX XXXXX")
    assert go().sensible(lived)[0].nonzero()[:, 0].tolist() == [PASS]


def test_an_eye_whose_corners_the_opponent_has_is_false() -> None:
    edge = with_stones(
        """
        X.X..
        OX...
        .....
        .....
        .....
        """
    )
    assert bool(go().sensible(edge)[0, at(1, 2)])
    true = with_stones(".X... XX... ..... ..... .....")
    assert not bool(go().sensible(true)[0, at(1, 1)])
    middle = with_stones(
        """
        .....
        .OX..
        .X.X.
        ..X..
        .....
        """
    )
    assert not bool(go().sensible(middle)[0, at(3, 3)])
    falsified = with_stones(
        """
        .....
        .OXO.
        .X.X.
        ..X..
        .....
        """
    )
    assert bool(go().sensible(falsified)[0, at(3, 3)])


# The rules, by another program


class SetGo:
    """Go as its rules read: groups are searched for, and every board is kept."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.board: dict[tuple[int, int], int] = {}
        self.seen = {frozenset(self.board.items())}

    def near(self, point: tuple[int, int]) -> list[tuple[int, int]]:
        line, column = point
        steps = ((line + 1, column), (line - 1, column), (line, column + 1), (line, column - 1))
        return [(down, right) for down, right in steps if 0 <= down < self.size and 0 <= right < self.size]

    def group(self, board: dict[tuple[int, int], int], start: tuple[int, int]) -> tuple[set[tuple[int, int]], bool]:
        """Return the stones of a group, and whether it has a liberty."""
        found, left, free = {start}, [start], False
        while left:
            for one in self.near(left.pop()):
                free = free or one not in board
                if board.get(one) == board[start] and one not in found:
                    found.add(one)
                    left.append(one)
        return found, free

    def after(self, point: tuple[int, int], colour: int) -> dict[tuple[int, int], int] | None:
        """Return the board after a move; None where it is illegal."""
        if point in self.board:
            return None
        board = {**self.board, point: colour}
        for one in self.near(point):
            if board.get(one) == -colour:
                stones, free = self.group(board, one)
                if not free:
                    board = {place: stone for place, stone in board.items() if place not in stones}
        return board if self.group(board, point)[1] and frozenset(board.items()) not in self.seen else None

    def area(self) -> int:
        total = sum(self.board.values())
        left = {(line, column) for line in range(self.size) for column in range(self.size)} - set(self.board)
        while left:
            region, border, stack = set[tuple[int, int]](), set[int](), [left.pop()]
            while stack:
                point = stack.pop()
                region.add(point)
                for one in self.near(point):
                    if one in self.board:
                        border.add(self.board[one])
                    elif one in left:
                        left.remove(one)
                        stack.append(one)
            total += len(region) * (sum(border) if len(border) == 1 else 0)
        return total


@pytest.mark.parametrize(("size", "games", "moves"), [(2, 8, 30), (3, 10, 80), (5, 12, 120), (9, 4, 160)])
def test_random_games_go_as_in_a_program_of_sets(size: int, games: int, moves: int) -> None:
    """Small boards make kos and repetitions often; passes are rare, so that boards fill up and groups die."""
    draw = random.Random(size)
    rules = Go(Rules(size, 0.5, moves), 2, CPU)
    others = [SetGo(size) for _ in range(games)]
    positions = rules.start(games)
    repeated = captured = 0
    for _ in range(moves):
        chosen = []
        colour = int(positions.to_play[0])
        for number, other in enumerate(others):
            boards = {point: other.after(divmod(point, size), colour) for point in range(size**2)}
            allowed = [point for point, board in boards.items() if board is not None]
            assert positions.legal[number].nonzero()[:, 0].tolist() == [*allowed, size**2]
            free = set(range(size**2)) - {line * size + column for line, column in other.board}
            kept, other.seen = other.seen, set()
            repeated += sum(other.after(divmod(point, size), colour) is not None for point in free - {*allowed})
            other.seen = kept
            move = draw.choice(allowed) if allowed and draw.random() < 0.97 else size**2
            chosen.append(move)
            if move < size**2:
                board = boards[move]
                assert board is not None
                captured += len(board) <= len(other.board)
                other.board = board
                other.seen.add(frozenset(board.items()))
        before = positions
        positions = rules.play(positions, torch.tensor(chosen))
        for number, other in enumerate(others):
            expected = [other.board.get(divmod(point, size), 0) for point in range(size**2)]
            assert positions.stones[number].tolist() == expected
        assert torch.equal(positions.boards[:, 1], before.stones)
        assert rules.areas(positions.stones).tolist() == [other.area() for other in others]
    assert captured > games
    assert repeated > 0 or size == 9


def test_a_board_turned_or_mirrored_has_the_same_area_and_moves() -> None:
    rules = go()
    draw = torch.Generator().manual_seed(3)
    orders = symmetries(SIZE)
    assert len({tuple(order.tolist()) for order in orders}) == 8
    positions = rules.start(8)
    own = torch.arange(8)
    for _ in range(30):
        # Of the first game a move is drawn; the others play it as they are turned.
        move = int(torch.multinomial(positions.legal[0].float(), 1, generator=draw))
        moves = (orders == move).nonzero()[:, 1]
        positions = rules.play(positions, moves)
    assert torch.equal(positions.stones, positions.stones[:1].expand(8, -1).gather(1, orders[:, :-1]))
    assert torch.equal(positions.legal, positions.legal[:1].expand(8, -1).gather(1, orders))
    assert len(rules.areas(positions.stones).unique()) == 1
    assert len(own) == 8


# The search


def by_area(of: Go) -> Predict:
    """All moves alike, and who has more area is winning."""

    def predict(positions: Positions) -> tuple[Tensor, Tensor]:
        ahead = (of.areas(positions.stones) - of.rules.komi) * positions.to_play
        return torch.zeros(len(positions), of.moves), torch.tanh(ahead / 10)

    return predict


def by_chance(of: Go) -> Predict:
    """Logits and values that follow from the stones: no two moves are alike."""
    weights = torch.randn((of.moves + 1, of.points), generator=torch.Generator().manual_seed(5))

    def predict(positions: Positions) -> tuple[Tensor, Tensor]:
        found = (positions.stones * positions.to_play[:, None]).float() @ weights.T + weights[:, 0]
        return found[:, : of.moves], torch.tanh(found[:, -1])

    return predict


CAPTURE = """
    OOX..
    OOX..
    OO...
    OOX..
    OOX..
    """


@pytest.mark.parametrize("leaves", [1, 8])
def test_the_search_finds_the_move_that_captures_ten_stones(leaves: int) -> None:
    rules = go(komi=0.5)
    positions = with_stones(CAPTURE)
    visits, value = Search(rules, by_area(rules), positions, Effort(200, leaves, only_sensible=False)).run()
    assert int(visits.argmax(1)) == at(3, 3)
    assert float(visits.sum()) == 200
    assert float(value) > 0


@pytest.mark.parametrize("komi", [0.5, 9.5])
def test_the_search_ends_a_game_by_a_pass_only_where_that_wins(komi: float) -> None:
    """White has passed, and Black has three points more."""
    rules = go(komi=komi, longest=80)
    positions = with_stones(".XO.. .XO.. .XXO. .XXO. .XXXO", to_play=WHITE, of=rules)
    positions = after(positions, PASS, rules)
    assert rules.areas(positions.stones).tolist() == [3]
    visits, _ = Search(rules, by_area(rules), positions, Effort(100, 1, only_sensible=False)).run()
    assert (int(visits.argmax(1)) == PASS) == (komi < 3)
    assert (float(visits[0, PASS]) > 50) == (komi < 3)


def test_illegal_and_senseless_moves_are_never_tried() -> None:
    rules = go()
    positions = with_stones(".X.X. XXXX. ..X.. ..... .OO..")
    visits, _ = Search(rules, by_area(rules), positions, Effort(60, 1, only_sensible=False)).run()
    assert not bool((visits[0] > 0)[~positions.legal[0]].any())
    sensible, _ = Search(rules, by_area(rules), positions, Effort(60, 1, only_sensible=True)).run()
    assert not bool((sensible > 0)[~rules.sensible(positions)].any())
    assert float(sensible[0, PASS]) == 0 < float(visits[0, at(1, 1)])


def plain_search(of: Go, predict: Predict, root: Positions, readouts: int) -> list[int]:
    """PUCT as it is written, an object for each node and one game."""

    class Node:
        def __init__(self, positions: Positions) -> None:
            self.positions, self.children = positions, dict[int, Node]()
            self.player = int(positions.to_play)
            logits, value = predict(positions)
            allowed = positions.legal[0].nonzero()[:, 0].tolist()
            priors = logits[0, allowed].softmax(0).tolist()
            self.over = bool(of.over(positions))
            self.value = float(of.winners(positions)) * self.player if self.over else float(value)
            self.prior: dict[int, float] = dict(zip(allowed, priors, strict=True))
            self.visits: dict[int, int] = dict.fromkeys(allowed, 0)
            self.total: dict[int, float] = dict.fromkeys(allowed, 0.0)

        def best(self) -> int:
            root_of_all = math.sqrt(max(1, sum(self.visits.values())))

            def score(move: int) -> float:
                count = self.visits[move]
                mean = self.total[move] / count if count else self.value
                return mean + 2.5 * self.prior[move] * root_of_all / (1 + count)

            best: int = max(self.prior, key=score)
            return best

    top = Node(root)
    for _ in range(readouts):
        node, way = top, list[tuple[Node, int]]()
        while True:
            move = node.best()
            way.append((node, move))
            known = move in node.children
            if not known:
                node.children[move] = Node(of.play(node.positions, torch.tensor([move])))
            node = node.children[move]
            if not known or node.over:
                break
        for one, move in way:
            one.visits[move] += 1
            one.total[move] += node.value * node.player * one.player
    return [top.visits.get(move, 0) for move in range(of.moves)]


def test_visits_are_those_of_a_plain_search_however_many_games_there_are() -> None:
    rules = Go(Rules(3, 0.5, 9), 1, CPU)
    predict, draw = by_chance(rules), torch.Generator().manual_seed(6)
    positions = rules.start(4)
    for _ in range(4):
        positions = rules.play(positions, torch.multinomial(positions.legal.float(), 1, generator=draw)[:, 0])
    visits, _ = Search(rules, predict, positions, Effort(60, 1, only_sensible=False)).run()
    expected = [plain_search(rules, predict, positions.take(torch.tensor([number])), 60) for number in range(4)]
    assert visits.int().tolist() == expected
    assert len({tuple(one) for one in expected}) > 1


def test_noise_moves_a_quarter_of_the_priors_to_other_legal_moves() -> None:
    rules = go()
    positions = with_stones(CAPTURE)
    drawn = []
    for seed in (1, 1, 2):
        search = Search(rules, by_chance(rules), positions, Effort(40, 1, only_sensible=False))
        search.add_noise(torch.Generator().manual_seed(seed))
        visits, _ = search.run()
        assert not bool((visits[0] > 0)[~positions.legal[0]].any())
        drawn.append(visits)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


# Matches


def first_legal(positions: Positions, _played: Tensor) -> Tensor:
    return positions.legal.float().argmax(1)


def always_pass(positions: Positions, _played: Tensor) -> Tensor:
    return torch.full((len(positions),), PASS)


def test_a_player_who_never_plays_a_stone_loses() -> None:
    black = torch.tensor([True, False, True])
    assert match(go(komi=0.5), first_legal, always_pass, black) == 3
    assert match(go(komi=0.5), always_pass, first_legal, black) == 0


def test_an_empty_board_is_whites_by_the_komi_and_each_win_is_counted_once() -> None:
    assert match(go(), always_pass, always_pass, torch.tensor([True, False, True, True])) == 1


def test_players_are_told_the_moves_of_each_game() -> None:
    rules = go(longest=7)
    seen: list[Tensor] = []

    def watching(positions: Positions, played_moves: Tensor) -> Tensor:
        for number, moves in enumerate(played_moves):
            assert torch.equal(played(moves.tolist(), rules).stones[0], positions.stones[number])
        seen.append(played_moves)
        return first_legal(positions, played_moves)

    match(rules, watching, watching, torch.tensor([True, False]))
    assert sorted(one.shape[1] for one in seen) == sorted([*range(7), *range(7)])
