"""The command line as a person uses it: one real measurement, and its recorded stream played back in other ways."""

import csv
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import ledger_runs
from asking import ESC, Answer, ask, ask_process
from naming import missing
from stackmark import ids
from stackmark.cli.main import our_verbs
from stackmark.errors import Exit, PlaceError
from stackmark.events import Failed, Hello, Phase, Probe, Result, read_event, write_event
from stackmark.experiments import cleaning, driver
from stackmark.failures import PlaceFailure
from stackmark.ledger.rescue import WholeRun, add_whole
from stackmark.ledger.rows import Experiment, RunDetail, RunStart
from stackmark.ledger.store import Ledger
from stackmark.places.place import Outcome, Watch
from stackmark.places.replay import ReplayPlace
from stackmark.show.live import PlainLines
from stackmark.spec import Scalar, Task
from stackmark.workloads.impl.devices import usual_precision

# As cheap as a measurement can be: most of it is importing the framework.
CHEAP = ("run", "train/lenet", "--batch", "2", "--steps", "5", "--warmup-steps", "1", "--warmup-seconds", "0")


@dataclass(frozen=True)
class Measured:
    ledger: Path
    answer: Answer


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """One real measurement of two runs, for all tests of this file. Nobody writes into its ledger."""
    ledger = tmp_path_factory.mktemp("measured") / "ledger.sqlite3"
    return Measured(ledger, ask_process(ledger, *CHEAP, "--runs", "2", "--debug"))


@pytest.fixture
def recorded(measured: Measured) -> tuple[RunDetail, list[str]]:
    with Ledger.open(str(measured.ledger)) as book:
        row = book.run("last")
        return row, book.stream(row.id)


@pytest.fixture(autouse=True)
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / "ledger.sqlite3"
    monkeypatch.setenv("STACKMARK_LEDGER", str(file))
    before = signal.getsignal(signal.SIGTERM)
    yield file
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def replay(recorded: tuple[RunDetail, list[str]], monkeypatch: pytest.MonkeyPatch) -> "Replay":
    return Replay(*recorded, monkeypatch)


# What a worker says, and is to come out as it was said.
FELL, PUSH, REASON = "the card fell out", "push it back in", "it starts at once"


@dataclass(frozen=True)
class Replay:
    """Puts a recorded stream where the host would be."""

    row: RunDetail
    lines: list[str]
    monkeypatch: pytest.MonkeyPatch

    @property
    def probe(self) -> list[str]:
        return self.answer_to()

    def answer_to(self, workload: str = "train/lenet", **typed: Scalar) -> list[str]:
        """What a probe answers where this was typed otherwise than in the recorded run."""
        params = {**self.row.spec.params, **typed}
        spec = self.row.spec.model_copy(update={"workload": workload, "params": params})
        return [
            write_event(Hello(seq=0, t=0.1, time_unix_s=1.0, pid=1)),
            write_event(Probe(seq=1, t=0.2, spec=spec, choices={"tune": REASON})),
        ]

    def put(self, *streams: list[str], failure: PlaceFailure | None = None, exit_code: int = 0) -> None:
        self.use(ReplayPlace(*streams, failure=failure, exit_code=exit_code))

    def use(self, place: ReplayPlace) -> None:
        for module in ("arms", "suite.carry_out"):
            self.monkeypatch.setattr(f"stackmark.experiments.{module}.find_place", lambda *_: place)

    def in_order(self) -> None:
        """Rounds of a list are shuffled; a replay plays its streams in the order of the list."""
        self.monkeypatch.setattr("stackmark.experiments.suite.carry_out.random.Random.shuffle", lambda *_: None)

    def failing(self, message: str, hint: str = "") -> list[str]:
        return [
            write_event(Hello(seq=0, t=0.1, time_unix_s=1.0, pid=1)),
            write_event(Failed(seq=1, t=0.2, kind="crash", message=message, hint=hint)),
        ]


# A real measurement


