"""`verdict --runs KEY=VALUE --against KEY=VALUE [--by KEY]`: chips and machines as the question, over one ledger or two."""

import json
import math
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from scipy import stats

import recorded
from asking import Answer, ask
from other_days import change
from stackmark.errors import Exit, SpecError
from stackmark.experiments.selecting import matching_values, question_of, read_conditions
from stackmark.ledger.store import Ledger

LOGS = Path(__file__).parent / "data" / "logs" / "tf_cnn"
TABLE = """model,gpu,precision,images_per_sec
resnet50,Tesla V100-SXM2-16GB,fp32,380
resnet50,Tesla V100-SXM2-16GB,fp16,780
resnet50,Tesla P100,fp32,220
resnet50,Tesla P100,fp16,300
vgg16,Tesla V100-SXM2-16GB,fp32,2300
vgg16,Tesla P100,fp32,14
vgg16,Tesla P100,fp16,15
"""
MAP = ("--map", "workload=model,chip=gpu,rate=images_per_sec")
CHIPS = ("--runs", "chip=V100", "--against", "chip=P100")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "ledger.sqlite3"))
    return tmp_path / "ledger.sqlite3"


@pytest.fixture
def table(file: Path, tmp_path: Path) -> Path:
    (tmp_path / "chips.csv").write_text(TABLE)
    assert ask("import", "--table", str(tmp_path / "chips.csv"), *MAP).code == 0
    return file


def shown(answer: Answer) -> dict[str, Any]:
    assert answer.out, answer.err
    found: dict[str, Any] = json.loads(answer.out)
    return found


def refused(*arguments: str) -> str:
    answer = ask("verdict", *arguments)
    assert (answer.code, answer.out) == (Exit.WRONG_USE, "")
    assert "Traceback" not in answer.err
    return answer.err


def h200_and_another(file: Path) -> None:
    """An experiment as it was recorded on an H200, and one whose runs are said to be of another machine."""
    with Ledger.open(str(file)) as book:
        recorded.load(book, "h200_host_container")
        other = recorded.load(book, "h200_host_container_pod")
    change(
        file,
        "UPDATE runs SET chip = 'NVIDIA A100', chip_uuid = 'GPU-other', machine_id = 'feed', boot_id = 'beef' "
        "WHERE experiment_id = ?", other,
    )  # fmt: skip


# --- which runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "wanted", "found"),
    [
        ("chip", "V100", ["Tesla V100-SXM2-16GB"]),
        ("chip", "tesla v100", ["Tesla V100-SXM2-16GB"]),
        ("chip", "A10", ["NVIDIA A10"]),
        ("chip", "*100*", ["Tesla V100-SXM2-16GB", "NVIDIA A100"]),
        ("chip", "H100", []),
        ("workload", "V100", []),
        ("machine", "tesla", ["Tesla V100-SXM2-16GB"]),
    ],
)
def test_a_chip_is_named_by_its_words_and_an_id_by_its_beginning(key: str, wanted: str, found: list[str]) -> None:
    assert matching_values(key, wanted, ["Tesla V100-SXM2-16GB", "NVIDIA A10", "NVIDIA A100"]) == found


def test_what_the_sides_name_with_different_values_is_the_question() -> None:
    asked = question_of({"chip": "P100", "workload": "w"}, {"chip": "V100", "workload": "w", "batch": "2"})
    assert (asked.keys, asked.labels, asked.is_about_chips) == (("chip",), ("P100", "V100"), True)
    assert not question_of({"precision": "fp32"}, {"precision": "fp16"}).is_about_chips


@pytest.mark.parametrize("text", ["chip", "chip=", "=V100", "chip=V100,,", "chip=V100,chip=P100"])
def test_a_condition_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--runs"):
        read_conditions([text], "--runs")


# --- one verdict --------------------------------------------------------------------------------------------------------


