"""The rank of a process in its group: what a worker and a workload both need.

A launcher says it in the environment, in torchrun's variables, which srun and job controllers set too; our own agent
(worker/ranks.py) sets the same. Only a run of several ranks looks at them: a run of one that is started inside somebody's
job, where RANK is 3, is still rank 0 of 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from stackmark.errors import SpecError

# Besides torchrun's, of a group that our agent started: the descriptor of a socket that listens at MASTER_PORT already, for the
# rank that keeps the group's store, and nothing for the others. Nobody else can take a port that is never let go.
STORE_VARIABLE = "STACKMARK_STORE"
# More than any machine has devices for, and few enough that a typo does not start ten thousand processes.
MOST_RANKS = 256
# Devices that somebody else's log or a spec may claim. The largest systems in MLPerf have some ten thousand.
MOST_DEVICES = 1_000_000


@dataclass(frozen=True)
class Rank:
    number: int
    size: int
    # Among those on its own machine: by it devices are given out, and cores shared.
    local_number: int
    local_size: int


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


def variables(rank: Rank, address: str, port: int) -> dict[str, str]:
    """Return the environment of one rank, as torchrun writes it."""
    return {
        "RANK": str(rank.number),
        "WORLD_SIZE": str(rank.size),
        "LOCAL_RANK": str(rank.local_number),
        "LOCAL_WORLD_SIZE": str(rank.local_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, str(default))
    if not text.isdecimal():
        raise SpecError(f"the environment has {name}={text}, which is not a valid number")
    return int(text)
