"""Lists as a person uses them: real workers on the CPU go through a few small problems, are stopped, and go on."""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from asking import COMMAND, Answer, ask, ask_process, environment
from experiment_asking import is_a_sentence
from stackmark.errors import Exit
from stackmark.ledger.importers.deepbench import DeepBenchImporter
from stackmark.ledger.importers.found import Line
from stackmark.ledger.rows import RunDetail
from stackmark.ledger.store import Ledger
from worker_process import alive, eventually

# Small products: 512×16×512 and its like.
ROWS = "128,138,148"
QUICK = ("--row-seconds", "50ms", "--device", "cpu", "--precision", "fp32")
LIST = ("run", "op/gemm", "--set", "training", "--rows", ROWS, *QUICK)


@dataclass(frozen=True)
class Measured:
    ledger: Path
    answer: Answer


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """One real list of two runs, for all tests of this file. Nobody writes into its ledger."""
    ledger = tmp_path_factory.mktemp("measured") / "ledger.sqlite3"
    return Measured(ledger, ask_process(ledger, *LIST, "--runs", "2", "--debug"))


@pytest.fixture(autouse=True)
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / "ledger.sqlite3"
    monkeypatch.setenv("STACKMARK_LEDGER", str(file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = signal.getsignal(signal.SIGTERM)
    yield file
    signal.signal(signal.SIGTERM, before)


def rows_of(ledger: Path) -> list[RunDetail]:
    with Ledger.open(str(ledger)) as book:
        return book.runs_of(book.experiment("last").id)


def test_a_list_is_a_table_and_what_it_came_to(measured: Measured) -> None:
    answer = measured.answer
    assert answer.code == Exit.DONE, answer.err
    lines = answer.out.splitlines()
    *head, unit = lines[0].split()[:5]
    assert (head, unit[1:]) == (["#", "problem", "time", "±"], "FLOP/s")
    assert [line.split()[0] for line in lines[1:4]] == ROWS.split(",")
    named = {line.split()[0]: line for line in lines if line and not line[0].isspace()}
    assert all(figure in named["problems"] for figure in ("3 of", "160", f"--rows {ROWS}"))
    assert "2 runs)" in named["rate"]
    assert "geometric mean" in named["rows"]
    assert (
        named["threads"].split(maxsplit=1)[1].startswith(f"{len(os.sched_getaffinity(0))}, ")
        or "pinned" in named["threads"]
    )
    assert "float64" in named["checked"]
    assert "stackmark show" in named["stored"]
    assert "run 2/2" in answer.err
    assert answer.err.splitlines()[-1].endswith("3 rows")


def test_a_stored_list_is_shown_and_gone_on_with_without_running_anything(measured: Measured) -> None:
    rows = rows_of(measured.ledger)
    again = ask_process(measured.ledger, "show", rows[0].experiment_id)
    assert again.code == Exit.DONE
    whole = measured.answer.out.splitlines()
    shown = again.out.splitlines()
    assert shown[:4] == whole[:4]
    resumed = ask_process(measured.ledger, "resume", "last")
    assert (resumed.code, resumed.out) == (Exit.DONE, again.out)
    assert len(rows_of(measured.ledger)) == 2
    one = ask_process(measured.ledger, "show", rows[0].id)
    assert [line.split()[0] for line in one.out.splitlines()[1:4]] == ROWS.split(",")
    assert "rate  " in one.out
    assert "doubt" not in one.out


def test_the_command_to_repeat_a_list_types_every_choice(tmp_path: Path) -> None:
    chosen = ask("run", "op/gemm", "--set", "training", "--rows", ROWS, "--row-seconds", "50ms", "--runs", "1")
    assert chosen.code == Exit.DONE, chosen.err
    (line,) = [line for line in chosen.out.splitlines() if line.startswith("repeat")]
    words = shlex.split(line)[1:]
    assert {"--device", "--precision"} <= set(words)
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as book:
        before = book.runs_of(book.experiment("last").id)[0].spec_digest
        again = ask(*words[1:])
        assert again.code == Exit.DONE, again.err
        assert book.runs_of(book.experiment("last").id)[0].spec_digest == before


def test_json_has_every_row_with_every_number(measured: Measured) -> None:
    shown: dict[str, Any] = json.loads(
        ask_process(measured.ledger, "show", rows_of(measured.ledger)[0].experiment_id, "--json").out
    )
    assert [row["index"] for row in shown["rows"]] == [int(row) for row in ROWS.split(",")]
    for row in shown["rows"]:
        assert row["low_s"] < row["seconds"] < row["high_s"]
        assert row["known_by"] == "runs"
        assert row["tflop_per_s"] == pytest.approx(row["operations"] / row["seconds"] / 1e12)
        assert row["gb_per_s"] == pytest.approx(row["least_bytes"] / row["seconds"] / 1e9)
        assert row["error"] <= row["error_bound"]
        assert [one["samples"] > 0 for one in row["by_run"]] == [True, True]
    assert shown["throughput"]["unit"] == "TFLOP/s"
    rates = [run["rate_per_s"] for run in shown["runs"]]
    assert shown["throughput"]["rate_per_s"] == pytest.approx((rates[0] * rates[1]) ** 0.5, rel=1e-6)
    assert (shown["list"]["problems"], shown["list"]["of"], shown["list"]["whole_runs"]) == (3, 160, 2)


def test_deepbench_s_own_table_is_read_back(measured: Measured) -> None:
    answer = ask_process(measured.ledger, "show", "last", "--format", "deepbench")
    importer = DeepBenchImporter()
    lines = [Line(number, line, line) for number, line in enumerate(answer.out.splitlines(), 1)]
    found = [one for line in lines for one in importer.feed(line)]
    assert [(one.params["m"], one.params["n"], one.params["k"]) for one in found] == [
        (512, 16, 512), (512, 16, 512), (512, 32, 512)
    ]  # fmt: skip
    assert {one.params["precision"] for one in found} == {"fp32"}


def test_a_list_of_runs_says_what_it_was(measured: Measured) -> None:
    lines = ask_process(measured.ledger, "results").out.splitlines()
    assert "op/gemm" in lines[1]
    assert "FLOP/s" in lines[1]
    assert lines[1].endswith("done")


def test_a_problem_that_cannot_be_done_fails_as_a_row_and_the_others_go_on(ledger_file: Path) -> None:
    answer = ask("run", "op/gemm", "--rows", "45,128", "--precision", "int8", "--device", "cpu", "--row-seconds", "50ms",
                 "--runs", "1", "--json")  # fmt: skip
    assert answer.code == Exit.PART_FAILED, answer.err
    (result,) = json.loads(answer.out)["results"]
    assert result["list"]["failed"] == [45]
    bad, good = result["rows"]
    assert bad["failure"]["kind"] == "bad_parameter"
    assert all(figure in bad["failure"]["message"] for figure in ("m", "35", "8"))
    assert bad["seconds"] is None
    assert good["seconds"] > 0
    assert "row 45: " in answer.err
    assert "1 of 2" in ask("results").out.splitlines()[1].partition("done")[2]


def test_a_problem_without_room_says_its_size(ledger_file: Path) -> None:
    shape = ("--m", "900000", "--n", "900000", "--k", "64")
    answer = ask("run", "op/gemm", *shape, *QUICK, "--runs", "2")
    assert answer.code == Exit.RUN_FAILED
    assert "3.02e+03 GiB" in answer.out
    (row,) = rows_of(ledger_file)
    assert row.failure_kind == "out_of_host_memory"


def test_one_bad_precision_of_several_stops_no_other(ledger_file: Path) -> None:
    answer = ask("run", "op/gemm", "--m", "64", "--n", "64", "--k", "64", "--device", "cpu", "--precision", "fp8,fp32",
                 "--row-seconds", "50ms", "--runs", "1", "--json")  # fmt: skip
    assert answer.code == Exit.PART_FAILED
    first, second = json.loads(answer.out)["results"]
    assert "fp8" in first["error"]
    assert second["rows"][0]["seconds"] > 0


def test_two_arms_are_compared_by_the_list_s_rate_and_row_by_row(ledger_file: Path) -> None:
    answer = ask("compare", "op/gemm", "--rows", "128,148", *QUICK, "--arm", "host", "--arm", "host,threads=1",
                 "--blocks", "2", "--no-primers", "--json")  # fmt: skip
    assert answer.code == Exit.DONE, answer.err
    shown = json.loads(answer.out)
    assert [arm["unit"] for arm in shown["arms"]] == ["TFLOP/s"] * 2
    (pair,) = shown["lists"]
    assert [row["index"] for row in pair["rows"]] == [128, 148]
    ratios = [row["ratio"] for row in pair["rows"]]
    assert pair["geometric_mean"] == pytest.approx((ratios[0] * ratios[1]) ** 0.5)
    assert any(sentence.startswith("the heat:") for sentence in shown["held"])


# Stopped, killed, and gone on with


def driver(ledger: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(ledger),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


# A quick row, one of seconds, and a quick one: whoever sees the first stored stops it in the second.
SLOW = ("run", "op/gemm", "--rows", "3,4,128", *QUICK, "--runs", "1")


def rows_kept(ledger: Path) -> int:
    if not ledger.exists():
        return 0
    with Ledger.open(str(ledger)) as book:
        runs = book.runs()
        return sum('"event":"row"' in line for line in book.stream(runs[0].id)) if runs else 0


def resumed(ledger: Path) -> tuple[dict[str, Any], RunDetail, RunDetail, Answer]:
    """What `resume` says of the list, and its two runs."""
    answer = ask("resume", "last", "--json")
    assert answer.code == Exit.DONE, answer.err
    first, second = rows_of(ledger)
    shown = json.loads(answer.out)
    assert [one["index"] for one in shown["rows"]] == [3, 4, 128]
    assert [one["by_run"][0]["run"] for one in shown["rows"]] == [first.id, second.id, second.id]
    assert (first.pass_number, second.pass_number, second.piece, second.spec.params["rows"]) == (0, 0, 1, "4,128")
    return shown, first, second, answer


def test_interrupted_it_says_how_to_go_on_and_takes_the_missing_rows(ledger_file: Path) -> None:
    with driver(ledger_file, *SLOW) as process:
        eventually(lambda: rows_kept(ledger_file), within_s=60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (Exit.INTERRUPTED, b"")
    (row,) = rows_of(ledger_file)
    assert f"stackmark resume {row.experiment_id}\n" in err.decode()
    assert f"stackmark show {row.experiment_id}\n" in err.decode()
    assert f"stackmark resume {row.experiment_id}" in ask("show", row.experiment_id).out
    resumed(ledger_file)
    assert ask("show", row.experiment_id).out.count("2 pieces") == 1


def test_killed_with_its_driver_it_keeps_the_rows_that_were_stored_meanwhile(ledger_file: Path) -> None:
    with driver(ledger_file, *SLOW) as process:
        eventually(lambda: rows_kept(ledger_file), within_s=60)
        process.kill()
        process.communicate()
    (row,) = rows_of(ledger_file)
    eventually(lambda: not alive(int(str(row.handle["pid"]))))
    _, first, second, answer = resumed(ledger_file)
    assert f"{row.id} (op/gemm)" in answer.err
    assert (first.failure_kind, second.status) == ("lost", "done")


# Bad input


def test_what_is_no_list_has_nothing_to_try_again(measured: Measured) -> None:
    answer = ask("resume", "last", "--failed", "--ledger", str(measured.ledger))
    assert answer.code == Exit.DONE  # no row of it has failed
    assert len(rows_of(measured.ledger)) == 2


WRONG = {
    "an unknown set": (("op/gemm", "--set", "trainin"), "op/gemm has no set 'trainin'; did you mean training?"),
    "ceilings as a list": (("op/ceilings",), "op/ceilings has its own command"),
    "a row that does not exist": (("op/gemm", "--rows", "160"), "row 160 does not exist; this list has 160"),
    "rows backwards": (("op/gemm", "--rows", "9-3"), "'9-3' is a descending range"),
    "rows in words": (("op/gemm", "--rows", "all"), "--rows takes rows of the list"),
    "a negative row": (("op/gemm", "--rows", "-1"), "--rows takes rows of the list"),
    "a matrix's size of a convolution": (("op/conv", "--m", "4"), "--m belongs to op/gemm"),
    "half a matrix": (("op/gemm", "--m", "4"), "op/gemm needs n"),
    "a negative size": (("op/gemm", "--m", "-4", "--n", "4", "--k", "4"), "--m: "),
    "a size in words": (("op/gemm", "--m", "four"), "--m takes a whole number, got 'four'"),
    "a size of nothing": (("op/gemm", "--m", "0"), "--m must be at least 1"),
    "sizes of nothing": (("op/gemm", "--m", "8", "--n", "0", "--k", "0"), "--n and --k must be"),
    "a huge size": (("op/gemm", "--m", "9" * 30, "--n", "1", "--k", "1"), "--m: "),
    "a shape that is none": (("op/conv", "--shape", "56x56"), "'56x56' is not name=value"),
    "a shape with an unknown name": (("op/conv", "--shape", "w=56,hh=56"), "op/conv has no 'hh'"),
    "a filter larger than its image": (
        ("op/conv", "--shape", "w=1,h=1,c=1,n=1,k=1,filter_w=3,filter_h=3"), "larger than its padded image"
    ),
    "a shape and a size": (("op/gemm", "--shape", "m=1,n=1,k=1", "--k", "4"), "--shape and --k"),
    "a problem and a set": (("op/gemm", "--m", "1", "--n", "1", "--k", "1", "--set", "training"), "--set, not both"),
    "a precision nobody has": (("op/gemm", "--precision", "fp9"), "int8"),
    "a list of precisions with a bad one": (("op/gemm", "--precision", "fp32,fp9"), "fp9"),
    "a budget in words": (("op/gemm", "--budget", "soon"), "--budget: 'soon' is not a time"),
    "no time for a row": (("op/gemm", "--row-seconds", "0"), "--row-seconds"),
    "a parameter of training": (("op/gemm", "--batch", "4"), "op/gemm has no parameter 'batch'"),
    "a parameter of operators": (("train/lenet", "--rows", "0-3"), "train/lenet has no parameter 'rows'"),
    "a published row for a list": (("op/gemm", "--published", "V100"), "op/gemm is a list"),
    "two formats": (("op/gemm", "--format", "deepbench", "--json"), "--format and --json were both given"),
    "a table that DeepBench has not": (("op/copy", "--format", "deepbench"), "DeepBench has no table of op/copy"),
    "an unknown format": (("op/gemm", "--format", "csv"), "csv"),
    "an unknown operator": (("op/gem",), "did you mean op/gemm"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_bad_input_is_answered_at_once_with_a_sentence(what: str, ledger_file: Path) -> None:
    words, said = WRONG[what]
    answer = ask("run", *words)
    is_a_sentence(answer, Exit.WRONG_USE)
    assert said in answer.err
    assert not ledger_file.exists() or rows_kept(ledger_file) == 0


def test_a_precision_reaches_the_operator_s_own_parameter(ledger_file: Path) -> None:
    """fp8 is none of training's; here it is refused by the device, and not by another family's words."""
    answer = ask("run", "op/gemm", "--precision", "fp8", "--m", "64", "--n", "64", "--k", "64", "--device", "cpu")
    assert answer.code == Exit.WRONG_USE
    assert "fp8" in answer.err
    assert "train" not in answer.err


def test_what_the_catalogue_says_of_an_operator() -> None:
    lines = ask("workloads", "op/*").out.splitlines()
    gemm = next(line for line in lines if line.startswith("op/gemm "))
    assert "training 160," in gemm
    found = json.loads(ask("workloads", "op/conv", "--json").out)["workloads"]
    assert list(found[0]["sets"]) == ["training", "inference_server", "inference_device"]
    assert json.loads(ask("workloads", "train/lenet", "--json").out)["workloads"][0]["sets"] == {}


def test_help_says_of_a_name_what_it_means_to_each_family() -> None:
    text = " ".join(ask("run", "--help").out.split())
    assert "--precision fp32|tf32|bf16|fp16|fp64|fp8|int8" in text
    assert "In op/:" in text.partition("--precision fp32|")[2].partition(" --")[0]
    assert text.count("--precision fp32|") == 1
