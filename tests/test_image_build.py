"""Worker images for real: built from the Debian mirror, run under a UID without a name, pushed to a registry.

The one full build takes about a minute, most of it for the mirror's packages; the base it made is kept in the cache of whoever
runs the tests. The other images hold one file.
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
from image_registry import PACKAGE, digest_in, find_registry, running_registry
from leaving_out import leave_out
from stackmark import __version__
from stackmark.errors import PlaceError
from stackmark.places.container.image.build_context import Context
from stackmark.places.container.image.builders import Builder, find_builder
from stackmark.places.container.image.imaging import Handed, build
from stackmark.places.container.image.recipes import WORKER_NEEDS, pins, read_recipe
from stackmark.places.container.settings import podman_ulimits

TAG = "localhost/stackmark-test-worker:1"
SMALL = "localhost/stackmark-test-small:1"
UNKNOWN_UID = "12345"


def need(what: str | None, reason: str) -> None:
    """Left out where a part is not there, but not in CI."""
    if what is None:
        leave_out(reason)


@pytest.fixture(scope="module")
def podman(podman_reach: Mapping[str, str]) -> Builder:
    return find_builder("podman")


@pytest.fixture(scope="module")
def built_image(podman: Builder) -> Iterator[dict[str, Any]]:
    """What `stackmark image` told of an image that it built without any registry."""
    need(shutil.which("mmdebstrap") or (shutil.which("debootstrap") if os.geteuid() == 0 else None),
         "a base is made by mmdebstrap (apt-get install mmdebstrap), or by root with debootstrap")  # fmt: skip
    answer = ask("image", "--build", "--from-mirror", "--without-torch", "--tag", TAG, "--json")
    assert answer.code == 0, answer.err
    assert "STEP 2/" in answer.err, "progress is shown"
    yield json.loads(answer.out)
    remove(podman, TAG)


@pytest.fixture(scope="module")
def small_image(podman: Builder) -> Iterator[str]:
    build(podman, small_context(), SMALL, Handed(), print)
    yield SMALL
    remove(podman, SMALL)


def remove(podman: Builder, name: str) -> None:
    subprocess.run([*podman.command, "rmi", "--force", name], capture_output=True, check=False)


def small_context(text: str = 'FROM scratch\nCOPY hello /\nLABEL stackmark.version="1"\n') -> Context:
    return Context(read_recipe("debian"), {"Containerfile": text.encode(), "hello": b"hello\n"}, {})


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


def test_the_worker_answers_in_an_image_that_cannot_be_written_under_a_uid_without_a_name(
    podman: Builder, built_image: dict[str, Any]
) -> None:
    answer = run_in(podman, "--read-only", "--tmpfs=/tmp", TAG, stdin=b'{"do":"facts","lifeline":false}\n')
    assert answer.code == 0, answer.err
    events = [json.loads(line) for line in answer.out.splitlines()]
    facts = {event["subject"]: event["facts"] for event in events if event["event"] == "facts"}
    assert events[0]["event"] == "hello"
    assert facts["process"]["uid"] == int(UNKNOWN_UID)
    assert facts["limits"]["capabilities"] == "none"
    assert facts["stackmark"]["version"] == __version__
    assert facts["software"]["executable"] == "/opt/stackmark/bin/python3"
    assert {name: facts["packages"][name] for name in WORKER_NEEDS} == {name: pins()[name] for name in WORKER_NEEDS}
    assert not {"torch", "click", "sqlalchemy", "rich"} & set(facts["packages"])


def test_the_home_and_the_caches_can_be_written_under_a_uid_without_a_name(
    podman: Builder, built_image: dict[str, Any]
) -> None:
    script = 'set -eu; mkdir -p "$TRITON_CACHE_DIR" "$CUDA_CACHE_PATH"; touch "$HOME/x" "$TORCHINDUCTOR_CACHE_DIR"; id -u; pwd'
    answer = run_in(podman, TAG, "-c", script, entry="sh")
    assert (answer.code, answer.out.split()) == (0, [UNKNOWN_UID, "/home/stackmark"]), answer.err


def test_nothing_of_what_was_handed_to_the_build_stays_in_the_image(
    podman: Builder, built_image: dict[str, Any]
) -> None:
    script = (
        "ls -A /run/secrets /run/wheels /var/lib/apt/lists 2>/dev/null; grep -rl stackmark-build /etc 2>/dev/null; true"
    )
    answer = run_in(podman, TAG, "-c", script, entry="sh")
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
    assert known["Config"]["Entrypoint"] == ["python3", "-P", "-m", "stackmark.worker"]
    assert known["Labels"]["stackmark.version"] == __version__
    assert known["Labels"]["stackmark.wheel"] == f"sha256:{built_image['wheel_sha256']}"
    assert known["Labels"]["org.opencontainers.image.base.name"].startswith("Debian bookworm, http")
    assert told["labels"] == known["Labels"]


def test_another_image_as_the_base_and_another_engine_give_a_worker_too(
    podman: Builder, built_image: dict[str, Any], tmp_path: Path
) -> None:
    """The recipe that begins with FROM; its base, which already has all packages, stands in for a registry's."""
    need(shutil.which("buildah"), "buildah is not installed")
    name = "localhost/stackmark-test-worker:2"
    options = [
        "--base-image",
        TAG,
        "--without-torch",
        "--tag",
        name,
        "--engine",
        "buildah",
        "-o",
        str(tmp_path / "context"),
    ]
    answer = ask("image", "--build", *options, "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)["image"]
    try:
        assert told["base_digest"] == built_image["image"]["digest"]
        assert told["labels"]["org.opencontainers.image.base.name"] == TAG
        assert told["digest"].startswith("sha256:")
        assert run_in(podman, name, stdin=b'{"do":"facts","lifeline":false}\n').code == 0
        assert (tmp_path / "context/Containerfile").is_file(), "the context that was asked for stays"
    finally:
        remove(podman, name)


def test_a_build_that_is_interrupted_leaves_no_process_no_container_and_no_folder(
    podman: Builder, built_image: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mark = f"{os.getpid()}.75"

    def interrupt(line: str) -> None:
        if line.strip() == "begun":
            raise KeyboardInterrupt

    context = small_context(f"FROM {TAG}\nRUN echo begun; sleep {mark}\n")
    with pytest.raises(KeyboardInterrupt):
        build(podman, context, "localhost/stackmark-test-worker:3", Handed(), interrupt)
    assert f"sleep {mark}" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    listed = [*podman.command, "ps", "--all", "--external", "--format", "{{.Image}} {{.Names}}"]
    left = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    assert TAG not in left
    assert list(tmp_path.iterdir()) == []


def test_a_base_that_cannot_be_reached_is_said_with_the_way_without_it(podman: Builder) -> None:
    answer = ask("image", "--build", "--base-image", "127.0.0.1:1/debian:1")
    context = Path(answer.err.split()[-1])
    assert answer.code == 4
    assert "127.0.0.1:1" in answer.err
    assert "--from-mirror" in answer.err
    assert "by hand: " in answer.err
    assert (context / "Containerfile").is_file(), "the command by hand needs it"
    shutil.rmtree(context)


def test_a_step_that_fails_is_said_with_the_end_of_its_log(podman: Builder, built_image: dict[str, Any]) -> None:
    context = small_context(f"FROM {TAG}\nRUN echo what went wrong; exit 7\n")
    with pytest.raises(PlaceError) as caught:
        build(podman, context, "localhost/stackmark-test-worker:3", Handed(), lambda _: None)
    step, printed = "RUN echo what went wrong; exit 7", "  what went wrong\n"
    assert step in caught.value.message
    assert printed in (caught.value.hint or "")
    assert caught.value.command
    shutil.rmtree(caught.value.command.split()[-1])


def test_a_mirror_that_is_none_is_said_before_anything_is_made(podman: Builder, tmp_path: Path) -> None:
    answer = ask("image", "--from-mirror", "http://127.0.0.1:1/debian", "--output", str(tmp_path / "context"))
    assert answer.code == 4
    assert "http://127.0.0.1:1/debian" in answer.err
    assert not (tmp_path / "context").exists()


@pytest.fixture
def registry(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    need(find_registry(), f"there is no registry here (apt-get install {PACKAGE})")
    with running_registry(tmp_path, closed=getattr(request, "param", False)) as address:
        yield address


@pytest.mark.parametrize("engine", ["podman", "buildah"])
def test_a_push_tells_the_digest_that_the_registry_has(engine: str, small_image: str, registry: str) -> None:
    need(shutil.which(engine), f"{engine} is not installed")
    options = ["--tag", small_image, "--push", f"{registry}/team/small:1", "--tls-verify", "false", "--engine", engine]
    answer = ask("image", *options, "--json")
    assert answer.code == 0, answer.err
    pushed = json.loads(answer.out)["pushed"]
    assert pushed == {"name": f"{registry}/team/small:1", "digest": digest_in(registry, "team/small", "1")}


def test_a_registry_without_tls_is_not_spoken_to_unless_that_was_said(small_image: str, registry: str) -> None:
    answer = ask("image", "--tag", small_image, "--push", f"{registry}/small:1")
    assert answer.code == 4
    assert registry in answer.err
    assert "--tls-verify false" in answer.err


@pytest.mark.parametrize("registry", [True], indirect=True)
def test_a_registry_that_wants_a_password_is_said_with_the_command_to_log_in(small_image: str, registry: str) -> None:
    answer = ask("image", "--tag", small_image, "--push", f"{registry}/small:1", "--tls-verify", "false")
    assert answer.code == 4
    assert f"podman login {registry}" in answer.err


def test_an_image_that_is_not_here_is_not_pushed(podman: Builder) -> None:
    answer = ask("image", "--tag", "localhost/stackmark-test-none:1", "--push", "127.0.0.1:1/x:1")
    assert answer.code == 4
    assert "localhost/stackmark-test-none:1" in answer.err
