"""Recipes for worker images: which bases there are, and what a person may choose. containerfile.py writes them down.

Four bases, one recipe, so that two images differ by their base and by nothing else. Bases are pinned by their tag, and by their
content where a digest is named: a digest that nobody here has pulled would be an invention. Everything that a person types
and that reaches the text is checked against a pattern here, so no value can add a line to it.
"""

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from stackmark import __version__
from stackmark.errors import SpecError, nearest_names

BaseName = Literal["debian", "ubi9", "cuda", "ngc"]
Installer = Literal["apt", "microdnf", "none"]

# The names in worker-requirements.txt, but torch, which has its own line.
WORKER_NEEDS = ("numpy", "nvidia-ml-py", "pillow", "pydantic")
# NVIDIA's image has these, made to fit each other: pinning ours over them would part torch from the numpy it was built with.
NGC_KEEPS = ("numpy", "pillow", "setuptools", "torch")
# The base that has the libraries of a CUDA release. The torch packages bring their own as well; a user's own program may not.
CUDA_IMAGES = {
    "cu126": "docker.io/nvidia/cuda:12.6.3-runtime-ubuntu24.04",
    "cu128": "docker.io/nvidia/cuda:12.8.1-runtime-ubuntu24.04",
    "cu130": "docker.io/nvidia/cuda:13.0.2-runtime-ubuntu24.04",
}
TORCH_INDEX = "https://download.pytorch.org/whl/"
SUITES = {"3.11": "bookworm", "3.13": "trixie"}

_TORCH = re.compile(r"\d{1,3}(\.\d{1,3}){1,2}((a|b|rc)\d{1,3}|\.post\d{1,3})?")
_BUILD = re.compile(r"cpu|cu\d{3}|rocm\d{1,2}(\.\d{1,2}){1,2}|xpu")
_NAME = r"[a-z0-9]+([._-]{1,2}[a-z0-9]+)*"
REFERENCE = re.compile(
    rf"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*(:\d{{1,5}})?/)?{_NAME}(/{_NAME})*"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True)
class Base:
    """What an image is built on: `images` by the version of Python that its distribution has."""

    title: str
    images: dict[str, str]
    installer: Installer
    # How the distribution names its packages; {python} is the version.
    python: str
    packages: tuple[str, ...]
    compiler: tuple[str, ...]


BASES: dict[BaseName, Base] = {
    "debian": Base(
        "Debian slim",
        {
            "3.11": "docker.io/library/debian:bookworm-20260421-slim",
            "3.13": "docker.io/library/debian:trixie-20260316-slim",
        },
        "apt",
        "python3",
        ("python3", "python3-venv"),
        ("g++", "python3-dev"),
    ),
    "ubi9": Base(
        "Red Hat UBI 9",
        dict.fromkeys(("3.12", "3.11"), "registry.access.redhat.com/ubi9/ubi-minimal:9.7-1776104705"),
        "microdnf",
        "python{python}",
        ("python{python}", "python{python}-pip"),
        ("gcc-c++", "python{python}-devel"),
    ),
    "cuda": Base(
        "NVIDIA CUDA on Ubuntu 24.04",
        {"3.12": CUDA_IMAGES["cu130"]},
        "apt",
        "python3",
        ("python3", "python3-venv"),
        ("g++", "python3-dev"),
    ),
    "ngc": Base(
        "NVIDIA's PyTorch (NGC)",
        {"3.12": "nvcr.io/nvidia/pytorch:26.06-py3"},
        "none",
        "python3",
        (),
        (),
    ),
}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the text. `torch` is a version, `build` which build of it; None: no torch is installed."""

    base: BaseName
    python: str
    base_image: str
    torch: str | None
    build: str
    base_digest: str = ""
    # A tar of a root file system in the build context, instead of an image; what it is, in words, for the label.
    base_tar: str | None = None
    base_made_of: str = ""
    wheel: str = ""
    wheel_sha256: str = ""
    revision: str = "unknown"
    # Wheels that were brought along, whether torch is among them, and whether nothing else may be asked.
    wheels: bool = False
    torch_brought: bool = False
    offline: bool = False

    @property
    def keeps_torch(self) -> bool:
        return self.base == "ngc"

    @property
    def torch_version(self) -> str:
        """With its build, which is what names one wheel: PyPI's plain version is another build on every platform."""
        return f"{self.torch}+{self.build}"

    @property
    def tag(self) -> str:
        """What the image is called where nobody named it; a tag may not hold a plus sign."""
        if self.keeps_torch:
            build = ""
        else:
            build = f"-{self.build}" if self.torch else "-without-torch"
        return f"localhost/stackmark-worker:{__version__}-{self.base}{build}"


