"""Run programs that build images (podman, buildah, docker, found in that order), and explain their errors.

podman and buildah build with `--isolation chroot` and the host's network: a build step needs neither an OCI runtime nor
control groups nor a bridge, and those are what fails in a virtual machine, in CI or in a pod, each in its own way. docker needs
BuildKit, since nothing else mounts a secret for a step. A program's output is shown as it comes, and the end of it is kept for
the sentence that says what went wrong.
"""

import os
import re
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from stackmark.errors import PlaceError
from stackmark.places.container.engine import find_engine
from stackmark.places.container.trouble import KnownTrouble, filled, shell

Say = Callable[[str], None]
Kind = Literal["podman", "buildah", "docker"]
PROGRAMS: tuple[Kind, ...] = ("podman", "buildah", "docker")
LINES_KEPT = 2000
# A log's reason stands near its end; above that, a warning with the same words is a warning. The last of it is shown.
LINES_SEARCHED = 60
LINES_SHOWN = 12
LINE_CHARACTERS = 500
# A build that is told to stop removes what it has half made.
POLITE_S = 10.0


@dataclass(frozen=True)
class Builder:
    kind: Kind
    # The program and its own options.
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


def find_builder(wanted: str | None = None, environment: Mapping[str, str] | None = None) -> Builder:
    """Find the named builder, or the first that is installed."""
    environment = dict(os.environ if environment is None else environment)
    path = environment.get("PATH", os.defpath)
    names = PROGRAMS if wanted is None else (wanted,)
    name = next((name for name in names if shutil.which(name, path=path)), None)
    if name is None:
        what = "none of podman, buildah and docker" if wanted is None else f"no {wanted}"
        raise PlaceError(
            f"no image can be built here: {what} is installed",
            hint="on Debian: apt-get install --no-install-recommends podman\n"
            "or build the recipe elsewhere: stackmark image > Containerfile",
        )
    program = shutil.which(name, path=path) or name
    if name == "buildah":
        return Builder("buildah", (program,), environment)
    try:
        engine = find_engine(name, environment)  # docker may be podman by another name, or have no daemon
    except PlaceError as error:
        reason = error.message.removeprefix(f"{name} could not run the worker: ")
        hint = "use --engine podman or --engine buildah"
        raise PlaceError(f"{name} cannot build here: {reason}", hint=hint, command=error.command) from error
    if engine.kind == "podman":
        return Builder("podman", tuple(engine.command), environment)
    return Builder("docker", (program,), {**environment, "DOCKER_BUILDKIT": "1"})


class Ran(NamedTuple):
    code: int
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def run(argv: Sequence[str], say: Say, environment: Mapping[str, str] | None = None) -> Ran:
    """Run a program to its end and pass on its lines, both outputs in one. Ctrl-C and SIGTERM end it and all it started."""
    lines: deque[str] = deque(maxlen=LINES_KEPT)
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise PlaceError(f"{argv[0]} cannot be started: {error.strerror}", command=shell(argv)) from error
    assert process.stdout is not None
    try:
        with process.stdout:
            for line in process.stdout:
                lines.append(line.rstrip()[:LINE_CHARACTERS])
                say(lines[-1])
        return Ran(process.wait(), list(lines))
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[str]) -> None:
    """Its steps first: podman that is ended itself leaves its half-made containers behind, but cleans up after a failed step."""
    if _end_steps(process.pid):
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLITE_S)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLITE_S)
            return


def _end_steps(session: int) -> bool:
    """Kills what a program has started in its session, and says whether there was anything."""
    found = False
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == session:
            continue
        with suppress(OSError):
            if os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), signal.SIGKILL)
                found = True
    return found


def _known(pattern: str, cause: str, hint: str) -> KnownTrouble:
    return KnownTrouble(re.compile(pattern, re.IGNORECASE), cause, hint)


