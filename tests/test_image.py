"""Recipes for worker images: what is in them, what may be asked for, and what a build is handed."""

import base64
import csv
import hashlib
import io
import re
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from asking import ask
from recipe_reading import faults, instructions
from refusing import refused
from stackmark import __version__
from stackmark.errors import PlaceError
from stackmark.places.container.image import wheel
from stackmark.places.container.image.build_context import compose, write
from stackmark.places.container.image.builders import Builder, Ran, failed
from stackmark.places.container.image.containerfile import containerfile
from stackmark.places.container.image.imaging import Handed, build_command, find_ca
from stackmark.places.container.image.making import ImageOptions
from stackmark.places.container.image.mirror import DebianBase, make_base
from stackmark.places.container.image.recipes import BASES, WORKER_NEEDS, Recipe, constraints, pins, read_recipe
from stackmark.places.place import CACHE_VARIABLES

ROOT = Path(__file__).parents[1]


def recipes() -> dict[str, Recipe]:
    """Each base as it comes, and every choice that changes the text."""
    found: dict[str, Recipe] = {base: read_recipe(base) for base in BASES}
    for name, base in BASES.items():
        for python in base.images:
            found[f"{name}-{python}"] = read_recipe(name, python=python)
    found["cu130"] = read_recipe("debian", cuda="cu130")
    found["without-torch"] = read_recipe("debian", without_torch=True)
    found["digest"] = read_recipe("ubi9", base_image=f"quay.io/x/y:1@sha256:{'a' * 64}")
    found["mirror"] = replace(
        read_recipe("debian"), base_tar="base.tar", base_made_of="Debian bookworm, http://x/debian"
    )
    found["wheels"] = replace(read_recipe("debian"), wheels=True)
    found["offline"] = replace(read_recipe("debian"), wheels=True, torch_brought=True, offline=True)
    return {name: replace(recipe, wheel=wheel.NAME, wheel_sha256="0" * 64) for name, recipe in found.items()}


RECIPES = recipes()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_no_fault_that_a_reviewer_would_find(name: str) -> None:
    assert faults(containerfile(RECIPES[name])) == []


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        ("USER 1001\nENTRYPOINT|ENTRYPOINT", "user"),
        ("USER 1001|USER worker", "user"),
        ("slim|slim:latest", "latest"),
        ("WORKDIR|WORKDIRR", "WORKDIRR"),
        ("ARG BASE_IMAGE\nARG|ARG", "BASE_IMAGE"),
        ("WORKDIR|ARG EXTRA=1\nWORKDIR", "EXTRA"),
        ('ENTRYPOINT ["python3"|ENTRYPOINT python3 ["x"', "entry point"),
        ("apt-get clean;|if apt-get clean;", "step"),
    ],
)  # fmt: skip
def test_the_reviewer_finds_what_was_spoilt(spoil: str, named: str) -> None:
    good = containerfile(RECIPES["debian"])
    before, after = spoil.split("|")
    assert before in good
    assert any(named in found for found in faults(good.replace(before, after)))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_for_any_uid_and_keeps_its_caches_where_group_0_may_write(name: str) -> None:
    read = instructions(containerfile(RECIPES[name]))
    variables = dict(pair.split("=", 1) for kind, rest in read if kind == "ENV" for pair in rest.split())
    home = variables["HOME"]
    steps = " ".join(rest for kind, rest in read if kind == "RUN")
    assert f"chgrp -R 0 {home};" in steps
    assert f"chmod -R g=u {home};" in steps
    assert variables["USER"], "torch's compiler asks for a name"
    for variable in ("XDG_CACHE_HOME", *CACHE_VARIABLES):
        assert variables[variable].startswith(f"{home}/"), variable
    assert read[-1] == ("ENTRYPOINT", '["python3", "-P", "-m", "stackmark.worker"]')