def test_a_measurement_ends_with_all_that_one_asks(measured: Measured) -> None:
    answer = measured.answer
    assert answer.code == Exit.DONE, answer.err
    short = {line[:12].strip(): line[12:] for line in answer.out.splitlines()}
    assert missing(short["measured"], "train/lenet", "host") == []
    assert missing(short["rate"], "images/s", "95 %", "2 runs", "took") == []
    # A CPU with matrix units for bf16 chooses that.
    precision = f"precision {usual_precision('cpu')[0]}"
    assert missing(short["settings"], precision, "tune fast") == []
    all_of_it = ask("show", short["more"].split()[-2], "--details", "--ledger", str(measured.ledger))
    lines = {line[:12].strip(): line[12:] for line in all_of_it.out.splitlines()}
    assert "images/s" in lines["rate"]
    assert missing(lines["rate"], "95 %") == []
    assert "2 runs" in lines["rate"]
    assert all(name in lines["step"] for name in ("p50", "p90", "p99"))
    assert lines["steadiness"].startswith("2 ×")
    assert precision in lines["settings"]
    assert "tune fast" in lines["settings"]
    assert all(part in lines["set-up"] for part in ("import", "model", "first step"))
    assert missing(lines["data"], "0.0 %") == []
    assert "iB" in lines["memory"]
    assert "PyTorch" in lines["stack"]
    assert "Linux" in lines["stack"]
    assert "core" in lines["chip"]
    assert lines["published"]
    assert lines["stored"].startswith("experiment x-")


def test_the_command_to_repeat_it_is_what_was_typed_without_debug(measured: Measured) -> None:
    typed = ["repeat", "stackmark", *CHEAP, "--runs", "2"]
    (words,) = [line.split() for line in measured.answer.out.splitlines() if line.startswith("repeat")]
    assert words[: len(typed)] == typed
    assert "--debug" not in words
    with Ledger.open(str(measured.ledger)) as book:
        assert book.experiment("last").command == f"stackmark {' '.join(CHEAP)} --runs 2"


def test_without_a_terminal_progress_is_plain_lines_on_standard_error(measured: Measured) -> None:
    assert ESC not in measured.answer.out + measured.answer.err
    lines = measured.answer.err.splitlines()
    first = [line.split()[1:] for line in lines if line.startswith("run ")]
    assert [words[0] for words in first if words[1].startswith("r-") and "images/s" in words] == ["1/2", "2/2"]
    assert len(first) == 2  # a line for each run, and none for its phases


def test_what_was_measured_is_stored_and_listed(measured: Measured) -> None:
    with Ledger.open(str(measured.ledger)) as book:
        ids = [row.id for row in book.runs()]
    answer = ask("results", "--ledger", str(measured.ledger))
    head, *rows = answer.out.splitlines()
    assert [word for word in head.split() if not word.startswith("(")] == [
        "run",
        "experiment",
        "started",
        "workload",
        "place",
        "chip",
        "batch",
        "precision",
        "tune",
        "rate",
        "state",
    ]
    assert [row.split()[0] for row in rows] == ids
    assert all(row.split()[4] == "train/lenet" for row in rows)


def test_filters_hold_together(measured: Measured) -> None:
    def listed(*filters: str) -> int:
        answer = ask("results", "--ledger", str(measured.ledger), "--json", *filters)
        return len(json.loads(answer.out)["runs"])

    assert listed() == 2
    assert listed("--limit", "1") == 1
    assert listed("--workload", "train/*", "--since", "1h", "--status", "done", "--place", "ho*") == 2
    assert listed("--workload", "train/*", "--status", "failed") == 0
    assert listed("--until", "2020-01-01") == 0
    assert listed("--chip", "none") == 0


def test_nothing_that_fits_is_said_and_is_no_failure(measured: Measured) -> None:
    answer = ask("results", "--ledger", str(measured.ledger), "--workload", "train/vgg*")
    assert (answer.code, answer.out) == (Exit.DONE, "")
    assert answer.err


def test_one_run_is_shown_whole(measured: Measured, recorded: tuple[RunDetail, list[str]]) -> None:
    row, _ = recorded
    for name in ("last", row.id, row.id[:14], row.id.upper()):
        answer = ask("show", name, "--ledger", str(measured.ledger))
        assert answer.code == Exit.DONE
        assert all(text in answer.out for text in (row.id, row.experiment_id, row.spec_digest, "learning_rate", "p99"))
        assert "doubt" not in answer.out


def test_a_shown_run_as_json_has_its_facts(measured: Measured) -> None:
    shown = json.loads(ask("show", "last", "--json", "--ledger", str(measured.ledger)).out)
    assert shown["run"]["status"] == "done"
    assert shown["facts"]["software"]["torch"]
    assert shown["setup_s"]["import"] > 0
    assert shown["doubts"] == []


