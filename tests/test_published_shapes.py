"""Published times searched by an operator's sizes: the table that comes, and the sentence where none does."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from asking import ask, environment
from stackmark.errors import Exit


@pytest.fixture(autouse=True)
def no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "none.sqlite3"
    monkeypatch.setenv("STACKMARK_LEDGER", str(file))
    return file


def test_the_sizes_of_a_product_find_its_table() -> None:
    answer = ask("published", "search", "op/gemm", "--m", "7680", "--n", "48000", "--k", "2560")
    assert answer.code == Exit.DONE
    title, header, *lines = answer.out.splitlines()
    assert title == "op/gemm 7680×48000×2560"
    assert header.split() == ["ms", "chip", "precision", "sizes", "notes", "date", "source", "framework"]
    assert ["206.884", "P100", "fp32", "NN", "2018-05-21"] in [line.split()[:5] for line in lines]
    assert len([line for line in lines if "  DeepBench" in line]) == 29
    assert [line for line in lines if line.startswith("a  ") and "15 %" in line]


def test_words_choose_among_the_rows_of_these_sizes() -> None:
    answer = ask(
        "published", "search", "op/gemm P100 fp32", "--m", "7680", "--n", "48000", "--k", "2560", "--set", "training"
    )
    assert [line.split()[:3] for line in answer.out.splitlines()[2:]] == [
        ["206.884", "P100", "fp32"],
        ["208.996", "P100", "fp32"],
    ]


def test_a_part_of_a_shape_is_enough_and_what_differs_is_a_column() -> None:
    answer = ask("published", "search", "op/conv", "V100", "fp32", "--shape", "w=14,h=14,c=512,n=16,k=512")
    title, _, *lines = answer.out.splitlines()
    assert title == "op/conv 14×14×512 n=16 k=512 filter 3×3 pad 1 stride 1"
    assert [line.split()[:4] for line in lines] == [
        ["0.506", "V100", "fp32", "forward"],
        ["0.499", "V100", "fp32", "backward-inputs"],
        ["0.477", "V100", "fp32", "backward-weights"],
    ]


def test_for_programs_the_rows_have_their_caveats() -> None:
    said = json.loads(ask("published", "search", "op/gemm", "--shape", "m=512,n=24000,k=1536", "--json").out)
    assert (said["operator"], said["sizes"]) == ("op/gemm", {"m": 512, "n": 24000, "k": 1536})
    assert said["total"] == len(said["rows"]) == 28
    v100 = next(row for row in said["rows"] if row["chip"] == "NVIDIA V100" and row["precision"] == "fp16")
    assert all(size in v100["caveats"][0] for size in ("1530", "1536"))


def test_ordinary_words_search_both_tables() -> None:
    said = json.loads(ask("published", "search", "gemm", "V100", "--json", "--limit", "1000").out)
    assert said["total"] == 320
    assert {row["workload"] for row in said["rows"]} == {"op/gemm"}
    assert "DeepBench" in ask("published", "sources").out
    found = ask("published", "search", "V100 2019", "--limit", "2000").out
    assert "train/" in found
    assert "\n\nop/gemm" in found


def test_no_ordinary_result_was_lost_to_the_long_table() -> None:
    found = ask("published", "search", "resnet50", "V100", "--limit", "3").out
    assert "op/" not in found


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("gemm", "--m", "3"), ["operator"]),
        (("op/gem", "--m", "3"), ["'gem'", "gemm"]),
        (("op/conv", "--m", "3"), ["op/conv", "'m'"]),
        (("op/gemm", "--shape", "m"), ["--shape", "'m'"]),
        (("op/gemm", "--shape", ","), ["--shape"]),
        (("op/gemm", "--shape", "q=3"), ["op/gemm", "'q'"]),
        (("op/gemm", "--m", "many"), ["m", "op/gemm", "'many'"]),
        (("op/gemm", "--m", "0"), ["op/gemm", "9,007,199,254,740,991", "'0'"]),
        (("op/gemm", "--m", "5", "--shape", "m=5"), ["m"]),
        (("op/rnn", "--shape", "cell=grus"), ["cell", "op/rnn", "lstm", "'grus'"]),
        (("op/gemm", "--set", "trainig"), ["op/gemm", "'trainig'", "training"]),
        (("op/ceilings", "--set", "machine"), ["op/ceilings"]),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(arguments: tuple[str, ...], named: list[str]) -> None:
    answer = ask("published", "search", *arguments)
    assert (answer.code, answer.out) == (Exit.WRONG_USE, "")
    assert all(word in answer.err for word in named), answer.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("op/gemm", "--k", "2561"), ["op/gemm", "k=2561", "2560", "2816"]),
        (("op/gemm", "--m", "7680", "--k", "1760"), ["op/gemm", "m=7680 "]),
        (("op/gemm", "H200", "--m", "7680"), ["'H200'"]),
        (("op/attention", "--shape", "length=512"), ["op/attention"]),
        (("op/gemm", "--set", "transformer"), ["op/gemm", "transformer"]),
        (("op/conv", "--shape", "w=7,filter_w=99"), ["op/conv", "filter_w=99", "20"]),
    ],
)
def test_nothing_found_is_no_failure_and_says_what_there_is(arguments: tuple[str, ...], named: list[str]) -> None:
    answer = ask("published", "search", *arguments)
    assert (answer.code, answer.out) == (Exit.DONE, "")
    assert all(word in answer.err for word in named), answer.err


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "arguments",
    [
        ("op/gemm", "--m", "7680", "--n", "48000", "--k", "2560"),
        ("op/conv", "--shape", "w=14,h=14,c=512,n=16"),
        ("op/conv", "--set", "training", "--limit", "60"),
        ("op/rnn", "P100", "--shape", "cell=gru"),
        ("op/all-reduce", "--shape", "floats=16777217"),
        ("op/sparse-gemm", "--set", "inference_device"),
        ("V100", "2019"),
    ],
)
def test_on_a_screen_no_line_is_longer_than_it_and_no_column_is_cut(
    arguments: tuple[str, ...], columns: int, no_ledger: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stackmark", "published", "search", *arguments],
        env=environment(no_ledger, COLUMNS=str(columns), FORCE_COLOR="1"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line.rstrip() for line in _plain(done.stdout).splitlines()]
    assert max(map(len, lines)) <= columns
    assert "…" not in done.stdout
    if arguments[0].startswith("op/"):
        first = next(line for line in lines if line.split()[:1] == ["ms"])
        assert first.split()[:3] == ["ms", "chip", "precision"]


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
