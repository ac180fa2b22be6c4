"""From a request to the rows that are run: lists, typed problems, the budget, and what is refused."""

from itertools import pairwise

import pytest
import torch

from refusing import fails_as, refused
from stackmark.spec import Request, Scalar
from stackmark.workloads.impl import devices
from stackmark.workloads.op.definition import least_bytes, operations, read_problem, read_shape, say_problem
from stackmark.workloads.op.impl import choose as choosing
from stackmark.workloads.op.impl.choose import choose, problems_of, representative
from stackmark.workloads.op.operators import OPERATORS
from stackmark.workloads.op.problem import Problem, read_rows, say_rows


@pytest.fixture(autouse=True)
def a_machine_of_known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_trial", lambda _device: (1e11, 1e10))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "cpu_has", lambda _flag: False)


def asked(op: str, **typed: Scalar) -> Request:
    return Request(workload=f"op/{op}", params=typed)


def test_without_a_word_the_first_list_is_taken_and_shortened_on_a_cpu() -> None:
    params, reasons = choose(asked("gemm"))
    assert (params.set, params.precision, params.device, params.budget) == ("training", "fp32", "cpu", 60.0)
    chosen = read_rows(params.rows, 160)
    assert 20 < len(chosen) < 160
    assert all(figure in reasons["rows"] for figure in (f"{len(chosen)} of", "160", "60 s"))
    sizes = sorted(operations(problem) or 0.0 for problem in problems_of("gemm", params))
    taken = sorted(operations(problems_of("gemm", params)[i]) or 0.0 for i in chosen)
    assert taken[0] == sizes[0]
    assert taken[-1] > sizes[80]  # of those that fit at all, small ones are not preferred


def test_a_budget_of_zero_takes_all() -> None:
    assert choose(asked("gemm", budget=0.0))[0].rows == "0-159"


def test_rows_that_were_typed_are_taken_whatever_the_budget() -> None:
    assert choose(asked("gemm", rows="3-5,150", budget=1.0))[0].rows == "3-5,150"


def test_one_typed_product_is_a_list_of_one() -> None:
    params, _ = choose(asked("gemm", m=64, n=32, k=16, a_t=True))
    assert (params.set, params.rows) == ("typed", "0")
    (problem,) = problems_of("gemm", params)
    assert say_problem("gemm", problem.shape) == "64×32×16 TN"


