"""This very stackmark as a wheel, for an image.

It is packed from the files that run here, whether they lie in a checkout or are installed, so that the worker in the image is
the worker on the host to the byte. A build backend would need the checkout, hatchling and, isolated, a network. The same files
give the same bytes. It names no dependencies: an image installs the worker's, not the driver's.
"""

import base64
import csv
import hashlib
import io
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import stackmark
from stackmark import __version__

PACKAGE = Path(stackmark.__file__).resolve().parent
NAME = f"stackmark-{__version__}-py3-none-any.whl"
# The oldest moment that a zip can hold: a wheel of the same files must not differ by when it was packed.
MOMENT = (1980, 1, 1, 0, 0, 0)
METADATA = f"""\
Metadata-Version: 2.1
Name: stackmark
Version: {__version__}
Summary: The worker's side of stackmark, for an image: its dependencies are installed beside it.
License: Apache-2.0
Requires-Python: >=3.11
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: stackmark\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True)
class Wheel:
    name: str
    data: bytes
    revision: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def pack(package: Path = PACKAGE) -> Wheel:
    folder = f"stackmark-{__version__}.dist-info"
    entries = [(f"stackmark/{path.relative_to(package).as_posix()}", path.read_bytes()) for path in _files(package)]
    entries += [(f"{folder}/METADATA", METADATA.encode()), (f"{folder}/WHEEL", WHEEL.encode())]
    licence = package.parent.parent / "LICENSE"
    if package.parent.name == "src" and licence.is_file():
        entries.append((f"{folder}/licenses/LICENSE", licence.read_bytes()))
    entries.append((f"{folder}/RECORD", _record(entries, f"{folder}/RECORD")))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as wheel:
        for name, data in entries:
            about = zipfile.ZipInfo(name, MOMENT)
            about.external_attr = 0o100644 << 16
            about.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(about, data)
    return Wheel(NAME, packed.getvalue(), revision(package))


def _files(package: Path) -> Iterator[Path]:
    for path in sorted(package.rglob("*")):
        relative = path.relative_to(package)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
        if path.is_file() and not hidden and path.suffix not in (".pyc", ".pyo"):
            yield path


def _record(entries: list[tuple[str, bytes]], own_name: str) -> bytes:
    """What pip checks a wheel by: each file's hash and size, and of the list itself neither."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    for name, data in entries:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow((name, f"sha256={digest}", len(data)))
    writer.writerow((own_name, "", ""))
    return lines.getvalue().encode()


def revision(package: Path = PACKAGE) -> str:
    """The commit of the checkout, with `-changed` where the package differs from it; `unknown` where there is none."""
    checkout = package.parent.parent
    if package.parent.name != "src" or not (checkout / ".git").exists():
        return "unknown"
    commit = _git(checkout, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return "unknown"
    changes = _git(checkout, "status", "--porcelain", "--", str(package))
    return f"{commit}-changed" if changes else commit


def _git(checkout: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(checkout), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # no git here
    return done.stdout.strip() if done.returncode == 0 else None
