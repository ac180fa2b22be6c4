"""How this cluster's parts are stopped: the one thing about a fault that differs from cluster to cluster.

A means says beforehand what it would do, with which rights, and what heals it; then it does it, and comes back when it is over.
Whatever it starts must end by itself, also when this program is killed in the middle. Ours are in plugin_pod.py, helper.py and
script.py; other packages add theirs by the entry point group `stackmark.cluster_means`, each a function that takes a `Setting`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Protocol

from stackmark.cluster.faults.record import Done, Part
from stackmark.errors import SpecError, nearest_names
from stackmark.kubernetes.client import Cluster, Json
from stackmark.kubernetes.rights import Right

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

    def hurt(self, target: Target, heal: threading.Event) -> Done:
        """Stops the part, waits, starts it again. Once `heal` is set it does so as soon as it can."""


Maker = Callable[[Setting], Means]


def makers() -> dict[str, Maker]:
    from stackmark.cluster.faults.helper import Helper
    from stackmark.cluster.faults.plugin_pod import PluginPod
    from stackmark.cluster.faults.script import Script

    known: dict[str, Maker] = {"plugin-pod": PluginPod, "helper": Helper, "script": Script}
    for point in entry_points(group="stackmark.cluster_means"):
        if point.name not in known:
            known[point.name] = point.load()
    return known


def choose(text: str | None, part: Part) -> tuple[str, str]:
    """The means' name and what follows it. Unless told: the plugin's pod is deleted, all else takes a helper on the node."""
    if text is None:
        return ("plugin-pod" if part == "device-plugin" else "helper"), ""
    name, _, how = text.partition(":")
    known = list(makers())
    if name not in known:
        raise SpecError(
            f"there is no means {name!r}{nearest_names(name, known)}", hint=f"means: {', '.join(known)}; script:PATH"
        )
    return name, how


def make(text: str | None, setting: Setting) -> Means:
    name, how = choose(text, setting.part)
    return makers()[name](replace(setting, how=how))