def test_the_cpu_and_gpu_of_the_classic_report_are_a_factor_of_145_apart(file: Path) -> None:
    for name, chip in (("v100_report_cpu", "unnamed CPU"), ("v100_report_gpu", "Tesla V100")):
        assert ask("import", str(LOGS / f"{name}.log"), "--workload", "train/resnet50", "--chip", chip).code == 0
    answer = ask("verdict", "--runs", "chip=V100", "--against", "chip=CPU")
    found = shown(ask("verdict", "--runs", "chip=V100", "--against", "chip=CPU", "--json"))
    (pair,) = found["comparisons"]
    assert (pair["word"], pair["interval_90"]) == ("FASTER", None)
    assert pair["ratio"] == pytest.approx(325.03 / 2.24)
    assert pair["chance_factor"] == pytest.approx(
        math.exp((math.log(325.03 / 2.24) + math.log(0.99)) / (stats.norm.ppf(0.95) * math.sqrt(2)))
    )
    assert found["selected_by"] == ["chip"]
    lines = answer.out.splitlines()
    names = [line.split()[0] for line in lines]
    # The word first and last; what else differs, and what is unknown, before the evidence.
    assert names[0] == names[-1] == "verdict"
    assert lines[0] == lines[-1]
    assert names[1:4] == ["differs", "unknown", "arm"]


def test_two_machines_are_compared_without_anyway_and_the_scope_names_them(file: Path) -> None:
    h200_and_another(file)
    sides = ("--runs", "chip=H200,place=host", "--against", "chip=A100,place=host")
    found = shown(ask("verdict", *sides, "--json"))
    (pair,) = found["comparisons"]
    # A series a side: other days were not seen.
    assert pair["kind"] == "series"
    assert "two machines" in found["scope"]
    assert {"NVIDIA H200", "NVIDIA A100"} == {arm["chip"] for arm in found["arms"]}
    change(
        file,
        "UPDATE runs SET machine_id = (SELECT machine_id FROM runs WHERE chip LIKE '%H200') WHERE machine_id = 'feed'",
    )
    assert "this machine" in shown(ask("verdict", *sides, "--json"))["scope"]


def test_runs_on_two_chips_that_were_not_selected_by_chip_are_still_refused(file: Path) -> None:
    h200_and_another(file)
    with Ledger.open(str(file)) as book:
        rows = [row for row in book.runs() if row.place == "host" and row.role == "measured"]
    one, other = (next(row.id for row in rows if row.chip and name in row.chip) for name in ("H200", "A100"))
    assert "chip=" in refused(one, "--against", other)
    by_experiment = [
        next(row.experiment_id for row in rows if row.chip and name in row.chip) for name in ("H200", "A100")
    ]
    sides = [f"experiment={name},place=host" for name in by_experiment]
    assert "A100" in refused("--runs", sides[0], "--against", sides[1])


def test_machines_may_be_the_question_too(file: Path) -> None:
    h200_and_another(file)
    with Ledger.open(str(file)) as book:
        h200 = next(row for row in book.runs() if row.chip == "NVIDIA H200")
    sides = ("--runs", f"machine={h200.ran_on[:6]},place=host", "--against", "machine=feed,place=host")
    assert shown(ask("verdict", *sides, "--json"))["selected_by"] == ["machine"]


def test_a_host_is_found_by_the_name_in_its_facts(file: Path) -> None:
    with Ledger.open(str(file)) as book:
        recorded.load(book, "h200_host_container")
    err = refused("--runs", "host=nowhere", "--against", "chip=H200")
    assert "values of host" in err


# --- row by row ---------------------------------------------------------------------------------------------------------


def test_chip_over_chip_has_a_row_for_each_value_that_both_have(table: Path) -> None:
    found = shown(ask("verdict", *CHIPS, "--by", "workload,precision", "--json"))
    assert [row["values"] for row in found["rows"]] == [
        {"workload": "train/resnet50", "precision": "fp16"},
        {"workload": "train/resnet50", "precision": "fp32"},
        {"workload": "train/vgg16", "precision": "fp32"},
    ]
    assert [row["comparison"]["ratio"] for row in found["rows"]] == pytest.approx([780 / 300, 380 / 220, 2300 / 14])
    # One run a side: a word from a factor of ten on.
    assert [row["comparison"]["word"] for row in found["rows"]] == ["INCONCLUSIVE", "INCONCLUSIVE", "FASTER"]
    assert all(row["comparison"]["family"] == 3 for row in found["rows"])
    assert len(found["left_out"]) == 1
    assert "fp16" in found["left_out"][0]


