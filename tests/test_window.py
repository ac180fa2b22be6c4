"""One window for all runs of an experiment: its rule on made-up runs, and what `stackmark verdict` says of it."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from asking import ask
from stackmark.events import Hello, Result, Steps, Stream, write_event
from stackmark.experiments.design import Arm, Design, StoppingRule
from stackmark.experiments.judging import judge
from stackmark.experiments.progress import in_common_windows
from stackmark.ids import new_id
from stackmark.ledger.rows import Experiment, RunStart
from stackmark.ledger.store import Ledger
from stackmark.places.place import Outcome
from stackmark.spec import Spec
from stackmark.verdict.sequential import stopping_rule
from stackmark.verdict.steady import find_steady
from stackmark.verdict.throughput import TimedRun, common_window, first_step_in, rate_in

Floats = NDArray[np.float64]
STEP_S, TICK_S = 0.01, 1e-9
SPEC = Spec(workload="train/resnet20", params={"device": "cpu", "batch": 2, "seconds": 2.0})


def noisy(course: Floats, seed: int, cv: float = 0.005) -> Floats:
    return STEP_S * course * (1 + cv * np.random.default_rng(seed).standard_normal(course.size))


def warm(steps: int, slow: int, seed: int = 1, times: float = 1.1) -> Floats:
    """A run whose first steps are slower."""
    return noisy(np.where(np.arange(steps) < slow, times, 1.0), seed)


def timed(step_s: Floats, samples: int = 1) -> TimedRun:
    steady = find_steady(step_s, TICK_S)
    return TimedRun(step_s, steady.kind, steady.settled_step, samples)


def test_the_window_starts_at_the_latest_end_of_warm_up_and_holds_for_all_runs() -> None:
    runs = [timed(warm(1000, slow, seed)) for seed, slow in enumerate((0, 100, 300))]
    window = common_window(runs)
    assert (window.by, window.runs, window.late) == ("warm-up", 3, 0)
    assert window.start_s == pytest.approx(3.3, rel=0.02)
    # The flat run has done 330 steps by then, the slow starter 300.
    assert [first_step_in(window, run) for run in runs] == pytest.approx([330, 320, 300], abs=4)
    for run in runs:
        assert rate_in(window, run) == pytest.approx(1 / run.step_s[first_step_in(window, run) :].mean())


def test_without_a_warm_up_all_steps_count() -> None:
    window = common_window([timed(warm(1000, 0, seed)) for seed in range(4)])
    assert window.start_s == 0


def test_a_run_that_warms_up_for_longer_than_half_is_late_and_does_not_move_the_window() -> None:
    runs = [timed(warm(1000, slow, seed)) for seed, slow in enumerate((0, 100, 700))]
    assert [run.late for run in runs] == [False, False, True]
    window = common_window(runs)
    assert window.start_s == pytest.approx(1.1, rel=0.02)
    assert window.late == 1
    # It is measured over the same window, in which it still warms up.
    assert rate_in(window, runs[2]) < 0.97 / STEP_S


def test_where_most_runs_are_late_the_window_starts_at_half_of_the_run() -> None:
    runs = [timed(warm(1000, slow, seed)) for seed, slow in enumerate((0, 700, 700))]
    window = common_window(runs)
    assert (window.by, window.late) == ("no steady state", 2)
    assert first_step_in(window, runs[0]) == pytest.approx(500, abs=2)


def test_a_slow_down_near_the_end_is_not_a_late_warm_up() -> None:
    run = timed(noisy(np.where(np.arange(1000) < 700, 1.0, 1.1), 3))
    assert (run.kind, run.late) == ("no steady state", False)


def test_a_run_shorter_than_the_window_is_measured_over_its_second_half() -> None:
    long, short = timed(warm(3000, 1000)), timed(warm(600, 0, seed=2))
    window = common_window([long, short])
    assert window.start_s == pytest.approx(11.0, rel=0.02)
    assert first_step_in(window, short) == pytest.approx(300, abs=2)


def test_a_run_too_short_to_tell_has_its_half_as_the_end_of_its_warm_up() -> None:
    window = common_window([timed(warm(1000, 0)), timed(warm(150, 0, seed=2))])
    assert window.by == "too short to tell"
    assert window.start_s == pytest.approx(0.75, rel=0.02)


def test_a_common_drift_no_longer_spreads_the_runs_by_their_class() -> None:
    """3 % from beginning to end: in some runs a level is found that holds for half of the run, in others not."""
    rng = np.random.default_rng(4)
    drift = np.linspace(1.0, 1.03, 1000)
    runs = [timed(STEP_S * drift * (1 + 0.02 * rng.standard_normal(1000))) for _ in range(24)]
    window = common_window(runs)
    own = np.log([1 / run.step_s[run.own_first_step :].mean() for run in runs])
    together = np.log([rate_in(window, run) for run in runs])
    assert len({run.kind for run in runs}) > 1
    assert own.std(ddof=1) > 0.0025
    assert together.std(ddof=1) < 0.0013


def stream_of(step_s: Floats) -> list[str]:
    parts = [
        Hello(seq=0, t=0, time_unix_s=1.0, pid=1),
        *(
            Steps(seq=0, t=0, phase="measure", first=first, step_s=list(map(float, step_s[first : first + 200])))
            for first in range(0, step_s.size, 200)
        ),
        Result(
            seq=0, t=0, sample="image", samples_per_step=2, steps=step_s.size, wall_s=float(step_s.sum()), tick_s=TICK_S
        ),
    ]
    return [write_event(part.model_copy(update={"seq": seq, "t": float(seq)})) for seq, part in enumerate(parts)]


def stored(book: Ledger, blocks: Sequence[Sequence[Floats]], rule: StoppingRule | None = None) -> str:
    """An experiment of two arms, given the steps of each run by block and arm."""
    arms = [Arm(label=label, place="host", spec=SPEC) for label in ("a", "b")]
    planned = rule.looks[-1] if rule else len(blocks)
    design = Design(arms=arms, blocks=planned, seed=1, margin=0.01, primers=False, rule=rule)
    experiment = Experiment(
        id=new_id("x"), created_unix_s=1e9, kind="compare", design=design.model_dump(mode="json"), command="stackmark"
    )
    book.start_experiment(experiment)
    at = 0
    for block, of_arms in enumerate(blocks):
        for arm, step_s in enumerate(of_arms):
            lines = stream_of(step_s)
            run = RunStart(
                id=new_id("r"), experiment_id=experiment.id, position=at, arm=arm, block=block, spec=SPEC, place="host",
                started_unix_s=1e9 + 30 * at, machine_id="m", boot_id="b", driver_pid=1, stackmark_version="0",
            )  # fmt: skip
            book.start(run)
            stream = Stream()
            for line in lines:
                stream.feed(line)
            end = judge(stream, Outcome(0)).model_copy(update={"ended_unix_s": 1e9 + 30 * at + 20})
            book.finish(run.id, end, lines)
            at += 1
    return experiment.id


def test_a_verdict_measures_all_runs_over_one_window_and_says_so(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.sqlite3")
    with Ledger.open(ledger) as book:
        # One run of b shows a warm-up that the others have as well: 2 % in the first third, too little for a class of theirs.
        fast = [warm(900, 300, seed=10 * block, times=1.008) for block in range(4)]
        slow = [warm(900, 300, seed=10 * block + 1, times=1.1 if block == 2 else 1.008) for block in range(4)]
        experiment = stored(book, list(zip(fast, slow, strict=True)))
    done = ask("verdict", experiment, "--json", "--ledger", ledger)
    assert done.code == 0, done.err
    shown = json.loads(done.out)
    assert shown["window"]["start_s"] == pytest.approx(3.3, rel=0.03)
    assert (shown["window"]["by"], shown["window"]["runs"]) == ("warm-up", 8)
    assert any("3.3" in sentence and "window" in sentence for sentence in shown["method"])
    assert [arm["steadiness"] for arm in shown["arms"]] == [{"flat": 4}, {"flat": 3, "warm-up": 1}]
    flat = [run for run in shown["runs"] if run["steady"] == "flat"]
    # The first third of each counts in its own rate, which is the stored one, and not in the verdict.
    assert all(run["rate_per_s"] > 1.002 * run["own_rate_per_s"] for run in flat)
    assert all(run["first_step"] > 300 for run in flat)
    assert shown["comparisons"][0]["word"] == "EQUIVALENT"
    with Ledger.open(ledger) as book:
        rates = {row.id: row.rate_per_s for row in book.runs_of(experiment)}
        together = {row.id: row.rate_per_s for row in in_common_windows(book, book.runs_of(experiment))}
    assert {run["run_id"]: run["own_rate_per_s"] for run in shown["runs"]} == rates
    # What `run` and `check` print of such runs are the same rates.
    assert {run["run_id"]: run["rate_per_s"] for run in shown["runs"]} == pytest.approx(together)


def test_a_look_measures_over_the_window_of_its_own_runs_and_stays_as_it_was(tmp_path: Path) -> None:
    """After four blocks it is decided; runs that come later, with a longer warm-up, do not change what that look showed."""
    levels = stopping_rule([4, 6])
    rule = StoppingRule(
        kind=levels.kind, alpha=levels.alpha, looks=[4, 6], levels=list(levels.one_sided), levels_95=list(levels.two_sided)
    )  # fmt: skip
    ledger = str(tmp_path / "ledger.sqlite3")
    blocks = [(warm(900, 100, 2 * block), warm(900, 0, 2 * block + 1)) for block in range(6)]
    blocks[5] = warm(900, 400, 50), warm(900, 400, 51)
    windows = []
    for count in (4, 6):
        with Ledger.open(ledger) as book:
            experiment = stored(book, blocks[:count], rule)
        windows.append(json.loads(ask("verdict", experiment, "--json", "--ledger", ledger).out)["window"])
    assert windows[0] == windows[1]
    assert windows[0]["runs"] == 8
    assert windows[0]["start_s"] == pytest.approx(1.1, rel=0.03)


def test_late_runs_and_pauses_of_one_arm_stand_beside_the_verdict(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.sqlite3")
    with Ledger.open(ledger) as book:
        blocks = []
        for block in range(4):
            a = warm(900, 700 if block == 1 else 0, seed=20 + block)
            b = warm(900, 0, seed=30 + block)
            b[49::50] *= 3
            blocks.append((a, b))
        experiment = stored(book, blocks)
    shown = json.loads(ask("verdict", experiment, "--json", "--ledger", ledger).out)
    a, b = shown["arms"]
    assert (a["late_runs"], b["late_runs"]) == (1, 0)
    assert a["steadiness"] == {"flat": 3, "no steady state": 1}
    assert b["steadiness"] == {"flat": 4}
    assert b["pause_share"] == pytest.approx(2 / 52, rel=0.02)
    assert any(one["text"].startswith("1 of 4") for one in shown["warnings"])
    assert any(one["text"].startswith("pauses") for one in shown["warnings"])
