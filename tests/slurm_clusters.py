"""A real Slurm for the tests, which a script starts and hurts.

`STACKMARK_TEST_SLURM` names the script (`up`, `down`, `env`, `kill`, `start`); by default it is looked for next to the
repository. It is started when the first test asks for it, and stopped at the end if it was not running before.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SCRIPT_VARIABLE = "STACKMARK_TEST_SLURM"
DEFAULT = Path(__file__).resolve().parents[2] / "shared/slurm/cluster"
NODES = 2
# slurmctld may need its whole timeout to take a node back.
PATIENCE_S = 60.0


def script_of(environment: Mapping[str, str]) -> Path:
    return Path(environment.get(SCRIPT_VARIABLE) or DEFAULT)


def why_missing(environment: Mapping[str, str]) -> str | None:
    """Why the tests on Slurm cannot run here, in a line."""
    script = script_of(environment)
    if not os.access(script, os.X_OK):
        return f"no Slurm for the tests: {SCRIPT_VARIABLE} names no script that starts one, and there is no {script}"
    return None if os.getuid() == 0 else "the script that starts a Slurm needs root"


@dataclass(frozen=True)
class TestSlurm:
    """A Slurm of two nodes that answers."""

    __test__ = False  # its name makes pytest think otherwise

    script: Path
    conf: str

    def do(self, *words: str) -> str:
        """What the script says to `kill n2`, `start n2` …"""
        done = subprocess.run([self.script, *words], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{self.script} {' '.join(words)}: {done.stderr}"
        return done.stdout

    def ask(self, *argv: str) -> str:
        done = subprocess.run(
            argv, env={**os.environ, "SLURM_CONF": self.conf}, capture_output=True, text=True, timeout=60
        )
        return done.stdout

    def jobs(self) -> list[str]:
        """The jobs that are not over."""
        return self.ask("squeue", "--noheader", "--format=%j %T").split("\n")[:-1]

    def update(self, node: str, state: str) -> None:
        self.ask("scontrol", "update", f"nodename={node}", f"state={state}", "reason=test")

    def heal(self) -> None:
        """All jobs are gone, and all nodes are idle."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for part in ("ctld", *(f"n{number + 1}" for number in range(NODES))):
                self.do("start", part)
            if self.jobs():
                self.ask("scancel", f"--user={os.getuid()}")
            states = self.ask("sinfo", "--noheader", "--Node", "--format=%N %t").split("\n")[:-1]
            if not self.jobs() and len(states) == NODES and all(one.endswith(" idle") for one in states):
                return
            for node, _, state in (one.partition(" ") for one in states):
                if state.rstrip("*") in ("drain", "drng", "down", "boot", "unk"):
                    self.update(node, "resume")
            time.sleep(0.2)
        raise AssertionError(f"Slurm is not whole again: {self.ask('sinfo', '--Node', '--long')}")


@contextmanager
def running_slurm() -> Iterator[TestSlurm]:
    """The Slurm of the script, ready."""
    script = script_of(os.environ)
    conf = subprocess.run([script, "env"], capture_output=True, text=True, check=True).stdout.partition("=")[2].strip()
    slurm = TestSlurm(script, conf)
    ran = slurm.ask("sinfo", "--noheader") if Path(conf).exists() else ""
    if not ran:
        slurm.do("up", str(NODES))
    try:
        slurm.heal()
        yield slurm
    finally:
        if not ran:
            slurm.do("down")
