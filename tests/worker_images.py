"""Images for the tests in which a worker runs, none of which has anything of ours: made here, and no registry is asked.

| function | image |
|---|---|
| `torch_image` | Debian with python3 and PyTorch for CPUs, as from a mirror and an index |
| `conda_image` | the same PyTorch behind /opt/conda/bin/python, and no python3 in the PATH |
| `debian_image` | Debian's python3 without torch |
| `python_image("3.10")`, `python_image("3.6")` | pyenv's Python, the libraries it needs, and a shell |
| `image_without_python` (hostile_images.py) | static busybox alone |
| `image_without_shell` | pyenv's Python 3.10 alone |
| `foreign_image` | for another architecture |

The first build takes one and a half minutes on two cores. Each image has a tag by its recipe, so it is built once per machine: it
stays in podman's storage, and a cluster's nodes get it once.
"""

import fcntl
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from clusters import TestCluster
from leaving_out import leave_out
from pythons import pyenv_python
from stackmark.places.container.engine import find_engine

# For a cluster without a script: an image that its nodes can pull.
IMAGE_VARIABLE = "STACKMARK_TEST_IMAGE"
TORCH = "2.13.0+cpu"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# Debian bookworm, whose Python is 3.11.
SUITE, PYTHON = "bookworm", "3.11"
PACKAGES = "python3,libstdc++6"
DEFAULT_MIRROR = "http://deb.debian.org/debian"
PREFIX = "localhost/stackmark-test-"
# Of a Python's library: its own tests, and what only a build of C extensions needs.
_NOT_NEEDED = re.compile(r"/(test|tests|idlelib|tkinter|ensurepip|site-packages|config-[^/]+|__pycache__)(/|$)|\.a$")


def named_image(environment: Mapping[str, str]) -> str | None:
    return environment.get(IMAGE_VARIABLE) or None


def load_worker_image(cluster: TestCluster) -> str:
    """Bring the image with torch to a cluster's nodes, unless they have it; return its name."""
    return load_image(cluster, torch_image())


def load_image(cluster: TestCluster, name: str) -> str:
    """Bring an image to a cluster's nodes, unless they have it; return its name.

    What the cluster's script keeps beside the kubeconfig goes with the cluster, and so does our note of what was loaded.
    """
    note = Path(cluster.kubeconfig).parent / "stackmark-test-images"
    with _locked(note.with_suffix(".lock")):  # another process of pytest may load it at the same time
        loaded = note.read_text().split() if note.is_file() else []
        if name not in loaded:
            with tempfile.TemporaryDirectory(prefix="stackmark-image-", dir="/var/tmp") as folder:
                archive = Path(folder) / "image.tar"
                # Layers as they are: compressing them takes longer than reading them.
                _podman("save", "--quiet", "--format", "docker-archive", "--output", str(archive), name)
                cluster.do("image", str(archive), timeout_s=600)
            note.write_text("\n".join([*loaded, name]))
    return name


def load_into_docker(name: str, reach: Mapping[str, str]) -> str:
    """Bring an image to docker; return its name."""
    with tempfile.TemporaryDirectory(prefix="stackmark-image-", dir="/var/tmp") as folder:
        archive = Path(folder) / "image.tar"
        _podman("save", "--quiet", "--format", "docker-archive", "--output", str(archive), name)
        done = subprocess.run(
            ["docker", "load", "--input", str(archive)], env={**os.environ, **reach}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    return name


def debian_image() -> str:
    """Make a Debian with its own python3 and without torch."""
    mmdebstrap = shutil.which("mmdebstrap")
    if mmdebstrap is None:
        leave_out("a Debian for an image is made by mmdebstrap (apt-get install mmdebstrap)")
    options = ["--variant=essential", f"--include={PACKAGES}", '--aptopt=Acquire::Languages "none"']
    options += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "locale", "info", "doc")]
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    options += [f"--keyring={keyring}"] if keyring.exists() else []
    name = _tag("debian", SUITE, *options)

    def make(folder: Path) -> None:
        # With mounts of its own: what it mounts under its root (/dev, /sys) is gone before that is removed.
        apart = ["unshare", "--mount", "--propagation", "private"] if os.geteuid() == 0 else []
        folder.chmod(0o755)
        environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C.UTF-8"}
        _run([*apart, mmdebstrap, *options, SUITE, str(folder / "base.tar"), _mirror()], environment)
        _podman("import", str(folder / "base.tar"), name)

    return _made(name, make)


