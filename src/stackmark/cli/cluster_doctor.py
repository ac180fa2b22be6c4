"""`stackmark cluster doctor`."""

import sys
from pathlib import Path
from typing import Any

import click

from stackmark.cli.options import OfAPod, json_option, not_empty, pod_options, taken_pod_options


@click.command(
    "doctor",
    cls=OfAPod,
    epilog="""\b
Examples:
  stackmark cluster doctor
  stackmark cluster doctor --node gpu-7 --image registry.example/stackmark:1 --gpus 2
  stackmark cluster doctor --no-pods --json
  stackmark cluster doctor --resource amd.com/gpu --junit doctor.xml
""",
)
@click.option(
    "--node", "nodes", multiple=True, metavar="NAME", callback=not_empty, help="Only this node; may be repeated."
)
@click.option("--no-pods", is_flag=True, help="Make nothing in the cluster: tell what can be told by looking.")
@click.option(
    "--junit", metavar="FILE", callback=not_empty, help="Also write JUnit XML: a case for each diagnostic and node."
)
@json_option
@pod_options("node", "mount", "ranks_per_node")
def command(nodes: tuple[str, ...], no_pods: bool, junit: str | None, as_json: bool, **typed: Any) -> int:
    """Is the cluster fit for GPU work? Diagnoses API, permissions, nodes, PCI device, driver, runtime, device plugin,
    allocatable, a pod that sees exactly its GPUs, a checked vector add. Each diagnostic says what was seen, what to do about
    it, and the command to see it by hand.

    Up to three short pods go to each node, and are removed. Exits with 6 where a diagnostic failed; warnings do not count.
    """
    from stackmark.api.clusters import doctor
    from stackmark.cli.saying import is_quiet, print_json
    from stackmark.errors import SpecError
    from stackmark.show.doctor import print_doctor
    from stackmark.show.safe import safe_line
    from stackmark.show.terminal import standard_output
    from stackmark.show.writing import check_writable, write_whole

    if junit == "-":
        raise SpecError(
            "--junit: standard output holds the result already", hint="give a file, e.g. --junit doctor.xml"
        )
    if junit:
        check_writable(Path(junit))

    silent = as_json or is_quiet()

    def say(sentence: str) -> None:
        if not silent:
            # In one piece: several visits speak.
            sys.stderr.write(f"{safe_line(sentence)}\n")
            sys.stderr.flush()

    found = doctor(nodes, pods=not no_pods, notice=say, **taken_pod_options(typed))
    if as_json:
        print_json(found.to_dict())
    else:
        print_doctor(found.report, standard_output())
    if junit:
        write_whole(Path(junit), found.junit().encode())
    return found.exit_code
