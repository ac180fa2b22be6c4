"""Images for real: built from the Debian mirror, and run under a UID without a name.

The one full build takes about a minute, most of it for the mirror's packages; the base it made is kept in the cache of whoever
runs the tests. torch is left out: tests/worker_images.py has images with it.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from asking import Answer, ask
from leaving_out import leave_out
from stackmark.errors import PlaceError
from stackmark.places.bundle import TARGET, worker_bundle
from stackmark.places.container.image.builders import Builder, find_builder
from stackmark.places.container.image.making import build
from stackmark.places.container.settings import podman_ulimits

TAG = "localhost/stackmark-test-recipe:1"
OTHER = "localhost/stackmark-test-recipe:2"
UNKNOWN_UID = "12345"
SMALL = ("--build-arg", "TORCH=none", "--build-arg", "COMPILER=")


@pytest.fixture(scope="module")
def podman(podman_reach: Mapping[str, str]) -> Builder:
    return find_builder("podman")


@pytest.fixture(scope="module")
def built_image(podman: Builder) -> Iterator[dict[str, Any]]:
    """What `stackmark image` told of an image that it built without any registry."""
    if not (shutil.which("mmdebstrap") or (shutil.which("debootstrap") and os.geteuid() == 0)):
        leave_out("a base is made by mmdebstrap (apt-get install mmdebstrap), or by root with debootstrap")
    answer = ask("image", "--build", "--from-mirror", *SMALL, "--tag", TAG, "--json")
    assert answer.code == 0, answer.err
    assert "STEP 2/" in answer.err, "progress is shown"
    yield json.loads(answer.out)
    remove(podman, TAG)


def remove(podman: Builder, name: str) -> None:
    subprocess.run([*podman.command, "rmi", "--force", name], capture_output=True, check=False)


def written(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "Containerfile").write_text(text)
    return folder / "Containerfile"


def run_in(podman: Builder, *arguments: str, entry: str | None = None, stdin: bytes = b"") -> Answer:
    limits = podman_ulimits(os.environ, {})
    argv = [
        *podman.command, "run", "--rm", "--interactive", "--network=none", f"--user={UNKNOWN_UID}:0", "--cap-drop=all",
        "--security-opt=no-new-privileges", "--pull=never",
        *(f"--ulimit={name}={soft}:{hard}" for name, (soft, hard) in limits.items()),
        *([f"--entrypoint={entry}"] if entry else []), *arguments,
    ]  # fmt: skip
    done = subprocess.run(argv, input=stdin, capture_output=True, timeout=120, check=False)
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_the_worker_s_zip_answers_in_an_image_that_cannot_be_written_under_a_uid_without_a_name(
    podman: Builder, built_image: dict[str, Any], tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    worker_bundle().write(tmp_path / "worker.pyz")
    mount = f"--volume={tmp_path / 'worker.pyz'}:{TARGET}:ro"
    task = b'{"do":"facts","lifeline":false}\n'
    answer = run_in(podman, "--read-only", "--tmpfs=/tmp", mount, TAG, "python3", TARGET, stdin=task)
    assert answer.code == 0, answer.err
    events = [json.loads(line) for line in answer.out.splitlines()]
    facts = {event["subject"]: event["facts"] for event in events if event["event"] == "facts"}
    assert facts["process"]["uid"] == int(UNKNOWN_UID)
    assert facts["limits"]["capabilities"] == "none"
    assert facts["software"]["executable"] == "/opt/venv/bin/python3"
    assert "stackmark" not in facts["packages"]


def test_the_home_can_be_written_under_a_uid_without_a_name(podman: Builder, built_image: dict[str, Any]) -> None:
    answer = run_in(podman, TAG, "-c", 'set -eu; touch "$HOME/x" "$HOME/.cache/x"; id -u; pwd', entry="sh")
    assert (answer.code, answer.out.split()) == (0, [UNKNOWN_UID, "/home/user"]), answer.err


def test_nothing_of_what_was_handed_to_the_build_stays_in_the_image(
    podman: Builder, built_image: dict[str, Any]
) -> None:
    answer = run_in(podman, TAG, "-c", "ls -A /run/secrets /var/lib/apt/lists 2>/dev/null; true", entry="sh")
    assert not set(answer.out.split()) - {"/run/secrets:", "/var/lib/apt/lists:", "lock", "partial", "auxfiles"}
    history = subprocess.run(
        [*podman.command, "history", "--no-trunc", TAG], capture_output=True, text=True, check=True
    ).stdout
    assert "ssl/certs" not in history


def test_what_is_told_of_an_image_is_what_the_engine_has(podman: Builder, built_image: dict[str, Any]) -> None:
    told = built_image["image"]
    asked = [*podman.command, "image", "inspect", TAG]
    (known,) = json.loads(subprocess.run(asked, capture_output=True, check=True).stdout)
    assert told["id"] == f"sha256:{known['Id']}"
    assert told["digest"] == known["Digest"]
    assert told["size_bytes"] == known["Size"]
    assert known["User"] == "1001"
    assert built_image["base_made_of"].startswith("Debian bookworm, http")


def test_another_engine_builds_on_another_base(podman: Builder, built_image: dict[str, Any]) -> None:
    """The base, which already has all packages, stands in for a registry's."""
    if not shutil.which("buildah"):
        leave_out("buildah is not installed")
    options = ["--build-arg", f"BASE_IMAGE={TAG}", *SMALL, "--tag", OTHER, "--engine", "buildah"]
    answer = ask("image", "--build", *options, "--json")
    assert answer.code == 0, answer.err
    try:
        assert json.loads(answer.out)["image"]["digest"].startswith("sha256:")
        assert run_in(podman, OTHER, "python3", "-c", "pass").code == 0
    finally:
        remove(podman, OTHER)


def test_a_build_that_is_interrupted_leaves_no_process_no_container_and_no_folder(
    podman: Builder, built_image: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    mark = f"{os.getpid()}.75"

    def interrupt(line: str) -> None:
        if line.strip() == "begun":
            raise KeyboardInterrupt

    recipe = written(tmp_path / "recipe", f"FROM {TAG}\nRUN echo begun; sleep {mark}\n")
    with pytest.raises(KeyboardInterrupt):
        build(podman, recipe, OTHER, [], interrupt)
    assert f"sleep {mark}" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    listed = [*podman.command, "ps", "--all", "--external", "--format", "{{.Image}} {{.Names}}"]
    left = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    assert TAG not in left
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_base_that_cannot_be_reached_is_a_failure_of_the_place(podman: Builder) -> None:
    answer = ask("image", "--build", "--build-arg", "BASE_IMAGE=127.0.0.1:1/debian:1")
    assert answer.code == 4
    assert "--from-mirror" in answer.err
    assert "by hand: " in answer.err


def test_a_step_that_fails_is_told_with_the_end_of_its_log(
    podman: Builder, built_image: dict[str, Any], tmp_path: Path
) -> None:
    recipe = written(tmp_path / "recipe", f"FROM {TAG}\nRUN echo what went wrong; exit 7\n")
    with pytest.raises(PlaceError) as caught:
        build(podman, recipe, OTHER, [], lambda _: None)
    step, printed = "RUN echo what went wrong; exit 7", "  what went wrong\n"
    assert step in caught.value.message
    assert printed in (caught.value.hint or "")
    assert caught.value.command


def test_a_mirror_that_cannot_be_reached_is_a_failure_of_the_place(podman: Builder) -> None:
    answer = ask("image", "--build", "--from-mirror", "http://127.0.0.1:1/debian")
    assert answer.code == 4
    assert "http://127.0.0.1:1/debian" in answer.err