def test_a_recipe_says_what_it_is_in_labels() -> None:
    recipe = replace(RECIPES["cuda"], revision="abc123")
    labels = next(rest for kind, rest in instructions(containerfile(recipe)) if kind == "LABEL")
    found = dict(re.findall(r'(\S+)="([^"]*)"', labels))
    assert found["org.opencontainers.image.version"] == found["stackmark.version"] == __version__
    assert found["org.opencontainers.image.revision"] == found["stackmark.revision"] == "abc123"
    assert found["org.opencontainers.image.base.name"] == "${BASE_IMAGE}"
    assert found["stackmark.torch"] == "${TORCH_VERSION}"


def test_the_base_of_nvidia_keeps_its_torch_and_checks_that_it_did() -> None:
    text = containerfile(RECIPES["ngc"])
    assert "torch==" not in text
    assert "--system-site-packages" in text
    assert "test \"$(python3 -c 'import torch;" in text
    assert "numpy" not in constraints(RECIPES["ngc"])
    assert "NVIDIA_VISIBLE_DEVICES=void" in text


def test_offline_asks_no_index() -> None:
    text = containerfile(RECIPES["offline"])
    assert "--no-index --no-deps" in text
    assert " --find-links /run/wheels --no-index" in text
    assert "index-url" not in text


