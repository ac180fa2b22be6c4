"""The PyTorch versions that workloads need, and the error for one that is too old. Imports no framework.

An image may have any version from `OLDEST` on. What a single workload needs beyond that is said where it is used, by `lacking`.
"""

import re
import sys

from stackmark.workloads.workload import WorkloadFailure

OLDEST = "2.2"
# From this one on nothing is lacking: the driver's own environment has it or a newer one.
COMPLETE = "2.11"
NEWER = "use an image or an environment with a newer PyTorch"
_NO_ATTRIBUTE = re.compile(r"(?:module|type object) '(?P<where>torch[\w.]*)' has no attribute '(?P<name>\w+)'")


def torch_version() -> str | None:
    """Return the version of PyTorch, where it was imported."""
    torch = sys.modules.get("torch")
    return str(getattr(torch, "__version__", "")) or None


def has_torch(since: str) -> bool:
    """Tell whether PyTorch is of this version or newer; one whose version is not a number is taken for new."""
    found = re.match(r"(\d+)\.(\d+)", torch_version() or "")
    major, _, minor = since.partition(".")
    return found is None or (int(found[1]), int(found[2])) >= (int(major), int(minor))


def lacking(what: str, since: str) -> WorkloadFailure:
    """Return the failure of a workload that needs a newer PyTorch than the one here."""
    return WorkloadFailure("missing_package", f"{what} needs PyTorch {since} or newer, found {torch_version()}", NEWER)


def fused_since(optimizer: str, device: str) -> str:
    """Return the first version of PyTorch that has a fused step of an optimizer."""
    return "2.4" if device == "cpu" else "2.2" if optimizer.startswith("adam") else "2.3"


def refuse_old_torch() -> None:
    """Refuse a PyTorch that no workload runs with. A worker whose workload imported none is not asked for one."""
    if not has_torch(OLDEST):
        raise lacking("a workload", OLDEST)


def explain_lack(error: AttributeError) -> WorkloadFailure | None:
    """Return the failure for a name that this PyTorch does not have; None where the error is about something else."""
    found = _NO_ATTRIBUTE.search(str(error))
    if found is None:
        return None
    message = f"PyTorch {torch_version()} has no {found['where']}.{found['name']}, which this workload uses"
    return WorkloadFailure(
        "missing_package", message, f"{NEWER}: {COMPLETE} or later has everything that workloads use"
    )
