"""Find blocks that other programs disturbed, and combine the verdicts with and without them.

Other programs' use of the CPUs and of the GPU is measured in every run. A run is disturbed where it met clearly more of it than
its arm usually does; its block is measured again, and the verdict is computed with and without the disturbed blocks. On a machine
with a busy neighbour ln R correlated with its load by -0.99.

What an arm usually meets is the lower quartile of its own runs, and no more than the least of them where another arm met less:
load that an arm causes itself is in all of its runs. Its median was tried first. A neighbour that is busy half of the time moves
the median itself, and two equal arms were called different in 7 % of simulated experiments; now in at most 1 %
(benchmarks/verdicts.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from stackmark.remarks import Remark
from stackmark.units import counted
from stackmark.verdict.cautions import INTERFERENCE
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.covariates import LEAST_ASSOCIATED_BLOCKS
from stackmark.verdict.needed import FREE_MACHINE, after_freeing, percent
from stackmark.verdict.sentence import sentence_of

# A run is disturbed beyond what is usual plus this: less cannot be told from a timer's tick on two cores, and on a hundred
# cores a quarter of one is nothing.
LEAST_CPUS, SHARE_OF_CORES = 0.25, 0.02
# CPU time is counted in ticks of 10 ms on every core: over less than this it says nothing about the others.
LEAST_SECONDS = 1.0
# With this many runs in every arm each has a value of its own; before that the idle machine is what is usual.
LEAST_RUNS = 3


@dataclass(frozen=True)
class Load:
    """The load that one run met: CPUs busy with other programs, and other programs on its GPU; None where unknown."""

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
    """One run that met more load than usual, and how much more."""

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
    usual_cpus = _usual_cpus(loads, idle_cpus)
    for load in loads:
        if load.other_gpu_processes:
            found.append(_disturbed(load, "another program used its GPU"))
            continue
        busy, usual = load.busy_cpus, usual_cpus.get(load.arm)
        if busy is None or usual is None or busy - usual <= allowance_cpus(load.cores):
            continue
        found.append(_disturbed(load, f"other programs kept {busy:.2f} CPUs busy (usual: {usual:.2f})"))
    return found


def _disturbed(load: Load, sentence: str) -> Disturbance:
    return Disturbance(load.arm, load.block, load.attempt, sentence)


def _usual_cpus(loads: Sequence[Load], idle_cpus: float | None) -> dict[int, float]:
    """Return what each arm usually meets; with too few runs the idle machine's value, or the least of all if that is unknown."""
    met: dict[int, list[float]] = {load.arm: [] for load in loads}
    for load in loads:
        if load.busy_cpus is not None:
            met[load.arm].append(load.busy_cpus)
    if min(map(len, met.values()), default=0) >= LEAST_RUNS:
        quartiles = {arm: sorted(values)[(len(values) - 1) // 4] for arm, values in met.items()}
        lowest = min(quartiles.values())
        return {arm: min(quartile, max(lowest, min(met[arm]))) for arm, quartile in quartiles.items()}
    every = [value for values in met.values() for value in values]
    if idle_cpus is None and len(every) < 2:
        return {}
    return dict.fromkeys(met, min(every) if idle_cpus is None else idle_cpus)


def say_interference(loads: Sequence[Load], idle_cpus: float | None = None) -> str:
    """Say what runs met of other programs; nothing where that was too little to disturb a run, or nobody could tell.

    A machine is busy from the same amount on that makes a run a disturbed one. Unlike that rule, this one also names a load that
    was there all the time.
    """
    on_gpu = sum(1 for load in loads if load.other_gpu_processes)
    said = [f"another program used the GPU in {on_gpu} of {counted(len(loads), 'run')}"] if on_gpu else []
    busy = [load.busy_cpus for load in loads if load.busy_cpus is not None]
    cores = max((load.cores for load in loads), default=1)
    sudden = [one for one in disturbances(loads, idle_cpus) if not one.sentence.startswith("another program")]
    usual = median(busy) if busy else 0.0
    if not busy and loads and idle_cpus is not None and idle_cpus > allowance_cpus(cores):
        # The runs are too short to tell; what was measured before them still says that the machine was busy.
        said.append(f"other programs kept {idle_cpus:.2g} of {counted(cores, 'core')} busy before the first run")
    elif usual > allowance_cpus(cores):
        said.append(f"other programs kept {usual:.2g} of {counted(cores, 'core')} busy")
        if sudden:
            said[-1] += f", and more in {len(sudden)} of {counted(len(loads), 'run')}"
    elif sudden:
        most = max(busy)
        said.append(
            f"other programs disturbed {len(sudden)} of {counted(len(loads), 'run')}: they kept up to {most:.2g} of "
            f"{counted(cores, 'core')} busy"
        )
    return "; ".join(said)


@dataclass(frozen=True)
class Disturbed:
    """The number of blocks of a verdict, of those with only disturbed attempts, and of repeated ones.

    `unbalanced` clean blocks were left out too, because without the disturbed ones one arm ran first too often. `again` attempts
    were made beyond the first of each block; the verdict over all blocks includes them.
    """

    blocks: int
    left: int
    repeated: int
    unbalanced: int = 0
    again: int = 0

    @property
    def counts(self) -> str:
        """Say `3 of 4 blocks`, and how many more were measured: they are in the numbers over all blocks."""
        more = f" ({self.again} measured again)" if self.again else ""
        return f"{self.left + self.repeated} of {counted(self.blocks, 'block')}{more}"


def combined(clean: Comparison | None, every: Comparison, disturbed: Disturbed) -> Comparison:
    """Judge with and without the disturbed blocks: SLOWER and FASTER need both, and EQUIVALENT must not be contradicted.

    Load that comes and goes widens the interval over all blocks. An interval that still lies inside the margin is evidence, so
    EQUIVALENT stands where the clean blocks are too few to decide (false in at most 5 % in simulation). A difference needs the
    clean blocks, since load makes differences. `clean` is None where fewer than two blocks are clean.
    """
    if every.word in ("EQUIVALENT", "SCALES") and (clean is None or clean.word == "INCONCLUSIVE"):
        return _with_disturbed_blocks(clean, every, disturbed)
    shown = clean or every
    if clean is None or clean.word != every.word:
        without = f"{clean.word} without them" if clean else "cannot be computed without them"
        numbers = sentence_of(replace(shown, word="INCONCLUSIVE", difference=None)).partition(": ")[2]
        reason = f"other programs disturbed {disturbed.counts}; the verdict is {every.word} with them and {without}"
        return replace(
            shown,
            word="INCONCLUSIVE",
            difference=None,
            sentence=f"INCONCLUSIVE at {percent(shown.margin)}: {reason}; {numbers}",
            caveats=(reason,),
            needed=after_freeing(None),
            notes=(*shown.notes, *_not_separable(disturbed)),
        )
    if disturbed.left:
        left_out = f"{disturbed.left} of {counted(disturbed.blocks, 'block')} disturbed by other programs and left out"
        if disturbed.unbalanced:
            left_out += f", and {disturbed.unbalanced} more to keep the order of the arms balanced"
        shown = replace(shown, sentence=f"{shown.sentence}; {left_out}", caveats=(left_out,))
    if shown.word == "INCONCLUSIVE":
        shown = replace(shown, needed=after_freeing(shown.needed))
    note = f"with the disturbed blocks the verdict is also {every.word}: ratio {every.ratio:.4f}"
    if disturbed.repeated:
        note = f"{counted(disturbed.repeated, 'disturbed block')} measured again; {note}"
    return replace(shown, notes=(*shown.notes, Remark(note, INTERFERENCE), *_not_separable(disturbed)))


def advise_freeing(found: Comparison) -> Comparison:
    """Put first that other programs end, in what would decide a comparison that was made on a busy machine.

    Load that is there all the time disturbs no block, and is still the cheapest thing to remove.
    """
    wanted = found.needed
    if wanted is None or any(one.kind == FREE_MACHINE.kind for one in wanted.advice):
        return found
    return replace(found, needed=after_freeing(wanted))


def _with_disturbed_blocks(clean: Comparison | None, every: Comparison, disturbed: Disturbed) -> Comparison:
    """Return the verdict over all blocks, and say that it includes the disturbed ones."""
    open_question = "the clean blocks alone do not decide" if clean else "fewer than two blocks are clean"
    included = f"other programs disturbed {disturbed.counts}, which are included: {open_question}"
    return replace(
        every,
        difference=None,
        sentence=f"{every.sentence}; {included}",
        caveats=(included,),
        notes=(*every.notes, *_not_separable(disturbed)),
    )


def _not_separable(disturbed: Disturbed) -> tuple[str, ...]:
    """Say that the load's part of the difference is unknown, where there are too few blocks for the covariance line."""
    if disturbed.blocks >= LEAST_ASSOCIATED_BLOCKS:
        return ()
    text = (
        f"the effects of other programs' load and of the arms cannot be separated with {counted(disturbed.blocks, 'block')}; "
        f"from {LEAST_ASSOCIATED_BLOCKS} blocks on, a line shows how the ratio moved with the load"
    )
    return (Remark(text, INTERFERENCE),)
