"""Experiments as they were recorded on H200s: what the documentation says of them is computed here again.

The names of machine, boot and GPU are taken out; rates, steps and facts are as they were.
"""

import importlib.util
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from asking import ask
from recorded import load
from stackmark.experiments.ceilings import of_experiment
from stackmark.experiments.examine import Examined, examine
from stackmark.experiments.operator_list import read_list
from stackmark.experiments.suite.examine import examine_suite
from stackmark.ledger.store import Ledger
from stackmark.show.ceilings import table_rows
from stackmark.show.report.html import render_html
from stackmark.show.sections import Sections
from stackmark.show.suite import print_suite
from stackmark.show.terminal import printed
from stackmark.verdict.noise import noise_floor

PAGE = (Path(__file__).parents[1] / "docs" / "host-vs-container.md").read_text()
POD_PAGE = (Path(__file__).parents[1] / "docs" / "host-vs-pod.md").read_text()
IMAGE_PAGE = (Path(__file__).parents[1] / "docs" / "host-vs-image.md").read_text()
README = (Path(__file__).parents[1] / "README.md").read_text()
OPERATORS_PAGE, CEILINGS_PAGE = (
    (Path(__file__).parents[1] / "docs" / f"{page}.md").read_text() for page in ("operators", "ceilings")
)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as ledger:
        yield ledger


def logs(shown: Examined, arm: int) -> npt.NDArray[np.float64]:
    """ln R of each block, in the order of the blocks."""
    rates = {
        run.block: run.rate_per_s
        for run in shown.runs
        if run.arm == arm and run.counted and run.block is not None and run.rate_per_s
    }
    return np.array([math.log(rates[block]) for block in sorted(rates)])


def on_one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_host_and_container_were_equivalent_within_one_per_cent(book: Ledger) -> None:
    shown = examine(book, load(book, "h200_host_container"))
    (pair,) = shown.comparisons
    assert (pair.word, pair.difference, pair.count_a) == ("EQUIVALENT", "slower", 6)
    d = logs(shown, 1) - logs(shown, 0)
    low, high = stats.t.interval(0.90, 5, loc=d.mean(), scale=stats.sem(d))
    assert pair.interval_90
    assert (pair.interval_90.low, pair.interval_90.high) == pytest.approx((np.exp(low), np.exp(high)))
    assert on_one_line(pair.sentence) in on_one_line(PAGE)


def test_its_order_was_abba_and_each_run_has_its_place_in_it(book: Ledger) -> None:
    shown = examine(book, load(book, "h200_host_container"))
    ran = [run.arm for run in shown.runs if run.role == "measured"]
    assert ran == [arm for block in shown.order for arm in block]
    assert [block[0] for block in shown.order] == [1, 0] * 3


def test_it_is_judged_by_the_rules_of_today_and_says_that_it_was_made_under_the_first(
    book: Ledger, tmp_path: Path
) -> None:
    id_ = load(book, "h200_host_container")
    shown = examine(book, id_)
    assert (shown.rules, shown.rules_made) == (2, 1)
    assert "rules 2;" in render_html(shown, generated_unix_s=0.0, version="0")
    where = ("--ledger", str(tmp_path / "ledger.sqlite3"))
    assert json.loads(ask("verdict", id_, "--json", *where).out)["rules"] == 2
    lines = ask("verdict", id_, "--why", *where).out.splitlines()
    assert re.findall(r"rules (\d)", next(line for line in lines if line.startswith("rules"))) == ["2", "1"]
    assert "39 %" in next(line for line in lines if line.startswith("bad runs"))


def test_kernels_that_are_drawn_anew_in_every_process_are_no_difference_between_arms(book: Ledger) -> None:
    shown = examine(book, load(book, "h200_host_container"))
    assert not any(one.subject == "kernels" for one in shown.differences)
    assert any(sentence.startswith("the kernels:") for sentence in shown.not_held)


def test_what_differed_most_was_the_filter_of_system_calls(book: Ledger) -> None:
    first = examine(book, load(book, "h200_host_container")).differences[0]
    assert (first.subject, first.key, first.values) == ("limits", "seccomp", ("off", "filter"))


def test_set_up_took_as_long_in_both_arms(book: Ledger) -> None:
    host, container = (dict(arm.setup) for arm in examine(book, load(book, "h200_host_container")).arms)
    assert list(host) == list(container)
    # 11 s of fresh process, of which the container's own start is a fraction of a second.
    assert 0 < container["start"] - host["start"] < 0.5
    assert sum(container.values()) == pytest.approx(sum(host.values()), rel=0.05)


@pytest.mark.parametrize(("margin", "word"), [(0.001, "EQUIVALENT"), (0.0005, "INCONCLUSIVE")])
def test_the_margin_decides_what_is_open(book: Ledger, margin: float, word: str) -> None:
    (pair,) = examine(book, load(book, "h200_host_container"), margin=margin).comparisons
    assert pair.word == word
    assert (pair.needed is not None) == (word == "INCONCLUSIVE")