def test_the_pins_are_those_of_the_constraints() -> None:
    """Made again by the script, byte for byte."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts/write_worker_pins.py")], capture_output=True, text=True, check=True
    )
    assert (ROOT / "src/stackmark/places/container/image/worker-pins.txt").read_text() == made.stdout


def test_an_image_installs_what_the_worker_s_requirements_name() -> None:
    named = re.findall(r"^([a-z][a-z-]*)>=", (ROOT / "worker-requirements.txt").read_text(), re.MULTILINE)
    assert sorted(named) == sorted([*WORKER_NEEDS, "torch"])
    assert set(named) <= set(pins())


def test_printing_a_recipe_needs_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    answer = ask("image", "--base", "ubi9")
    assert (answer.code, answer.err) == (0, "")
    assert "microdnf install" in answer.out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--base", "debain"], ["'debain'", "debian, ubi9"]),
        (["--base", "cuda", "--python", "3.11"], ["'3.11'", "3.12"]),
        (["--cuda", "13.0"], ["--cuda", "'13.0'", "cu130"]),
        (["--base", "cuda", "--cuda", "cu999"], ["cu999", "--base-image"]),
        (["--torch", "2.13.0\nRUN id"], ["--torch", repr("2.13.0\nRUN id")]),
        (["--torch", ""], ["--torch"]),
        (["--base", "ngc", "--torch", "2.13.0"], ["ngc", "--torch", "--base-image"]),
        (["--without-torch", "--cuda", "cu130"], ["--without-torch", "--cuda"]),
        (["--base-image", "debian"], ["--base-image", "sha256"]),
        (["--base-image", "debian:latest"], ["debian:latest", "sha256"]),
        (["--base-image", "debian:1\nRUN id"], ["--base-image"]),
        (["--base-image", "debian:1@sha256:abc"], ["'debian:1@sha256:abc'"]),
        (["--from-mirror"], ["--build", "--output FOLDER"]),
        (["--base", "ubi9", "--from-mirror", "--build"], ["--from-mirror", "debian"]),
        (["--base-image", "debian:1", "--from-mirror", "--build"], ["--from-mirror", "--base-image"]),
        (["--tag", "x:1"], ["--tag", "--build", "--push REF"]),
        (["--build", "--tag", "--privileged"], ["--tag", "'--privileged'"]),
        (["--build", "--tag", "X:1"], ["--tag", "'X:1'"]),
        (["--push", "https://example.com/x:1"], ["--push", "'https://example.com/x:1'"]),
        (["--push", f"example.com/x@sha256:{'a' * 64}"], ["--push", "digest"]),
        (["--tls-verify", "false"], ["--tls-verify", "--push"]),
        (["--tls-verify", "perhaps", "--push", "x:1"], ["--tls-verify", "perhaps"]),
        (["--offline"], ["--offline", "--wheels FOLDER"]),
        (["--wheels", "/nonexistent"], ["--wheels", "/nonexistent"]),
        (["--ca", "/nonexistent"], ["--ca", "/nonexistent"]),
        (["--pip-conf", "/proc"], ["--pip-conf", "/proc"]),
        (["--output", "/proc/self"], ["/proc/self"]),
        (["--output", "/dev/null"], ["/dev/null"]),
        (["--engine", "rkt", "--build"], ["--engine", "rkt", "podman"]),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(arguments: list[str], named: list[str]) -> None:
    answer = ask("image", *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert all(word in answer.err for word in named), answer.err
    assert "Traceback" not in answer.err


def test_without_any_engine_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    answer = ask("image", "--build")
    assert answer.code == 4
    assert all(engine in answer.err for engine in ("podman", "buildah", "docker", "image --output"))


def test_a_mirror_s_address_may_hold_no_password(tmp_path: Path) -> None:
    with refused("http"):
        make_base("bookworm", "http://me:secret@mirror/debian", tmp_path, print)


def test_a_server_that_is_no_mirror_is_told_from_one(tmp_path: Path) -> None:
    """A portal that answers every address with its page, as hotels and companies have them."""

    class Portal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>Welcome! Please log in.</html>")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Portal) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        mirror = f"http://127.0.0.1:{server.server_port}/debian"
        with refused(mirror, error=PlaceError):
            make_base("bookworm", mirror, tmp_path / "kept", print)
        server.shutdown()
    assert not (tmp_path / "kept").exists()


def test_the_wheel_is_the_same_bytes_each_time_and_holds_what_runs_here() -> None:
    packed = wheel.pack()
    assert packed.sha256 == wheel.pack().sha256
    with zipfile.ZipFile(io.BytesIO(packed.data)) as archive:
        names = archive.namelist()
        assert archive.read("stackmark/worker/__main__.py") == (ROOT / "src/stackmark/worker/__main__.py").read_bytes()
        record = archive.read(f"stackmark-{__version__}.dist-info/RECORD").decode()
        for name, digest, size in csv.reader(io.StringIO(record)):
            if digest:
                data = archive.read(name)
                told = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={told}", len(data)), name
    assert {row[0] for row in csv.reader(io.StringIO(record))} == set(names)
    assert not any("__pycache__" in name for name in names)


def test_pip_takes_the_wheel_and_the_worker_in_it_answers(tmp_path: Path) -> None:
    (tmp_path / wheel.NAME).write_bytes(wheel.pack().data)
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target)]
    subprocess.run([*install, str(tmp_path / wheel.NAME)], check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "stackmark.worker"],
        input=b'{"do":"facts","lifeline":false}\n',
        env={"PYTHONPATH": str(target), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=True,
    )
    assert b'"subject":"stackmark"' in done.stdout


def test_a_context_holds_all_that_its_recipe_copies(tmp_path: Path) -> None:
    answer = ask("image", "--base", "cuda", "--output", str(tmp_path / "context"))
    assert answer.code == 0
    assert f"cd {tmp_path / 'context'} && podman build " in answer.out
    text = (tmp_path / "context/Containerfile").read_text()
    copied = [name for kind, rest in instructions(text) if kind == "COPY" for name in rest.split()[:-1]]
    ignore = (tmp_path / "context/.containerignore").read_text()
    for name in copied:
        assert (tmp_path / "context" / name).is_file()
        assert f"!{name}\n" in ignore
    assert ignore.startswith("*\n")
    assert ignore == (tmp_path / "context/.dockerignore").read_text()


def test_a_context_is_written_over_an_earlier_one_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").write_bytes(b"a wheel")
    (tmp_path / "base").write_bytes(b"a base")
    first = compose(read_recipe("debian"), wheels=wheels, base=DebianBase(tmp_path / "base", "Debian"))
    write(first, tmp_path / "context")
    assert (tmp_path / "context/wheels/torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").read_bytes() == b"a wheel"
    assert (tmp_path / "context/base.tar").read_bytes() == b"a base"
    assert "ARG TORCH_INDEX_URL" not in first.containerfile, "torch was brought along"
    write(compose(read_recipe("debian")), tmp_path / "context")
    assert sorted(path.name for path in (tmp_path / "context").iterdir()) == [
        ".containerignore", ".dockerignore", "Containerfile", "constraints.txt", "requirements.txt", wheel.NAME,
    ]  # fmt: skip
    assert (tmp_path / "base").read_bytes() == b"a base"


def test_secrets_are_handed_over_by_name_and_reach_neither_context_nor_command(tmp_path: Path) -> None:
    secret = "hunter2"
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = https://me:{secret}@pypi.example.com/simple\n")
    reach = {"HTTPS_PROXY": f"http://me:{secret}@proxy:3128", "PATH": "/usr/bin"}
    builder = Builder("podman", ("podman",), reach)
    context = compose(read_recipe("debian"))
    argv = build_command(builder, tmp_path, "x:1", Handed(pip_conf=tmp_path / "pip.conf"))
    assert secret not in " ".join(argv) + "".join(data.decode(errors="replace") for data in context.texts.values())
    assert argv[argv.index("--build-arg") + 1] == "HTTPS_PROXY"
    assert f"id=pip.conf,src={tmp_path / 'pip.conf'}" in argv


def test_the_authority_that_this_machine_trusts_is_handed_on(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("a certificate")
    assert find_ca(None, {"SSL_CERT_FILE": str(tmp_path / "ca.crt")}) == tmp_path / "ca.crt"
    assert find_ca(None, {"SSL_CERT_FILE": str(tmp_path / "gone.crt")}) is None
    (tmp_path / "c,a.crt").write_text("a certificate")
    with refused("c,a.crt"):
        find_ca(tmp_path / "c,a.crt", {})


# What podman 4.3, buildah 1.28, docker 28 and pip said when it happened, shortened in the middle.
SAID = {
    'pinging container registry registry-1.docker.io: Get "https://registry-1.docker.io/v2/": dial tcp: lookup '
    "registry-1.docker.io on 10.0.0.1:53: no such host": "docker.io cannot be reached from here",
    "Error: writing blob: initiating layer upload to /v2/x/blobs/uploads/ in 127.0.0.1:5005: unauthorized: "
    "authentication required": "docker.io does not let this user in",
    'Get "https://127.0.0.1:5005/v2/": http: server gave HTTP response to HTTPS client': "speaks plain HTTP",
    "Error: reading manifest 9.9 in docker.io/library/debian: manifest unknown: manifest unknown": "has no such image",
    "Could not fetch URL https://pypi.org/simple/pip/: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
    "self-signed certificate in certificate chain (_ssl.c:992)": "signed by an authority that is not known",
    "ERROR: No matching distribution found for torch==2.13.0+cu130": "found no wheel of torch==2.13.0+cu130",
    "ERROR: Cannot install numpy because these package versions have conflicting dependencies.": "found no wheel of numpy",
    "E: You don't have enough free space: write /x: no space left on device": "the disk is full",
    "the --mount option requires BuildKit. Refer to https://docs.docker.com/go/buildkit/": "without BuildKit",
    'Error: building at STEP "RUN set -eu; false": while running runtime: exit status 1': "the step “RUN set -eu; false” failed",
}  # fmt: skip


@pytest.mark.parametrize("said", SAID)
def test_what_engines_say_becomes_a_sentence_with_what_to_do(said: str) -> None:
    error = failed(
        "the image could not be built", Ran(1, ["STEP 1/9: …", said]), ["podman", "build"], registry="docker.io"
    )
    assert SAID[said] in error.message
    assert error.hint is not None
    assert said in error.hint, "the log's end is shown"
    assert error.command == "podman build"


def test_a_recipe_names_the_command_that_makes_it_again() -> None:
    text = containerfile(RECIPES["cu130"])
    made_by = re.search(r"^# Made by: stackmark (.+)$", text, re.MULTILINE)
    assert made_by
    again = ask(*made_by[1].split())
    original = compose(RECIPES["cu130"]).containerfile
    assert (again.code, again.out) == (0, original)


def test_every_option_of_the_command_is_one_that_can_be_asked_for() -> None:
    from stackmark.cli.image import command

    assert {param.name for param in command.params} - {"verbose", "as_json"} == set(ImageOptions.model_fields)