def torch_image() -> str:
    """Make a Debian with python3 and torch: what somebody's image is, who never heard of us."""
    base = debian_image()
    recipe = f"""\
FROM {base}
COPY torch /usr/local/lib/python{PYTHON}/dist-packages
RUN python3 -m compileall -q -j 2 /usr/local/lib/python{PYTHON}/dist-packages || true
"""
    name = _tag("torch", TORCH, recipe)

    def make(folder: Path) -> None:
        site = folder / "torch"
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        argv += ["--only-binary=:all:", f"--python-version={PYTHON}", f"--target={site}", f"torch=={TORCH}"]
        # Where the settings of this machine name no index that has it, PyTorch's own is asked.
        if subprocess.run(argv, capture_output=True, timeout=600).returncode != 0:
            _run([*argv, f"--extra-index-url={TORCH_INDEX}"])
        for unused in ("test", "include"):
            shutil.rmtree(site / "torch" / unused, ignore_errors=True)
        _build(name, recipe, folder)

    return _made(name, make)


def conda_image() -> str:
    """Make an image of conda's layout: torch's Python is /opt/conda/bin/python, and no Python is in the PATH."""
    base = torch_image()
    recipe = f"""\
FROM {base}
RUN mkdir -p /opt/conda/bin && mv /usr/bin/python{PYTHON} /opt/conda/bin/python && rm -f /usr/bin/python*
"""
    return _made(name := _tag("conda", recipe), lambda folder: _build(name, recipe, folder))


def python_image(version: str, *, shell: bool = True, environment: Path | None = None) -> str:
    """Make an image of pyenv's Python at its own path, linked to /usr/bin/python3, with the libraries that it needs.

    For an environment that will be mounted it has also what that one's PyTorch takes from the system.
    """
    tree = pyenv_python(version)
    files = [path for path in sorted(tree.rglob("*")) if not _NOT_NEEDED.search(str(path.relative_to(tree.parent)))]
    binaries = [path for path in files if path.suffix == ".so" or path.parent == tree / "bin"]
    mounted = sorted(environment.glob("lib/python*/site-packages/torch/lib/*.so*")) if environment else []
    libraries = [path for path in _libraries([*binaries, *mounted]) if environment not in path.parents]
    # A library's name may be a link on this machine; those of the tree stay links.
    contents = {str(path): path.resolve() for path in libraries} | {str(path): path for path in files}
    links = {"/usr/bin/python3": str(tree / "bin/python3")}
    return _imported(f"python{version}{'' if shell else '-alone'}", contents, links, shell=shell)


def python_with_torch(which: str) -> str:
    """Return the Python of an environment with the oldest or the newest PyTorch; made once, and kept."""
    script = Path(__file__).parents[1] / "scripts/test-torches"
    made = subprocess.run([script, which], capture_output=True, text=True, check=False)
    if made.returncode:
        leave_out(f"an environment with the {which} PyTorch cannot be made: {made.stderr.strip()[-300:]}")
    return made.stdout.strip()


def image_without_shell() -> str:
    return python_image("3.10", shell=False)


def foreign_image(*, labelled: bool = True) -> str:
    """Make an image whose programs are for another architecture than this machine's; without its label it says this one's."""
    machine = 183 if os.uname().machine == "x86_64" else 62  # EM_AARCH64, EM_X86_64
    platform = "arm64" if machine == 183 else "amd64"
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + machine.to_bytes(2, "little") + bytes(44)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        program.write_bytes(header)
        program.chmod(0o755)
        contents = {"/bin/sh": program, "/usr/bin/python3": program}
        name, options = ("foreign", (f"--arch={platform}",)) if labelled else ("mislabelled", ())
        return _imported(name, contents, {}, shell=False, options=options)