def test_precision_over_precision_is_the_transposed_table(table: Path) -> None:
    sides = ("--runs", "precision=fp16,workload=train/resnet50", "--against", "precision=fp32,workload=train/resnet50")
    found = shown(ask("verdict", *sides, "--by", "chip", "--json"))
    ratios = {row["values"]["chip"]: row["comparison"]["ratio"] for row in found["rows"]}
    assert ratios == pytest.approx({"Tesla P100": 300 / 220, "Tesla V100-SXM2-16GB": 780 / 380})
    assert found["selected_by"] == ["precision"]


def test_holm_decides_over_the_rows(file: Path) -> None:
    """Three rows with p near 4 %: each is a difference by itself, none of them together."""
    rows = ["model,gpu,precision,images_per_sec"]
    rates = {"A": (100, 101, 102), "B": (102.8, 103.9, 105.0)}
    for model in ("resnet50", "vgg16", "alexnet"):
        rows += [f"{model},{chip},fp32,{rate}" for chip, of_chip in rates.items() for rate in of_chip]
    path = file.parent / "holm.csv"
    path.write_text("\n".join(rows))
    assert ask("import", "--table", str(path), *MAP).code == 0
    dated = "UPDATE runs SET boot_id = 'one', machine_id = 'm'"
    change(file, dated)
    sides = ("--runs", "chip=B", "--against", "chip=A")
    alone = [
        shown(ask("verdict", "--runs", f"chip=B,workload=train/{name}", "--against", f"chip=A,workload=train/{name}", "--json"))
        for name in ("resnet50", "vgg16", "alexnet")
    ]  # fmt: skip
    logs = [[math.log(rate) for rate in rates[chip]] for chip in ("B", "A")]
    p = stats.ttest_ind(*logs, equal_var=False)
    assert alone[0]["comparisons"][0]["p_difference"] == pytest.approx(p.pvalue)
    assert 0.05 / 3 < p.pvalue < 0.05
    assert all(one["comparisons"][0]["difference"] == "faster" for one in alone)
    together = shown(ask("verdict", *sides, "--by", "workload", "--json"))
    assert [row["comparison"]["difference"] for row in together["rows"]] == [None, None, None]


def test_a_row_that_cannot_be_compared_says_why_and_the_others_are(file: Path) -> None:
    text = "model,gpu,precision,batch,images_per_sec\n"
    text += "resnet50,A,fp32,32,100\nresnet50,B,fp32,64,200\nvgg16,A,fp32,32,1\nvgg16,B,fp32,32,50\n"
    (file.parent / "batches.csv").write_text(text)
    assert ask("import", "--table", str(file.parent / "batches.csv"), *MAP).code == 0
    answer = ask("verdict", "--runs", "chip=B", "--against", "chip=A", "--by", "workload", "--json")
    assert answer.code == Exit.PART_FAILED
    first, second = shown(answer)["rows"]
    assert first["comparison"] is None
    assert "batch" in first["not_comparable"]
    assert second["comparison"]["word"] == "FASTER"
    both = ("--runs", "chip=B,batch=64", "--against", "chip=A,batch=32", "--by", "workload", "--json")
    (row,) = shown(ask("verdict", *both))["rows"]
    assert row["comparison"]["ratio"] == pytest.approx(2)


