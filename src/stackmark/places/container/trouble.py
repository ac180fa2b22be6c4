"""Explain engines' errors in a sentence with the cause and what to do next.

An engine's own words stay in it: they name the path, the device, the limit. The table is in the order of looking: the
more telling text first.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stackmark.errors import PlaceError
from stackmark.failures import PlaceFailure
from stackmark.places.bundle import TARGET
from stackmark.places.image_python import NO_PYTHON, NO_PYTHON_EXIT, NO_PYTHON_HINT

SHOWN_CHARACTERS = 400
# What the kernel calls a machine, and what images do.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_RLIMITS = {"4": "core", "6": "nproc", "7": "nofile", "8": "memlock", "3": "stack", "13": "nice", "14": "rtprio"}
# podman's log lines and both engines' prefixes carry nothing that a person needs.
_NOISE = re.compile(
    r'^((Error( response from daemon)?|docker|runc|crun): )+|^time="[^"]*" level=\w+ msg=|^See \'docker run --help\'\.?$'
    r"|^Run 'docker run --help' for more information$"
)


class KnownTrouble(NamedTuple):
    pattern: re.Pattern[str]
    cause: str
    hint: str
    # For programs, where one may want to know: it never changes its meaning.
    kind: str = ""


def _known(pattern: str, cause: str, hint: str, kind: str = "") -> KnownTrouble:
    return KnownTrouble(re.compile(pattern, re.IGNORECASE | re.DOTALL), cause, hint, kind)


# What podman says of a container whose monitor (conmon) is gone: nobody wrote down how the container ended.
_NO_EXIT_CODE = re.compile(
    r"no such exit code|getting exit code of container|reading exit code|conmon exited", re.IGNORECASE
)
MONITOR_KILLED = "podman's monitor of the container (conmon) was killed, so how the worker ended is unknown"
MONITOR_HINT = "find out what killed it (dmesg, journalctl), and run it again"

KNOWN = (
    KnownTrouble(_NO_EXIT_CODE, MONITOR_KILLED, MONITOR_HINT),
    _known(
        r"cannot connect to the docker daemon|connection refused.*docker|is the docker daemon running",
        "docker's daemon is not running, or DOCKER_HOST is wrong",
        "start it: sudo systemctl start docker; or use podman: engine=podman",
    ),
    _known(
        r"permission denied while trying to connect to the docker|dial unix.*permission denied",
        "this user may not use docker's daemon",
        "sudo usermod -aG docker $USER, and log in again; or use podman, which needs no daemon: engine=podman",
    ),
    _known(
        r"unresolvable CDI devices|CDI device injection failed|unknown CDI|could not select device driver \"cdi\"",
        "the engine does not know this GPU: there is no CDI specification for it (/etc/cdi, /var/run/cdi), or the "
        "specification is too new for the engine (podman 4.3 reads up to cdiVersion 0.5.0)",
        "make one: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; or run without: gpus=none",
    ),
    _known(
        r"could not select device driver|unknown runtime specified nvidia|runtime \"nvidia\" not found|runtime name: nvidia",
        "the engine has no GPU runtime",
        "install the NVIDIA Container Toolkit, then: sudo nvidia-ctk runtime configure; or run without: gpus=none",
    ),
    _known(
        r"nvidia-container-cli|failed to stat CDI host device|stat /dev/nvidia",
        "the GPU runtime found no working driver or device on the host",
        "check the host: nvidia-smi",
    ),
    _known(
        r"read-only file system",
        "something must be mounted where the host's folders are read-only, for example by a CDI specification with "
        "files under /usr",
        "use rootfs=yes (podman), whose root is writable, or an image: image=…",
    ),
    _known(
        r"rlimit type (?P<type>\d+)[^\n]*not permitted|setrlimit `?RLIMIT_(?P<name>[A-Z]+)`?[^\n]*not permitted",
        "the limit {limit} is above this user's hard limit (root needs CAP_SYS_RESOURCE to exceed it)",
        "use a smaller ulimit={limit}=N (`ulimit -H -a` shows the most), or raise it for the engine's service",
    ),
    _known(
        r"OOM-killed|memory limit too low|minimum memory limit",
        "the memory limit is too low to start a container",
        "raise memory=",
    ),
    _known(
        r"cgroups in hybrid mode not supported",
        "crun does not support cgroups in hybrid mode",
        'install runc, and set it in containers.conf: [engine] runtime = "runc"',
    ),
    _known(
        r"(controller|cgroup)[^\n]*(not available|not found|is not mounted|not enabled)|resource limits are not supported"
        r"|opening file `(cpu|memory|cpuset|pids)\.[a-z]+`",
        "the cgroup controller for a requested limit is missing or not delegated to this user",
        "run as root; or delegate it: sudo systemctl edit user@.service, [Service] Delegate=cpu cpuset io memory pids",
    ),
    _known(
        r"image not known|no such image|unable to find image|does not exist in local storage|image .*not found locally",
        "the image is not on this machine, and stackmark does not pull images during a measurement",
        "get it first: {engine} pull {image}",
        "no_image",
    ),
    _known(
        r"invalid reference format|invalid format: no 64-byte hexadecimal value",
        "this is not the name or the whole id of an image",
        "write it like docker.io/library/python:3.12; {engine} images --no-trunc shows names and ids",
        "no_image",
    ),
    _known(
        r"workdir \"(?P<program>[^\"]+)\" does not exist",
        "neither this machine nor the image has the folder {program}",
        "set another --cwd, or use --cwd . for the image's own folder",
        "no_folder",
    ),
    _known(
        r"unable to find user (?P<program>[^:\s]+)",
        "the image has no user {program}",
        "give a number, which needs no name in the image: --user 1000",
        "no_user",
    ),
    _known(
        r"exec format error",
        "the image is for a different architecture than this machine",
        "get the image for this architecture: {engine} pull --platform linux/{architecture} {image}",
        "other_architecture",
    ),
    _known(
        r"exec: \"sh\":|executable file `sh` not found",
        "the image has no sh, which is needed to find its Python",
        "give the path of the image's Python: --python PATH",
        "no_shell",
    ),
    _known(
        r"(exec: \"|executable file `)(?P<program>[^\"`]+)[\"`]:? ?(executable file not found|stat [^\n]*no such file|not found)",
        "the image has no {program}",
        "give the path of a Python of the image: --python PATH; without it stackmark tries the usual paths",
        "no_program",
    ),
    _known(
        r"exec: \"(?P<program>[^\"]+)\":[^\n]*(permission denied|is a directory)|open executable `(?P<found>[^`]+)`",
        "this user may not run {program} of the image",
        "give the path of a Python of the image: --python PATH; without it stackmark tries the usual paths",
        "no_program",
    ),
    _known(
        r"error while loading shared libraries: (?P<library>[^:\s]+)",
        "the image's Python lacks the library {library}",
        "use an image whose Python works: {engine} run --rm {image} python3 -V; or another Python: --python PATH",
        "broken_python",
    ),
    _known(
        r"setting up overlay|overlay[^\n]*(not supported|invalid argument)|fuse-overlayfs",
        "an overlay file system, which the container's root needs, cannot be created here",
        "install fuse-overlayfs, or put the engine's storage on a disk that supports it (not NFS, not an overlay itself)",
    ),
    _known(
        r"netavark|slirp4netns|pasta|iptables|could not find bridge",
        "the container's network cannot be created",
        "use network=none or network=host, or install what is missing: netavark and iptables, or slirp4netns",
    ),
    _known(
        r"network not found|network .*not found|unable to find network",
        "the network does not exist",
        "use none, host or bridge, or create it first: {engine} network create NAME",
    ),
    _known(
        r"no space left on device",
        "the disk of the engine's storage is full",
        "free space: {engine} system prune",
    ),
    _known(
        r"newuidmap|subuid|cannot set up namespace|user namespaces are not enabled",
        "rootless containers are not set up for this user",
        "give it subordinate ids: sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER; or run as root",
    ),
    _known(
        r"requested CPUs are not available|cpuset|Range of CPUs",
        "the requested CPUs are not available",
        "use fewer: nproc shows how many there are, numbered from 0",
    ),
    _known(
        r"OCI permission denied|operation not permitted|permission denied",
        "the kernel did not permit it",
        "run it yourself to see more",
    ),
)


def refused(
    kind: str, said: str, argv: Sequence[str], image: str | None = None, *, what: str = "the worker"
) -> PlaceError:
    """Explain an engine that ended with its own error, or whose worker never reported; `what` was to run."""
    words = own_words(said)
    for known in KNOWN:
        if match := known.pattern.search(said):
            named = {name: value for name, value in match.groupdict().items() if value}
            limit = _RLIMITS.get(named.get("type", ""), named.get("name", "").lower() or f"number {named.get('type')}")
            fill = {
                "engine": kind,
                "image": image or "IMAGE",
                "limit": limit,
                "program": named.get("program") or named.get("found", ""),
                "library": named.get("library", ""),
                "architecture": _ARCHITECTURES.get(os.uname().machine, os.uname().machine),
            }
            cause, hint = (filled(text, fill) for text in (known.cause, known.hint))
            message = f"{kind} could not run {what}: {cause} ({words})"
            return PlaceError(message, hint=hint, command=shell(argv), kind=known.kind)
    return PlaceError(f"{kind} could not run {what}: {words}", hint="run it yourself to see more", command=shell(argv))


def image_refused(kind: str, code: int, said: str, argv: Sequence[str], image: str, python: str | None) -> PlaceError:
    """Explain a user's image in which no worker reported: it has no Python, or the named program is not one."""
    # The worker's file is gone with the run, so what is tried by hand is whether the Python starts.
    options = [
        word for word in argv[: argv.index(image)] if not word.startswith("--entrypoint=") and TARGET not in word
    ]
    by_hand = [*options, f"--entrypoint={python or 'python3'}", image, "-V"]
    if code == NO_PYTHON_EXIT and python is None:
        return PlaceError(f"{image}: {NO_PYTHON}", hint=NO_PYTHON_HINT, command=shell(by_hand), kind="no_python")
    error = refused(kind, said, by_hand, image)
    if python is None or error.kind:
        return error
    message = f"--python {python}: this program of the image {image} did not run the worker ({own_words(said)})"
    return PlaceError(message, hint=NO_PYTHON_HINT, command=shell(by_hand), kind="not_python")


