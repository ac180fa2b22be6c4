"""The suite: its cases in a table, run one after the other, and a clean-up that leaves nothing behind.

It is safe on a shared cluster: everything is made in a namespace of its own (or in one that was named), is small, carries our
labels and the suite's, and only what carries them is removed. A case that fails stops no other, unless no pod starts at all.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from stackmark.cluster.checks import around, devices, lifecycle
from stackmark.cluster.checks.capacity import fairly, fitting, namespace_for, sized
from stackmark.cluster.checks.work import Case, Checked, LeftOut, Result, Work, explained
from stackmark.errors import ClusterError, SpecError, Terminated, nearest_names
from stackmark.kubernetes.client import ApiError, connect
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.place import PodPlace

MANY, LIMIT_S = 10, 120.0
# The first pod's image may have to be pulled.
START_LIMIT_S = 600.0
STARTS = "starts"
CASES: tuple[Case, ...] = (
    Case("image", STARTS, "one", around.starts),
    *(
        Case("cpu", name, scope, do("cpu", scope))
        for scope in ("one", "many")
        for name, do in (
            ("create", lifecycle.create), ("logs", lifecycle.logs), ("exec", lifecycle.execute),
            ("delete", lifecycle.delete),
        )
    ),
    Case("cpu", "a long line in the log", "one", lifecycle.long_line),
    Case("cpu", "delete: grace period", "one", lifecycle.killed_after_grace),
    Case("cpu", "delete: forced", "one", lifecycle.forced),
    Case("job", "completes", "one", lifecycle.completes("one")),
    Case("job", "completes", "many", lifecycle.completes("many")),
    Case("job", "failure is reported", "one", lifecycle.fails),
    Case("gpu", "create", "one", fairly(lifecycle.create("gpu", "one"))),
    Case("gpu", "logs", "one", lifecycle.logs("gpu", "one")),
    Case("gpu", "exec", "one", lifecycle.execute("gpu", "one")),
    Case("gpu", "delete", "one", lifecycle.delete("gpu", "one")),
    Case("gpu", "create", "many", fairly(lifecycle.create("gpu", "many"))),
    Case("gpu", "logs", "many", lifecycle.logs("gpu", "many")),
    Case("gpu", "exec", "many", lifecycle.execute("gpu", "many")),
    Case("devices", "each pod its own", "many", devices.different_devices),
    Case("devices", "CPU pods next to GPU pods", "many", devices.cpu_next_to_gpu),
    Case("gpu", "delete", "many", lifecycle.delete("gpu", "many")),
    Case("devices", "exactly those asked for", "one", fairly(devices.exactly_its_devices)),
    Case("devices", "return after delete", "one", fairly(devices.devices_return)),
    Case("devices", "more than any node has", "one", devices.more_than_any_node),
    Case("devices", "more than are free", "many", fairly(devices.more_than_are_free)),
    Case("policy", "restricted Pod Security", "one", around.restricted),
    Case("policy", "no token, no API", "one", around.no_token),
    Case("network", "names resolve", "one", around.names_resolve),
    Case("network", "a service between pods", "many", around.service_between_pods),
)  # fmt: skip
AREAS = tuple(dict.fromkeys(case.area for case in CASES if case.name != STARTS))


def chosen(areas: Sequence[str]) -> list[Case]:
    unknown = [area for area in areas if area not in AREAS]
    if unknown:
        raise SpecError(
            f"unknown area {unknown[0]!r}{nearest_names(unknown[0], list(AREAS))}",
            hint=f"areas: {', '.join(AREAS)}",
        )
    return [case for case in CASES if not areas or case.area in areas or _is_needed(case, areas)]


def _is_needed(case: Case, areas: Sequence[str]) -> bool:
    """The first pod, and the pods that cases of `devices` look at, which cases of `gpu` make and remove."""
    makes = case.area == "gpu" and case.scope == "many" and case.name in ("create", "delete")
    return case.name == STARTS or (makes and "devices" in areas)


class Watcher(Protocol):
    def notice(self, sentence: str) -> None: ...
    def begins(self, case: Case, number: int, of: int) -> None: ...
    def ended(self, checked: Checked) -> None: ...


@dataclass(frozen=True)
class Suite:
    """The tests that ran, and where."""

    context: str
    server: str
    version: str
    namespace: str
    image: str
    host_software: bool
    many: int
    checked: tuple[Checked, ...]

    def count(self, result: str) -> int:
        return sum(1 for one in self.checked if one.result == result)


def check(
    options: PodOptions,
    watcher: Watcher,
    *,
    many: int | None = None,
    limit_s: float = LIMIT_S,
    areas: Sequence[str] = (),
    partly: Callable[[Suite], None] = lambda _: None,
) -> Suite:
    """Run the suite. `partly` gets what was done of it when it is interrupted, before the interruption goes on."""
    cases = chosen(areas)
    try:
        cluster = connect(options.context, options.kubeconfig, options.namespace)
        with namespace_for(cluster, options, watcher.notice) as namespace:
            small = sized(options, namespace)
            setup = PodPlace(small, kind="check").prepare()
            work = Work(setup, _mark_of(namespace), MANY, limit_s, own_namespace=options.namespace is None)
            work.many = fitting(work, many or MANY, watcher.notice)
            done: list[Checked] = []
            try:
                _run(work, cases, watcher, done)
            except (KeyboardInterrupt, Terminated):
                partly(_suite(work, done))
                raise
            finally:
                _clear(work, watcher)
            return _suite(work, done)
    except ApiError as error:
        raise explained(error, "the check") from error


def _suite(work: Work, done: Sequence[Checked]) -> Suite:
    cluster, setup = work.cluster, work.setup
    version = "unknown"
    with suppress(ClusterError):
        version = cluster.version
    return Suite(
        cluster.context,
        cluster.server,
        version,
        setup.namespace,
        setup.image,
        setup.software is not None,
        work.many,
        tuple(done),
    )


def _mark_of(namespace: str) -> str:
    """The suite's own name: that of its namespace, where it made one."""
    own = namespace.removeprefix("stackmark-check-")
    return f"check-{own}" if own != namespace and len(own) == 8 else f"check-{secrets.token_hex(4)}"


