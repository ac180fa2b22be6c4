"""On a real GPU: every operator in every precision it has, right, named, and recorded as a graph where that can be.

Left out where there is no CUDA device. What it was seen passing on stands in docs/operators.md.
"""

from typing import Any

import pytest
import torch

from gpu_runs import run
from refusing import fails_as
from stackmark.workloads.op.definition import read_problem
from stackmark.workloads.op.impl.bench import Prepared, Stand
from stackmark.workloads.op.impl.checking import Guard
from stackmark.workloads.op.impl.matrix import prepare_gemm
from stackmark.workloads.op.impl.timing import make_rounds, time_rounds

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: the GPU's tests are left out")

RECORDED = ("gemm", "batched-gemm", "grouped-gemm", "conv", "layer-norm", "optimizer", "copy")
QUICK = {"row_seconds": 0.1}
CASES = [
    ("gemm", "fp64", {"rows": "0,7"}),
    *[("gemm", precision, {"rows": "0-11,83"}) for precision in ("fp32", "tf32", "bf16", "fp16")],
    *[("gemm", precision, {"m": 4096, "n": 1024, "k": 2048}) for precision in ("fp8", "int8")],
    ("gemm", "fp8", {"m": 4096, "n": 1, "k": 4096}),
    ("gemm", "int8", {"m": 5128, "n": 700, "k": 2048}),
    *[("batched-gemm", precision, {"rows": "0-3"}) for precision in ("fp32", "tf32", "bf16", "fp16")],
    *[("grouped-gemm", precision, {"rows": "0-3"}) for precision in ("fp32", "bf16", "fp16")],
    *[("sparse-gemm", precision, {"rows": "0-1"}) for precision in ("fp32",)],
    *[("conv", precision, {"rows": "0-20"}) for precision in ("fp32", "tf32", "bf16", "fp16")],
    *[("rnn", precision, {"rows": "0-2"}) for precision in ("fp32", "tf32", "bf16", "fp16")],
    *[("attention", precision, {"rows": "0-5"}) for precision in ("fp32", "bf16", "fp16")],
    *[("layer-norm", precision, {"rows": "0-3"}) for precision in ("fp32", "bf16", "fp16")],
    *[("embedding", precision, {"rows": "0-3"}) for precision in ("fp32", "bf16", "fp16")],
    ("optimizer", "fp32", {"rows": "0-3"}),
    ("copy", "fp32", {"rows": "0-8"}),
]


def rows_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["row"] for event in events if event["event"] == "row"]


@pytest.mark.parametrize(("op", "precision", "params"), CASES)
def test_an_operator_is_right_and_recorded_in_a_precision(op: str, precision: str, params: dict[str, Any]) -> None:
    ended, last, events = run(f"op/{op}", precision=precision, **QUICK, **params)
    assert (ended, last["event"]) == ("done", "result"), last
    rows = rows_of(events)
    assert rows
    for row in rows:
        assert not row["failure_kind"], (row["shape"], row["failure_message"])
        assert row["error"] <= row["error_bound"]
        assert row["kernel"] or op == "copy"
        assert min(row["call_s"]) > 0
        if op in RECORDED:
            assert row["launched"] == "graph"


def test_a_problem_without_room_is_a_failed_row_with_its_size() -> None:
    ended, _, events = run("op/gemm", m=400_000, n=400_000, k=64, precision="fp32")
    assert ended.startswith("out_of_device_memory")
    (row,) = rows_of(events)
    assert "596" in row["failure_message"]  # 400,000² × 4 bytes are 596 GiB


def test_eight_bits_on_a_gpu_want_more_than_sixteen_columns() -> None:
    ended, _, _ = run("op/gemm", m=1024, n=16, k=1024, precision="int8")
    assert all(size in ended for size in ("17", "16"))


def product(size: int) -> tuple[Prepared, Stand]:
    stand = Stand(torch.device("cuda:0"), "bf16", 1)
    return prepare_gemm(read_problem("gemm", {"m": size, "n": size, "k": size}), stand), stand


def test_a_bit_that_flips_on_the_device_is_found() -> None:
    prepared, stand = product(1024)
    guard = Guard(prepared, 1.0, stand.device)
    guard.remember(make_rounds(prepared, stand.device).once)
    guard.check()
    prepared.outputs(0)[0].view(torch.int16)[1000, 1000] ^= 1
    with fails_as("wrong_result"):
        guard.check()


def test_a_graph_times_the_device_and_not_the_launches() -> None:
    prepared, stand = product(256)
    rounds = make_rounds(prepared, stand.device)
    graph = time_rounds(rounds, stand.device, 0.2, lambda: None)
    assert graph.launched == "graph"
    # A tiny product takes a few microseconds on any such chip; Python launches one every five or more.
    assert sorted(graph.call_s)[len(graph.call_s) // 2] < 50e-6
