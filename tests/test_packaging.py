"""What is built from this source installs offline and runs; its version comes from git's tags, or from the sdist."""

import importlib.metadata as metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from leaving_out import leave_out
from stackmark import version as versions
from stackmark.places.bundle import worker_bundle
from stackmark.version import RELEASE, from_description, from_git

ROOT = Path(__file__).parents[1]
# The parts of the source that a build reads.
SOURCE = ("src", "docs", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md")
COMMIT = "g[0-9a-f]{10}"


def run(*words: str | Path, folder: Path | None = None, **environment: str) -> str:
    """Run a program without what this process was told about where stackmark is."""
    around = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "STACKMARK_LEDGER")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**around, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- the version


@pytest.mark.parametrize(
    ("described", "version"),
    [
        ("v0.2.0-0-gabcdef0123", "0.2.0"),
        ("v0.2.0-5-gabcdef0123", "0.2.1.dev5+gabcdef0123"),
        ("v0.2.0-0-gabcdef0123-dirty", "0.2.1.dev0+gabcdef0123.dirty"),
        ("v1.0.0rc1-0-gabcdef0123", "1.0.0rc1"),
        ("v1.0.0rc1-3-gabcdef0123", "1.0.0rc2.dev3+gabcdef0123"),
        ("abcdef0123", f"{RELEASE}.dev0+gabcdef0123"),
        ("abcdef0123-dirty", f"{RELEASE}.dev0+gabcdef0123.dirty"),
        ("v1-beta-3-gabcdef0123", f"{RELEASE}.dev0+gabcdef0123"),
        ("", None),
        ("fatal: no names found", None),
    ],
)
def test_a_description_of_git_becomes_a_version(described: str, version: str | None) -> None:
    assert from_description(described) == version


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit and no tag."""
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init", "-q")
    commit(root, "first")
    return root


def git(root: Path, *words: str) -> str:
    about = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.org",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "tag.gpgsign=false",
    )
    return run("git", *about, *words, folder=root)


def commit(root: Path, text: str) -> None:
    (root / "file").write_text(text)
    git(root, "add", "file")
    git(root, "commit", "-q", "-m", text)


def test_the_version_follows_tags_commits_and_changes(checkout: Path) -> None:
    assert re.fullmatch(rf"{re.escape(RELEASE)}\.dev0\+{COMMIT}", from_git(checkout) or "")
    git(checkout, "tag", "-a", "v0.3.0", "-m", "release")
    git(checkout, "tag", "not-a-version")
    assert from_git(checkout) == "0.3.0"
    commit(checkout, "second")
    assert re.fullmatch(rf"0\.3\.1\.dev1\+{COMMIT}", from_git(checkout) or "")
    (checkout / "file").write_text("changed")
    assert re.fullmatch(rf"0\.3\.1\.dev1\+{COMMIT}\.dirty", from_git(checkout) or "")


def test_a_shallow_clone_without_tags_has_a_version(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "tag", "v0.3.0")
    commit(checkout, "second")
    git(tmp_path, "clone", "-q", "--depth", "1", "--no-tags", checkout.as_uri(), "shallow")
    assert re.fullmatch(rf"{re.escape(RELEASE)}\.dev0\+{COMMIT}", from_git(tmp_path / "shallow") or "")


def test_variables_of_a_git_hook_do_not_name_another_repository(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(checkout, "tag", "v0.3.0")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert from_git(checkout) == "0.3.0"


def test_without_git_or_a_commit_there_is_still_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "stackmark"
    package.mkdir(parents=True)
    assert versions._find(package) == f"{RELEASE}.dev0", "a copy of the sources"
    (tmp_path / ".git").mkdir()
    other = tmp_path / "src" / "stackmark" / ".." / "stackmark"
    assert versions._find(other) == f"{RELEASE}.dev0", "no commit yet"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert from_git(ROOT) is None


def test_a_wheel_says_what_it_was_built_as_also_within_another_checkout(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "stackmark"
    package.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (package / versions.FILE).write_text("1.2.3\n")
    assert versions._find(package) == "1.2.3"


def test_the_release_is_not_behind_the_last_tag() -> None:
    described = run("git", "-C", ROOT, "describe", "--tags", "--always", "--abbrev=0", "--match", "v[0-9]*").strip()
    if re.fullmatch(r"v\d+\.\d+\.\d+\S*", described):
        numbers = [tuple(map(int, re.findall(r"\d+", text)[:3])) for text in (RELEASE, described)]
        assert numbers[0] >= numbers[1]


# --- the wheel


def build(source: Path, out: Path, target: str) -> Path:
    if find_spec("hatchling") is None:
        leave_out("hatchling is not installed, which builds the wheel: pip install -e '.[dev]'")
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", out, folder=source)
    (made,) = out.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean clone of what is here now, at the tag of a release."""
    root = tmp_path_factory.mktemp("source") / "stackmark"
    for name in SOURCE:
        there = ROOT / name
        if there.is_dir():
            shutil.copytree(there, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(there, root / name)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "all")
    git(root, "tag", "v9.8.7")
    return root


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(source, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with the wheel and two extras. It sees the packages that are here, except ours."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", symlinks=True)
    seen = folder / "seen"
    seen.mkdir()
    for entry in (entry for path in sys.path if path.endswith("-packages") for entry in Path(path).iterdir()):
        ours = "stackmark" in entry.name or entry.suffix == ".pth" or entry.name.startswith(("pip", "__pycache__"))
        if not ours and not (seen / entry.name).exists():
            (seen / entry.name).symlink_to(entry)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "seen.pth").write_text(f"{seen}\n")
    python = folder / "venv" / "bin" / "python"
    wanted = f"stackmark[torch,k8s] @ {wheel.as_uri()}"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--disable-pip-version-check",
        "install",
        "-q",
        "--no-index",
        wanted,
    )
    return python.parent


