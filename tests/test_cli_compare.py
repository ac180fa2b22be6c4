"""`compare`, `resume` and `noise` as a person types them: real experiments on the real host and in a real container.

Workers of the trick family, and programs that print a number, are up in a fraction of a second. Where a verdict is asserted,
the arms print their figures themselves, so that chance cannot turn it.
"""

import json
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from asking import Answer, ask
from experiment_asking import OWN, is_a_sentence, ledger_of_a_command, rows_of
from remark_kinds import kinds_of
from stackmark.api.stored import load
from stackmark.errors import Exit
from stackmark.experiments import caches
from stackmark.ledger import address
from stackmark.ledger.store import Ledger

CALM = ("compare", "trick/calm", "--steps", "4", "--warmup-steps", "0", "--blocks", "2")
TWICE = (*CALM, "--arm", "host", "--arm", "host,step_s=0.002")
# B prints half of what A prints.
HALF = "host,cmd=echo rate: 5"
SLOWER = (
    "compare",
    "--cmd",
    "echo rate: 10",
    "--metric",
    "rate: ([0-9.]+)",
    "--blocks",
    "2",
    "--arm",
    "host",
    "--arm",
    HALF,
)


@pytest.fixture(autouse=True)
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from ledger_of_a_command(tmp_path, monkeypatch)


def lines(answer: Answer) -> dict[str, str]:
    """The first line of each name."""
    found: dict[str, str] = {}
    for line in answer.out.splitlines():
        found.setdefault(line[:12].strip(), line[12:])
    return found


def held() -> tuple[dict[str, str], dict[str, str]]:
    """What was held equal in the latest experiment, and what was not, by its kind."""
    with Ledger.open() as book:
        examined = load("last", book).verdict().examined
    equal, unequal = (dict(zip(kinds_of(side), side, strict=True)) for side in (examined.held, examined.not_held))
    return equal, unequal


# What is printed


def test_a_comparison_ends_in_a_verdict_with_its_interval_and_scope(ledger_file: Path) -> None:
    answer = ask(*SLOWER, "--details")
    assert answer.code == Exit.DONE, answer.err
    said = lines(answer)
    assert [part for part in (HALF, "SLOWER", "1 %", "0.5000", "90 %", "2 blocks") if part not in said["verdict"]] == []
    assert said["arm"].startswith("host: ")
    assert said["scope"]
    (row, *_) = rows = rows_of(ledger_file)
    assert [part for part in (row.experiment_id, "4 runs", "2 ") if part not in said["stored"]] == []
    assert said["next"].startswith(f"stackmark report {row.experiment_id}")
    assert [row.status for row in rows] == ["done"] * 4


def test_progress_goes_to_standard_error_with_block_and_arm() -> None:
    err = ask(*TWICE, "--order-seed", "1").err.splitlines()
    ended = [line.split()[:2] for line in err if "steps/s" in line and line.startswith("block")]
    assert ended == [["block", "1/2"]] * 2 + [["block", "2/2"]] * 2
    assert sum("steps/s" in line and line.startswith("primer") for line in err) == 2


def test_json_is_one_object_with_names_that_stay() -> None:
    answer = ask(*SLOWER, "--order-seed", "7", "--json")
    assert answer.code == Exit.DONE
    assert answer.err == ""
    shown = json.loads(answer.out)
    assert shown.keys() >= {
        "schema", "experiment_id", "kind", "state", "command", "workload", "seed", "margin", "blocks_planned", "blocks_whole",
        "blocks_repeated", "order", "arms", "runs", "comparisons", "differences", "covariates", "published", "scope", "held",
        "not_held", "method", "warnings",
    }  # fmt: skip
    assert (shown["schema"], shown["kind"], shown["state"], shown["seed"]) == (
        "stackmark.verdict/3",
        "compare",
        "done",
        7,
    )
    assert sorted(shown["order"]) == [[0, 1], [1, 0]]
    assert (shown["rules"], shown["rules_made"]) == (2, 2)
    (pair,) = shown["comparisons"]
    assert (pair["a"], pair["b"], pair["word"], pair["count_b"]) == ("host", HALF, "SLOWER", 2)
    assert pair["ratio"] == pytest.approx(0.5)
    assert pair["interval_90"].keys() == {"low", "high", "confidence"}
    assert [run["role"] for run in shown["runs"]] == ["primer"] * 2 + ["measured"] * 4
    assert shlex.split(shown["command"])[:4] == ["stackmark", *SLOWER[:3]]


