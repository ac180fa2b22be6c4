"""Find a place by its name: ours in a static table, other packages' by the entry point group `stackmark.places`.

A `PlaceKind` has a model of its options, from which the keys of `--arm` and the command line's options are made, and a
function that makes the place. An entry point of another package gives a `PlaceKind` (docs/extending.md).
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue, ValidationError

from stackmark.errors import SEE_HELP, SpecError, nearest_names
from stackmark.extensions import extensions
from stackmark.places.container.options import ContainerOptions
from stackmark.places.container.place import ContainerPlace, remove_left
from stackmark.places.host import HostOptions, HostPlace
from stackmark.places.place import Place, PlaceKind, PlaceOptions
from stackmark.places.pod.options import PodOptions
from stackmark.places.slurm.options import SlurmOptions
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


def _slurm(options: PlaceOptions, cache: Path | None) -> Place:
    assert isinstance(options, SlurmOptions)
    from stackmark.places.slurm.place import SlurmPlace

    return SlurmPlace(options, cache)


def _remove_slurm(run_id: str, handle: Mapping[str, JsonValue]) -> list[str]:
    from stackmark.places.slurm.place import remove_left as remove_left_job

    return remove_left_job(run_id, handle)


GROUP = "stackmark.places"
PLACES: dict[str, PlaceKind] = {
    "host": PlaceKind("host", HostOptions, _host),
    "container": PlaceKind("container", ContainerOptions, _container, remove_left),
    "pod": PlaceKind("pod", PodOptions, _pod, _remove_pod, leads=True),
    "slurm": PlaceKind("slurm", SlurmOptions, _slurm, _remove_slurm, leads=True),
}


def place_kinds() -> dict[str, PlaceKind]:
    """Return our places and those of other packages by their names."""
    table = dict(PLACES)
    for kind in extensions(GROUP, PlaceKind).found.values():
        table.setdefault(kind.name, kind)
    return table


def find_kind(name: str) -> PlaceKind:
    """Return the kind of a place; an unknown name is an error with the nearest ones."""
    known = place_kinds()
    if name not in known:
        extensions(GROUP, PlaceKind).require(name)
        raise SpecError(f"unknown place {name!r}{nearest_names(name, list(known))}", hint=f"places: {', '.join(known)}")
    return known[name]


def find_place(name: str, options: Mapping[str, JsonValue] | None = None, cache: Path | None = None) -> Place:
    """Make the place of that name with these options, as they were typed or as they are stored."""
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
        raise SpecError(f"{name}: {explain(error)}", hint=SEE_HELP) from error
    place = kind.make(read, cache)
    if place.name != name:
        # Its runs would be stored under the other name, and resumed in the other place.
        raise SpecError(f"the place {name} calls itself {place.name!r}", hint=f"its class must have: name = {name!r}")
    return place
