"""Bytes that are not UTF-8, in every argument of every command, in names of files and folders, and in the environment.

Each is taken as the name of a file, or refused with a sentence; never a traceback, and nothing is stored by halves. The
commands and their parameters come from the command line itself: a new one is tried without a change here.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

import recorded
from asking import ask, environment
from stackmark.cli.main import ITSELF_FAILED, stackmark
from stackmark.cli.text_only import PATHS
from stackmark.errors import Exit
from stackmark.ledger.store import Ledger

ROOT = Path(__file__).parent.parent
LOG = ROOT / "tests" / "data" / "logs" / "tf_cnn" / "t4_host_1gpu.log"
BAD = "\udcff\udcfe"
# What else a command needs, by the name of its argument.
USUAL = {
    "run": "last", "runs": "last", "files": str(LOG), "words": "resnet50",
    "folders": str(LOG.parent.parent / "mlperf_v0.6" / "ssd"), "file": str(ROOT / "fuzz/corpus/published/template.csv"),
}  # fmt: skip
# Commands that measure or go to a cluster: with a path alone they would begin to.
# Commands that serve until they are ended: with a path alone they would.
SERVES = {"exporter", "web"}
MEASURES = {"run", "compare", "noise", "ceilings", "resume", "check", "cluster", "tf-cnn", "facts", "canary"}


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, (*path, name))


ALL = dict(commands(stackmark))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A ledger with an experiment; its id."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite3"
    with Ledger.open(str(path)) as book:
        return path, recorded.load(book, "h200_host_container")


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def takes_text(param: click.Parameter) -> bool:
    if isinstance(param, click.Option) and (param.is_flag or param.count):
        return False
    numbers = click.types.IntParamType | click.types.FloatParamType | click.types.BoolParamType
    return not isinstance(param.type, numbers | click.Choice)


def is_path(param: click.Parameter) -> bool:
    return param.name in PATHS or isinstance(param.type, click.Path)


def line_for(path: tuple[str, ...], command: click.Command, param: click.Parameter, experiment: str) -> list[str]:
    """A command line in which this parameter is not UTF-8, and the others are as people give them."""
    usual = {**USUAL, "experiment": experiment, "names": experiment}
    words = [
        *path,
        *(
            BAD if one is param else usual.get(one.name or "", "x")
            for one in command.params
            if isinstance(one, click.Argument) and (one is param or one.required or one.name in usual)
        ),
    ]
    for one in command.params:
        if isinstance(one, click.Option) and one is param:
            words += [one.opts[-1], f"{BAD}.svg" if path == ("plot",) else BAD]
        elif isinstance(one, click.Option) and one.required:
            words += [one.opts[-1], "csv" if isinstance(one.type, click.Choice) else "a.svg"]
        elif one.name == "yes":
            words.append("--yes")
    return words


@pytest.mark.parametrize("name", [" ".join(path) for path in ALL])
def test_every_argument_of_every_command(
    name: str, filled: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tuple(name.split(" "))
    command = ALL[path]
    ledger, experiment = filled
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    before = ledger.read_bytes()
    for param in filter(takes_text, command.params):
        if is_path(param) and path[0] in MEASURES | SERVES | {"baseline", "image", "manifest"}:
            continue
        monkeypatch.setenv("STACKMARK_LEDGER", str(ledger if path[0] not in ("delete", "import") else tmp_path / "new"))
        words = line_for(path, command, param, experiment)
        answer = ask(*words)
        said = f"{words}: {answer.code} {answer.err}"
        assert ITSELF_FAILED not in answer.err, said
        assert "Traceback" not in answer.err, said
        if is_path(param):
            assert answer.code in (Exit.DONE, Exit.WRONG_USE, Exit.LEDGER_FAILED), said
        else:
            assert answer.code == Exit.WRONG_USE, said
            assert "UTF-8" in answer.err, said
    if path[0] != "published":
        assert ledger.read_bytes() == before, "nothing was stored"


@pytest.mark.parametrize("text", ["é", "🙂", "\u202e", "ﬀ"])
def test_what_is_utf_8_is_not_refused(text: str, tmp_path: Path) -> None:
    answer = ask("import", str(LOG), "--label", text, "--ledger", str(tmp_path / "ledger.sqlite3"), "--json")
    assert answer.code == 0, answer.err
    with sqlite3.connect(tmp_path / "ledger.sqlite3") as connection:
        (handle,) = connection.execute("SELECT handle FROM runs").fetchone()
    connection.close()
    assert json.loads(handle)["label"] == text


# One process for all of them, since each takes a second to start: a line of words for each command.
ASKS = """
import os, sys
from stackmark.cli.main import main
for line in sys.stdin.buffer.read().splitlines():
    code = main([os.fsdecode(word) for word in line.split(b"\\t")])
    print(f"code {int(code)}", file=sys.stderr, flush=True)
"""


def asked_in(folder: bytes, lines: Sequence[Sequence[bytes]], **variables: bytes) -> tuple[list[int], bytes, bytes]:
    env = {os.fsencode(key): os.fsencode(value) for key, value in environment("").items() if key != "STACKMARK_LEDGER"}
    env |= {os.fsencode(key): value for key, value in variables.items()}
    done = subprocess.run(
        [sys.executable, "-c", ASKS], cwd=folder, env=env, input=b"\n".join(map(b"\t".join, lines)), capture_output=True,
        timeout=250, check=True,
    )  # fmt: skip
    return [int(code) for code in re.findall(rb"^code (\d+)$", done.stderr, re.M)], done.stdout, done.stderr


def test_folders_home_ledger_and_files_may_have_any_name(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff\xfe folder"
    os.mkdir(folder)
    Path(os.fsdecode(folder + b"/\xff.log")).write_bytes(LOG.read_bytes())
    codes, _, err = asked_in(
        folder,
        [
            (b"import", b"\xff.log"), (b"results",), (b"show", b"last"), (b"show", b"last", b"--log"), (b"verdict", b"last"),
            (b"export", b"--format", b"csv", b"-o", b"\xff.csv"), (b"report", b"last", b"-o", b"\xff.html"),
            (b"published", b"sources"), (b"import", b"\xff.log", b"--ledger", b"\xff.sqlite3"),
            (b"results", b"--ledger", b"\xff.sqlite3"),
        ],
        HOME=folder,
    )  # fmt: skip
    assert ITSELF_FAILED.encode() not in err, err
    assert b"Traceback" not in err, err
    assert codes == [0] * 10, err
    assert {b"\xff.csv", b"\xff.html", b"\xff.sqlite3", b".local"} <= set(os.listdir(folder))
    assert os.path.exists(folder + b"/.local/share/stackmark/ledger.sqlite3")
    _, out, _ = asked_in(folder, [(b"show", b"last", b"--json")], STACKMARK_LEDGER=b"\xff.sqlite3")
    assert json.loads(out)["facts"]["import"]["file"] == "\\udcff.log"


def test_a_program_is_not_started_in_a_folder_whose_name_it_cannot_be_told(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    (code,), _, err = asked_in(folder, [(b"run", b"--cmd", b"true")], STACKMARK_LEDGER=b"ledger.sqlite3")
    assert code == Exit.WRONG_USE
    assert b"--cwd" in err
    assert os.listdir(folder) == []
