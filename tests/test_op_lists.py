"""The lists of problems: as many as DeepBench has, in its order, each of them a problem that can be run; and what they are of."""

import csv
import os
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from refusing import refused
from stackmark.workloads.op.definition import least_bytes, operations, problems, read_problem, sets_of
from stackmark.workloads.op.impl.bench import Implementation
from stackmark.workloads.op.impl.rows import OwnRows
from stackmark.workloads.op.lists import SWEEP_BYTES
from stackmark.workloads.op.operators import OPERATORS
from stackmark.workloads.op.problem import (
    BACKWARD_INPUTS,
    BACKWARD_WEIGHTS,
    FORWARD,
    Problem,
)
from stackmark.workloads.train.zoo import MODELS
from the_reference import reference_data

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "src" / "stackmark" / "workloads" / "op" / "data"
SCRIPT = ROOT / "scripts" / "make_op_lists.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}
TODAYS = ("batched-gemm", "grouped-gemm", "attention", "layer-norm", "embedding", "optimizer", "copy")
LISTS = [(op, set_name) for op, one in OPERATORS.items() if not one.by_machine for set_name in sets_of(op)]


def shapes(op: str, set_name: str) -> list[tuple[object, ...]]:
    return [tuple(problem.shape.values()) for problem in problems(op, set_name)]


# --- DeepBench's --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "set_name", "number"),
    [
        ("gemm", "training", 160), ("gemm", "inference_server", 75), ("gemm", "inference_device", 13),
        # 94 shapes, three passes each, but of the ten first layers two.
        ("conv", "training", 3 * 94 - 10), ("conv", "inference_server", 107), ("conv", "inference_device", 17),
        ("rnn", "training", 3 * 53), ("rnn", "inference_server", 69), ("rnn", "inference_device", 3),
        ("sparse-gemm", "inference_server", 24), ("sparse-gemm", "inference_device", 8),
        ("all-reduce", "training", 7), ("broadcast", "training", 7), ("all-reduce", "sweep", 19),
    ],
)  # fmt: skip
def test_a_list_has_as_many_problems_as_deepbench_has(op: str, set_name: str, number: int) -> None:
    assert len(problems(op, set_name)) == number


def test_the_cells_of_recurrent_layers_are_as_many_as_in_the_notes() -> None:
    def cells(set_name: str) -> Counter[str]:
        return Counter(row.word("cell") for row in problems("rnn", set_name) if row.word("pass") == FORWARD)

    assert cells("training") == {"vanilla": 12, "lstm": 22, "gru": 19}
    assert cells("inference_server") == {"lstm": 15, "gru": 54}


def test_the_order_is_that_of_deepbench_and_a_shapes_passes_are_next_to_each_other() -> None:
    assert shapes("gemm", "training")[:3] == [
        (1760, 16, 1760, False, False), (1760, 32, 1760, False, False), (1760, 64, 1760, False, False),
    ]  # fmt: skip
    assert [row.word("pass") for row in problems("rnn", "training")[:4]] == [
        FORWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS, FORWARD,
    ]  # fmt: skip
    assert [row.shape["floats"] for row in problems("all-reduce", "training")] == [
        100_000, 3_097_600, 4_194_304, 6_553_600, 16_777_217, 38_360_000, 64_500_000,
    ]  # fmt: skip


def test_backward_by_inputs_is_left_out_of_first_layers_only() -> None:
    by_shape: dict[tuple[object, ...], list[str]] = {}
    for row in problems("conv", "training"):
        by_shape.setdefault(tuple(value for name, value in row.shape.items() if name != "pass"), []).append(
            row.word("pass")
        )
    without = [shape for shape, passes in by_shape.items() if BACKWARD_INPUTS not in passes]
    assert len(without) == 10
    assert {shape[2] for shape in without} == {1, 3}
    assert {shape[2] for shape in by_shape} & {1, 3} == {shape[2] for shape in without}
    # Four problems stand in the list twice, as they do in DeepBench's.
    assert Counter(map(len, by_shape.values())) == {2: 10, 3: 76, 6: 4}


@pytest.mark.parametrize(("op", "set_name"), [(op, name) for op, name in LISTS if name.startswith("inference")])
def test_inference_is_forward_only(op: str, set_name: str) -> None:
    assert {row.shape.get("pass", FORWARD) for row in problems(op, set_name)} == {FORWARD}