def test_events_come_out_as_they_came(measured: Measured, recorded: tuple[RunDetail, list[str]]) -> None:
    answer = ask("show", "last", "--events", "--ledger", str(measured.ledger))
    events = [read_event(line, number) for number, line in enumerate(answer.out.splitlines())]
    assert isinstance(events[0], Hello)
    assert isinstance(events[-1], Result)
    assert answer.out.splitlines() == [line for line in recorded[1] if line.startswith('{"event":')]


def test_a_spec_comes_out_as_one_line_of_json(measured: Measured) -> None:
    answer = ask("show", "last", "--spec", "--ledger", str(measured.ledger))
    assert json.loads(answer.out)["params"]["batch"] == 2
    assert answer.out.count("\n") == 1


def test_an_experiment_of_a_thousand_blocks_is_shown_whole(ledger_file: Path) -> None:
    experiment = Experiment(id=ids.new_id(ids.EXPERIMENT), created_unix_s=ledger_runs.T0, kind="compare")
    whole = [
        WholeRun(
            RunStart(
                id=ids.new_id(ids.RUN), experiment_id=experiment.id, position=position, spec=ledger_runs.SPEC, place="host",
                started_unix_s=ledger_runs.T0, machine_id="m", boot_id="b", driver_pid=1, stackmark_version="0",
            ),
            ledger_runs.DONE, ledger_runs.LINES,
        )
        for position in range(1200)
    ]  # fmt: skip
    with Ledger.open(str(ledger_file)) as book:
        add_whole(book, experiment, whole)
    shown = json.loads(ask("show", experiment.id, "--json").out)
    assert [run["id"] for run in shown["runs"]] == [run.start.id for run in whole]


def test_an_experiment_is_shown_as_it_was_printed(measured: Measured, recorded: tuple[RunDetail, list[str]]) -> None:
    answer = ask("show", recorded[0].experiment_id, "--ledger", str(measured.ledger))
    there = f" --ledger {measured.ledger}"
    assert answer.out.replace(there, "") == measured.answer.out.replace(there, "")
    as_json = json.loads(ask("show", recorded[0].experiment_id, "--json", "--ledger", str(measured.ledger)).out)
    assert [run["position"] for run in as_json["runs"]] == [0, 1]


def test_runs_are_exported(measured: Measured, tmp_path: Path) -> None:
    answer = ask("export", "--format", "csv", "--ledger", str(measured.ledger))
    rows = list(csv.DictReader(answer.out.splitlines()))
    assert [row["workload"] for row in rows] == ["train/lenet"] * 2
    file = tmp_path / "runs.json"
    answer = ask("export", "--format", "json", "-o", str(file), "--ledger", str(measured.ledger))
    assert (answer.out, missing(answer.err, "2 runs", file)) == ("", [])
    assert len(json.loads(file.read_text())) == 2