def read_recipe(
    base: str,
    *,
    python: str | None = None,
    torch: str | None = None,
    cuda: str | None = None,
    without_torch: bool = False,
    base_image: str | None = None,
) -> Recipe:
    """What a person asked for, checked; what was left open is filled in."""
    if base not in BASES:
        raise SpecError(f"there is no base {base!r}{nearest_names(base, list(BASES))}", hint=", ".join(BASES))
    name: BaseName = base
    known = BASES[name]
    chosen = python or next(iter(known.images))
    if chosen not in known.images:
        raise SpecError(f"{known.title} has no Python {chosen!r} here", hint=f"it has {' and '.join(known.images)}")
    if name == "ngc" and (torch or cuda or without_torch):
        raise SpecError(
            "the base ngc keeps its own torch: --torch, --cuda and --without-torch mean nothing on it",
            hint="name another release of it: --base-image nvcr.io/nvidia/pytorch:26.03-py3",
        )
    if without_torch and (torch or cuda):
        raise SpecError("--without-torch leaves out what --torch or --cuda asks for")
    build = cuda or ("cu130" if name == "cuda" else "cpu")
    if not _BUILD.fullmatch(build):
        raise SpecError(f"--cuda: {build[:40]!r} is no build of torch", hint="write it like cu130, or cpu")
    version = torch or pins()["torch"]
    if not _TORCH.fullmatch(version):
        raise SpecError(
            f"--torch: {version[:40]!r} is no version", hint=f"write it like {pins()['torch']}; --cuda names its build"
        )
    image, digest = _base_image(name, known.images[chosen], build, cuda, base_image)
    keeps = name == "ngc" or without_torch
    return Recipe(name, chosen, image, None if keeps else version, build, digest)


def _base_image(name: BaseName, usual: str, build: str, cuda: str | None, asked: str | None) -> tuple[str, str]:
    """The image and its digest, which may be empty."""
    if asked is None:
        if name != "cuda" or cuda is None:
            return usual, ""
        if cuda not in CUDA_IMAGES:
            raise SpecError(
                f"no image of CUDA is known here for {build}",
                hint=f"known are {', '.join(CUDA_IMAGES)}; name another with --base-image nvidia/cuda:…",
            )
        return CUDA_IMAGES[cuda], ""
    match = read_reference("--base-image", asked)
    if not match["digest"] and match["tag"] in (None, "latest"):
        raise SpecError(
            f"--base-image: {asked} names no fixed image: what it means changes from day to day",
            hint="name a tag (debian:bookworm-20260421-slim), a digest (…@sha256:…), or both",
        )
    image, _, digest = asked.partition("@")
    return image, digest


def read_reference(option: str, text: str) -> re.Match[str]:
    """An image's name as engines take it. They would read one that begins with a dash as an option."""
    match = REFERENCE.fullmatch(text)
    if match is None:
        hint = "write it like registry.example.com/team/stackmark-worker:0.1.0, in lower case, without https://"
        raise SpecError(f"{option}: {text[:80]!r} is not the name of an image", hint=hint)
    return match


def pins() -> dict[str, str]:
    """Every package of a worker and its version."""
    text = (files("stackmark.places.container.image") / "worker-pins.txt").read_text()
    return dict(line.split("==") for line in text.splitlines() if "==" in line and not line.startswith("#"))


def requirements() -> str:
    return "".join(f"{name}\n" for name in WORKER_NEEDS)


def constraints(recipe: Recipe) -> str:
    """torch is not in it: its line in the recipe has its build as well, and it may be another version."""
    left_out = NGC_KEEPS if recipe.keeps_torch else ("torch",)
    return "".join(f"{name}=={version}\n" for name, version in pins().items() if name not in left_out)


def options_of(recipe: Recipe) -> list[str]:
    """The command line that makes this recipe again."""
    options = ["--base", recipe.base, "--python", recipe.python]
    if not recipe.keeps_torch:
        options += ["--torch", recipe.torch, "--cuda", recipe.build] if recipe.torch else ["--without-torch"]
    if not recipe.base_tar:
        options += ["--base-image", recipe.base_image + (f"@{recipe.base_digest}" if recipe.base_digest else "")]
    return options
