"""Bad input gets a sentence and the documented exit code; no traceback, no control character, nothing stored."""

import json
import os
import pty
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asking import COMMAND, ESC, Answer, ask, ask_process, environment
from ledger_runs import DONE, begin, complete
from naming import missing
from stackmark.cli.main import ITSELF_FAILED
from stackmark.errors import Exit
from stackmark.ledger.rows import RunFilter
from stackmark.ledger.store import Ledger
from wrong_commands import RUN, WRONG


@pytest.fixture(autouse=True)
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty place for a ledger; and SIGTERM is ours again afterwards."""
    file = tmp_path / "ledger.sqlite3"
    monkeypatch.setenv("STACKMARK_LEDGER", str(file))
    before = signal.getsignal(signal.SIGTERM)
    yield file
    signal.signal(signal.SIGTERM, before)


def is_a_sentence(answer: Answer, code: Exit) -> None:
    assert answer.code == code, answer
    assert answer.out == ""
    assert answer.err.startswith("stackmark: ")
    assert "Traceback" not in answer.err
    assert ITSELF_FAILED not in answer.err
    assert not any(ord(char) < 32 and char != "\n" for char in answer.err)


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_a_sentence(case: str, ledger_file: Path) -> None:
    arguments, named = WRONG[case]
    answer = ask(*arguments)
    is_a_sentence(answer, Exit.WRONG_USE)
    assert [part for part in named if part not in answer.err] == []
    assert not ledger_file.exists(), "nothing was begun, so there is nothing to store"


@pytest.mark.parametrize(
    ("verb", "rest"),
    [
        ("run", ("train/lenet", "--on", "container", "--shm", "1gigabyte")),
        ("noise", ("train/lenet", "--on", "container", "--shm", "1gigabyte")),
        ("compare", ("train/lenet", "--arm", "host", "--arm", "container,shm=1gigabyte")),
        ("facts", ("--on", "container,shm=1gigabyte")),
        ("manifest", ("train/lenet", "--memory", "1gigabyte")),
        ("baseline save", ("x", "train/lenet", "--on", "container", "--shm", "1gigabyte")),
        ("cluster sweep", ("train/lenet", "--memory", "1gigabyte")),
        ("cluster doctor", ("--bogus",)),
    ],
)
def test_a_hint_names_the_help_of_the_command_that_was_typed(verb: str, rest: tuple[str, ...]) -> None:
    answer = ask(*verb.split(), *rest)
    is_a_sentence(answer, Exit.WRONG_USE)
    assert f"stackmark {verb} --help\n" in answer.err


@given(arguments=st.lists(st.text(st.characters(exclude_characters="\0"), max_size=8), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_typed_is_answered(arguments: list[str], ledger_file: Path) -> None:
    answer = ask(*arguments)
    assert answer.code in {Exit.DONE, Exit.WRONG_USE, Exit.LEDGER_FAILED}
    assert ITSELF_FAILED not in answer.err
    assert not ledger_file.exists()


def test_bytes_that_are_no_text_are_shown(ledger_file: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "run", b"train/\xff\xfe"], env=environment(ledger_file), capture_output=True, check=False
    )
    assert done.returncode == Exit.WRONG_USE
    assert rb"train/\udcff\udcfe" in done.stderr


def test_a_list_is_checked_whole_before_anything_is_measured(ledger_file: Path) -> None:
    is_a_sentence(ask(*RUN, "--batch", "2,4,-8"), Exit.WRONG_USE)
    assert not ledger_file.exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("run", "train/lenet,train/lenet"), "workloads has train/lenet twice"),
        (("run", "train/lenet", "--batch", "8,16,8"), "--batch has 8 twice"),
        (("run", "train/lenet", "--ranks", "2,2"), "--ranks has 2 twice"),
        (
            ("compare", "train/lenet,train/lenet", "--arm", "host", "--arm", "container"),
            "workloads has train/lenet twice",
        ),
    ],
)
def test_a_value_that_a_list_has_twice_is_refused(words: tuple[str, ...], named: str, ledger_file: Path) -> None:
    answer = ask(*words)
    is_a_sentence(answer, Exit.WRONG_USE)
    assert named in answer.err
    assert not ledger_file.exists()


@pytest.mark.parametrize("arguments", [("results",), ("show", "last"), ("delete", "x"), ("export", "--format", "csv")])
def test_a_ledger_that_is_not_there_is_not_made_by_looking(arguments: tuple[str, ...], ledger_file: Path) -> None:
    answer = ask(*arguments)
    is_a_sentence(answer, Exit.LEDGER_FAILED)
    assert str(ledger_file) in answer.err
    assert not ledger_file.exists()


@pytest.mark.parametrize("arguments", [("results",), RUN])
def test_a_ledger_that_is_a_folder(arguments: tuple[str, ...], tmp_path: Path) -> None:
    is_a_sentence(ask(*arguments, "--ledger", str(tmp_path)), Exit.LEDGER_FAILED)


def test_a_ledger_that_is_not_a_ledger(ledger_file: Path) -> None:
    ledger_file.write_bytes(b"this is no database, and long enough that nobody takes it for an empty one" * 20)
    is_a_sentence(ask("results"), Exit.LEDGER_FAILED)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_ledger_that_may_not_be_read(ledger_file: Path) -> None:
    with Ledger.open(str(ledger_file)) as book:
        complete(book)
    ledger_file.chmod(0)
    is_a_sentence(ask("results"), Exit.LEDGER_FAILED)


def test_a_ledger_that_is_locked(ledger_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(str(ledger_file)) as book:
        run_id = complete(book)
    monkeypatch.setattr("stackmark.ledger.store.Ledger.open.__func__.__kwdefaults__", {"create": True, "busy_s": 0.2})
    other = sqlite3.connect(ledger_file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        answer = ask("delete", run_id, "--yes")
    finally:
        other.close()
    is_a_sentence(answer, Exit.LEDGER_FAILED)
    assert "locked" in answer.err


def test_an_unknown_run_is_a_sentence(ledger_file: Path) -> None:
    with Ledger.open(str(ledger_file)) as book:
        complete(book)
    for name in ("r-zzzz", "", "résumé", f"{ESC}[2J", "x-zzzz"):
        is_a_sentence(ask("show", name), Exit.WRONG_USE)


def test_an_ambiguous_run_is_answered_with_those_it_may_be(ledger_file: Path) -> None:
    with Ledger.open(str(ledger_file)) as book:
        ids = [complete(book), complete(book)]
    answer = ask("show", "r-")
    is_a_sentence(answer, Exit.WRONG_USE)
    assert all(run_id in answer.err for run_id in ids)


def test_an_empty_ledger_has_no_last_run(ledger_file: Path) -> None:
    Ledger.open(str(ledger_file)).close()
    is_a_sentence(ask("show", "last"), Exit.WRONG_USE)


def test_deleting_without_anybody_to_ask_deletes_nothing(ledger_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(str(ledger_file)) as book:
        run_id = complete(book)
    with open(os.devnull) as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        is_a_sentence(ask("delete", run_id), Exit.WRONG_USE)
    with Ledger.open(str(ledger_file)) as book:
        assert book.count() == 1


def test_one_unknown_run_in_a_list_deletes_none(ledger_file: Path) -> None:
    with Ledger.open(str(ledger_file)) as book:
        run_id = complete(book)
    is_a_sentence(ask("delete", run_id, "r-zzzz", "--yes"), Exit.WRONG_USE)
    with Ledger.open(str(ledger_file)) as book:
        assert book.count() == 1


def test_an_empty_name_is_not_the_beginning_of_every_id(ledger_file: Path) -> None:
    with Ledger.open(str(ledger_file)) as book:
        complete(book)
    is_a_sentence(ask("delete", "", "--yes"), Exit.WRONG_USE)
    with Ledger.open(str(ledger_file)) as book:
        assert book.count() == 1


def test_a_run_that_is_running_is_not_deleted(ledger_file: Path) -> None:
    with Ledger.open(str(ledger_file)) as book:
        run_id = begin(book)
    is_a_sentence(ask("delete", run_id, "--yes"), Exit.WRONG_USE)


@pytest.mark.parametrize(("typed", "left"), [("n\n", 1), ("\n", 1), ("y\n", 0)])
def test_deleting_asks_on_a_terminal(typed: str, left: int, ledger_file: Path) -> None:
    with Ledger.open(str(ledger_file)) as book:
        run_id = complete(book)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "delete", run_id], env=environment(ledger_file), stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        os.write(ours, typed.encode())
        assert process.wait(60) == Exit.DONE
    said = os.read(ours, 65536).decode()
    os.close(ours)
    assert missing(said, "1 run") == []
    with Ledger.open(str(ledger_file)) as book:
        assert book.count(RunFilter()) == left


def test_an_unknown_subject_of_facts_is_answered_with_those_there_are(ledger_file: Path) -> None:
    answer = ask("facts", "gpus")
    is_a_sentence(answer, Exit.WRONG_USE)
    assert missing(answer.err, "gpus", "gpu", "software") == []


def test_an_export_to_a_folder_that_is_not_there(ledger_file: Path, tmp_path: Path) -> None:
    with Ledger.open(str(ledger_file)) as book:
        complete(book)
    is_a_sentence(ask("export", "--format", "csv", "-o", str(tmp_path / "no" / "runs.csv")), Exit.WRONG_USE)


READING = [("results",), ("results", "--json"), ("show", "last"), ("show", "last", "--json"), ("workloads",),
           ("export", "--format", "csv"), ("--help",)]  # fmt: skip


@pytest.fixture
def many_runs(ledger_file: Path) -> Path:
    """More output than a pipe holds, so that a reader who leaves is noticed."""
    with Ledger.open(str(ledger_file)) as book:
        for _ in range(60):
            complete(book, DONE.model_copy(update={"flags": ["a flag of some length " * 200]}))
    return ledger_file


def test_a_reader_who_has_seen_enough_is_no_failure(many_runs: Path) -> None:
    for arguments in (("results", "--limit", "60", "--json"), ("export", "--format", "json")):
        with subprocess.Popen(
            [*COMMAND, *arguments], env=environment(many_runs), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(60) == Exit.DONE


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_an_output_that_is_full_is_a_sentence(arguments: tuple[str, ...], ledger_file: Path) -> None:
    with Ledger.open(str(ledger_file)) as book:
        complete(book)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], env=environment(ledger_file), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == Exit.PLACE_FAILED
    assert done.stderr.startswith(b"stackmark: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(closed: str, ledger_file: Path) -> None:
    with Ledger.open(str(ledger_file)) as book:
        complete(book)
    command = f'"$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", command, "sh", *COMMAND, "results"], env=environment(ledger_file), capture_output=True, check=False
    )
    assert done.returncode == Exit.DONE
    assert done.stderr == b""
    assert (b"train/resnet50" in done.stdout) == (">&-" not in closed.split())


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_encoding_will_do(encoding: str, ledger_file: Path) -> None:
    chip = "Grafikkarte für µ ± 雷"
    with Ledger.open(str(ledger_file)) as book:
        complete(book, DONE.model_copy(update={"chip": chip}))
    answer = ask_process(ledger_file, "show", "last", PYTHONIOENCODING=encoding)
    assert answer.code == Exit.DONE
    answer = ask_process(ledger_file, "show", "last", "--json", PYTHONIOENCODING=encoding)
    assert json.loads(answer.out)["run"]["chip"] == chip


def test_colour_is_for_terminals_that_want_it(ledger_file: Path) -> None:
    for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [*COMMAND, "rnu"], env=environment(ledger_file, **variables), stdout=theirs, stderr=theirs
        ) as process:
            os.close(theirs)
            assert process.wait(60) == Exit.WRONG_USE
        said = os.read(ours, 65536).decode()
        os.close(ours)
        assert (ESC in said) == coloured


def test_a_bug_of_ours_is_called_that_and_debug_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "one over nothing"

    def broken(*_: object) -> None:
        raise ZeroDivisionError(why)

    monkeypatch.setattr("stackmark.cli.workloads.definitions", broken)
    answer = ask("workloads")
    assert answer.code == Exit.RUN_FAILED
    assert missing(answer.err, ITSELF_FAILED, "ZeroDivisionError", why, "--debug") == []
    assert "Traceback" not in answer.err
    assert "Traceback" in ask("workloads", "--debug").err


def test_debug_shows_where_a_sentence_came_from() -> None:
    assert "Traceback" in ask("--debug", "run", "resnet51").err


def test_sigterm_ends_it_with_its_code(ledger_file: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, *RUN, "--seconds", "60"],
        env=environment(ledger_file),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.terminate()
        assert process.wait(60) == Exit.TERMINATED
        assert b"terminated" in process.stderr.read()
