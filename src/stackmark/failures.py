"""Explain why a worker ended where it could not say so itself: what a place, a node or a cluster saw."""

import re
import signal
from dataclasses import dataclass

# The worker ended well, and the end of what it printed was lost on the way.
LOG_INCOMPLETE = "log_incomplete"
# A run that was trained to its limit without reaching its target quality: a result, whose time is only known to be longer.
TARGET_NOT_REACHED = "target_not_reached"
# What runc prints where the kernel cannot run a container's first program: an image for another architecture, or a script
# without its first line.
FOREIGN_PROGRAM = re.compile(
    r"^exec \S+: exec format error$|exec user process caused[^\n]*exec format error", re.MULTILINE
)


@dataclass(frozen=True)
class PlaceFailure:
    """A failure that the place saw. `kind` is for programs; its meaning never changes."""

    kind: str
    message: str
    hint: str = ""


def signal_name(number: int) -> str:
    return signal.Signals(number).name if number in {int(s) for s in signal.Signals} else f"signal {number}"


def killed(number: int, oom: bool) -> PlaceFailure:
    """Describe the end of a worker by a signal; `oom` tells whether the kernel's OOM killer struck meanwhile."""
    name = signal_name(number)
    if number == signal.SIGKILL and oom:
        return PlaceFailure(
            "out_of_host_memory", "the kernel's OOM killer ended the worker: the host, or its control group, ran out of memory",
            "use a smaller --batch or fewer --data-workers, or give it more memory",
        )  # fmt: skip
    hints = {
        signal.SIGKILL: "kill -9 or a system limit ended it",
        signal.SIGSEGV: "a library crashed; try --tune off, and see the log: stackmark show RUN --log",
        signal.SIGBUS: "shared memory may be too small: df -h /dev/shm",
    }
    hint = hints.get(signal.Signals(number), "") if name.startswith("SIG") else ""
    return PlaceFailure("killed", f"the worker was ended by {name}", hint)
