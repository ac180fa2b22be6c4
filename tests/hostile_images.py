"""An image that lies: static busybox, and a `python3` that plays back whatever the test wants a worker to have said.

The lies are in a folder that is mounted at /lie, or in the image itself, where the variable LIE names one of several: `probe` and
`run` are the streams for either task, `exit` the exit code. Where there is a script `do`, it is run instead.
"""

import hashlib
import io
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from leaving_out import leave_out

PYTHON = """#!/bin/sh
lie=/lie${LIE:+/$LIE}
task=$STACKMARK_SPEC
[ "$1" = -c ] && exit 71 # the question which Python has torch: this one, it says
[ -n "$task" ] || read -r task
[ -f $lie/do ] && exec sh $lie/do
case "$task" in
  *'"do":"probe"'*) cat $lie/probe ;;
  *) cat $lie/run ;;
esac
exit $(cat $lie/exit 2>/dev/null || echo 0)
"""


def hostile_image(**lies: str) -> str:
    """Make the image; `lies` are answers to a probe that it brings itself, by the name that LIE chooses."""
    return _made("hostile", PYTHON, {f"lie/{name}/probe": text for name, text in lies.items()})


def image_without_python() -> str:
    return _made("no-python", None)


def image_with_entry_point() -> str:
    """An image that runs a program of its own where nobody names one."""
    return _made("entry-point", None, changes=('ENTRYPOINT ["/bin/sh", "-c"]', 'CMD ["echo speed 42"]'))


def _made(name: str, python: str | None, brought: Mapping[str, str] | None = None, changes: Sequence[str] = ()) -> str:
    """Import it into podman, unless an image of the same bytes is there."""
    busybox = shutil.which("busybox")
    if busybox is None:
        leave_out("busybox is not installed (apt-get install busybox-static)")
    files = {"bin/busybox": Path(busybox).read_bytes()}
    if python is not None:
        files["usr/bin/python3"] = python.encode()
    files |= {path: text.encode() for path, text in (brought or {}).items()}
    store = io.BytesIO()
    with tarfile.open(fileobj=store, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        folders = ("bin", "usr", "usr/bin", "lie", "tmp", "proc", "sys", "dev")
        for folder in (*folders, *dict.fromkeys(path.rpartition("/")[0] for path in brought or ())):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.mode, entry.size = 0o755, len(content)
            archive.addfile(entry, io.BytesIO(content))
        for tool in ("sh", "cat", "echo", "yes", "sleep", "head"):
            entry = tarfile.TarInfo(f"bin/{tool}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
    tag = f"localhost/stackmark-test-{name}:{hashlib.sha256(store.getvalue()).hexdigest()[:16]}"
    if subprocess.run(["podman", "image", "exists", tag], check=False).returncode != 0:
        changed = [f"--change={change}" for change in changes]
        done = subprocess.run(
            ["podman", "import", *changed, "-", tag], input=store.getvalue(), capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
    return tag