def test_the_typing_errors_are_kept() -> None:
    """A list that was put right is no longer the one that others measured."""
    assert 7860 in {row.shape["m"] for row in problems("sparse-gemm", "inference_server")}
    assert (512, 24000, 1536, False, False) in shapes("gemm", "training")
    assert "1530" in (DATA / "SOURCES.md").read_text(encoding="utf-8")


def test_what_a_problem_was_taken_from_is_named() -> None:
    first = problems("gemm", "training")[0]
    assert first.application == "DeepSpeech"
    named = Counter(row.application for row in problems("conv", "inference_device"))
    assert named == {"Resnet": 16, "KWS": 1}
    assert not any("Deep Speech" in row.application for op, name in LISTS for row in problems(op, name))


def test_the_script_makes_the_shipped_lists_byte_for_byte(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(reference_data()), "--output", str(tmp_path)],
        env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in DATA.iterdir()}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (DATA / path.name).read_bytes()


def test_the_lists_are_the_references_own_numbers() -> None:
    with (reference_data() / "deepbench" / "conv.csv").open(encoding="utf-8", newline="") as file:
        reference = [[int(cell) for cell in line[1:12]] for line in list(csv.reader(file))[1:]]
    ours = [
        list(row.shape.values())[:11]
        for set_name in sets_of("conv") for row in problems("conv", set_name) if row.word("pass") == FORWARD
    ]  # fmt: skip
    assert ours == reference


