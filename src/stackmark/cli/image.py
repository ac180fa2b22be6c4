"""`stackmark image`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stackmark.cli.options import json_option, not_empty
from stackmark.cli.saying import print_json
from stackmark.errors import Exit

if TYPE_CHECKING:
    from stackmark.places.container.image.builders import Say
    from stackmark.places.container.image.making import ImageResult

# What is worth a line of its own, of podman, buildah, docker's BuildKit and mmdebstrap; and sentences of ours.
STEP = re.compile(r"^(STEP \d+/\d+: |#\d+ \[|COMMIT |I: |the base |making a base )")
SHOWN_CHARACTERS = 110
FOLDER = click.Path(path_type=Path)


@click.command(
    "image",
    epilog="""\b
Examples:
  stackmark image                                     # the recipe, on standard output
  stackmark image --base ubi9 --output context        # all that a build elsewhere needs
  stackmark image --base cuda --build                 # the image, on this machine
  stackmark image --build --from-mirror               # on Debian, without any registry
  stackmark image --build --push registry.example.com/team/stackmark-worker:0.1.0
""",
)
@click.option("--base", default="debian", show_default=True, metavar="debian|ubi9|cuda|ngc", help="What to build on.")
@click.option("--python", metavar="VERSION", callback=not_empty, help="The base's Python, where it has several: 3.11.")
@click.option("--torch", metavar="VERSION", callback=not_empty, help="torch's version. [default: the one of our tests]")
@click.option(
    "--cuda",
    metavar="BUILD",
    callback=not_empty,
    help="torch's build: cpu, cu130, rocm7.0. [default: cpu; cu130 with --base cuda]",
)
@click.option("--without-torch", is_flag=True, help="Leave torch out: facts, and commands of your own, still run.")
@click.option("--base-image", metavar="REF", callback=not_empty, help="Another image as the base, by tag or digest.")
@click.option(
    "--from-mirror",
    metavar="[URL]",
    is_flag=False,
    flag_value="usual",
    callback=not_empty,
    help="Make the base debian from a Debian mirror; no registry is asked. [default: http://deb.debian.org/debian]",
)
@click.option("--wheels", type=FOLDER, metavar="FOLDER", help="Wheels to take beside those of an index.")
@click.option("--offline", is_flag=True, help="Take the wheels of --wheels alone.")
@click.option(
    "--ca",
    type=FOLDER,
    metavar="FILE",
    help="A private certificate authority, for the build only. [default: what PIP_CERT or SSL_CERT_FILE names]",
)
@click.option(
    "--pip-conf", type=FOLDER, metavar="FILE", help="pip's settings for the build only: an index of your own."
)
@click.option("-o", "--output", type=FOLDER, metavar="FOLDER", help="Write the build context there.")
@click.option("--build", is_flag=True, help="Build the image here.")
@click.option("--fresh", is_flag=True, help="Take no step of an earlier build again.")
@click.option("--tag", metavar="REF", callback=not_empty, help="Its name. [default: localhost/stackmark-worker:…]")
@click.option("--push", metavar="REF", callback=not_empty, help="Push it there, just built or built before.")
@click.option("--tls-verify", type=bool, metavar="true|false", help="false: push to a registry without TLS.")
@click.option("--engine", type=click.Choice(["podman", "buildah", "docker"]), help="[default: the first that is here]")
@click.option("--verbose", is_flag=True, help="Show every line of a build.")
@json_option
def command(verbose: bool, as_json: bool, **asked: Any) -> int:
    """Print a recipe (Containerfile) for an image of the worker; write it down, build it, push it.

    The image holds stackmark's worker with its pinned packages, and runs under any user id, with a name or without.
    """
    from stackmark.places.container.image.making import ImageOptions, make

    wanted = ImageOptions.model_validate(asked)
    with _progress(verbose) as say:
        made = make(wanted, say)
    if as_json:
        print_json(_data(made, wanted.output))
    else:
        _tell(made, wanted.output)
    return Exit.DONE


@contextmanager
def _progress(verbose: bool) -> "Iterator[Say]":
    """On a screen the newest line in place, elsewhere a line a step; all of them where that was asked for."""
    from stackmark.places.container.image.builders import short_step
    from stackmark.show.safe import safe_line
    from stackmark.show.terminal import is_screen, standard_error

    console = standard_error()

    def plain(line: str) -> None:
        if verbose or STEP.match(line):
            console.out(safe_line(line) if verbose else short_step(safe_line(line), SHOWN_CHARACTERS), highlight=False)

    if verbose or not is_screen(console):
        yield plain
        return
    from rich.text import Text

    with console.status("") as status:

        def live(line: str) -> None:
            plain(line)
            status.update(Text(safe_line(line)[: max(20, console.width - 4)], style="dim"))

        yield live


def _tell(made: "ImageResult", output: Path | None) -> None:
    from stackmark.places.container.image.making import command_elsewhere
    from stackmark.show.safe import safe
    from stackmark.show.terminal import standard_output
    from stackmark.units import say_size

    if not (output or made.image or made.pushed):
        click.echo(made.context.containerfile, nl=False)
        return
    lines = []
    if output:
        lines += [("context", str(output)), ("build it", f"cd {output} && {command_elsewhere(made)}")]
    if image := made.image:
        lines += [("image", image.name), ("id", image.id), ("digest", image.digest or "not told by the engine")]
        lines += [("size", say_size(image.size_bytes))] if image.size_bytes else []
        recipe = made.context.recipe
        lines += [("base", recipe.base_made_of or f"{recipe.base_image}@{image.base_digest or 'digest not told'}")]
    if made.pushed:
        lines += [("pushed", f"{made.pushed.name}@{made.pushed.digest or 'digest not told'}")]
    console = standard_output()
    for name, text in lines:
        console.out(f"{name:<10}{safe(text)}", highlight=False)


def _data(made: "ImageResult", output: Path | None) -> dict[str, object]:
    recipe = made.context.recipe
    return {
        "containerfile": made.context.containerfile,
        "base": recipe.base,
        "base_image": None if recipe.base_tar else recipe.base_image,
        "base_made_of": recipe.base_made_of or None,
        "python": recipe.python,
        "torch": recipe.torch_version if recipe.torch else None,
        "revision": recipe.revision,
        "wheel_sha256": recipe.wheel_sha256,
        "context": str(output) if output else None,
        "image": asdict(made.image) if made.image else None,
        "pushed": asdict(made.pushed) if made.pushed else None,
    }
