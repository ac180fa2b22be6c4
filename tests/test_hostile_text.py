"""Text and numbers from outside, in every cell of a ledger: no screen, report or export lets them act."""

import csv
import io
import json
import re
import shutil
import signal
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import recorded
from asking import ask
from ledger_runs import complete
from refusing import refused
from stackmark.cli.main import ITSELF_FAILED
from stackmark.errors import SpecError, StreamError
from stackmark.events import Stream
from stackmark.experiments.judging import judge
from stackmark.kubernetes.manifest.patch import read_patch
from stackmark.ledger.schema import experiments, runs
from stackmark.ledger.store import Ledger
from stackmark.places.place import Outcome

LOG = Path(__file__).parent / "data" / "logs" / "tf_cnn" / "t4_host_1gpu.log"
HOSTILE = "=1+1|<script>alert(1)</script>\x1b[2J\x1b]0;title\x07\u202e\n| a | [x](javascript:1) `y` @all"
# Columns whose text is a key or is checked when it is read.
KEYS = {"id", "experiment_id", "status", "role", "spec", "kind", "design", "request", "workload"}
SCREENS = (
    ("results",), ("show", "last"), ("show", "last", "--log"), ("show", "EXPERIMENT"), ("verdict", "EXPERIMENT"),
    ("roofline", "EXPERIMENT"), ("report", "EXPERIMENT", "--format", "markdown", "-o", "-"), ("baseline", "list"),
    ("published", "sources"),
)  # fmt: skip


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("clean") / "ledger.sqlite3"
    with Ledger.open(str(path)) as book:
        recorded.load(book, "h200_ceilings")
        experiment = recorded.load(book, "h200_host_container")
    assert ask("import", str(LOG), "--ledger", str(path)).code == 0
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    return path, experiment


@pytest.fixture
def ledger(clean: tuple[Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copy(clean[0], tmp_path / "ledger.sqlite3"))


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def change(ledger: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(ledger) as connection:
        connection.execute(statement, values)
    connection.close()


def poison(ledger: Path) -> None:
    """Put hostile text into every column of text, into JSON, and into the lines of every stream."""
    with sqlite3.connect(ledger) as connection:
        for table in (runs, experiments):
            texts = [column.name for column in table.c if str(column.type) == "TEXT" and column.name not in KEYS]
            for name in texts:
                is_json = name in ("flags", "place_options", "handle")
                value = json.dumps([HOSTILE] if name == "flags" else {HOSTILE: HOSTILE}) if is_json else HOSTILE
                connection.execute(f"UPDATE {table.name} SET {name} = ?", (value,))
        for rowid, data in connection.execute("SELECT rowid, data FROM streams").fetchall():
            lines = zlib.decompress(data).decode().split("\n")
            lines = [_poisoned(line) for line in lines] + [
                f"stderr\t{HOSTILE}".replace("\n", " "),
                HOSTILE.replace("\n", " "),
            ]
            connection.execute(
                "UPDATE streams SET data = ? WHERE rowid = ?", (zlib.compress("\n".join(lines).encode()), rowid)
            )
    connection.close()


def _poisoned(line: str) -> str:
    if not line.startswith('{"event":'):
        return line
    event = json.loads(line)
    for name in ("note", "message", "hint", "line", "subject", "unit", "sample"):
        if name in event:
            event[name] = HOSTILE
    if event["event"] == "facts":
        event["facts"] = {key: HOSTILE if isinstance(value, str) else value for key, value in event["facts"].items()}
        event["facts"][HOSTILE] = HOSTILE
    if event["event"] == "result":
        event["flags"] = [f"odd: {HOSTILE}"]
    return json.dumps(event, separators=(",", ":"))


@pytest.mark.parametrize("screen", SCREENS, ids=" ".join)
def test_no_screen_lets_text_from_outside_reach_the_terminal(
    screen: tuple[str, ...], clean: tuple[Path, str], ledger: Path
) -> None:
    poison(ledger)
    answer = ask(*(word.replace("EXPERIMENT", clean[1]) for word in screen), "--ledger", str(ledger))
    # A chip of another name has no ceilings, which is said.
    assert answer.code == 0 or (screen[0], answer.code) == ("roofline", 2), answer.err
    for text in (answer.out, answer.err):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text), text[:2000]
    if screen[0] == "report":  # in a block of code it is text
        assert "<script" not in re.sub(r"(?s)^(`{3,}).*?^\1$", "", answer.out, flags=re.M)


def test_no_report_or_picture_runs_what_a_ledger_holds(clean: tuple[Path, str], ledger: Path, tmp_path: Path) -> None:
    poison(ledger)
    for verb, name in (("report", "a.html"), ("plot", "a.svg")):
        answer = ask(verb, clean[1], "-o", str(tmp_path / name), "--ledger", str(ledger))
        assert answer.code == 0, answer.err
        page = (tmp_path / name).read_text()
        assert "<script>alert" not in page
        assert "\x1b" not in page


# Spreadsheets


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "'=1", "''@x", "=cmd|' /C calc'!A0"])
def test_a_text_that_a_spreadsheet_would_run_is_quoted_and_comes_back(text: str, ledger: Path) -> None:
    change(ledger, "UPDATE runs SET chip = ?, rate_unit = 'plain', wall_s = 2.5", text)
    answer = ask("export", "--format", "csv", "--ledger", str(ledger))
    for row in csv.DictReader(io.StringIO(answer.out, newline="")):
        assert row["chip"] == f"'{text}"
        assert re.sub(r"^'('*[=+\-@\t\r\n])", r"\1", row["chip"]) == text
        assert (row["rate_unit"], float(row["wall_s"])) == ("plain", 2.5)


