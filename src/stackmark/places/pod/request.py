"""Make the request for a manifest from a pod's options and a worker's task.

The worker's container gets its task, what it cannot see from inside, and what it may know of the driver's environment. With the
host's own software the settings of the libraries under test come along, as they do into a container; into an image they do not,
only the worker itself as one zip file in a ConfigMap:
a Job that was made on a laptop must not depend on that laptop's shell. Which GPUs there are to see is the cluster's business in
both cases.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stackmark.errors import SpecError
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.manifest.build import FROM_LIMITS, FROM_POD, address_of_first
from stackmark.kubernetes.manifest.patch import read_patch
from stackmark.kubernetes.manifest.request import (
    MASTER_PORT,
    MOUNT_VOLUME,
    WORK_FOLDER,
    MountedFiles,
    PodGroup,
    PodRequest,
    VolumeMount,
    forbidden_by_restricted,
)
from stackmark.kubernetes.queues import QueueKind
from stackmark.machine.orphans import MARK_VARIABLE
from stackmark.places import bundle
from stackmark.places.container.launch import FILE_ENDINGS, HOST_ONLY, PATH_PARAMETERS, TUNING, paths_of, program_of
from stackmark.places.container.software import (
    PROGRAM_FOLDERS,
    HostSoftware,
    outermost,
    user_name,
    within,
    without_home,
)
from stackmark.places.image_python import image_command
from stackmark.places.mounts import Mount, cluster_sources, covering, read_mount, targets
from stackmark.places.outside import words_of
from stackmark.places.place import CACHE_VARIABLES, cache_variables
from stackmark.places.pod.options import LONGEST_DEADLINE_S, PodOptions
from stackmark.places.process import worker_environment
from stackmark.ranks import NODE_RANKS_VARIABLE
from stackmark.secrets_masking import value_of
from stackmark.spec import (
    ABOUT_VARIABLE,
    AUTO,
    LEDGER_VARIABLE,
    LOG_VARIABLE,
    SCRATCH_VARIABLE,
    SPEC_LIMIT_BYTES,
    SPEC_VARIABLE,
    Request,
    Spec,
    Task,
)
from stackmark.units import GIB
from stackmark.workloads.command.definition import CommandParams

# Each in lower and in upper case: programs read one or the other.
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "ftp_proxy", "all_proxy")
# The device plugin says which GPUs there are; the driver's own numbers mean others, or none.
VISIBLE_DEVICES = "_VISIBLE_DEVICES"
# The number that `stackmark image` gives its images too. Kubernetes wants to see one that is not 0; which, is all the same.
USER_ID = 1001
# Half of the memory, as Linux gives a host's /dev/shm; without a limit of memory so much, none of which is taken before use.
SHM_BYTES = 8 * GIB
WORKER = ("-P", "-m", "stackmark.worker")
LOADER_CACHE = "/etc/ld.so.cache"
SELINUX = Path("/sys/fs/selinux/enforce")
# A pod without a limit of its own: this many times what the spec says it measures, and this for its set-up.
DEADLINE_TIMES, DEADLINE_SETUP_S = 5.0, 3600.0


def pod_request(
    options: PodOptions,
    *,
    mark: str,
    kind: names.Kind,
    namespace: str,
    image: str,
    task: Task | None = None,
    command: tuple[str, ...] = (),
    node: str | None = None,
    gpus: int = 0,
    software: HostSoftware | None = None,
    cache: str | None = None,
    deadline_s: int = 3600,
    variables: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    claim_version: str = "v1",
    driven: bool = True,
    about: Mapping[str, object] | None = None,
    worker_map: str | None = None,
    program: CommandParams | None = None,
    table: Mapping[str, object] | None = None,
    group: PodGroup | None = None,
    queue_kind: QueueKind = "kueue",
) -> PodRequest:
    """Make the request for a worker's task, or for a command of one's own.

    `environment` is the driver's, this process's where None; `about` is what the worker cannot see and its facts shall say.
    `program` is a user's own in an image, watched from outside: nothing of ours is sent along.
    `worker_map` names the ConfigMap with the worker for an image, where it is not the pod's own. `table` is what the table of
    tf_cnn_benchmarks in the pod's log needs besides the spec, where a command line of that program asked for the run.
    """
    known = worker_environment(os.environ if environment is None else environment)
    if not driven and software is None:
        _require_named_node(options.mounts)
    mounted = targets(options.mounts)
    folders, folder = _host_folders(software, task, cache, gpus, known, mounted) if software else ((), WORK_FOLDER)
    values = _variables(options, known, software, cache) | dict(variables or {}) | options.variables
    if task is not None and program is None:
        values[SPEC_VARIABLE] = _task_text(task)
        values |= _log_variable(options, table if task.do == "run" else None)
    if program is None:
        values |= options.worker_variables
        values[ABOUT_VARIABLE] = json.dumps(
            {**_about(options, gpus, software, image), **(about or {})}, separators=(",", ":")
        )
    else:
        values[SCRATCH_VARIABLE] = WORK_FOLDER
        command, folder = tuple(words_of(program)), _folder_of(program)
    if driven:
        values |= {name: value_of(name, known) for name in options.named_variables}
    if group is not None:
        values |= _group_variables(group, mark)
    uid, gid = _user(options, software)
    return PodRequest(
        mark=mark,
        kind=kind,
        namespace=namespace,
        image=image,
        command=command or (() if program else _worker_command(options, software)),
        files=None if command or software or program else worker_files(worker_map or names.object_name(mark)),
        env=values,
        secret_env=() if driven else options.named_variables,
        folder=folder,
        uid=uid,
        gid=gid,
        host_software=software is not None,
        host_folders=folders,
        selinux_type=_selinux_type() if software else None,
        volumes=tuple(_volume(number, mount) for number, mount in enumerate(options.mounts)),
        cpus=options.cpu_count,
        memory_bytes=options.memory_bytes,
        shm_bytes=_shm_bytes(options),
        gpus=gpus,
        resource=options.resource,
        device_class=options.dra,
        claim_version=claim_version,
        rdma=options.rdma_request,
        node=node or options.node,
        node_labels=options.labels_of_node,
        tolerations=options.all_tolerations(bool(gpus)),
        queue=options.queue,
        queue_kind=queue_kind,
        runtime_class=options.runtime_class,
        service_account=options.service_account,
        priority_class=options.priority_class,
        pull=options.pull,
        pull_secrets=options.pull_secret,
        host_network=options.host_network,
        networks=options.network_attachment,
        capabilities=options.cap,
        deadline_s=options.deadline_s or deadline_s,
        group=group,
        driven=driven,
        patch=read_patch(options.patch) if options.patch else None,
    )


def _group_variables(group: PodGroup, mark: str) -> dict[str, str]:
    """Tell each pod's agent its share of the ranks, and where the first one is. Its own number the Job controller sets."""
    return {
        NODE_RANKS_VARIABLE: str(group.ranks_each),
        "MASTER_ADDR": address_of_first(mark),
        "MASTER_PORT": str(MASTER_PORT),
    }


