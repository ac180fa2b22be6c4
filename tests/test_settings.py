"""Defaults from files and variables: which wins, what is refused with its line, what needs trust, what is said and stored."""

import json
import os
import re
import shlex
import tomllib
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

import stackmark as package
from asking import Answer, ask
from stackmark.api.settings import NOT_OPTIONS, with_setting
from stackmark.cli.defaults import MEASURES, TYPED_ONLY, command_at, options_of, top_level_options
from stackmark.cli.main import stackmark
from stackmark.errors import Exit

OWN = ("--cmd", "echo rate: 12.5", "--metric", "rate: ([0-9.]+)")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder and a configuration folder of the test's own, and none of the variables of whoever runs it."""
    for name in [name for name in os.environ if name.startswith("STACKMARK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def write_here(text: str) -> Path:
    Path("stackmark.toml").write_text(text)
    return Path("stackmark.toml")


def write_user(text: str) -> Path:
    file = Path(os.environ["XDG_CONFIG_HOME"]) / "stackmark" / "stackmark.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.parent.chmod(0o700)
    file.write_text(text)
    file.chmod(0o600)
    return file


def measured(*more: str) -> Answer:
    answer = ask("run", *OWN, "--json", *more)
    assert answer.code == Exit.DONE, answer.err
    return answer


def runs_of(answer: Answer) -> int:
    return len(json.loads(answer.out)["results"][0]["runs"])


def refused(answer: Answer, *named: str) -> None:
    assert answer.code == Exit.WRONG_USE
    assert answer.out == ""
    assert [part for part in named if part not in answer.err] == [], answer.err


# Which value wins


def test_the_order_is_typed_then_variable_then_working_folder_then_users_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_user("runs = 4")
    assert runs_of(measured()) == 4
    write_here("runs = 3")
    assert runs_of(measured()) == 3
    monkeypatch.setenv("STACKMARK_RUNS", "2")
    assert runs_of(measured()) == 2
    assert runs_of(measured("--runs", "1")) == 1


def test_a_table_of_a_command_is_stronger_than_the_top_level_of_its_file() -> None:
    write_here("runs = 3\n[run]\nruns = 2\n[check]\nruns = 9\n")
    assert runs_of(measured()) == 2


def test_what_took_effect_is_said_and_stands_in_the_line_to_repeat() -> None:
    write_here("runs = 2\nmetric-take = 'median'\n")
    answer = measured()
    assert "from ./stackmark.toml: runs 2, metric-take median\n" in answer.err
    repeat = shlex.split(json.loads(answer.out)["results"][0]["repeat"])
    assert repeat[-4:] == ["--runs", "2", "--metric-take", "median"]


def test_the_stored_command_repeats_it_without_the_file() -> None:
    file = write_here("runs = 2")
    repeat = json.loads(measured().out)["results"][0]["repeat"]
    file.unlink()
    again = ask(*shlex.split(repeat)[1:], "--json")
    assert (again.code, runs_of(again)) == (Exit.DONE, 2)


def test_a_default_that_does_not_fit_what_was_typed_is_left_out() -> None:
    write_user("image = 'registry.example/x:1'\nbatch = 7\nshm = '1g'\nruns = 1\n")
    answer = measured()
    assert "from" in answer.err
    assert [word for word in ("image", "batch", "shm") if word in answer.err] == []


def test_a_stored_experiment_is_not_judged_by_the_margin_of_the_top_level() -> None:
    write_here("margin = '20%'")
    answer = ask("verdict", "last")
    assert "margin" not in answer.err


@pytest.mark.parametrize("words", [("-q",), ("--quiet",)])
def test_a_quiet_command_says_nothing_but_the_answer(words: tuple[str, ...]) -> None:
    write_here("runs = 1")
    answer = ask("run", *OWN, *words)
    assert (answer.code, answer.err) == (Exit.DONE, "")
    assert "12.5" in answer.out


def test_quiet_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STACKMARK_QUIET", "yes")
    assert measured("--runs", "1").err == ""
    write_here("quiet = true")
    monkeypatch.delenv("STACKMARK_QUIET")
    assert measured("--runs", "1").err == ""


def test_an_error_is_said_in_quiet_commands_too() -> None:
    assert "resnet51" in ask("-q", "run", "resnet51").err


def test_the_ledger_may_be_set_and_its_variable_is_stronger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_user(f"ledger = '{tmp_path / 'own.sqlite3'}'\nruns = 1\n")
    measured()
    assert (tmp_path / "own.sqlite3").exists()
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "other.sqlite3"))
    measured()
    assert (tmp_path / "other.sqlite3").exists()


def test_help_says_nothing_of_settings() -> None:
    write_here("runs = 1\nimage = 'x'\n")
    for words in (("run", "--help"), ("run", "-h"), ("--help",)):
        assert ask(*words).err == ""


