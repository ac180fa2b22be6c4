"""The build context of an image: all that a build needs beside its base, as a folder.

It can be carried to a machine that reaches what this one does not, and built there with one command. Only what the recipe
names is handed to the engine; the rest of the folder is ignored.
"""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from stackmark.errors import SpecError
from stackmark.places.container.image import wheel
from stackmark.places.container.image.containerfile import containerfile
from stackmark.places.container.image.mirror import DebianBase
from stackmark.places.container.image.recipes import Recipe, constraints, requirements

BASE_TAR = "base.tar"
WHEELS = "wheels"


@dataclass(frozen=True)
class Context:
    recipe: Recipe
    texts: Mapping[str, bytes]
    # Files that are too large to be read: where they come from, by their place in the context.
    files: Mapping[str, Path]

    @property
    def containerfile(self) -> str:
        return self.texts["Containerfile"].decode()


def compose(
    recipe: Recipe, *, wheels: Path | None = None, offline: bool = False, base: DebianBase | None = None
) -> Context:
    """Everything but the base, in memory; what is large stays where it is until it is written."""
    brought = find_wheels(wheels, offline=offline)
    ours = wheel.pack()
    recipe = replace(
        recipe,
        wheel=ours.name,
        wheel_sha256=ours.sha256,
        revision=ours.revision,
        wheels=bool(brought),
        torch_brought=any(path.name.startswith(f"torch-{recipe.torch_version}-") for path in brought),
        offline=offline,
        base_tar=BASE_TAR if base else None,
        base_made_of=base.made_of if base else "",
    )
    files = {f"{WHEELS}/{path.name}": path for path in brought}
    if base:
        files[BASE_TAR] = base.tar
    texts = {
        "Containerfile": containerfile(recipe).encode(),
        "requirements.txt": requirements().encode(),
        "constraints.txt": constraints(recipe).encode(),
        ours.name: ours.data,
    }
    named = [
        "requirements.txt",
        "constraints.txt",
        ours.name,
        *([WHEELS] if brought else []),
        *([BASE_TAR] if base else []),
    ]
    ignore = "".join(["*\n", *(f"!{name}\n" for name in named)]).encode()
    return Context(recipe, {**texts, ".containerignore": ignore, ".dockerignore": ignore}, files)


def find_wheels(folder: Path | None, *, offline: bool) -> list[Path]:
    if folder is None:
        if offline:
            raise SpecError(
                "--offline asks no index, so the wheels must be brought along",
                hint="name their folder: --wheels FOLDER",
            )
        return []
    if not folder.is_dir():
        raise SpecError(f"--wheels: there is no folder {folder}")
    found = sorted(path for path in folder.glob("*.whl") if path.is_file())
    if not found:
        raise SpecError(
            f"--wheels: {folder} holds no wheels (*.whl)", hint="fill it with: pip download --dest FOLDER …"
        )
    return found


def check_folder(folder: Path) -> None:
    """A context goes into a new or empty folder, or over an earlier context."""
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder} is no folder")
    if folder.is_dir() and any(folder.iterdir()) and not _is_ours(folder):
        raise SpecError(f"{folder} holds something else already", hint="name a new or an empty folder")


def write(context: Context, folder: Path) -> None:
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("stackmark-*.whl"), folder / BASE_TAR]:
        old.unlink(missing_ok=True)
    shutil.rmtree(folder / WHEELS, ignore_errors=True)
    for name, data in context.texts.items():
        (folder / name).write_bytes(data)
    for name, source in context.files.items():
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        try:
            os.link(source.resolve(), target)  # gigabytes, and nobody writes to them
        except OSError:
            shutil.copyfile(source, target)


def _is_ours(folder: Path) -> bool:
    with suppress(OSError, UnicodeDecodeError):
        return (folder / "Containerfile").read_text().startswith("# A worker of stackmark ")
    return False
