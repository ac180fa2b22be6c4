"""`stackmark cluster doctor`."""

import sys
import time
from pathlib import Path
from typing import Any

import click

from stackmark.cli.options import OfAPod, json_option, not_empty, pod_options, taken_pod_options

# 2: `diagnostic`, which was `rung`.
SCHEMA = 2


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
@pod_options("node")
def command(nodes: tuple[str, ...], no_pods: bool, junit: str | None, as_json: bool, **typed: Any) -> int:
    """Is the cluster fit for GPU work? Diagnoses API, permissions, nodes, PCI device, driver, runtime, device plugin,
    allocatable, a pod that sees exactly its GPUs, a checked vector add. Each diagnostic says what was seen, what to do about
    it, and the command to see it by hand.

    Up to three short pods go to each node, and are removed. Exits with 6 where a diagnostic failed; warnings do not count.
    """
    from dataclasses import asdict

    from stackmark.cli.saying import print_json
    from stackmark.errors import Exit, SpecError
    from stackmark.experiments.doctoring import diagnose
    from stackmark.show.doctor import junit_cases, print_doctor
    from stackmark.show.junit import render_junit
    from stackmark.show.safe import safe_line
    from stackmark.show.terminal import standard_output
    from stackmark.show.writing import check_writable, write_whole
    from stackmark.units import say_moment

    if junit == "-":
        raise SpecError(
            "--junit: standard output holds the result already", hint="give a file, e.g. --junit doctor.xml"
        )
    if junit:
        check_writable(Path(junit))
    began_unix_s = time.time()

    def say(sentence: str) -> None:
        if not as_json:
            # In one piece: several visits speak.
            sys.stderr.write(f"{safe_line(sentence)}\n")
            sys.stderr.flush()

    report = diagnose(taken_pod_options(typed), nodes, pods=not no_pods, say=say)
    if as_json:
        print_json({"schema_version": SCHEMA, "status": report.status, **asdict(report)})
    else:
        print_doctor(report, standard_output())
    if junit:
        when = say_moment(began_unix_s, "%Y-%m-%dT%H:%M:%S", utc=True)
        about = [("context", report.context), ("server", report.server), ("kubernetes", report.version)]
        text = render_junit("stackmark.cluster.doctor", junit_cases(report), about, when)
        write_whole(Path(junit), text.encode())
    return Exit.CLUSTER_FAILED if report.status == "failed" else Exit.DONE