@pytest.mark.parametrize("ending", ["csv", "json", "jsonl", "NDJSON", "parquet"])
def test_the_name_of_the_file_says_the_format_of_an_export(measured: Measured, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"runs.{ending}"
    answer = ask("export", "-o", str(file), "--ledger", str(measured.ledger))
    assert (answer.code, answer.out) == (Exit.DONE, "")
    form = {"NDJSON": "jsonl"}.get(ending, ending)
    piped = tmp_path / "piped"
    assert ask("export", "--format", form, "-o", str(piped), "--ledger", str(measured.ledger)).code == Exit.DONE
    assert file.read_bytes() == piped.read_bytes()
    assert file.stat().st_size > 100


def test_a_name_that_says_another_format_or_none_writes_no_file(measured: Measured, tmp_path: Path) -> None:
    for name, more in (("runs.xlsx", ()), ("runs", ()), ("runs.json", ("--format", "csv"))):
        answer = ask("export", "-o", str(tmp_path / name), *more, "--ledger", str(measured.ledger))
        assert (answer.code, answer.out) == (Exit.WRONG_USE, "")
    assert list(tmp_path.iterdir()) == []


def test_an_export_through_a_link_keeps_the_link(measured: Measured, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "runs.csv"
    link.symlink_to(tmp_path / "folder" / "kept.csv")
    assert ask("export", "-o", str(link), "--ledger", str(measured.ledger)).code == Exit.DONE
    assert link.is_symlink()
    assert len((tmp_path / "folder" / "kept.csv").read_text().splitlines()) == 3


def test_a_rate_that_its_events_do_not_give_is_doubted(measured: Measured, ledger_file: Path) -> None:
    with sqlite3.connect(measured.ledger) as original, sqlite3.connect(ledger_file) as copy:
        original.backup(copy)
        copy.execute("UPDATE runs SET rate_per_s = rate_per_s * 2")
    copy.close()
    original.close()
    answer = ask("show", "last")
    assert answer.code == Exit.DONE
    assert len([line for line in answer.out.splitlines() if line.startswith("doubt ")]) == 1
    assert len(json.loads(ask("show", "last", "--json").out)["doubts"]) == 1


# The same stream, played back


def test_json_is_one_object_and_nothing_else(replay: Replay) -> None:
    replay.put(replay.probe, replay.lines)
    answer = ask(*CHEAP, "--runs", "3", "--json")
    assert answer.code == Exit.DONE
    assert answer.err == ""
    (result,) = json.loads(answer.out)["results"]
    assert result["throughput"]["rate_per_s"] == pytest.approx(replay.row.rate_per_s)
    assert result["throughput"]["runs"] == 3
    assert result["throughput"]["unit"] == "images/s"
    assert [run["status"] for run in result["runs"]] == ["done"] * 3
    assert result["spec"]["params"]["batch"] == 2
    assert result["choices"] == {"tune": REASON}
    assert result["command"].split() == ["stackmark", *CHEAP, "--runs", "3", "--json"]


def test_one_run_has_no_interval_and_says_so(replay: Replay) -> None:
    replay.put(replay.probe, replay.lines)
    answer = ask(*CHEAP, "--runs", "1")
    assert missing(answer.out, "one run") == []
    assert "±" not in answer.out


def test_a_failed_run_is_never_a_number(replay: Replay, ledger_file: Path) -> None:
    replay.put(replay.probe, replay.failing(FELL, PUSH))
    answer = ask(*CHEAP, "--runs", "3")
    assert answer.code == Exit.RUN_FAILED
    assert "\nrate" not in answer.out
    assert answer.out.index(FELL) < answer.out.index(PUSH)
    with Ledger.open(str(ledger_file)) as book:
        assert [(row.status, row.rate_per_s) for row in book.runs()] == [("failed", None)]


def test_a_failed_run_as_json_is_an_object_and_a_sentence(replay: Replay) -> None:
    replay.put(replay.probe, replay.failing(FELL, PUSH))
    answer = ask(*CHEAP, "--json")
    assert answer.code == Exit.RUN_FAILED
    (result,) = json.loads(answer.out)["results"]
    assert result["throughput"] is None
    assert result["runs"][0]["failure_message"] == FELL
    assert "\nstackmark: run r-" in answer.err
    assert PUSH in answer.err


def test_a_failed_probe_as_json_is_an_object_and_a_sentence(replay: Replay, ledger_file: Path) -> None:
    replay.put(replay.failing(FELL, PUSH))
    answer = ask(*CHEAP, "--json")
    assert answer.code == Exit.RUN_FAILED
    (result,) = json.loads(answer.out)["results"]
    assert (result["error"], result["hint"]) == (FELL, PUSH)
    assert answer.err == f"stackmark: {FELL}\n  {PUSH}\n"
    with Ledger.open(str(ledger_file)) as book:
        assert book.count() == 0


def test_a_list_goes_on_after_a_failure_and_says_so_at_the_end(replay: Replay) -> None:
    replay.in_order()
    replay.put(replay.failing(FELL), replay.answer_to(seed=2), replay.lines)
    answer = ask(*CHEAP, "--runs", "1", "--seed", "1,2", "--json")
    assert answer.code == Exit.PART_FAILED
    first, second = json.loads(answer.out)["results"]
    assert first["error"] == FELL
    assert second["throughput"]["runs"] == 1
    assert f"lenet seed 1: {FELL}" in answer.err


def test_a_list_makes_every_combination(replay: Replay) -> None:
    asked = [(name, bits) for name in ("train/lenet", "train/trivial") for bits in ("fp32", "bf16")]
    replay.in_order()
    replay.put(*(lines for name, bits in asked for lines in (replay.answer_to(name, precision=bits), replay.lines)))
    answer = ask("run", "train/lenet,train/trivial", *CHEAP[2:], "--precision", "fp32,bf16", "--runs", "1")
    assert answer.code == Exit.DONE
    assert answer.out.count(" images/s") == 4


def test_a_hostile_message_does_not_reach_the_terminal(replay: Replay) -> None:
    hostile = f"{ESC}]0;owned\x07{ESC}[2J\u202e[red]bold[/red] :smile:\r\b"
    replay.put(replay.probe, replay.failing(hostile, hostile))
    for extra in ((), ("--json",)):
        answer = ask(*CHEAP, *extra)
        assert answer.code == Exit.RUN_FAILED
        for char in (ESC, "\x07", "\u202e", "\r", "\b"):
            assert char not in answer.out + answer.err
        assert "[red]bold[/red] :smile:" in answer.err
    for arguments in (("results",), ("show", "last"), ("show", "last", "--events"), ("show", "last", "--log")):
        answer = ask(*arguments)
        assert answer.code == Exit.DONE
        assert ESC not in answer.out


def test_a_broken_stream_fails_the_run_and_can_still_be_shown(replay: Replay) -> None:
    replay.put(replay.probe, [*replay.lines[:5], '{"event":"steps","seq":"half a li'])
    assert ask(*CHEAP).code == Exit.RUN_FAILED
    answer = ask("show", "last")
    assert answer.code == Exit.DONE
    assert "failed: broken_stream" in answer.out
    (doubt,) = [line.split() for line in answer.out.splitlines() if line.startswith("doubt ")]
    assert missing(" ".join(doubt), "6") == []


def test_what_a_library_wrote_is_in_the_log(replay: Replay) -> None:
    replay.put(replay.probe, [replay.lines[0], f"warning: {ESC}[31mhot", *replay.lines[1:]])
    assert ask(*CHEAP, "--runs", "1").code == Exit.DONE
    assert ask("show", "last", "--log").out.splitlines()[0] == r"warning: \x1b[31mhot"
    assert any(
        flag.startswith("foreign-lines: 1 ") for flag in json.loads(ask("show", "last", "--json").out)["run"]["flags"]
    )


def test_an_interruption_is_stored_and_has_its_code(replay: Replay, ledger_file: Path) -> None:
    class Interrupted(ReplayPlace):
        def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
            done = super().run(task, watch, mark=mark, time_limit_s=time_limit_s)
            return done if task.do == "probe" else Outcome(130, None, (), KeyboardInterrupt())

    replay.use(Interrupted(replay.probe, replay.lines[:6]))
    answer = ask(*CHEAP, "--runs", "3")
    assert answer.code == Exit.INTERRUPTED
    assert not answer.err.splitlines()[-1].startswith("run ")
    with Ledger.open(str(ledger_file)) as book:
        assert [row.status for row in book.runs()] == ["failed"]


def test_an_interruption_after_a_run_says_once_how_to_go_on(replay: Replay) -> None:
    class Interrupted(ReplayPlace):
        def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
            asked.append(task.do)
            done = super().run(task, watch, mark=mark, time_limit_s=time_limit_s)
            return done if asked.count("run") < 2 else Outcome(130, None, (), KeyboardInterrupt())

    asked: list[str] = []
    replay.use(Interrupted(replay.probe, replay.lines, replay.lines[:6]))
    answer = ask(*CHEAP, "--runs", "3")
    assert answer.code == Exit.INTERRUPTED
    assert " of 3 runs were made" in answer.out
    assert (answer.out + answer.err).count("stackmark resume ") == 1


def test_a_place_that_fails_has_its_own_code(replay: Replay) -> None:
    class Gone(ReplayPlace):
        def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
            raise PlaceError(FELL, hint=PUSH, command="ssh machine")

    replay.use(Gone([]))
    answer = ask(*CHEAP)
    assert answer.code == Exit.PLACE_FAILED
    assert answer.err.splitlines()[-3:-1] == [f"stackmark: {FELL}", f"  {PUSH}"]
    assert answer.err.splitlines()[-1].endswith(": ssh machine")


def test_what_a_killed_driver_left_is_said_beside_json_too(replay: Replay, ledger_file: Path) -> None:
    replay.put(replay.probe, replay.lines)
    assert ask(*CHEAP, "--runs", "1").code == Exit.DONE
    with sqlite3.connect(ledger_file) as book:
        # As kill -9 leaves it: a row that runs, of a process that is gone.
        handle = json.dumps({"driver_start_ticks": 1, "pid_namespace": driver.pid_namespace()})
        book.execute("UPDATE runs SET status = 'running', handle = ?, failure_kind = NULL", (handle,))
    book.close()
    replay.put(replay.probe, replay.lines)
    answer = ask(*CHEAP, "--runs", "1", "--json")
    assert answer.code == Exit.DONE
    assert cleaning.DRIVER_GONE in answer.err
    json.loads(answer.out)


def test_a_password_is_not_repeated(replay: Replay, monkeypatch: pytest.MonkeyPatch, ledger_file: Path) -> None:
    replay.put(replay.probe, replay.lines)
    opened = Ledger.open
    monkeypatch.setattr("stackmark.ledger.store.Ledger.open", lambda _: opened(str(ledger_file)))
    answer = ask(*CHEAP, "--runs", "1", "--ledger", "postgresql://me:s3cret@db/x")
    assert "s3cret" not in answer.out + answer.err
    assert "postgresql://me:***@db/x" in answer.out
    assert "s3cret" not in ask("show", "last", "--json").out
    with Ledger.open(str(ledger_file)) as book:
        assert "s3cret" not in book.experiment("last").command


def test_progress_that_nobody_reads_does_not_end_the_measurement(
    replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    replay.put(replay.probe, replay.lines)
    with os.fdopen(writer, "w") as nobody:
        monkeypatch.setattr("stackmark.show.live.PlainLines", lambda _, **__: PlainLines(nobody))
        answer = ask(*CHEAP, "--runs", "1")
        # What the stream still holds cannot be flushed either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)
    assert answer.code == Exit.DONE
    assert "\nrate" in answer.out


# Other verbs


@pytest.mark.parametrize("verb", our_verbs())
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    answer = ask(verb, "--help")
    assert answer.code == Exit.DONE
    assert f"  stackmark {verb}" in answer.out
    assert "Example" in answer.out


def test_help_is_the_answer_to_nothing() -> None:
    answer = ask()
    assert answer.code == Exit.WRONG_USE
    assert answer.out == ask("--help").out


@pytest.mark.parametrize("verb", ["baseline", "cluster", "mlperf", "published"])
def test_a_verb_of_verbs_alone_is_answered_with_its_help(verb: str) -> None:
    answer = ask(verb)
    assert (answer.code, answer.err) == (Exit.WRONG_USE, "")
    assert answer.out == ask(verb, "--help").out


def test_workloads_are_listed_with_their_sizes() -> None:
    lines = ask("workloads", "train/resnet50*").out.splitlines()
    assert lines[0].split()[:2] == ["workload", "parameters"]
    v1 = next(line for line in lines if line.startswith("train/resnet50 "))
    assert "25.6 M" in v1
    assert "v1" in v1
    assert len({line.split()[0] for line in lines[1:]}) == len(lines) - 1


def test_workloads_as_json_have_plain_numbers() -> None:
    (entry,) = json.loads(ask("workloads", "train/vgg16", "--json").out)["workloads"]
    assert entry["params"] == 138_361_641  # as tf_cnn_benchmarks builds it, with 1001 classes
    assert entry["training_flops"] > 2 * entry["forward_macs"]


def test_facts_are_told_by_subject() -> None:
    answer = ask("facts", "cpu", "stackmark")
    assert answer.code == Exit.DONE
    assert [line for line in answer.out.splitlines() if not line.startswith(" ")][:2] == ["cpu", "stackmark"]
    told = json.loads(ask("facts", "cpu", "--json").out)
    assert list(told["facts"]) == ["cpu"]
    assert told["facts"]["cpu"]["cores"] >= 1


def test_a_worker_ends_warm_up_once(recorded: tuple[RunDetail, list[str]]) -> None:
    ends = [
        event
        for number, line in enumerate(recorded[1])
        if isinstance(event := read_event(line, number), Phase) and event.phase == "warm-up" and event.state == "end"
    ]
    assert len(ends) == 1
