"""A user's own published rows: what is taken, what is refused and why, and that it is all of a file or nothing."""

import csv
import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from asking import ESC, Answer, ask
from stackmark.errors import Exit, SpecError
from stackmark.ledger import added
from stackmark.ledger.schema import published
from stackmark.ledger.store import Ledger
from stackmark.published.checks import date_trouble
from stackmark.published.file import MOST_BYTES
from stackmark.published.lookup import add_file, known_rows
from stackmark.published.table import FIELDS, load, one_name

TEMPLATE = "stackmark published template"
GOOD = {
    "model": "resnet50", "task": "training", "chip": "Tesla V100-SXM2-16GB", "count": "1", "precision": "amp",
    "batch": "256", "value": "1325.5", "unit": "img/s", "date": "2024-09-30", "source": "Our lab",
}  # fmt: skip


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "ledger.sqlite3"
    monkeypatch.setenv("STACKMARK_LEDGER", str(file))
    return file


def csv_of(*rows: dict[str, str]) -> str:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)), restval="")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def add(tmp_path: Path, *rows: dict[str, str]) -> Answer:
    file = tmp_path / "mine.csv"
    file.write_text(csv_of(*rows), encoding="utf-8")
    return ask("published", "add", str(file))


def counted(answer: Answer) -> list[int]:
    """The numbers in what a command printed."""
    assert answer.code == Exit.DONE, answer.err
    return [int(number) for number in re.findall(r"\d+", answer.out)]


def stored() -> list[added.Added]:
    with Ledger.open() as book:
        return added.entries(book)[0]


# --- what is taken ----------------------------------------------------------------------------------------------------


def test_a_row_is_stored_in_the_tables_own_spelling(tmp_path: Path) -> None:
    assert counted(add(tmp_path, GOOD)) == [1]
    (entry,) = stored()
    row = entry.row
    assert (row.chip, row.unit, row.precision, row.data) == (one_name(GOOD["chip"]), "images/s", "mixed", "unknown")
    assert row.system == GOOD["chip"] != row.chip
    assert entry.file == "mine.csv"


def test_the_template_can_be_added_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "template.csv").write_text(ask("published", "template").out, encoding="utf-8")
    assert ask("published", "add", str(tmp_path / "template.csv")).code == Exit.DONE
    assert len(stored()) == 1


