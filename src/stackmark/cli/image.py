"""`stackmark image`."""

from pathlib import Path
from typing import Any

import click

from stackmark.cli.options import json_option, not_empty
from stackmark.cli.saying import print_json
from stackmark.errors import Exit

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
    from stackmark.api.stack import image
    from stackmark.show.image import print_image, watching_build
    from stackmark.show.terminal import standard_output

    with watching_build(verbose) as progress:
        found = image(progress=progress, **asked)
    if as_json:
        print_json(found.to_dict())
    else:
        print_image(found.made, found.output, standard_output())
    return Exit.DONE
