"""A secret that was typed, or given by name, reaches the worker and nothing that is stored or shown."""

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from asking import COMMAND, ask, ask_process, environment
from stackmark.secrets_masking import looks_secret, masked_arm, masked_command


@pytest.mark.parametrize(
    "name",
    ["TOKEN", "HF_TOKEN", "hf_token", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "API_KEY2", "apiKey", "DB_PASS", "HTTP_AUTH",
     "GOOGLE_CREDENTIALS"],
)  # fmt: skip
def test_a_name_that_says_secret_is_known_as_one(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "AUTHOR", "KEYBOARD", "PATH", "PWD", "COMPASS"]
)
def test_other_names_are_not_taken_for_secrets(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("container,env=TOKEN=a=b,shm=1g", "container,env=TOKEN=***,shm=1g"),
        ("container,env=TOKEN=a,b,shm=1g", "container,env=TOKEN=***,shm=1g"),
        ("container, env = TOKEN=a", "container, env =TOKEN=***"),
        ("container,env=TOKEN", "container,env=TOKEN"),
        ("container,env=SPEED=9,env=A_KEY=1", "container,env=SPEED=9,env=A_KEY=***"),
    ],
)
def test_an_arm_is_shown_without_the_values_of_secrets(typed: str, shown: str) -> None:
    assert masked_arm(typed) == shown


@pytest.mark.parametrize("words", [["--env", "TOKEN=hush"], ["--env=TOKEN=hush"], ["--on", "container,env=TOKEN=hush"],
                                   ["--arm=container,env=TOKEN=hu,sh"]])  # fmt: skip
def test_a_command_line_is_shown_without_the_values_of_secrets(words: list[str]) -> None:
    shown = masked_command(["stackmark", "run", "train/trivial", *words, "--seconds", "1"])
    assert "hush" not in shown
    assert "sh" not in shown.replace("***", "")
    assert "TOKEN=***" in shown
    assert shown.endswith("--seconds 1")


SECRET = "hush-4711-do-not-store"
NAMED_SECRET = "hush-0815-not-even-typed"
PROGRAM = (
    "import os, sys, time; time.sleep(0.3); print('seen:', len(os.environ['DB_PASSWORD']) * len(os.environ['NAMED']))"
)


def everything_stored_and_shown(ledger: Path) -> bytes:
    """The ledger's own files, and what each command makes of it."""
    shown = b"".join(path.read_bytes() for path in ledger.parent.glob(f"{ledger.name}*"))
    for arguments in (["show", "last"], ["show", "last", "--json"], ["show", "last", "--log"], ["show", "last", "--events"],
                      ["show", "last", "--spec"], ["results", "--json"]):  # fmt: skip
        answer = ask(*arguments, "--ledger", str(ledger))
        assert answer.code == 0, answer.err
        shown += (answer.out + answer.err).encode()
    for form in ("csv", "json"):
        answer = ask("export", "--format", form, "--ledger", str(ledger))
        assert answer.code == 0, answer.err
        shown += answer.out.encode()
    return shown


