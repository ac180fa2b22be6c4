"""What all operators share: operands in many sets, the timing rule, and the two comparisons of a result."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from refusing import fails_as
from stackmark.medians import median_of
from stackmark.workloads.op.impl import operands, timing
from stackmark.workloads.op.impl.bench import Compared, Prepared, Stand, Tensor, require_precision
from stackmark.workloads.op.impl.checking import Guard, bound, fingerprint, refuse_wrong, relative_error, sample
from stackmark.workloads.op.impl.operands import MOST_COPIES, Piece, copies_for, rotated

CPU = torch.device("cpu")
STAND = Stand(CPU, "fp32", 1)


def prepared_by(call: Callable[[int], object], results: Sequence[Tensor], same_bits: bool = True) -> Prepared:
    return Prepared(
        call=call,
        copies=len(results),
        outputs=lambda i: (results[i],),
        compare=lambda: Compared(0.0, 1.0, "all"),
        same_bits=same_bits,
    )


# --- operands ---------------------------------------------------------------------------------------------------------------


def test_the_sets_of_a_small_problem_are_together_larger_than_the_cache() -> None:
    copies = copies_for(1_000_000, 50_000_000, 10**12)
    assert copies * 1_000_000 >= 3 * 50_000_000


def test_a_large_problem_has_one_set_and_a_tiny_one_not_endlessly_many() -> None:
    assert copies_for(10**10, 50_000_000, 10**12) == 1
    assert copies_for(10, 50_000_000, 10**12) == MOST_COPIES


def test_sets_leave_most_of_the_memory_free() -> None:
    assert copies_for(10**9, 10**11, 10**10) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn])
def test_operands_are_random_aligned_and_never_zeros(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "cache_bytes", lambda _device: 2**20)
    sets = rotated([Piece((33, 7), dtype), Piece((5,), dtype, random=False)], STAND)
    assert len(sets) > 100
    first, second = sets[0][0].float(), sets[1][0].float()
    assert first.shape == (33, 7)
    assert not torch.equal(first, second)
    assert first.count_nonzero() > 0.9 * first.numel()
    assert sets[1][0].data_ptr() % 256 == sets[0][0].data_ptr() % 256
    assert sets[1][1].shape == (5,)


def test_the_same_seed_gives_the_same_operands() -> None:
    one, again = (rotated([Piece((64,), torch.float32)], STAND)[0][0] for _ in range(2))
    other = rotated([Piece((64,), torch.float32)], Stand(CPU, "fp32", 2))[0][0]
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_operands_that_do_not_fit_are_a_sentence_with_their_size() -> None:
    with fails_as("out_of_host_memory", "3.73e+03 GiB"):
        rotated([Piece((10**12,), torch.float32)], STAND)


def test_a_containers_limit_bounds_what_is_free(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert operands._group_bytes(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert operands._group_bytes(tmp_path) > 2**60
    assert operands._group_bytes(tmp_path / "none") > 2**60


# --- timing -----------------------------------------------------------------------------------------------------------------


def sleeper(seconds: float) -> tuple[Prepared, list[int]]:
    called: list[int] = []

    def call(i: int) -> None:
        called.append(i)
        time.sleep(seconds)

    return prepared_by(call, [torch.zeros(1) for _ in range(3)]), called


def test_a_call_is_timed_until_its_median_is_known_and_at_least_ten_times() -> None:
    prepared, _ = sleeper(0.004)
    timed = timing.time_rounds(timing.make_rounds(prepared, CPU), CPU, 2.0, lambda: None)
    found = median_of(timed.call_s)
    assert len(timed.call_s) >= 10
    assert timed.calls_each == 1
    assert found.value >= 0.004
    assert timed.known == (found.half_width <= 0.01)


def test_short_calls_are_timed_in_rows_and_go_round_the_sets() -> None:
    prepared, called = sleeper(0.0)
    timed = timing.time_rounds(timing.make_rounds(prepared, CPU), CPU, 0.05, lambda: None)
    assert timed.calls_each > 1
    assert called[-6:] in ([0, 1, 2] * 2, [1, 2, 0] * 2, [2, 0, 1] * 2)


def test_a_long_call_stays_within_its_time_and_says_that_it_is_not_known() -> None:
    prepared, called = sleeper(0.2)
    timed = timing.time_rounds(timing.make_rounds(prepared, CPU), CPU, 0.3, lambda: None)
    assert not timed.known
    assert 3 <= len(timed.call_s) <= 4
    assert len(called) < 10


def test_results_are_checked_while_they_are_timed_and_after() -> None:
    prepared, _ = sleeper(0.0)
    checks: list[float] = []
    timing.time_rounds(timing.make_rounds(prepared, CPU), CPU, 1.0, lambda: checks.append(time.perf_counter()))
    assert checks


# --- the first comparison ---------------------------------------------------------------------------------------------------


def test_an_error_past_the_bound_is_a_wrong_result() -> None:
    refuse_wrong(Compared(0.01, 0.02, "all"))
    with fails_as("wrong_result", "0.03", "0.02"):
        refuse_wrong(Compared(0.03, 0.02, "all"))


def test_a_result_with_a_nan_is_infinitely_wrong() -> None:
    assert relative_error(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0])) == float("inf")
    assert relative_error(torch.zeros(3), torch.zeros(3)) == 0.0
    assert relative_error(torch.ones(3), torch.zeros(3)) == float("inf")


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_bound_holds_for_plain_sums_and_is_not_generous(precision: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    left = torch.randn(200, 4096, generator=generator).to(dtype)
    right = torch.randn(4096, 200, generator=generator).to(dtype)
    wanted = left.double() @ right.double()
    error = relative_error((left.float() @ right.float()).to(dtype), wanted)
    allowed = bound(4096, result=precision, sums="fp32")
    assert error < allowed < 300 * error


def test_a_sample_has_both_ends_and_no_index_twice() -> None:
    found = sample(10_000, 100, torch.Generator().manual_seed(1)).tolist()
    assert found[0] == 0
    assert found[-1] == 9999
    assert len(set(found)) == 100
    assert sample(5, 100, torch.Generator()).tolist() == [0, 1, 2, 3, 4]


# --- the second comparison --------------------------------------------------------------------------------------------------


def test_one_changed_bit_in_one_element_is_found_after_the_timing() -> None:
    results = [torch.randn(1000) for _ in range(8)]
    prepared = prepared_by(lambda _i: None, results)
    guard = Guard(prepared, 1e-6, CPU)
    guard.remember(lambda _sets: None)
    guard.check()
    results[4].view(torch.int32)[77] ^= 1
    with fails_as("wrong_result", "4 of 8"):
        guard.check()


def test_results_whose_bits_differ_from_call_to_call_are_compared_within_the_bound() -> None:
    results = [torch.ones(100)]
    drift = iter([1e-7, 2e-7, 3e-7])

    def again(_sets: Sequence[int]) -> None:
        results[0].fill_(1.0 + next(drift))

    guard = Guard(prepared_by(lambda _i: None, results), 1e-6, CPU)
    guard.remember(again)
    again([0])
    guard.check()
    assert not guard.same_bits
    results[0][3] = 1.01
    with fails_as("wrong_result", "0.01"):
        guard.check()


def test_the_fingerprint_sees_tensors_that_changed_places() -> None:
    one, other = torch.ones(4), torch.full((4,), 2.0)
    assert fingerprint([one, other]) != fingerprint([other, one])


# --- precision and threads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["tf32", "fp8"])
def test_a_precision_of_gpus_is_refused_on_a_cpu(precision: str) -> None:
    with fails_as("bad_parameter", precision, "--precision fp32"):
        require_precision(Stand(CPU, precision, 1), {"fp32", "tf32", "fp8"})


def test_a_precision_that_an_operator_lacks_names_those_it_has() -> None:
    with fails_as("bad_parameter", "int8", "--precision bf16, fp32"):
        require_precision(Stand(CPU, "int8", 1), {"fp32", "bf16"})


def test_an_older_gpu_lacks_what_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 0))
    with fails_as("bad_parameter", "bf16", "7.0", "8.0"):
        require_precision(Stand(torch.device("cuda:0"), "bf16", 1), {"bf16"})


def test_threads_are_pinned_before_the_framework_is_loaded_and_what_somebody_set_stays() -> None:
    code = (
        "from stackmark.workloads.op.impl import pinning; pinning.settle(); import os;"
        "print(os.environ['OMP_PROC_BIND'], pinning.said())"
    )
    plain = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    plain["PYTHONPATH"] = str(Path(__file__).parent.parent / "src")

    def said(**more: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code], env=plain | more, text=True, capture_output=True, check=True
        ).stdout

    bound, pinned = said().split(maxsplit=1)
    assert bound == "close"
    assert all(setting in pinned for setting in ("OMP_PROC_BIND=close", "OMP_PLACES=cores"))
    bound, pinned = said(OMP_PROC_BIND="false").split(maxsplit=1)
    assert (bound, "OMP_" in pinned) == ("false", False)


@pytest.mark.parametrize(
    ("samples", "numbers"),
    [
        ([1.0] * 5, ["5"]),
        ([1.0] * 7, ["7", "10"]),
        ([1.0, 1.1] * 10, ["4.8", "20"]),
        ([1.0] * 8 + [9.0] * 2 + [30.0], ["9", "11"]),
    ],
)
def test_a_row_that_is_not_known_says_how_well_it_is(samples: list[float], numbers: list[str]) -> None:
    assert re.findall(r"[\d.]+", timing.say_unknown(samples, 0.5)) == ["1", "0.5", *numbers]