# What is refused, with its line


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("runs = 2\nmargn = '2%'\n", ("./stackmark.toml:2", "margn", "margin")),
        ("[comprae]\nmargin = '2%'\n", ("./stackmark.toml:2", "comprae", "compare")),
        ("[cluster]\nmargin = '2%'\n", ("./stackmark.toml:2", "sweep")),
        ("[run]\n# a comment\nbtach = 2\n", ("./stackmark.toml:3", "btach", "batch")),
        ("runs = 'many'\n", ("./stackmark.toml:1", "runs", "many")),
        ("runs = 0\n", ("./stackmark.toml:1", "runs")),
        ("runs = true\n", ("./stackmark.toml:1", "runs")),
        ("runs = [1, 2]\n", ("./stackmark.toml:1", "runs")),
        ("runs = 2026-11-01\n", ("./stackmark.toml:1", "runs")),
        ("time-limit = 'soon'\n", ("./stackmark.toml:1", "time-limit", "soon")),
        ("\nmetric-take = 'first'\n", ("./stackmark.toml:2", "metric-take", "first")),
        ("[run]\njson = 'yes'\n", ("./stackmark.toml:2", "json", "true or false")),
        ("trust-ledger = true\n", ("./stackmark.toml:1", "trust-ledger", "typed")),
        ("[run]\nchoose-again = true\n", ("./stackmark.toml:2", "choose-again", "typed")),
        ("a = 1\na = 2\n", ("./stackmark.toml:2", "TOML")),
        ("runs = \n", ("./stackmark.toml:1", "TOML")),
    ],
)
def test_a_wrong_line_is_refused_with_its_file_and_line(text: str, named: tuple[str, ...]) -> None:
    write_here(text)
    refused(ask("run", *OWN), *named)
    refused(ask("config"), *named)


def test_a_wrong_variable_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STACKMARK_RUNS", "many")
    refused(ask("run", *OWN), "STACKMARK_RUNS", "many")


def test_an_error_about_a_value_that_nobody_typed_says_where_it_comes_from() -> None:
    write_user("on = 'hots'\n")
    refused(ask("run", *OWN), "hots", "stackmark.toml:1")


@pytest.mark.parametrize("make", ["folder", "pipe", "bytes", "long"])
def test_something_else_than_a_file_of_settings_is_refused(make: str) -> None:
    file = Path("stackmark.toml")
    if make == "folder":
        file.mkdir()
    elif make == "pipe":
        os.mkfifo(file)
    else:
        file.write_bytes({"bytes": b"runs = 1\n# \xff\n", "long": b"#" * (1 << 20) + b"\nruns = 1\n"}[make])
    refused(ask("run", *OWN), "./stackmark.toml")


# Whom to believe


@pytest.mark.parametrize(
    "line",
    [
        "cmd = 'touch pwned'",
        "on = 'container,mount=/:/host:rw'",
        "ledger = 'postgresql://evil.example/x'",
        "env = ['LD_PRELOAD=./evil.so']",
        "checkpoint-dir = '/tmp/x'",
        "cwd = '/'",
    ],
)
def test_a_file_of_a_cloned_repository_can_run_mount_write_and_send_nothing(line: str) -> None:
    """The user owns its files, as after `git clone`."""
    write_here(line)
    words = ("run", *(() if line.startswith("cmd") else ("--cmd", "true")))
    words = ("run", "train/lenet", "--on", "container") if line.startswith(("env", "check")) else words
    refused(ask(*words), "./stackmark.toml:1", line.partition(" ")[0], "stackmark config trust")
    assert not Path("pwned").exists()


def test_a_trusted_file_is_believed_until_it_changes() -> None:
    write_here("cwd = '.'\nruns = 1\n")
    refused(ask("run", *OWN), "trust")
    assert ask("config", "trust").code == Exit.DONE
    assert runs_of(measured()) == 1
    write_here("cwd = '.'\nruns = 2\n")
    refused(ask("run", *OWN), "trust")


def test_trust_in_a_file_is_not_trust_in_the_same_text_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_here("cwd = '.'\n")
    ask("config", "trust")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    write_here("cwd = '.'\n")
    refused(ask("run", *OWN), "trust")


def test_numbers_and_fixed_words_need_no_trust() -> None:
    write_here("runs = 1\nmetric-take = 'median'\ntime-limit = '1min'\ndevice = 'cpu'\n")
    assert runs_of(measured()) == 1


def test_a_users_file_that_others_can_write_is_not_believed() -> None:
    file = write_user("cwd = '.'\nruns = 1\n")
    assert runs_of(measured()) == 1
    file.chmod(0o666)
    refused(ask("run", *OWN), "cwd", "chmod")


def test_what_config_writes_into_an_untrusted_file_does_not_make_it_trusted() -> None:
    write_here("cwd = '.'\n")
    assert ask("config", "set", "runs", "1", "--here").code == Exit.DONE
    refused(ask("run", *OWN), "cwd", "trust")


def test_what_config_writes_into_a_file_of_its_own_is_trusted() -> None:
    assert ask("config", "set", "cwd", ".", "--here").code == Exit.DONE
    assert ask("config", "set", "runs", "1", "--here").code == Exit.DONE
    assert runs_of(measured()) == 1