def lost(kind: str, said: str) -> PlaceFailure:
    """Explain an engine that ended with its own code while the worker ran."""
    if kind == "podman" and _NO_EXIT_CODE.search(said):
        return PlaceFailure("killed", MONITOR_KILLED, MONITOR_HINT)
    return PlaceFailure("killed", f"{kind} lost the container while the worker ran: {own_words(said)}", "run it again")


def exit_meaning(code: int) -> str:
    """Explain the exit codes that engines reserve."""
    return {
        125: "the engine failed before the container started",
        126: "the container's first program could not be started",
        127: "the container's first program, or one of its devices, was not found",
        0: "it ended with code 0, but it is not a worker",
    }.get(code, f"it ended with code {code} without any output")


def own_words(said: str) -> str:
    """Return the engine's last lines without decoration, on one line, shortened."""
    lines = [_NOISE.sub("", line.strip()).strip() for line in said.strip().splitlines()]
    text = " ".join(dict.fromkeys(line for line in lines if line))
    if not text:
        return "it gave no reason"
    return text if len(text) <= SHOWN_CHARACTERS else f"…{text[-SHOWN_CHARACTERS:]}"


def shell(argv: Sequence[str]) -> str:
    return shlex.join(argv)


def filled(text: str, values: Mapping[str, str]) -> str:
    """Fill in the `{names}`; an engine's own braces stay."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