def test_the_command_that_is_stored_repeats_it(ledger_file: Path) -> None:
    ask(*SLOWER)
    with Ledger.open(str(ledger_file)) as book:
        assert shlex.split(book.experiment("last").command) == ["stackmark", *SLOWER]


def test_three_arms_are_compared_in_pairs_and_their_blocks_rounded_up() -> None:
    answer = ask(*SLOWER, "--arm", "host,cmd=echo rate: 1", "--no-primers", "--json")
    assert answer.code == Exit.DONE
    assert "--blocks 2" in answer.err
    shown = json.loads(answer.out)
    assert (shown["blocks_planned"], shown["blocks_whole"]) == (6, 6)
    assert [pair["word"] for pair in shown["comparisons"]] == ["SLOWER"] * 3
    assert {run["role"] for run in shown["runs"]} == {"measured"}
    assert "caches" in held()[1]


def test_until_decided_says_what_the_first_look_makes_of_few_blocks() -> None:
    answer = ask(*SLOWER, "--until-decided", "--json")
    assert "--blocks 2" in answer.err
    assert "--until-decided" in answer.err
    shown = json.loads(answer.out)
    assert (shown["blocks_whole"], shown["comparisons"][0]["word"]) == (4, "SLOWER")


@pytest.mark.parametrize("word", ["slower", "different"])
def test_a_verdict_that_was_named_has_its_exit_code(word: str) -> None:
    assert ask(*SLOWER, "--fail-on", word).code == Exit.VERDICT_NAMED


def test_a_verdict_that_was_not_named_is_no_failure() -> None:
    assert ask(*SLOWER, "--fail-on", "inconclusive").code == Exit.DONE


def test_one_arm_alone_has_no_verdict_to_fail_on(ledger_file: Path) -> None:
    assert ask("run", "trick/calm", "--steps", "3", "--warmup-steps", "0", "--runs", "1").code == Exit.DONE
    with Ledger.open(str(ledger_file)) as book:
        assert load("last", book).verdict().exit_code(["slower", "inconclusive", "different"]) == Exit.DONE


@pytest.mark.parametrize(("name", "begins"), [("report.html", "<!doctype html>"), ("report.md", "#")])
def test_a_report_is_written_beside_the_verdict(name: str, begins: str, tmp_path: Path) -> None:
    answer = ask(*SLOWER, "--report", str(tmp_path / name))
    assert "stackmark report" not in answer.out
    assert answer.code == Exit.DONE
    assert "verdict" in answer.out
    assert str(tmp_path / name) in answer.err.splitlines()[-1]
    assert (tmp_path / name).read_text().lower().startswith(begins)


def test_the_noise_floor_is_told_with_what_margins_cost(ledger_file: Path) -> None:
    answer = ask("noise", *CALM[1:-1], "4", "--details")
    assert answer.code == Exit.DONE, answer.err
    said = lines(answer)
    assert [part for part in ("NOISE FLOOR", "trick/calm", "4 blocks") if part not in said["noise"]] == []
    assert "%" in said["margin"]
    assert said["a block"]
    with Ledger.open(str(ledger_file)) as book:
        assert book.experiment("last").kind == "noise"
    assert len({row.spec_digest for row in rows_of(ledger_file)}) == 1