def group_of(options: PodOptions, asked: Spec | Request | None) -> PodGroup | None:
    """Return the pods that a run is spread over; None where one pod has all of its ranks."""
    if options.ranks_each is None or asked is None:
        return None
    # Of a few ranks, such as the single one of a measurement of scaling, one node has all.
    each = min(options.ranks_each, asked.ranks)
    if asked.ranks % each:
        raise SpecError(
            f"--ranks {asked.ranks} cannot be shared out with --ranks-per-node {each}: each node must get as many",
            hint=f"use a number of ranks that {each} divides, or another --ranks-per-node",
        )
    if asked.ranks == each:
        return None
    if options.node is not None:
        raise SpecError(
            f"--node {options.node} and --ranks-per-node {each} cannot be combined: {asked.ranks} ranks need "
            f"{asked.ranks // each} nodes",
            hint="choose nodes by a label: --node-selector KEY=VALUE",
        )
    if not options.has_own_files:
        raise SpecError(
            f"--ranks-per-node {each} needs an image: the host's own software is only on this machine",
            hint="use any image with Python and PyTorch: --image REF",
        )
    if options.gpu_count is not None and 0 < options.gpu_count < each:
        raise SpecError(
            f"--gpus {options.gpu_count} is for each pod, and --ranks-per-node {each} needs a GPU for each rank",
            hint=f"leave out --gpus, or use --gpus {each}",
        )
    return PodGroup(asked.ranks // each, each)


def _log_variable(options: PodOptions, table: Mapping[str, object] | None) -> dict[str, str]:
    """Return the variable that names the lines for people in the pod's log."""
    if options.log_format == "events":
        return {}
    if options.log_format == "tf-cnn" and table:
        return {LOG_VARIABLE: json.dumps({"format": options.log_format, **table}, separators=(",", ":"))}
    return {LOG_VARIABLE: options.log_format}


def _worker_command(options: PodOptions, software: HostSoftware | None) -> tuple[str, ...]:
    return (software.python, *WORKER) if software else image_command(options.python)


def _folder_of(program: CommandParams) -> str:
    """Return the folder of the image that a program runs in; the driver's own is not there, and means the image's."""
    return "" if program.cwd in ("", ".", os.getcwd()) else program.cwd


def worker_files(name: str) -> MountedFiles:
    """Return the worker's zip file, in the ConfigMap of this name."""
    return MountedFiles(bundle.FOLDER, name, {bundle.NAME: bundle.worker_bundle().content})


def gpus_of(options: PodOptions, asked: Spec | Request | None, offered: Callable[[], bool] = lambda: True) -> int:
    """Count the GPUs of a pod: as typed; else one for each of its ranks, unless it runs on the CPU or the cluster offers none.

    `offered` is asked only where neither the options nor the workload decide.
    """
    if options.gpu_count is not None:
        return options.gpu_count
    device = str(asked.params.get("device", AUTO)) if asked else AUTO
    if device == "cpu" or (device == AUTO and not offered()):
        return 0
    return min(options.ranks_each or asked.ranks, asked.ranks) if asked else 1


def deadline_of(task: Task, time_limit_s: float | None) -> int:
    """Return the pod's own deadline, for the case that nobody is there to end it: well after the driver's limit."""
    if time_limit_s == math.inf:
        return LONGEST_DEADLINE_S
    if time_limit_s is not None:
        return math.ceil(time_limit_s) + 120
    params = task.spec.params if task.spec else task.request.params if task.request else {}
    spans = [params.get(name) for name in ("seconds", "warmup_seconds", "timeout")]
    known = sum(float(span) for span in spans if isinstance(span, int | float))
    return math.ceil(DEADLINE_SETUP_S + DEADLINE_TIMES * known)


def remarks(options: PodOptions, request: PodRequest, task: Task | None) -> list[str]:
    """List what a person should know of what they asked for, a sentence each."""
    said = forbidden_by_restricted(request)
    if request.cpus is not None and request.cpus.denominator != 1:
        said.append(
            f"{options.cpus} CPUs is not a whole number: the pod gets guaranteed CPU time, but no exclusive CPUs from a "
            "static CPU manager"
        )
    if (request.cpus is None) != (request.memory_bytes is None):
        missing = "memory" if request.memory_bytes is None else "cpus"
        said.append(f"without {missing} the pod's QoS class is not Guaranteed: it may be evicted first, or throttled")
    asked = (task.spec or task.request) if task else None
    params = asked.params if asked and not request.host_software else {}
    for name, writes in PATH_PARAMETERS.items():
        if isinstance(value := params.get(name), str) and "/" in value:
            said += _path_remarks(options, name, value, writes)
    if options.shm_bytes and request.memory_bytes and options.shm_bytes >= request.memory_bytes:
        said.append(f"shared memory of {options.shm} counts as memory, and the pod has {options.memory}")
    return said


def _path_remarks(options: PodOptions, name: str, path: str, writes: bool) -> list[str]:
    """Say which mount a path of the pod lacks; nothing where one covers it."""
    folder = os.path.dirname(path) if name.endswith("_file") else path
    mount = covering(options.mounts, folder)
    option, mode = f"--{name.replace('_', '-')} {path}", ":rw" if writes else ""
    if mount is None:
        return [
            f"{option} is a path in the pod, and no --mount covers it: --mount claim:NAME:{folder}{mode}, or hostpath:PATH or "
            "nfs:SERVER:/PATH in place of claim:NAME"
        ]
    if writes and mount.read_only:
        return [f"{option} is written to, and the mount at {mount.target} is read-only: --mount {mount.text}:rw"]
    return []


def carried(environment: Mapping[str, str], *, software: bool) -> dict[str, str]:
    """Pick the driver's settings of the libraries under test; with the host's software also where its files are."""
    return {name: environment[name] for name in sorted(environment) if _passes(name, software)}


def proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the proxies of the environment, each in both cases, whichever it is written in there."""
    found: dict[str, str] = {}
    for name in PROXIES:
        value = environment.get(name) or environment.get(name.upper())
        if value:
            found[name] = environment.get(name) or value
            found[name.upper()] = environment.get(name.upper()) or value
    return found


def _variables(
    options: PodOptions, environment: Mapping[str, str], software: HostSoftware | None, cache: str | None
) -> dict[str, str]:
    values: dict[str, str] = {"HOME": WORK_FOLDER}
    if software is not None:
        values |= carried(environment, software=True) | {"HOME": WORK_FOLDER, "USER": user_name(environment)}
        values |= cache_variables(Path(cache) if cache else None)
    if options.env_from_proxy:
        values |= proxies(environment)
    return values


def _passes(name: str, software: bool) -> bool:
    own = (
        SPEC_VARIABLE,
        MARK_VARIABLE,
        ABOUT_VARIABLE,
        SCRATCH_VARIABLE,
        LEDGER_VARIABLE,
        LOG_VARIABLE,
        *FROM_POD,
        *FROM_LIMITS,
    )
    if name in CACHE_VARIABLES or name in own or name.endswith(VISIBLE_DEVICES):
        return False
    tuning = name.startswith(TUNING)
    return tuning or name.startswith(HOST_ONLY) if software else tuning and not name.endswith(FILE_ENDINGS)


def _task_text(task: Task) -> str:
    """Nobody holds a pod's standard input, so the task says that its end means nothing."""
    text = task.model_copy(update={"lifeline": False}).model_dump_json(exclude_defaults=True)
    if len(text.encode()) > SPEC_LIMIT_BYTES:
        raise SpecError(f"the task exceeds {SPEC_LIMIT_BYTES} bytes, the most that a pod's variable holds")
    return text


def _about(options: PodOptions, gpus: int, software: HostSoftware | None, image: str) -> Json:
    by = "none" if not gpus else f"a claim of {options.dra}" if options.dra else options.resource
    mounted: Json = {"mounts": targets(options.mounts)} if options.mounts else {}
    return {"software": "image" if software is None else "host", "image": image, "gpus_by": by, **mounted}


def _user(options: PodOptions, software: HostSoftware | None) -> tuple[int | None, int | None]:
    """UID and GID; None where it is not for us to say."""
    if options.user is not None:
        return options.uid_gid
    if software is not None:
        return os.getuid(), os.getgid()  # the host's files may be read by their owner only
    return (None, None) if options.openshift else (USER_ID, None)


def _shm_bytes(options: PodOptions) -> int:
    if options.shm_bytes is not None:
        return options.shm_bytes
    return options.memory_bytes // 2 if options.memory_bytes else SHM_BYTES


# The host's own software


def _host_folders(
    software: HostSoftware,
    task: Task | None,
    cache: str | None,
    gpus: int,
    environment: Mapping[str, str],
    mounted: Sequence[str] = (),
) -> tuple[tuple[VolumeMount, ...], str]:
    """Mount the host's own software, read-only, each folder at its own path; return the mounts and the folder to work in.

    Only where the driver runs on the pod's node, which the place sees to. The image under them may be any that the node has, also
    one without a file in it, so the root's links (/bin, /lib64) are mounted as well, and the loader's cache where no GPU is asked
    for: with one, NVIDIA's hooks write a cache of their own, and a mount there would end the pod before it begins.
    """
    read: list[str] = []
    written: list[str] = []
    folder = WORK_FOLDER
    if task is not None:
        read, written, folder = paths_of(task, mounted)
        read += without_home(program_of(task, folder, environment))
    if cache:
        written.append(cache)
    written_all = outermost(written)
    targets = {path: True for path in outermost([*software.folders, *read]) if not within(path, written_all)}
    made = [_mounted(number, path, path, read_only) for number, (path, read_only) in enumerate(targets.items())]
    made += [_mounted(len(made) + number, path, path, False) for number, path in enumerate(written_all)]
    for link, target in root_links().items():
        made.append(_mounted(len(made), target, link, True))
    if not gpus and os.path.isfile(LOADER_CACHE):
        made.append(_mounted(len(made), LOADER_CACHE, LOADER_CACHE, True))
    return tuple(made), folder


def root_links() -> dict[str, str]:
    """Return `/bin` and similar folders that are links, each with its target."""
    return {
        f"/{name}": os.path.realpath(f"/{name}")
        for name in PROGRAM_FOLDERS
        if os.path.islink(f"/{name}") and os.path.isdir(f"/{name}")
    }


def _selinux_type() -> str | None:
    """The host's folders carry the host's labels, which a container may not read, and must not be relabelled."""
    return "spc_t" if SELINUX.exists() else None


# Mounts that were asked for


def _require_named_node(mounts: Sequence[Mount]) -> None:
    """Refuse a path of this machine in a manifest: its pod runs on a node that nobody knows yet."""
    for mount in mounts:
        if mount.kind == "path":
            raise SpecError(
                f"mount: {mount.text!r} names a path of this machine, and a manifest may run on any node",
                hint=cluster_sources(mount),
            )


def _volume(number: int, mount: Mount) -> VolumeMount:
    """Make the volume of a mount, and its place in the container. A claim and an export are read-only in themselves too."""
    name = f"{MOUNT_VOLUME}{number}"
    read_only = {"readOnly": True} if mount.read_only else {}
    place: Json = {"name": name, "mountPath": mount.target, **read_only}
    if mount.kind == "claim":
        return {"name": name, "persistentVolumeClaim": {"claimName": mount.source, **read_only}}, place
    if mount.kind == "nfs":
        return {"name": name, "nfs": {"server": mount.server.strip("[]"), "path": mount.source, **read_only}}, place
    # Only a path of this machine can be looked at from here; one of another node is a folder, which has to be there.
    kind = "File" if mount.kind == "path" and os.path.isfile(mount.source) else "Directory"
    return {"name": name, "hostPath": {"path": mount.source, "type": kind}}, place


def mount_texts(spec: Json, container: Json) -> list[str]:
    """Write the mounts of a pod as `--mount` has them; what cannot be written so is left out."""
    volumes = {str(one.get("name")): one for one in spec.get("volumes") or ()}
    found = []
    for place in container.get("volumeMounts") or ():
        name = str(place.get("name"))
        volume = volumes.get(name, {})
        if not name.startswith(MOUNT_VOLUME):
            continue
        if claim := volume.get("persistentVolumeClaim"):
            source = f"claim:{claim.get('claimName')}"
        elif export := volume.get("nfs"):
            server = str(export.get("server"))
            source = f"nfs:{f'[{server}]' if ':' in server else server}:{export.get('path')}"
        else:
            source = f"hostpath:{(volume.get('hostPath') or {}).get('path')}"
        with suppress(SpecError):
            found.append(
                read_mount(f"{source}:{place.get('mountPath')}:{'ro' if place.get('readOnly') else 'rw'}").text
            )
    return found


def _mounted(number: int, source: str, target: str, read_only: bool) -> VolumeMount:
    # With its kind, so that a folder that is not there is an error: without, some runtimes make an empty one.
    kind = "File" if os.path.isfile(source) else "Directory"
    name = f"host-{number}"
    mount: Json = {"name": name, "mountPath": target}
    if read_only:
        mount["readOnly"] = True
    return {"name": name, "hostPath": {"path": source, "type": kind}}, mount
