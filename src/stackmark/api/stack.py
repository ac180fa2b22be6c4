"""What the stack here is, and what carries the worker elsewhere: a zip file, or an image."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stackmark.api.ledgers import Notice, silent
from stackmark.errors import SpecError
from stackmark.experiments.arms import place_of
from stackmark.experiments.judging import Facts
from stackmark.experiments.probing import look
from stackmark.places.bundle import worker_bundle
from stackmark.places.container.image.making import ImageOptions as ImageRequest
from stackmark.places.container.image.making import ImageResult, make
from stackmark.spec import explain
from stackmark.workloads.command.definition import OWN_COMMAND


@dataclass(frozen=True)
class StackFacts:
    """Facts by subject (host, cpu, gpu, software …), and what could not be found out."""

    facts: Facts
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark facts --json` prints."""
        return {"facts": self.facts, "problems": list(self.problems)}


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
        return {"size_bytes": self.size_bytes, "sha256": self.sha256}


def bundle() -> WorkerBundle:
    """Pack the worker from the files of this stackmark."""
    packed = worker_bundle()
    return WorkerBundle(packed.content, packed.sha256)


# --- the worker's image -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerImage:
    """A recipe for an image of the worker, and the image where it was built or pushed."""

    made: ImageResult
    # The folder that the build context was written to.
    output: Path | None = None

    @property
    def containerfile(self) -> str:
        return self.made.context.containerfile

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark image --json` prints."""
        made, recipe = self.made, self.made.context.recipe
        return {
            "containerfile": self.containerfile,
            "base": recipe.base,
            "base_image": None if recipe.base_tar else recipe.base_image,
            "base_made_of": recipe.base_made_of or None,
            "python": recipe.python,
            "torch": recipe.torch_version if recipe.torch else None,
            "revision": recipe.revision,
            "wheel_sha256": recipe.wheel_sha256,
            "context": str(self.output) if self.output else None,
            "image": asdict(made.image) if made.image else None,
            "pushed": asdict(made.pushed) if made.pushed else None,
        }


def image(*, progress: Notice = silent, **options: Any) -> WorkerImage:
    """Make a recipe for an image of the worker; build and push it where `build` and `push` say so.

    `options` are those of `stackmark image`, by their names with `_` for `-`. `progress` hears every line of a build.
    """
    try:
        wanted = ImageRequest.model_validate(options)
    except ValidationError as error:
        raise SpecError(explain(error), hint="see: stackmark image --help") from error
    return WorkerImage(make(wanted, progress), wanted.output)
