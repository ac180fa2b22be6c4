"""A real registry for images, on this machine: Debian's docker-registry, with its store in a folder of its own."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGE = "docker-registry"
ACCEPTED = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
# A user whose password nobody knows: what matters is that the registry asks for one.
HTPASSWD = "somebody:$2y$05$EXRkrGJ0qyYFlSsYYC8Q7uVwVkyFoGqjR2VbR0qxY3bYb8c0n8yPK\n"


def find_registry() -> str | None:
    return shutil.which(PACKAGE)


@contextmanager
def running_registry(folder: Path, *, closed: bool = False) -> Iterator[str]:
    """Its address. A closed one lets nobody in."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings: dict[str, object] = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "store")}},
        "http": {"addr": address},
    }
    if closed:
        (folder / "htpasswd").write_text(HTPASSWD)
        settings["auth"] = {"htpasswd": {"realm": "stackmark", "path": str(folder / "htpasswd")}}
    (folder / "settings.yml").write_text(json.dumps(settings))  # JSON is YAML
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([PACKAGE, "serve", str(folder / "settings.yml")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while not _answers(address):
            said = (folder / "log").read_text(errors="replace")
            assert server.poll() is None, f"the registry ended:\n{said}"
            assert time.monotonic() < deadline, f"the registry was not ready in time:\n{said}"
            time.sleep(0.05)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=30)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/v2/", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True  # it asks who is there
    except OSError:
        return False


def digest_in(address: str, name: str, tag: str) -> str:
    """The registry's own word."""
    asked = urllib.request.Request(f"http://{address}/v2/{name}/manifests/{tag}", headers={"Accept": ACCEPTED})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        told: str = answer.headers["Docker-Content-Digest"]
    return told