def test_the_noise_floor_as_json_has_its_numbers() -> None:
    shown = json.loads(ask("noise", *CALM[1:], "--json").out)
    assert (shown["kind"], [arm["label"] for arm in shown["arms"]]) == ("noise", ["host", "host (2)"])
    assert shown["noise"]["blocks"] == 2
    assert shown["noise"]["sd_blocks"] >= 0
    # Two blocks promise nothing.
    assert (shown["noise"]["costs"], shown["noise"]["smallest_margin"]) == ([], None)


def test_what_was_held_equal_is_not_claimed_where_nobody_held_it() -> None:
    shown = json.loads(ask(*TWICE, "--json").out)
    equal, unequal = held()
    assert (shown["held"], shown["not_held"]) == ([*equal.values()], [*unequal.values()])
    # The trick family has --warmup-steps only: nothing waited until the clock stood still.
    assert "--warmup-seconds 0" in unequal["heat"]
    assert "heat" not in equal
    assert "step_s" in equal["work"]
    assert ask(*OWN, "--arm", "host", "--arm", "host", "--blocks", "2", "--json").code == Exit.DONE
    own_equal, own_unequal = held()
    assert "--warmup-seconds" not in own_unequal["heat"]
    # A program is watched: on a machine without a GPU it was on the CPU.
    assert "CPU" in equal["machine"]
    assert "CPU" in own_equal["machine"]
    assert ask(*OWN, "--device", "cpu", "--arm", "host", "--arm", "host", "--blocks", "2", "--json").code == Exit.DONE
    # Whoever says that it uses no GPU has it not watched: which of the machine's devices it used, nobody saw.
    assert "CPU" not in held()[0]["machine"]


# One arm against a published number


def test_one_arm_is_compared_with_a_published_row(tmp_path: Path) -> None:
    row = "train/lenet,lenet,training,AMD EPYC,1,fp32,2,1e9,images/s,2024-09-30,Nobody"
    (tmp_path / "mine.csv").write_text(
        f"workload,model,task,chip,count,precision,batch,value,unit,date,source\n{row}\n"
    )
    assert ask("published", "add", str(tmp_path / "mine.csv")).code == Exit.DONE
    cheap = ("--batch", "2", "--steps", "5", "--warmup-steps", "1", "--warmup-seconds", "0", "--blocks", "2")
    against = ("--published", "EPYC", "--margin", "20%", "--fail-on", "slower", "--json")
    answer = ask("compare", "train/lenet", "--arm", "host,threads=1", *cheap, *against)
    # A thousand million images a second are out of reach, by any margin.
    assert answer.code == Exit.VERDICT_NAMED, answer.err
    (result,) = json.loads(answer.out)["results"]
    assert result["spec"]["params"]["threads"] == 1
    assert result["throughput"]["runs"] == 2
    assert (result["against_published"]["verdict"], result["against_published"]["margin"]) == ("SLOWER", 0.2)


# Bad input: a sentence, before anything is measured


