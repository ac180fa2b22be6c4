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
from stackmark.cli.saying import notice, print_json, watching
from stackmark.errors import Exit

if TYPE_CHECKING:
    from stackmark.api.cluster_experiments import FaultPlan
    from stackmark.api.stored import FaultResult

PARTS = ("device-plugin", "kubelet", "api-server", "runtime", "node-network")
# Of the API, the option, and the name under which click has it.
TIMES = (("seconds", "--for", "for_"), ("before_s", "--before", "before"), ("after_s", "--after", "after"),
         ("recover_s", "--recover", "recover"))  # fmt: skip
MEANS = ("means", "plugin_selector", "stop_command", "start_command", "helper_image", "distribution",
         "only_control_plane")  # fmt: skip


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
    from stackmark.api.cluster_experiments import make_fault_plan
    from stackmark.api.options import repeatable
    from stackmark.cli.compare import one_request
    from stackmark.show.writing import check_picture, check_writable

    options = taken_pod_options(typed)
    times = {name: seconds_of(option, typed.pop(typed_as)) or 0.0 for name, option, typed_as in TIMES}
    means = {name: typed.pop(name) for name in MEANS}
    request = one_request(workload, typed, arms=False)
    if output is not None:
        check_picture(output, "fault.svg")
        check_writable(output)
    plan = make_fault_plan(part, request, options, **times, command=repeatable(asked), **means)
    if not yes:
        _print_plan(plan, as_json)
        return Exit.DONE
    with watching(quiet=as_json) as watcher:
        found = plan.carry_out(ledger=ledger, progress=watcher)
    print_fault_result(found, as_json)
    if output is not None:
        draw(found, output)
    return found.exit_code


def _print_plan(plan: "FaultPlan", as_json: bool) -> None:
    from stackmark.show.faults import print_plan
    from stackmark.show.terminal import standard_output

    if as_json:
        print_json(plan.to_dict())
    else:
        print_plan(standard_output(), plan.title, plan.lines())


def print_fault_result(found: "FaultResult", as_json: bool) -> None:
    from stackmark.show.faults import print_fault
    from stackmark.show.terminal import standard_output

    if as_json:
        print_json(found.to_dict())
    else:
        print_fault(standard_output(), found.finding)


def draw(found: "FaultResult", output: Path) -> None:
    found.plot(output)
    notice(f"picture of {found.finding.experiment_id} written to {output}")