def _run(work: Work, cases: Sequence[Case], watcher: Watcher, done: list[Checked]) -> None:
    broken = False
    for number, case in enumerate(cases, 1):
        watcher.begins(case, number, len(cases))
        if broken:
            checked = Checked(case.area, case.name, case.scope, "left out", 0.0, "no pod starts: see the first test")
        else:
            checked = _tried(work, case)
        broken = broken or (case.name == STARTS and checked.result != "passed")
        done.append(checked)  # before it is told: whoever interrupts then still gets it
        watcher.ended(checked)


def _tried(work: Work, case: Case) -> Checked:
    work.begin(max(START_LIMIT_S, work.limit_s) if case.name == STARTS else work.limit_s)
    began = time.monotonic()
    result: Result = "passed"
    evidence, hint, command = "", "", ""
    try:
        evidence = case.do(work)
    except ClusterError as error:
        said = explained(error, case.name)
        result = "left out" if isinstance(said, LeftOut) else "failed"
        evidence, hint, command = said.message, said.hint or "", said.command or ""
    seconds = time.monotonic() - began
    # What is left of it would be in the way of the next one.
    with suppress(ClusterError):
        work.remove_leftovers()
    return Checked(case.area, case.name, case.scope, result, seconds, evidence, hint, command)


def _clear(work: Work, watcher: Watcher) -> None:
    """Everything of the suite. In a namespace of our own there is nobody whom it could be in the way of: it goes with it."""
    work.groups.clear()
    try:
        work.remove_leftovers(wait_for_all=not work.own_namespace)
    except ClusterError as error:
        watcher.notice(
            f"pods of the tests were left in {work.setup.namespace}: {error.message}; later: stackmark cluster clean"
        )