def works(stackmark: Path, folder: Path) -> None:
    environment = {"STACKMARK_LEDGER": str(folder / "ledger.sqlite3"), "XDG_STATE_HOME": str(folder), "NO_COLOR": "1"}
    assert run(stackmark, "--version", folder=folder, **environment) == "stackmark 9.8.7\n"
    listed = json.loads(run(stackmark, "workloads", "--json", folder=folder, **environment))
    assert "train/resnet50" in {one["name"] for one in listed["workloads"]}
    made = json.loads(run(stackmark, "run", "--cmd", "true", "--runs", "1", "--json", folder=folder, **environment))
    (result,) = made["results"]
    assert [one["stackmark_version"] for one in result["runs"]] == ["9.8.7"]


@pytest.mark.slow
def test_the_wheel_has_all_files_of_the_package_and_its_version(wheel: Path) -> None:
    assert wheel.name == "stackmark-9.8.7-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "stackmark"
    ours = {
        f"stackmark/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names >= ours
    assert {name for name in names if name.startswith("stackmark/")} == ours | {"stackmark/VERSION"}


@pytest.mark.slow
def test_pip_installs_the_wheel_with_its_extras_and_it_runs(installed: Path, tmp_path: Path) -> None:
    works(installed / "stackmark", tmp_path)
    said = run(installed / "python", "-c", "import stackmark; print(stackmark.__version__, stackmark.__file__)")
    assert said.startswith(f"9.8.7 {installed.parent}")


@pytest.mark.slow
def test_the_worker_has_the_same_bytes_from_the_wheel_and_from_here(installed: Path, tmp_path: Path) -> None:
    run(installed / "stackmark", "bundle", "-o", "worker.pyz", folder=tmp_path)
    assert (tmp_path / "worker.pyz").read_bytes() == worker_bundle().content


@pytest.mark.slow
def test_a_wheel_from_the_sdist_is_the_wheel_from_the_checkout(source: Path, wheel: Path, tmp_path: Path) -> None:
    sdist = build(source, tmp_path / "sdist", "sdist")
    assert sdist.name == "stackmark-9.8.7.tar.gz"
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    again = build(tmp_path / "stackmark-9.8.7", tmp_path / "again", "wheel")
    assert again.read_bytes() == wheel.read_bytes()


# --- uv, which makes an environment of its own for a tool and so needs a wheel of every package


def repacked(name: str, folder: Path) -> Path:
    """Make a wheel of an installed package again, of the files that it says it has."""
    found = metadata.distribution(name)
    about = found.read_text("WHEEL") or ""
    tag = (re.findall(r"(?m)^Tag: (\S+)", about) or ["py3-none-any"])[0]
    path = folder / f"{re.sub(r'[-.]+', '_', found.metadata['Name'])}-{found.version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in found.files or ():
            where = file.as_posix()
            if (
                not where.startswith("../")
                and "__pycache__" not in where
                and file.name not in ("INSTALLER", "REQUESTED")
            ):
                archive.write(str(file.locate()), where)
    return path


def needed(name: str, known: set[str] | None = None) -> Iterator[str]:
    """Name all packages that one needs, itself last; without extras."""
    known = set() if known is None else known
    for text in metadata.requires(name) or ():
        one = re.split(r"[\s;<>=!~\[(]", text)[0]
        if "extra ==" not in text and one.lower() not in known and is_installed(one):
            known.add(one.lower())
            yield from needed(one, known)
            yield one


def is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False  # for another system or Python


def uv_environment(folder: Path) -> dict[str, str]:
    return {
        "UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin"), "UV_CACHE_DIR": str(folder / "cache"),
        "UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1", "HOME": str(folder),
    }  # fmt: skip


@pytest.mark.slow
def test_uv_installs_the_wheel_as_a_tool_and_it_runs(wheel: Path, tmp_path: Path) -> None:
    if not is_installed("uv"):
        leave_out("uv is not installed: pip install -e '.[dev]'")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    shutil.copy(wheel, wheels)
    for name in needed("stackmark"):
        repacked(name, wheels)
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    run(
        uv, "tool", "install", "--offline", "--no-index", "--find-links", wheels, "--python", sys.executable, "stackmark",
        folder=tmp_path, **uv_environment(tmp_path),
    )  # fmt: skip
    works(tmp_path / "bin" / "stackmark", tmp_path)
