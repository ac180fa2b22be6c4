"""The worker's zip file under the Pythons that images have: the protocol, and the refusal of a Python that is too old."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pythons import NEW, OLD, python
from stackmark.events import FAILURE_EXIT_CODES
from stackmark.places.bundle import worker_bundle
from stackmark.spec import Request, Spec, Task
from stackmark.workloads.command.definition import CommandParams
from worker_process import Finished, finish, give, read_until

OWN = CommandParams.model_validate({"cmd": "echo rate 42", "metric": "rate ([0-9.]+)"})
SLEEP = CommandParams.model_validate({"cmd": "sleep 60"})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return worker_bundle().write(tmp_path_factory.mktemp("bundle") / "worker.pyz")


def start(version: str, bundle: Path) -> "subprocess.Popen[bytes]":
    """As a container does: no package of ours on any path."""
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.Popen(
        [python(version), str(bundle)], env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, bufsize=0,
    )  # fmt: skip


def work(version: str, bundle: Path, task: Task) -> Finished:
    process = start(version, bundle)
    give(process, task)
    return finish(process)


def own(params: CommandParams = OWN) -> Spec:
    return Spec(workload="command/own", params=params.model_dump(mode="json"))


def facts(done: Finished) -> dict[str, dict[str, Any]]:
    return {event["subject"]: event["facts"] for event in done.events if event["event"] == "facts"}


@pytest.mark.parametrize("version", NEW)
def test_facts_name_the_python_and_the_file(version: str, bundle: Path) -> None:
    done = work(version, bundle, Task(do="facts"))
    assert done.code == 0, done.stderr
    assert done.stderr == ""
    assert [event["seq"] for event in done.events] == list(range(len(done.events)))
    seen = facts(done)
    assert seen["software"]["python"].startswith(f"{version}.")
    assert seen["stackmark"]["bundle_sha256"] == worker_bundle().sha256


@pytest.mark.parametrize("version", NEW)
def test_a_program_is_run(version: str, bundle: Path) -> None:
    done = work(version, bundle, Task(do="run", spec=own()))
    assert (done.code, done.kinds()[-1]) == (0, "result"), done.stderr
    assert done.last["figure"]["value"] == 42


@pytest.mark.parametrize("version", NEW)
def test_a_request_is_resolved_by_another_worker_and_then_run(version: str, bundle: Path) -> None:
    request = Request(workload="command/own", params={"cmd": "true"})
    done = work(version, bundle, Task(do="run", request=request))
    probed = next(event for event in done.events if event["event"] == "probe")
    assert probed["spec"]["params"]["cmd"] == "true"
    assert (done.code, done.kinds()[-1]) == (0, "result"), done.stderr


@pytest.mark.parametrize("version", NEW)
def test_a_framework_that_is_missing_is_a_sentence(version: str, bundle: Path) -> None:
    done = work(version, bundle, Task(do="probe", request=Request(workload="train/lenet")))
    assert (done.code, done.last["kind"]) == (FAILURE_EXIT_CODES["missing_package"], "missing_package")
    assert "torch" in done.last["message"]


@pytest.mark.parametrize("version", NEW)
def test_a_signal_ends_it(version: str, bundle: Path) -> None:
    process = start(version, bundle)
    give(process, Task(do="run", spec=own(SLEEP)))
    lines = read_until(process, lambda event: event["event"] == "phase" and event["phase"] == "measure")
    process.send_signal(signal.SIGTERM)
    done = finish(process, lines)
    assert (done.code, done.last["kind"]) == (FAILURE_EXIT_CODES["terminated"], "terminated")


@pytest.mark.parametrize("version", NEW)
def test_the_end_of_its_lifeline_ends_it(version: str, bundle: Path) -> None:
    process = start(version, bundle)
    give(process, Task(do="run", spec=own(SLEEP)))
    read_until(process, lambda event: event["event"] == "phase" and event["phase"] == "measure")
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    assert finish(process).code != 0


@pytest.mark.parametrize("version", OLD)
def test_an_old_python_is_refused_in_the_words_of_the_protocol(version: str, bundle: Path) -> None:
    process = subprocess.run([python(version), str(bundle)], input=b"", capture_output=True, check=False, timeout=60)
    hello, failed = map(json.loads, process.stdout.splitlines())
    assert (hello["event"], hello["seq"], failed["event"], failed["seq"]) == ("hello", 0, "failed", 1)
    assert hello["versions"]["python"].startswith(f"{version}.")
    assert (failed["kind"], process.returncode) == ("old_python", FAILURE_EXIT_CODES["old_python"])
    assert process.stderr == b""