def test_the_table_is_words_markdown_and_junit(table: Path, tmp_path: Path) -> None:
    file = tmp_path / "verdict.xml"
    answer = ask("verdict", *CHIPS, "--by", "workload,precision", "--fail-on", "inconclusive", "--junit", str(file))
    assert answer.code == Exit.VERDICT_NAMED
    lines = answer.out.splitlines()
    assert lines[0] == lines[-1]
    assert sum(line.startswith("train/") for line in lines) == 3
    cases = ElementTree.fromstring(file.read_text()).findall(".//testcase")
    assert [case.find("failure") is not None for case in cases] == [True, True, False]
    from stackmark.api.verdicts import table_of_groups

    made = table_of_groups(["chip=V100"], ["chip=P100"], ["workload", "precision"])
    assert made.words == ("INCONCLUSIVE", "INCONCLUSIVE", "FASTER")
    rows = [line for line in made.markdown().splitlines() if line.startswith("|")]
    assert len(rows) == 5
    assert len({line.count("|") for line in rows}) == 1


# --- a spread that the ledger knows -------------------------------------------------------------------------------------


def test_one_log_a_side_takes_the_spread_of_each_chip_from_the_ledger(file: Path) -> None:
    """Three pairs of runs on either chip, of ours, give the bounds; the logs stay a statement about these logs."""
    (file.parent / "logs.csv").write_text(
        "model,gpu,precision,images_per_sec\nresnet50,A,fp32,100\nresnet50,B,fp32,120\n"
    )
    assert ask("import", "--table", str(file.parent / "logs.csv"), *MAP).code == 0
    sides = ("--runs", "chip=B,label=", "--against", "chip=A")
    assert ask("verdict", *sides).code == Exit.WRONG_USE
    pairs = "\n".join(
        f"resnet50,{chip},fp32,{rate}" for chip, apart in (("A", 1.0), ("B", 3.0)) for rate in (100, 100 + apart)
    )
    for number in range(3):
        path = file.parent / f"own{number}.csv"
        path.write_text(f"model,gpu,precision,images_per_sec\n{pairs}\n")
        assert ask("import", "--table", str(path), *MAP, "--again", "--label", "own").code == 0
    change(file, "UPDATE runs SET boot_id = 'b', machine_id = 'm' WHERE handle LIKE '%own%'")
    with Ledger.open(str(file)) as book:
        first = book.experiments()[-1].experiment.id
    sides = ("--runs", f"chip=B,experiment={first}", "--against", f"chip=A,experiment={first}")
    (pair,) = shown(ask("verdict", *sides, "--json"))["comparisons"]
    bound = math.sqrt(3 / stats.chi2.ppf(0.05, 3))
    errors = [math.log(1 + apart) / math.sqrt(2) * bound for apart in (0.01, 0.03)]
    half = stats.norm.ppf(0.95) * math.hypot(*errors)
    assert pair["assumed"]
    assert math.log(pair["interval_90"]["high"] / 1.2) == pytest.approx(half, rel=0.05)
    assert (pair["word"], pair["word_in_logs"]) == ("INCONCLUSIVE", "FASTER")


# --- two ledgers --------------------------------------------------------------------------------------------------------


def two_ledgers(tmp_path: Path) -> list[str]:
    files = []
    for name, chip, rate in (("a", "V100", 780), ("b", "P100", 30)):
        (tmp_path / f"{name}.csv").write_text(f"model,gpu,precision,images_per_sec\nresnet50,{chip},fp32,{rate}\n")
        files.append(str(tmp_path / f"{name}.sqlite3"))
        assert ask("import", "--table", str(tmp_path / f"{name}.csv"), *MAP, "--ledger", files[-1]).code == 0
    return files


def test_two_ledgers_are_searched_as_one(tmp_path: Path) -> None:
    first, second = two_ledgers(tmp_path)
    found = shown(ask("verdict", *CHIPS, "--ledger", first, "--ledger", second, "--json"))
    assert found["comparisons"][0]["ratio"] == pytest.approx(26)
    ids = [run["run_id"] for run in found["runs"]]
    by_id = shown(
        ask("verdict", ids[1], "--against", ids[0], "--anyway", "--ledger", first, "--ledger", second, "--json")
    )
    assert by_id["comparisons"][0]["ratio"] == found["comparisons"][0]["ratio"]
    assert "P100" in refused(*CHIPS, "--ledger", first)