def test_no_option_that_answers_a_question_can_be_set() -> None:
    with stackmark.make_context("stackmark", [], resilient_parsing=True) as root:
        assert TYPED_ONLY.isdisjoint(top_level_options(root))


def test_variables_that_workers_get_do_not_become_options() -> None:
    """STACKMARK_NODE says where a pod runs, to a stackmark in that pod."""
    sources = Path(package.__file__).parent.rglob("*.py")
    names = {name for file in sources for name in re.findall(r'"(STACKMARK_[A-Z_]+)"', file.read_text())}
    with stackmark.make_context("stackmark", [], resilient_parsing=True) as root:
        options = {f"STACKMARK_{key.upper().replace('-', '_')}" for key in top_level_options(root)}
    assert {"STACKMARK_NODE", "STACKMARK_NAMESPACE", "STACKMARK_LEDGER"} <= names
    assert names & options - NOT_OPTIONS == {"STACKMARK_LEDGER"}


def test_every_command_that_measures_exists_and_has_options() -> None:
    with stackmark.make_context("stackmark", [], resilient_parsing=True) as root:
        assert all(options_of(command_at(root, path)) for path in MEASURES)


# stackmark config


def test_config_shows_where_each_value_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    write_user("margin = '2%'\nruns = 5\n[compare]\nblocks = 12\n")
    write_here("runs = 3\nimage = 'x'\n")
    monkeypatch.setenv("STACKMARK_MARGIN", "3%")
    found = json.loads(ask("config", "--json").out)
    rows = {(row["key"], row["source"]): row for row in found["settings"]}
    assert {key: row["value"] for key, row in rows.items()} == {
        ("margin", "variable"): "3%", ("runs", "here"): 3, ("image", "here"): "x", ("margin", "user"): "2%",
        ("runs", "user"): 5, ("compare.blocks", "user"): 12,
    }  # fmt: skip
    assert rows["margin", "user"]["overridden_by"] == "STACKMARK_MARGIN"
    assert rows["runs", "user"]["overridden_by"] == "./stackmark.toml:1"
    assert rows["image", "here"]["needs_trust"] is True
    assert rows["runs", "here"]["needs_trust"] is False
    assert [file["exists"] for file in found["files"]] == [True, True]


def test_config_shows_no_secret() -> None:
    write_user("ledger = 'postgresql://me:hunter2@db/x'\nenv = ['HF_TOKEN=hunter2']\n")
    for words in (("config",), ("config", "--json")):
        answer = ask(*words)
        assert answer.code == Exit.DONE
        assert "hunter2" not in answer.out + answer.err
        assert "HF_TOKEN=***" in answer.out


def test_config_path_prints_both_files() -> None:
    here, user = ask("config", "--path").out.splitlines()
    assert here == str(Path("stackmark.toml").absolute())
    assert user == str(Path(os.environ["XDG_CONFIG_HOME"]) / "stackmark" / "stackmark.toml")


def test_set_and_unset_keep_comments_and_the_rest() -> None:
    file = write_user("# mine\nmargin = '2%'  # wide\n\n[compare]\nblocks = 6\n")
    assert ask("config", "set", "margin", "3%").code == Exit.DONE
    assert ask("config", "set", "compare.until-decided", "true").code == Exit.DONE
    assert ask("config", "set", "runs", "7").code == Exit.DONE
    assert ask("config", "set", "cluster.sweep.at-once", "4").code == Exit.DONE
    text = file.read_text()
    assert text.startswith('# mine\nmargin = "3%"  # wide\n')
    assert tomllib.loads(text) == {
        "margin": "3%", "runs": 7, "compare": {"blocks": 6, "until-decided": True}, "cluster": {"sweep": {"at-once": 4}},
    }  # fmt: skip
    assert ask("config", "unset", "compare.blocks").code == Exit.DONE
    assert "blocks" not in file.read_text()


def test_a_value_that_lines_cannot_edit_is_left_alone_with_a_sentence() -> None:
    text = "compare = { blocks = 6 }\n"
    file = write_user(text)
    refused(ask("config", "set", "compare.blocks", "8"), "compare.blocks")
    assert file.read_text() == text


KEYS = st.sampled_from(["margin", "runs", "time-limit"])
TABLES = st.sampled_from([(), ("compare",), ("cluster", "sweep")])
VALUES = st.one_of(
    st.integers(0, 10**9),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5), max_size=3),
)


@given(st.lists(st.tuples(TABLES, KEYS, VALUES), max_size=8))
def test_whatever_is_set_is_read_again(edits: list[tuple[tuple[str, ...], str, str | int | bool | list[str]]]) -> None:
    text = ""
    wanted: dict[str, object] = {}
    for table, key, value in edits:
        edited = with_setting(text, table, key, value)
        assert edited is not None
        text = edited
        inner = wanted
        for name in table:
            below = inner.setdefault(name, {})
            assert isinstance(below, dict)
            inner = below
        inner[key] = value
    assert tomllib.loads(text) == wanted
