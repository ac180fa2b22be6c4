"""Workloads that are trained to a quality, from the worker's events to the result: runs, comparisons, and what is refused.

The workload is another package's (tests/curve_package): real workers, whose curves are a formula and take no time.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from asking import Answer, ask
from curve_sample import GNMT, MASKS, announced_curves
from stackmark.events import Evaluation, Event, Facts, Failed, Figure, Hello, Result, Steps, Stream, write_event
from stackmark.experiments.examine import examine
from stackmark.experiments.fitting import trained_run
from stackmark.experiments.judging import judge
from stackmark.experiments.run import missing_runs, read_measured
from stackmark.failures import TARGET_NOT_REACHED
from stackmark.ledger.rows import RunDetail, RunEnd, RunStart
from stackmark.ledger.store import Ledger
from stackmark.places.place import Outcome
from stackmark.spec import Spec

# Seeds 3 and 4 need seven epochs, 5 needs five, 6 needs six.
SOME_MISS = ("run", GNMT, "--runs", "4", "--seed", "3", "--max-epochs", "6")
ARMS = ("--arm", "host", "--arm", "host,max-epochs=6,epoch_s=0.02")


@dataclass(frozen=True)
class Made:
    ledger: Path
    missed: Answer
    compared: Answer
    masks: Answer

    def verdict(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.compared.out)
        return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("curves")
    with announced_curves(folder / "site") as patch:
        patch.setenv("STACKMARK_LEDGER", str(folder / "ledger.db"))
        yield Made(
            folder / "ledger.db",
            ask(*SOME_MISS, "--json"),
            ask("compare", GNMT, *ARMS, "--blocks", "6", "--json"),
            ask("run", MASKS, "--runs", "2", "--json"),
        )


def experiments(ledger: Path) -> list[str]:
    """The three experiments of `made`, in their order."""
    with Ledger.open(str(ledger)) as book:
        return [one.experiment.id for one in book.experiments()][::-1]


def rows_of(ledger: Path, number: int) -> list[RunDetail]:
    with Ledger.open(str(ledger)) as book:
        return [row for row in book.runs_of(experiments(ledger)[number]) if row.role == "measured"]


def test_runs_that_miss_their_target_do_not_stop_the_others(made: Made) -> None:
    rows = rows_of(made.ledger, 0)
    assert made.missed.code == 3
    assert [row.failure_kind for row in rows] == [TARGET_NOT_REACHED, TARGET_NOT_REACHED, None, None]
    assert missing_runs(4, rows) == 0
    assert missing_runs(6, rows) == 2


def test_all_runs_have_one_spec_and_seeds_of_their_own(made: Made) -> None:
    with Ledger.open(str(made.ledger)) as book:
        measured = read_measured(book, book.experiment(experiments(made.ledger)[0]))
    assert measured
    assert measured.quality
    assert len({row.spec_digest for row in measured.runs}) == 1
    assert [run.seed for run in measured.quality.runs] == [3, 4, 5, 6]
    assert [run.reached for run in measured.quality.runs] == [False, False, True, True]
    assert [run.epochs for run in measured.quality.runs] == [6, 6, 5, 6]


def test_the_figure_counts_the_runs_that_missed(made: Made) -> None:
    with Ledger.open(str(made.ledger)) as book:
        measured = read_measured(book, book.experiment(experiments(made.ledger)[0]))
    assert measured
    assert measured.throughput
    assert measured.quality
    reached_s = [run.time_s for run in measured.quality.runs if run.reached]
    assert measured.throughput.runs == 4
    assert 60 / measured.throughput.rate_per_s > sum(reached_s) / len(reached_s)


def test_two_targets_are_reached_together(made: Made) -> None:
    with Ledger.open(str(made.ledger)) as book:
        measured = read_measured(book, book.experiment(experiments(made.ledger)[2]))
    assert measured
    assert measured.quality
    assert measured.quality.target == {"box mAP": 0.5, "mask mAP": 0.4}
    assert [run.reached for run in measured.quality.runs] == [True, True]


def test_a_block_with_a_run_that_missed_is_whole_and_not_repeated(made: Made) -> None:
    rows = rows_of(made.ledger, 1)
    assert sum(row.failure_kind == TARGET_NOT_REACHED for row in rows) == 2
    assert (len(rows), {row.attempt for row in rows}) == (12, {0})
    assert made.verdict()["blocks_whole"] == 6
    assert made.verdict()["state"] == "done"


def test_the_word_comes_from_all_runs_where_one_missed(made: Made) -> None:
    (pair,) = made.verdict()["comparisons"]
    assert pair["word"] == "SLOWER"
    assert pair["p_log_rank"] == pytest.approx(2 / 2**6)
    assert pair["interval_95"]["high"] < 1
    assert pair["count_a"] == pair["count_b"] == 6
    assert "2 of 6 in host,max-epochs=6,epoch_s=0.02" in pair["notes"][0]


def test_both_arms_of_a_block_have_one_seed(made: Made) -> None:
    with Ledger.open(str(made.ledger)) as book:
        found = examine(book, experiments(made.ledger)[1])
    one, other = found.quality
    assert one
    assert other
    assert {run.block: run.seed for run in one.runs} == {run.block: run.seed for run in other.runs}
    assert len({run.seed for run in one.runs}) == 6
    assert (one.censored, other.censored) == (0, 2)


def test_without_a_run_that_missed_the_blocks_decide(made: Made) -> None:
    answer = ask("compare", GNMT, "--arm", "host", "--arm", "host,epoch_s=0.02", "--blocks", "4", "--json")
    (pair,) = json.loads(answer.out)["comparisons"]
    assert "p_log_rank" not in pair
    assert (pair["word"], pair["ratio"]) == ("SLOWER", pytest.approx(0.5))


def test_resume_makes_the_runs_that_are_missing_and_no_other(made: Made, tmp_path: Path) -> None:
    ledger = str(tmp_path / "other.db")
    with Ledger.open(str(made.ledger)) as book:
        experiment = book.experiment(experiments(made.ledger)[0])
        rows = rows_of(made.ledger, 0)[:2]
        lines = [book.stream(row.id) for row in rows]
    with Ledger.open(ledger) as book:
        book.start_experiment(experiment)
        for row, stream in zip(rows, lines, strict=True):
            copy_into(book, row, stream)
    assert ask("resume", experiment.id, "--ledger", ledger, "--json").code == 3
    with Ledger.open(ledger) as book:
        kinds = [row.failure_kind for row in book.runs_of(experiment.id)]
    assert kinds == [TARGET_NOT_REACHED, TARGET_NOT_REACHED, None, None]


def test_a_run_that_was_cut_off_is_made_again_with_its_seed(made: Made, tmp_path: Path) -> None:
    ledger = str(tmp_path / "other.db")
    with Ledger.open(str(made.ledger)) as book:
        experiment = book.experiment(experiments(made.ledger)[0])
        rows = rows_of(made.ledger, 0)[:3]
        lines = [book.stream(row.id) for row in rows]
    cut = rows[2].model_copy(update={"status": "failed", "failure_kind": "interrupted", "rate_per_s": None})
    with Ledger.open(ledger) as book:
        book.start_experiment(experiment)
        for row, stream in zip([*rows[:2], cut], [*lines[:2], []], strict=True):
            copy_into(book, row, stream)
    ask("resume", experiment.id, "--ledger", ledger, "--json")
    with Ledger.open(ledger) as book:
        measured = read_measured(book, book.experiment(experiment.id))
    assert measured
    assert measured.quality
    assert [run.seed for run in measured.quality.runs] == [3, 4, 5, 6]


def test_several_runs_of_each_seed_tell_what_of_the_spread_is_the_seeds(made: Made) -> None:
    told = json.loads(ask("run", GNMT, "--seeds", "3", "--json").out)["results"][0]["quality"]
    assert [run["seed"] for run in told["runs"]] == [1, 2, 3, 1, 2, 3]
    assert told["seeds"]["seeds"] == 3
    assert told["seeds"]["share"] > 0.9


@pytest.mark.parametrize(
    "words", [("run", "train/trivial", "--seeds", "3"), ("run", GNMT, "--seeds", "5", "--runs", "3")]
)
def test_seeds_that_mean_nothing_are_refused(made: Made, words: tuple[str, ...]) -> None:
    assert ask(*words).code == 2


def copy_into(book: Ledger, row: RunDetail, lines: list[str]) -> None:
    values = row.model_dump()
    book.start(RunStart.model_validate({key: values[key] for key in RunStart.model_fields if key in values}))
    book.finish(row.id, RunEnd.model_validate({key: values[key] for key in RunEnd.model_fields}), lines)


def test_stored_runs_are_not_compared_without_those_that_missed(made: Made) -> None:
    with_missed, without = experiments(made.ledger)[0], experiments(made.ledger)[1]
    ids = [row.id for row in rows_of(made.ledger, 1) if row.arm == 0]
    answer = ask("verdict", with_missed, "--against", *ids)
    assert answer.code == 2
    assert "did not reach the target" in answer.err
    sides = [f"experiment={without},param.epoch_s={value}" for value in (0.01, 0.02)]
    selected = ask("verdict", "--runs", sides[0], "--against", sides[1])
    assert selected.code == 2
    assert "2 runs of" in selected.err


def test_noise_shows_the_share_of_the_seed(made: Made) -> None:
    answer = ask("noise", GNMT, "--blocks", "4", "--json")
    found = json.loads(answer.out)["quality"][0]
    # Both arms are the same training, so all of the variance is the seed's.
    assert found["seeds"]["share"] == pytest.approx(1.0)
    assert (found["seeds"]["seeds"], found["seeds"]["runs"]) == (4, 8)
    shown = ask("verdict", json.loads(answer.out)["experiment_id"], "--why").out
    assert "100 % of the variance of ln time is the seed's" in shown


# --- what a worker cannot have measured

SPEC = Spec(
    workload=GNMT,
    params={
        "device": "cpu",
        "seed": 1,
        "preset": "tiny",
        "target": "95",
        "epoch_s": 1.0,
        "epochs": 5,
        "max_epochs": 20,
    },
)
CURVE = ((40.0, 10.0), (80.0, 20.0), (96.0, 30.0))


def evaluated(number: int, bleu: float, clock_s: float, **more: Any) -> Evaluation:
    values: dict[str, Any] = {
        "epoch": number, "samples": 100 * number, "quality": {"BLEU": bleu}, "target": {"BLEU": 95.0}, "reached": bleu >= 95.0,
    }  # fmt: skip
    return Evaluation(seq=0, t=0.0, number=number, clock_s=clock_s, **(values | more))


def curve(*points: tuple[float, float]) -> list[Evaluation]:
    return [evaluated(number, *point) for number, point in enumerate(points or CURVE, 1)]


def done(minutes: float = 0.5) -> Result:
    figure = Figure(name="time to target", value=minutes, unit="min", higher_is_better=False)
    return Result(seq=0, t=0.0, sample="run", samples_per_step=1, steps=1, wall_s=30.0, tick_s=1e-6, figure=figure)


MISSED = Failed(seq=0, t=0.0, kind=TARGET_NOT_REACHED, message="the target was not reached in 3 epochs")


def stream_of(*events: Event, facts: dict[str, Any] | None = None) -> Stream:
    head: list[Event] = [
        Hello(seq=0, t=0.0, time_unix_s=1.0, pid=1),
        Facts(seq=0, t=0.0, subject="fit", facts={"seed": 1, **(facts or {})}),
    ]
    step: list[Event] = [Steps(seq=0, t=0.0, phase="measure", first=0, step_s=[30.0])]
    stream = Stream()
    for seq, event in enumerate([*head, *events[:-1], *(step if isinstance(events[-1], Result) else []), events[-1]]):
        stream.feed(write_event(event.model_copy(update={"seq": seq})))
    return stream


def judged(*events: Event, observed_s: float | None = 31.0, spec: Spec = SPEC, **facts: Any) -> tuple[str, str | None]:
    stream = stream_of(*events, facts=facts)
    end = judge(stream, Outcome(28 if isinstance(events[-1], Failed) else 0), spec=spec, observed_s=observed_s)
    return end.status, end.failure_kind


@pytest.mark.usefixtures("made")
def test_a_run_whose_evaluations_agree_is_believed() -> None:
    assert judged(*curve(), done()) == ("done", None)
    assert judged(*curve(*CURVE[:2]), MISSED) == ("failed", TARGET_NOT_REACHED)
    assert judged(MISSED) == ("failed", TARGET_NOT_REACHED)


@pytest.mark.usefixtures("made")
def test_a_figure_that_was_rounded_is_believed() -> None:
    points = ((40.0, 10.0), (96.0, 31.234567))
    assert judged(*curve(*points), done(round(31.234567 / 60, 6)), observed_s=40.0) == ("done", None)


@pytest.mark.usefixtures("made")
def test_a_resumed_run_has_what_was_before_on_its_clock() -> None:
    late = curve((40.0, 3610.0), (96.0, 3620.0))
    assert judged(*late, done(3620 / 60)) == ("failed", "impossible_result")
    assert judged(*late, done(3620 / 60), resumed_at_s=3000.0, lost_s=600.0) == ("done", None)


FORGED: dict[str, list[Event]] = {
    "numbers with a gap": [evaluated(1, 40, 10), evaluated(3, 96, 30), done()],
    "numbers that repeat": [evaluated(1, 40, 10), evaluated(1, 96, 30), done()],
    "a clock that stands": [evaluated(1, 40, 30), evaluated(2, 96, 30), done()],
    "a clock that runs back": [evaluated(1, 40, 40), evaluated(2, 96, 30), done()],
    "a clock at zero": [evaluated(1, 96, 0), done(1e-9)],
    "later than it ran": [evaluated(1, 40, 10), evaluated(2, 96, 300), done(5.0)],
    "later than it ran, and missed": [evaluated(1, 40, 300), MISSED],
    "reached below the target": [evaluated(1, 94, 30, reached=True), done()],
    "not reached above the target": [evaluated(1, 96, 30, reached=False), MISSED],
    "a result without the target": [evaluated(1, 40, 30), done()],
    "a result without an evaluation": [done()],
    "another time than its evaluation's": [*curve(), done(0.4)],
    "missed and reached": [*curve(), MISSED],
    "on after the target": [*curve(), evaluated(4, 97, 30.5), done(30.5 / 60)],
    "a target that moves": [evaluated(1, 40, 10), evaluated(2, 90, 30, target={"BLEU": 90.0}, reached=True), done()],
    "another target than asked": [evaluated(1, 50, 30, target={"BLEU": 50.0}, reached=True), done()],
    "another quality": [evaluated(1, 96, 30, quality={"accuracy": 96.0}), done()],
    "a quality too few": [evaluated(1, 96, 30, target={}, reached=True), done()],
}


@pytest.mark.parametrize("which", FORGED)
@pytest.mark.usefixtures("made")
def test_impossible_evaluations_are_refused(which: str) -> None:
    assert judged(*FORGED[which]) == ("failed", "impossible_result")


@pytest.mark.usefixtures("made")
def test_a_workload_without_a_target_cannot_miss_one() -> None:
    spec = Spec(workload="command/run", params={})
    assert judged(MISSED, spec=spec) == ("failed", "impossible_result")


def test_a_stored_stream_that_contradicts_itself_is_no_curve(made: Made) -> None:
    (row,) = rows_of(made.ledger, 0)[2:3]
    assert trained_run(row, row.spec, stream_of(*FORGED["numbers with a gap"])) is None