def test_the_noise_floor_is_what_the_page_says(book: Ledger) -> None:
    shown = examine(book, load(book, "h200_noise"))
    floor = noise_floor(shown)
    assert floor
    d = logs(shown, 1) - logs(shown, 0)
    assert shown.comparisons[0].sd_log == pytest.approx(d.std(ddof=1))
    assert f"spread by {100 * d.std(ddof=1):.3f} %" in PAGE
    assert on_one_line(shown.comparisons[0].sentence) in on_one_line(PAGE)


def test_the_rule_stopped_at_its_first_look(book: Ledger) -> None:
    shown = examine(book, load(book, "h200_until_decided"))
    assert (shown.state, shown.blocks_whole, shown.blocks_planned) == ("done", 4, 20)
    assert on_one_line(shown.comparisons[0].sentence) in on_one_line(PAGE)


def test_half_a_cpu_is_slower_and_named_first_as_the_cause(book: Ledger) -> None:
    shown = examine(book, load(book, "h200_cpu_limit"))
    (pair,) = shown.comparisons
    first = shown.differences[0]
    assert (pair.word, first.key) == ("SLOWER", "cpu_limit_cpus")
    assert "32 times" in first.why
    assert on_one_line(pair.sentence) in on_one_line(PAGE)


def test_host_container_and_pod_were_equivalent_within_one_per_cent(book: Ledger) -> None:
    shown = examine(book, load(book, "h200_host_container_pod"))
    numbers = {arm.label: arm.index for arm in shown.arms}
    assert list(numbers) == ["host", "container", "pod"]
    assert len(shown.comparisons) == 3
    for pair in shown.comparisons:
        d = logs(shown, numbers[pair.b]) - logs(shown, numbers[pair.a])
        low, high = stats.t.interval(0.90, 5, loc=d.mean(), scale=stats.sem(d))
        assert pair.interval_90
        assert (pair.interval_90.low, pair.interval_90.high) == pytest.approx((np.exp(low), np.exp(high)))
        assert (pair.word, pair.difference) == ("EQUIVALENT", None)
        assert on_one_line(pair.sentence) in on_one_line(POD_PAGE)
        assert README.count(Sections(shown).answer(pair)) == 2  # first and last


def test_the_pod_s_chip_was_the_host_s(book: Ledger) -> None:
    shown = examine(book, load(book, "h200_host_container_pod"))
    assert len({run.chip_uuid for run in shown.runs}) == 1
    assert any(sentence.startswith("the chip:") for sentence in shown.held)


def test_an_image_in_a_container_and_in_a_pod_was_equivalent_to_the_host(book: Ledger) -> None:
    shown = examine(book, load(book, "h200_images"))
    numbers = {arm.label: arm.index for arm in shown.arms}
    assert len(shown.comparisons) == 3
    for pair in shown.comparisons:
        d = logs(shown, numbers[pair.b]) - logs(shown, numbers[pair.a])
        low, high = np.exp(stats.t.interval(0.90, 5, loc=d.mean(), scale=stats.sem(d)))
        assert (pair.word, len(d)) == ("EQUIVALENT", 6)
        assert f"| {np.exp(d.mean()):.4f} | {low:.4f} to {high:.4f} |" in IMAGE_PAGE
    assert len({run.chip_uuid for run in shown.runs}) == 1


def test_the_set_up_of_an_image_is_as_the_page_says(book: Ledger) -> None:
    arms = [dict(arm.setup) for arm in examine(book, load(book, "h200_images")).arms]
    for part, decimals in (("start", 2), ("import", 1)):
        row = " | ".join(f"{arm[part]:.{decimals}f} s" for arm in arms)
        assert f"| {row} |" in IMAGE_PAGE


def test_a_pod_from_an_image_compiles_its_kernels_in_every_run_and_the_verdict_says_so(book: Ledger) -> None:
    shown = examine(book, load(book, "h200_images"))
    host, container, pod = (dict(arm.setup)["first step"] for arm in shown.arms)
    assert f"| first step | {host:.1f} s | {container:.1f} s | **{pod:.1f} s** |" in IMAGE_PAGE
    assert any(sentence.startswith("the caches:") for sentence in shown.not_held)


def test_a_user_s_own_gpu_program_was_measured_on_the_gpu_in_both_arms(book: Ledger) -> None:
    shown = examine(book, load(book, "h200_own_program"))
    (pair,) = shown.comparisons
    assert {run.chip for run in shown.runs} == {"NVIDIA H200"}
    assert pair.word == "EQUIVALENT"
    assert pair.interval_90
    low, high = pair.interval_90.low, pair.interval_90.high
    assert f"ratio {pair.ratio:.4f}, 90 % interval {low:.4f} to {high:.4f}" in on_one_line(IMAGE_PAGE)
    for arm, name in ((shown.arms[0], "host"), (shown.arms[1], "container")):
        assert arm.throughput
        assert f"| {name} | {arm.throughput.rate_per_s:.1f} TFLOP/s ±" in IMAGE_PAGE
        energies = [
            run.energy_j
            for run in book.runs_of(shown.experiment_id)
            if run.place == name and run.role == "measured" and run.energy_j
        ]
        assert len(energies) == 4
        assert f"{min(energies):,.0f} to {max(energies):,.0f} J" in IMAGE_PAGE


