"""A result held against a published number: which row is chosen, what differs, how sure, and that a typo is found first."""

import json
import math
import re
from pathlib import Path

import pytest
from scipy import stats

from asking import ask, ask_process
from refusing import refused
from stackmark.errors import Exit
from stackmark.published.lookup import (
    UNCERTAINTY,
    against,
    choose,
    find_reference,
    how_sure,
    near,
    neighbours,
    published_name,
    sources,
)
from stackmark.published.near import Match
from stackmark.published.table import Published, load
from stackmark.spec import Spec

V15 = "train/resnet50_v1.5"


def spec(workload: str = V15, **more: str | int) -> Spec:
    params: dict[str, str | int] = {"batch": 256, "precision": "bf16", "data": "device", "mode": "train"}
    return Spec(workload=workload, params={**params, "device": "cuda:0", **more})


def chosen(text: str, what: Spec, chip: str = "NVIDIA H200") -> Published:
    return matched(text, what, chip).row


def matched(text: str, what: Spec, chip: str = "NVIDIA H200") -> Match:
    reference = find_reference(text, what.workload, what.params, "images/s")
    match = choose(reference, what, "images/s", chip, "PyTorch 2.13")
    assert match is not None
    return match


# --- which row ----------------------------------------------------------------------------------------------------------


def test_the_row_of_the_chip_that_was_asked_for_with_the_nearest_recipe_is_chosen() -> None:
    assert chosen("NVIDIA H200", spec()).value == 3079
    assert chosen("H200", spec(precision="fp32")).value == 2259


def test_the_chip_is_the_one_asked_for_and_not_the_one_it_ran_on() -> None:
    row = chosen("V100", spec(), chip="NVIDIA H200")
    assert row.chip.startswith("NVIDIA V100")
    assert row.count == 1


def test_where_only_a_relation_of_the_workload_was_published_it_is_taken_and_said() -> None:
    match = matched("NVIDIA H200", spec("train/resnet50"))
    assert match.distance[0], "a relation of the workload"
    assert match.differs[0].startswith("resnet50 v1.5")


def test_words_beside_the_chip_narrow_it_down() -> None:
    assert chosen("A100 MXNet", spec()).framework.startswith("MXNet")


def test_a_forward_pass_is_compared_with_inference() -> None:
    assert published_name(V15, {"mode": "forward"}) == "infer/resnet50_v1.5"
    assert chosen("RTX 4090", spec(mode="forward")).task == "inference"


def test_rows_of_training_are_nothing_to_a_forward_pass() -> None:
    reference = find_reference("H200", V15, {}, "images/s")
    assert choose(reference, spec(mode="forward"), "images/s", "NVIDIA H200", None) is None


def test_where_nothing_fits_the_chips_that_do_are_named() -> None:
    with refused("--published", "train/alexnet", "'H200'", "NVIDIA P100, NVIDIA K80"):
        find_reference("H200", "train/alexnet", {}, "images/s")


def test_a_workload_that_nobody_published_is_a_sentence() -> None:
    with refused("train/gpt2", "sequences/s", "stackmark published search"):
        find_reference("H200", "train/gpt2", {}, "sequences/s")


# --- how it compares ----------------------------------------------------------------------------------------------------


def test_the_comparison_is_students_one_sample_over_the_logarithms() -> None:
    rates = [3100.0, 3150.0, 3080.0, 3120.0, 3095.0]
    match = matched("H200", spec())
    found = against("this", rates, match)
    logs = [math.log(rate / 3079) for rate in rates]
    mean, error = sum(logs) / 5, stats.sem(logs)
    low, high = stats.t.interval(0.9, 4, loc=mean, scale=error)
    assert found.comparison.interval_90 is not None
    assert found.comparison.ratio == pytest.approx(math.exp(mean))
    assert found.comparison.interval_90.low == pytest.approx(math.exp(low))
    assert found.comparison.interval_90.high == pytest.approx(math.exp(high))
    assert (found.comparison.margin, found.comparison.word) == (0.05, "EQUIVALENT")


def test_a_number_of_another_recipe_is_context() -> None:
    match = matched("H200", spec())
    assert match.differs
    found = against("this", [3000.0, 3001.0], match)
    assert found.context
    assert UNCERTAINTY in found.comparison.sentence


# --- times to a quality --------------------------------------------------------------------------------------------------


