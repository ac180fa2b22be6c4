"""Pin threads to cores: on a CPU a thread that moves from core to core finds none of its data there.

OpenMP reads its variables when it is loaded, with the framework, so this is imported before it. What somebody set is left as it
is. Ranks of one machine share its cores: they are not pinned, since each would pin itself to the same first ones.
"""

import os
import sys

_WANTED = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
# Where this process may run. OpenMP binds the thread that loads it to the first place, so it is asked before.
ALLOWED = frozenset(os.sched_getaffinity(0))


def settle() -> None:
    if "torch" in sys.modules or "WORLD_SIZE" in os.environ:
        return
    for name, value in _WANTED.items():
        os.environ.setdefault(name, value)


def said() -> str:
    """Return whether the threads are pinned, and to what."""
    bound = os.environ.get("OMP_PROC_BIND", "").lower()
    if bound in ("", "false"):
        return "not pinned"
    return f"pinned (OMP_PROC_BIND={bound}, OMP_PLACES={os.environ.get('OMP_PLACES', '')})"
