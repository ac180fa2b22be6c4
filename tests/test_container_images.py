"""Somebody's images, which have nothing of ours: what runs in them, as whom, and what is said where nothing can."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from asking import ask
from hostile_images import image_without_python
from stackmark.errors import Exit, StackmarkError
from stackmark.experiments.arms import place_of
from stackmark.experiments.probing import look, resolve
from stackmark.experiments.recorder import Silent
from stackmark.places.bundle import worker_bundle
from stackmark.places.container.place import ContainerPlace
from stackmark.places.place import Facts
from stackmark.spec import Request
from stackmark.workloads.command.definition import OWN_COMMAND
from worker_images import (
    PYTHON,
    TORCH,
    conda_image,
    debian_image,
    foreign_image,
    image_without_shell,
    load_into_docker,
    python_image,
    python_with_torch,
    torch_image,
)

pytestmark = pytest.mark.timeout(600)  # the first test waits for its image

WORKLOAD = "check/vector-add"
# As strangers to the image as OpenShift makes them: a UID that no file names, no rights, nothing that can be written.
RESTRICTED = "user=12345,read_only=yes,cap_drop=ALL"


def place(image: str, options: str = "", engine: str = "podman") -> ContainerPlace:
    text = ",".join(filter(None, ["container", f"engine={engine}", f"image={image}", options]))
    made = place_of(text, OWN_COMMAND, {})
    assert isinstance(made, ContainerPlace)
    return made


def facts_in(image: str, options: str = "", engine: str = "podman") -> Facts:
    return look(place(image, options, engine)).facts


def refusal(image: str, options: str = "", engine: str = "podman") -> tuple[str, Exit, StackmarkError]:
    """What a measurement there ends with: its kind, its exit code, the error."""
    request = Request(workload=WORKLOAD, params={"device": "cpu"})
    with pytest.raises(StackmarkError) as caught:
        resolve(request, place(image, options, engine), Silent())
    assert caught.value.hint
    return caught.value.kind, caught.value.exit_code, caught.value


@pytest.fixture(autouse=True)
def _podman(podman_reach: dict[str, str]) -> None:
    """All images are made by podman."""


def measured_in(image: str, options: str) -> Facts:
    """Measure the workload in an image, and return what the worker saw there."""
    on = f"container,engine=podman,image={image},{options}"
    said = ask("run", WORKLOAD, "--device", "cpu", "--runs", "1", "--on", on, "--json")
    assert said.code == Exit.DONE, said.err
    (run,) = json.loads(said.out)["results"][0]["runs"]
    facts: Facts = json.loads(ask("show", run["id"], "--json").out)["facts"]
    assert (run["status"], run["place"], facts["process"]["uid"]) == ("done", "container", 12345)
    return facts


@pytest.mark.parametrize("make", [torch_image, conda_image])
def test_a_workload_runs_in_an_image_with_python_and_torch_alone(
    make: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "ledger.sqlite3"))
    software = measured_in(make(), RESTRICTED)["software"]
    assert software["torch"] == TORCH
    assert (software["executable"] == "/opt/conda/bin/python") is (make is conda_image)


def test_a_workload_runs_on_python_3_10_with_the_oldest_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.environ.get("CI"):
        pytest.skip("downloads 5 GB the first time: tried with CI=true")
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "ledger.sqlite3"))
    python = Path(python_with_torch("oldest"))
    folder = python.parents[1]
    # Where any user may enter: the folders above it belong to root.
    options = f"{RESTRICTED},mount={folder}:/opt/venv"
    software = measured_in(python_image("3.10", environment=folder), options)["software"]
    assert str(software["python"]).startswith("3.10.")
    assert (software["executable"], software["torch"]) == ("/opt/venv/bin/python", "2.2.0+cu121")


def test_python_3_10_runs_the_mounted_file_as_any_user_in_a_read_only_root() -> None:
    where = place(python_image("3.10"), RESTRICTED)
    seen = look(where).facts
    assert str(seen["software"]["python"]).startswith("3.10.")
    assert seen["stackmark"]["bundle_sha256"] == worker_bundle().sha256
    assert (seen["process"]["uid"], seen["container"]["root_read_only"]) == (12345, True)
    assert str(seen["container"]["image_digest"]).startswith("sha256:")
    assert "stackmark" not in seen["packages"]


def test_a_python_that_is_named_needs_no_shell() -> None:
    name = image_without_shell()
    assert refusal(name)[:2] == ("no_shell", Exit.PLACE_FAILED)
    assert facts_in(name, "python=/usr/bin/python3")["software"]["executable"] == "/usr/bin/python3"


def test_facts_on_an_image_are_shown_by_the_command() -> None:
    said = ask("facts", "software", "--on", f"container,engine=podman,image={debian_image()}", "--json")
    assert said.code == Exit.DONE, said.err
    assert json.loads(said.out)["facts"]["software"]["python"].startswith(f"{PYTHON}.")


def test_an_old_python_fails_the_run_and_says_that_it_is_old() -> None:
    assert refusal(python_image("3.6"))[:2] == ("old_python", Exit.RUN_FAILED)


def test_facts_of_an_image_with_an_old_python_say_so_too() -> None:
    with pytest.raises(StackmarkError) as caught:
        facts_in(python_image("3.6"))
    assert caught.value.kind == "old_python"


def test_without_torch_the_pythons_that_were_looked_at_are_named() -> None:
    kind, code, error = refusal(debian_image())
    assert (kind, code) == ("missing_package", Exit.RUN_FAILED)
    assert "/opt/conda/bin/python" in error.message
    named = refusal(debian_image(), "python=/usr/bin/python3")
    assert named[:2] == ("missing_package", Exit.RUN_FAILED)
    assert "/opt/conda" not in named[2].message


NOT_A_WORKER = {
    "no Python": (image_without_python, "", "no_python"),
    "another architecture": (foreign_image, "", "other_architecture"),
    "another architecture than it says": (lambda: foreign_image(labelled=False), "", "other_architecture"),
    "not here": (lambda: "localhost/no-such-image:1", "", "no_image"),
    "a Python that is not there": (image_without_python, "python=/opt/conda/bin/python", "no_program"),
    "a name that is not there": (image_without_python, "python=python3.12", "no_program"),
    "a folder": (image_without_python, "python=/bin", "no_program"),
    "a program that fails": (image_without_python, "python=/bin/busybox", "not_python"),
    "a program that ends well": (image_without_python, "python=/bin/cat", "not_python"),
}


@pytest.mark.parametrize(("make", "options", "kind"), NOT_A_WORKER.values(), ids=NOT_A_WORKER.keys())
def test_where_no_worker_can_start_the_place_failed(make: Callable[[], str], options: str, kind: str) -> None:
    assert refusal(make(), options)[:2] == (kind, Exit.PLACE_FAILED)


def test_what_is_tried_by_hand_is_a_command_that_can_be_run() -> None:
    """The worker's file is gone by then, and a page of shell script helps nobody."""
    command = str(refusal(image_without_python())[2].command)
    assert "worker.pyz" not in command
    assert "\n" not in command
    assert command.endswith(" -V")


def test_docker_runs_the_same_file_in_the_same_images(
    docker_reach: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in docker_reach.items():
        monkeypatch.setenv(name, value)
    image = load_into_docker(python_image("3.10"), os.environ)
    seen = facts_in(image, RESTRICTED, "docker")
    assert seen["container"]["engine"] == "docker"
    assert seen["stackmark"]["bundle_sha256"] == worker_bundle().sha256
    assert (seen["process"]["uid"], seen["container"]["root_read_only"]) == (12345, True)
    assert refusal(image, "", "docker")[:2] == ("missing_package", Exit.RUN_FAILED)
    assert refusal(image, "python=/opt/nowhere", "docker")[:2] == ("no_program", Exit.PLACE_FAILED)
    foreign = load_into_docker(foreign_image(), os.environ)
    assert refusal(foreign, "", "docker")[:2] == ("other_architecture", Exit.PLACE_FAILED)
    empty = load_into_docker(image_without_python(), os.environ)
    assert refusal(empty, "", "docker")[:2] == ("no_python", Exit.PLACE_FAILED)
