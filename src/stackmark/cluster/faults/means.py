"""How this cluster's parts are stopped: the one thing about a fault that differs from cluster to cluster.

A means says beforehand what it would do, with which rights, and what heals it; then it does it, and comes back when it is over.
Whatever it starts must end by itself, also when this program is killed in the middle. Ours (plugin_pod.py,
helper.py, script.py) and those of other packages are announced in the group `stackmark.cluster_means` (extensions.py), each a
class that is made from a `Setting`.
"""

import threading
from dataclasses import dataclass, field, replace
from typing import Protocol

from stackmark.cluster.faults.record import FaultTimes, Part
from stackmark.errors import SpecError, nearest_names
from stackmark.extensions import extensions
from stackmark.kubernetes.client import Cluster, Json
from stackmark.kubernetes.rights import Right

GROUP = "stackmark.cluster_means"
# By this variable a test cluster's means is named once for all commands.
VARIABLE = "STACKMARK_CLUSTER_MEANS"


@dataclass(frozen=True)
class Plan:
    """What would be done, a sentence each; what undoes it; and what may be needed to do so."""

    does: tuple[str, ...]
    heals: tuple[str, ...]
    rights: tuple[Right, ...] = ()
    # What a person should know before they say yes.
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """`node` is where the part is; `mark` is in the name of whatever is made for it."""

    part: Part
    node: str
    seconds: float
    mark: str


@dataclass(frozen=True)
class Setting:
    """What a means is made from. `how` is what follows its name: `script:PATH`."""

    cluster: Cluster
    part: Part
    namespace: str
    image: str
    how: str = ""
    plugin_selector: str | None = None
    stop_command: str | None = None
    start_command: str | None = None
    distribution: str | None = None
    # The worker's container, from which a helper takes image, mounts and account; and the nodes as the API shows them.
    worker: Json = field(default_factory=dict)
    volumes: tuple[Json, ...] = ()
    nodes: tuple[Json, ...] = ()


class Means(Protocol):
    name: str
    # How long it takes from being told until the part is gone, at most: the workload trains that much longer.
    lead_s: float

    def plan(self, target: Target) -> Plan:
        """Nothing is changed. Raises SpecError or ClusterError where it cannot be done here."""

    def hurt(self, target: Target, heal: threading.Event) -> FaultTimes:
        """Stops the part, waits, starts it again. Once `heal` is set it does so as soon as it can."""


def choose(text: str | None, part: Part) -> tuple[str, str]:
    """The means' name and what follows it. Unless told: the plugin's pod is deleted, all else takes a helper on the node."""
    if text is None:
        return ("plugin-pod" if part == "device-plugin" else "helper"), ""
    name, _, how = text.partition(":")
    makers = extensions(GROUP, type)
    if name not in makers.found:
        makers.require(name)
        known = list(makers.found)
        raise SpecError(
            f"there is no means {name!r}{nearest_names(name, known)}", hint=f"means: {', '.join(known)}; script:PATH"
        )
    return name, how


def make(text: str | None, setting: Setting) -> Means:
    name, how = choose(text, setting.part)
    made: Means = extensions(GROUP, type).found[name](replace(setting, how=how))
    return made
