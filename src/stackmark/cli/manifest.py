"""`stackmark manifest`."""

from typing import Any, Literal

import click

from stackmark.api.options import repeatable
from stackmark.cli.options import (
    OfAPod,
    asked_workloads,
    json_option,
    not_empty,
    parameter_options,
    pod_options,
    ranks_option,
    read_requests,
    taken_pod_options,
)
from stackmark.cli.saying import notice, print_json
from stackmark.errors import SpecError


@click.command(
    "manifest",
    cls=OfAPod,
    epilog="""\b
Examples:
  stackmark manifest train/resnet50 --image nvcr.io/nvidia/pytorch:26.10-py3 --gpus 1 --cpus 8 --memory 32g
  stackmark manifest train/resnet50 --gpus 1 --openshift > job.yaml
  stackmark manifest train/trivial --device cpu --batch 2 --kind cronjob --schedule "0 * * * *"
""",
)
@click.argument("workload", required=False)
@click.option(
    "--kind", type=click.Choice(["job", "pod", "cronjob"]), default="job", help="What to print. [default: job]"
)
@click.option(
    "--schedule", metavar="CRON", callback=not_empty, help='When a CronJob runs: five fields. [default: "0 * * * *"]'
)
@click.option(
    "--history",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="How many finished runs a CronJob keeps for collection. [default: 24]",
)
@click.option(
    "--without-worker", is_flag=True, help="Leave the ConfigMap with the worker out, for a cluster that has it."
)
@ranks_option
@json_option
@pod_options()
@parameter_options
@click.pass_obj
def command(
    asked: tuple[str, ...],
    /,
    workload: str | None,
    kind: Literal["job", "pod", "cronjob"],
    schedule: str | None,
    history: int | None,
    without_worker: bool,
    as_json: bool,
    **typed: Any,
) -> int:
    """Print what would be applied to a cluster to measure WORKLOAD there; no cluster, GPU or image is needed.

    What is not typed is chosen by the worker in the pod. `kubectl create -f -` takes it.
    """
    from stackmark.api.clusters import make_manifest

    options = taken_pod_options(typed)
    if typed.get("cmd") is not None and not typed.get("cwd"):
        typed["cwd"] = "."  # the pod's own folder: this one is not there
    requests = read_requests(asked_workloads(workload, typed), typed)
    if len(requests) != 1:
        raise SpecError(
            f"a manifest is for one measurement, and these lists make {len(requests)}", hint="print one for each"
        )
    made = make_manifest(
        requests[0],
        options,
        kind=kind,
        schedule=schedule,
        history=history,
        command=repeatable(asked or ("manifest",)),
        with_worker=not without_worker,
    )
    if as_json:
        print_json(made.to_dict())
        notice(*made.warnings)
    else:
        click.echo(made.yaml(), nl=False)
    return 0
