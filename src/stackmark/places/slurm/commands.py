"""Ask Slurm by its commands: they are run with fixed formats, and what they print is validated like any input from outside.

`--json` was left out: it needs a plugin that Debian's and many sites' packages do not have, and its form differs by release.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stackmark.errors import PlaceError
from stackmark.ranks import NODE_RANKS_VARIABLE, STORE_VARIABLE
from stackmark.spec import (
    BIND_VARIABLE,
    COPY_VARIABLE,
    LEDGER_VARIABLE,
    LOG_VARIABLE,
    PYTHONS_VARIABLE,
    SCRATCH_VARIABLE,
    SPEC_VARIABLE,
    TYPED_VARIABLE,
)

NEEDED = ("srun", "squeue", "scancel", "sinfo", "scontrol")
# A controller that is busy answers after seconds; one that is away is refused at once, or the command gives up by itself.
ASK_S = 60.0
# What a person sets for srun as defaults. All other variables of Slurm's come from a job that we are in, whose size and nodes
# srun would take over: each run is a job of its own.
KEPT = (
    "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_PARTITION", "SLURM_ACCOUNT", "SLURM_QOS", "SLURM_RESERVATION",
    "SLURM_CONSTRAINT",
)  # fmt: skip
# What a worker is told by us alone.
OWN = (
    SPEC_VARIABLE, LEDGER_VARIABLE, LOG_VARIABLE, BIND_VARIABLE, COPY_VARIABLE, SCRATCH_VARIABLE, TYPED_VARIABLE,
    PYTHONS_VARIABLE, NODE_RANKS_VARIABLE, STORE_VARIABLE,
)  # fmt: skip
_SLURMS = ("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_", "PMI_", "PMIX_")
_AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection refused|Zero Bytes were transmitted"
    # In the middle of an exchange.
    r"|Transport endpoint is not connected|Connection reset by peer|Broken pipe"
)
_WORD = re.compile(r"[A-Za-z0-9_.:,\[\]()/+=*-]{0,1024}")
_ENDED = re.compile(r"\btasks? [\d,-]+: Exited with exit code \d+$")
_ENDS = re.compile(r"slurm_load_\w+ error: ")


class ControllerAway(PlaceError):
    """The controller does not answer: it may come back."""


@dataclass(frozen=True)
class Job:
    """A job as the queue shows it. `state` and `reason` are Slurm's own words."""

    number: int
    state: str
    reason: str
    nodes: str
    partition: str

    @property
    def is_over(self) -> bool:
        return self.state not in ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED", "STOPPED")


@dataclass(frozen=True)
class Partition:
    name: str
    is_default: bool
    is_up: bool
    nodes: int
    gres: tuple[str, ...]


def environment_of_srun(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Slurm's commands: ours, without what belongs to a job that we are in."""
    return {
        name: value
        for name, value in environment.items()
        if name in KEPT or not (name.startswith(_SLURMS) or name in OWN)
    }


class Slurm:
    """The cluster that the commands of this machine speak to."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.environment = environment_of_srun(os.environ if environment is None else environment)
        path = self.environment.get("PATH")
        missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
        if missing:
            raise PlaceError(
                f"Slurm's commands are not installed here: {', '.join(missing)}",
                hint="run stackmark on a login node of the cluster, or install them: apt-get install slurm-client",
            )
        self.version = self.ask("srun", "--version").split()[-1][:40]

    def ask(self, *argv: str) -> str:
        """Run a command and return what it prints; a failure is a PlaceError with its own words."""
        try:
            done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, errors="replace", timeout=ASK_S,
                                  stdin=subprocess.DEVNULL)  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ControllerAway(f"Slurm did not answer within {ASK_S:g} s", command="scontrol ping") from error
        except OSError as error:
            raise PlaceError(f"{argv[0]} cannot be started: {error}", command=shlex.join(argv)) from error
        if done.returncode:
            raise refused(done.stderr or done.stdout, argv)
        return done.stdout

    def jobs(self, name: str) -> list[Job]:
        """Return the jobs of this name, also those that ended a short while ago."""
        out = self.ask("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%A|%T|%r|%N|%P")
        return [job for line in out.splitlines() if (job := _job(line))]

    def own_jobs(self) -> list[tuple[str, str]]:
        """Return name and comment of each of our user's jobs that is not over."""
        out = self.ask("squeue", "--noheader", f"--user={os.getuid()}", "--format=%j|%k")
        return [(name, comment) for line in out.splitlines() for name, bar, comment in [line.partition("|")] if bar]

    def partitions(self) -> list[Partition]:
        found: dict[str, Partition] = {}
        for line in self.ask("sinfo", "--noheader", "--format=%P|%a|%D|%G").splitlines():
            words = line.strip().split("|")
            if len(words) != 4 or not all(map(_WORD.fullmatch, words)) or not words[2].isdecimal():
                continue
            name = words[0].rstrip("*")
            known = found.get(name)
            gres = (known.gres if known else ()) + ((words[3],) if words[3] != "(null)" else ())
            nodes = int(words[2]) + (known.nodes if known else 0)
            found[name] = Partition(name, words[0].endswith("*"), words[1] == "up", nodes, gres)
        return list(found.values())

    def address(self, node: str) -> str:
        """Return the address at which Slurm reaches a node."""
        out = self.ask("scontrol", "show", "node", node, "--oneliner")
        found = re.search(r"\bNodeAddr=([A-Za-z0-9_.:-]{1,255})(\s|$)", out)
        if found is None:
            raise PlaceError(f"Slurm names no address for the node {node}", command=f"scontrol show node {node}")
        return found[1]

    def confines(self) -> tuple[bool, bool]:
        """Tell whether Slurm's configuration holds jobs to their CPUs, and to their memory."""
        config = {
            key.strip(): value.strip().lower()
            for line in self.ask("scontrol", "show", "config").splitlines()
            for key, equals, value in [line.partition("=")]
            if equals
        }
        plugins = config.get("TaskPlugin", "")
        groups = "cgroup" in plugins
        cpus = "affinity" in plugins or (groups and config.get("ConstrainCores") == "yes")
        return cpus, groups and config.get("ConstrainRAMSpace") == "yes"

    def cancel(self, name: str) -> None:
        """End all jobs of this name, whatever their state."""
        self.ask("scancel", "--quiet", f"--user={os.getuid()}", f"--name={name}")


def refused(said: str, argv: Sequence[str]) -> PlaceError:
    """Return the error for a command that failed, with what it said."""
    lines = [re.sub(r"^\w+: (error: |fatal: )?", "", line.strip()) for line in said.splitlines() if line.strip()]
    # What a node says comes by another way than srun's own word that it ended, before it or after it.
    lines = [line for line in lines if not _ENDED.search(line)] or lines
    last = _ENDS.sub("", lines[-1])[:300] if lines else "it says nothing"
    if _AWAY.search(said):
        return ControllerAway(
            f"Slurm's controller (slurmctld) does not answer: {last}",
            hint="see whether it runs, and whether SLURM_CONF names this cluster's configuration",
            command="scontrol ping",
        )
    return PlaceError(f"{argv[0]} failed: {last}", command=shlex.join(argv))


def _job(line: str) -> Job | None:
    words = line.strip().split("|")
    if len(words) != 5 or not words[0].isdecimal() or len(words[0]) > 18:
        return None
    number, state, reason, nodes, partition = words
    if not re.fullmatch(r"[A-Z_]{1,40}", state):
        return None
    return Job(int(number), state, reason[:200], nodes if _WORD.fullmatch(nodes) else "", partition[:200])
