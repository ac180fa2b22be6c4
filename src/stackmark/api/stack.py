"""Collect the facts of this stack, and build what carries the worker elsewhere: a zip file, and an image to run in."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import ValidationError

from stackmark.api.ledgers import Notice, silent
from stackmark.errors import SEE_HELP, SpecError
from stackmark.experiments.arms import place_of
from stackmark.experiments.judging import Facts
from stackmark.experiments.probing import look
from stackmark.places.bundle import worker_bundle
from stackmark.places.container.image.making import ImageOptions as ImageRequest
from stackmark.places.container.image.making import ImageResult, make
from stackmark.schemas import with_schema
from stackmark.spec import explain
from stackmark.workloads.command.definition import OWN_COMMAND


@dataclass(frozen=True)
class StackFacts:
    """Facts by subject (host, cpu, gpu, software …), and what could not be found out."""

    facts: Facts
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark facts --json` prints."""
        return with_schema("facts", {"facts": self.facts, "problems": list(self.problems)})


def facts(subjects: Sequence[str] = (), *, on: str = "host") -> StackFacts:
    """Ask a worker what the stack is as it sees it: all subjects, or those that are named.

    `on` is a place as an arm names it: `container,image=…`.
    """
    seen = look(place_of(on, OWN_COMMAND, {}), tuple(subjects))  # only the place counts, not what runs there
    return StackFacts(seen.facts, tuple(seen.problems))


# --- the worker as a zip file -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerBundle:
    """The zip file that any image with Python runs as a worker."""

    content: bytes = field(repr=False)
    sha256: str

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark bundle --json` prints, but the path."""
        return with_schema("bundle", {"size_bytes": self.size_bytes, "sha256": self.sha256})


def bundle() -> WorkerBundle:
    """Pack the worker from the files of this stackmark."""
    packed = worker_bundle()
    return WorkerBundle(packed.content, packed.sha256)


# --- an image for a worker ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerImage:
    """A recipe for an image with Python and torch, and the image where it was built."""

    made: ImageResult

    @property
    def containerfile(self) -> str:
        return self.made.containerfile

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark image --json` prints."""
        return with_schema("image", asdict(self.made))


def image(*, progress: Notice = silent, **options: Any) -> WorkerImage:
    """Read the recipe of an image that a worker can run in; build it where `build` says so.

    `options` are those of `stackmark image`, by their names with `_` for `-`. `progress` hears every line of a build.
    """
    try:
        wanted = ImageRequest.model_validate(options)
    except ValidationError as error:
        raise SpecError(explain(error), hint=SEE_HELP) from error
    return WorkerImage(make(wanted, progress))
