"""Real container engines for the tests: the machine's podman, and docker with a daemon of our own where none runs.

The daemon has its own socket, data and state in a temporary folder and makes no network, so that it disturbs nobody, and it is
gone afterwards. What the tests leave in podman's storage is one image of a few kilobytes, which the next run finds again.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PACKAGES = {"podman": "podman runc", "docker": "docker.io"}
_PR_SET_PDEATHSIG = 1


def why_missing(kind: str) -> str | None:
    """Why an engine cannot be had here, in a line."""
    if shutil.which(kind) is None:
        return f"{kind} is not installed (apt-get install --no-install-recommends {PACKAGES[kind]})"
    if kind == "docker" and not _daemon_answers({}) and (os.getuid() != 0 or shutil.which("dockerd") is None):
        return "docker's daemon does not run, and only root with dockerd can start one"
    return None


@contextmanager
def docker_variables() -> Iterator[dict[str, str]]:
    """What the environment needs to reach a docker that answers; its daemon is started where there is none."""
    if _daemon_answers({}):
        yield {}
        return
    # Short, since a socket's path has 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="stackmark-dk-", dir="/tmp"))
    reach = {"DOCKER_HOST": f"unix://{folder}/docker.sock"}
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            ["dockerd", "--host", reach["DOCKER_HOST"], "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"),
             "--pidfile", str(folder / "pid"), "--bridge=none", "--iptables=false"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not _daemon_answers(reach):
            said = (folder / "log").read_text(errors="replace")
            assert daemon.poll() is None, f"dockerd ended:\n{said}"
            assert time.monotonic() < deadline, f"dockerd was not ready in a minute:\n{said}"
            time.sleep(0.1)
        yield reach
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=60)
        # What a daemon leaves mounted (its network namespace) cannot be removed.
        mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for point in sorted((point for point in mounted if point.startswith(f"{folder}/")), reverse=True):
            subprocess.run(["umount", point], check=True)
        shutil.rmtree(folder)


def _daemon_answers(more: Mapping[str, str]) -> bool:
    if shutil.which("docker") is None:
        return False
    asked = ["docker", "version", "--format", "{{.Server.Version}}"]
    return subprocess.run(asked, env={**os.environ, **more}, capture_output=True).returncode == 0


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
