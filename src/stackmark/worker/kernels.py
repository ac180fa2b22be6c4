"""Record which kernels a run used, as facts: cuDNN and compilers choose by timing, and arms with other kernels are not the
same software.

One step more is done after the measured part, under a profiler, when every number has been read already; so it can
disturb none of them. The distinct names are hashed, in order of the alphabet: how often each was called, and how long it
took, differs from step to step where the names do not. Whatever goes wrong here is a sentence among the facts.
"""

import hashlib

from stackmark import events
from stackmark.machine.facts import PROBLEM_CHARACTERS, TROUBLE
from stackmark.model import JsonValue
from stackmark.worker.stream import Emitter
from stackmark.workloads.workload import Kernel, TimedSteps

SUBJECT = "kernels"
# A step that takes longer is not done again just for its names.
LONGEST_STEP_S = 5.0
HASH_DIGITS = 16
HEAVIEST = 8
# A template's name runs to thousands of characters, and differs at its beginning from the others.
NAME_CHARACTERS = 200


def emit_kernels(emitter: Emitter, ready: TimedSteps, step_s: float) -> None:
    """Profile a step where the workload can, and emits what it called."""
    if ready.profile is None:
        return
    if step_s > LONGEST_STEP_S:
        said = f"no step was profiled: one takes {step_s:.3g} s"
        emitter(events.Facts, subject=SUBJECT, facts={}, problems=[said])
        return
    try:
        with emitter.part(SUBJECT):
            found = ready.profile()
        problems = [] if found else ["the profiler saw no kernels: CUPTI may be missing or forbidden"]
    except (*TROUBLE, AssertionError) as error:  # the profiler asserts what it expects of the driver
        found, problems = [], [f"no step could be profiled: {type(error).__name__}: {error}"[:PROBLEM_CHARACTERS]]
    emitter(events.Facts, subject=SUBJECT, facts=facts_of(found) if found else {}, problems=problems)


def facts_of(kernels: list[Kernel]) -> dict[str, JsonValue]:
    """Return the facts about kernels; arms are compared by `hash`, the rest is for people."""
    names = sorted({kernel.name for kernel in kernels})
    digest = hashlib.sha256("\n".join(names).encode("utf-8", "backslashreplace")).hexdigest()[:HASH_DIGITS]
    heaviest = sorted(kernels, key=lambda kernel: -kernel.seconds)[:HEAVIEST]
    return {
        "hash": digest,
        "count": len(names),
        "heaviest": [kernel.name[:NAME_CHARACTERS] for kernel in heaviest],
    }