def test_one_run_in_two_ledgers_counts_once_and_two_versions_of_it_are_refused(tmp_path: Path) -> None:
    first, second = two_ledgers(tmp_path)
    assert ask("import", first, "--ledger", second).code == 0
    both = (*CHIPS, "--ledger", first, "--ledger", second)
    assert shown(ask("verdict", *both, "--json"))["comparisons"][0]["count_b"] == 1
    change(Path(second), "UPDATE runs SET rate_per_s = 781 WHERE chip = 'V100'")
    err = refused(*both)
    assert first in err
    assert second in err


def test_several_ledgers_need_two_sides(tmp_path: Path) -> None:
    first, second = two_ledgers(tmp_path)
    for words in (("last",), ("last", "--against", "last")):
        assert "ledgers" in refused(*words, "--ledger", first, "--ledger", second)


# --- bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--runs", "chip=H100", "--against", "chip=P100"), ("chip=H100", "Tesla P100", "Tesla V100-SXM2-16GB")),
        (("--runs", "chip=V100,precision=int8", "--against", "chip=P100"), ("int8", "fp16, fp32")),
        (("--runs", "colour=red", "--against", "chip=P100"), ("colour", "precision")),
        (("--runs", "chip=V100", "--against", "chip=V100"), ("both sides",)),
        (("--runs", "chip=V100"), ("--runs", "--against")),
        (("--runs", "V100", "--against", "chip=P100"), ("--runs", "V100", "KEY=VALUE")),
        (("--runs", "chip=V100", "--against", "chip=P100"), ("--by workload,precision",)),
        ((*CHIPS, "--by", "colour"), ("--by", "colour")),
        ((*CHIPS, "--by", "chip"), ("--by chip",)),
        ((*CHIPS, "--by", ","), ("--by",)),
        (("last", "--runs", "chip=V100", "--against", "chip=P100"), ("last", "--runs")),
        (("--runs", "chip=V100", "--against", "chip=P100", "r-01"), ("chip=P100", "r-01")),
        (("last", "--by", "chip"), ("--by",)),
        (("--runs", "workload=train/none", "--against", "chip=P100"), ("train/none", "train/resnet50, train/vgg16")),
        (("--runs", "precision=fp16", "--against", "precision=fp32", "--by", "workload"), ("chip",)),
    ],
)  # fmt: skip
def test_a_wrong_question_is_refused_with_what_there_is(
    table: Path, words: tuple[str, ...], named: tuple[str, ...]
) -> None:
    err = refused(*words)
    assert [name for name in named if name not in err] == []


def test_a_selection_without_a_successful_run_says_so(table: Path) -> None:
    change(table, "UPDATE runs SET status = 'failed', failure_kind = 'x', rate_per_s = NULL WHERE chip LIKE '%V100%'")
    assert "result" in refused(*CHIPS)


# --- imports of several specs -------------------------------------------------------------------------------------------


def test_an_import_whose_arms_have_several_specs_is_compared_spec_by_spec(file: Path, tmp_path: Path) -> None:
    (tmp_path / "chips.csv").write_text(TABLE)
    answer = ask("import", "--table", str(tmp_path / "chips.csv"), *MAP, "--arm-column", "gpu")
    assert answer.code == 0, answer.err
    found = shown(ask("verdict", "last", "--json"))
    assert [row["comparison"]["ratio"] for row in found["rows"]] == pytest.approx([300 / 780, 220 / 380, 14 / 2300])
    assert found["experiment"]
    assert found["selected_by"] == ["chip"]
    (listed,) = shown(ask("experiments", "--json"))["experiments"]
    assert listed["verdicts"] == ["INCONCLUSIVE", "INCONCLUSIVE", "SLOWER"]
    report = ask("report", "last", "--format", "markdown").out
    assert f"stackmark verdict {found['experiment']}" in report


def test_an_import_of_one_arm_with_several_specs_proposes_the_table(table: Path) -> None:
    found = shown(ask("verdict", "last", "--json"))
    (command,) = found["instead"]
    words = shlex.split(command)[1:]
    assert ask(*words).code == 0
    assert "--by" in words
    assert ask("verdict", "last").out.startswith("verdict     NO VERDICT")