def test_a_list_that_cannot_be_read_stops_the_script_with_its_line(tmp_path: Path) -> None:
    folder = tmp_path / "deepbench"
    folder.mkdir()
    (folder / "gemm.csv").write_text("set,m,n,k,a_t,b_t,application\ntraining,0,1,1,0,0,x\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), "--output", str(tmp_path / "out")],
        env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "gemm.csv, line 2:" in done.stderr
    assert all(named in done.stderr for named in ("op/gemm", "9,007,199,254,740,991", "'0'"))
    assert not (tmp_path / "out").exists()


# --- today's ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [op for op, one in OPERATORS.items() if "transformer" in one.sets])
def test_a_list_of_todays_models_is_neither_short_nor_long_and_names_what_it_is_of(op: str) -> None:
    rows = problems(op, "transformer")
    assert 8 <= len(rows) <= 40
    assert all(row.application for row in rows)
    assert len({tuple(row.shape.items()) for row in rows}) == len(rows)


def one(op: str, application: str) -> Problem:
    (found,) = [row for row in problems(op, "transformer") if row.application == application]
    return found


def test_the_products_of_a_block_are_as_many_operations_as_its_parameters_say() -> None:
    """Two for each weight and token. GPT-2 small has 12 blocks of 12 · 768² weights in these four products."""
    layers = ("qkv", "attention out", "MLP up", "MLP down")
    total = sum(operations(one("gemm", f"GPT-2 small: {layer}")) or 0 for layer in layers)
    assert total == 2 * 8192 * 12 * 768**2
    # Llama-3-8B has 8,030,261,248 parameters: 32 blocks of these and two norms, two tables, a last norm.
    rows = [one("gemm", f"Llama-3-8B: {layer}") for layer in ("qkv", "attention out", "MLP gate and up", "MLP down")]
    block = sum(row.number("m") * row.number("k") for row in rows)
    assert 32 * (block + 2 * 4096) + 2 * 128256 * 4096 + 4096 == 8_030_261_248


def test_the_same_holds_for_a_model_that_eight_devices_share() -> None:
    """Llama-3-70B has 70,553,706,496 parameters."""
    layers = ("qkv", "attention out", "MLP gate and up", "MLP down")
    rows = [one("gemm", f"Llama-3-70B, one of 8: {layer}") for layer in layers]
    block = 8 * sum(row.number("m") * row.number("k") for row in rows)
    assert 80 * (block + 2 * 8192) + 2 * 128256 * 8192 + 8192 == 70_553_706_496


def test_the_experts_of_a_mixture_are_as_large_as_its_parameters_say() -> None:
    """Mixtral-8x7B has 46,702,792,704 parameters: beside the experts the attention, a router of 8, two norms and two tables."""
    up, down = (one("grouped-gemm", f"Mixtral-8x7B: experts' {layer}, 16 tokens") for layer in ("gate and up", "down"))
    experts = sum(row.number("groups") * row.number("n") * row.number("k") for row in (up, down))
    attention = 4096 * (4096 + 2 * 1024) + 4096 * 4096
    assert 32 * (experts + attention + 8 * 4096 + 2 * 4096) + 2 * 32000 * 4096 + 4096 == 46_702_792_704
    assert up.number("tokens") == 2 * 16


def test_lengths_heads_and_passes_of_attention_span_what_models_use() -> None:
    rows = problems("attention", "transformer")
    assert {row.number("length") for row in rows} == {1, 512, 1024, 2048, 4096, 8192, 16384}
    assert {row.number("head") for row in rows} == {64, 128}
    assert {8, 12, 64} <= {row.number("heads") for row in rows}
    assert {row.shape["causal"] for row in rows} == {True, False}
    assert any(0 < row.number("kv_heads") < row.number("heads") for row in rows)
    decoding = [row for row in rows if row.number("length") == 1]
    assert all(row.number("kv_length") >= 4096 and row.word("pass") == FORWARD for row in decoding)
    assert {row.number("heads") % (row.number("kv_heads") or 1) for row in rows} == {0}


def test_the_optimizer_steps_over_the_parameters_that_training_has() -> None:
    sizes = {row.application: row.number("parameters") for row in problems("optimizer", "transformer")}
    assert sizes["GPT-2 small"] == MODELS["gpt2"].params
    assert sizes["BERT-large, with its heads for pre-training"] == MODELS["bert-large"].params
    # The classic counts 1001 classes: one output of 2048 weights and a bias more.
    assert sizes["ResNet-50"] == MODELS["resnet50_v1.5"].params - 2049


def test_the_sweep_goes_from_a_kibibyte_to_256_mebibytes_by_powers_of_two() -> None:
    assert [4 * row.number("floats") for row in problems("all-gather", "sweep")] == list(SWEEP_BYTES)
    assert (SWEEP_BYTES[0], SWEEP_BYTES[-1]) == (2**10, 256 * 2**20)
    assert [row.number("bytes") for row in problems("copy", "transformer")] == [2**power for power in range(20, 33)]


# --- all of them --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "set_name"), LISTS)
def test_every_problem_can_be_read_again_and_counted(op: str, set_name: str) -> None:
    for row in problems(op, set_name):
        assert row.op == op
        assert list(row.shape) == list(OPERATORS[op].fields)
        assert read_problem(op, row.shape).shape == row.shape
        assert least_bytes(row, "fp32") > 0
        number = operations(row)
        assert number is None or number > 0


def test_every_operator_names_an_implementation_that_is_there() -> None:
    for operator in OPERATORS.values():
        module, _, constant = operator.implementation.partition(":")
        assert isinstance(getattr(import_module(module), constant), Implementation | OwnRows), operator.name


def test_every_operator_has_its_sets_and_the_first_is_the_usual_one() -> None:
    assert {op: sets_of(op)[0] for op in OPERATORS} == {
        "gemm": "training", "conv": "training", "rnn": "training", "sparse-gemm": "inference_server",
        **dict.fromkeys(TODAYS, "transformer"), **{op: "training" for op, one in OPERATORS.items() if one.exchange},
        "transfer": "links", "ceilings": "machine",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("op", "set_name", "named"),
    [
        ("gemm", "trainig", ["op/gemm", "'trainig'", "training, inference_server"]),
        ("attention", "training", ["op/attention", "'training'", "transformer"]),
        ("gem", "training", ["'gem'", "gemm", "stackmark workloads"]),
        ("transfer", "links", ["run op/transfer"]),
        ("ceilings", "machine", ["op/ceilings", "stackmark ceilings"]),
    ],
)
def test_a_list_that_there_is_not_is_a_sentence(op: str, set_name: str, named: list[str]) -> None:
    with refused(*named):
        problems(op, set_name)


def test_the_lists_need_neither_a_framework_nor_numpy() -> None:
    code = (
        "import sys; from stackmark.workloads.op.definition import problems; problems('gemm', 'training');"
        "problems('attention', 'transformer'); print({'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.strip() == "set()"
