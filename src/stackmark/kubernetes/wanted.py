"""All that a pod is made from, in one piece: who asks fills it in, and the manifest is a function of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.options import PodOptions
from stackmark.places.container.software import HostSoftware
from stackmark.spec import Task

# The name of the claim in the pod, where GPUs are asked by one (DRA).
CLAIM = "gpus"


@dataclass(frozen=True)
class Wanted:
    """All that a pod is made from."""

    mark: str
    kind: names.Kind
    options: PodOptions
    # Empty where whoever applies it decides.
    namespace: str
    image: str
    # The worker's task, or a command of one's own instead of the worker.
    task: Task | None = None
    command: tuple[str, ...] = ()
    # Pinned: by affinity, so that the scheduler still counts what the node has left.
    node: str | None = None
    gpus: int = 0
    # The host's own folders, read-only; then `python` comes from there.
    software: HostSoftware | None = None
    # A folder of the node that all arms share; only with software.
    cache: str | None = None
    deadline_s: int = 3600
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    sidecars: tuple[Json, ...] = ()
    # Volumes, each with its mount in the worker's container.
    volumes: tuple[tuple[Json, Json], ...] = ()
    # The driver's environment, for proxies and for the host's own software; None: this process's.
    environment: Mapping[str, str] | None = None
    # What the cluster serves claims for devices under: v1 since 1.34, before that v1beta2 or v1beta1.
    claim_version: str = "v1"
    # Whether a driver waits for it: a manifest that is printed belongs to nobody.
    driven: bool = True
    # What the worker cannot see and its facts shall say, beside what is known here.
    about: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
