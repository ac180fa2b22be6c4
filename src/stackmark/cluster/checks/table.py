"""The cases in their order. Those of one kind of pod come one after the other, since they are about the same pods."""

from collections.abc import Sequence

from stackmark.cluster.checks import around, devices, jobs, lifecycle
from stackmark.cluster.checks.case import Case
from stackmark.cluster.checks.free import fairly
from stackmark.errors import SpecError, nearest_names

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
    Case("job", "completes", "one", jobs.completes("one")),
    Case("job", "completes", "many", jobs.completes("many")),
    Case("job", "failure is reported", "one", jobs.fails),
    Case("gpu", "create", "one", fairly(lifecycle.create("gpu", "one"))),
    Case("gpu", "logs", "one", lifecycle.logs("gpu", "one")),
    Case("gpu", "exec", "one", lifecycle.execute("gpu", "one")),
    Case("gpu", "delete", "one", lifecycle.delete("gpu", "one")),
    Case("gpu", "create", "many", fairly(lifecycle.create("gpu", "many"))),
    Case("gpu", "logs", "many", lifecycle.logs("gpu", "many")),
    Case("gpu", "exec", "many", lifecycle.execute("gpu", "many")),
    Case("devices", "each pod its own", "many", devices.different_devices),
    Case("devices", "CPU pods beside GPU pods", "many", devices.cpu_beside_gpu),
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
            f"there is no area {unknown[0]!r}{nearest_names(unknown[0], list(AREAS))}",
            hint=f"areas: {', '.join(AREAS)}",
        )
    return [case for case in CASES if not areas or case.area in areas or _is_needed(case, areas)]


def _is_needed(case: Case, areas: Sequence[str]) -> bool:
    """The first pod, and the pods that cases of `devices` look at, which cases of `gpu` make and remove."""
    makes = case.area == "gpu" and case.scope == "many" and case.name in ("create", "delete")
    return case.name == STARTS or (makes and "devices" in areas)