def _libraries(binaries: Sequence[Path]) -> list[Path]:
    """What the loader takes from the system for these: the files by the names under which they are looked for."""
    said = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    found = re.findall(r"(?:=> |^\t)(/\S+) \(0x", said, re.MULTILINE)
    return [Path(path) for path in sorted(set(found))]


def _imported(
    name: str, contents: Mapping[str, Path], links: Mapping[str, str], *, shell: bool, options: Sequence[str] = ()
) -> str:
    """Import an image of these files, unless it is there. They belong to root, and every user may read them."""
    contents, links = dict(contents), dict(links)
    if shell:
        busybox = shutil.which("busybox")
        if busybox is None:
            leave_out("busybox is not installed (apt-get install busybox-static)")
        contents["/bin/busybox"] = Path(busybox).resolve()
        links |= {f"/bin/{tool}": "busybox" for tool in ("sh", "cat", "ls", "id")}
    # By names and sizes: reading hundreds of megabytes for a tag takes longer than the import.
    sizes = [f"{path}:{source.lstat().st_size}" for path, source in contents.items()]
    tag = _tag(name, *sorted(sizes), *sorted(f"{path}>{target}" for path, target in links.items()))

    def make(folder: Path) -> None:
        above = {str(parent) for path in (*contents, *links) for parent in Path(path).parents} - {"/", *contents}
        with tarfile.open(folder / "image.tar", "w", format=tarfile.GNU_FORMAT) as archive:
            for path in sorted({*above, "/tmp", "/proc", "/sys", "/dev", "/etc"}):
                entry = tarfile.TarInfo(path.lstrip("/"))
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if path == "/tmp" else 0o755
                archive.addfile(entry)
            for path, source in sorted(contents.items()):
                entry = archive.gettarinfo(source, path.lstrip("/"))
                entry.uid = entry.gid = 0
                entry.mode |= 0o555 if entry.isdir() or entry.mode & 0o100 else 0o444
                archive.addfile(entry, io.BytesIO(source.read_bytes()) if entry.isreg() else None)
            for path, target in links.items():
                entry = tarfile.TarInfo(path.lstrip("/"))
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                archive.addfile(entry)
        _podman("import", *options, str(folder / "image.tar"), tag)

    return _made(tag, make)


def _build(name: str, recipe: str, folder: Path) -> None:
    (folder / "Containerfile").write_text(recipe)
    options = ("--quiet", "--pull=never", "--isolation=chroot", "--format=docker")
    _podman("build", *options, f"--tag={name}", f"--file={folder / 'Containerfile'}", str(folder))


def _made(name: str, make: Callable[[Path], None]) -> str:
    """Make an image unless podman has it; one of an older recipe goes."""
    with _locked(Path(tempfile.gettempdir()) / f"stackmark-test-images-{os.getuid()}.lock"):
        if _run([*_engine(), "image", "exists", name], may_fail=True).returncode == 0:
            return name
        repository = name.rpartition(":")[0]
        older = _run([*_engine(), "images", "--format={{.Repository}}:{{.Tag}}", repository]).stdout.split()
        with tempfile.TemporaryDirectory(prefix="stackmark-image-", dir="/var/tmp") as folder:
            make(Path(folder))
        for old in older:
            _run([*_engine(), "rmi", old], may_fail=True)  # it may be in use by somebody's container
    return name


def _tag(name: str, *recipe: str) -> str:
    return f"{PREFIX}{name}:{hashlib.sha256(chr(10).join(recipe).encode()).hexdigest()[:16]}"


def _mirror() -> str:
    """The mirror that this machine's own packages come from."""
    for file in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        if found := re.search(r"^URIs: (\S+)", file.read_text(), re.MULTILINE):
            return found[1]
    return DEFAULT_MIRROR


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _engine() -> list[str]:
    return list(find_engine("podman", os.environ).command)


def _podman(*argv: str) -> None:
    _run([*_engine(), *argv])


def _run(
    argv: Sequence[str], environment: Mapping[str, str] | None = None, *, may_fail: bool = False
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=600)
    assert may_fail or done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done