TWO = ("--arm", "host", "--arm", "host")
# What is typed, and what the sentence names.
WRONG: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "an unknown key": (("--arm", "host", "--arm", "host,stepp_s=3"), ("'stepp_s'", "step_s")),
    "a key of another place": (("--arm", "host", "--arm", "host,shm=1g"), ("shm", "container", "pod", "host")),
    "a mistyped place": (("--arm", "host", "--arm", "contaner"), ("contaner", "container")),
    "an option before the place": (("--arm", "host", "--arm", "step_s=3"), ("'step_s=3'",)),
    "an arm without a place": (("--arm", "host", "--arm", ",step_s=3"), ("',step_s=3'",)),
    "a key without a value": (("--arm", "host", "--arm", "host,step_s"), ("'step_s'",)),
    "a key twice": (("--arm", "host", "--arm", "host,step_s=1,step_s=2"), ("step_s", "twice")),
    "a value out of range": (("--arm", "host", "--arm", "host,step_s=-1"), ("step_s", "'host,step_s=-1'")),
    "a list in an arm": (("--arm", "host", "--arm", "host,steps=1,2"), ("'1,2'",)),
    "no arm": ((), ("--arm",)),
    "one arm": (("--arm", "host"), ("--published",)),
    "ten arms": (("--arm", "host") * 10, ("got 10", " 9 arms")),
    "a margin of nothing": ((*TWO, "--margin", "0"), ("margin", "50 %", " 0 %")),
    "a margin of 150 %": ((*TWO, "--margin", "150%"), ("--margin", "'150%'")),
    "a margin past one": ((*TWO, "--margin", "60%"), ("margin", "50 %", "60 %")),
    "a margin in words": ((*TWO, "--margin", "a bit"), ("--margin", "'a bit'")),
    "an empty margin": ((*TWO, "--margin", ""), ("--margin",)),
    "no blocks": ((*TWO, "--blocks", "0"), ("--blocks",)),
    "more looks than can be planned": ((*TWO, "--blocks", "10000", "--until-decided"), ("--until-decided", "400", "10000")),
    "an option of no arm": ((*TWO, "--shm", "1g"), ("--shm", "host")),
    "a report in a folder that is not there": ((*TWO, "--report", "/no/such/folder/r.html"), ("/no/such/folder",)),
    "a report of an unknown kind": ((*TWO, "--report", "r.docx"), (".html", ".md")),
    "an empty report": ((*TWO, "--report", ""), ("--report",)),
    "a pause in words": ((*TWO, "--pause", "long"), ("--pause", "'long'")),
    "a verdict nobody gives": ((*TWO, "--fail-on", "faster"), ("--fail-on",)),
    "two arms and a published number": ((*TWO, "--published", "H200"), ("--published",)),
    "an empty published": (("--arm", "host", "--published", ""), ("--published",)),
    "looks at a published number": (("--arm", "host", "--published", "H200", "--until-decided"), ("--until-decided",)),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_a_sentence_before_anything_is_measured(case: str, ledger_file: Path) -> None:
    arguments, named = WRONG[case]
    answer = ask("compare", "trick/calm", *arguments)
    is_a_sentence(answer, Exit.WRONG_USE)
    assert [word for word in named if word not in answer.err] == []
    assert not ledger_file.exists()


def test_the_noise_of_several_workloads_is_not_one_experiment(ledger_file: Path) -> None:
    answer = ask("noise", "trick/calm,trick/loud")
    is_a_sentence(answer, Exit.WRONG_USE)
    assert "trick/calm, trick/loud" in answer.err
    assert not ledger_file.exists()


def test_a_report_path_is_found_wrong_before_anything_is_resumed(ledger_file: Path) -> None:
    assert ask(*SLOWER).code == Exit.DONE
    is_a_sentence(ask("resume", "last", "--report", "/no/such/folder/r.html"), Exit.WRONG_USE)


def test_what_an_arm_cannot_do_is_said_with_its_name(ledger_file: Path) -> None:
    arms = ("--arm", "host", "--arm", "host,precision=fp16")
    answer = ask("compare", "train/lenet", "--device", "cpu", "--batch", "2", *arms)
    assert (answer.code, answer.out) == (Exit.WRONG_USE, "")
    assert "'host,precision=fp16'" in answer.err
    with Ledger.open(str(ledger_file)) as book:
        assert book.count() == 0


