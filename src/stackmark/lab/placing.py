"""Places by their names: ours in a static table, other people's by the entry point group `stackmark.places`."""

from collections.abc import Callable
from importlib.metadata import entry_points

from stackmark.errors import SpecError, nearest_names
from stackmark.places.host import HostPlace
from stackmark.places.place import Place

PLACES: dict[str, Callable[[], Place]] = {"host": HostPlace}


def find_place(name: str) -> Place:
    if name in PLACES:
        return PLACES[name]()
    others = {point.name: point for point in entry_points(group="stackmark.places")}
    if name not in others:
        known = [*PLACES, *others]
        raise SpecError(f"there is no place {name!r}{nearest_names(name, known)}", hint=f"places: {', '.join(known)}")
    place: Place = others[name].load()()
    return place
