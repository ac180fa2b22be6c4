"""Read the software: Python, torch and its libraries, packages, and ourselves.

Torch is taken from the modules that are already loaded, never imported: facts must not change what they describe, and a
worker whose workload needs no torch must not pay for it.
"""

import hashlib
import importlib.metadata
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import stackmark
from stackmark.machine.reading import Facts, Json, Reading, text
from stackmark.version import RELEASE

CONFIG = re.compile(r"\b(BLAS_INFO|BUILD_TYPE|LAPACK_INFO|USE_MKL|USE_MKLDNN|USE_NCCL|USE_OPENMP)=([^,\s]+)")
CAPABILITY = re.compile(r"CPU capability usage: (\S+)")
MKL = re.compile(r"Math Kernel Library Version (\S+?)-Product")
ONEDNN = re.compile(r"MKL-DNN v(\d[\w.]*)")
# NVIDIA names its packages by the major version of CUDA, and since CUDA 13 without it.
CUBLAS_PACKAGES = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12", "nvidia-cublas-cu11")
# The file of a library that is loaded already, where its name has the whole version: libcublas.so.12.8.4.1.
CUBLAS_FILE = re.compile(r"/libcublas\.so\.(\d+(?:\.\d+)+)$", re.MULTILINE)
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def read(modules: Mapping[str, ModuleType] | None = None) -> Reading:
    modules = sys.modules if modules is None else modules
    torch = modules.get("torch")
    facts: Facts = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "compiler": platform.python_compiler(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "executable": sys.executable,
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        # Loaded, the module itself says what it is; else its installation does.
        "torch": str(torch.__version__) if torch is not None else _version("torch"),
        "torch_loaded": torch is not None,
    }
    if torch is not None:
        facts.update(_torch(torch))
    for package in ("triton", "numpy"):
        facts[package] = _version(package)
    facts["numpy_blas"] = _numpy_blas(modules.get("numpy"))
    return Reading(facts)


def _torch(torch: ModuleType) -> Facts:
    built = torch.version
    config = str(torch.__config__.show())
    cudnn = torch.backends.cudnn.version() if built.cuda or getattr(built, "hip", None) else None
    return {
        "torch_git": str(built.git_version),
        "cuda": built.cuda,
        "hip": getattr(built, "hip", None),
        "cudnn": cudnn,
        "nccl": _nccl(torch) if built.cuda else None,
        "cublas": _cublas() if built.cuda else None,
        "mkl": _first(MKL, config),
        "onednn": _first(ONEDNN, config),
        "torch_cuda_archs": _cuda_archs(torch) if built.cuda else None,
        "torch_threads": torch.get_num_threads(),
        "torch_interop_threads": torch.get_num_interop_threads(),
        "torch_cpu_capability": _first(CAPABILITY, config),
        "torch_build": {name.lower(): value for name, value in CONFIG.findall(config)},
    }


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None


def _nccl(torch: ModuleType) -> str | None:
    """Ask the library that torch brings, as `torch.cuda.nccl.version` does, which may not be loaded."""
    try:
        packed = int(torch._C._nccl_version())
    except (AttributeError, RuntimeError, TypeError):
        return None  # a build without NCCL
    return f"{packed >> 32}.{packed >> 16 & 0xFFFF}.{packed & 0xFFFF}"


def _cuda_archs(torch: ModuleType) -> list[Json] | None:
    """Return what torch has kernels for. Its own `get_arch_list` would start CUDA first."""
    try:
        return [*str(torch._C._cuda_getArchFlags() or "").split()]
    except (AttributeError, RuntimeError):
        return None


def _cublas() -> str | None:
    """Return cuBLAS's version by the file that is loaded, or by its package; it is not asked itself."""
    loaded = _first(CUBLAS_FILE, text(Path("/proc/self/maps")) or "")
    return loaded or next((version for name in CUBLAS_PACKAGES if (version := _version(name))), None)


def _numpy_blas(numpy: ModuleType | None) -> str | None:
    """Return which library NumPy multiplies matrices with, where it is loaded and new enough to say."""
    try:
        blas = numpy.__config__.CONFIG["Build Dependencies"]["blas"]  # type: ignore[union-attr]
        return f"{blas['name']} {blas['version']}"
    except (AttributeError, LookupError, TypeError):
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_packages() -> Reading:
    """Return every installed distribution's version, by its normalised name."""
    found: dict[str, Json] = {}
    nameless = 0
    for distribution in importlib.metadata.distributions():
        # Typed as always there; a broken installation has neither.
        name: str | None = distribution.metadata["Name"]
        if name is None:
            nameless += 1
        else:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    problems = (f"{nameless} installed packages have no name: broken installations",) if nameless else ()
    return Reading(dict(sorted(found.items())), problems)


def bundle_file() -> Path | None:
    """Return the zip file that we run from; None where we run from a folder."""
    # In a zip file a module's path goes on behind the file's: worker.pyz/stackmark/__init__.py.
    above = Path(stackmark.__file__).parents[1]
    return above if above.is_file() else None


def read_stackmark(package: Path | None = None) -> Reading:
    """Read our own version, and the commit where we run from a checkout. Only git could say whether it is modified."""
    package = package or Path(stackmark.__file__).resolve().parent
    # Only in `<checkout>/src/stackmark`: a parent of site-packages may be a checkout too, but of something else.
    checkout = package.parent.parent / ".git" if package.parent.name == "src" else None
    present = checkout is not None and checkout.exists()
    commit = git_commit(checkout) if checkout is not None and present else None
    problems = ("this is a checkout, but its commit could not be read",) if present and commit is None else ()
    bundle = bundle_file()
    sha256 = hashlib.sha256(bundle.read_bytes()).hexdigest() if bundle else None
    return Reading({"version": RELEASE, "commit": commit, "checkout": present, "bundle_sha256": sha256}, problems)


def git_commit(git: Path) -> str | None:
    """Return the commit that HEAD is at, from git's own files: a worker's image has no git."""
    if git.is_file():  # a worktree or submodule: "gitdir: <path>"
        git = git.parent / (text(git) or "").removeprefix("gitdir:").strip()
    shared = git / (text(git / "commondir") or ".")
    head = text(git / "HEAD") or ""
    if not head.startswith("ref:"):
        return head if COMMIT.fullmatch(head) else None
    name = head.removeprefix("ref:").strip()
    loose = text(git / name) or text(shared / name)
    if loose:
        return loose if COMMIT.fullmatch(loose) else None
    for line in (text(shared / "packed-refs") or "").splitlines():
        commit, _, packed = line.partition(" ")
        if packed == name:
            return commit
    return None
