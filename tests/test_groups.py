"""`stackmark verdict RUN… --against RUN…`: stored runs held against each other, end to end from imported logs and live runs."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from asking import Answer, ask
from experiment_asking import empty_ledger
from naming import missing
from other_days import change
from stackmark.experiments.arms import read_arms
from stackmark.experiments.compare import CompareRequest, carry_out, start
from stackmark.experiments.recorder import Silent
from stackmark.experiments.run import measure
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.places.registry import find_place
from stackmark.spec import Request

LOGS = Path(__file__).parent / "data" / "logs" / "tf_cnn"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_ledger(tmp_path, monkeypatch)


def imported(*names: str, more: tuple[str, ...] = ()) -> list[str]:
    """The ids of the runs that these logs became."""
    answer = ask("import", *(str(LOGS / f"{name}.log") for name in names), *more, "--json")
    assert answer.code == 0, answer.err
    return [str(run["id"]) for run in json.loads(answer.out)["runs"]]


def field_report(gpus: int) -> tuple[list[str], list[str]]:
    sides = []
    for place in ("host", "container"):
        name = f"t4_{place}_{gpus}gpu"
        sides.append(imported(name, f"{name}_run2", more=("--place", place)))
    return sides[0], sides[1]


def shown(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.out)
    return found


def live(file: Path, runs: int = 2, workload: str = "trick/calm", **params: Any) -> list[RunRow]:
    request = Request(workload=workload, params={"steps": 4, "warmup_steps": 0, **params})
    with Ledger.open(str(file)) as book:
        return list(measure(request, place=find_place("host"), ledger=book, runs=runs).runs)


@pytest.mark.parametrize(
    ("gpus", "ratio", "interval"),
    [(1, "1.0059", ("0.9754", "1.0375")), (2, "0.9860", ("0.9441", "1.0298"))],
)
def test_the_field_report_of_the_t4_is_reproduced_from_its_logs(
    file: Path, gpus: int, ratio: str, interval: tuple[str, str]
) -> None:
    host, container = field_report(gpus)
    answer = ask("verdict", "--why", *container, "--against", *host)
    assert answer.code == 0, answer.err
    first = answer.out.splitlines()[0]
    assert missing(first, "verdict", "INCONCLUSIVE", "1 %", "container", "host", ratio, "90 %", *interval) == []
    (pair,) = shown(ask("verdict", "--why", *container, "--against", *host, "--json"))["comparisons"]
    assert (pair["word"], pair["count_a"], pair["count_b"]) == ("INCONCLUSIVE", 2, 2)
    # Two runs a side promise nothing.
    assert pair["notes"]


def test_one_log_a_side_says_how_far_runs_would_have_to_differ(file: Path) -> None:
    host, container = field_report(1)
    (pair,) = shown(ask("verdict", "--why", container[0], "--against", host[0], "--json"))["comparisons"]
    assert (pair["word"], pair["interval_90"], pair["count_a"], pair["count_b"]) == ("INCONCLUSIVE", None, 1, 1)
    spread = (abs(math.log(pair["ratio"])) + math.log(0.99)) / (stats.norm.ppf(0.95) * math.sqrt(2))
    assert missing(pair["sentence"], f"{math.exp(spread):.2g}") == []


def test_logs_that_differ_clearly_get_a_word_about_these_logs_only(file: Path) -> None:
    one, _ = field_report(1)
    two, _ = field_report(2)
    answer = ask("verdict", "--why", *two, "--against", *one, "--anyway", "--json")
    (pair,) = shown(answer)["comparisons"]
    assert (pair["word"], pair["difference"]) == ("INCONCLUSIVE", None)
    assert "FASTER" in pair["sentence"]
    assert pair["interval_90"]["low"] > 1.5


def test_one_run_a_side_takes_the_spread_that_the_ledger_knows(file: Path) -> None:
    first, second, _ = live(file), live(file), live(file)
    change(file, "UPDATE runs SET rate_per_s = 100 + position WHERE rate_per_s > 0")
    (pair,) = shown(ask("verdict", "--why", second[0].id, "--against", first[0].id, "--json"))["comparisons"]
    # Three pairs of 100 and 101: the pooled standard deviation of ln R, with its upper bound at 3 degrees of freedom.
    assert pair["word"] == "INCONCLUSIVE"
    assert missing(pair["sentence"], "90 %", "assumed") == []
    sd = math.log(1.01) / math.sqrt(2) * math.sqrt(3 / stats.chi2.ppf(0.05, 3))
    assert math.log(pair["interval_90"]["high"]) == pytest.approx(1.645 * sd * math.sqrt(2), rel=0.05)


def test_a_verdict_on_picked_runs_proposes_no_command_that_needs_an_experiment(file: Path) -> None:
    host, container = field_report(1)
    answer = ask("verdict", "--why", *container, "--against", *host)
    assert "stackmark report" not in answer.out
    assert "--blocks" not in answer.out
    assert any(line.startswith("stored ") and missing(line, "4 runs") == [] for line in answer.out.splitlines())


def test_logs_do_not_say_when_or_where_and_neither_does_the_verdict(file: Path) -> None:
    host, container = field_report(1)
    answer = ask("verdict", "--why", *container, "--against", *host)
    (scope,) = (line for line in answer.out.splitlines() if line.startswith("scope"))
    assert missing(scope, "machine") == []
    assert "boot" not in scope
    not_held = shown(ask("verdict", "--why", *container, "--against", *host, "--json"))["not_held"]
    assert any(missing(doubt, "chip", "host", "container") == [] for doubt in not_held)


def test_an_experiment_stands_for_its_runs_and_last_for_the_latest_experiment(file: Path) -> None:
    host, container = field_report(1)
    with Ledger.open(str(file)) as book:
        first, second = (book.run(side[0]).experiment_id for side in (host, container))
    by_runs, by_experiment, by_last = (
        shown(ask("verdict", "--why", *names, "--against", *others, "--json"))["comparisons"]
        for names, others in ((container, host), ([second], [first]), (["last"], [first]))
    )
    assert by_runs == by_experiment == by_last
    assert by_runs[0]["count_a"] == by_runs[0]["count_b"] == 2


@pytest.mark.parametrize("margin", ["0%", "150%", "x"])
def test_a_margin_that_is_none_is_refused(file: Path, margin: str) -> None:
    host, container = field_report(1)
    answer = ask("verdict", "--why", *container, "--against", *host, "--margin", margin)
    assert answer.code == 2
    assert "margin" in answer.err


def test_what_fail_on_names_ends_with_8(file: Path) -> None:
    host, container = field_report(1)
    assert ask("verdict", "--why", *container, "--against", *host, "--fail-on", "slower").code == 0
    assert ask("verdict", "--why", *container, "--against", *host, "--fail-on", "inconclusive").code == 8


@pytest.mark.parametrize(
    "written",
    [
        ("{b0}", "{b1}", "--against", "{a0}", "{a1}", "--json"),
        ("{b0}", "{b1}", "--json", "--against", "{a0}", "{a1}"),
        ("--json", "{b0}", "{b1}", "--against", "{a0}", "--margin", "1%", "{a1}"),
        ("{b0}", "{b1}", "--against={a0}", "--json", "{a1}"),
        ("{b0}", "{b1}", "--against", "{a0}", "--against", "{a1}", "--json"),
    ],
)
def test_every_name_after_against_is_of_the_other_side_wherever_options_stand(
    file: Path, written: tuple[str, ...]
) -> None:
    host, container = field_report(1)
    names = {"a0": host[0], "a1": host[1], "b0": container[0], "b1": container[1]}
    found = shown(ask("verdict", "--why", *(word.format(**names) for word in written)))["comparisons"][0]
    assert (found["a"], found["count_a"], found["b"], found["count_b"]) == ("host", 2, "container", 2)


@pytest.mark.parametrize("written", [("--against",), ("--against", "--json"), ("--against=",)])
def test_against_nobody_is_wrong_use(file: Path, written: tuple[str, ...]) -> None:
    host, _ = field_report(1)
    answer = ask("verdict", "--why", *host, *written)
    assert answer.code == 2
    assert "against" in answer.err
    assert answer.out == ""


def test_another_number_of_devices_is_refused_with_the_reason_unless_anyway(file: Path) -> None:
    one, _ = field_report(1)
    two, _ = field_report(2)
    answer = ask("verdict", "--why", *two, "--against", *one)
    assert answer.code == 2
    assert missing(answer.err, "--anyway") == []
    assert "1 rank," in answer.err
    anyway = ask("verdict", "--why", *two, "--against", *one, "--anyway")
    assert anyway.code == 0
    assert "1 rank," in anyway.out


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("--workload", "train/vgg16"), ("train/resnet50", "train/vgg16")),
        (("--param", "precision=fp16"), ("precision", "fp32", "fp16")),
        (("--chip", "Tesla V100"), ("Tesla T4", "Tesla V100")),
    ],
)
def test_another_workload_parameter_or_chip_is_refused(
    file: Path, more: tuple[str, str], reason: tuple[str, ...]
) -> None:
    known = {"--workload": "train/resnet50", "--param": "precision=fp32", "--chip": "Tesla T4"}
    first = imported("t4_host_1gpu", "t4_host_1gpu_run2", more=(more[0], known[more[0]]))
    second = imported("t4_container_1gpu", "t4_container_1gpu_run2", more=more)
    answer = ask("verdict", "--why", *second, "--against", *first)
    assert answer.code == 2
    assert missing(answer.err, *reason) == []
    assert "--anyway" in answer.err
    anyway = ask("verdict", "--why", *second, "--against", *first, "--anyway", "--json")
    assert anyway.code == 0
    assert any(missing(doubt, *reason) == [] for doubt in shown(anyway)["not_held"])


def test_another_unit_has_no_ratio(file: Path) -> None:
    host, container = field_report(1)
    change(file, "UPDATE runs SET rate_unit = 'tokens/s' WHERE place = 'container'")
    answer = ask("verdict", "--why", *container, "--against", *host)
    assert answer.code == 2
    assert missing(answer.err, "host", "images/s", "container", "tokens/s") == []


def test_a_side_of_two_kinds_is_no_side(file: Path) -> None:
    host, container = field_report(1)
    two, _ = field_report(2)
    answer = ask("verdict", "--why", *container, "--against", host[0], two[0])
    assert answer.code == 2
    assert missing(answer.err, "host", "rank,", "--anyway") == []


def test_a_side_from_two_places_is_no_side(file: Path) -> None:
    host, container = field_report(1)
    answer = ask("verdict", "--why", container[0], "--against", host[0], container[1])
    assert answer.code == 2
    assert missing(answer.err, "2 places", "host; container") == []
    anyway = ask("verdict", "--why", container[0], "--against", host[0], container[1], "--anyway")
    assert missing(anyway.out, "2 places") == []


def test_the_arms_of_an_experiment_are_no_one_side(file: Path) -> None:
    with Ledger.open(str(file)) as book:
        request = Request(workload="trick/calm", params={"steps": 4, "warmup_steps": 0})
        arms = read_arms(["host", "host,step_s=0.002"], "trick/calm")
        experiment = start(CompareRequest(request=request, arms=arms, blocks=2), book, Silent())
        carry_out(experiment, book, Silent())
    other = live(file)
    answer = ask("verdict", experiment.id, "--against", other[0].id)
    assert answer.code == 2
    assert "several arms" in answer.err
    primer = ask("verdict", _primer(file, experiment.id), "--against", other[0].id)
    assert primer.code == 2
    assert missing(primer.err, _primer(file, experiment.id)) == []


def _primer(file: Path, experiment_id: str) -> str:
    with Ledger.open(str(file)) as book:
        return next(row.id for row in book.runs_of(experiment_id) if row.role == "primer")


def test_a_failed_run_that_is_named_is_refused_with_its_reason(file: Path) -> None:
    good = live(file)
    (bad,) = live(file, runs=1, workload="trick/crash")
    answer = ask("verdict", good[0].id, "--against", bad.id)
    assert answer.code == 2
    assert bad.id in answer.err
    assert bad.failure_message is not None
    assert bad.failure_message in answer.err
    whole = ask("verdict", good[0].id, "--against", bad.experiment_id)
    assert whole.code == 2
    assert missing(whole.err, bad.experiment_id) == []


def test_failed_runs_of_a_named_experiment_are_left_out_and_counted(file: Path) -> None:
    first, second = live(file, runs=3), live(file, runs=2)
    change(
        file,
        "UPDATE runs SET status = 'failed', rate_per_s = NULL, failure_kind = 'killed' WHERE id = ?",
        first[1].id,
    )
    answer = ask("verdict", "--why", second[0].experiment_id, "--against", first[0].experiment_id, "--json")
    found = shown(answer)
    assert found["comparisons"][0]["count_a"] == 2
    assert any(missing(doubt, "1", "3 runs", first[0].experiment_id) == [] for doubt in found["not_held"])


def test_a_run_cannot_stand_on_both_sides(file: Path) -> None:
    rows = live(file, runs=2)
    answer = ask("verdict", rows[0].id, "--against", rows[1].id, rows[0].id)
    assert answer.code == 2
    assert missing(answer.err, rows[0].id) == []
    assert rows[1].id not in answer.err


def test_a_run_that_is_named_twice_counts_once(file: Path) -> None:
    first, second = live(file), live(file)
    found = shown(ask("verdict", "--why", *(row.id for row in second), "--against", first[0].id, first[0].id, "--json"))
    assert found["comparisons"][0]["count_a"] == 1


def test_runs_of_one_series_are_compared_by_runs_and_called_by_time(file: Path) -> None:
    first, second = live(file), live(file, step_s=0.03)
    with_other_params = ask("verdict", "--why", second[0].experiment_id, "--against", first[0].experiment_id)
    assert with_other_params.code == 2
    assert missing(with_other_params.err, "step_s", "0.001", "before", "0.03", "after") == []
    found = shown(
        ask("verdict", "--why", second[0].experiment_id, "--against", first[0].experiment_id, "--anyway", "--json")
    )
    (pair,) = found["comparisons"]
    assert (pair["a"], pair["b"], pair["kind"]) == ("before", "after", "runs")
    # A step of 30 ms against one of 1 ms, whatever else the machine does.
    assert pair["ratio"] < 0.2
    backwards = shown(
        ask("verdict", first[0].experiment_id, "--against", second[0].experiment_id, "--anyway", "--json")
    )
    assert (backwards["comparisons"][0]["a"], backwards["comparisons"][0]["b"]) == ("after", "before")


def test_runs_of_two_days_are_compared_by_series(file: Path) -> None:
    first, second = live(file), live(file)
    change(
        file,
        "UPDATE runs SET started_unix_s = started_unix_s - 86400, ended_unix_s = ended_unix_s - 86400, boot_id = 'then' "
        "WHERE experiment_id = ?",
        first[0].experiment_id,
    )
    found = shown(ask("verdict", "--why", second[0].experiment_id, "--against", first[0].experiment_id, "--json"))
    (pair,) = found["comparisons"]
    assert (pair["kind"], pair["count_a"], pair["count_b"]) == ("series", 1, 1)
    assert missing(pair["needed"]["sentence"], "before", "has 1") == []


def test_another_machine_or_another_gpu_of_the_model_is_refused(file: Path) -> None:
    first, second = live(file), live(file)
    sides = (second[0].experiment_id, "--against", first[0].experiment_id)
    change(file, "UPDATE runs SET machine_id = 'elsewhere' WHERE experiment_id = ?", first[0].experiment_id)
    machines = ask("verdict", "--why", *sides)
    assert (machines.code, missing(machines.err, "before", "after", "machines")) == (2, [])
    change(file, "UPDATE runs SET chip = 'a GPU', chip_uuid = experiment_id")
    chips = ask("verdict", "--why", *sides)
    assert (chips.code, missing(chips.err, first[0].experiment_id, second[0].experiment_id)) == (2, [])


def test_one_run_or_several_without_another_side_are_told_what_is_missing(file: Path) -> None:
    rows = live(file)
    assert "--against" in ask("verdict", rows[0].id).err
    several = ask("verdict", rows[0].id, rows[1].id)
    assert several.code == 2
    assert "another side" in several.err


def test_an_experiment_of_one_arm_is_its_rate_and_has_no_verdict_to_fail_on(file: Path) -> None:
    rows = live(file)
    answer = ask("verdict", "last")
    assert answer.code == 0
    assert answer.out.split()[:2] == ["verdict", "host:"]
    named = ask("verdict", rows[0].experiment_id, "--fail-on", "slower")
    assert named.code == 2
    assert "one arm" in named.err


def test_names_that_are_nothing_are_a_sentence(file: Path) -> None:
    live(file)
    for name in ("r-01", "x-99", "r-zzzz", "nonsense"):
        answer = ask("verdict", "last", "--against", name)
        assert answer.code == 2, name
        assert answer.err.startswith("stackmark: "), name
