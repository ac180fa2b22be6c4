"""Tables (CSV) become runs: a row each, by columns that are named or guessed; what cannot be read is a sentence with its line."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_ind

from asking import Answer, ask
from stackmark.errors import SpecError
from stackmark.ledger.importers.table_columns import TableOptions, find_columns, read_map

PLAIN = """model,gpu,gpus,images_per_sec,batch_size,dtype
resnet50,Tesla T4,1,124.77,64,float32
resnet50,Tesla T4,2,242.60,64,float32
vgg16,Tesla T4,1,83.1,32,fp16
"""


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.sqlite3")


def imported(ledger: str, data: str | bytes, *arguments: str) -> Answer:
    path = Path(ledger).with_name("results.csv")
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return ask("import", "--table", str(path), *arguments, "--ledger", ledger, "--json")


def runs(answer: Answer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(answer.out)["runs"]
    return found


def stored(ledger: str) -> int:
    if not Path(ledger).exists():
        return 0
    return len(json.loads(ask("results", "--ledger", ledger, "--json").out)["runs"])


def test_every_row_is_a_run_with_what_its_columns_say(ledger: str) -> None:
    answer = imported(ledger, PLAIN)
    assert answer.code == 0, answer.err
    assert [
        (
            run["workload"],
            run["chip"],
            run["ranks"],
            run["rate_per_s"],
            run["rate_unit"],
            run["batch"],
            run["precision"],
        )
        for run in runs(answer)
    ] == [
        ("train/resnet50", "Tesla T4", 1, 124.77, "images/s", 64, "fp32"),
        ("train/resnet50", "Tesla T4", 2, 242.6, "images/s", 64, "fp32"),
        ("train/vgg16", "Tesla T4", 1, 83.1, "images/s", 32, "fp16"),
    ]


def test_what_was_guessed_is_told(ledger: str) -> None:
    (file,) = json.loads(imported(ledger, PLAIN).out)["files"]
    assert "images_per_sec as the rate in images/s" in file["notes"][0]
    told = ask("import", "--table", str(Path(ledger).with_name("results.csv")), "--again", "--ledger", ledger)
    assert file["notes"][0] in told.err


def test_ranks_are_listed_and_exported(ledger: str) -> None:
    imported(ledger, PLAIN)
    listed = ask("results", "--ledger", ledger).out.splitlines()
    assert "ranks" in listed[0].split()
    exported = csv.DictReader(io.StringIO(ask("export", "--format", "csv", "--ledger", ledger).out))
    assert sorted(row["ranks"] for row in exported) == ["1", "1", "2"]


def test_a_list_of_single_devices_has_no_column_of_ranks(ledger: str) -> None:
    imported(ledger, "workload,qps\nresnet50,10\n")
    assert "ranks" not in ask("results", "--ledger", ledger).out.splitlines()[0].split()


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("rate=speed,workload=net,chip=hw", ("train/a", "H200", 5.0)),
        ("workload=net,rate=Other Speed", ("train/a", None, 7.0)),  # a column is found whatever its case
    ],
)
def test_columns_are_named_by_hand(columns: str, expected: tuple[str, str, float], ledger: str) -> None:
    answer = imported(ledger, "net,hw,speed,other speed\na,H200,5,7\n", "--map", columns, "--unit", "img/sec")
    (run,) = runs(answer)
    assert (run["workload"], run["chip"], run["rate_per_s"]) == expected
    assert run["rate_unit"] == "images/s"


def test_a_column_that_is_guessed_can_be_left_out(ledger: str) -> None:
    assert runs(imported(ledger, PLAIN, "--map", "chip=-"))[0]["chip"] is None


def test_further_parameters_are_columns_too(ledger: str) -> None:
    data = "model,images/sec,Optimizer,grad accum\nx,5,sgd,4\n"
    (run,) = runs(imported(ledger, data, "--map", "param.optimizer=Optimizer,param.accumulate=grad accum"))
    assert run["spec"]["params"] == {"optimizer": "sgd", "accumulate": 4}


@pytest.mark.parametrize(
    ("header", "cell", "unit", "figure"),
    [
        ("time_s", "0.2", "s", 0.2),
        ("latency (ms)", "3.5", "ms", 3.5),
        ("minutes", "115.22", "min", 115.22),
        ("Time [min]", "22.36", "min", 22.36),
    ],
)
def test_of_times_less_is_better(header: str, cell: str, unit: str, figure: float, ledger: str) -> None:
    (run,) = runs(imported(ledger, f"model,{header}\nx,{cell}\n"))
    assert (run["figure_value"], run["figure_unit"], run["higher_is_better"]) == (pytest.approx(figure), unit, False)


@pytest.mark.parametrize(
    ("header", "unit"),
    [
        ("Images/sec", "images/s"), ("img/s", "images/s"), ("total images/sec", "images/s"), ("tokens_per_second", "tokens/s"),
        ("QPS", "queries/s"), ("Throughput (samples/s)", "samples/s"), ("TFLOPS", "TFLOP/s"), ("seq/s", "sequences/s"),
    ],
)  # fmt: skip
def test_the_unit_of_a_rate_is_in_its_header(header: str, unit: str) -> None:
    columns = find_columns(["model", header, "stddev"], TableOptions(), "a.csv")
    assert (columns.index["rate"], columns.unit) == (1, unit)


def test_a_column_of_units_decides_row_by_row(ledger: str) -> None:
    answer = imported(ledger, "model,value,unit\na,5,img/s\nb,22.36,min\n")
    assert [(run["workload"], run["figure_unit"], run["higher_is_better"]) for run in runs(answer)] == [
        ("train/a", "images/s", True),
        ("fit/b", "min", False),
    ]


@pytest.mark.parametrize(
    "data",
    [
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "\t"),
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\n\n"),
        "\ufeff" + PLAIN,
        "sep=;\n" + PLAIN.replace(",", ";"),
        PLAIN.replace("resnet50", '"resnet50"'),
        PLAIN.encode("utf-16"),
        "\n\n" + PLAIN.rstrip("\n"),
    ],
    ids=[
        "semicolons",
        "tabs",
        "CR LF",
        "empty lines",
        "byte order mark",
        "sep=",
        "quotes",
        "UTF-16",
        "no last newline",
    ],
)
def test_spellings_of_one_table_give_the_same_runs(data: str | bytes, ledger: str, tmp_path: Path) -> None:
    answer = imported(ledger, data)
    assert answer.code == 0, answer.err
    assert [run["rate_per_s"] for run in runs(answer)] == [124.77, 242.6, 83.1]


def test_a_table_that_is_not_utf_8_is_read_as_spreadsheets_write_it(ledger: str) -> None:
    answer = imported(ledger, "model,images/s,label\nx,5,für alle\n".encode("cp1252"))
    assert runs(answer)[0]["handle"]["label"] == "für alle"
    assert len(json.loads(answer.out)["files"][0]["notes"]) == 2


def test_a_decimal_comma_is_read_where_semicolons_separate(ledger: str) -> None:
    assert runs(imported(ledger, "model;images/s\nx;124,77\n"))[0]["rate_per_s"] == 124.77


@pytest.mark.parametrize(
    "data", ['model,images/s\nx,"124,77"\n', "model\timages/s\nx\t1,247\n", "model;images/s\nx;1,5\ny;2.5\n"]
)
def test_a_comma_that_may_be_a_thousand_is_refused_before_anything_is_stored(data: str, ledger: str) -> None:
    answer = imported(ledger, data)
    assert (answer.code, "line 2" in answer.err, "Traceback" in answer.err) == (2, True, False), answer.err
    assert stored(ledger) == 0


def test_a_cell_that_looks_like_a_formula_is_text_and_leaves_as_text(ledger: str) -> None:
    (run,) = runs(imported(ledger, "model,gpu,images/s\nx,=cmd|' /C calc'!A0,5\n"))
    assert run["chip"] == "=cmd|' /C calc'!A0"
    (row,) = csv.DictReader(io.StringIO(ask("export", "--format", "csv", "--ledger", ledger).out))
    assert row["chip"].startswith("'=")


def test_a_quoted_cell_may_hold_the_delimiter_and_a_new_line(ledger: str) -> None:
    answer = imported(ledger, 'model,gpu,images/s\nx,"T4,\nPCIe",5\ny,T4,nan\n')
    assert [run["chip"] for run in runs(answer)] == ["T4,\nPCIe", "T4"]
    assert "line 4" in runs(answer)[1]["failure_message"]


# Bad rows


@pytest.mark.parametrize(
    ("cell", "kind"),
    [("nan", "not_finite"), ("-3", "bad_number"), ("0", "bad_number"), ("5 ± 1", "bad_number"), ("", "no_figure"),
     ("N/A", "no_figure"), ("OOM", "out_of_device_memory"), ("=A1*2", "bad_number"), ("1e400", "bad_number")],
)  # fmt: skip
def test_a_row_without_a_number_is_a_failed_run_with_its_line(cell: str, kind: str, ledger: str) -> None:
    answer = imported(ledger, f"model,images/s\na,5\nb,{cell}\n")
    good, bad = runs(answer)
    assert (answer.code, good["status"], bad["status"], bad["failure_kind"]) == (7, "done", "failed", kind)
    assert "line 3" in bad["failure_message"]


@pytest.mark.parametrize(
    "row",
    ["b,5,T4,8", "b", ",5,T4", "b,1,5,T4", "字,5,T4"],
    ids=["more cells", "fewer cells", "no workload", "decimal comma", "no name of a workload"],
)
def test_a_row_that_is_none_is_named_with_its_line_and_the_others_are_imported(row: str, ledger: str) -> None:
    answer = imported(ledger, f"model,images/s,gpu\na,5,T4\n{row}\nc,6,T4\n")
    assert (answer.code, [run["workload"] for run in runs(answer)]) == (7, ["train/a", "train/c"]), answer.err
    (refused,) = json.loads(answer.out)["refused"]
    assert "line 3" in refused["error"]


def test_a_date_that_is_two_days_is_not_guessed(ledger: str) -> None:
    answer = imported(ledger, "model,images/s,date\na,5,2020-10-23\nb,6,3/4/2020\nc,7,2019-11\n")
    assert answer.code == 0
    assert [any("date-not-read" in flag for flag in run["flags"]) for run in runs(answer)] == [False, True, False]


@pytest.mark.parametrize(
    ("data", "arguments", "named"),
    [
        ("a,b\n1,2\n", (), "--map"),
        ("model,images/s,samples/s\nx,1,2\n", (), "images/s, samples/s"),
        ("model,throughput\nx,1\n", (), "--unit"),
        ("images/s\n5\n", (), "--workload"),
        ("model,images/s\n", (), "no rows"),
        ("model,images/s\nx,OOM\n", (), "line 2"),
        ('model,images/s\nx,"5\n', (), "line 2"),
        ("model,images/s\nx,5\n", ("--map", "rate=image/s"), "columns: model, images/s"),
        ("model,images/s\nx,5\n", ("--map", "speed=images/s"), "'speed'"),
        ("model,images/s\nx,5\n", ("--map", "rate"), "'rate'"),
        ("model,images/s\nx,5\n", ("--map", "rate=images/s,time=model"), "--map"),
        ("model,model,images/s\nx,x,5\n", ("--map", "workload=model"), "2 columns"),
        ("model,images/s,gpu\nx,5,T4\n", ("--chip", "V100"), "'T4'"),
        ("model,images/s\nx,5\ny,6\n", ("--workload", "train/z"), "train/x, train/y"),
        ("model,images/s\nx,5\n", ("--format", "tf-cnn"), "--table"),
        ("model,images/s\nx,5\n", ("--arm-column", "arm"), "'arm'"),
        (",".join(f"c{i}" for i in range(1001)) + "\n1\n", (), "1,001 columns"),
        ("model,images/s\n" + "x,5\n" * 10_001, (), "10,000 rows"),
        ("model,images/s\n" + "x" * 70_000 + ",5\n", (), "64 KiB"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_read_is_a_sentence_and_nothing_is_stored(
    data: str, arguments: tuple[str, ...], named: str, ledger: str
) -> None:
    answer = imported(ledger, data, *arguments)
    assert (answer.code, named in answer.err, "Traceback" in answer.err) == (2, True, False), answer.err
    assert stored(ledger) == 0


@pytest.mark.parametrize("option", [("--map", "rate=x"), ("--unit", "s"), ("--arm-column", "x")])
def test_options_of_tables_ask_for_the_table(option: tuple[str, str], ledger: str, tmp_path: Path) -> None:
    answer = ask("import", str(tmp_path / "a.csv"), *option, "--ledger", ledger)
    assert (answer.code, "--table" in answer.err) == (2, True)


def test_a_column_name_may_hold_a_comma() -> None:
    assert read_map(["rate=images, per sec,workload=model"]) == {"rate": "images, per sec", "workload": "model"}
    with pytest.raises(SpecError):
        read_map(["rate=a,rate=b"])


def test_a_table_is_imported_once_unless_asked_again(ledger: str) -> None:
    imported(ledger, PLAIN)
    again = imported(ledger, PLAIN)
    assert (again.code, "--again" in again.err, stored(ledger)) == (2, True, 3)
    assert imported(ledger, PLAIN, "--again").code == 0


# Arms

ARMS = "where,model,images/s\n" + "".join(
    f"{where},{model},{rate}\n"
    for model, rates in (("resnet50", (124.77, 125.76, 126.95, 125.07)), ("vgg16", (83.0, 83.4, 60.1, 60.3)))
    for where, rate in zip(("Bare metal", "Bare metal", "container", "container"), rates, strict=True)
)


def test_the_arms_of_a_table_are_compared_for_each_spec(ledger: str) -> None:
    answer = imported(ledger, ARMS, "--arm-column", "where")
    assert answer.code == 0, answer.err
    verdicts = json.loads(answer.out)["verdicts"]
    (first,), (second,) = (one["comparisons"] for one in verdicts)
    logs = [[math.log(rate) for rate in rates] for rates in ((126.95, 125.07), (124.77, 125.76))]
    interval = ttest_ind(*logs, equal_var=False).confidence_interval(0.90)
    assert first["ratio"] == pytest.approx(math.exp(sum(logs[0]) / 2 - sum(logs[1]) / 2))
    assert first["interval_90"]["low"] == pytest.approx(math.exp(interval.low))
    assert second["ratio"] == pytest.approx(math.sqrt(60.1 * 60.3 / 83.0 / 83.4))


def test_the_arms_of_one_workload_are_one_verdict(ledger: str) -> None:
    answer = imported(ledger, "".join(ARMS.splitlines(keepends=True)[:5]), "--arm-column", "where")
    (found,) = json.loads(answer.out)["comparisons"]
    assert (found["a"], found["b"]) == ("Bare metal", "container")


def test_three_arms_are_refused_with_their_names(ledger: str) -> None:
    answer = imported(ledger, ARMS + "pod,vgg16,5\n", "--arm-column", "where")
    assert (answer.code, "bare-metal, container, pod" in answer.err, stored(ledger)) == (2, True, 0)


def test_a_spec_that_one_arm_lacks_is_said_and_the_others_are_compared(ledger: str) -> None:
    answer = imported(ledger, ARMS + "container,alexnet,5\n", "--arm-column", "where")
    assert answer.code == 0
    assert "train/alexnet" in answer.err
    assert len(json.loads(answer.out)["verdicts"]) == 2


def test_both_arms_of_a_table_are_one_experiment_with_one_verdict(ledger: str) -> None:
    answer = imported(ledger, "".join(ARMS.splitlines(keepends=True)[:5]), "--arm-column", "where")
    (first,) = json.loads(answer.out)["comparisons"]
    stored_runs = json.loads(ask("results", "--ledger", ledger, "--json").out)["runs"]
    assert len({run["experiment_id"] for run in stored_runs}) == 1
    assert {(run["arm"], run["place"]) for run in stored_runs} == {(0, "bare-metal"), (1, "container")}
    (again,) = json.loads(ask("verdict", "last", "--ledger", ledger, "--json").out)["comparisons"]
    assert again["ratio"] == first["ratio"]
    assert ask("report", "last", "--format", "markdown", "--ledger", ledger).code == 0


def test_the_arms_of_several_workloads_are_one_experiment(ledger: str) -> None:
    found = json.loads(imported(ledger, ARMS + "container,alexnet,5\n", "--arm-column", "where").out)
    stored_runs = json.loads(ask("results", "--ledger", ledger, "--json").out)["runs"]
    assert {run["experiment_id"] for run in stored_runs} == {found["experiment"]}
    assert found["not_compared"] == [run["id"] for run in stored_runs if run["workload"] == "train/alexnet"]


def test_one_shared_workload_among_several_is_compared(ledger: str) -> None:
    lines = ARMS.splitlines(keepends=True)[:5]
    answer = imported(ledger, "".join(lines) + "container,alexnet,5\n", "--arm-column", "where")
    assert answer.code == 0, answer.err
    assert "train/alexnet" in answer.err
    assert len(json.loads(answer.out)["comparisons"]) == 1