# In the order of looking, the more telling text first. {registry} is the registry or mirror that was asked.
KNOWN = (
    _known(
        r"--mount option requires BuildKit|the --mount option requires|buildx component is missing|unknown flag: --secret",
        "docker builds without BuildKit here, and only BuildKit mounts a secret for one step",
        "install docker's buildx plugin (docker-buildx-plugin), or podman",
    ),
    _known(
        r"no space left on device|disk quota exceeded",
        "the disk is full",
        "free space: podman system prune; if /tmp is small, set TMPDIR to another folder",
    ),
    _known(
        r"unauthorized|authentication required|denied: requested access|access denied|no basic auth credentials"
        r"|insufficient_scope|invalid username/password|status code 403|403 forbidden",
        "{registry} denies access to this image",
        "log in first: podman login REGISTRY; and check that you may read this image",
    ),
    _known(
        r"manifest unknown|not found: manifest|name unknown|repository name not known|requested access to the resource",
        "{registry} does not have this image",
        "use another: --build-arg BASE_IMAGE=REF",
    ),
    _known(
        r"no such host|name resolution|network is unreachable|connection refused|i/o timeout|no route to host|connection reset"
        r"|could not resolve host|TLS handshake timeout",
        "{registry} cannot be reached from here",
        "{elsewhere}",
    ),
    _known(
        r"x509|CERTIFICATE_VERIFY_FAILED|certificate verify failed|unable to get local issuer|self.signed certificate"
        r"|SSL certificate problem|certificate verification failed",
        "a certificate is signed by an unknown authority, perhaps of your own proxy or mirror",
        "pass the authority's certificate to the build: --ca FILE",
    ),
    _known(
        r"(No matching distribution found for|Could not find a version that satisfies the requirement) (?P<what>\S+)"
        r"|Cannot install (?P<pinned>\S+) because these package versions have conflicting",
        "pip found no wheel of {what} for this Python and processor",
        "use another version (--build-arg TORCH=…), or another index (--pip-conf FILE)",
    ),
    _known(
        r"NO_PUBKEY|is not signed|no keyring|keyring file .*(missing|not found|doesn't exist)|unable to read .*\.gpg"
        r"|signature verification failed",
        "the mirror's signature cannot be verified: Debian's keys are missing or wrong on this machine",
        "install them: apt-get install debian-archive-keyring",
    ),
    _known(
        r"Temporary failure (in name resolution|resolving)|Failed to fetch http|Could not connect to|Couldn't download",
        "a mirror cannot be reached from the build",
        "behind a proxy, set HTTP_PROXY and HTTPS_PROXY; the build uses them",
    ),
    _known(
        r"newuidmap|subuid|cannot set up namespace|user namespaces are not enabled|insufficient UIDs or GIDs",
        "this user has no subordinate ids, which a build without root needs",
        "as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER; or build as root",
    ),
    _known(
        r"operation not permitted|permission denied",
        "the kernel did not permit a step",
        "try again as root",
    ),
)  # fmt: skip
_STEP = re.compile(r'building at STEP "(?P<step>[^"]+)')
_MOUNT = re.compile(r"--mount=\S+ ")
STEP_CHARACTERS = 60


def failed(
    what: str, ran: Ran, argv: Sequence[str], *, registry: str = "the registry", elsewhere: str = ""
) -> PlaceError:
    """Return the error: what failed, why as far as the log shows, what to do, the end of the log, and the command."""
    cause, hint = _reason(ran)
    values = {"registry": registry, "elsewhere": elsewhere or "look at the name, the network and the proxy"}
    cause, hint = filled(cause, values), filled(hint, values)
    shown = [line for line in ran.lines if line.strip()][-LINES_SHOWN:]
    told = "\n".join([hint, "the end of its output:", *(f"  {line}" for line in shown)] if shown else [hint])
    return PlaceError(f"{what}: {cause}", hint=told, command=shell(argv))


def _reason(ran: Ran) -> tuple[str, str]:
    end = "\n".join(ran.lines[-LINES_SEARCHED:])
    for known in KNOWN:
        if match := known.pattern.search(end):
            named = next((value for value in match.groupdict().values() if value), "it")
            return filled(known.cause, {"what": named}), known.hint
    step = _STEP.search(end)
    where = (
        f"the step “{short_step(step['step'], STEP_CHARACTERS)}” failed" if step else f"it ended with code {ran.code}"
    )
    return where, "run the command yourself to see its whole output"


def short_step(text: str, characters: int) -> str:
    """Shorten a step to one line without its mounts."""
    words = " ".join(_MOUNT.sub("", text).split())
    return words if len(words) <= characters else f"{words[: characters - 1]}…"
