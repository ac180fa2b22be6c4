"""Training to a quality as people and programs see it: the end of a run, its details, pictures, reports, progress."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from asking import Answer, ask
from curve_sample import GNMT, MASKS, announced_curves
from stackmark.events import Evaluation, Facts, Hello, Phase
from stackmark.experiments.run import read_measured
from stackmark.figures import FigureUnit, figure_unit
from stackmark.ledger.store import Ledger
from stackmark.show.live import LiveBar, PlainLines
from stackmark.show.quality import (
    POINTS_SHOWN,
    chosen,
    evaluation_lines,
    quality_json,
    say_curve,
    say_score,
    say_seeds,
    say_share,
    say_target,
    say_times,
)
from stackmark.show.report.charts.quality import NARROW, curves
from stackmark.spec import Spec
from stackmark.verdict.time_to_quality import Evaluation as Point
from stackmark.verdict.time_to_quality import TrainedRun, share_of, summed_up
from stackmark.worker.readable import for_people


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two runs that missed their target and two that reached it; then two runs with two targets."""
    folder = tmp_path_factory.mktemp("curves")
    with announced_curves(folder / "site") as patch:
        patch.setenv("STACKMARK_LEDGER", str(folder / "ledger.db"))
        assert ask("run", GNMT, "--runs", "4", "--seed", "3", "--max-epochs", "6").code == 3
        assert ask("run", MASKS, "--runs", "2").code == 0
        yield folder / "ledger.db"


def experiment(ledger: Path, workload: str) -> str:
    with Ledger.open(str(ledger)) as book:
        return [one.experiment.id for one in book.experiments(workload=workload)][-1]


def named(answer: Answer, name: str) -> list[str]:
    """The texts of the lines with this name."""
    assert answer.code == 0
    return [line.partition(" ")[2].strip() for line in answer.out.splitlines() if line.split(" ")[0] == name]


def run_of(*curve: float, step_s: float = 10.0, seed: int = 1) -> TrainedRun:
    points = tuple(
        Point(number, float(number), 100 * number, number * step_s, {"BLEU": value}, value >= 95.0)
        for number, value in enumerate(curve, 1)
    )
    return TrainedRun("r-01m7f0pez5fsz8m2ew96aq60wk", 0, None, seed, {"BLEU": 95.0}, points)


# --- the end of a run


def test_the_end_of_a_run_says_target_times_and_score(ledger: Path) -> None:
    shown = ask("show", experiment(ledger, GNMT))
    (target,) = named(shown, "target")
    assert target.startswith(
        "BLEU 95 reached in 2 of 4 runs (7 to 93 %, 95 %), after 5 to 6 epochs, 2 ended without it"
    )
    (runs,) = named(shown, "runs")
    assert [one.startswith(">") for one in runs.split(", ")] == [True, True, False, False]
    (score,) = named(shown, "score")
    assert "2 of 4 runs did not reach the target" in score
    assert named(shown, "failed") == []
    assert "by a model of all runs" in named(shown, "figure")[0]


def test_it_fits_on_a_screen_of_80_columns_and_24_lines(ledger: Path) -> None:
    for workload in (GNMT, MASKS):
        with Ledger.open(str(ledger)) as book:
            measured = read_measured(book, book.experiment(experiment(ledger, workload)))
            assert measured
            out = io.StringIO()
            console = Console(
                file=out, force_terminal=True, width=80, height=24, legacy_windows=False, color_system=None
            )
            from stackmark.experiments.result import RunResult
            from stackmark.show.result import print_result

            print_result(RunResult(measured, f"stackmark run {workload}"), console)
        lines = out.getvalue().splitlines()
        assert len(lines) <= 22
        assert max(map(len, lines)) <= 80


def test_details_have_the_curve_of_each_run(ledger: Path) -> None:
    shown = ask("show", experiment(ledger, GNMT), "--details")
    assert len(named(shown, "curve")) == 4
    assert all("BLEU" in text for text in named(shown, "curve"))
    assert "95 % interval" in named(shown, "model")[0]
    assert "3, 4, 5, 6" in named(shown, "seeds")[0]


def test_json_has_every_run_with_its_curve(ledger: Path) -> None:
    answer = ask("run", GNMT, "--runs", "1", "--seed", "3", "--max-epochs", "6", "--json")
    (found,) = json.loads(answer.out)["results"]
    (run,) = found["quality"]["runs"]
    assert found["throughput"] is None
    assert (run["reached"], run["until_s"], run["epochs"], run["seed"]) == (False, None, 6, 3)
    assert [one["number"] for one in run["evaluations"]] == [1, 2, 3, 4, 5, 6]
    assert found["quality"]["target"] == {"BLEU": 95.0}
    assert found["quality"]["reached"] == {"count": 0, "of": 1, "low": 0.0, "high": pytest.approx(0.975)}


