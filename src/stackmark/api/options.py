"""The options of workloads and places, and how given values become a request.

The same for the command line and for keyword arguments. This chapter loads neither the ledger nor the engine: `--help` needs it.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import JsonValue
from pydantic.fields import FieldInfo

from stackmark.errors import SEE_HELP, SpecError, nearest_names
from stackmark.experiments.typed import canonical_place as canonical_place
from stackmark.experiments.typed import canonical_share as canonical_share
from stackmark.experiments.typed import canonical_value as canonical_value
from stackmark.experiments.typed import canonical_workload as canonical_workload
from stackmark.experiments.typed import choices_of as choices_of
from stackmark.experiments.typed import extra_of as extra_of
from stackmark.experiments.typed import pattern_of as pattern_of
from stackmark.experiments.typed import read_seconds as read_seconds
from stackmark.experiments.typed import read_value as read_value
from stackmark.experiments.typed import takes_several as takes_several
from stackmark.model import ValidationError
from stackmark.secrets_masking import masked_command
from stackmark.spec import Request, Scalar, explain
from stackmark.workloads.command.definition import OWN_COMMAND
from stackmark.workloads.registry import check_typed, definitions, find

if TYPE_CHECKING:
    from stackmark.places.place import PlaceKind

# A parameter or an option of a place; an option that may be repeated takes a list.
Option = Scalar | Sequence[str]


def _place_kinds() -> "dict[str, PlaceKind]":
    from stackmark.places.registry import place_kinds  # loads all places, which `workloads` and others do without

    return place_kinds()


def all_places() -> tuple[str, ...]:
    """Return the names of all places."""
    return tuple(_place_kinds())


def places_with() -> dict[str, dict[str, FieldInfo]]:
    """Return every option of every place: by its name, the places that have it, each with its own description."""
    found: dict[str, dict[str, FieldInfo]] = {}
    for kind in _place_kinds().values():
        for name, info in kind.options.model_fields.items():
            found.setdefault(name, {})[kind.name] = info
    return found


def pod_fields() -> dict[str, FieldInfo]:
    """Return the options of a pod."""
    return dict(_place_kinds()["pod"].options.model_fields)


def log_formats() -> tuple[str, ...]:
    """Return the names of the formats that can be imported."""
    from stackmark.ledger.importers import formats

    return tuple(formats())


def check_margin(margin: float) -> None:
    """Refuse a margin that no comparison can have."""
    from stackmark.experiments.design import check_margin as check  # the engine, which --help does without

    check(margin)


def read_request(workload: str, ranks: int, options: Mapping[str, Option]) -> tuple[Request, dict[str, JsonValue]]:
    """Separate the options of places from the parameters of the workload; their names are disjoint."""
    workload = canonical_workload(workload, (one.name for one in definitions()))
    of_places = {name for kind in _place_kinds().values() for name in kind.options.model_fields}
    fields = find(workload)[0].params.model_fields
    params: dict[str, Scalar] = {}
    place_options: dict[str, JsonValue] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in fields:
            if not isinstance(value, str | int | float):
                raise SpecError(f"{name} takes one value, got {value!r}", hint="measure several with several calls")
            params[name] = read_value(name, fields[name], value)
        elif name in of_places:
            place_options[name] = value if isinstance(value, str | int | float) else list(value)
        else:
            known = nearest_names(name, [*fields, *of_places])
            raise SpecError(f"{workload} has no parameter {name!r}{known}", hint=SEE_HELP)
    if workload == OWN_COMMAND:
        params.setdefault("cwd", os.getcwd() if params.get("cmd") else ".")
    try:
        request = Request(workload=workload, params=params, ranks=ranks)
    except ValidationError as error:
        raise SpecError(f"ranks: {explain(error)}") from error
    check_typed(request)
    return request, place_options


def command_of(verb: Sequence[str], workload: str | None, options: Mapping[str, Option]) -> str:
    """Return the command line that does the same; it is stored and shown, so it holds no secret."""
    words = [*verb] if workload in (None, OWN_COMMAND) else [*verb, str(workload)]
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            for one in [value] if isinstance(value, str | int | float) else value:
                words += [f"--{option}", str(one)]
    return repeatable(words)


def repeatable(arguments: Sequence[str]) -> str:
    """Return the command line that repeats a measurement. It is stored and shown, so it holds no secret."""
    from stackmark.ledger.masking import hide_in_arguments  # loads SQLAlchemy, which --help does without

    return masked_command(["stackmark", *hide_in_arguments(arguments)])
