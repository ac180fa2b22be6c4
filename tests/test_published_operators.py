"""Published times of single operators: those of exactly one problem, which stand beside a result, and what is wrong with them."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from asking import ask
from stackmark.ledger.importers import deepbench
from stackmark.ledger.importers.found import Line
from stackmark.ledger.store import Ledger
from stackmark.published.chips import parse_chip
from stackmark.published.lookup import known_operators
from stackmark.published.operators import (
    OperatorIndex,
    caveats_of,
    problem_of,
    published_for,
    published_for_list,
    seconds_of,
)
from stackmark.published.table import FIELDS as COLUMNS
from stackmark.published.table import Published, load, load_all, load_operators, row_of
from stackmark.spec import Scalar
from stackmark.workloads.op.definition import problems, read_problem
from stackmark.workloads.op.operators import OPERATORS
from stackmark.workloads.op.problem import BACKWARD_INPUTS, BACKWARD_WEIGHTS, FORWARD
from the_reference import reference_data

INDEX = OperatorIndex(load_all())
SEED: dict[str, Scalar] = {"m": 7680, "n": 48000, "k": 2560, "a_t": False, "b_t": False}


@pytest.fixture(autouse=True)
def no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "none.sqlite3"
    monkeypatch.setenv("STACKMARK_LEDGER", str(file))
    return file


def of(op: str, **shape: Scalar) -> list[Published]:
    return list(INDEX.of(op, read_problem(op, shape).shape))


def times(rows: list[Published], **wanted: object) -> list[float]:
    return [row.value for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]


# --- what the table says ------------------------------------------------------------------------------------------------


def test_the_seed_case_is_there() -> None:
    """M, N, K = 7680 × 48000 × 2560 on a P100 was published as 206,884 µs, and measured again in a pod as 207,228."""
    rows = of("gemm", m=7680, n=48000, k=2560)
    on_p100 = [row for row in rows if row.chip == "NVIDIA P100" and row.precision == "fp32"]
    assert sorted(round(seconds_of(row) * 1e6) for row in on_p100) == [206_884, 207_228]


# Read in the notes on DeepBench's sheets: forward, backward by inputs, backward by weights in ms.
IMAGE: dict[str, Scalar] = {
    "w": 14,
    "h": 14,
    "c": 512,
    "n": 16,
    "k": 512,
    "filter_w": 3,
    "filter_h": 3,
    "pad_w": 1,
    "pad_h": 1,
}
LSTM: dict[str, Scalar] = {"cell": "lstm", "hidden": 1024, "batch": 128, "timesteps": 25}


@pytest.mark.parametrize(
    ("op", "shape", "chip", "precision", "printed"),
    [
        ("conv", IMAGE, "NVIDIA P100", "fp32", (0.870, 0.845, 0.855)),
        ("conv", IMAGE, "NVIDIA V100", "fp32", (0.506, 0.499, 0.477)),
        ("conv", IMAGE, "NVIDIA V100", "fp16", (0.199, 0.230, 0.162)),
        ("rnn", LSTM, "NVIDIA P100", "fp32", (7.24, 6.23, 3.43)),
        ("rnn", LSTM, "NVIDIA V100", "fp32", (3.25, 3.02, 2.11)),
        ("rnn", LSTM, "NVIDIA V100", "fp16", (1.63, 1.70, 0.52)),
    ],
)
def test_the_three_passes_are_three_rows(
    op: str, shape: dict[str, Scalar], chip: str, precision: str, printed: tuple[float, float, float]
) -> None:
    for name, value in zip((FORWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS), printed, strict=True):
        (found,) = times(of(op, **shape, **{"pass": name}), chip=chip, precision=precision)
        assert found == pytest.approx(value, abs=0.006)


@pytest.mark.parametrize(
    ("chip", "ms"),
    [("Intel Xeon Phi 7250", 54.7), ("NVIDIA GTX 1080 Ti", 51.8), ("NVIDIA P100", 76.6), ("NVIDIA M40", 73.2)],
)
def test_an_all_reduce_has_its_ranks_and_its_time(chip: str, ms: float) -> None:
    (row,) = [row for row in of("all-reduce", floats=64_500_000, ranks=8) if row.chip == chip]
    assert row.value == pytest.approx(ms, abs=0.06)
    assert row.count == 8


@pytest.mark.parametrize(
    ("chip", "precision", "total_ms", "tera"),
    [("NVIDIA P100", "fp32", 3068, 8.7), ("NVIDIA V100", "fp32", 2003, 13.3), ("NVIDIA V100", "fp16", 277, 96.4),
     ("NVIDIA T4", "fp32", 7171, 3.7), ("Intel Xeon Phi 7250", "fp32", 6320, 4.2), ("AMD MI25", "fp32", 3298, 8.1)],
)  # fmt: skip
def test_the_whole_training_list_adds_up_to_what_the_notes_say(
    chip: str, precision: str, total_ms: float, tera: float
) -> None:
    """Each of the 160 problems of the list finds one time of the sheet, whichever of the two spells K differently."""
    total, operations = 0.0, 0
    for problem in problems("gemm", "training"):
        (found,) = [
            row for row in INDEX.of("gemm", problem.shape)
            if (row.chip, row.precision, row.source) == (chip, precision, "Baidu DeepBench")
        ]  # fmt: skip
        total += found.value
        operations += 2 * problem.number("m") * problem.number("n") * problem.number("k")
    assert round(total) == total_ms
    assert operations / total / 1e9 == pytest.approx(tera, abs=0.06)


def test_the_times_of_the_reference_are_all_there_and_no_others() -> None:
    """Every number of a column of times, by its sheet, as the reference files print them."""
    cells = {
        "gemm": ("gemm", ("time_ms",)),
        "conv": ("conv", ("fwd_ms", "bwd_inputs_ms", "bwd_params_ms")),
        "rnn": ("rnn", ("fwd_ms", "bwd_inputs_ms", "bwd_weights_ms", "bwd_ms_combined")),
        "sparse_gemm": ("sparse-gemm", ("sparse_time_ms",)),
        "allreduce": ("all-reduce", ("mean_time_ms",)),
    }
    lines = 0
    printed: Counter[tuple[str, str, float]] = Counter()
    for name, (op, columns) in cells.items():
        with (reference_data() / "deepbench" / f"published_{name}.csv").open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                lines += 1
                where = f"{line['source_file']}[{line['sheet']}]"
                printed.update(
                    (f"op/{op}", where, float(line[column])) for column in columns if line[column] not in {"", "N/A*"}
                )
    assert lines == 5419
    ours = Counter(
        (row.workload, row.at.partition(":")[2].rpartition("]")[0] + "]", row.value) for row in load_operators()
    )
    assert ours == printed


def test_a_quantity_that_the_sheets_derived_is_in_no_row() -> None:
    assert {row.unit for row in load_operators()} == {"ms"}
    names = {name for row in load_operators() for name in row.extra}
    assert names <= {name for one in OPERATORS.values() for name in one.fields} | {
        "set", "algorithm", "multiply_bits", "add_bits", "dense_ms", "stddev_ms",
    }  # fmt: skip


def test_the_first_table_has_no_rates_of_deepbench_any_more() -> None:
    """Its times are in the other one, and no number is there twice; five times of somebody else stay."""
    (number,) = Counter(row.source for row in load() if row.workload.startswith("op/")).values()
    assert number == 5


# --- what is wrong with a number ----------------------------------------------------------------------------------------


def test_every_sixteen_or_eight_bit_time_of_nvidia_says_that_its_operands_were_zero_and_no_other_does() -> None:
    said = {(row.system[:3], row.precision, "zero" in row.note) for row in load_operators()}
    assert {one for one in said if one[2]} == {("NV_", "fp16", True), ("NV_", "int8", True)}
    assert not {("NV_", "fp16", False), ("NV_", "int8", False)} & said


def test_the_precision_is_said_in_the_sheets_own_words_and_is_no_caveat() -> None:
    assert all("printed as" in row.note for row in load_operators())
    assert not any("printed as" in words for row in load_operators() for words in caveats_of(row))
    (row,) = [row for row in of("gemm", **SEED) if row.chip == "NVIDIA V100" and row.precision == "fp16"]
    assert row.note.endswith("precision printed as 16 bit inputs, 16 bit multiplication, 32 bit addition")


def numbers(caveats: Sequence[str]) -> list[list[str]]:
    return [re.findall(r"\d+", words) for words in caveats]


def test_a_size_that_the_sheets_spell_differently_is_the_lists_problem_with_a_caveat() -> None:
    (found,) = published_for(
        INDEX, "gemm", read_problem("gemm", {"m": 512, "n": 24000, "k": 1536}).shape, "fp32", None, ("P100",), 1
    )
    assert found.row.extra["k"] == 1530
    assert numbers(found.caveats) == [["1530", "1536"]]
    amd = [row for row in of("gemm", m=512, n=24000, k=1530) if row.chip == "AMD MI25"]
    assert [row.extra["k"] for row in amd] == [1536]
    sparse = published_for(
        INDEX, "sparse-gemm", read_problem("sparse-gemm", {"m": 7860, "n": 2, "k": 2560}).shape, "fp32", None
    )
    assert numbers(sparse[0].caveats) == [["7680", "7860"]]
    for floats in (16777216, 16777217):
        rows = of("all-reduce", floats=floats, ranks=8)
        assert rows
        assert all(numbers(caveats_of(row))[0] == ["16777216", "16777217"] for row in rows)


def test_asked_with_the_sheets_own_spelling_a_row_of_the_lists_says_which_it_has() -> None:
    shape = read_problem("gemm", {"m": 512, "n": 24000, "k": 1530}).shape
    found = {one.chip: one.caveats for one in published_for(INDEX, "gemm", shape, "fp32", None, limit=99)}
    assert numbers(found["AMD MI25"]) == [["1536", "1530"]]


def test_a_problem_that_is_only_near_has_no_rows() -> None:
    assert of("gemm", m=7680, n=48000, k=2561) == []
    assert of("gemm", m=7680, n=48000, k=2560, b_t=True) == []
    assert of("attention", batch=1, heads=8, length=512, head=64) == []


def test_few_microseconds_are_said_to_be_cut() -> None:
    cut = [row for row in load_operators() if "cut to whole microseconds" in row.note]
    assert {row.value < 0.01 for row in cut} == {True}
    assert all(row.system.startswith(("NV_", "AMD_")) for row in cut)


# --- beside a result ----------------------------------------------------------------------------------------------------


def chips(op: str, shape: dict[str, Scalar], precision: str, chip: str | None, limit: int | None = None) -> list[str]:
    return [parse_chip(one.chip).short for one in published_for(INDEX, op, shape, precision, chip, limit=limit)]


def test_beside_an_h200_stand_p100_and_v100_and_then_the_newest_of_its_vendor() -> None:
    assert chips("gemm", SEED, "fp32", "NVIDIA H200") == ["P100", "V100"]
    assert chips("gemm", SEED, "fp32", "NVIDIA H200", limit=4) == ["P100", "V100", "T4", "TITAN X Pascal"]


def test_the_same_chip_comes_first() -> None:
    assert chips("gemm", SEED, "fp32", "Tesla V100-SXM2-16GB") == ["V100", "P100"]
    assert chips("gemm", SEED, "fp32", "Tesla T4")[0] == "T4"


def test_beside_an_amd_gpu_stand_amds_and_beside_a_cpu_the_one_cpu() -> None:
    assert chips("gemm", SEED, "fp32", "AMD Instinct MI300X") == ["MI25", "Radeon Vega Frontier"]
    assert chips("gemm", SEED, "fp32", "AMD EPYC 9374F 32-Core Processor") == ["Intel Xeon Phi 7250", "P100"]


@pytest.mark.parametrize("chip", [None, "", "Some New Chip 9000"])
def test_a_chip_that_nobody_knows_gets_the_usual_two(chip: str | None) -> None:
    assert chips("gemm", SEED, "fp32", chip) == ["P100", "V100"]


@pytest.mark.parametrize(
    ("precision", "taken"),
    [("fp32", "fp32"), ("tf32", "fp32"), ("bf16", "fp16"), ("fp16", "fp16"), ("fp8", "fp16"), ("fp64", "fp32")],
)
def test_of_a_chip_the_nearest_precision_is_taken_and_said_where_it_is_another(precision: str, taken: str) -> None:
    v100 = published_for(INDEX, "gemm", SEED, precision, "NVIDIA H200")[1]
    assert v100.precision == taken
    assert (f"{taken} instead of {precision}" in v100.caveats) == (taken != precision)
    assert v100.seconds == pytest.approx(0.145035 if taken == "fp32" else 0.017904)


def test_a_time_from_a_pod_stands_behind_deepbenchs_own() -> None:
    p100 = published_for(INDEX, "gemm", SEED, "fp32", "NVIDIA H200")[0]
    assert p100.seconds == pytest.approx(0.206884)
    assert p100.caveats == ()


def test_a_list_has_the_same_chips_in_every_row() -> None:
    shapes = [problem.shape for problem in problems("gemm", "training")]
    columns, rows = published_for_list(INDEX, "gemm", shapes, "fp32", "NVIDIA H200")
    assert columns == ("P100", "V100")
    assert [set(row) for row in rows] == [{"P100", "V100"}] * 160
    columns, rows = published_for_list(
        INDEX, "gemm", [problem.shape for problem in problems("gemm", "inference_server")], "int8", None
    )
    assert columns[0] == "T4"
    assert [len(row) for row in rows] == [2] * 75


def test_of_problems_that_nobody_published_there_is_nothing() -> None:
    shapes = [problem.shape for problem in problems("attention", "transformer")]
    assert published_for_list(INDEX, "attention", shapes, "bf16", "NVIDIA H200") == ((), [{}] * len(shapes))


def test_rows_without_an_index_are_taken_as_well() -> None:
    assert published_for(load_operators(), "gemm", SEED, "fp32", None) == published_for(
        INDEX, "gemm", SEED, "fp32", None
    )


OWN: dict[str, str] = dict.fromkeys(COLUMNS, "") | {
    "workload": "op/gemm", "model": "GEMM", "task": "operator", "chip": "NVIDIA H200", "count": "1", "precision": "bf16",
    "value": "2400", "unit": "us", "data": "synthetic", "date": "2026-01", "source": "Our lab",
    "extra": '{"m": 7680, "n": 48000, "k": 2560, "cuda": "13.0"}',
}  # fmt: skip


def test_a_users_own_time_is_found_by_its_sizes_whatever_else_it_says() -> None:
    own = row_of(list(OWN.values()))
    found = published_for(OperatorIndex((*load_operators(), own)), "gemm", SEED, "bf16", "NVIDIA H200")
    assert found[0].chip == "NVIDIA H200"
    assert found[0].seconds == pytest.approx(2.4e-3)


@pytest.mark.parametrize(
    "wrong", [{"unit": "TFLOP/s"}, {"extra": ""}, {"extra": '{"m": 7680, "n": [1], "k": 2}'}, {"workload": "op/foo"}]
)
def test_a_users_own_row_that_is_no_time_of_a_problem_is_left_out(wrong: dict[str, str]) -> None:
    assert problem_of(row_of(list((OWN | wrong).values()))) is None


def test_what_the_user_added_is_among_the_known(no_ledger: Path, tmp_path: Path) -> None:
    with (tmp_path / "own.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerow(OWN)
    assert ask("published", "add", str(tmp_path / "own.csv")).code == 0
    with Ledger.open() as book:
        assert len(known_operators(book).of("gemm", SEED)) == len(INDEX.of("gemm", SEED)) + 1
    assert re.search(r"Our lab .*\bp-", ask("published", "search", "op/gemm", "H200", "--k", "2560").out)


# --- the names are the same in lists and in published tables --------------------------------------------------------------


def test_every_row_is_a_problem_that_could_be_run() -> None:
    for row in load_operators():
        shape = problem_of(row)
        assert shape is not None
        assert read_problem(row.workload.removeprefix("op/"), shape).shape == shape


def test_the_importer_of_deepbenchs_output_has_the_same_names() -> None:
    importer = deepbench.DeepBenchImporter()
    text = """\
                  Running training benchmark
    m       n      k      a_t     b_t      precision        time (usec)
   1760     16   1760      0      1        float          180
   w      h      c      n      k      f_w    f_h  pad_w  pad_h    stride_w  stride_h    precision  fwd_time (usec)
  700    161      1      4     32     20      5      0       0         2         2     float            100   200   300   600
    type    hidden   N     timesteps   precision     fwd_time (usec)   bwd_inputs_time (usec)   bwd_params_time (usec)
    lstm     512      16      25     float    100   200   300