NAMES = [
    "h200_images",
    "h200_own_program",
    "h200_host_container",
    "h200_noise",
    "h200_until_decided",
    "h200_cpu_limit",
    "h200_host_container_pod",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_report_is_made_of_what_was_recorded(book: Ledger, name: str) -> None:
    shown = examine(book, load(book, name))
    page = render_html(shown, generated_unix_s=0.0, version="0")
    assert shown.comparisons[0].word in page
    assert page.count("<svg") >= 4


def test_the_table_of_the_160_products_is_what_the_runs_say(book: Ledger, tmp_path: Path) -> None:
    ids = [load(book, f"h200_gemm_{precision}") for precision in ("bf16", "tf32", "fp32")]
    shown = [json.loads(ask("show", id_, "--json", "--ledger", str(tmp_path / "ledger.sqlite3")).out) for id_ in ids]
    path = Path(__file__).parents[1] / "scripts" / "write_gemm_table.py"
    script = importlib.util.spec_from_file_location("write_gemm_table", path)
    assert script is not None
    assert script.loader is not None
    module = importlib.util.module_from_spec(script)
    script.loader.exec_module(module)
    wanted, page = module.table(shown), on_one_line(OPERATORS_PAGE)
    assert len(wanted.splitlines()) == 162
    assert wanted in OPERATORS_PAGE
    for one in shown:
        rate, low, high = (module.three(one["throughput"][f"{name}_per_s"]) for name in ("rate", "low", "high"))
        assert f"| {rate} TFLOP/s | {low} to {high} |" in OPERATORS_PAGE

    # What the page says of sides that are no multiple of eight, and of how far processes are apart.
    def rates(rows: list[dict[str, Any]]) -> str:
        return f"{min(row['rate'] for row in rows):.0f} to {max(row['rate'] for row in rows):.0f}"

    sides = [(row, [row["shape"][side] for side in "mnk"]) for row in shown[0]["rows"]]
    even = [row for row, found in sides if min(found) >= 1024 and not any(side % 8 for side in found)]
    odd = [row for row, found in sides if min(found) >= 1024 and any(side % 2 for side in found)]
    fours = [row for row, found in sides if found[0] == 5124]
    assert f"The {len(even)} products" in page
    assert f"reach {rates(even)} TFLOP/s" in page
    assert f"5124×9124×K reaches {rates(fours)}" in page
    assert len(odd) == 6
    assert f"(7133, 7435, 5481) {rates(odd)}" in page
    for one, apart in ((shown[0], True), (shown[1], True), (shown[2], False)):
        large = [row for row in one["rows"] if min(row["shape"][side] for side in "mnk") >= 500]
        widths = sorted((row["high_s"] - row["low_s"]) / 2 / row["seconds"] for row in large)
        assert len(widths) == 76
        assert widths[37] > 0.045 if apart else widths[38] < 0.002
    # What was published for the seed of it all: 7680×48000×2560 took a P100 206,884 µs.
    assert "| 7680×48000×2560 NN |" in wanted
    assert "| 206,884 |" in wanted


def test_the_ceilings_of_an_h200_are_what_the_run_says(book: Ledger) -> None:
    kept = of_experiment(read_list(book, book.experiment(load(book, "h200_ceilings"))))
    assert kept is not None
    rows = table_rows(kept.ceilings)
    assert len(rows) == 13
    page = on_one_line(CEILINGS_PAGE)
    for row in rows:
        assert on_one_line(" ".join(row)).strip() in page


def test_the_suite_of_the_h200_shows_the_table_of_the_page(book: Ledger) -> None:
    page = (Path(__file__).parents[1] / "docs" / "studies.md").read_text()
    result = examine_suite(book, book.experiment(load(book, "h200_suite")))
    shown = printed(lambda console: print_suite(result, console)).splitlines()
    of_page = page[page.index("suite       1 of 2") :].split("```")[0].strip().splitlines()
    for line in of_page:
        assert any(on_one_line(line) == on_one_line(one) for one in shown), line
    resnet, gpt2 = result.rows
    (pair,) = result.comparisons[:1]
    assert resnet.examined is not None
    difference = logs(resnet.examined, 1) - logs(resnet.examined, 0)
    assert pair.ratio == pytest.approx(math.exp(difference.mean()), rel=1e-12)
    half = stats.t.ppf(0.95, 1) * difference.std(ddof=1) / math.sqrt(2)
    assert pair.interval_90 is not None
    assert pair.interval_90.low == pytest.approx(math.exp(difference.mean() - half), rel=1e-9)
    assert gpt2.state == "open"
