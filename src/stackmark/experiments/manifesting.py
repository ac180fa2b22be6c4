"""`stackmark manifest`: make the objects to apply for a workload, as data and without a cluster.

Nothing was probed, so what was not typed stays open, and the worker in the pod resolves it there. The name is made from what was
asked, so that the same command prints the same manifest, and a change of it is a change that a review shows.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue, ValidationError

from stackmark.errors import SEE_HELP, SpecError
from stackmark.experiments.list_specs import check_list
from stackmark.experiments.typed import extra_of
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.manifest import build as making
from stackmark.kubernetes.manifest import yaml_text
from stackmark.kubernetes.manifest.build import SECRET_NAME
from stackmark.kubernetes.manifest.request import PodRequest
from stackmark.places.bundle import worker_bundle
from stackmark.places.container.software import host_software
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.request import gpus_of, group_of, pod_request, remarks
from stackmark.places.process import worker_environment
from stackmark.spec import Request, Spec, Task, explain
from stackmark.workloads.registry import check_ranks, check_typed, find

Kind = Literal["job", "pod", "cronjob"]
HOURLY = "0 * * * *"
# What a CronJob's name may have is 52 characters, since those of its Jobs go on from it.
LONGEST_SLUG = 30
# To be replaced by somebody's own.
EXAMPLE_IMAGE = "registry.example.com/pytorch:latest"
# An image without a file in it, for the host's own software.
NOTHING = "registry.k8s.io/pause:3.10"


@dataclass(frozen=True)
class Manifest:
    """The objects to apply, in this order, and what a person should know about them."""

    objects: tuple[Json, ...]
    # What to do with it, and what may go wrong with it.
    remarks: tuple[str, ...]
    warnings: tuple[str, ...]

    def yaml(self) -> str:
        return yaml_text.documents(self.objects, [*self.remarks, *self.warnings])

    def to_dict(self) -> Json:
        """Return one object, as `kubectl` reads it: a list where there are several."""
        if len(self.objects) == 1:
            return self.objects[0]
        return {"apiVersion": "v1", "kind": "List", "items": list(self.objects)}


def read_pod_options(given: Mapping[str, JsonValue]) -> PodOptions:
    """Read a pod's options as typed."""
    try:
        return PodOptions.model_validate(dict(given))
    except ValidationError as error:
        raise SpecError(explain(error), hint=SEE_HELP) from error


def manifest_for(
    request: Request,
    options: PodOptions,
    kind: Kind = "job",
    *,
    schedule: str | None = None,
    history: int | None = None,
    command: str = "",
    with_worker: bool = True,
) -> Manifest:
    """Make the manifest; without the worker the ConfigMap that the pod mounts is left out, for a cluster that has it."""
    check_typed(request)
    check_ranks(request)
    check_list(request)
    if kind != "cronjob" and (schedule is not None or history is not None):
        option = "--schedule" if schedule is not None else "--history"
        raise SpecError(f"{option} is for a CronJob, but --kind is {kind}", hint="add --kind cronjob")
    wanted = _pod_request(request, options, kind)
    if kind == "cronjob":
        made = making.cronjob(wanted, schedule or HOURLY, history=making.HISTORY if history is None else history)
    else:
        made = making.job(wanted) if kind == "job" else making.pod(wanted)
    worker = making.config_map(wanted) if with_worker else None
    parts = (worker, making.service(wanted), making.claim_template(wanted))
    warnings = [
        *remarks(options, wanted, Task(do="run", request=request)),
        *(_left_open(request) if kind == "cronjob" else ()),
    ]
    said = [*_remarks(wanted, options, made, command), *_about_worker(wanted, with_worker)]
    return Manifest((*(part for part in parts if part), made), tuple(said), tuple(warnings))


def _pod_request(request: Request, options: PodOptions, kind: Kind) -> PodRequest:
    group = group_of(options, request)
    if group and kind != "job":
        raise SpecError(f"a run on several nodes is a Job, but --kind is {kind}", hint="leave out --kind")
    task = Task(do="run", spec=_complete(request, group.pods)) if group else Task(do="run", request=request)
    software = None
    if options.host_software == "yes":
        software = host_software(sys.executable, worker_environment(os.environ))
    mark = _mark(request, options, kind)
    return pod_request(
        options,
        mark=mark,
        kind="canary" if kind == "cronjob" else "run",
        namespace=options.namespace or "",
        image=options.image or (NOTHING if software else EXAMPLE_IMAGE),
        task=task,
        gpus=gpus_of(options, request),
        software=software,
        group=group,
        driven=False,
        # With its hash: a ConfigMap cannot be changed, and a newer worker is another one next to it.
        worker_map=f"{names.object_name(mark)}-{worker_bundle().sha256[:8]}",
    )