def test_columns_may_stand_in_any_order_after_a_byte_order_mark_with_windows_line_ends(tmp_path: Path) -> None:
    text = csv_of(dict(reversed(GOOD.items()))).replace("\r\n", "\n").replace("\n", "\r\n")
    (tmp_path / "excel.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert ask("published", "add", str(tmp_path / "excel.csv")).code == Exit.DONE


def test_the_same_rows_a_second_time_are_skipped_and_counted(tmp_path: Path) -> None:
    add(tmp_path, GOOD)
    assert counted(add(tmp_path, GOOD, GOOD | {"batch": "128"}, GOOD | {"batch": "64"})) == [2, 1]
    assert len(stored()) == 3


def test_a_row_that_ships_is_not_added_again(tmp_path: Path) -> None:
    shipped = dict(zip(FIELDS, added.cells_of(load()[0]), strict=True))
    assert counted(add(tmp_path, shipped)) == [0, 1]
    assert stored() == []


def test_an_added_row_is_found_and_marked(tmp_path: Path) -> None:
    add(tmp_path, GOOD)
    (entry,) = stored()
    assert entry.row.added in ask("published", "search", "resnet50 Our lab").out
    said = json.loads(ask("published", "search", "our lab", "--json").out)
    assert [row["added"] for row in said["rows"]] == [entry.row.added]
    sources = json.loads(ask("published", "sources", "--json").out)["sources"]
    assert [one["source"] for one in sources if one["added"]] == ["Our lab"]


def test_escape_sequences_in_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    add(tmp_path, GOOD | {"source": f"{ESC}[31mred{ESC}[0m lab"})
    assert ESC not in ask("published", "search", "red lab").out + ask("published", "sources").out


def test_rows_are_kept_by_either_database(ledger_url: str, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(csv_of(GOOD, GOOD | {"note": "ü\u2028 \\u0000"}), encoding="utf-8")
    with Ledger.open(ledger_url) as book:
        assert add_file(tmp_path / "mine.csv", book).added == 2
        assert add_file(tmp_path / "mine.csv", book).duplicates == 2
        rows = added.rows(book)
        assert {row.note for row in rows} == {"", "ü\u2028 \\u0000"}
        assert added.remove(book, [row.added for row in rows]) == 2
        assert known_rows(book) == load()


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"unit": ""}, ()),
        ({"unit": "imagse/s"}, ("'imagse/s'", "images/s")),
        ({"source": " "}, ()),
        ({"date": ""}, ()),
        ({"date": "30.9.2024"}, ("'30.9.2024'", "YYYY-MM-DD")),
        ({"date": "2024-02-30"}, ("'2024-02-30'", "YYYY-MM-DD")),
        ({"date": "2999-01"}, ("'2999-01'",)),
        ({"date": "1970-01-19"}, ("'1970-01-19'",)),
        ({"value": "nan"}, ("'nan'",)),
        ({"value": "inf"}, ("'inf'",)),
        ({"value": "1e999"}, ("'1e999'",)),
        ({"value": "-1"}, ("'-1'",)),
        ({"value": "0"}, ("'0'",)),
        ({"value": "1,325"}, ("'1,325'",)),
        ({"count": "0"}, ("'0'",)),
        ({"count": "-8"}, ("'-8'",)),
        ({"count": ""}, ()),
        ({"batch": "6.4"}, ("'6.4'",)),
        ({"precision": "fp23"}, ("'fp23'", "fp32")),
        ({"task": "trainign"}, ("'trainign'", "training")),
        ({"workload": "train/resnet-50"}, ("'train/resnet-50'", "train/resnet50")),
        ({"extra": "[1]"}, ("'[1]'",)),
        ({"extra": '{"a": NaN}'}, ("NaN",)),
        ({"note": "x" * 2000}, ("2,000", "1,000")),
    ],
)
def test_an_impossible_row_is_refused_with_its_line_and_nothing_is_added(
    wrong: dict[str, str], named: tuple[str, ...], tmp_path: Path
) -> None:
    answer = add(tmp_path, GOOD, GOOD | {"batch": "128"} | wrong)
    assert answer.code == Exit.WRONG_USE
    (refused,) = (line.strip() for line in answer.err.splitlines() if line.strip().startswith("line "))
    where, _, reason = refused.partition(": ")
    assert where == "line 3"
    assert [word for word in (*wrong, *named) if word not in reason] == []
    assert stored() == []


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    answer = add(tmp_path, GOOD | {"unit": "", "value": "x"}, GOOD, GOOD | {"source": ""})
    assert [line.strip().partition(":")[0] for line in answer.err.splitlines()[1:]] == ["line 2", "line 2", "line 4"]


