"""The worker image that the tests run in pods: made here by `stackmark image` from a Debian mirror, and no registry is asked.

With torch it has 1.4 GiB, and on two cores its build takes a minute (and half a minute for the base, the first time), its way
into the nodes another. The engine keeps the steps of the build, so after a change of our own sources only the last of them is
run again; an image that the nodes have already is not brought to them twice. It stays in podman's storage for the next time.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import stackmark
from asking import ask
from clusters import TestCluster
from stackmark.places.container.image.recipes import pins, read_recipe

NAME = "localhost/stackmark:test"
# For a cluster without a script: an image that its nodes can pull.
IMAGE_VARIABLE = "STACKMARK_TEST_IMAGE"
ARCHIVE = "stackmark-test-worker.tar"


def named_image(environment: Mapping[str, str]) -> str | None:
    return environment.get(IMAGE_VARIABLE) or None


def load_worker_image(cluster: TestCluster) -> str:
    """Its name. What the script keeps beside the kubeconfig goes with the cluster, and so does our note of what was loaded."""
    note = Path(cluster.kubeconfig).parent / "stackmark-test-image"
    with note.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of pytest may build it at the same time
        return _load(cluster, note)


def _load(cluster: TestCluster, note: Path) -> str:
    loaded = note.read_text().split() if note.is_file() else []
    sources = _hash_of_sources()
    if loaded == [sources, _id_of(NAME)]:
        return NAME  # asking the builder takes several seconds, and each process of pytest would ask
    image_id = _build()
    if image_id in loaded:
        note.write_text(f"{sources} {image_id}")
        return NAME
    with tempfile.TemporaryDirectory(prefix="stackmark-image-", dir="/var/tmp") as folder:
        archive = Path(folder) / ARCHIVE
        # Layers as they are: compressing them takes longer than reading them.
        _run("podman", "save", "--quiet", "--format", "docker-archive", "--output", str(archive), NAME)
        cluster.do("image", str(archive), timeout_s=600)
    note.write_text(f"{sources} {image_id}")
    return NAME


def _hash_of_sources() -> str:
    """Return a hash over the package: all that a build puts into the image comes from it, or is pinned by it."""
    folder = Path(stackmark.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        digest.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _build() -> str:
    before = _id_of(NAME)
    with _torch_wheel() as wheels:
        brought = ["--wheels", str(wheels)] if wheels else []
        answer = ask("image", "--build", "--from-mirror", *brought, "--tag", NAME, "--engine", "podman", "--json")
    assert answer.code == 0, answer.err
    built = str(json.loads(answer.out)["image"]["id"])
    if before not in (None, built):
        # The engine keeps an image that lost its name; it may be in use by somebody's container.
        subprocess.run(["podman", "rmi", str(before)], capture_output=True, check=False)
    return built


def _id_of(name: str) -> str | None:
    asked = ["podman", "image", "inspect", "--format", "sha256:{{.Id}}", name]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


@contextmanager
def _torch_wheel() -> Iterator[Path | None]:
    """torch's build for CPUs where pip finds it with the settings of this machine; else the build asks PyTorch's index."""
    recipe = read_recipe("debian")
    wanted = f"torch=={pins()['torch']}+{recipe.build}"
    with tempfile.TemporaryDirectory(prefix="stackmark-wheels-", dir="/var/tmp") as folder:
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        argv += ["--only-binary=:all:", f"--python-version={recipe.python}", f"--dest={folder}", wanted]
        found = subprocess.run(argv, capture_output=True, timeout=300).returncode == 0
        yield Path(folder) if found else None


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, env=os.environ, timeout=300)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
