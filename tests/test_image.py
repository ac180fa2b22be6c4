"""Recipes for images: what is in them, what may be asked for, and what a build is handed."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from asking import ask
from recipe_reading import faults, instructions
from refusing import refused
from stackmark.errors import PlaceError
from stackmark.places.container.image.builders import Builder, Ran, failed
from stackmark.places.container.image.making import BASES, ImageOptions, build_command, build_secrets, recipe_path
from stackmark.places.container.image.mirror import make_base

ROOT = Path(__file__).parents[1]


def recipe(base: str) -> str:
    return recipe_path(base).read_text()


@pytest.mark.parametrize("base", BASES)
def test_a_recipe_has_no_fault_that_a_reviewer_would_find(base: str) -> None:
    assert faults(recipe(base)) == []


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        ("USER 1001\nCMD|CMD", "user"),
        ("USER 1001|USER worker", "user"),
        ("slim\n|slim:latest\n", "latest"),
        ("WORKDIR|WORKDIRR", "WORKDIRR"),
        ("ARG TORCH_INDEX=|ARG TORCHINDEX=", "TORCH_INDEX"),
        ("WORKDIR|ARG EXTRA=1\nWORKDIR", "EXTRA"),
        ('CMD ["python3"|CMD python3 ["x"', "command"),
        ("apt-get clean;|if apt-get clean;", "step"),
    ],
)  # fmt: skip
def test_the_reviewer_finds_what_was_spoilt(spoil: str, named: str) -> None:
    good = recipe("debian")
    before, after = spoil.split("|")
    assert before in good
    assert any(named in found for found in faults(good.replace(before, after)))


@pytest.mark.parametrize("base", BASES)
def test_a_recipe_has_a_home_that_group_0_may_write(base: str) -> None:
    read = instructions(recipe(base))
    variables = dict(pair.split("=", 1) for kind, rest in read if kind == "ENV" for pair in rest.split())
    steps = " ".join(rest for kind, rest in read if kind == "RUN")
    assert f"chgrp -R 0 {variables['HOME']};" in steps
    assert f"chmod -R g=u {variables['HOME']}" in steps
    assert variables["USER"], "torch's compiler asks for a name"


@pytest.mark.parametrize("base", BASES)
def test_a_recipe_holds_nothing_of_ours(base: str) -> None:
    assert all("stackmark" not in rest for _, rest in instructions(recipe(base)))


@pytest.mark.parametrize("base", [base for base in BASES if base != "ngc"])
def test_a_recipe_pins_what_the_tests_ran_with(base: str) -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    arguments = dict(rest.split("=", 1) for kind, rest in instructions(recipe(base)) if kind == "ARG")
    assert arguments["TORCH"].partition("+")[0] == pins["torch"]
    assert arguments["PACKAGES"] == f'"numpy=={pins["numpy"]} pillow=={pins["pillow"]}"'


@pytest.mark.parametrize("base", ["cuda", "ngc"])
def test_an_image_of_nvidia_s_shows_no_gpu_to_a_pod_that_asked_for_none(base: str) -> None:
    assert "NVIDIA_VISIBLE_DEVICES=void" in recipe(base)


def test_printing_a_recipe_needs_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    answer = ask("image", "--base", "ubi9")
    assert (answer.code, answer.err) == (0, "")
    assert "microdnf install" in answer.out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--base", "debain"], ["--base", "'debain'", "debian, ubi9"]),
        (["--build-arg", "TORCH=2.12.0+cpu"], ["--build-arg", "--build"]),
        (["--build", "--build-arg", "TROCH=2.12.0"], ["--build-arg", "TROCH", "TORCH"]),
        (["--build", "--build-arg", "TORCH"], ["--build-arg", "'TORCH'"]),
        (["--build", "--base", "ngc", "--build-arg", "TORCH=2.13.0"], ["--build-arg", "BASE_IMAGE"]),
        (["--from-mirror"], ["--from-mirror", "--build"]),
        (["--base", "ubi9", "--from-mirror", "--build"], ["--from-mirror", "ubi9"]),
        (["--tag", "x:1"], ["--tag", "--build"]),
        (["--build", "--tag", "--privileged"], ["--tag", "'--privileged'"]),
        (["--build", "--tag", "X:1"], ["--tag", "'X:1'"]),
        (["--ca", "/nonexistent"], ["--ca", "/nonexistent"]),
        (["--pip-conf", "/proc"], ["--pip-conf", "/proc"]),
        (["--engine", "rkt", "--build"], ["--engine", "rkt", "podman"]),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], named: list[str]) -> None:
    answer = ask("image", *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert all(word in answer.err for word in named), answer.err


def test_without_any_engine_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    answer = ask("image", "--build")
    assert answer.code == 4
    assert all(engine in answer.err for engine in ("podman", "buildah", "docker"))


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


def test_secrets_are_handed_over_by_name_and_do_not_reach_the_command(tmp_path: Path) -> None:
    secret = "hunter2"
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = https://me:{secret}@pypi.example.com/simple\n")
    reach = {"HTTPS_PROXY": f"http://me:{secret}@proxy:3128", "PATH": "/usr/bin"}
    flags = build_secrets(ImageOptions(pip_conf=tmp_path / "pip.conf"), {})
    argv = build_command(Builder("podman", ("podman",), reach), tmp_path / "Containerfile", "x:1", flags)
    assert secret not in " ".join(argv)
    assert argv[argv.index("--build-arg") + 1] == "HTTPS_PROXY"
    assert f"id=pip.conf,src={tmp_path / 'pip.conf'}" in argv


def test_the_authority_that_this_machine_trusts_is_handed_on(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("a certificate")
    handed = ["--secret", f"id=ca,src={tmp_path / 'ca.crt'}"]
    assert build_secrets(ImageOptions(), {"SSL_CERT_FILE": str(tmp_path / "ca.crt")}) == handed
    assert build_secrets(ImageOptions(), {"SSL_CERT_FILE": str(tmp_path / "gone.crt")}) == []
    (tmp_path / "c,a.crt").write_text("a certificate")
    with refused("c,a.crt"):
        build_secrets(ImageOptions(ca=tmp_path / "c,a.crt"), {})


# What podman 4.3, buildah 1.28, docker 28 and pip said when it happened, shortened in the middle.
SAID = {
    'pinging container registry registry-1.docker.io: Get "https://registry-1.docker.io/v2/": dial tcp: lookup '
    "registry-1.docker.io on 10.0.0.1:53: no such host": "docker.io cannot be reached from here",
    "Error: reading manifest 1 in 127.0.0.1:5005/x: unauthorized: "
    "authentication required": "docker.io denies access",
    "Error: reading manifest 9.9 in docker.io/library/debian: manifest unknown: manifest unknown": "does not have this image",
    "Could not fetch URL https://pypi.org/simple/pip/: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
    "self-signed certificate in certificate chain (_ssl.c:992)": "signed by an unknown authority",
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


def test_every_option_of_the_command_is_one_that_can_be_asked_for() -> None:
    from stackmark.cli.image import command

    assert {param.name for param in command.params if param.expose_value} - {"as_json"} == set(
        ImageOptions.model_fields
    )
