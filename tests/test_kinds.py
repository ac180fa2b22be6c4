"""What an experiment is stands in one table, and a command that does not fit it says which one does."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

from asking import ask
from stackmark.errors import Exit
from stackmark.experiments.kinds import KINDS, OPERATOR_LIST, kind_in, kind_of
from stackmark.ids import new_id
from stackmark.ledger.rows import Experiment, Kind
from stackmark.ledger.store import Ledger

ARMLESS = ["sweep", "fault"]
UNORDERED = ["run", "check", "import", "sweep", "fault"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite3"


def stored(file: Path, kind: Kind) -> Experiment:
    experiment = Experiment(id=new_id("x"), created_unix_s=1.0, kind=kind, design={})
    with Ledger.open(str(file)) as book:
        book.start_experiment(experiment)
    return experiment


def test_every_kind_that_a_ledger_has_is_in_the_table(file: Path) -> None:
    assert {*KINDS} == {*get_args(Kind), OPERATOR_LIST.name}
    for kind in get_args(Kind):
        experiment = stored(file, kind)
        assert kind_of(experiment).name == kind
        with Ledger.open(str(file)) as book:
            assert kind_in(book, experiment) is kind_of(experiment)


@pytest.mark.parametrize("kind", ARMLESS)
@pytest.mark.parametrize("command", [["verdict"], ["report", "-o", "r.html"], ["roofline"]], ids=lambda one: one[0])
def test_what_has_no_arms_is_refused_with_the_command_that_fits(file: Path, kind: Kind, command: Sequence[str]) -> None:
    refused(file, stored(file, kind), command)


@pytest.mark.parametrize("kind", [kind for kind in UNORDERED if kind not in ("run", "sweep")])
def test_only_what_has_an_order_or_a_number_of_runs_is_resumed(file: Path, kind: Kind) -> None:
    refused(file, stored(file, kind), ["resume"])


@pytest.mark.parametrize("kind", [kind for kind in get_args(Kind) if kind != "sweep"])
def test_only_a_sweep_is_resumed_as_one(file: Path, kind: Kind) -> None:
    refused(file, stored(file, kind), ["cluster", "sweep", "--resume"])


def refused(file: Path, experiment: Experiment, command: Sequence[str]) -> None:
    answer = ask(*command, experiment.id, "--ledger", str(file))
    kind = kind_of(experiment)
    assert (answer.code, answer.out) == (Exit.WRONG_USE, "")
    assert all(named in answer.err for named in (experiment.id, kind.title, f"`{kind.made_by}`"))
    assert kind.see.format(id=experiment.id) in answer.err
