"""The scaling of stored runs and of published numbers: classic logs of one GPU and of two, next to a calculator."""

import json
import math
import os
from pathlib import Path
from statistics import geometric_mean

import pytest

from asking import ask
from ledger_runs import DONE, SPEC, T0
from recorded import DATA
from refusing import refused
from stackmark import ids
from stackmark.api.published import published_scalings
from stackmark.api.scaling import ScalingTable, scaling_table
from stackmark.errors import Exit
from stackmark.ledger.rows import Experiment, RunStart
from stackmark.ledger.store import Ledger
from stackmark.published.scaling import nearest_scaling, published_scaling
from stackmark.published.table import load
from stackmark.spec import Spec

LOGS = DATA / "logs"
# As tests/data/logs/tf_cnn has them, images/s.
HOST_ONE, HOST_TWO = (124.77, 125.76), (242.60, 241.52)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = str(tmp_path / "ledger.sqlite3")
    monkeypatch.setenv("STACKMARK_LEDGER", path)
    return path


def imported(name: str, *more: str) -> None:
    answer = ask("import", str(LOGS / name), "--chip", "Tesla T4", "--param", "precision=fp32", *more)
    assert answer.code == Exit.DONE, answer.err


def test_logs_of_one_gpu_and_of_two_give_the_efficiency(ledger: str) -> None:
    for name in ("t4_host_1gpu", "t4_host_1gpu_run2", "t4_host_2gpu", "t4_host_2gpu_run2"):
        imported(f"tf_cnn/{name}.log", "--place", "host")
    (one, two) = scaling_table(["chip=Tesla T4"], ledger=ledger).table.rows
    assert (one.ranks, one.throughput.runs, one.comparison) == (1, 2, None)
    assert two.comparison
    wanted = geometric_mean(HOST_TWO) / geometric_mean(HOST_ONE) / 2
    assert two.comparison.ratio == pytest.approx(wanted, rel=1e-4)
    assert two.speedup == pytest.approx(2 * wanted, rel=1e-4)
    assert (two.comparison.word, two.comparison.word_in_logs) == ("INCONCLUSIVE", "SCALES")


def test_one_run_a_side_has_an_efficiency_and_no_interval(ledger: str) -> None:
    imported("tf_cnn/t4_host_1gpu.log")
    imported("tf_cnn/t4_host_2gpu.log")
    (pair,) = scaling_table(["chip=Tesla T4"], ledger=ledger).table.comparisons
    assert pair.ratio == pytest.approx(242.60 / (2 * 124.77), rel=1e-4)
    assert (pair.word, pair.interval_90) == ("INCONCLUSIVE", None)


def test_groups_are_compared_with_one_rank_of_their_own_place(ledger: str) -> None:
    for place in ("host", "container"):
        for gpus in ("1gpu", "2gpu"):
            imported(f"tf_cnn/t4_{place}_{gpus}.log", "--place", place)
    table = scaling_table(["chip=Tesla T4"], ledger=ledger).table
    assert table.by == ("place",)
    assert [(row.values, row.ranks) for row in table.rows] == [
        (("container",), 1), (("container",), 2), (("host",), 1), (("host",), 2),
    ]  # fmt: skip
    shares = {row.values[0]: row.comparison.ratio for row in table.rows if row.comparison}
    assert shares == pytest.approx({"container": 240.64 / (2 * 126.95), "host": 242.60 / (2 * 124.77)}, rel=1e-4)


def test_ranks_without_one_rank_are_shown_without_an_efficiency(ledger: str) -> None:
    imported("tf_cnn/t4_host_1gpu.log")
    answer = ask(
        "import", str(LOGS / "nvcnn" / "p4x4_kubernetes.log"), "--workload", "train/resnet50", "--ranks", "4",
        "--chip", "Tesla P4", "--param", "precision=fp16",
    )  # fmt: skip
    assert answer.code == Exit.DONE, answer.err
    table = scaling_table(["workload=train/resnet50"], ledger=ledger)
    (four,) = (row for row in table.table.rows if row.ranks == 4)
    assert (four.comparison, four.speedup) == (None, None)
    assert four.reason
    assert table.exit_code() == Exit.PART_FAILED


def test_runs_of_one_rank_count_are_refused(ledger: str) -> None:
    imported("tf_cnn/t4_host_1gpu.log")
    with refused("chip=Tesla T4", "1 rank"):
        scaling_table(["chip=Tesla T4"], ledger=ledger)


