"""GNU Go as the opponent of fit/minigo: games told by the Go Text Protocol, and programs that are missing or misbehave."""

import shutil
from pathlib import Path

import pytest
import torch

from fit_rig import fit_params
from leaving_out import leave_out
from refusing import fails_as
from stackmark.workloads.fit.impl import go_gtp
from stackmark.workloads.fit.impl.go import Go, Positions, Rules
from stackmark.workloads.fit.impl.go_gtp import GtpPlayer, gtp_program, vertex
from stackmark.workloads.fit.impl.go_match import match
from test_fit_go import always_pass, first_legal

GO = Go(Rules(5, 2.5, 40), 1, torch.device("cpu"))
# Answers every command, notes it, and passes where it is asked for a move; or does something else then.
PROGRAM = """#!/bin/sh
while read -r line; do
  echo "$line" >> {notes}
  case "$line" in
    genmove*) {move} ;;
    *) printf '= \\n\\n' ;;
  esac
done
"""


def program(folder: Path, move: str = "printf '= PASS\\n\\n'") -> Path:
    path = folder / "gnugo"
    path.write_text(PROGRAM.format(notes=folder / "notes", move=move))
    path.chmod(0o755)
    return path


def test_points_are_named_as_the_protocol_does() -> None:
    """Lines are counted from below, and the letter I is left out."""
    assert [vertex(move, GO) for move in (0, 4, 20, 24, 25)] == ["A5", "E5", "A1", "E1", "PASS"]
    nine = Go(Rules(9, 7.5, 40), 1, torch.device("cpu"))
    assert vertex(8, nine) == "J9"


def test_each_game_is_told_from_its_beginning(tmp_path: Path) -> None:
    with gtp_program([str(program(tmp_path))]) as opponent:
        wins = match(GO, first_legal, GtpPlayer(GO, opponent), torch.tensor([True, False]))
    assert wins == 2
    notes = (tmp_path / "notes").read_text().splitlines()
    assert notes[:2] == ["boardsize 5", "komi 2.5"]
    # In the first round it is Black of the second game; then White of the first one, and so on.
    assert notes[2:4] == ["clear_board", "genmove black"]
    assert notes[4:7] == ["clear_board", "play black A5", "genmove white"]
    assert notes[7:11] == ["clear_board", "play black PASS", "play white A5", "genmove black"]


def test_its_moves_are_played(tmp_path: Path) -> None:
    path = program(tmp_path, "printf '= c3\\n\\n'")
    seen = []

    def watching(positions: Positions, played: torch.Tensor) -> torch.Tensor:
        seen.extend(played.tolist())
        return always_pass(positions, played)

    with gtp_program([str(path)]) as opponent, fails_as("command_failed", "c3"):
        match(GO, watching, GtpPlayer(GO, opponent), torch.tensor([False]))
    # C3 again is not legal, and that is a failure, not a lost game.
    assert seen == [[12]]


@pytest.mark.parametrize(
    ("move", "named"),
    [
        ("exit 1", "ended"),
        ("exec sleep 60", "0.5 s"),
        ("printf 'hello\\n\\n'", "hello"),
        ("printf '? unknown command\\n\\n'", "unknown command"),
        ("printf '= Z9\\n\\n'", "Z9"),
        ("printf '= resign\\n\\n'", "resign"),
        ("printf '\\377\\376 \\n\\n'", "genmove"),
        ("exec yes", "does not end"),
    ],
)
def test_a_program_that_misbehaves_fails_the_run(tmp_path: Path, move: str, named: str) -> None:
    with (
        gtp_program([str(program(tmp_path, move))], answer_s=0.5 if "sleep" in move else 30) as opponent,
        fails_as("command_failed", str(tmp_path / "gnugo"), named),
    ):
        match(GO, first_legal, GtpPlayer(GO, opponent), torch.tensor([False]))


def test_a_program_that_is_missing_is_named_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(go_gtp, "MORE_PATH", str(tmp_path))
    with fails_as("missing_package", "gnugo", "apt-get install gnugo"):
        fit_params("minigo", source="real")


def test_a_program_that_cannot_be_started_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "gnugo").write_text("")
    with fails_as("command_failed", str(tmp_path / "gnugo")), gtp_program([str(tmp_path / "gnugo")]):
        pass


def test_gnu_go_wins_against_a_player_who_plays_the_first_legal_point() -> None:
    """By the rules that both sides have: an illegal move of either would fail."""
    if shutil.which("gnugo", path=go_gtp.MORE_PATH) is None and shutil.which("gnugo") is None:
        leave_out("GNU Go is not installed: apt-get install gnugo")
    with gtp_program([go_gtp.found_program(), *go_gtp.OPTIONS, "--seed", "1"]) as opponent:
        assert match(GO, first_legal, GtpPlayer(GO, opponent), torch.tensor([True, False])) == 0
