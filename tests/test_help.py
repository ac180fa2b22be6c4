"""Help: one screen with -h, all of it with --help, and topics that name pages which exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from asking import ask
from stackmark.cli.help import IMPORTANT, TOPICS, topics
from stackmark.cli.main import SECTIONS, VERBS, our_verbs, stackmark
from stackmark.errors import Exit

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 80, 40


def commands() -> Iterator[tuple[str, ...]]:
    with stackmark.make_context("stackmark", [], resilient_parsing=True) as root:
        for verb in our_verbs():
            command = stackmark.get_command(root, verb)
            below = command.list_commands(root) if isinstance(command, click.Group) else []
            yield from ((verb, name) for name in below)
            if verb != "tf-cnn":  # the classic has its own
                yield (verb,)


COMMANDS = ["", *map(" ".join, commands())]


@pytest.mark.parametrize("command", COMMANDS)
def test_short_help_fits_on_a_screen_and_names_the_whole(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    answer = ask(*command.split(), "-h")
    assert (answer.code, answer.err) == (Exit.DONE, "")
    lines = answer.out.splitlines()
    assert len(lines) <= HEIGHT
    groups = "Commands:" in lines
    assert groups or max(map(len, lines)) <= WIDTH
    assert groups or lines[-1].endswith(f"{' '.join(['stackmark', *command.split()])} --help")


@pytest.mark.parametrize("command", ["run", "compare", "cluster sweep", "baseline save", "manifest"])
def test_short_help_of_a_command_with_many_options_shows_about_fifteen(command: str) -> None:
    shown = re.findall(r"(?m)^  (-\S+)", ask(*command.split(), "-h").out)
    assert 8 <= len(shown) <= 20
    whole = ask(*command.split(), "--help").out
    assert [option for option in shown if option.rstrip(",") not in whole] == []


def test_every_important_option_is_one_of_a_command_and_short() -> None:
    with stackmark.make_context("stackmark", [], resilient_parsing=True) as root:
        names: set[str] = set()
        for words in commands():
            command: click.Command = stackmark
            for word in words:
                assert isinstance(command, click.Group)
                found = command.get_command(root, word)
                assert found is not None
                command = found
            names |= {param.name or "" for param in command.params}
    assert set(IMPORTANT) <= names
    assert max(map(len, IMPORTANT.values())) <= 48


def test_every_verb_stands_in_one_section_with_a_line_that_fits() -> None:
    assert len(VERBS) == sum(map(len, SECTIONS.values()))
    help_text = ask("--help").out
    assert [verb for verb in our_verbs() if not re.search(rf"(?m)^  {verb} +\S", help_text)] == []
    assert max(len(text) for text in our_verbs().values()) <= WIDTH - 15


def test_help_alone_lists_the_topics() -> None:
    answer = ask("help")
    assert answer.code == Exit.DONE
    assert [name for name in topics() if not re.search(rf"(?m)^  {name} ", answer.out)] == []
    wanted = {"arms", "blocks", "margin", "places", "units", "images", "pods", "gpus", "metric", "exit-codes", "files",
              "verdicts", "config", "json"}  # fmt: skip
    assert wanted <= set(topics())


@pytest.mark.parametrize("name", topics())
def test_a_topic_is_short_and_names_pages_that_exist(name: str) -> None:
    answer = ask("help", name)
    assert answer.code == Exit.DONE
    lines = answer.out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    pages = re.findall(r"docs/[\w-]+\.md", lines[-1])
    assert pages
    assert [page for page in pages if not (ROOT / page).exists()] == []


def test_a_topic_may_be_typed_in_capitals() -> None:
    assert ask("help", "MARGIN").out == ask("help", "margin").out


@pytest.mark.parametrize("command", ["run", "cluster doctor", "cluster"])
def test_help_of_a_command_is_its_whole_help(command: str) -> None:
    assert ask("help", *command.split()).out == ask(*command.split(), "--help").out


def test_the_file_of_topics_begins_with_how_it_is_written() -> None:
    head, _, _ = TOPICS.read_text(encoding="utf-8").partition("\n== ")
    assert "== name: title" in head


@pytest.mark.parametrize("words", [("-v",), ("--verbose",), ("-q",), ("--quiet",), ("--debug",)])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_may_stand_anywhere_may_stand_anywhere(words: tuple[str, ...], at: int) -> None:
    typed = ["workloads", "train/lenet"]
    assert ask(*typed[:at], *words, *typed[at:]).code == Exit.DONE


def test_behind_two_dashes_nothing_is_an_option() -> None:
    assert "-q" in ask("workloads", "--", "-q").err
