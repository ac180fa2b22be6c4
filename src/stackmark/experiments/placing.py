"""Places by their names: ours in a static table, other people's by the entry point group `stackmark.places`.

An entry has a model of its options, from which the keys of `--arm` and the command line's options are made, and a function
that makes the place. Somebody else's entry point gives a `PlaceKind`.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from pydantic import JsonValue, ValidationError

from stackmark.errors import SpecError, nearest_names
from stackmark.places.container.options import ContainerOptions
from stackmark.places.container.place import ContainerPlace, remove_left
from stackmark.places.host import HostOptions, HostPlace
from stackmark.places.place import Place, PlaceKind, PlaceOptions
from stackmark.places.pod.options import PodOptions
from stackmark.spec import explain


def _host(options: PlaceOptions, cache: Path | None) -> Place:
    assert isinstance(options, HostOptions)
    return HostPlace(cache=cache, options=options)


def _container(options: PlaceOptions, cache: Path | None) -> Place:
    assert isinstance(options, ContainerOptions)
    return ContainerPlace(options, cache)


def _pod(options: PlaceOptions, cache: Path | None) -> Place:
    assert isinstance(options, PodOptions)
    from stackmark.places.pod.place import PodPlace

    return PodPlace(options, cache)


def _remove_pod(run_id: str, handle: Mapping[str, JsonValue]) -> list[str]:
    from stackmark.kubernetes.orphans import remove_left as remove_left_pod

    return remove_left_pod(run_id, handle)


PLACES: dict[str, PlaceKind] = {
    "host": PlaceKind("host", HostOptions, _host),
    "container": PlaceKind("container", ContainerOptions, _container, remove_left),
    "pod": PlaceKind("pod", PodOptions, _pod, _remove_pod, leads=True),
}


def place_kinds() -> dict[str, PlaceKind]:
    """Ours, and those of other packages; a name of ours cannot be taken by another."""
    table = dict(PLACES)
    for point in entry_points(group="stackmark.places"):
        if point.name not in table:
            kind = point.load()
            if not isinstance(kind, PlaceKind):
                raise SpecError(f"the place {point.name!r} of another package ({point.value}) is no PlaceKind")
            table[point.name] = kind
    return table


def find_kind(name: str) -> PlaceKind:
    known = place_kinds()
    if name not in known:
        raise SpecError(
            f"there is no place {name!r}{nearest_names(name, list(known))}", hint=f"places: {', '.join(known)}"
        )
    return known[name]


def find_place(name: str, options: Mapping[str, JsonValue] | None = None, cache: Path | None = None) -> Place:
    """The place of that name with these options, as they were typed or as they are stored."""
    kind = find_kind(name)
    given = dict(options or {})
    unknown = [key for key in given if key not in kind.options.model_fields]
    if unknown:
        fields = list(kind.options.model_fields)
        raise SpecError(
            f"the place {name} has no option {unknown[0]!r}{nearest_names(unknown[0], fields)}",
            hint=f"its options: {', '.join(fields)}" if fields else f"{name} takes no options",
        )
    try:
        read = kind.options.model_validate(given)
    except ValidationError as error:
        raise SpecError(f"{name}: {explain(error)}", hint="see: stackmark compare --help") from error
    return kind.make(read, cache)