def test_one_run_shows_its_evaluations(ledger: Path) -> None:
    with Ledger.open(str(ledger)) as book:
        row = book.runs_of(experiment(ledger, MASKS))[0]
    shown = ask("show", row.id).out
    assert "epoch 5, 5,000 samples" in shown
    assert "target reached" in shown
    made = json.loads(ask("show", row.id, "--json").out)
    assert [one["reached"] for one in made["evaluations"]] == [False] * 4 + [True]


# --- pictures and reports


def test_a_picture_has_a_line_for_each_run_and_the_target(ledger: Path, tmp_path: Path) -> None:
    file = tmp_path / "curves.svg"
    assert ask("plot", experiment(ledger, GNMT), "--kind", "quality", "-o", str(file)).code == 0
    drawn = file.read_text()
    assert drawn.count('class="steps a0"') == 4
    assert drawn.count("target not reached") == 2
    assert drawn.count("stroke-dasharray") == 1
    assert "target BLEU 95" in drawn


def test_two_targets_are_two_pictures(ledger: Path, tmp_path: Path) -> None:
    file = tmp_path / "curves.svg"
    assert ask("plot", experiment(ledger, MASKS), "--kind", "quality", "-o", str(file)).code == 0
    assert "box mAP against time" in file.read_text()
    assert "mask mAP against time" in file.read_text()


@pytest.mark.usefixtures("ledger")
def test_what_was_not_trained_to_a_target_is_no_picture_of_quality(tmp_path: Path) -> None:
    assert ask("run", "--cmd", "echo 3 images/s", "--runs", "1").code == 0
    answer = ask("plot", "last", "--kind", "quality", "-o", str(tmp_path / "curves.svg"))
    assert answer.code == 2 or "last" in answer.err
    with_id = next(iter(json.loads(ask("experiments", "--json").out)["experiments"]))["id"]
    answer = ask("plot", with_id, "--kind", "quality", "-o", str(tmp_path / "curves.svg"))
    assert answer.code == 2
    assert "no evaluation" in answer.err


def test_a_report_of_runs_that_all_missed_their_target_says_so(ledger: Path, tmp_path: Path) -> None:
    made = json.loads(ask("run", GNMT, "--runs", "1", "--max-epochs", "3", "--json").out)
    file = tmp_path / "report.md"
    assert ask("report", made["results"][0]["experiment"], "-o", str(file)).code == 0
    assert "NO RESULT" in file.read_text()
    assert "BLEU 95 reached in 0 of 1 run" in file.read_text()
    assert "The target was not reached" in file.read_text()
    assert "Train it longer" in file.read_text()
    assert made["results"][0]["why"] == "no time to the target: 0 of 1 run reached it"


