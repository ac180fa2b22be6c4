"""`stackmark image`: a recipe for an image that a worker can run in, and the image built from it.

An image needs Python and PyTorch and nothing of ours, so the recipes are plain Containerfiles next to this file, which people
read, copy and build without us. What is done here is what an engine does not do in one command: find the engine, the proxy and
this machine's certificate authority, make a base without a registry, and say why a build failed.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from stackmark.errors import SpecError, nearest_names
from stackmark.frozen import Frozen
from stackmark.places.container.engine import answer_of
from stackmark.places.container.image.builders import Builder, Say, failed, find_builder, run
from stackmark.places.container.image.mirror import MIRROR, DebianBase, make_base
from stackmark.places.container.trouble import shell

BASES = ("debian", "ubi9", "cuda", "ngc")
# What `--from-mirror` without an address means, and the suite whose Python the recipe is tried with.
USUAL_MIRROR = "usual"
SUITE = "bookworm"
# The names under which a certificate authority is commonly given to programs that fetch things.
CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ARGUMENT = re.compile(r"^ARG (\w+)=", re.MULTILINE)
_NAME = r"[a-z0-9]+([._-]{1,2}[a-z0-9]+)*"
_TAGGED = re.compile(
    rf"([A-Za-z0-9][A-Za-z0-9.-]*(:\d{{1,5}})?/)?{_NAME}(/{_NAME})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?"
)


class ImageOptions(Frozen):
    """The options, by their names on the command line."""

    base: str = "debian"
    build_arg: tuple[str, ...] = ()
    from_mirror: str | None = None
    ca: Path | None = None
    pip_conf: Path | None = None
    build: bool = False
    fresh: bool = False
    tag: str | None = None
    engine: str | None = None

    def validated(self) -> None:
        if self.base not in BASES:
            raise SpecError(
                f"--base: unknown recipe {self.base!r}{nearest_names(self.base, list(BASES))}",
                hint=", ".join(BASES),
            )
        if self.from_mirror and self.base != "debian":
            raise SpecError(f"--from-mirror builds a Debian base, but --base is {self.base}")
        named = {"--build-arg": self.build_arg, "--tag": self.tag, "--from-mirror": self.from_mirror}
        if not self.build and (wrong := next((option for option, value in named.items() if value), None)):
            raise SpecError(f"{wrong} needs --build", hint="add --build")
        known = _ARGUMENT.findall(recipe_path(self.base).read_text())
        for given in self.build_arg:
            name, equals, _ = given.partition("=")
            if not equals or name not in known:
                raise SpecError(
                    f"--build-arg: {given[:80]!r} is not an argument of the recipe {self.base}",
                    hint=f"write it like {known[-1]}=VALUE; it has {', '.join(known)}",
                )
        if self.tag is not None and not _TAGGED.fullmatch(self.tag):
            raise SpecError(
                f"--tag: {self.tag[:80]!r} is not the name of an image",
                hint="write it like registry.example.com/team/pytorch:1, in lower case, without https://",
            )


@dataclass(frozen=True)
class Image:
    name: str
    id: str
    # Of the manifest as it lies on this machine; a registry may hold it compressed, under another.
    digest: str | None
    size_bytes: int | None
    builder: str
    command: str


@dataclass(frozen=True)
class ImageResult:
    base: str
    containerfile: str
    # What the base was made of, where it came from a mirror.
    base_made_of: str | None = None
    image: Image | None = None


def recipe_path(base: str) -> Path:
    return Path(str(files(__package__) / f"Containerfile.{base}"))


def make(asked: ImageOptions, say: Say, environment: Mapping[str, str] | None = None) -> ImageResult:
    """Read the recipe and, where that was asked for, build it."""
    environment = os.environ if environment is None else environment
    asked.validated()
    path = recipe_path(asked.base)
    text = path.read_text()
    secrets = build_secrets(asked, environment)
    if not asked.build:
        return ImageResult(asked.base, text)
    builder = find_builder(asked.engine, environment)
    options = [*secrets, *(["--no-cache"] if asked.fresh else [])]
    for given in asked.build_arg:
        options += ["--build-arg", given]
    base = None
    if asked.from_mirror:
        base = _base_from_mirror(asked.from_mirror, environment, say)
        options += ["--build-arg", f"BASE_IMAGE={_load_base(builder, base, say)}"]
    # The recipes copy nothing, so their folder does for a context, and the command can be repeated by hand.
    image = build(builder, path, asked.tag or f"localhost/pytorch:{asked.base}", options, say)
    return ImageResult(asked.base, text, base.made_of if base else None, image)


def build_secrets(asked: ImageOptions, environment: Mapping[str, str]) -> list[str]:
    """Return engine flags that pass the certificate authority and pip's settings to the build and keep them out of the image."""
    ca = _readable("--ca", asked.ca) if asked.ca else None
    # Not named: the one that this machine's own programs are told to use.
    for path in (Path(environment.get(name) or "/nonexistent") for name in CA_VARIABLES):
        if ca is None and path.is_file() and "," not in str(path):
            ca = path.resolve()
    flags = ["--secret", f"id=ca,src={ca}"] if ca else []
    if asked.pip_conf:
        flags += ["--secret", f"id=pip.conf,src={_readable('--pip-conf', asked.pip_conf)}"]
    return flags


