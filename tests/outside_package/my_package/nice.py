"""The place `nice`: the bare host, with the worker started through nice(1)."""

import os
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from stackmark.places.host import HostOptions, HostPlace
from stackmark.places.place import Facts, Place, PlaceKind, PlaceOptions
from stackmark.spec import Spec


class NiceOptions(HostOptions):  # gpus comes from HostOptions
    PLAIN: ClassVar[frozenset[str]] = HostOptions.PLAIN | {"level"}

    level: int = Field(
        default=10, ge=0, le=19, description="how nice the worker is", json_schema_extra={"metavar": "N"}
    )


class NicePlace(HostPlace):
    name = "nice"

    def __init__(self, options: NiceOptions, cache: Path | None) -> None:
        super().__init__(cache=cache, options=options)
        self._level = options.level

    def command(self) -> list[str]:
        return ["nice", "-n", str(self._level), *super().command()]

    def not_enforced(self, spec: Spec, facts: Facts) -> list[str]:
        found, wanted = facts.get("process", {}).get("nice"), min(os.nice(0) + self._level, 19)
        return [] if found == wanted else [f"the worker's niceness is {found}, not {wanted}"]


def make(options: PlaceOptions, cache: Path | None) -> Place:
    assert isinstance(options, NiceOptions)
    return NicePlace(options, cache)


NICE = PlaceKind("nice", NiceOptions, make)