def ours(book: Ledger, ranks: int, rate: float, at: float, boot: str = "one") -> None:
    """Store a run of our own with so many ranks."""
    experiment = ids.new_id("x")
    book.start_experiment(Experiment(id=experiment, created_unix_s=at, command="stackmark run"))
    spec = Spec(workload=SPEC.workload, params=SPEC.params, ranks=ranks)
    run = RunStart(
        id=ids.new_id("r"), experiment_id=experiment, spec=spec, place="host", started_unix_s=at, machine_id="this",
        boot_id=boot, driver_pid=os.getpid(), stackmark_version="0.1.0",
    )  # fmt: skip
    book.start(run)
    book.finish(run.id, DONE.model_copy(update={"rate_per_s": rate, "ended_unix_s": at + 40}), [])


def of_ours(path: str, boots: tuple[str, str], factor: float = 1.94) -> ScalingTable:
    with Ledger.open(path) as book:
        for number in range(4):
            ours(book, 1, 1000.0 * math.exp(0.002 * (-1) ** number), T0 + 100 * number, boots[0])
            ours(book, 2, factor * 1000.0 * math.exp(0.002 * (-1) ** number), T0 + 100 * number + 50, boots[1])
    return scaling_table(["workload=train/resnet50"], ledger=path)


def test_our_own_runs_of_one_series_get_a_word(ledger: str) -> None:
    found = of_ours(ledger, ("one", "one"))
    assert found.words == ("SCALES",)
    assert found.exit_code(["inconclusive"]) == Exit.DONE


def test_our_own_runs_that_fall_short_are_named(ledger: str) -> None:
    found = of_ours(ledger, ("one", "one"), factor=1.2)
    assert found.words == ("FALLS SHORT",)
    assert found.exit_code(["slower"]) == Exit.VERDICT_NAMED


def test_runs_of_two_boots_get_no_word_beyond_themselves(ledger: str) -> None:
    found = of_ours(ledger, ("one", "two"))
    (pair,) = found.table.comparisons
    assert (pair.word, pair.word_in_logs) == ("INCONCLUSIVE", "SCALES")
    assert any("2 series" in note for note in pair.notes)


def test_an_efficiency_above_one_is_questioned(ledger: str) -> None:
    assert of_ours(ledger, ("one", "one"), factor=2.2).table.questions


def test_the_json_names_its_schema_and_its_rows(ledger: str) -> None:
    of_ours(ledger, ("one", "one"))
    shown = json.loads(ask("scale", "--stored", "workload=train/resnet50", "--json").out)
    assert (shown["schema"], shown["interleaved"]) == ("stackmark.scaling-table/1", False)
    assert [(row["ranks"], row["runs"]) for row in shown["rows"]] == [(1, 4), (2, 4)]
    assert shown["rows"][1]["efficiency"] == pytest.approx(0.97)
    assert shown["rows"][1]["speedup"] == pytest.approx(1.94)


# --- what others published ----------------------------------------------------------------------------------------------


def test_published_rates_of_eight_gpus_give_their_efficiency() -> None:
    found = {
        (one.ranks, one.data): one.efficiency
        for one in published_scalings("resnet50 P100").rows
        if "batch 64" in one.what and one.date == "2017-05"
    }
    assert found[8, "synthetic"] == pytest.approx(1734 / (8 * 219))
    assert found[8, "real"] == pytest.approx(1630 / (8 * 218))
    assert found[4, "synthetic"] == pytest.approx(852 / (4 * 219))


def test_the_published_two_gpus_of_the_classic_study_are_there() -> None:
    found = [one for one in published_scalings("resnet50 T4").rows if one.one == 124.77]
    assert [(one.ranks, one.several) for one in found] == [(2, 242.6)]


def test_rates_of_two_recipes_make_no_pair() -> None:
    for one, row in published_scaling(load()):
        assert 0.2 < one.efficiency < 1.6, (one, row)


def test_reference_lines_are_of_the_nearest_chip_and_of_the_ranks_that_were_run() -> None:
    spec = Spec(workload="train/resnet50", params={"batch": 64, "data": "device", "precision": "fp32"})
    found = nearest_scaling(load(), spec, "Tesla P100-SXM2-16GB", [1, 8])
    assert [(one.ranks, one.several, one.data) for one in found] == [(8, 1734, "synthetic")]
    assert nearest_scaling(load(), spec, "Tesla P100-SXM2-16GB", [1, 3]) == ()


def test_words_that_find_single_devices_only_are_refused() -> None:
    with refused("minigo"):
        published_scalings("minigo")
