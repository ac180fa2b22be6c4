"""The same command measures the same thing: what a probe chose before is used again on the same machine and chip."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from asking import Answer, ask
from stackmark.errors import Exit, WorkerError
from stackmark.experiments import remembered
from stackmark.experiments.recorder import Silent
from stackmark.experiments.remembered import find_chosen
from stackmark.ledger.store import Ledger
from stackmark.places.registry import find_place
from stackmark.spec import Request, Scalar

TYPED: dict[str, Scalar] = {"steps": 3, "warmup_seconds": 0.0, "tune": "off"}
RUN = ("run", "train/trivial_cifar10", "--steps", "3", "--warmup-seconds", "0", "--tune", "off", "--runs", "1")
REQUEST = Request(workload="train/trivial_cifar10", params=TYPED)
# Neither the table's nor any other that a probe would choose.
BATCH = 5


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Any]]:
    """The ledger after one real run, and what the run printed."""
    file = tmp_path_factory.mktemp("remembered") / "ledger.sqlite3"
    result = result_of(ask(*RUN, "--json", "--ledger", str(file)))
    return file.read_bytes(), result


@pytest.fixture
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: tuple[bytes, dict[str, Any]]) -> Path:
    """The same ledger, in which the probe had chosen another batch."""
    file = tmp_path / "ledger.sqlite3"
    monkeypatch.setenv("STACKMARK_LEDGER", str(file))
    file.write_bytes(measured[0])
    chosen = measured[1]["spec"]["params"]["batch"]
    change(file, f"""UPDATE runs SET spec = replace(spec, '"batch":{chosen}', '"batch":{BATCH}'), batch = {BATCH}""")
    return file


def result_of(answer: Answer) -> dict[str, Any]:
    assert answer.code == Exit.DONE, answer
    found: dict[str, Any] = json.loads(answer.out)["results"][0]
    return found


def change(file: Path, statement: str) -> None:
    with Ledger.open(str(file)) as book:
        book.writing(lambda connection: connection.exec_driver_sql(statement))


def remembered_batch(file: Path, request: Request = REQUEST, place: str = "host") -> object:
    with Ledger.open(str(file)) as book:
        found = find_chosen(request, find_place(place, {}), book)
    return found.values["batch"] if found else None


def test_the_same_command_takes_the_choice_of_before(ledger_file: Path) -> None:
    first = result_of(ask(*RUN, "--json"))
    again = result_of(ask(*RUN, "--json"))
    assert first["spec"]["params"]["batch"] == BATCH
    assert again["spec_digest"] == first["spec_digest"]
    assert set(again["choices"]) == set(first["choices"])


@pytest.mark.parametrize(("options", "chip"), [(("--choose-again",), None), ((), "another")])
def test_on_another_chip_and_on_request_it_is_chosen_anew(
    ledger_file: Path, measured: tuple[bytes, dict[str, Any]], options: tuple[str, ...], chip: str | None
) -> None:
    if chip:
        change(ledger_file, f"UPDATE runs SET chip = '{chip}'")
    assert result_of(ask(*RUN, *options, "--json"))["spec"] == measured[1]["spec"]


def test_the_command_to_repeat_it_types_every_choice(tmp_path: Path, measured: tuple[bytes, dict[str, Any]]) -> None:
    words = shlex.split(measured[1]["repeat"])
    assert words[:3] == ["stackmark", "run", "train/trivial_cifar10"]
    elsewhere = tmp_path / "elsewhere.sqlite3"
    again = result_of(ask(*words[1:], "--ledger", str(elsewhere)))
    assert again["spec_digest"] == measured[1]["spec_digest"]
    assert again["choices"] == {}


def test_a_report_repeats_it_with_every_choice_too(tmp_path: Path, measured: tuple[bytes, dict[str, Any]]) -> None:
    file = tmp_path / "ledger.sqlite3"
    file.write_bytes(measured[0])
    report = ask("report", "last", "--format", "markdown", "--ledger", str(file))
    assert report.code == Exit.DONE, report
    assert measured[1]["repeat"] in report.out


def test_a_command_for_several_measurements_is_not_pinned(tmp_path: Path) -> None:
    file = str(tmp_path / "ledger.sqlite3")
    words = (
        "run",
        "train/trivial_cifar10",
        *RUN[2:],
        "--precision",
        "fp32,bf16",
        "--batch",
        "2",
        "--json",
        "--ledger",
        file,
    )
    for one in json.loads(ask(*words).out)["results"]:
        assert one["repeat"] == one["command"]


@pytest.mark.parametrize(
    "changed",
    [
        "UPDATE runs SET machine_id = 'another'",
        "UPDATE runs SET status = 'failed', failure_kind = 'oom', rate_per_s = NULL",
        "UPDATE runs SET role = 'primer'",
        "UPDATE experiments SET kind = 'check'",
        """UPDATE experiments SET request = replace(request, '"choices"', '"others"')""",
        """UPDATE experiments SET request = replace(request, '"steps":3', '"steps":4')""",
        """UPDATE experiments SET request = replace(request, '"ranks":1', '"ranks":2')""",
    ],
)
def test_only_a_good_run_that_was_asked_for_alike_here_is_remembered(ledger_file: Path, changed: str) -> None:
    assert remembered_batch(ledger_file) == BATCH
    change(ledger_file, changed)
    assert remembered_batch(ledger_file) is None


def test_another_place_and_other_words_choose_for_themselves(ledger_file: Path) -> None:
    assert remembered_batch(ledger_file, place="container") is None
    assert remembered_batch(ledger_file, Request(workload=REQUEST.workload, params={**TYPED, "seed": 2})) is None
    auto = Request(workload=REQUEST.workload, params={**TYPED, "batch": "auto"})
    assert remembered_batch(ledger_file, auto) == BATCH


def test_a_ledger_cannot_type_what_a_probe_may_not_choose(ledger_file: Path) -> None:
    change(
        ledger_file,
        """UPDATE experiments SET request = replace(request, '"choices":{', '"choices":{"checkpoint_dir":"x","data":"x",')""",
    )
    with Ledger.open(str(ledger_file)) as book:
        found = find_chosen(REQUEST, find_place("host", {}), book)
    assert found is not None
    assert not {"checkpoint_dir", "data", "device"} & set(found.values)


@pytest.mark.parametrize(("kind", "offered"), [("missing_package", False), ("out_of_device_memory", True)])
def test_a_new_choice_is_offered_only_where_a_choice_may_be_the_cause(
    ledger_file: Path, monkeypatch: pytest.MonkeyPatch, kind: str, offered: bool
) -> None:
    def fail(*_: object) -> None:
        raise WorkerError("it failed", kind=kind)

    monkeypatch.setattr(remembered, "resolve", fail)
    with Ledger.open(str(ledger_file)) as book, pytest.raises(WorkerError) as caught:
        remembered.resolve_as_before(REQUEST, find_place("host", {}), book, Silent())
    assert ("--choose-again" in (caught.value.hint or "")) == offered