def test_minutes_of_mlperf_stand_next_to_a_training_to_the_same_target() -> None:
    what = spec("fit/ssd", preset="full", batch=120)
    reference = find_reference("DGX-1 v0.6", what.workload, what.params, "1/min")
    match = choose(reference, what, "1/min", "NVIDIA V100 16GB", None)
    assert match is not None
    assert (match.row.value, match.row.unit, match.row.count) == (22.36, "min", 8)
    # The ledger has times as reciprocals: 44.72 min is half as fast.
    found = against("this", [1 / 44.72, 1 / 44.72], match)
    assert found.comparison.ratio == pytest.approx(0.5)
    assert found.comparison.word == "SLOWER"
    first, *_ = neighbours(what, 1 / 44.72, "1/min", "NVIDIA V100 16GB", None)
    assert {one.row.model for one in near(what, "1/min", None, None, limit=99)} == {"ssd"}
    assert first.ratio == pytest.approx(44.72 / first.value)


def test_the_tiny_preset_stands_next_to_mlperfs_minutes_only_where_they_are_named() -> None:
    what = spec("fit/ssd", preset="tiny")
    assert near(what, "1/min", "NVIDIA V100 16GB", None) == []
    match = choose(find_reference("DGX-1", what.workload, what.params, "1/min"), what, "1/min", "NVIDIA V100", None)
    assert match is not None
    assert match.differs[0].kind == "preset"  # type: ignore[attr-defined]


def test_a_task_that_nobody_published_is_a_sentence_in_the_figures_own_unit() -> None:
    with refused("fit/ncf", " min", "stackmark published search"):
        find_reference("DGX-1", "fit/ncf", {}, "1/min")


# --- how sure -----------------------------------------------------------------------------------------------------------


def test_another_chip_tells_the_size_of_the_number_only() -> None:
    (match,) = near(spec(), "images/s", "Some New Chip 9000", None, limit=1)
    assert match.distance[1], "far from the chip"
    assert how_sure(match)


def test_the_same_chip_says_how_many_things_differ() -> None:
    (match,) = near(spec(), "images/s", "NVIDIA H200", "PyTorch 2.13", limit=1)
    assert match.differs
    assert re.findall(r"\d+", how_sure(match)) == [str(len(match.differs))]


def test_neighbours_have_the_ratio_the_differences_and_how_sure_they_are() -> None:
    first, *_ = neighbours(spec(), 6158.0, "images/s", "NVIDIA H200", "PyTorch 2.13", arm="host")
    assert (first.value, first.ratio, first.arm) == (3079, 2.0, "host")
    assert any({"fp16", "bf16"} <= set(words.split()) for words in first.differs)
    assert first.sure.endswith(UNCERTAINTY)


def test_a_workload_without_batch_and_precision_has_no_neighbours_and_no_error() -> None:
    assert neighbours(Spec(workload="command/own", params={"cmd": "true"}), 1.0, "runs/s", None, None) == ()


def test_each_source_is_counted_once() -> None:
    assert sum(source.rows for source in sources(load())) == len(load())
    assert len({source.source for source in sources(load())}) == len(sources(load()))


# --- the command --------------------------------------------------------------------------------------------------------

CHEAP = ("run", "train/lenet", "--batch", "2", "--steps", "5", "--warmup-steps", "1", "--warmup-seconds", "0")
OWN = (
    "workload,model,task,chip,count,precision,batch,value,unit,data,date,source\n"
    "train/lenet,lenet,training,NVIDIA T4,1,fp32,2,1e9,images/s,synthetic,2024-01,Our lab\n"
)


def test_a_typo_is_found_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "ledger.sqlite3"))
    answer = ask("run", "train/resnet50", "--published", "H2000")
    assert answer.code == Exit.WRONG_USE
    assert "NVIDIA H200" in answer.err
    assert "probe" not in answer.err


def test_a_real_run_is_compared_with_a_row_of_ones_own_in_words_and_for_programs(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite3"
    (tmp_path / "own.csv").write_text(OWN, encoding="utf-8")
    assert ask_process(ledger, "published", "add", str(tmp_path / "own.csv")).code == Exit.DONE
    words = ask_process(ledger, *CHEAP, "--runs", "2", "--published", "our lab", "--details")
    assert words.code == Exit.DONE, words.err
    lines = words.out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("against "))
    said = "\n".join(lines[start : start + 5])
    assert all(named in said for named in ("1,000,000,000 images/s", "lenet, NVIDIA", "T4, fp32", "(Our lab, 2024-01"))
    assert UNCERTAINTY in said
    assert "T4" in said
    done = ask_process(ledger, *CHEAP, "--runs", "2", "--published", "our lab", "--json")
    (result,) = json.loads(done.out)["results"]
    held = result["against_published"]
    # Two runs of five steps may differ so much that their interval contains every rate: the word is not asserted here.
    assert (held["margin"], held["context_only"]) == (0.05, True)
    assert held["ratio"] == pytest.approx(result["throughput"]["rate_per_s"] / 1e9)
    assert held["row"]["source"] == "Our lab"
    assert any(words.startswith("T4 ") for words in held["differs"])