class Looking(threading.Thread):
    """Read the arguments of all processes for as long as a command runs.

    Its own arguments are what its caller typed. A child has them too, between its birth and the program that it becomes.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", words: Sequence[str]) -> None:
        super().__init__()
        self._process, self._words = process, words
        self.seen: set[bytes] = set()

    def run(self) -> None:
        own = b"".join(os.fsencode(word) + b"\0" for word in self._words)
        while self._process.poll() is None:
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    self.seen.add(entry.read_bytes())
            time.sleep(0.02)
        self.seen.discard(own)


def run_and_look(ledger: Path, *arguments: str, **more: str) -> tuple[int, str, bytes]:
    """Exit code, output, and the arguments of all other processes while it ran."""
    with subprocess.Popen(
        [*COMMAND, *arguments], env=environment(ledger, **more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        looking = Looking(process, [*COMMAND, *arguments])
        looking.start()
        out, _ = process.communicate(timeout=120)
        looking.join()
    return process.returncode, out.decode(errors="replace"), b"\n".join(looking.seen)


def test_a_secret_of_a_container_is_in_no_process_list_ledger_export_or_report_and_resume_asks_for_it(
    tmp_path: Path, podman_reach: dict[str, str]
) -> None:
    ledger = tmp_path / "ledger.sqlite3"
    (tmp_path / "work").mkdir()
    code, out, arguments = run_and_look(
        ledger, "compare", "--cmd", f"{sys.executable} -c {shlex.quote(PROGRAM)}", "--cwd", str(tmp_path / "work"),
        "--metric", "seen: (.*)", "--arm", f"container,env=DB_PASSWORD={SECRET},env=NAMED",
        "--arm", f"container,env=NAMED,env=DB_PASSWORD={SECRET},cpus=1",
        "--blocks", "2", "--no-primers", "--report", str(tmp_path / "report.html"), "--margin", "10%", NAMED=NAMED_SECRET,
    )  # fmt: skip
    assert code == 0, out
    assert b"--env=DB_PASSWORD" in arguments
    stored = everything_stored_and_shown(ledger) + (tmp_path / "report.html").read_bytes()
    for text in (arguments, out.encode(), stored):
        assert SECRET.encode() not in text
        assert NAMED_SECRET.encode() not in text
    assert b"DB_PASSWORD=***" in stored
    runs = json.loads(ask("results", "--json", "--ledger", str(ledger)).out)["runs"]
    assert {tuple(run["place_options"]["env"]) for run in runs} == {
        ("DB_PASSWORD=***", "NAMED"), ("NAMED", "DB_PASSWORD=***"),
    }  # fmt: skip
    # Each run saw both values: their lengths multiplied are its figure.
    assert {run["rate_per_s"] for run in runs} == {float(len(SECRET) * len(NAMED_SECRET))}
    # A run is missing, and the secret with it.
    assert ask("delete", runs[0]["id"], "--yes", "--ledger", str(ledger)).code == 0
    without = ask_process(ledger, "resume", "last", NAMED=NAMED_SECRET)
    assert without.code == 2
    assert "export DB_PASSWORD=" in without.err
    again = ask_process(ledger, "resume", "last", NAMED=NAMED_SECRET, DB_PASSWORD=SECRET)
    assert again.code == 0, again.err
    assert SECRET.encode() not in everything_stored_and_shown(ledger)


def test_a_variable_in_a_command_is_filled_in_by_the_worker_and_stored_by_name(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite3"
    program = "import sys; print('got', sys.argv[1]); print('seen:', len(sys.argv[1]))"
    code, out, arguments = run_and_look(
        ledger, "run", "--cmd", f"{sys.executable} -c {shlex.quote(program)} {{env:NAMED}}", "--metric", "seen: (.*)",
        "--runs", "1", "--json", NAMED=NAMED_SECRET,
    )  # fmt: skip
    assert code == 0, out
    # Standard error comes along: it may say that the machine is busy.
    assert json.loads(out[out.index("{") :])["results"][0]["throughput"]["rate_per_s"] == len(NAMED_SECRET)
    # The program itself has it, and nothing else: neither the driver nor a worker.
    with_it = [words for words in arguments.split(b"\n") if NAMED_SECRET.encode() in words]
    assert all(b"\0-c\0import sys; print" in words for words in with_it)
    assert NAMED_SECRET.encode() not in out.encode() + everything_stored_and_shown(ledger)
    assert "got ***" in ask("show", "last", "--log", "--ledger", str(ledger)).out
    assert "{env:NAMED}" in ask("show", "last", "--spec", "--ledger", str(ledger)).out


def test_a_variable_that_is_not_set_is_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMED", raising=False)
    ledger = str(tmp_path / "ledger.sqlite3")
    for arguments in (
        ["run", "train/trivial", "--on", "container,env=NAMED"],
        ["run", "train/trivial", "--on", "pod", "--env", "NAMED"],
        ["run", "--cmd", "echo {env:NAMED}"],
    ):
        answer = ask(*arguments, "--ledger", ledger)
        assert answer.code == 2, answer.err
        assert "export NAMED=" in answer.err


def test_an_error_about_an_arm_does_not_show_its_secret(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.sqlite3")
    for arm in (
        f"host,env=TOKEN={SECRET},smh=1g",
        f"container,env=TOKEN={SECRET},smh=1g",
        f"container,env=a-b={SECRET}",
    ):
        answer = ask("compare", "train/trivial", "--arm", "host", "--arm", arm, "--ledger", ledger)
        assert answer.code == 2
        assert SECRET not in answer.err


@pytest.mark.parametrize("option", ["--url", "--arm"])
def test_an_error_about_a_url_does_not_show_its_password(tmp_path: Path, option: str) -> None:
    url = f"http://user:{SECRET}@127.0.0.1:8000/v1"
    words = ["run", "serve/endpoint", "--url", url]
    if option == "--arm":
        words = ["compare", "serve/endpoint", "--arm", f"host,url={url}", "--arm", "host,url=http://127.0.0.1:1/v1"]
    answer = ask(*words, "--ledger", str(tmp_path / "ledger.sqlite3"))
    assert answer.code == 2
    assert "--api-key-env" in answer.err
    assert SECRET not in answer.out + answer.err


def test_one_secret_has_one_value(tmp_path: Path) -> None:
    arms = ["--arm", "container,env=TOKEN=one", "--arm", "container,env=TOKEN=two"]
    answer = ask("compare", "train/trivial", *arms, "--ledger", str(tmp_path / "ledger.sqlite3"))
    assert answer.code == 2
    assert "TOKEN" in answer.err


def test_a_printed_manifest_takes_a_variable_by_name_from_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMED", NAMED_SECRET)
    answer = ask("manifest", "train/trivial", "--env", "NAMED", "--env", f"TOKEN={SECRET}", "--image", "x/y:1")
    assert answer.code == 0, answer.err
    assert SECRET not in answer.out + answer.err
    assert NAMED_SECRET not in answer.out + answer.err
    assert answer.out.count("secretKeyRef") == 2
    assert "create secret" in answer.out
