"""Workloads through the worker's zip file with the oldest and the newest PyTorch that images may have, on the CPU."""

import os
import subprocess
from pathlib import Path

import pytest

from stackmark.events import FAILURE_EXIT_CODES
from stackmark.places.bundle import worker_bundle
from stackmark.spec import Request, Scalar, Task
from worker_images import python_with_torch
from worker_process import Finished, finish, give

WANTED = os.environ.get("STACKMARK_TEST_TORCHES", "oldest" if os.environ.get("CI") else "")
# 5 GB are downloaded the first time.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", params=["oldest", "newest"])
def python(request: pytest.FixtureRequest) -> str:
    if request.param not in WANTED.replace("all", "oldest newest").split():
        pytest.skip(f"the {request.param} PyTorch is tried where STACKMARK_TEST_TORCHES names it")
    return python_with_torch(request.param)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return worker_bundle().write(tmp_path_factory.mktemp("bundle") / "worker.pyz")


def run(python: str, bundle: Path, workload: str, **params: Scalar) -> Finished:
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = subprocess.Popen(
        [python, str(bundle)], env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, bufsize=0,
    )  # fmt: skip
    give(process, Task(do="run", request=Request(workload=workload, params={"device": "cpu", **params})))
    return finish(process, timeout_s=280)


def test_a_network_is_trained(python: str, bundle: Path) -> None:
    done = run(
        python, bundle, "train/trivial_cifar10", batch=2, steps=3, warmup_steps=1, warmup_seconds=0.0, tune="fast"
    )
    assert (done.code, done.last["event"]) == (0, "result"), done.stderr


def test_an_operator_is_timed(python: str, bundle: Path) -> None:
    done = run(python, bundle, "op/gemm", m=8, n=8, k=8, row_seconds=0.1, budget=5.0)
    assert (done.code, done.last["event"]) == (0, "result"), done.stderr
    assert [event["row"]["failure_kind"] for event in done.events if event["event"] == "row"] == [""]


def test_what_an_older_one_lacks_is_a_sentence(python: str, bundle: Path) -> None:
    done = run(python, bundle, "op/optimizer", shape="parameters=8,kind=adamw", row_seconds=0.1, budget=5.0)
    if "/torch-2.2" in python:
        assert (done.code, done.last["kind"]) == (FAILURE_EXIT_CODES["missing_package"], "missing_package")
    else:
        assert (done.code, done.last["event"]) == (0, "result"), done.stderr
