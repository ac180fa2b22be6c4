"""Which blocks were disturbed by other programs, and what a verdict says then.

Other programs' use of the CPUs and of the GPU is measured in every run. A run is disturbed where it met clearly more of it than
its arm usually does; its block is measured again, and the verdict is computed with and without the disturbed blocks. On a machine
with a busy neighbour ln R correlated with its load by -0.99.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from stackmark.units import counted
from stackmark.verdict.comparison import Comparison, Needed
from stackmark.verdict.needed import percent
from stackmark.verdict.sentence import sentence_of

# A run is disturbed beyond what is usual plus this: less cannot be told from a timer's tick on two cores, and on a hundred
# cores a quarter of one is nothing.
LEAST_CPUS, SHARE_OF_CORES = 0.25, 0.02
# CPU time is counted in ticks of 10 ms on every core: over less than this it says nothing about the others.
LEAST_SECONDS = 1.0
# So many runs of an arm have a median worth the name; before that the idle machine is what is usual.
LEAST_RUNS = 3


@dataclass(frozen=True)
class Load:
    """What one run met: CPUs that other programs kept busy, and other programs on its GPU; None where nobody could tell."""

    arm: int
    block: int
    attempt: int
    other_cpus: float | None = None
    other_gpu_processes: float | None = None
    # How long it was measured, and on how many cores.
    seconds: float | None = None
    cores: int = 1

    @property
    def busy_cpus(self) -> float | None:
        """Return the CPUs that others kept busy, where the time was long enough to tell."""
        return self.other_cpus if self.seconds is None or self.seconds >= LEAST_SECONDS else None


@dataclass(frozen=True)
class Disturbance:
    """One run that met more than usual, and how much more."""

    arm: int
    block: int
    attempt: int
    sentence: str


def allowance_cpus(cores: int) -> float:
    """Return how many more busy CPUs than usual a run may meet."""
    return max(LEAST_CPUS, SHARE_OF_CORES * cores)


def disturbances(loads: Sequence[Load], idle_cpus: float | None = None) -> list[Disturbance]:
    """Return the runs that met clearly more than what is usual for their arm. `idle_cpus` was measured before the first run."""
    found = []
    for load in loads:
        if load.other_gpu_processes:
            found.append(_disturbed(load, "another program used its GPU"))
            continue
        busy, usual = load.busy_cpus, _usual(loads, load.arm, idle_cpus)
        if busy is None or usual is None or busy - usual <= allowance_cpus(load.cores):
            continue
        found.append(_disturbed(load, f"other programs kept {busy:.2f} CPUs busy, usually {usual:.2f}"))
    return found


def _disturbed(load: Load, sentence: str) -> Disturbance:
    return Disturbance(load.arm, load.block, load.attempt, sentence)


def _usual(loads: Sequence[Load], arm: int, idle_cpus: float | None) -> float | None:
    """Return an arm's own median; before it has one, the idle machine's value, or the least of all where that is unknown."""
    own = [load.busy_cpus for load in loads if load.arm == arm and load.busy_cpus is not None]
    if len(own) >= LEAST_RUNS:
        return median(own)
    if idle_cpus is not None:
        return idle_cpus
    every = [load.busy_cpus for load in loads if load.busy_cpus is not None]
    return min(every) if len(every) >= 2 else None


@dataclass(frozen=True)
class Disturbed:
    """How many blocks a verdict rests on, how many of them only have disturbed attempts, and how many were repeated for it."""

    blocks: int
    left: int
    repeated: int


def combined(clean: Comparison | None, every: Comparison, disturbed: Disturbed) -> Comparison:
    """Judge with and without the disturbed blocks: a word that only one of the two has is not said.

    `clean` is None where fewer than two blocks are clean: nothing can be computed from them.
    """
    shown = clean or every
    if clean is None or clean.word != every.word:
        without = f"{clean.word} without them" if clean else "cannot be computed without them"
        numbers = sentence_of(replace(shown, word="INCONCLUSIVE", difference=None)).partition(": ")[2]
        return replace(
            shown,
            word="INCONCLUSIVE",
            difference=None,
            sentence=f"INCONCLUSIVE at {percent(shown.margin)}: other programs disturbed {disturbed.left + disturbed.repeated} "
            f"of {counted(disturbed.blocks, 'block')}; the verdict is {every.word} with them and {without}; {numbers}",
            needed=Needed(None, "free the machine of other programs, and compare again"),
        )
    if disturbed.left:
        left_out = f"{disturbed.left} of {counted(disturbed.blocks, 'block')} disturbed by other programs and left out"
        shown = replace(shown, sentence=f"{shown.sentence}; {left_out}")
    note = f"with the blocks that other programs disturbed it is {every.word} too: ratio {every.ratio:.4f}"
    if disturbed.repeated:
        note = f"{counted(disturbed.repeated, 'disturbed block')} measured again; {note}"
    return replace(shown, notes=(*shown.notes, note))
