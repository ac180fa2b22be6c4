"""The rank of a process in its group: what a worker and a workload both need.

A launcher says it in the environment, in torchrun's variables; our own agent (worker/ranks.py) sets the same. Only a run of
several ranks looks at them: a run of one that is started inside somebody's job, where RANK is 3, is still rank 0 of 1.

A group may lie on several nodes. Then a place starts one agent on each node, and each agent starts that node's ranks. The
place sets STACKMARK_NODE_RANKS, MASTER_ADDR and MASTER_PORT; which node it is, Kubernetes' Job controller or Slurm says.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from stackmark.errors import SpecError

# Besides torchrun's, of a group that our agent started: the descriptor of a socket that listens at MASTER_PORT already, for the
# rank that keeps the group's store, and nothing for the others. Nobody else can take a port that is never let go.
STORE_VARIABLE = "STACKMARK_STORE"
# How many ranks each node's agent starts, in a group on several nodes.
NODE_RANKS_VARIABLE = "STACKMARK_NODE_RANKS"
# The number of this node among them: set by an Indexed Job, and by srun with one task on each node.
NODE_VARIABLES = ("JOB_COMPLETION_INDEX", "SLURM_NODEID")
# What an agent reports for a rank that hears nothing, such as one that was stopped (SIGSTOP).
DID_NOT_STOP = "the worker did not stop on request and was killed"
# Few enough that a typo does not start ten thousand processes.
MOST_RANKS = 4096
# More than any machine has devices for.
MOST_LOCAL_RANKS = 256
# Devices that somebody else's log or a spec may claim. The largest systems in MLPerf have some ten thousand.
MOST_DEVICES = 1_000_000


@dataclass(frozen=True)
class Rank:
    number: int
    size: int
    # Among those on its own machine: by it devices are given out, and cores shared.
    local_number: int
    local_size: int


@dataclass(frozen=True)
class NodeShare:
    """The ranks of a group that one agent starts: `count` of `size`, from number `first` on."""

    first: int
    count: int
    size: int

    @property
    def ranks(self) -> list[Rank]:
        return [Rank(self.first + local, self.size, local, self.count) for local in range(self.count)]

    @property
    def is_whole(self) -> bool:
        """Whether the whole group is on this node."""
        return self.count == self.size


def own_share(environ: Mapping[str, str], size: int) -> NodeShare:
    """Return the ranks that this node's agent starts: all of them unless a place says otherwise."""
    if NODE_RANKS_VARIABLE not in environ:
        return NodeShare(0, size, size)
    each = _number(environ, NODE_RANKS_VARIABLE, 0)
    if not each or size % each:
        raise SpecError(
            f"{size} ranks cannot be shared out with {each} on each node; the ranks of a node must divide them"
        )
    name = next((name for name in NODE_VARIABLES if name in environ), None)
    if name is None:
        raise SpecError(
            f"the environment has {NODE_RANKS_VARIABLE}={each}, but neither of {', '.join(NODE_VARIABLES)}: "
            "which node this is, is unknown"
        )
    node = _number(environ, name, 0)
    if node >= size // each:
        raise SpecError(
            f"the environment has {name}={node}, but {size} ranks, {each} on each node, are on {size // each} nodes"
        )
    return NodeShare(node * each, each, size)


def ranks_of_node(environ: Mapping[str, str], size: int) -> int:
    """Return how many of a group's ranks a node has: what a probe, which is no rank itself, needs devices for."""
    return min(size, _number(environ, NODE_RANKS_VARIABLE, size)) or size


def own_rank(environ: Mapping[str, str]) -> Rank | None:
    """Return what a launcher set for this process; None where there is no launcher."""
    if "RANK" not in environ:
        return None
    size = _number(environ, "WORLD_SIZE", 1)
    number = _number(environ, "RANK", 0)
    rank = Rank(number, size, _number(environ, "LOCAL_RANK", number), _number(environ, "LOCAL_WORLD_SIZE", size))
    if rank.number >= rank.size:
        raise SpecError(
            f"RANK must be below WORLD_SIZE; the environment has RANK={rank.number} and WORLD_SIZE={rank.size}"
        )
    return rank


# What a launcher tells each of its processes, as torchrun writes it.
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def variables(rank: Rank, address: str, port: int) -> dict[str, str]:
    """Return the environment of one rank."""
    values = (rank.number, rank.size, rank.local_number, rank.local_size, address, port)
    return {name: str(value) for name, value in zip(RANK_VARIABLES, values, strict=True)}


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, str(default))
    if not text.isdecimal():
        raise SpecError(f"the environment has {name}={text}, which is not a valid number")
    return int(text)
