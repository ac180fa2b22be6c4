"""Which PyTorch is taken: too old is a sentence, whatever an import or a missing name would have said."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stackmark.spec import Request, Task
from stackmark.workloads.versions import explain_lack, fused_since, has_torch
from worker_process import environment, work


@pytest.mark.parametrize("body", ["", "raise ImportError('libcudart.so.10: cannot open shared object file')"])
def test_a_torch_before_the_oldest_is_refused(body: str, tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(f"__version__ = '1.13.1+cu117'\n{body}\n")
    done = work(Task(do="probe", request=Request(workload="train/lenet")), environment(tmp_path))
    assert done.last["kind"] == "missing_package"
    if not body:
        assert all(version in done.last["message"] for version in ("2.2", "1.13.1+cu117"))


@pytest.mark.parametrize(
    ("version", "since", "has"),
    [
        ("2.2.0+cu121", "2.2", True),
        ("2.2.0", "2.3", False),
        ("2.11.0", "2.4", True),
        ("3.0.0a0+git", "2.4", True),
        ("a build of ours", "2.4", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, since: str, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    assert has_torch(since) is has


def test_only_names_of_torch_are_a_lack() -> None:
    failure = explain_lack(AttributeError("module 'torch.nn' has no attribute 'RMSNorm'"))
    assert failure is not None
    assert (failure.kind, "torch.nn.RMSNorm" in failure.message) == ("missing_package", True)
    assert explain_lack(AttributeError("'NoneType' object has no attribute 'RMSNorm'")) is None


def test_a_gpu_has_fused_steps_before_a_cpu() -> None:
    assert [fused_since(*one) for one in (("adamw", "cuda"), ("momentum", "cuda"), ("momentum", "cpu"))] == [
        "2.2", "2.3", "2.4",
    ]  # fmt: skip
