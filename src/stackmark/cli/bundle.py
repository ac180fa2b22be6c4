"""`stackmark bundle`."""

from pathlib import Path

import click

from stackmark.cli.options import json_option, not_empty
from stackmark.cli.saying import notice, print_json
from stackmark.errors import Exit


@click.command(
    "bundle",
    epilog="""\b
Examples:
  stackmark bundle                                    # ./worker.pyz
  stackmark bundle -o - | sha256sum
\b
By hand, in any image that has Python 3.10 or newer:
  echo '{"do":"facts","lifeline":false}' |
    podman run --rm -i -v ./worker.pyz:/w.pyz:ro IMAGE python3 /w.pyz
""",
)
@click.option(
    "-o",
    "--output",
    default="worker.pyz",
    show_default=True,
    metavar="FILE",
    callback=not_empty,
    help="The file; - is standard output.",
)
@json_option
def command(output: str, as_json: bool) -> int:
    """Write the worker as one zip file: what stackmark runs in an image that contains nothing of it.

    The same version of stackmark gives the same bytes. Runs made with it name its SHA-256 in their facts.
    """
    from stackmark.api.stack import bundle
    from stackmark.show.writing import STANDARD_OUTPUT, check_writable, write_whole

    path = Path(output)
    if as_json and path == STANDARD_OUTPUT:
        raise click.UsageError("--json and -o - both write to standard output: give one of them")
    check_writable(path)
    made = bundle()
    write_whole(path, made.content)
    if path == STANDARD_OUTPUT:
        notice(f"{made.size_bytes:,} bytes, sha256 {made.sha256}")
    elif as_json:
        print_json({**made.to_dict(), "path": str(path)})
    else:
        click.echo(f"{path}: {made.size_bytes:,} bytes, sha256 {made.sha256}")
    return Exit.DONE
