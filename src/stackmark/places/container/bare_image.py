"""Build an empty image of folders and links, into which the host's own software is mounted.

No registry is needed for it and both engines import it in a tenth of a second. The one file in it is the loader's cache
(/etc/ld.so.cache): libraries are then found where the host finds them, and it is a copy and not a mount since NVIDIA's hooks
write a new one into the container. The image's name carries a hash of its recipe, so it is made once, and again after
an upgrade of the host.
"""

import hashlib
import io
import os
import tarfile
from pathlib import Path

from stackmark.places.container.engine import Engine
from stackmark.places.container.software import PROGRAM_FOLDERS

REPOSITORY = "localhost/stackmark-bare"
LABEL = "stackmark.bare"
FOLDERS = ("dev", "etc", "proc", "run", "sys", "usr", "var", "etc/alternatives", "var/tmp", "tmp")
LOADER_CACHE = "etc/ld.so.cache"
ROOT = Path("/")


def recipe(root: Path = ROOT) -> bytes:
    """Return the image's file system as a tar archive: the same bytes on the same host."""
    store = io.BytesIO()
    with tarfile.open(fileobj=store, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in FOLDERS:
            _add(archive, name, tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755)
        for name in PROGRAM_FOLDERS:
            path = root / name
            if path.is_symlink():
                _add(archive, name, tarfile.SYMTYPE, 0o777, link=os.readlink(path))
            elif path.is_dir():
                _add(archive, name, tarfile.DIRTYPE, 0o755)
        try:
            cache = (root / LOADER_CACHE).read_bytes()
        except OSError:
            cache = b""  # musl has none
        if cache:
            _add(archive, LOADER_CACHE, tarfile.REGTYPE, 0o644, content=cache)
    return store.getvalue()


def image_name(archive: bytes) -> str:
    return f"{REPOSITORY}:{hashlib.sha256(archive).hexdigest()[:16]}"


def made(engine: Engine, root: Path = ROOT) -> str:
    """Make the image and return its name; remove those of older recipes."""
    archive = recipe(root)
    name = image_name(archive)
    if engine.ask("image", "inspect", "--format", "{{.Id}}", name).code == 0:
        return name
    engine.need("import", "--change", f"LABEL {LABEL}=1", "-", name, stdin=archive)
    listed = engine.ask("images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"label={LABEL}")
    old = [line for line in listed.out.split() if line.startswith(f"{REPOSITORY}:") and line != name]
    if old:
        engine.ask("rmi", *old)  # one that is in use stays, and says so to nobody
    return name


def _add(archive: tarfile.TarFile, name: str, kind: bytes, mode: int, link: str = "", content: bytes = b"") -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname, entry.size = kind, mode, link, len(content)
    archive.addfile(entry, io.BytesIO(content))
