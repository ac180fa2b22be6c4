"""An image for a worker, for people: what a build says while it goes on, and what was made."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from stackmark.places.container.image.builders import short_step
from stackmark.places.container.image.making import ImageResult
from stackmark.show.safe import safe, safe_line
from stackmark.show.terminal import is_screen, standard_error
from stackmark.units import say_size

# What is worth a line of its own, of podman, buildah, docker's BuildKit and mmdebstrap; and sentences of ours.
STEP = re.compile(r"^(STEP \d+/\d+: |#\d+ \[|COMMIT |I: |the base |making a base )")
SHOWN_CHARACTERS = 110


@contextmanager
def watching_build(verbose: bool) -> Iterator[Callable[[str], None]]:
    """Show the newest line in place on a screen, a line a step elsewhere; all of them where that was asked for."""
    console = standard_error()

    def plain(line: str) -> None:
        if verbose or STEP.match(line):
            console.out(safe_line(line) if verbose else short_step(safe_line(line), SHOWN_CHARACTERS), highlight=False)

    if verbose or not is_screen(console):
        yield plain
        return
    with console.status("") as status:

        def live(line: str) -> None:
            plain(line)
            status.update(Text(safe_line(line)[: max(20, console.width - 4)], style="dim"))

        yield live


def print_image(made: ImageResult, console: Console) -> None:
    """Print the image that was built; where none was, the recipe itself."""
    if (image := made.image) is None:
        print(made.containerfile, end="", file=console.file)
        return
    lines = [("image", image.name), ("id", image.id), ("digest", image.digest or "not told by the engine")]
    lines += [("size", say_size(image.size_bytes))] if image.size_bytes else []
    lines += [("base", made.base_made_of)] if made.base_made_of else []
    for name, text in lines:
        console.out(f"{name:<10}{safe(text)}", highlight=False)
