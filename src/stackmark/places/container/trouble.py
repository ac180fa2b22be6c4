"""What engines say when they refuse, in a sentence with the cause and what to do next.

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
MONITOR_KILLED = "podman's monitor of the container (conmon) was killed, so how the worker ended is not known"
MONITOR_HINT = "look for who killed it (dmesg, journalctl), and run it again"

KNOWN = (
    KnownTrouble(_NO_EXIT_CODE, MONITOR_KILLED, MONITOR_HINT),
    _known(
        r"cannot connect to the docker daemon|connection refused.*docker|is the docker daemon running",
        "docker's daemon does not run, or not where DOCKER_HOST says",
        "start it: sudo systemctl start docker; or take podman: engine=podman",
    ),
    _known(
        r"permission denied while trying to connect to the docker|dial unix.*permission denied",
        "this user may not speak to docker's daemon",
        "sudo usermod -aG docker $USER, and log in again; or take podman, which needs no daemon: engine=podman",
    ),
    _known(
        r"unresolvable CDI devices|CDI device injection failed|unknown CDI|could not select device driver \"cdi\"",
        "the engine knows no GPU by that name: there is no CDI specification for it (/etc/cdi, /var/run/cdi), or the "
        "specification is newer than the engine reads (podman 4.3: up to cdiVersion 0.5.0)",
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
        "see whether the host has it: nvidia-smi",
    ),
    _known(
        r"read-only file system",
        "something has to be put where the host's folders are mounted read-only, as a CDI specification does that mounts "
        "files under /usr",
        "take rootfs=yes (podman), whose root can be written, or an image: image=…",
    ),
    _known(
        r"rlimit type (?P<type>\d+)[^\n]*not permitted|setrlimit `?RLIMIT_(?P<name>[A-Z]+)`?[^\n]*not permitted",
        "the limit {limit} is above what the kernel lets this user set (its hard limit; root needs CAP_SYS_RESOURCE to go above)",
        "ask for less: ulimit={limit}=N with N up to what `ulimit -H -a` shows; or raise it for the engine's service",
    ),
    _known(
        r"OOM-killed|memory limit too low|minimum memory limit",
        "the memory limit is too low for a container to begin",
        "raise memory=",
    ),
    _known(
        r"cgroups in hybrid mode not supported",
        "crun cannot work where both versions of control groups are in use",
        'install runc, and say so in containers.conf: [engine] runtime = "runc"',
    ),
    _known(
        r"(controller|cgroup)[^\n]*(not available|not found|is not mounted|not enabled)|resource limits are not supported"
        r"|opening file `(cpu|memory|cpuset|pids)\.[a-z]+`",
        "the control group controller for a limit that was asked for is missing or not delegated to this user",
        "run as root; or delegate it: sudo systemctl edit user@.service, [Service] Delegate=cpu cpuset io memory pids",
    ),
    _known(
        r"image not known|no such image|unable to find image|does not exist in local storage|image .*not found locally",
        "the image is not on this machine, and nothing is pulled inside a measurement",
        "get it first: {engine} pull {image}",
        "no_image",
    ),
    _known(
        r"exec format error",
        "the image's programs are for another architecture than this machine's",
        "get the image for this one: {engine} pull --platform linux/{architecture} {image}",
        "other_architecture",
    ),
    _known(
        r"exec: \"sh\":|executable file `sh` not found",
        "there is no sh in the image, which looks for its Python",
        "name the image's Python: --python PATH",
        "no_shell",
    ),
    _known(
        r"(exec: \"|executable file `)(?P<program>[^\"`]+)[\"`]:? ?(executable file not found|stat [^\n]*no such file|not found)",
        "there is no {program} in the image",
        "name a Python of the image by its path: --python PATH; without --python the usual places are looked at",
        "no_program",
    ),
    _known(
        r"exec: \"(?P<program>[^\"]+)\":[^\n]*(permission denied|is a directory)|open executable `(?P<found>[^`]+)`",
        "{program} of the image is not a program that this user may run",
        "name a Python of the image by its path: --python PATH; without --python the usual places are looked at",
        "no_program",
    ),
    _known(
        r"error while loading shared libraries: (?P<library>[^:\s]+)",
        "the image's Python lacks the library {library}",
        "take an image whose Python runs: {engine} run --rm {image} python3 -V; or name another: --python PATH",
        "broken_python",
    ),
    _known(
        r"setting up overlay|overlay[^\n]*(not supported|invalid argument)|fuse-overlayfs",
        "an overlay file system cannot be made here, which the container's root needs",
        "install fuse-overlayfs, or put the engine's storage on a disk that supports it (not NFS, not an overlay itself)",
    ),
    _known(
        r"netavark|slirp4netns|pasta|iptables|could not find bridge",
        "the container's network cannot be made",
        "take network=none or network=host; else install what is missing: netavark and iptables, or slirp4netns",
    ),
    _known(
        r"network not found|network .*not found|unable to find network",
        "there is no such network",
        "take none, host or bridge, or make it first: {engine} network create NAME",
    ),
    _known(
        r"no space left on device",
        "the disk of the engine's storage is full",
        "make room: {engine} system prune",
    ),
    _known(
        r"newuidmap|subuid|cannot set up namespace|user namespaces are not enabled",
        "rootless containers are not set up for this user",
        "give it subordinate ids: sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER; or run as root",
    ),
    _known(
        r"requested CPUs are not available|cpuset|Range of CPUs",
        "the CPUs that were asked for cannot be had",
        "take fewer: nproc shows how many there are, numbered from 0",
    ),
    _known(
        r"OCI permission denied|operation not permitted|permission denied",
        "the kernel did not permit it",
        "run it by hand to see more",
    ),
)


def refused(kind: str, said: str, argv: Sequence[str], image: str | None = None) -> PlaceError:
    """The engine ended with an error of its own, or the worker in it never came to speak."""
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
            message = f"{kind} could not run the worker: {cause} ({words})"
            return PlaceError(message, hint=hint, command=shell(argv), kind=known.kind)
    return PlaceError(f"{kind} could not run the worker: {words}", hint="try it by hand", command=shell(argv))


def image_refused(kind: str, code: int, said: str, argv: Sequence[str], image: str, python: str | None) -> PlaceError:
    """Somebody's image in which no worker came to speak: it has no Python, or what was named is not one."""
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
    """The engine ended with a code of its own while the worker ran."""
    if kind == "podman" and _NO_EXIT_CODE.search(said):
        return PlaceFailure("killed", MONITOR_KILLED, MONITOR_HINT)
    return PlaceFailure("killed", f"{kind} lost the container while the worker ran: {own_words(said)}", "run it again")


def exit_meaning(code: int) -> str:
    """What engines mean by the codes they keep for themselves."""
    return {
        125: "the engine itself failed before the container began",
        126: "the container's first program could not be started",
        127: "the container's first program was not found, or a device of it",
        0: "it ended well and was no worker",
    }.get(code, f"it ended with code {code} before it said a word")


def own_words(said: str) -> str:
    """The engine's last lines without its decoration: one line, not endless."""
    lines = [_NOISE.sub("", line.strip()).strip() for line in said.strip().splitlines()]
    text = " ".join(dict.fromkeys(line for line in lines if line))
    if not text:
        return "it gave no reason"
    return text if len(text) <= SHOWN_CHARACTERS else f"…{text[-SHOWN_CHARACTERS:]}"


def shell(argv: Sequence[str]) -> str:
    return shlex.join(argv)


def filled(text: str, values: Mapping[str, str]) -> str:
    """With its `{names}` filled in; a brace of an engine's own stays."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