@pytest.mark.parametrize("ending", ["html", "md"])
def test_a_report_has_a_section_about_it(ledger: Path, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"report.{ending}"
    assert ask("report", experiment(ledger, GNMT), "-o", str(file)).code == 0
    assert "BLEU 95 reached in 2 of 4 runs" in file.read_text()
    if ending == "html":
        assert 'id="quality"' in file.read_text()


def test_a_narrow_picture_holds_everything() -> None:
    result = summed_up("fit/gnmt", {"BLEU": ""}, [run_of(40, 80, 96), run_of(40, 80, 90)])
    drawn = curves([result, None], "BLEU", NARROW)
    assert f'width="{NARROW.width:.0f}"' in drawn


# --- words


def test_a_share_says_the_end_that_is_not_its_own() -> None:
    assert say_share(share_of(5, 5)) == "at least 48 %, 95 %"
    assert say_share(share_of(0, 5)) == "at most 52 %, 95 %"
    assert say_share(share_of(2, 4)) == "7 to 93 %, 95 %"


def test_the_target_says_what_to_do_where_it_was_missed() -> None:
    result = summed_up("fit/gnmt", {"BLEU": ""}, [run_of(40, 80, 96), run_of(40, 80, 90, 91)])
    assert say_target(result, "give it more\nor less").splitlines()[1] == "give it more"
    good = summed_up("fit/gnmt", {"BLEU": ""}, [run_of(40, 80, 96)])
    assert say_target(good, "give it more") == "BLEU 95 reached in 1 of 1 run (at least 2 %, 95 %), after 3 epochs"


def test_many_runs_are_counted() -> None:
    said = say_times([run_of(40, 96, seed=seed) for seed in range(25)])
    assert said.startswith("20.0 s (2 epochs), 20.0 s (2)")
    assert said.endswith("and 5 more")


def test_a_score_below_a_minute_is_in_seconds() -> None:
    runs = [run_of(*[40] * number, 96) for number in (1, 2, 3)]
    assert say_score(summed_up("fit/gnmt", {}, runs)).startswith("30.0 s by MLPerf's rule, unofficial: 3 runs")
    slow = [run_of(*[40] * number, 96, step_s=100) for number in (1, 2, 3)]
    assert say_score(summed_up("fit/gnmt", {}, slow)).startswith("5 min by MLPerf's rule")
    ten = [run_of(*[40] * (1 + number % 3), 96) for number in range(10)]
    assert say_score(summed_up("fit/gnmt", {}, ten)) == "28.8 s by MLPerf's rule"


def test_a_long_curve_keeps_its_first_and_last_evaluation() -> None:
    run = run_of(*[float(number) for number in range(1, 97)])
    shown = chosen(run.evaluations)
    assert len(shown) == POINTS_SHOWN
    assert (shown[0].number, shown[-1].number) == (1, 96)
    assert "BLEU 96" in say_curve(run)


def test_very_many_evaluations_do_not_make_a_page_of_megabytes() -> None:
    run = run_of(*[0.01 * number for number in range(5000)])
    drawn = curves([summed_up("fit/gnmt", {"BLEU": ""}, [run])], "BLEU")
    assert drawn.count("<circle") < 300
    lines = evaluation_lines(run.evaluations)
    assert lines[-1] == "4,800 evaluations in between: --json"
    assert lines[-2].startswith("epoch 5000")


def test_the_share_of_the_seed_is_said_with_its_interval() -> None:
    runs = [run_of(*[40] * (1 + 2 * seed), 96 + again, seed=seed) for seed in range(3) for again in range(2)]
    assert "% of the variance of ln time is the seed's (95 % interval" in say_seeds(summed_up("fit/gnmt", {}, runs))


def test_json_holds_only_what_json_can() -> None:
    result = summed_up("fit/gnmt", {"BLEU": ""}, [run_of(40, 80, 96), run_of()])
    made: dict[str, Any] = json.loads(json.dumps(quality_json(result), allow_nan=False))
    assert [run["after_s"] for run in made["runs"]] == [20.0, 0.0]


def test_a_time_below_a_minute_is_said_in_seconds() -> None:
    minutes = figure_unit("1/min")
    assert minutes.scaled(60 / 45).say(60 / 45) == "45.00 s"
    assert minutes.scaled(60 / 90).say(60 / 90) == "1.500 min"
    assert minutes.scaled(4.0).say_bounds(3.0, 5.0) == "12.00 to 20.00"
    # A program's own unit stays.
    assert figure_unit("1/s").scaled(1000.0) == FigureUnit("s", higher_is_better=False)


# --- while it runs

EVALUATED = Evaluation(
    seq=1, t=30.0, number=3, epoch=3.0, samples=300, clock_s=30.0, quality={"BLEU": 43.04}, target={"BLEU": 95.0},
    reached=False,
)  # fmt: skip


def spec() -> Spec:
    return Spec(workload=GNMT, params={"target": "95"})


@pytest.mark.usefixtures("ledger")
def test_the_bar_shows_the_last_evaluation() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, legacy_windows=False)
    with LiveBar(console, unit_of=lambda _: "samples") as bar:
        bar.run_begins("r-1", 1, 5, spec())
        bar.event(Phase(seq=0, t=0, phase="measure", state="begin", expected_steps=20))
        bar.event(EVALUATED)
        (task,) = bar._progress.tasks
        assert "epoch 3: BLEU 43.04 of 95" in task.description


@pytest.mark.usefixtures("ledger")
def test_a_pipe_gets_a_line_now_and_then_and_with_v_all() -> None:
    for phases, lines in ((True, 2), (False, 0)):
        out = io.StringIO()
        watcher = PlainLines(out, phases=phases)
        watcher.run_begins("r-1", 1, 5, spec())
        watcher.event(Phase(seq=0, t=0, phase="measure", state="begin", expected_steps=20))
        watcher.event(EVALUATED)
        watcher.event(EVALUATED)
        assert out.getvalue().count("run 1/5  epoch 3: BLEU 43.04 of 95") == lines


@pytest.mark.usefixtures("ledger")
def test_a_pods_log_has_a_line_for_each_evaluation() -> None:
    people = for_people("text")
    assert people
    head = Hello(seq=0, t=0.0, time_unix_s=1.0, pid=1, spec=spec())
    begin = Phase(seq=0, t=0.0, phase="measure", state="begin", expected_steps=20)
    said = [
        line for event in (head, Facts(seq=0, t=0, subject="fit", facts={}), begin, EVALUATED) for line in people(event)
    ]
    assert "20 evaluations expected" in said[-2]
    assert said[-1] == "[stackmark 30.0 s] epoch 3: BLEU 43.04 of 95, after 30.0 s"