def _complete(request: Request, pods: int) -> Spec:
    """Write all parameters out: each pod of a group would choose the others by itself, and two may choose differently."""
    family, _ = find(request.workload)
    typed = request.typed()
    fields = family.params.model_fields.items()
    missing = [name for name, info in fields if info.is_required() and name not in typed]
    if missing:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise SpecError(
            f"a manifest of {pods} pods needs every parameter typed, since each pod would choose by itself: {options} "
            f"{'is' if len(missing) == 1 else 'are'} missing",
            hint="type them, or run it with `stackmark run --on pod`, which chooses once for all pods",
        )
    try:
        params = family.params.model_validate(typed)
    except ValidationError as error:
        raise SpecError(explain(error), hint=SEE_HELP) from error
    return Spec(workload=request.workload, params=params.model_dump(mode="json"), ranks=request.ranks)


def _mark(request: Request, options: PodOptions, kind: Kind) -> str:
    asked = [kind, request.model_dump(mode="json"), options.model_dump(mode="json", exclude_defaults=True)]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]
    slug = re.sub(r"[^a-z0-9]+", "-", request.workload).strip("-")[:LONGEST_SLUG].rstrip("-")
    return f"{slug}-{digest}"


def _left_open(request: Request) -> list[str]:
    """A probe's trial may choose a batch of 8 in one hour and of 16 in the next: two workloads, and no comparison."""
    fields = find(request.workload)[0].params.model_fields.items()
    marks = {name: extra_of(info) for name, info in fields}
    names = [name for name, extra in marks.items() if extra.get("auto") and not extra.get("follows")]
    left = [name for name in names if name not in request.typed()]
    said = f"each run chooses options that you did not set ({', '.join(left)}): set at least --batch, which decides its speed"
    return [said] if "batch" in left else []


def _about_worker(wanted: PodRequest, printed: bool) -> list[str]:
    """Say how the ConfigMap with the worker comes into the cluster. `kubectl apply` would keep a second copy of it in a note that
    has no room for so much."""
    if wanted.files is None:
        return []
    where = f" -n {wanted.namespace}" if wanted.namespace else ""
    if printed:
        return [
            "apply it with `kubectl create -f`, or `kubectl apply --server-side -f`; the ConfigMap holds the worker, "
            "--without-worker leaves it out"
        ]
    file = next(iter(wanted.files.content))
    return [
        f"create the worker's ConfigMap: stackmark bundle -o {file}, then "
        f"kubectl create configmap {wanted.files.name}{where} --from-file={file}"
    ]


def _remarks(wanted: PodRequest, options: PodOptions, made: Json, command: str) -> list[str]:
    kind, name = str(made["kind"]), names.object_name(wanted.mark)
    where = f" -n {wanted.namespace}" if wanted.namespace else ""
    collect = "stackmark results --from-cluster" + (f" --namespace {wanted.namespace}" if wanted.namespace else "")
    said = [command] if command else []
    if kind == "CronJob":
        said.append(f"results: {collect}")
    else:
        said.append(f"follow its output: kubectl logs -f {kind.lower()}/{name}{where}")
        said.append(f"store its results: {collect}")
    if options.image is None and not wanted.host_software:
        said.append(
            f"the image {wanted.image} is an example: set yours with --image REF (any with Python 3.10 or newer and PyTorch)"
        )
    if wanted.host_software:
        said.append(
            "it uses the software of the host where this was printed, so it runs only on that node"
            + ("" if options.node else ", which --node pins it to")
        )
    if by_name := options.named_variables:
        literals = " ".join(f"--from-literal={name}=…" for name in by_name)
        said.append(
            f"variables given only by name come from a Secret: kubectl create secret generic {SECRET_NAME}{where} {literals}"
        )
    if options.openshift:
        said.append(
            "for OpenShift (SCC restricted-v2): the UID comes from the namespace's range, with group 0; an image writes only "
            "where group 0 may, and to /tmp (images of `stackmark image` do)"
        )
    return said