def test_for_programs_what_was_refused_is_in_the_object(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(csv_of(GOOD | {"unit": ""}), encoding="utf-8")
    answer = ask("published", "add", str(tmp_path / "mine.csv"), "--json")
    assert answer.code == Exit.WRONG_USE
    said = json.loads(answer.out)
    (refused,) = said.pop("refused")
    assert said == {"schema": "stackmark.published-added/1", "added": 0, "already_there": 0}
    assert (refused["line"], "unit" in refused["reason"]) == (2, True)


@pytest.mark.parametrize(("eight", "taken"), [("8000", True), ("8400", True), ("8401", False), ("19600", False)])
def test_eight_devices_may_do_eight_times_the_work_and_five_per_cent_more(
    eight: str, taken: bool, tmp_path: Path
) -> None:
    answer = add(tmp_path, GOOD | {"value": "1000"}, GOOD | {"count": "8", "value": eight})
    assert (answer.code == Exit.DONE) is taken
    assert len(stored()) == (2 if taken else 0)


def test_scaling_is_compared_with_what_was_added_before_from_either_side(tmp_path: Path) -> None:
    add(tmp_path, GOOD | {"count": "4", "value": "4000"})
    for count, value, named in (("8", "10000", ("10,000", "2.5", "4,000")), ("1", "500", ("500", "8", "4,000"))):
        answer = add(tmp_path, GOOD | {"count": count, "value": value})
        assert answer.code == Exit.WRONG_USE
        assert [number for number in named if f" {number} " not in answer.err] == []


@pytest.mark.parametrize(
    "other",
    [{"source": "Another lab"}, {"batch": "64"}, {"precision": "fp32"}, {"chip": "V100 32GB"}, {"model": "resnet101"}],
)
def test_another_recipe_is_no_measure_of_scaling(other: dict[str, str], tmp_path: Path) -> None:
    assert add(tmp_path, GOOD | {"value": "1000"}, GOOD | {"count": "8", "value": "9999"} | other).code == Exit.DONE


def test_a_time_to_target_may_fall_faster_than_devices_are_added(tmp_path: Path) -> None:
    minutes = GOOD | {"task": "training to target", "unit": "min", "value": "100"}
    assert add(tmp_path, minutes, minutes | {"count": "8", "value": "10"}).code == Exit.DONE


def test_the_slower_of_two_printed_runs_proves_nothing(tmp_path: Path) -> None:
    slow, quick = GOOD | {"value": "900", "note": "run 1"}, GOOD | {"value": "1000", "note": "run 2"}
    assert add(tmp_path, slow, quick, GOOD | {"count": "8", "value": "8100"}).code == Exit.DONE


def test_tomorrow_is_no_future_where_the_sun_is_ahead_of_ours() -> None:
    now = datetime(2026, 11, 15, 12, tzinfo=UTC)
    assert date_trouble("2026-11-16", now=now) is None
    assert date_trouble("2026-11-17", now=now) is not None


# --- files that are no table ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", ("empty",)),
        (b"\n \n", ("empty",)),
        (b"\x7fELF\0\0\0", (TEMPLATE,)),
        (b"model,task\ncaf\xe9,x\n", ("line 2", "UTF-8")),
        (b"a,b,c\n1,2,3\n", ("line 1", TEMPLATE)),
        (b"model,task,chip,cuont,value,unit,date,source\n", ("line 1", "'cuont'", "count")),
        (b"model,model,task,chip,count,value,unit,date,source\n", ("line 1", TEMPLATE)),
        (b"model,task,chip,count,value,unit,date\n", ("line 1", "column source")),
        (b"model,task,chip,count,value,unit,date,source\n", ("header", TEMPLATE)),
        (b'model,task,chip,count,value,unit,date,source\n"a\n', ("line 2", "end of data")),
        (b"model,task,chip,count,value,unit,date,source\n" + b"x" * 200_000, ("field limit",)),
        (b"x" * (MOST_BYTES + 1), (f"{MOST_BYTES:,}", f"{MOST_BYTES + 1:,}")),
    ],
)
def test_a_file_that_is_no_table_is_a_sentence(data: bytes, named: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(data)
    answer = ask("published", "add", str(tmp_path / "mine.csv"))
    assert answer.code == Exit.WRONG_USE
    assert [word for word in ("mine.csv", *named) if word not in answer.err] == []


@pytest.mark.parametrize("name", ["gone.csv", ""])
def test_a_file_that_is_not_there_is_a_sentence(name: str, tmp_path: Path) -> None:
    answer = ask("published", "add", str(tmp_path / name))
    assert answer.code == Exit.WRONG_USE
    assert str(tmp_path / name) in answer.err


# --- removing ---------------------------------------------------------------------------------------------------------


def test_a_row_is_removed_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    add(tmp_path, GOOD, GOOD | {"batch": "128"})
    one, other = (entry.row.added for entry in stored())
    assert counted(ask("published", "remove", one[:12], "--yes")) == [1]
    assert [entry.row.added for entry in stored()] == [other]


def test_rows_are_removed_by_the_file_they_came_from(tmp_path: Path) -> None:
    add(tmp_path, GOOD, GOOD | {"batch": "128"})
    assert counted(ask("published", "remove", "--file", "some/where/mine.csv", "--yes")) == [2]
    assert stored() == []


def test_removing_asks_first(tmp_path: Path) -> None:
    add(tmp_path, GOOD)
    answer = ask("published", "remove", "--file", "mine.csv")
    assert answer.code == Exit.WRONG_USE
    assert len(stored()) == 1


@pytest.mark.parametrize("which", [(), ("p-zzzz",), ("nonsense!",), ("--file", "other.csv")])
def test_what_is_not_there_cannot_be_removed(which: tuple[str, ...], tmp_path: Path) -> None:
    add(tmp_path, GOOD)
    assert ask("published", "remove", *which, "--yes").code == Exit.WRONG_USE
    assert len(stored()) == 1


def test_an_ambiguous_beginning_is_a_sentence(tmp_path: Path) -> None:
    add(tmp_path, GOOD, GOOD | {"batch": "128"})
    with Ledger.open() as book, pytest.raises(SpecError) as caught:
        added.find(book, ["p-"])
    assert [entry.row.added for entry in stored() if entry.row.added not in caught.value.message] == []


def test_a_row_that_this_version_cannot_read_is_left_out_and_can_be_removed(tmp_path: Path) -> None:
    add(tmp_path, GOOD)
    (entry,) = stored()
    with Ledger.open() as book:
        book.writing(lambda connection: connection.execute(published.update().values(entry={"unit": "parsec"})))
        assert known_rows(book) == load()
    assert entry.row.added in ask("published", "search", "resnet50").err
    assert counted(ask("published", "remove", entry.row.added, "--yes")) == [1]