def _readable(option: str, path: Path) -> Path:
    if not path.is_file() or not os.access(path, os.R_OK):
        raise SpecError(f"{option}: {path} is not a readable file")
    if "," in str(path.resolve()):
        raise SpecError(f"{option}: {path}: engines do not accept a comma in a path", hint="rename or copy it")
    return path.resolve()


def build_command(builder: Builder, path: Path, tag: str, options: list[str]) -> list[str]:
    argv = [*builder.command, "build", "--network", "host", "--file", str(path), "--tag", tag, *options]
    argv += ["--progress", "plain"] if builder.kind == "docker" else ["--isolation", "chroot"]
    # By name alone: the engine takes the value from its environment, and a proxy's password is on nobody's screen.
    for name in PROXY_VARIABLES:
        if builder.environment.get(name):
            argv += ["--build-arg", name]
    return [*argv, str(path.parent)]


def build(builder: Builder, path: Path, tag: str, options: list[str], say: Say) -> Image:
    with tempfile.TemporaryDirectory(prefix="stackmark-image-") as told:
        iid = Path(told) / "id"
        argv = build_command(builder, path, tag, options)
        ran = run([*argv[:-1], "--iidfile", str(iid), argv[-1]], say, builder.environment)
        if ran.code:
            raise failed(
                "the image could not be built", ran, argv,
                elsewhere="on Debian, build the base from a mirror: stackmark image --build --from-mirror; or transfer it as "
                "a file: podman save, podman load",
            )  # fmt: skip
        found = iid.read_text().strip()
    return _inspected(builder, tag, found if found.startswith("sha256:") else f"sha256:{found}", shell(argv))


def _inspected(builder: Builder, tag: str, image_id: str, command: str) -> Image:
    """Ask the engine about the image. buildah tells its digest under another name, and no size."""
    what = ["inspect", "--type", "image"] if builder.kind == "buildah" else ["image", "inspect"]
    answer = answer_of([*builder.command, *what, image_id], builder.environment)
    try:
        told = json.loads(answer.out) if answer.code == 0 else {}
    except ValueError:
        told = {}
    told = told[0] if isinstance(told, list) and told else told
    told = told if isinstance(told, dict) else {}
    named = [told.get("Digest"), *(told.get("RepoDigests") or []), told.get("FromImageDigest")]
    digest = next((match[0] for text in named if (match := _DIGEST.search(str(text)))), None)
    size = told.get("Size")
    return Image(tag, image_id, digest, size if isinstance(size, int) else None, builder.kind, command)


def _base_from_mirror(mirror: str, environment: Mapping[str, str], say: Say) -> DebianBase:
    cache = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or "/root") / ".cache"
    return make_base(SUITE, MIRROR if mirror == USUAL_MIRROR else mirror, Path(cache) / "stackmark/bases", say)


def _load_base(builder: Builder, base: DebianBase, say: Say) -> str:
    """Make an image of the base's tar, in the way that all three engines have; return its name."""
    name = f"localhost/debian-from-mirror:{SUITE}"
    with tempfile.TemporaryDirectory(prefix="stackmark-image-", dir=base.tar.parent) as folder:
        os.link(base.tar, Path(folder) / "base.tar")
        path = Path(folder) / "Containerfile"
        path.write_text(
            "FROM scratch\nADD base.tar /\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        )
        build(builder, path, name, [], say)
    return name
