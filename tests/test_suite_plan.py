"""Reading a suite and writing it out: what is refused, with which line, and which cells there are."""

import re
from pathlib import Path

import pytest

from stackmark.errors import SpecError
from stackmark.experiments.suite.plan import MOST_CELLS, SuitePlan, expand, find_suite, named_suites, parse, read_file

MATRIX = """
workloads = ["train/lenet", "train/trivial", "op/gemm"]
compare = "place"
[axes]
place = ["host", "container"]
batch = [32, 64]
"""


def plan_of(text: str) -> SuitePlan:
    return expand(parse(text.encode(), "study.toml"), "study.toml", "study")


def refusal(text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        plan_of(text)
    assert caught.value.hint
    return caught.value


def test_rows_are_the_other_axes_and_arms_the_compared_one() -> None:
    plan = plan_of(MATRIX)
    assert [(row.workload, row.params.get("batch")) for row in plan.rows] == [
        ("train/lenet", 32), ("train/lenet", 64), ("train/trivial", 32), ("train/trivial", 64), ("op/gemm", None)
    ]  # fmt: skip
    assert {tuple(arm.text for arm in row.arms) for row in plan.rows} == {("host", "container")}
    assert plan.reference == "host"
    assert plan.cells == 10


def test_a_workload_without_the_parameter_of_an_axis_is_one_row() -> None:
    assert sum(row.workload == "op/gemm" for row in plan_of(MATRIX).rows) == 1


def test_a_workload_that_runs_as_one_rank_is_one_row_of_an_axis_of_ranks() -> None:
    plan = plan_of('workloads = ["train/lenet", "op/gemm"]\n[axes]\nranks = [2, 4]\n')
    assert [(row.workload, row.ranks) for row in plan.rows] == [("train/lenet", 2), ("train/lenet", 4), ("op/gemm", 1)]


def test_the_reference_is_the_first_arm_of_every_row_and_the_columns_keep_their_order() -> None:
    plan = plan_of(MATRIX.replace('compare = "place"', 'compare = "place"\nreference = "container"'))
    assert {row.arms[0].label for row in plan.rows} == {"container"}
    assert plan.arms == ("host", "container")


def test_a_compared_parameter_is_typed_into_the_arms() -> None:
    plan = plan_of('workloads = ["train/lenet"]\ncompare = "precision"\n[axes]\nprecision = ["fp32", "bf16"]\n')
    (row,) = plan.rows
    assert [arm.text for arm in row.arms] == ["host,precision=fp32", "host,precision=bf16"]
    assert [arm.label for arm in row.arms] == ["fp32", "bf16"]


def test_excluded_cells_are_left_out_by_arm_or_by_row() -> None:
    by_arm = plan_of(MATRIX + '[[exclude]]\nworkload = "lenet"\nbatch = 64\nplace = "container"\n')
    assert [len(row.arms) for row in by_arm.rows] == [2, 1, 2, 2, 2]
    by_row = plan_of(MATRIX + '[[exclude]]\nworkload = ["train/lenet", "train/trivial"]\nbatch = 64\n')
    assert [(row.workload, row.params.get("batch")) for row in by_row.rows] == [
        ("train/lenet", 32), ("train/trivial", 32), ("op/gemm", None)
    ]  # fmt: skip


def test_an_option_of_one_place_is_for_the_cells_there() -> None:
    text = 'workloads = ["train/lenet"]\n[axes]\nplace = ["host", "container"]\n[options]\nshm = "1g"\n'
    assert [row.place_options for row in plan_of(text).rows] == [{}, {"shm": "1g"}]


def test_secrets_are_stored_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stackmark.secrets_masking._put_aside", {})
    plan = plan_of('workloads = ["train/lenet"]\n[axes]\nplace = ["container,env=HF_TOKEN=hush"]\n'
                   '[options]\nenv = ["API_KEY=hush"]\n')  # fmt: skip
    assert "hush" not in plan.model_dump_json()
    assert plan.rows[0].arms[0].text == "container,env=HF_TOKEN=***"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('workloads = ["train/lenet"\nmargin = 1\n', 2),
        ('workloads = ["train/lenet"]\nworkload = "x"\n', 2),
        ('title = "x"\nworkloads = []\n', 2),
        ('workloads = ["train/lenet"]\n\nblocks = -1\n', 3),
        ('workloads = ["train/lenet"]\nblocks = "many"\n', 2),
        ('name = "a/b"\nworkloads = ["train/lenet"]\n', 1),
        ('workloads = ["train/lenet"]\n[axes]\nplace = ["host"]\nbatch = 8\n', 4),
    ],
)
def test_a_mistake_in_the_file_is_said_with_its_line(text: str, line: int) -> None:
    assert refusal(text).message.startswith(f"study.toml:{line}: ")


def test_a_value_that_may_be_of_several_kinds_is_refused_once() -> None:
    message = refusal('workloads = ["train/lenet"]\n[axes]\nbatch = [8, [16]]\n').message
    assert message.count("axes.batch.1") == 1
    assert not re.search(r"\b(str|int|float|bool)\b", message)


