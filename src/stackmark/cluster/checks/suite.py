"""The suite: its cases in a table, one after the other, and an end that leaves nothing behind.

It is safe on a shared cluster: everything is made in a namespace of its own (or in one that was named), is small, carries our
labels and the suite's, and only what carries them is removed. A case that fails stops no other, unless no pod starts at all.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from stackmark.cluster.checks.case import Case, Checked, LeftOut, Result
from stackmark.cluster.checks.own_namespace import namespace_for
from stackmark.cluster.checks.sizing import fitting, sized
from stackmark.cluster.checks.table import STARTS, chosen
from stackmark.cluster.checks.work import Work, explained
from stackmark.errors import ClusterError, Terminated
from stackmark.kubernetes.client import ApiError, connect
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.place import PodPlace

MANY, LIMIT_S = 10, 120.0
# The first pod's image may have to be pulled.
START_LIMIT_S = 600.0


class Watcher(Protocol):
    def notice(self, sentence: str) -> None: ...
    def begins(self, case: Case, number: int, of: int) -> None: ...
    def ended(self, checked: Checked) -> None: ...


@dataclass(frozen=True)
class Suite:
    """What was checked, and where."""

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
    """Runs the suite. `partly` gets what was done of it when it is interrupted, before the interruption goes on."""
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
            checked = Checked(case.area, case.name, case.scope, "left out", 0.0, "no pod starts: see the first case")
        else:
            checked = _tried(work, case)
        broken = broken or (case.name == STARTS and checked.result != "passed")
        watcher.ended(checked)
        done.append(checked)


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
            f"pods of the check were left in {work.setup.namespace}: {error.message}; later: stackmark cluster clean"
        )
