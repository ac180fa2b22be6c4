"""`stackmark image`."""

from pathlib import Path
from typing import Any

import click

from stackmark.cli.options import json_option, not_empty
from stackmark.cli.saying import print_json, verbosity
from stackmark.errors import Exit

FILE = click.Path(path_type=Path)


@click.command(
    "image",
    epilog="""\b
Examples:
  stackmark image > Containerfile              # the recipe; podman build takes it from there
  stackmark image --base cuda --build          # the image, on this machine
  stackmark image --build --from-mirror        # on Debian, without any registry
  stackmark image --build --build-arg TORCH=2.12.0+cpu --tag registry.example.com/team/pytorch:2.12
""",
)
@click.option("--base", default="debian", show_default=True, metavar="debian|ubi9|cuda|ngc", help="What to build on.")
@click.option("--build", is_flag=True, help="Build the image here.")
@click.option("--build-arg", multiple=True, metavar="NAME=VALUE", help="A value for an ARG of the recipe.")
@click.option("--tag", metavar="REF", callback=not_empty, help="The image's name. [default: localhost/pytorch:BASE]")
@click.option(
    "--from-mirror",
    metavar="[URL]",
    is_flag=False,
    flag_value="usual",
    callback=not_empty,
    help="Make the base debian from a Debian mirror; no registry is asked. [default: http://deb.debian.org/debian]",
)
@click.option(
    "--ca",
    type=FILE,
    metavar="FILE",
    help="A private certificate authority, for the build only. [default: what PIP_CERT or SSL_CERT_FILE names]",
)
@click.option("--pip-conf", type=FILE, metavar="FILE", help="pip's settings for the build only: an index of your own.")
@click.option("--fresh", is_flag=True, help="Take no step of an earlier build again.")
@click.option("--engine", type=click.Choice(["podman", "buildah", "docker"]), help="[default: the first that is here]")
@json_option
def command(as_json: bool, **asked: Any) -> int:
    """Print a recipe (Containerfile) for an image that a worker can run in, or build it.

    Any image with Python 3.10 and PyTorch 2.2 or newer does: stackmark brings its worker along. These recipes make one that
    runs under any user id, with a name or without. -v shows every line of a build, -q none.
    """
    from stackmark.api.stack import image
    from stackmark.show.image import print_image, watching_build
    from stackmark.show.terminal import standard_output

    if verbosity() < 0:
        found = image(progress=lambda _line: None, **asked)
    else:
        with watching_build(verbosity() > 0) as progress:
            found = image(progress=progress, **asked)
    if as_json:
        print_json(found.to_dict())
    else:
        print_image(found.made, standard_output())
    return Exit.DONE
