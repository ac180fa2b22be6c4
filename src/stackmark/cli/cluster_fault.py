"""`stackmark cluster fault`: says what it would do; with --yes does it, and says what it did."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stackmark.cli.options import (
    InSections,
    json_option,
    ledger_option,
    not_empty,
    parameter_options,
    pod_options,
    seconds_of,
    taken_pod_options,
)
from stackmark.errors import Exit, SpecError

if TYPE_CHECKING:
    from stackmark.experiments.fault_finding import FaultFinding
    from stackmark.experiments.faulting import FaultRequest, Planned
    from stackmark.ledger.store import Ledger

PARTS = ("device-plugin", "kubelet", "api-server", "runtime", "node-network")
# Longer than anybody waits, and than a cluster stays whole.
LONGEST_S = 3600.0


@click.command(
    "fault",
    cls=InSections,
    epilog="""\b
Examples:
  stackmark cluster fault kubelet --while train/resnet50                      # says what it would do
  stackmark cluster fault kubelet --while train/resnet50 --for 60s --yes -o kubelet.svg
  stackmark cluster fault device-plugin --while train/resnet50 --for 30s --yes
  stackmark cluster fault api-server --while train/resnet20 --for 30s --means script:./cluster --yes
""",
)
@click.argument("part", type=click.Choice(PARTS), metavar="PART")
@click.option(
    "--while", "workload", metavar="WORKLOAD", required=True, callback=not_empty, help="What trains meanwhile."
)
@click.option("--for", "for_", metavar="TIME", default="60s", help="How long the part is away. [default: 60s]")
@click.option("--before", metavar="TIME", default="20s", help="Measured before, to know the usual. [default: 20s]")
@click.option("--after", metavar="TIME", default="20s", help="Measured after it is back. [default: 20s]")
@click.option(
    "--recover", metavar="TIME", default="5min", help="How long the cluster may take to be well again. [default: 5min]"
)
@click.option(
    "--means",
    metavar="MEANS",
    envvar="STACKMARK_CLUSTER_MEANS",
    callback=not_empty,
    help="How it is stopped: plugin-pod, helper, or script:PATH. Also by the variable STACKMARK_CLUSTER_MEANS. "
    "[default: plugin-pod for the device plugin, else helper]",
)
@click.option(
    "--plugin-selector",
    metavar="LABEL",
    callback=not_empty,
    help="The label of the device plugin's pods: app=my-plugin.",
)
@click.option(
    "--stop-command", metavar="COMMAND", callback=not_empty, help="For a helper: what stops the part, on its node."
)
@click.option("--start-command", metavar="COMMAND", callback=not_empty, help="For a helper: what starts it again.")
@click.option(
    "--helper-image",
    metavar="IMAGE",
    callback=not_empty,
    help="An image with sh, nsenter and chroot. [default: the worker's]",
)
@click.option(
    "--distribution",
    metavar="NAME",
    callback=not_empty,
    help="How services are called there: kubeadm, openshift, k3s, rke2 or microk8s. [default: as the node says]",
)
@click.option(
    "--only-control-plane", is_flag=True, help="Allow the API server of the only control plane to be stopped."
)
@click.option("--yes", is_flag=True, help="Do it. Without, it is only said what would be done.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", callback=not_empty,
    help="Also draw it: .svg or .png.",
)  # fmt: skip
@ledger_option
@json_option
@pod_options()
@parameter_options
@click.pass_obj
def command(
    asked: tuple[str, ...],
    /,
    part: str,
    workload: str,
    yes: bool,
    output: Path | None,
    ledger: str | None,
    as_json: bool,
    **typed: Any,
) -> int:
    """Stop a PART of the cluster while a WORKLOAD trains in a pod, and measure what that does: to the loop, its pod, its log, and
    to the next pod. It heals by itself, also when stackmark is interrupted or killed.

    PART is device-plugin, kubelet, api-server, runtime or node-network. Nothing is done without --yes.
    Only nodes with the label stackmark.io/allow-faults=true are touched, one fault at a time.
    Exits with 0 where it was measured, whatever came out, and with 6 where it could not be or the cluster is not well again.
    """
    from stackmark.experiments.faulting import plan_fault
    from stackmark.show.writing import check_writable

    wish = _asked(part, workload, asked, typed)
    if output is not None:
        _check_picture(output)
        check_writable(output)
    planned = plan_fault(wish)
    if not yes:
        _print_plan(planned, as_json)
        return Exit.DONE
    from stackmark.ledger.store import Ledger

    with Ledger.open(ledger) as book:
        found = _do(planned, book, as_json)
    print_fault_finding(found, as_json)
    if output is not None:
        draw(found, output)
    return Exit.DONE if found.healthy else Exit.CLUSTER_FAILED


def _asked(part: str, workload: str, asked: tuple[str, ...], typed: dict[str, Any]) -> "FaultRequest":
    from stackmark.api.options import repeatable
    from stackmark.cli.compare import one_request
    from stackmark.experiments.faulting import PARTS as KNOWN
    from stackmark.experiments.faulting import FaultRequest
    from stackmark.experiments.manifesting import read_pod_options

    options = read_pod_options(taken_pod_options(typed))
    times = {name: _time(option, typed.pop(name)) for name, option in
             (("for_", "--for"), ("before", "--before"), ("after", "--after"), ("recover", "--recover"))}  # fmt: skip
    further = {
        name: typed.pop(name)
        for name in ("means", "plugin_selector", "stop_command", "start_command", "helper_image", "distribution",
                     "only_control_plane")
    }  # fmt: skip
    return FaultRequest(
        part=next(known for known in KNOWN if known == part),
        request=one_request(workload, typed, arms=False),
        options=options,
        seconds=times["for_"],
        before_s=times["before"],
        after_s=times["after"],
        recover_s=times["recover"],
        command=repeatable(asked),
        **further,
    )


def _time(option: str, text: str) -> float:
    seconds = seconds_of(option, text) or 0.0
    if not 1.0 <= seconds <= LONGEST_S:
        raise SpecError(f"{option}: {text!r} is not between 1 s and 1 h", hint="write it like 30s or 2min")
    return seconds


def _do(planned: "Planned", book: "Ledger", as_json: bool) -> "FaultFinding":
    from stackmark.experiments.cleaning import clean_up
    from stackmark.experiments.fault_finding import examine_fault
    from stackmark.experiments.faulting import fault
    from stackmark.show.live import watching

    with watching(quiet=as_json) as watcher:
        for sentence in clean_up(book):
            watcher.notice(sentence)
        experiment = fault(planned, book, watcher)
    return examine_fault(book, experiment.id)


def _print_plan(planned: "Planned", as_json: bool) -> None:
    from stackmark.experiments.faulting import plan_lines
    from stackmark.show.faults import print_plan
    from stackmark.show.terminal import standard_output

    lines = plan_lines(planned)
    if as_json:
        from stackmark.cli.saying import print_json

        print_json({"dry_run": True, "plan": [{"about": about, "sentence": sentence} for about, sentence in lines]})
        return
    print_plan(standard_output(), f"{planned.target.part} on {planned.target.node}", lines)


def print_fault_finding(found: "FaultFinding", as_json: bool) -> None:
    from stackmark.show.faults import fault_json, print_fault
    from stackmark.show.terminal import standard_output

    if as_json:
        from stackmark.cli.saying import print_json

        print_json(fault_json(found))
        return
    print_fault(standard_output(), found)


def draw(found: "FaultFinding", output: Path) -> None:
    from stackmark.show.faults import fault_png, fault_svg
    from stackmark.show.writing import write_whole

    write_whole(output, fault_png(found) if output.suffix.lower() == ".png" else fault_svg(found).encode())
    click.echo(f"picture of {found.experiment_id} written to {output}", err=True)


def _check_picture(output: Path) -> None:
    if output.suffix.lower() not in (".svg", ".png"):
        raise SpecError(
            f"a picture ends in .svg or .png, not {output.name!r}", hint="give a file like fault.svg with -o"
        )