def test_a_place_that_is_not_there_is_found_before_the_first_run(
    ledger_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = ask(*CALM, "--arm", "host", "--arm", "container")
    is_a_sentence(answer, Exit.PLACE_FAILED)
    assert "'container'" in answer.err
    assert "apt-get install" in answer.err
    shown = json.loads(ask(*CALM, "--arm", "host", "--arm", "container", "--json").out)
    assert "podman" in shown["error"]
    with Ledger.open(str(ledger_file)) as book:
        assert book.count() == 0


def test_a_metric_that_never_matches_fails_with_what_was_printed(ledger_file: Path) -> None:
    arms = ("--arm", "host", "--arm", "host")
    answer = ask(*OWN, *arms, "--metric", "images: ([0-9.]+)")
    assert (answer.code, answer.out) == (Exit.RUN_FAILED, "")
    (row,) = rows_of(ledger_file, "primer")
    # The arm, the pattern, what the program printed, and the command that shows all of it.
    named = ("'host", "'images: ([0-9.]+)'", "rate: 12.5", f"stackmark show {row.id} --log", row.experiment_id)
    assert [word for word in named if word not in answer.err] == []
    assert row.failure_kind == "no_figure"
    # The pattern is part of what was asked: no resume would find anything else.
    assert "stackmark resume" not in answer.err


def test_a_failed_arm_as_json_is_an_object_with_the_error_and_the_run() -> None:
    answer = ask(*OWN, "--arm", "host", "--arm", "host", "--metric", "images: ([0-9.]+)", "--json")
    assert answer.code == Exit.RUN_FAILED
    shown = json.loads(answer.out)
    assert "'images: ([0-9.]+)'" in shown["error"]
    assert [run["failure_kind"] for run in shown["runs"]] == ["no_figure"]
    assert (shown["state"], shown["comparisons"]) == ("open", [])


def test_a_locked_ledger_is_said_before_the_probe(ledger_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger.open(str(ledger_file)).close()
    monkeypatch.setattr("stackmark.ledger.store.Ledger.open.__func__.__kwdefaults__", {"create": True, "busy_s": 0.2})
    other = sqlite3.connect(ledger_file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        answer = ask(*SLOWER)
    finally:
        other.close()
    is_a_sentence(answer, Exit.LEDGER_FAILED)
    assert "locked" in answer.err


def test_a_read_only_ledger_is_said_before_the_probe(ledger_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger.open(str(ledger_file)).close()
    # Root may write everything; what SQLite does with such a file is real.
    monkeypatch.setattr(address, "is_read_only", lambda _: True)
    answer = ask(*SLOWER)
    is_a_sentence(answer, Exit.LEDGER_FAILED)
    assert "read-only" in answer.err


@pytest.mark.parametrize("name", ["x-zzzz", "zzzz", ""])
def test_an_experiment_that_does_not_exist(name: str, ledger_file: Path) -> None:
    Ledger.open(str(ledger_file)).close()
    is_a_sentence(ask("resume", name), Exit.WRONG_USE)


def test_a_run_is_answered_with_its_experiment() -> None:
    assert ask("run", "trick/calm", "--steps", "3", "--warmup-steps", "0", "--runs", "1", "--json").code == Exit.DONE
    (run,) = json.loads(ask("results", "--json").out)["runs"]
    answer = ask("report", run["id"])
    is_a_sentence(answer, Exit.WRONG_USE)
    assert run["experiment_id"] in answer.err


def test_a_finished_run_is_not_run_again_but_said_again(ledger_file: Path) -> None:
    first = ask("run", "trick/calm", "--steps", "3", "--warmup-steps", "0", "--runs", "1")
    assert first.code == Exit.DONE
    again = ask("resume", "last")
    assert again.code == Exit.DONE
    assert [line for line in lines(again) if line.startswith("rate")] == [
        line for line in lines(first) if line.startswith("rate")
    ]
    assert len(rows_of(ledger_file)) == 1


def test_a_finished_experiment_is_not_run_again_but_said_again(ledger_file: Path) -> None:
    first = ask(*SLOWER)
    again = ask("resume", "last", "--fail-on", "slower")
    assert (again.code, again.err) == (Exit.VERDICT_NAMED, "")
    assert lines(again) == lines(first)
    assert len(rows_of(ledger_file)) == 4
    assert not (caches.root() / rows_of(ledger_file)[0].experiment_id).exists()