def test_a_kind_that_two_types_have_in_common_is_named_once() -> None:
    message = refusal('workloads = ["train/lenet"]\n[axes]\nbatch = [nan]\n').message
    assert message == "study.toml:3: axes.batch.0: must be text or a finite number or true or false, got nan"


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ('workloads = ["train/lenet"]\n[axes]\npresicion = ["fp32"]\n', "precision"),
        ('workloads = ["train/lenet"]\n[axes]\nbatch = []\n', "no cell"),
        ('workloads = ["train/lenet"]\n[axes]\nbatch = [1, 1]\n', "twice"),
        ('workloads = ["train/lenet"]\n[axes]\nbatch = ["x"]\n', "batch"),
        ('workloads = ["train/lenet"]\n[axes]\nbatch = [-1]\n', "batch"),
        ('workloads = ["train/lenet"]\n[axes]\nranks = [0]\n', "ranks"),
        ('workloads = ["train/lenet"]\n[axes]\nranks = [4097]\n', "4096"),
        ('workloads = ["op/gemm"]\n[axes]\nranks = [1, 2]\n', "one rank: op/gemm"),
        ('workloads = ["op/gemm"]\n[options]\nranks = 2\n', "one rank: op/gemm"),
        ('workloads = ["op/all-reduce"]\n', "several ranks"),
        ('workloads = ["train/lenet"]\n[axes]\nplace = ["hots"]\n', "host"),
        ('workloads = ["train/lenet"]\n[options]\nsechonds = 3\n', "seconds"),
        ('workloads = ["train/lenet"]\n[options]\nshm = "1g"\n', "shm"),
        ('workloads = ["train/lennet"]\n', "train/lenet"),
        ('workloads = ["lenet", "train/lenet"]\n', "twice"),
        ('workloads = ["train/lenet"]\ncompare = "place"\n', "one value"),
        ('workloads = ["train/lenet"]\ncompare = "plaze"\n[axes]\nplace = ["host", "container"]\n', "place"),
        ('workloads = ["train/lenet", "train/vgg16"]\ncompare = "workload"\n', "workload"),
        ('workloads = ["train/lenet"]\nreference = "host"\n', "compared axis"),
        (MATRIX.replace("[axes]", 'reference = "pod"\n[axes]'), "'pod'"),
        (MATRIX + '[[exclude]]\nworkload = ["train/lenet", "train/trivial", "op/gemm"]\n', "empty"),
        (MATRIX + "[[exclude]]\nbatch = 33\n", "33"),
        (MATRIX + "[[exclude]]\n", "exclude"),
        ('workloads = ["train/lenet"]\nmargin = "70%"\n', "margin"),
        ('workloads = ["train/lenet"]\nbudget = "soon"\n', "budget"),
        ('workloads = ["train/lenet"]\nmargin = "much"\n', "margin"),
        ('workloads = ["train/lenet"]\nbudget = -5\n', "budget"),
        ('workloads = ["train/lenet"]\nblocks = 2\nruns = 2\n', "runs"),
        ('workloads = ["train/lenet"]\ncolumns = ["batch"]\n', "columns"),
    ],
)
def test_what_cannot_be_is_refused_with_the_name_of_it(text: str, about: str) -> None:
    assert about in refusal(text).message


def test_a_budget_is_minutes_or_a_time() -> None:
    assert plan_of('workloads = ["train/lenet"]\nbudget = 90\n').budget_s == 5400
    assert plan_of('workloads = ["train/lenet"]\nbudget = "2h"\n').budget_s == 7200


def test_a_matrix_beyond_all_bounds_is_refused_before_it_is_written_out() -> None:
    numbers = ", ".join(map(str, range(1, 1001)))
    error = refusal(f'workloads = ["train/lenet"]\n[axes]\nbatch = [{numbers}]\nseed = [{numbers}]\n')
    assert f"{MOST_CELLS:,}" in error.message


def test_a_file_has_the_name_of_the_file_and_may_not_take_that_of_one_that_ships(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('workloads = ["train/lenet"]\n')
    assert read_file(mine).name == "mine"
    same = tmp_path / "quick.toml"
    same.write_text(named_suites()["quick"])
    assert read_file(same).digest == find_suite("quick").digest
    same.write_text('workloads = ["train/lenet"]\n')
    with pytest.raises(SpecError, match="quick"):
        read_file(same)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a = " + b"[" * 100_000, b"x" * (2 << 20)])
def test_a_file_that_is_no_suite_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=r"broken\.toml"):
        read_file(path)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_bytes(b'\xef\xbb\xbfworkloads = ["train/lenet"]\n')
    assert read_file(tmp_path / "study.toml").cells == 1


def test_a_folder_and_a_missing_file_are_sentences(tmp_path: Path) -> None:
    for name in (str(tmp_path) + "/", str(tmp_path / "none.toml")):
        with pytest.raises(SpecError):
            find_suite(name)


def test_the_digest_is_that_of_the_cells() -> None:
    assert plan_of(MATRIX).digest == plan_of(f'title = "Another title"\n{MATRIX}').digest
    assert plan_of(MATRIX).digest != plan_of(MATRIX.replace("64", "65")).digest
