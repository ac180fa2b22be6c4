"""Searching published results: a chip by any of its names, a model in any spelling, and what is said where nothing fits."""

import json
from pathlib import Path

import pytest

from asking import ask
from stackmark.errors import Exit, SpecError
from stackmark.published.chips import parse_chip
from stackmark.published.search import MOST_WORDS, search, understand, why_nothing
from stackmark.published.table import Published, load, load_all


@pytest.fixture(autouse=True)
def no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "none.sqlite3"))


def found(text: str, unit: str | None = None) -> list[Published]:
    return [hit.row for hit in search(load(), understand(text, load(), unit=unit))]


@pytest.mark.parametrize("chip", ["V100", "v100", "Tesla V100", "NVIDIA V100", "nvidia v100"])
def test_a_chip_is_found_by_what_people_call_it(chip: str) -> None:
    rows = found(f"resnet50 {chip}")
    assert len(rows) > 50
    assert {parse_chip(row.chip).model for row in rows} == {"V100"}


def test_a_name_with_its_memory_finds_that_memory_only() -> None:
    assert {row.chip for row in found("Tesla V100-SXM2-16GB")} == {"NVIDIA V100 16GB"}


def test_the_plain_card_comes_before_the_pcie_one() -> None:
    chips = [row.chip for row in found("H100 resnet50", unit="images/s") if row.count == 1]
    assert set(chips) == {"NVIDIA H100 80GB", "NVIDIA H100 80GB PCIe"}
    assert chips == sorted(chips, key=lambda name: name.endswith("PCIe"))


def test_a_chip_of_several_words_is_one_chip() -> None:
    assert {row.chip for row in found("rtx 4090")} == {"NVIDIA RTX 4090"}
    assert {row.chip for row in found("vgg16 RTX PRO 6000 Max-Q")} == {"NVIDIA RTX PRO 6000 Max-Q"}


@pytest.mark.parametrize("text", ["8x H200 llama2", "8xH200 llama2", "llama2 H200 x8", "llama2 8× h200"])
def test_the_number_of_devices_may_be_said(text: str) -> None:
    rows = found(text)
    assert rows
    assert {(row.count, row.chip) for row in rows} <= {(8, "NVIDIA H200"), (8, "NVIDIA H200 NVL")}


def test_punctuation_in_a_model_does_not_matter() -> None:
    assert {row.model for row in found("resnet50_v1.5 A100", unit="images/s")} == {"resnet50", "resnet50v1.5"}
    assert found("RESNET50V1.5 A100") == found("resnet50-v1.5 a100")


def test_mlperfs_resnet_is_found_as_what_it_is() -> None:
    assert any(row.source == "MLPerf Training v0.6" for row in found("resnet50 DGX-1 min"))


@pytest.mark.parametrize(
    ("words", "precisions"),
    [("amp", {"mixed"}), ("half", {"mixed", "bf16", "fp16"}), ("bf16", {"bf16"}), ("float32", {"fp32"})],
)
def test_a_precision_is_found_by_what_people_call_it(words: str, precisions: set[str]) -> None:
    assert {row.precision for row in found(f"resnet50 {words}")} <= precisions
    assert found(f"resnet50 {words}")


def test_a_year_and_a_source_are_words_too() -> None:
    rows = found("Lambda benchmark 2025")
    assert {(row.date[:4], row.source) for row in rows} == {("2025", "Lambda deeplearning-benchmark v2")}


def test_every_word_has_to_fit() -> None:
    both = found("bert A100 tf32")
    assert both
    assert {row.precision for row in both} == {"tf32"}
    assert set(both) < set(found("bert A100"))


def test_the_model_itself_comes_before_what_only_begins_like_it() -> None:
    rows = found("ssd", unit="images/s")
    models = [row.model for row in rows]
    assert {"ssd", "ssd300"} <= set(models)
    assert models.index("ssd300") > max(place for place, model in enumerate(models) if model == "ssd")


def test_a_typo_gets_the_names_that_are_near() -> None:
    assert "resnet50" in why_nothing(load(), understand("resnt50 V100", load()))


def test_words_that_fit_only_apart_are_counted_apart() -> None:
    said = why_nothing(load(), understand("alexnet H200", load()))
    assert f"'alexnet' {len(found('alexnet'))} " in said
    assert f"H200 {len(found('H200'))} " in said


def test_a_unit_nobody_has_is_a_sentence_with_the_near_ones() -> None:
    with pytest.raises(SpecError) as caught:
        understand("resnet50", load(), unit="image/s")
    assert "'image/s'" in caught.value.message
    assert "images/s" in caught.value.message


def test_a_book_is_no_query() -> None:
    with pytest.raises(SpecError) as caught:
        understand("word " * (MOST_WORDS + 1), load())
    assert f" {MOST_WORDS} " in caught.value.message


@pytest.mark.parametrize("text", ["", "...", "\x1b[31m", "x" * 10_000, "٣", "(", "\\", "'; DROP TABLE published; --"])
def test_any_text_is_searched_for_without_an_error(text: str) -> None:
    query = understand(text, load())
    search(load(), query)
    why_nothing(load(), query)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_with_all_that_tells_a_number() -> None:
    answer = ask("published", "search", "resnet50 V100", "--limit", "3")
    assert answer.code == Exit.DONE
    header, *lines = answer.out.splitlines()
    assert header.split() == ["value", "unit", "what", "chip", "precision", "batch", "framework", "date", "source"]
    assert len(lines) == 3
    assert lines[0].split()[:3] == ["369", "images/s", "train/resnet50_v1.5"]
    assert "3 of " in answer.err


def test_words_need_no_quotes() -> None:
    assert ask("published", "search", "resnet50", "V100").out == ask("published", "search", "resnet50 V100").out


def test_for_programs_there_is_one_object_with_the_whole_rows() -> None:
    said = json.loads(ask("published", "search", "minigo DGX-1", "--json", "--limit", "1").out)
    assert said["total"] == 2
    (row,) = said["rows"]
    assert (row["value"], row["unit"], row["extra"]["system"], row["added"]) == (27.39, "min", "DGX-1", None)


def test_nothing_found_is_no_failure_and_says_why() -> None:
    answer = ask("published", "search", "resnt50")
    assert (answer.code, answer.out) == (Exit.DONE, "")
    assert "resnet50" in answer.err


def test_a_mistyped_part_of_the_command_gets_the_near_ones() -> None:
    answer = ask("published", "serch", "x")
    assert answer.code == Exit.WRONG_USE
    assert " search " in answer.err


def test_the_sources_add_up_to_the_table() -> None:
    said = json.loads(ask("published", "sources", "--json").out)
    assert sum(source["rows"] for source in said["sources"]) == len(load_all())
    assert ask("published", "sources").err == f"{len(load_all()):,} rows\n"


def test_a_ledger_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    answer = ask("published", "search", "resnet50", "--ledger", str(tmp_path / "gone.sqlite3"))
    assert answer.code == Exit.LEDGER_FAILED