@pytest.mark.parametrize(
    ("op", "typed", "named"),
    [
        ("gemm", {"set": "trainnig"}, ["trainnig", "training"]),
        ("gemm", {"m": 64, "n": 32}, ["op/gemm", "k"]),
        ("gemm", {"m": 64, "n": 32, "k": 1, "set": "training"}, ["--set"]),
        ("gemm", {"m": 64, "shape": "m=1,n=1,k=1"}, ["--shape", "--m"]),
        ("conv", {"m": 64, "n": 32, "k": 1}, ["--m", "op/gemm"]),
        ("conv", {"shape": "w=2,h=2,c=1,n=1,k=1,filter_w=3,filter_h=3"}, ["filter_w=3", "pad"]),
        ("gemm", {"rows": "170"}, ["170", "160"]),
        ("gemm", {"rows": "9-3"}, ["'9-3'"]),
        ("gemm", {"device": "cuda:0"}, ["cuda:0"]),
        ("transfer", {"shape": "bytes=1"}, ["--shape"]),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(op: str, typed: dict[str, Scalar], named: list[str]) -> None:
    with fails_as("no_device" if "device" in typed else "bad_parameter", *named):
        choose(asked(op, **typed))


# --- a representative part ----------------------------------------------------------------------------------------------------


def test_of_equal_costs_as_many_rows_as_fit_are_spread_evenly() -> None:
    chosen = representative([1.0] * 100, list(range(100)), 10.0)
    assert len(chosen) == 10
    assert chosen[0] == 0
    assert chosen[-1] == 99
    gaps = {after - before for before, after in pairwise(chosen)}
    assert gaps <= {10, 11, 12}


def test_a_problem_that_would_eat_a_quarter_of_the_budget_is_left_out() -> None:
    assert representative([1.0, 30.0, 1.0], [1.0, 2.0, 3.0], 100.0) == [0, 2]


def test_where_nothing_fits_the_cheapest_problem_is_still_done() -> None:
    assert representative([50.0, 20.0, 90.0], [1.0, 2.0, 3.0], 1.0) == [1]


def test_rows_are_read_as_they_are_said() -> None:
    assert read_rows(say_rows([7, 1, 2, 3, 9]), 10) == [1, 2, 3, 7, 9]
    assert say_rows([7, 1, 2, 3, 9]) == "1-3,7,9"


# --- shapes and counts --------------------------------------------------------------------------------------------------------


def test_a_shape_is_read_by_its_names_with_defaults() -> None:
    problem = read_shape("conv", "w=56, h=28,c=64,n=16,k=32,filter_w=3,filter_h=5,stride_w=2,pass=backward-weights")
    assert problem.shape["pad_w"] == 0
    assert problem.shape["stride_h"] == 1
    assert list(problem.shape) == list(OPERATORS["conv"].fields)


@pytest.mark.parametrize(
    ("op", "text", "named"),
    [
        ("conv", "w", ["'w'"]),
        ("conv", "width=3", ["op/conv", "'width'"]),
        ("rnn", "cell=tanh,hidden=1,batch=1,timesteps=1", ["cell", "op/rnn", "lstm", "'tanh'"]),
        ("sparse-gemm", "m=1,n=1,k=1,sparsity=1.5", ["sparsity", "op/sparse-gemm", "1"]),
        ("gemm", "m=0,n=1,k=1", ["m", "op/gemm", "9,007,199,254,740,991", "'0'"]),
        ("gemm", "m=5,n=5,k=5,m=6", ["--shape", "m"]),
        ("layer-norm", "rows=3,width=1", ["width"]),
        ("gemm", "m=1e9,n=1,k=1", ["m", "op/gemm", "'1e9'"]),
        ("gemm", "m=1,n=1,k=1,a_t=maybe", ["a_t", "op/gemm", "'maybe'"]),
    ],
)
def test_a_shape_that_is_none_is_a_sentence(op: str, text: str, named: list[str]) -> None:
    with refused(*named):
        read_shape(op, text)


def test_deepbench_counts_a_product_as_2mnk() -> None:
    problem = read_problem("gemm", {"m": 7680, "n": 48000, "k": 2560})
    assert operations(problem) == 2 * 7680 * 48000 * 2560
    assert least_bytes(problem, "bf16") == 2 * (7680 * 2560 + 2560 * 48000 + 7680 * 48000)


def test_a_convolution_counts_what_it_does_at_each_output() -> None:
    shape: dict[str, Scalar] = {"w": 14, "h": 14, "c": 512, "n": 16, "k": 512, "filter_w": 3, "filter_h": 3}
    problem = read_problem("conv", {**shape, "pad_w": 1, "pad_h": 1})
    assert operations(problem) == 2 * 16 * 512 * 14 * 14 * 512 * 9
    assert least_bytes(problem, "fp32") == 4 * (2 * 16 * 512 * 14 * 14 + 512 * 512 * 9)


def test_a_recurrent_layer_counts_its_recurrent_products() -> None:
    def layer(cell: str) -> Problem:
        return read_problem("rnn", {"cell": cell, "hidden": 100, "batch": 8, "timesteps": 5})

    assert [operations(layer(cell)) for cell in ("vanilla", "gru", "lstm")] == [
        gates * 2 * 100 * 100 * 8 * 5 for gates in (1, 3, 4)
    ]


@pytest.mark.parametrize("op", sorted(op for op, one in OPERATORS.items() if one.fields))
def test_every_operator_has_its_least_bytes(op: str) -> None:
    typed = {name: 64 for name, axis in OPERATORS[op].fields.items() if axis.default is None}
    assert least_bytes(read_problem(op, typed), "fp32") > 0
