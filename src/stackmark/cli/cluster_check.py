"""`stackmark cluster check`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stackmark.cli.options import json_option, not_empty, pod_options, seconds_of, taken_pod_options

if TYPE_CHECKING:
    from stackmark.api.clusters import ClusterTests


@click.command(
    "check",
    epilog="""\b
Examples:
  stackmark cluster check
  stackmark cluster check --image registry.example/stackmark:1 --pods 50 --junit check.xml
  stackmark cluster check --namespace team-a --area cpu --area devices
""",
)
@click.option(
    "--pods", type=click.IntRange(2, 1000), metavar="N", help="How many are many. [default: 10, or what fits]"
)
@click.option("--area", "areas", multiple=True, metavar="NAME", callback=not_empty,
              help="Only this area: cpu, job, gpu, devices, policy or network; may be repeated.")  # fmt: skip
@click.option("--time-limit", metavar="TIME", default="2min", help="End a case that takes longer. [default: 2min]")
@click.option("--junit", metavar="FILE", callback=not_empty, help="Also write JUnit XML.")
@click.option(
    "--image", metavar="TEXT", help="An image with a shell (sh), any; without it the host's own software, on a node."
)
@click.option("--namespace", metavar="TEXT", help="Make everything in this one; else in a new one, which is removed.")
@click.option(
    "--gpus", metavar="TEXT", help="How many GPUs may be held at once: a number, or none. [default: those free]"
)
# A case runs no worker: it needs a shell of the image, and takes the python3 that it finds.
@pod_options("wait", "image", "namespace", "gpus", "python", "mount")
@json_option
def command(
    pods: int | None, areas: tuple[str, ...], time_limit: str, junit: str | None, as_json: bool, **typed: Any
) -> int:
    """Does the cluster do with pods what it should: create, logs, exec, delete, for one pod and for many, without devices and
    with them? A GPU pod gets its devices and no others, more than there are wait, and what was held comes back.

    Everything is made in a namespace of its own and removed at the end, or in the one that --namespace names. Cases that cannot
    be tried (no GPU, none free, a missing right) are left out, with the reason. Exits with 6 where one failed.
    """
    from stackmark.api.clusters import run_cluster_tests
    from stackmark.cli.saying import print_json, watching_cases
    from stackmark.show.cluster_checks import print_checks
    from stackmark.show.terminal import standard_output
    from stackmark.show.writing import check_writable, write_whole

    limit_s = seconds_of("--time-limit", time_limit)
    assert limit_s is not None
    if junit:
        check_writable(Path(junit))
    with watching_cases(quiet=as_json) as watcher:
        interrupted: list[ClusterTests] = []
        try:
            found = run_cluster_tests(
                pods=pods,
                areas=areas,
                limit_s=limit_s,
                watcher=watcher,
                partly=interrupted.append,
                **taken_pod_options(typed),
            )
        finally:
            # Ctrl-C: what was seen until then, below the bar that has gone.
            for part in interrupted if not as_json else ():
                watcher.stop()
                print_checks(part.suite, standard_output())
    if as_json:
        print_json(found.to_dict())
    else:
        print_checks(found.suite, standard_output())
    if junit:
        write_whole(Path(junit), found.junit().encode())
    return found.exit_code