def test_negative_numbers_and_plain_quotes_stay_as_they_are(ledger: Path) -> None:
    change(ledger, "UPDATE runs SET chip = ?, setup_s = -1.5", "'quoted' - not a formula")
    answer = ask("export", "--format", "csv", "--ledger", str(ledger))
    for row in csv.DictReader(io.StringIO(answer.out, newline="")):
        assert (row["chip"], row["setup_s"]) == ("'quoted' - not a formula", "-1.5")


# Numbers that no run has


@pytest.mark.parametrize("moment", [1.0018382e12, 1e300, -6.3e10, -1e300])
def test_a_moment_outside_all_calendars_is_printed_as_a_number(
    moment: float, clean: tuple[Path, str], ledger: Path
) -> None:
    """1.0018e12 s is the year 33715: milliseconds where seconds belong."""
    change(ledger, "UPDATE runs SET started_unix_s = ?, ended_unix_s = ?", moment, moment)
    change(ledger, "UPDATE experiments SET created_unix_s = ?", moment)
    experiment = clean[1]
    for words in (
        ("results",), ("show", "last"), ("show", experiment), ("verdict", experiment), ("roofline", experiment),
        *(("report", experiment, "-o", str(ledger.with_name(name))) for name in ("a.html", "a.md")),
        ("plot", experiment, "-o", str(ledger.with_name("a.svg"))), ("export", "--format", "csv"), ("results", "--json"),
    ):  # fmt: skip
        answer = ask(*words, "--ledger", str(ledger))
        assert answer.code == 0, (words, answer.err)
    assert f"{moment:.6g} s" in ask("results", "--ledger", str(ledger)).out


@pytest.mark.parametrize(
    ("column", "value"),
    [("rate_per_s", 0.0), ("rate_per_s", -1.0), ("rate_per_s", 1e300), ("step_cv", 1e300), ("steps_used", -1),
     ("started_unix_s", float("inf")), ("spec", "9" * 5000), ("spec", "[" * 5000), ("flags", "{")],
)  # fmt: skip
def test_a_row_that_cannot_be_is_named_and_can_be_deleted(column: str, value: object, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite3"
    with Ledger.open(str(ledger)) as book:
        bad, good = complete(book), complete(book)
    change(ledger, f"UPDATE runs SET {column} = ? WHERE id = ?", value, bad)
    answer = ask("show", bad, "--ledger", str(ledger))
    assert (answer.code, ITSELF_FAILED in answer.err) == (5, False), answer.err
    assert ask("delete", bad, "--yes", "--ledger", str(ledger)).code == 0
    assert ask("show", good, "--ledger", str(ledger)).code == 0


def test_a_number_that_json_cannot_hold_is_a_sentence_of_the_export(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite3"
    with Ledger.open(str(ledger)) as book:
        run_id = complete(book)
    change(ledger, "UPDATE runs SET wall_s = ?", float("inf"))
    answer = ask("export", "--format", "json", "-o", str(tmp_path / "a.json"), "--ledger", str(ledger))
    assert (answer.code, run_id in answer.err) == (5, True), answer.err
    assert not (tmp_path / "a.json").exists()


# Streams


def hello(**fields: object) -> str:
    return json.dumps(
        {"event": "hello", "seq": 0, "t": 0, "time_unix_s": 1.0, "pid": 1, **fields}, separators=(",", ":")
    )


@pytest.mark.parametrize(
    "fields",
    [{"ranks": 9_999_800_001}, {"ranks": 0}, {"ranks": -1}, {"rank": 10**9}, {"seq": 10**300}, {"time_unix_s": 1.0018382e12},
     {"time_unix_s": -1.0}, {"t": 1e300}, {"pid": -1}],
)  # fmt: skip
def test_a_hello_that_no_worker_says_breaks_the_stream(fields: dict[str, object]) -> None:
    with pytest.raises(StreamError):
        Stream().feed(hello(**fields))


def test_a_group_is_judged_by_the_ranks_that_spoke() -> None:
    """A million ranks are claimed, and two speak."""
    stream = Stream()
    for rank in (0, 1):
        stream.feed(hello(ranks=1_000_000, rank=rank))
        for seq, event in enumerate((
            {"event": "steps", "phase": "measure", "first": 0, "step_s": [1.0, 1.0]},
            {"event": "result", "sample": "x", "samples_per_step": 1, "steps": 2, "wall_s": 2.0, "tick_s": 1e-9},
        ), 1):  # fmt: skip
            stream.feed(json.dumps({**event, "seq": seq, "rank": rank, "t": 1.0}, separators=(",", ":")))
    assert judge(stream, Outcome(0)).failure_kind == "cut_off"


# Patches


def test_aliases_in_a_patch_are_refused(tmp_path: Path) -> None:
    """Nine lines that name each other nine times stand for a billion texts."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    lines += [
        f"{here}: &{here} [{','.join([f'*{before}'] * 9)}]" for before, here in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    path = tmp_path / "patch.yaml"
    path.write_text("\n".join(lines))
    with refused(str(path), "line 2"):
        read_patch(str(path))


@pytest.mark.parametrize("text", ["spec: " + "[" * 1500, "spec: {a: " * 300, "x" * 200_000, "a: 1:1" + ":1" * 50_000])
def test_a_patch_that_is_too_deep_or_too_large_is_a_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "patch.yaml"
    path.write_text(text)
    with pytest.raises(SpecError):
        read_patch(str(path))
