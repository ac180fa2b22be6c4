"""What other programs do on this machine before the first run: said at once, stored with the experiment, and the usual load that
blocks are compared with.

It is measured before the probe starts, while we do nothing, so that nothing of it is ours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from stackmark.ledger.rows import Experiment, storable
from stackmark.machine.busy import LOOK_S, Busy, BusyGpu, busy_gpus, look
from stackmark.places.registry import place_kinds
from stackmark.units import counted
from stackmark.verdict.interference import allowance_cpus

# Where an experiment keeps it: next to what was asked and chosen.
KEY = "surroundings"
# A ledger may hold anything; no machine has more.
MOST_CPUS = 100_000


@dataclass(frozen=True)
class Surroundings:
    """What other programs did on this machine before the first run. `cpus` is None where nobody could tell."""

    cpus: Busy | None = None
    gpus: tuple[BusyGpu, ...] = ()

    @property
    def idle_cpus(self) -> float | None:
        """Return how many CPUs are busy while we do nothing: what is usual on this machine."""
        return self.cpus.cpus if self.cpus else None

    def sentences(self) -> list[str]:
        """Say what keeps the machine busy; nothing where it is too little to disturb a run."""
        said = []
        if self.cpus and self.cpus.cpus > allowance_cpus(self.cpus.cores):
            cores = counted(self.cpus.cores, "core")
            names = ", ".join(f"{one.name} {100 * one.cpus:.0f} %" for one in self.cpus.programs)
            said.append(f"{self.cpus.cpus:.1f} of {cores} are busy{f': {names}' if names else ''}")
        for gpu in self.gpus:
            names = f": {', '.join(gpu.names)}" if gpu.names else ""
            said.append(f"GPU {gpu.index} ({gpu.name}) is used by {counted(gpu.programs, 'other program')}{names}")
        return said

    def stored(self) -> dict[str, JsonValue]:
        """Return what an experiment keeps of it."""
        cpus, gpus = self.cpus, self.gpus
        return {
            "busy_cpus": cpus.cpus if cpus else None,
            "cores": cpus.cores if cpus else None,
            "programs": [{"name": storable(one.name), "cpus": one.cpus} for one in cpus.programs] if cpus else [],
            "gpus": [
                {"index": gpu.index, "programs": gpu.programs, "names": [storable(name) for name in gpu.names]}
                for gpu in gpus
            ],
        }


def look_around(say: Callable[[str], None], places: Sequence[str] = ("host",), seconds: float = LOOK_S) -> Surroundings:
    """Look at what other programs do here, before a probe or a run of ours starts, and say what is likely to disturb them.

    Nothing is known where all runs are pods: they may run on another machine than this one.
    """
    kinds = place_kinds()
    if all(place in kinds and kinds[place].leads for place in places):
        return Surroundings()
    found = Surroundings(look(seconds), busy_gpus())
    for sentence in found.sentences():
        say(sentence)
    return found


def idle_cpus_before(experiment: Experiment) -> float | None:
    """Return how many CPUs were busy before the first run of a stored experiment; None where it is not stored."""
    kept = experiment.request.get(KEY)
    cpus = kept.get("busy_cpus") if isinstance(kept, dict) else None
    return float(cpus) if isinstance(cpus, int | float) and 0 <= cpus < MOST_CPUS else None
