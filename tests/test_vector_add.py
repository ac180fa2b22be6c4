"""`check/vector-add`: right sums are a figure, one wrong element of many is a failure that names it."""

import json
from pathlib import Path

import pytest
import torch

from asking import ask
from refusing import fails_as
from stackmark.spec import Request
from stackmark.workloads.check.definition import CheckParams
from stackmark.workloads.check.impl.vector_add import DTYPES, LENGTHS, add_on, compare, devices_of


def test_right_sums_are_counted_and_timed() -> None:
    added = add_on("cpu", 100_000, seed=1)
    assert added.elements == len(DTYPES) * (sum(LENGTHS) + 100_000)
    assert added.gb_per_s > 0


def test_a_length_of_one_is_the_only_one() -> None:
    assert add_on("cpu", 1, seed=1).elements == len(DTYPES)


@pytest.mark.parametrize("at", [0, 70_000, 99_999])
def test_one_wrong_element_of_a_hundred_thousand_is_found(at: int) -> None:
    def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        made = left + right
        if len(made) > at:
            made.view(torch.int32)[at] ^= 1  # the last bit
        return made

    with fails_as("wrong_result", f"element {at}"):
        add_on("cpu", 100_000, seed=1, add=add)


def test_a_device_that_computes_nothing_is_found() -> None:
    with fails_as("wrong_result"):
        add_on("cpu", 1000, seed=1, add=lambda left, _: torch.zeros_like(left))


def test_a_result_of_another_length_is_found() -> None:
    with fails_as("wrong_result", "2", "3"):
        compare(torch.zeros(2), torch.zeros(3), "cpu")


def test_a_nan_is_wrong_where_a_number_should_be() -> None:
    with fails_as("wrong_result", "element 1", "nan", "1.0"):
        compare(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 1.0]), "cpu")


@pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch has CUDA")
def test_a_framework_without_cuda_says_so() -> None:
    with fails_as("no_device", "CUDA"):
        devices_of(CheckParams(device="cuda:0"))


def test_it_runs_as_every_other_workload_and_is_stored(tmp_path: Path) -> None:
    words = ("run", "check/vector-add", "--device", "cpu", "--elements", "5000", "--runs", "1", "--json")
    answer = ask(*words, "--ledger", str(tmp_path / "ledger.sqlite3"))
    (result,) = json.loads(answer.out)["results"]
    assert answer.code == 0, answer.err
    assert result["throughput"]["unit"] == "GB/s"
    assert result["spec"]["params"]["elements"] == 5000


def test_a_probe_takes_the_device_that_is_there() -> None:
    from stackmark.workloads.check.impl.vector_add import probe

    class Rig:
        def part(self, name: str, note: str = "") -> None: ...
        def flag(self, sentence: str) -> None: ...

    params, choices = probe(Request(workload="check/vector-add"), Rig())  # type: ignore[arg-type]
    assert params.device == ("cuda:0" if torch.cuda.is_available() else "cpu")
    assert "device" in choices