"""
    found = [one for number, line in enumerate(text.splitlines(), 1) for one in importer.feed(Line(number, line, line))]
    assert Counter(one.workload for one in found) == {"op/gemm": 1, "op/conv": 3, "op/rnn": 3}
    for one in found:
        shape = {name: value for name, value in one.params.items() if name not in ("precision", "set")}
        op = str(one.workload).removeprefix("op/")
        assert dict(read_problem(op, shape).shape) == shape
        if op != "gemm":
            assert shape["pass"] in (FORWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS)


def test_the_drifts_are_those_between_the_lists_and_the_sheets() -> None:
    """Of each size that differs, the list has the one and the sheets the other."""
    drifts = [
        (op, name, in_list, in_sheets)
        for op, one in OPERATORS.items()
        for name, spelled in one.deepbench.spelled.items()
        for in_sheets, in_list in spelled.items()
    ]
    assert len(drifts) == 3
    for op, name, in_list, in_sheets in drifts:
        sets = (
            ("training",)
            if op == "all-reduce"
            else ("training", "inference_server")
            if op == "gemm"
            else ("inference_server",)
        )
        listed = {problem.shape[name] for set_name in sets for problem in problems(op, set_name)}
        assert in_list in listed
        assert in_sheets in {row.extra[name] for row in load_operators() if row.workload == f"op/{op}"}
        if op != "sparse-gemm":  # where the list has both, by mistake
            assert in_sheets not in listed
