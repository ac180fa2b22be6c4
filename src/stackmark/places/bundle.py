"""Build the worker as one zip file from our own files: it is mounted into an image, and sent to a pod.

Any image that has Python runs it, so nothing of ours has to be in the image. The file holds the contracts, `machine/`, `worker/`
and `workloads/`, and NVIDIA's Python module for NVML, which is one file of pure Python. The same sources give the same bytes on
the same version of zlib: names are sorted and times are fixed.
"""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from stackmark.errors import PlaceError
from stackmark.places.process import PACKAGE_ROOT

NAME = "worker.pyz"
# Where it lies in a container and in a pod: a folder of its own, since a ConfigMap is mounted as one.
FOLDER = "/opt/stackmark"
TARGET = f"{FOLDER}/{NAME}"
# A ConfigMap holds 1 MiB.
LIMIT_BYTES = 2**20
# The layers that a worker is made of; besides them all modules that lie in the package itself, which are contracts.
LAYERS = ("machine", "worker", "workloads")
# The driver's own: the command line, its models on pydantic, and the names of what it prints.
DRIVERS = ("__main__.py", "frozen.py", "schemas.py")
# Written so that any Python reads it, and an old one says that it is too old.
MAIN = "worker/zip_main.py"
# What a worker reads at run time. Notes, and what an editor leaves in a checkout, are not packed.
SUFFIXES = (".py", ".csv")
# Its licence (BSD) stands at the head of the file, and so travels with it.
NVML = "pynvml"
# The earliest time that a zip file can say.
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Bundle:
    """The zip file's bytes and their SHA-256, which identifies it in a run."""

    content: bytes = field(repr=False)
    sha256: str

    def write(self, path: Path) -> Path:
        """Write the file, so that any user of a container can read it."""
        path.write_bytes(self.content)
        path.chmod(0o644)
        return path


@cache  # a comparison of many runs packs it once
def worker_bundle(package: Path = PACKAGE_ROOT / "stackmark") -> Bundle:
    """Pack the worker from the files that run here."""
    store = io.BytesIO()
    with zipfile.ZipFile(store, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(_files(package)):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            entry.create_system = 3  # Unix, wherever it is packed
            archive.writestr(entry, content, compresslevel=9)
    packed = store.getvalue()
    if len(packed) >= LIMIT_BYTES:
        raise PlaceError(
            f"the worker's zip file has {len(packed):,} bytes, but a ConfigMap holds at most {LIMIT_BYTES:,}"
        )
    return Bundle(packed, hashlib.sha256(packed).hexdigest())


def _files(package: Path) -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", (package / MAIN).read_bytes()
    for path in package.glob("*.py"):
        if path.name not in DRIVERS and not path.name.startswith("."):
            yield f"stackmark/{path.name}", path.read_bytes()
    for layer in LAYERS:
        for path in (package / layer).rglob("*"):
            if path.suffix in SUFFIXES and path.is_file() and not path.name.startswith("."):
                yield f"stackmark/{path.relative_to(package).as_posix()}", path.read_bytes()
    found = find_spec(NVML)
    if found is not None and found.origin is not None:
        yield f"{NVML}.py", Path(found.origin).read_bytes()
