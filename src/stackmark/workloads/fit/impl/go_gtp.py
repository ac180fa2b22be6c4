"""A Go program as the opponent, by the Go Text Protocol: GNU Go.

It is told each game from its beginning before it moves, so that one process plays many games at once and knows what a ko forbids.
A program that is missing, ends, hangs or answers with an illegal move fails the run: no such game is won or lost.
"""

import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

import torch
from torch import Tensor

from stackmark.workloads.fit.impl.go import BLACK, Go, Positions
from stackmark.workloads.workload import WorkloadFailure

PROGRAM = "gnugo"
# Debian installs it where the PATH of root does not look.
MORE_PATH = "/usr/games"
# Dead stones count for who has them, so it must capture them before it passes; and it plays each game to its end.
OPTIONS = (
    "--mode", "gtp", "--level", "1", "--chinese-rules", "--positional-superko", "--capture-all-dead", "--never-resign",
)  # fmt: skip
ANSWER_S = 60.0
LONGEST_ANSWER = 1 << 16
# The letter I is left out.
COLUMNS = "ABCDEFGHJKLMNOPQRST"


def found_program() -> str:
    path = shutil.which(PROGRAM, path=os.pathsep.join((os.environ.get("PATH", os.defpath), MORE_PATH)))
    if path is None:
        raise WorkloadFailure(
            "missing_package",
            f"--source real plays against GNU Go, and there is no program {PROGRAM} in the PATH",
            "install it: apt-get install gnugo",
        )
    return path


def program_version() -> str:
    with gtp_program([found_program(), *OPTIONS]) as program:
        return program.ask(["version"])[0]


class GtpProgram:
    def __init__(self, name: str, process: "subprocess.Popen[bytes]", answer_s: float) -> None:
        self._name, self._process, self._answer_s, self._read = name, process, answer_s, b""

    def ask(self, commands: Sequence[str]) -> list[str]:
        """Send commands, and return the answer to each."""
        stdin = self._process.stdin
        assert stdin is not None
        deadline = time.monotonic() + self._answer_s
        answers = []
        try:
            stdin.write("".join(f"{one}\n" for one in commands).encode())
            stdin.flush()
        except OSError:
            self.fail("it ended")
        for command in commands:
            answer = self._answer(deadline)
            if not answer.startswith("="):
                self.fail(f"to {command!r} it answered {answer[:80]!r}")
            answers.append(answer[1:].strip())
        return answers

    def _answer(self, deadline: float) -> str:
        """Read up to the next empty line."""
        stdout = self._process.stdout
        assert stdout is not None
        while b"\n\n" not in self._read:
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.fail(f"it did not answer within {self._answer_s:g} s")
            data = os.read(stdout.fileno(), LONGEST_ANSWER)
            if not data:
                self.fail("it ended")
            self._read += data.replace(b"\r", b"")
            if len(self._read) > LONGEST_ANSWER:
                self.fail(f"its answer does not end: {self._read[:40]!r}")
        answer, self._read = self._read.split(b"\n\n", 1)
        return answer.decode(errors="replace").strip()

    def fail(self, why: str) -> NoReturn:
        raise WorkloadFailure(
            "command_failed",
            f"the opponent {self._name} does not play by the Go Text Protocol: {why}",
            "try it: printf 'genmove black\\nquit\\n' | gnugo --mode gtp",
        )


@contextmanager
def gtp_program(command: Sequence[str], answer_s: float = ANSWER_S) -> Iterator[GtpProgram]:
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as error:
        raise WorkloadFailure("command_failed", f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        yield GtpProgram(command[0], process, answer_s)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            # What was not written yet cannot be, to a program that is gone.
            with suppress(OSError):
                pipe.close()


class GtpPlayer:
    """A `go_match.Player`."""

    def __init__(self, go: Go, program: GtpProgram) -> None:
        self._go, self._program = go, program
        program.ask([f"boardsize {go.rules.size}", f"komi {go.rules.komi}"])

    def __call__(self, positions: Positions, played: Tensor) -> Tensor:
        chosen = [
            self._move(colour, moves, legal)
            for colour, moves, legal in zip(
                positions.to_play.tolist(), played.tolist(), positions.legal.tolist(), strict=True
            )
        ]
        return torch.tensor(chosen, device=self._go.device)

    def _move(self, colour: int, played: list[int], legal: list[bool]) -> int:
        names = [("black", "white")[number % 2] for number in range(len(played) + 1)]
        assert names[-1] == ("black" if colour == BLACK else "white")
        before = [f"play {name} {vertex(move, self._go)}" for name, move in zip(names, played, strict=False)]
        said = self._program.ask(["clear_board", *before, f"genmove {names[-1]}"])[-1]
        moves = {vertex(move, self._go): move for move, allowed in enumerate(legal) if allowed}
        if said.upper() not in moves:
            self._program.fail(f"its move {said[:20]!r} is not legal")
        return moves[said.upper()]


def vertex(move: int, go: Go) -> str:
    """Name a move as the protocol does: by column from the left and line from below."""
    if move == go.points:
        return "PASS"
    line, column = divmod(move, go.rules.size)
    return f"{COLUMNS[column]}{go.rules.size - line}"
