"""What `stackmark image` was asked for, checked as a whole, and done in its order: recipe, base, context, build, push."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stackmark.errors import SpecError
from stackmark.frozen import Frozen
from stackmark.places.container.image.build_context import Context, check_folder, compose, find_wheels, write
from stackmark.places.container.image.builders import Builder, Say, find_builder
from stackmark.places.container.image.imaging import Handed, Image, Pushed, build, build_command, handed, push
from stackmark.places.container.image.mirror import MIRROR, DebianBase, make_base
from stackmark.places.container.image.recipes import SUITES, Recipe, read_recipe, read_reference
from stackmark.places.container.trouble import shell

# What `--from-mirror` without an address means.
USUAL_MIRROR = "usual"


class ImageOptions(Frozen):
    """The options, by their names on the command line."""

    base: str = "debian"
    python: str | None = None
    torch: str | None = None
    cuda: str | None = None
    without_torch: bool = False
    base_image: str | None = None
    from_mirror: str | None = None
    wheels: Path | None = None
    offline: bool = False
    ca: Path | None = None
    pip_conf: Path | None = None
    output: Path | None = None
    build: bool = False
    fresh: bool = False
    tag: str | None = None
    push: str | None = None
    tls_verify: bool | None = None
    engine: str | None = None

    def checked(self) -> Recipe:
        if self.from_mirror and (self.base != "debian" or self.base_image):
            raise SpecError("--from-mirror makes the base debian: it goes with no other, and not with --base-image")
        if self.from_mirror and not (self.build or self.output):
            raise SpecError("--from-mirror makes a base, which takes a minute", hint="add --build, or --output FOLDER")
        if self.tag and not (self.build or self.push):
            raise SpecError("--tag names an image that is built or pushed", hint="add --build, or --push REF")
        if self.tls_verify is not None and not self.push:
            raise SpecError("--tls-verify is for --push")
        for option, name in (("--tag", self.tag), ("--push", self.push)):
            if name is not None and read_reference(option, name)["digest"]:
                raise SpecError(
                    f"{option}: a digest is what comes of an image, and cannot be chosen", hint="name a tag"
                )
        return read_recipe(
            self.base,
            python=self.python,
            torch=self.torch,
            cuda=self.cuda,
            without_torch=self.without_torch,
            base_image=self.base_image,
        )


@dataclass(frozen=True)
class ImageResult:
    context: Context
    name: str
    image: Image | None = None
    pushed: Pushed | None = None


def make(asked: ImageOptions, say: Say, environment: Mapping[str, str] | None = None) -> ImageResult:
    environment = os.environ if environment is None else environment
    recipe = asked.checked()
    given = handed(asked.ca, asked.pip_conf, environment, fresh=asked.fresh)
    name = asked.tag or recipe.tag
    # Before the base: nobody should wait a minute to hear that something else is wrong.
    find_wheels(asked.wheels, offline=asked.offline)
    if asked.output:
        check_folder(asked.output)
    builder = find_builder(asked.engine, environment) if asked.build or asked.push else None
    base = _base(asked, recipe, environment, say) if asked.from_mirror else None
    context = compose(recipe, wheels=asked.wheels, offline=asked.offline, base=base)
    image = pushed = None
    if builder and asked.build:
        image = build(builder, context, name, given, say, asked.output)
    elif asked.output:
        write(context, asked.output)
    if builder and asked.push:
        pushed = push(builder, name, asked.push, asked.tls_verify, say)
    return ImageResult(context, name, image, pushed)


def _base(asked: ImageOptions, recipe: Recipe, environment: Mapping[str, str], say: Say) -> DebianBase:
    mirror = MIRROR if asked.from_mirror in (None, USUAL_MIRROR) else asked.from_mirror
    cache = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or "/root") / ".cache"
    return make_base(SUITES[recipe.python], mirror, Path(cache) / "stackmark/bases", say)


def command_elsewhere(made: ImageResult) -> str:
    """How a context that was written is built where it was carried to, from inside the folder."""
    return shell(build_command(Builder("podman", ("podman",)), Path("."), made.name, Handed()))
