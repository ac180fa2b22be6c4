"""From a build context to an image, and from here to a registry.

What identifies an image is its digest. It cannot stand inside the image, so it is told at the end of a build and of a push,
and it is what the places that run an image write down with their facts.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from stackmark.errors import PlaceError, SpecError
from stackmark.places.container.engine import answer_of
from stackmark.places.container.image.build_context import Context, write
from stackmark.places.container.image.builders import Builder, Ran, Say, failed, run
from stackmark.places.container.image.recipes import Recipe, read_reference
from stackmark.places.container.trouble import shell

# The names under which a certificate authority is commonly given to programs that fetch things.
CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Handed:
    """What a build is handed from outside, and what stays outside the image."""

    ca: Path | None = None
    pip_conf: Path | None = None
    # No step of an earlier build is taken again: engines do not see that a secret changed.
    fresh: bool = False


@dataclass(frozen=True)
class Image:
    name: str
    id: str
    # Of the manifest as it lies on this machine; a registry may hold it compressed, under another.
    digest: str | None
    size_bytes: int | None
    labels: Mapping[str, str]
    base_digest: str | None
    builder: str
    command: str


@dataclass(frozen=True)
class Pushed:
    name: str
    digest: str | None


def find_ca(asked: Path | None, environment: Mapping[str, str]) -> Path | None:
    """The authority's file that was named, or the one that this machine's own programs are told to use."""
    if asked is not None:
        return _handed_file("--ca", asked)
    for name in CA_VARIABLES:
        path = Path(environment.get(name) or "/nonexistent")
        if path.is_file() and "," not in str(path):
            return path.resolve()
    return None


def _handed_file(option: str, path: Path) -> Path:
    if not path.is_file() or not os.access(path, os.R_OK):
        raise SpecError(f"{option}: {path} is no file that can be read")
    if "," in str(path.resolve()):
        raise SpecError(
            f"{option}: {path}: engines cannot take a path with a comma in it", hint="copy it to another name"
        )
    return path.resolve()


def handed(ca: Path | None, pip_conf: Path | None, environment: Mapping[str, str], *, fresh: bool = False) -> Handed:
    return Handed(find_ca(ca, environment), _handed_file("--pip-conf", pip_conf) if pip_conf else None, fresh)


def build_command(builder: Builder, folder: Path, tag: str, given: Handed) -> list[str]:
    argv = [*builder.command, "build", "--network", "host", "--file", str(folder / "Containerfile"), "--tag", tag]
    argv += ["--progress", "plain"] if builder.kind == "docker" else ["--isolation", "chroot"]
    if given.fresh:
        argv.append("--no-cache")
    if given.ca:
        argv += ["--secret", f"id=ca,src={given.ca}"]
    if given.pip_conf:
        argv += ["--secret", f"id=pip.conf,src={given.pip_conf}"]
    # By name alone: the engine takes the value from its environment, and a proxy's password is on nobody's screen.
    for name in PROXY_VARIABLES:
        if builder.environment.get(name):
            argv += ["--build-arg", name]
    return [*argv, str(folder)]


def build(builder: Builder, context: Context, tag: str, given: Handed, say: Say, folder: Path | None = None) -> Image:
    """Builds in `folder`, or in one that is removed again when all went well, and kept for the command by hand when not."""
    read_reference("--tag", tag)
    place = folder or Path(tempfile.mkdtemp(prefix="stackmark-image-"))
    keep = folder is not None
    try:
        write(context, place)
        with tempfile.TemporaryDirectory(prefix="stackmark-image-") as told:
            iid = Path(told) / "id"
            argv = build_command(builder, place, tag, given)
            ran = run([*argv[:-1], "--iidfile", str(iid), argv[-1]], say, builder.environment)
            if ran.code:
                keep = True
                raise _not_built(context.recipe, ran, argv)
            image_id = iid.read_text().strip()
        return _inspected(builder, context.recipe, tag, image_id, shell(argv))
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


def _not_built(recipe: Recipe, ran: Ran, argv: list[str]) -> PlaceError:
    if recipe.base_tar:
        return failed("the image could not be built", ran, argv, registry="what it needs from the network")
    image = recipe.base_image
    if recipe.base == "debian":
        elsewhere = "make the base from a Debian mirror instead: stackmark image --base debian --build --from-mirror"
    else:
        elsewhere = (
            f"where it can be reached: podman pull {image} && podman save --output base.tar {image}\n"
            "here: podman load --input base.tar, and this command again; or name another: --base-image REF"
        )
    return failed("the image could not be built", ran, argv, registry=_host(image), elsewhere=elsewhere)


def _host(reference: str) -> str:
    first = reference.partition("/")[0]
    named = "/" in reference and ("." in first or ":" in first or first == "localhost")
    return first if named else "docker.io"


def _inspected(builder: Builder, recipe: Recipe, tag: str, image_id: str, command: str) -> Image:
    told = _inspect(builder, image_id)
    return Image(
        name=tag,
        id=image_id if image_id.startswith("sha256:") else f"sha256:{image_id}",
        digest=told.found_digest,
        size_bytes=told.size,
        labels=dict(sorted(told.found_labels.items())),
        base_digest=None
        if recipe.base_tar
        else recipe.base_digest or _inspect(builder, recipe.base_image).found_digest,
        builder=builder.kind,
        command=command,
    )


class _Config(BaseModel):
    labels: dict[str, str] | None = Field(default=None, alias="Labels")


class _Oci(BaseModel):
    config: _Config = _Config()


class _ImageInspection(BaseModel):
    """What podman and docker (the first four) and buildah (the last two) tell of an image."""

    digest: str | None = Field(default=None, alias="Digest")
    repo_digests: list[str] | None = Field(default=None, alias="RepoDigests")
    size: int | None = Field(default=None, alias="Size")
    config: _Config | None = Field(default=None, alias="Config")
    from_image_digest: str | None = Field(default=None, alias="FromImageDigest")
    oci: _Oci | None = Field(default=None, alias="OCIv1")

    @property
    def found_digest(self) -> str | None:
        # In the order of the container's place, so that a run and a build name an image alike.
        named = [self.digest or "", *(self.repo_digests or []), self.from_image_digest or ""]
        return next((match[0] for text in named if (match := _DIGEST.search(text))), None)

    @property
    def found_labels(self) -> dict[str, str]:
        config = self.oci.config if self.oci else self.config
        return (config.labels if config else None) or {}


def _inspect(builder: Builder, name: str) -> _ImageInspection:
    """Nothing is told of what the engine does not have: BuildKit keeps its bases to itself."""
    what = ["inspect", "--type", "image"] if builder.kind == "buildah" else ["image", "inspect"]
    answer = answer_of([*builder.command, *what, name], builder.environment)
    try:
        told = json.loads(answer.out) if answer.code == 0 else {}
        if isinstance(told, list):
            told = told[0] if told else {}
        if builder.kind == "buildah":
            told = {name: told[name] for name in ("FromImageDigest", "OCIv1") if name in told}  # its Config is a text
        return _ImageInspection.model_validate(told)
    except (ValueError, ValidationError):
        return _ImageInspection()


def push(builder: Builder, tag: str, reference: str, tls_verify: bool | None, say: Say) -> Pushed:
    """The digest is the registry's: what others pull by."""
    match = read_reference("--push", reference)
    if match["digest"]:
        raise SpecError("--push: a digest is what comes of a push, and cannot be pushed to", hint="name a tag")
    read_reference("--tag", tag)
    with tempfile.TemporaryDirectory(prefix="stackmark-image-") as told:
        digest_file = Path(told) / "digest"
        argv = _push_command(builder, tag, reference, tls_verify, digest_file, say)
        ran = run(argv, say, builder.environment)
        if ran.code and re.search(
            r"image not known|no such image|does not exist|not found in local", ran.text, re.IGNORECASE
        ):
            raise PlaceError(
                f"there is no image {tag} here to push", hint="build it first, with --build", command=shell(argv)
            )
        if ran.code:
            raise failed(f"the image could not be pushed to {reference}", ran, argv, registry=_host(reference))
        said = digest_file.read_text() if digest_file.exists() else ran.text
    found = _DIGEST.search(said)
    return Pushed(reference, found[0] if found else None)


def _push_command(
    builder: Builder, tag: str, reference: str, tls_verify: bool | None, digest_file: Path, say: Say
) -> list[str]:
    if builder.kind == "docker":
        if tls_verify is not None:
            raise SpecError(
                "docker decides in its daemon's settings whether a registry needs TLS: --tls-verify is for podman and buildah",
                hint="list it in /etc/docker/daemon.json under insecure-registries",
            )
        argv = [*builder.command, "tag", tag, reference]
        ran = run(argv, say, builder.environment)
        if ran.code:
            raise PlaceError(
                f"there is no image {tag} here to push", hint="build it first, with --build", command=shell(argv)
            )
        return [*builder.command, "push", reference]
    verify = [] if tls_verify is None else [f"--tls-verify={str(tls_verify).lower()}"]
    return [*builder.command, "push", *verify, "--digestfile", str(digest_file), tag, reference]
