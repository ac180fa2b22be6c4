"""Call podman and docker by their command lines.

Their APIs were tried (docker's SDK, podman-py, python-on-whales) and not taken: podman's API drops a request for GPUs
without a word, none of them reaches `--rootfs` or CDI with both engines, podman needs a service for it, and errors arrive
cut. A command line is one argv that can be shown to a person, stored, and tried by hand, and it reports every error.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from stackmark.errors import PlaceError, Terminated
from stackmark.places.container import trouble
from stackmark.places.container.settings import podman_flags

RUN_LABEL = "stackmark.run"
DRIVER_LABEL = "stackmark.driver"
# Of a question to an engine: a store on a slow disk, set up for the first time, takes seconds; this is where it is stuck.
ASK_LIMIT_S = 120.0
REMOVE_LIMIT_S = 30.0
NO_ENGINE = "neither podman nor docker is installed here"
INSTALL = "install one, e.g. on Debian: apt-get install --no-install-recommends podman runc"


def container_name(run_id: str) -> str:
    return f"stackmark-{run_id}"


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Engine:
    kind: Literal["podman", "docker"]
    program: str
    version: str
    # Between the program and its command.
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def command(self) -> list[str]:
        return [self.program, *self.flags]

    @property
    def major(self) -> int:
        head = self.version.partition(".")[0]
        return int(head) if head.isdecimal() else 0

    def ask(self, *arguments: str, stdin: bytes | None = None) -> Answer:
        """Run one of the engine's commands to its end, in its own session: Ctrl-C is for us, not for it."""
        return answer_of([*self.command, *arguments], self.environment, stdin)

    def need(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Run a command as `ask` does; raise a place error unless it succeeds."""
        answer = self.ask(*arguments, stdin=stdin)
        if answer.code:
            raise trouble.refused(self.kind, answer.err, [*self.command, *arguments])
        return answer.out.strip()

    def containers(self, run_id: str) -> list[str]:
        """List the containers of a run, including ended ones."""
        answer = self.ask("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={RUN_LABEL}={run_id}")
        return answer.out.split() if answer.code == 0 else []

    def remove(self, containers: list[str]) -> None:
        """Remove it, at once."""
        now = ["--time", "0"] if self.kind == "podman" else []
        self.ask("rm", "--force", "--volumes", *now, *containers)

    def send(self, run_id: str, number: signal.Signals) -> bool:
        """Send a signal to a run's worker; False where its container does not run (yet).

        Not through the client, which hands signals on but loses one that comes while it starts the container.
        """
        return self.ask("kill", f"--signal={number.name}", container_name(run_id)).code == 0

    def remove_run(self, run_id: str, look_again: bool = False) -> int:
        """Remove what is left of a run, waits until it is gone, and says how many containers that were.

        A second Ctrl-C in the middle of it is not heeded: what would be left is what nobody wants.
        """
        seen: set[str] = set()
        deadline = time.monotonic() + REMOVE_LIMIT_S
        while time.monotonic() < deadline:
            with suppress(KeyboardInterrupt, Terminated):
                left = self.containers(run_id)
                if not left and not look_again:
                    break
                seen.update(left)
                if left:
                    self.remove(left)
                # The engine may be removing it already, by --rm, and refuse to do it twice.
                time.sleep(0.2)
                look_again = False
        return len(seen)


def find_engine(wanted: str, environment: Mapping[str, str]) -> Engine:
    """Find the named engine, or podman, or docker, and verify that it answers."""
    path = environment.get("PATH", os.defpath)
    names = ["podman", "docker"] if wanted == "auto" else [wanted]
    program = next((found for name in names if (found := shutil.which(name, path=path))), None)
    if program is None:
        said = NO_ENGINE if wanted == "auto" else f"{wanted} is not installed here"
        raise PlaceError(f"no container can be started: {said}", hint=INSTALL, command=f"{names[0]} --version")
    told = answer_of([program, "--version"], environment)
    if told.code:
        raise trouble.refused(os.path.basename(program), told.err, [program, "--version"])
    # Debian's and Fedora's podman-docker has a `docker` that is podman.
    if "podman" in told.out.lower():
        return Engine("podman", program, told.out.split()[-1], tuple(podman_flags(environment)), environment)
    asked = [program, "version", "--format", "{{.Server.Version}}"]
    server = answer_of(asked, environment)
    if server.code:
        raise trouble.refused("docker", server.err, asked)
    return Engine("docker", program, server.out.strip(), (), environment)


def answer_of(argv: list[str], environment: Mapping[str, str], stdin: bytes | None = None) -> Answer:
    """Run a short command and return its output."""
    try:
        done = subprocess.run(
            argv, input=stdin if stdin is not None else b"", capture_output=True, env=dict(environment),
            timeout=ASK_LIMIT_S, check=False, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise PlaceError(
            f"{os.path.basename(argv[0])} did not answer within {ASK_LIMIT_S:g} s", command=trouble.shell(argv)
        ) from error
    except OSError as error:
        raise PlaceError(f"{argv[0]} cannot be started: {error}", command=trouble.shell(argv)) from error
    return Answer(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
