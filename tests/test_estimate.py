"""How long an experiment will take, before its first run."""

from pathlib import Path

import pytest

from ledger_runs import DONE, LINES, SPEC, T0, begin
from stackmark.experiments.driver import machine_name
from stackmark.experiments.estimate import estimate, of_arms, of_one_arm, run_time
from stackmark.ledger.store import Ledger
from stackmark.spec import Spec

TIMED = Spec(workload="train/lenet", params={"seconds": 10.0, "warmup_seconds": 5.0, "steps": 0})


def made(book: Ledger, seconds: float, *, machine: str | None = None, place: str = "host") -> None:
    """A run of SPEC that took so long."""
    run = begin(book, machine=machine or machine_name(), place=place)
    book.finish(run, DONE.model_copy(update={"ended_unix_s": T0 + seconds}), LINES)


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    return Ledger.open(str(tmp_path / "l.sqlite3"))


def test_runs_of_the_same_spec_on_this_machine_say_how_long_the_next_takes(book: Ledger) -> None:
    for seconds in (40.0, 30.0, 50.0):
        made(book, seconds)
    made(book, 4000.0, machine="another")
    made(book, 5000.0, place="container")
    found = of_one_arm(book, SPEC, "host", 5, probe_s=1.0)
    assert found is not None
    assert (found.seconds, found.runs, found.measured_before) == (200.0, 5, True)


def test_without_such_runs_the_settings_and_the_probe_do(book: Ledger) -> None:
    found = of_one_arm(book, TIMED, "host", 3, probe_s=4.0)
    assert found is not None
    assert (found.seconds, found.measured_before) == (3 * 19.0, False)
    assert of_one_arm(book, TIMED, "host", 3) is None


@pytest.mark.parametrize("params", [{"seconds": 10.0, "steps": 300}, {"cmd": "sleep 1"}])
def test_nothing_is_promised_where_nothing_tells(book: Ledger, params: dict[str, float | str]) -> None:
    assert run_time(book, Spec(workload="command/own", params=params), "host", 1.0) is None


def test_arms_are_added_up_and_an_unknown_one_leaves_no_estimate(book: Ledger) -> None:
    made(book, 40.0)
    arms = [("host", SPEC, "host"), ("timed", TIMED, "host")]
    found = of_arms(book, arms, 6, probe_s=5.0, extra_s=12.0, at_most=True)
    assert found is not None
    assert (found.seconds, found.runs, found.at_most) == (6 * (40 + 20) + 12, 12, True)
    assert dict(found.run_s) == {"host": 40.0, "timed": 20.0}
    assert of_arms(book, arms, 6) is None
    assert estimate({}, {}) is None
