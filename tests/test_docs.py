"""The documentation is part of the program: what it shows can be typed, what can be typed is in it, and no link is dead."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from asking import ask
from stackmark.cli.compare import in_all
from stackmark.cli.main import ANYWHERE, our_verbs, stackmark
from stackmark.cli.options import (
    asked_workloads,
    names_image,
    parameter_fields,
    read_margin,
    read_requests,
    taken_place_options,
)
from stackmark.errors import Exit, SpecError
from stackmark.events import FAILURE_EXIT_CODES
from stackmark.experiments.arms import place_of, read_arms
from stackmark.experiments.tf_cnn_flags import asks_for_help
from stackmark.experiments.tf_cnn_mapping import plan
from stackmark.ledger.store import Ledger
from stackmark.spec import Request
from stackmark.workloads.registry import check_request

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What `stackmark help` says is typed as readily as what a page says.
TOPICS = ROOT / "src" / "stackmark" / "cli" / "topics.txt"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# What a shell would not hand to the program.
AFTER_COMMAND = {"|", ">", ">>", "<", ";", "&&", "||", "&", "2>&1"}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_lines(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of code blocks, fenced or indented, with their numbers."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield number, line.strip()


def commands() -> Iterator[tuple[str, list[str], str]]:
    """Every `stackmark …` in a code block, as a shell would hand it on, and the line below it."""
    for page in (*PAGES, TOPICS):
        lines = list(code_lines(page))
        # A page may have no code at all.
        for (number, line), (_, below) in zip(lines, [*lines[1:], (0, "")], strict=False):
            typed = re.sub(r"^(\$ |[A-Z_]+=\S+ )+", "", line)
            if not typed.startswith("stackmark ") or "…" in typed or "[OPTIONS]" in typed:
                continue
            shell = shlex.shlex(typed, posix=True, punctuation_chars="|&;<>")
            shell.whitespace_split, shell.commenters = True, "#"
            words = list(shell)
            end = next((i for i, word in enumerate(words) if word in AFTER_COMMAND), len(words))
            yield f"{name(page)}:{number}", words[1:end], below


def below(top: click.Context, verb: str) -> dict[str, click.Command]:
    """The commands of a verb that is a group: `published search`."""
    command = stackmark.get_command(top, verb)
    return inside(command) if command else {}


def inside(command: click.Command) -> dict[str, click.Command]:
    """The commands of a group, loaded where it loads them when they are called."""
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command)
    return {name: found for name in command.list_commands(context) if (found := command.get_command(context, name))}


def all_commands() -> Iterator[tuple[str, ...]]:
    with stackmark.make_context("stackmark", [], resilient_parsing=True) as top:
        for verb in our_verbs():
            yield from ((verb, name) for name in below(top, verb))
            if not below(top, verb):
                yield (verb,)


# A command that is shown with its error is meant to be wrong.
COMMANDS = {where: words for where, words, below in commands() if not below.startswith("stackmark: ")}
WRONG = {where: (words, below) for where, words, below in commands() if below.startswith("stackmark: ")}


def test_the_test_finds_commands() -> None:
    assert len(COMMANDS) >= 20
    shown = [tuple(words) for words in COMMANDS.values()]
    assert [one for one in all_commands() if not any(words[: len(one)] == one for words in shown)] == []


@pytest.mark.parametrize("where", COMMANDS)
def test_every_command_in_the_docs_can_be_typed(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word for word in COMMANDS[where] if word not in ANYWHERE]
    for name in ("HF_TOKEN", "API_KEY"):  # given by name, as by a reader who has exported them
        monkeypatch.setenv(name, "set")
    with stackmark.make_context("stackmark", [], resilient_parsing=True) as top:
        if not words or words[0].startswith("-"):
            assert set(words) <= {"--help", "--version", "-h"}
            return
        verb, *arguments = words
        command = stackmark.get_command(top, verb)
        assert command is not None, f"there is no command {verb!r}"
        if verb == "tf-cnn":
            classic = command.make_context(verb, arguments, parent=top)
            place_of(classic.params["place"], "train/resnet50", taken_place_options(dict(classic.params)))
            understands([*classic.params["flags"]])
            return
        try:
            if isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
                top, (name, *arguments) = click.Context(command, parent=top, info_name=verb), arguments
                assert name in inside(command), f"there is no command {verb} {name}"
                verb, command = f"{verb} {name}", inside(command)[name]
            ctx = command.make_context(verb, arguments, parent=top)
        except click.exceptions.Exit:
            return  # --help
        checked = {"run": one_place, "compare": arms, "noise": one_place, "baseline save": workloads_of}.get(verb)
        if checked:
            checked(dict(ctx.params))


def requests_of(params: dict[str, Any], workloads: list[str] | None = None, *, image: bool = False) -> list[Request]:
    """What a command asks for, checked as the program does it before it begins."""
    fields = parameter_fields()
    typed = {name: value for name, value in params.items() if name in fields}
    requests = read_requests(workloads or asked_workloads(params["workload"], typed, image=image), typed)
    for request in requests:
        check_request(request, in_all(params.get("arms") or ()))
    return requests


def one_place(params: dict[str, Any]) -> None:
    options = taken_place_options(params)
    for request in requests_of(params, image=names_image([params["place"]], options)):
        read_arms([params["place"]], request.workload, options, least=1)


def arms(params: dict[str, Any]) -> None:
    options = taken_place_options(params)
    for request in requests_of(params, image=names_image(params["arms"], options)):
        read_arms(params["arms"], request.workload, options, least=1 if params["published"] else 2)
    if params["margin"] is not None:
        read_margin(params["margin"])


def workloads_of(params: dict[str, Any]) -> None:
    taken_place_options(params)
    if params["workloads"]:
        requests_of(params, list(params["workloads"]))


@pytest.mark.parametrize("where", WRONG)
def test_every_error_in_the_docs_is_what_is_said(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "ledger.sqlite3"))  # not that of who runs the tests
    Ledger.open(str(tmp_path / "ledger.sqlite3")).close()
    words, below = WRONG[where]
    assert ask(*words).err.splitlines()[0] == below


def understands(flags: list[str]) -> None:
    try:
        if not asks_for_help(flags):
            plan(flags)
    except SpecError as error:
        if "is not a folder" not in error.message:  # somebody's data
            raise


def options() -> Iterator[tuple[str, str]]:
    with stackmark.make_context("stackmark", [], resilient_parsing=True) as top:
        for verb in ("", *our_verbs()):
            command = stackmark.get_command(top, verb) if verb else stackmark
            assert command is not None
            named = {verb: command, **{f"{verb} {name}": inner for name, inner in below(top, verb).items()}}
            for words, one in named.items():
                for param in one.params:
                    if isinstance(param, click.Option):
                        yield from ((words, option) for option in (*param.opts, *param.secondary_opts))


ALL_TEXT = "\n".join(page.read_text() for page in PAGES)


def test_every_verb_is_on_the_tour() -> None:
    tour = (ROOT / "docs" / "tour.md").read_text()
    assert [verb for verb in our_verbs() if f"stackmark {verb}" not in tour] == []


def test_every_option_is_documented() -> None:
    documented = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", ALL_TEXT))
    assert [(verb, option) for verb, option in options() if option not in documented] == []


def test_the_page_of_commands_is_what_help_prints() -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "write_commands.py")], capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "docs" / "commands.md").read_text() == made, "python scripts/write_commands.py > docs/commands.md"


def test_every_exit_code_is_documented() -> None:
    page = (ROOT / "docs" / "exit-codes.md").read_text()
    ours, worker = page.split("## The worker")
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", ours, re.MULTILINE)}
    assert codes == {int(code) for code in Exit}
    said = {kind: int(code) for code, kind in re.findall(r"^\| (\d+) \| `(\w+)` \|", worker, re.MULTILINE)}
    assert said == FAILURE_EXIT_CODES


def test_every_dependency_is_documented_with_its_pinned_version() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pins = {package.lower(): version for package, version in pins.items()}
    wanted = set(re.findall(r'"([a-z][\w-]*)(?:\[\w+\])?>=', project))
    assert len(wanted) > 10
    for package in wanted:
        assert re.search(rf"\b{package}\b", page), f"{package} has no reason in docs/dependencies.md"
        assert pins[package] in page, f"docs/dependencies.md does not have {package} {pins[package]}"


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, without punctuation, spaces as dashes."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), f"{name(page)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name(page)} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_names_a_place_on_somebodys_machine(page: Path) -> None:
    assert re.findall(r"(?:/root/|/home/|\.\./shared)\S*", page.read_text()) == []


def test_every_page_can_be_found_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES[1:] if f"docs/{page.name}" not in readme] == []


def test_the_files_that_the_page_on_the_architecture_names_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = {name for name in re.findall(r"`([a-z_/]+\.py)`", page) if "/" in name}
    assert len(named) > 40
    assert [
        name
        for name in sorted(named)
        if not (ROOT / "src" / "stackmark" / name).exists() and not (ROOT / name).exists()
    ] == []


def test_the_page_on_the_architecture_has_the_layers_in_the_order_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one["type"] == "layers")
    wanted = [name for layer in layers[:-1] for name in re.findall(r"stackmark\.(\w+)", layer)]
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = [
        cell
        for row in re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE)
        for cell in re.findall(r"`(\w+)(?:/|\.py)`", row)
    ]
    assert table[: len(wanted)] == wanted
