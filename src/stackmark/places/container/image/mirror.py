"""Build a Debian base without a registry: a root file system from a Debian mirror, as a tar for a build context.

mmdebstrap is taken where it is installed: it is twice as fast as debootstrap, gives the same bytes for the same packages, and
needs no root where users may make namespaces. Both check the mirror's signature. What was made is kept by the mirror's release
file, which changes when the mirror does, so that a second build takes no time.
"""

import hashlib
import os
import re
import shutil
import tempfile
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from stackmark.errors import PlaceError, SpecError
from stackmark.places.container.image.builders import Say, failed, run

MIRROR = "http://deb.debian.org/debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
FETCH_LIMIT_S = 30.0
RELEASE_LIMIT_BYTES = 4 << 20
# What Debian's own slim images leave out, but the documentation, where the licences are.
LEFT_OUT = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_URL = re.compile(r"https?://[A-Za-z0-9.:_~-]+(/[A-Za-z0-9._~+%-]+)*/?")
_DATE = re.compile(r"^Date: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class DebianBase:
    tar: Path
    made_of: str


def make_base(suite: str, mirror: str, kept: Path, say: Say) -> DebianBase:
    """Return the tar of a minimal Debian, built now or earlier."""
    if not _URL.fullmatch(mirror):
        raise SpecError(
            f"--from-mirror: {mirror[:80]!r} is not the address of a mirror",
            hint=f"write it like {MIRROR}, without a user's name, password or query",
        )
    mirror = mirror.rstrip("/")
    release = _release(mirror, suite)
    moment = _moment(release)
    made_of = f"Debian {suite}, {mirror}" + (f", of {moment:%Y-%m-%d}" if moment else "")
    tar = kept / f"debian-{suite}-{hashlib.sha256(mirror.encode() + release).hexdigest()[:16]}.tar"
    if tar.is_file():
        say(f"using the base of {made_of} in {tar}")
        return DebianBase(tar, made_of)
    kept.mkdir(parents=True, exist_ok=True)
    say(f"building a base of {made_of}")
    with tempfile.TemporaryDirectory(prefix=".making-", dir=kept) as work:
        made = _make(Path(work), suite, mirror, int(moment.timestamp()) if moment else 0, say)
        os.replace(made, tar)
    _forget_older(kept, suite, tar)
    return DebianBase(tar, made_of)


def _release(mirror: str, suite: str) -> bytes:
    address = f"{mirror}/dists/{suite}/InRelease"
    try:
        with urllib.request.urlopen(address, timeout=FETCH_LIMIT_S) as answer:  # noqa: S310 - http or https by the pattern
            data: bytes = answer.read(RELEASE_LIMIT_BYTES)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise PlaceError(
            f"the mirror {mirror} does not have Debian {suite}, or cannot be reached: {reason}",
            hint="use another: --from-mirror URL; behind a proxy, set HTTP_PROXY and HTTPS_PROXY",
            command=f"curl -I {address}",
        ) from error
    if b"Hash:" not in data[:200] and b"Suite:" not in data:
        raise PlaceError(
            f"{address} is not a release file of Debian: something else answers there", command=f"curl {address}"
        )
    return data


def _moment(release: bytes) -> datetime | None:
    date = _DATE.search(release.decode(errors="replace"))
    try:
        return parsedate_to_datetime(date[1]) if date else None
    except (ValueError, TypeError):
        return None


def _make(work: Path, suite: str, mirror: str, moment: int, say: Say) -> Path:
    tar = work / "base.tar"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(moment), "LC_ALL": "C.UTF-8"}
    if mmdebstrap := shutil.which("mmdebstrap"):
        if os.geteuid() == 0:
            # Else, ended in the middle, it leaves a folder in /tmp. Other users need one that their subordinate ids can enter.
            environment["TMPDIR"] = str(work)
            work.chmod(0o755)
        argv = [*_apart(), mmdebstrap, "--variant=apt", *([f"--keyring={KEYRING}"] if KEYRING.exists() else [])]
        argv += ['--aptopt=Acquire::Languages "none"', *(f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT)]
        argv += ["--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright"]
        argv += [suite, str(tar), mirror]
        ran = run(argv, say, environment)
        if ran.code:
            raise failed("the base could not be built from the mirror", ran, argv, registry=mirror)
        return tar
    _debootstrap(work / "root", tar, suite, mirror, say, environment)
    return tar


def _debootstrap(root: Path, tar: Path, suite: str, mirror: str, say: Say, environment: dict[str, str]) -> None:
    debootstrap = shutil.which("debootstrap") or shutil.which("debootstrap", path="/usr/sbin:/sbin")
    if debootstrap is None:
        raise PlaceError(
            "building a base from a mirror needs mmdebstrap or debootstrap; neither is installed",
            hint="on Debian: apt-get install --no-install-recommends mmdebstrap; on Fedora: dnf install debootstrap",
        )
    if os.geteuid() != 0:
        raise PlaceError(
            "debootstrap needs root",
            hint="run this as root (sudo), or install mmdebstrap, which needs no root",
        )
    argv = [*_apart(), debootstrap, "--variant=minbase", "--force-check-gpg"]
    argv += [suite, str(root), mirror]
    ran = run(argv, say, environment)
    if ran.code:
        raise failed("the base could not be built from the mirror", ran, argv, registry=mirror)
    argv = ["tar", "--create", "--file", str(tar), "--directory", str(root), "--sort=name", "--numeric-owner"]
    argv += [f"--exclude=.{path}" for path in (*LEFT_OUT, "/var/cache/apt/archives/*.deb", "/var/lib/apt/lists/*_*")]
    ran = run([*argv, "."], say, environment)
    if ran.code:
        raise failed("the base could not be packed", ran, argv)


def _apart() -> list[str]:
    """With a mount namespace of its own: what it mounts under a root (/dev, /sys) is gone before that is removed."""
    return ["unshare", "--mount", "--propagation", "private"] if os.geteuid() == 0 else []


def _forget_older(kept: Path, suite: str, newest: Path) -> None:
    """One base of a suite is kept: the mirror has moved on from the others."""
    for old in kept.glob(f"debian-{suite}-*.tar"):
        if old != newest:
            with suppress(OSError):
                old.unlink()
