"""A database's password is neither printed nor stored, however it is written in the ledger's URL."""

import json
import socket
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from asking import ask, ask_process
from postgres import PostgresServer
from stackmark.cli.main import ITSELF_FAILED
from stackmark.errors import Exit
from stackmark.ledger.masking import hide_in_arguments

SECRET = "Zq8/w:#7@x"
# Of which no part that is longer than a letter may be seen.
PIECES = ("Zq8", "w:#7", "%2Fw", "7@x", "7%40x")


def pieces_in(text: str) -> list[str]:
    return [piece for piece in PIECES if piece in text]


@pytest.fixture
def port() -> Iterator[int]:
    """A port where nothing answers."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield int(closed.getsockname()[1])


@pytest.mark.parametrize(
    "form",
    [
        "postgresql://me:{quoted}@127.0.0.1:{port}/db",
        "postgresql://me:{raw}@127.0.0.1:{port}/db",
        "postgresql://me:Zq8/w:#7@127.0.0.1:{port}/db",
        "postgresql://me@127.0.0.1:{port}/db?password={quoted}",
        "postgresql://me@127.0.0.1:{port}/db?sslpassword={quoted}&passfile=/x/Zq8&sslmode=disable",
        "postgresql://127.0.0.1:{port}/db?user=me&password={raw}",
        "postgresql://me@127.0.0.1:{port}/db?unheard_of={quoted}",
        "postgresql://me:{raw}@127.0.0.1:port/db",
        "postgresql://me:Zq8@[::1/db",
        "mysql://me:{raw}@127.0.0.1/db",
        "postgresql:me:{raw}@127.0.0.1/db",
        "host=127.0.0.1 port={port} password={raw}",
    ],
)
def test_no_message_shows_the_password(form: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    url = form.format(quoted=quote(SECRET, safe=""), raw=SECRET, port=port)
    monkeypatch.delenv("STACKMARK_LEDGER", raising=False)
    typed = ask("results", "--ledger", url)
    monkeypatch.setenv("STACKMARK_LEDGER", url)
    exported = ask("results")
    for answer in (typed, exported):
        assert answer.code in (Exit.WRONG_USE, Exit.LEDGER_FAILED)
        assert ITSELF_FAILED not in answer.err
        assert pieces_in(answer.out + answer.err) == []
    assert pieces_in(" ".join(hide_in_arguments(["run", "--ledger", url, f"--ledger={url}"]))) == []


def test_the_rest_of_a_url_is_still_shown(port: int) -> None:
    answer = ask("results", "--ledger", f"postgresql://me:{quote(SECRET, safe='')}@127.0.0.1:{port}/db?sslmode=disable")
    assert f"postgresql://me:***@127.0.0.1:{port}/db?sslmode=disable" in answer.err


def test_a_url_within_another_argument_is_hidden_too() -> None:
    shown = hide_in_arguments(
        ["--cmd", "sh -c 'psql postgresql://me:Zq8@h/db?sslpassword=Zq8; curl https://me:Zq8@h/x'"]
    )
    assert pieces_in(" ".join(shown)) == []
    plain = [
        "--cmd",
        "python train.py --data s3://bucket/a@b",
        "--ledger",
        "/srv/l@b.sqlite3",
        "--image",
        "r:5000/i@sha256:ab",
    ]
    assert hide_in_arguments(plain) == plain


@pytest.mark.parametrize("in_query", [False, True])
def test_what_is_stored_and_repeated_has_no_password(postgres_server: PostgresServer, in_query: bool) -> None:
    postgres_server.emptied_database()
    postgres_server.sql(f"DROP ROLE IF EXISTS odd; CREATE ROLE odd LOGIN SUPERUSER PASSWORD '{SECRET}'")
    where = f"127.0.0.1:{postgres_server.port}/shared"
    quoted = quote(SECRET, safe="")
    url = f"postgresql://odd@{where}?password={quoted}" if in_query else f"postgresql://odd:{quoted}@{where}"
    made = ask_process(url, "run", "--cmd", "env", "--runs", "1", "--ledger", url, "--json")
    assert made.code == Exit.DONE, made.err
    assert pieces_in(made.out + made.err) == []
    assert "***" in made.out
    run_id = json.loads(made.out)["results"][0]["runs"][0]["id"]
    log = ask_process(url, "show", run_id, "--log")
    assert "STACKMARK_RUN" in log.out, "the program's environment is in its log"
    assert pieces_in(log.out + log.err) == []
    assert "STACKMARK_LEDGER" not in log.out
    stored = postgres_server.sql(
        "SELECT string_agg(x::text, ' ') FROM (SELECT row(e.*)::text || row(r.*)::text AS x FROM stackmark.experiments e, "
        "stackmark.runs r) AS all_rows", "shared",
    )  # fmt: skip
    assert "***" in stored
    assert pieces_in(stored) == []
