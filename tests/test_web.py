"""The pages of `stackmark web` as a program asks for them: what they show, whom they refuse, and how the server ends."""

import http.client
import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import Text

import recorded
from asking import ask
from ledger_runs import FAILED, T0, begin, complete, our_path
from stackmark.api.baselines import save_baseline
from stackmark.api.browsing import (
    Edge,
    ExperimentFilter,
    Page,
    RunFilter,
    page_of_experiments,
    page_of_runs,
    runs_by_rate,
)
from stackmark.cli.main import stackmark as command_line
from stackmark.errors import Exit, SpecError
from stackmark.experiments.driver import boot_name, machine_name, pid_namespace
from stackmark.ledger.schema import experiments, runs
from stackmark.ledger.store import Ledger
from stackmark.web.guard import Guard, host_in
from web_serving import TOKEN, Client, serving

T = TypeVar("T")
HOSTILE = "\"'><script>alert(1)</script>\x1b[2J\u202e<img src=x onerror=alert(1)>"
KEYS = {"id", "experiment_id", "status", "role", "spec", "kind", "design", "request", "suite_id", "run_id"}
LISTS = ("/", "/runs", "/machines", "/trends", "/published", "/baselines", "/new")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real experiments, one of each kind that pages show in their own way, and a baseline."""
    path = tmp_path_factory.mktemp("web") / "ledger.sqlite3"
    with Ledger.open(str(path)) as book:
        recorded.load(book, "h200_host_container")
        alone = recorded.load(book, "cpu_tf_cnn")
        for name in ("h200_suite", "h200_gemm_bf16", "h200_own_program", "made_fault", "made_sweep"):
            recorded.load(book, name)
        save_baseline("before", experiments=[alone], ledger=book)
    return path


@pytest.fixture(scope="module")
def site(ledger: Path) -> Iterator[Client]:
    with serving(ledger) as client:
        yield client


# --- what pages show ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", LISTS)
def test_each_page_answers_with_a_policy_that_forbids_scripts_and_requests_elsewhere(site: Client, where: str) -> None:
    answer = site.get(where)
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "<style" not in answer.body
    assert " style=" not in answer.body
    assert " on" not in {part[:3] for part in answer.body.split('"')[::2]}


def test_the_page_of_each_experiment_shows_what_it_is(site: Client, ledger: Path) -> None:
    with Ledger.open(str(ledger)) as book:
        shown = {row.experiment.kind: site.get(f"/experiments/{row.experiment.id}") for row in book.experiments()}
    assert {kind: answer.status for kind, answer in shown.items()} == dict.fromkeys(shown, 200)
    assert "EQUIVALENT" in shown["compare"].words
    assert "Every run" in shown["compare"].words
    assert "suite" in shown["suite"].words
    assert "2 devices of 10 are SLOW" in shown["sweep"].words
    assert "kubelet" in shown["fault"].words


def test_the_page_of_a_run_has_its_numbers_its_steps_its_log_and_its_facts(site: Client, ledger: Path) -> None:
    with Ledger.open(str(ledger)) as book:
        row = book.runs(RunFilter(workload="train/resnet50_v1.5", status="done"))[0]
    answer = site.get(f"/runs/{row.id}")
    assert answer.status == 200
    assert answer.body.count('class="chart"') == 2
    for said in ("images/s", "Step times of", "driver", "All parameters"):
        assert said in answer.words
    assert site.get(f"/runs/{row.id}/log.txt").headers["content-type"] == "text/plain; charset=utf-8"


def test_a_suite_with_missing_cells_is_open_in_the_list_and_on_its_page(site: Client, ledger: Path) -> None:
    with Ledger.open(str(ledger)) as book:
        suite = next(row.experiment.id for row in book.experiments() if row.experiment.kind == "suite")
    listed = site.get("/").body
    assert "open</span>" in listed[listed.index(suite) :].partition("</tr>")[0]
    page = site.get(f"/experiments/{suite}").words
    assert "Not finished" in page
    assert "It has no run" not in page


def test_a_verdict_of_the_list_is_computed_apart(site: Client, ledger: Path) -> None:
    with Ledger.open(str(ledger)) as book:
        compared = next(row.experiment.id for row in book.experiments() if row.experiment.kind == "compare")
    assert f'data-verdict="/experiments/{compared}/verdict"' in site.get("/").body
    assert "EQUIVALENT" in site.get(f"/experiments/{compared}/verdict").words
    assert f'data-verdict="/experiments/{compared}/verdict"' not in site.get("/").body


def test_the_report_of_an_experiment_comes_as_one_file(site: Client, ledger: Path) -> None:
    with Ledger.open(str(ledger)) as book:
        compared = next(row.experiment.id for row in book.experiments() if row.experiment.kind == "compare")
    answer = site.get(f"/experiments/{compared}/report.html")
    assert answer.headers["content-disposition"] == f'attachment; filename="stackmark-{compared}.html"'
    assert answer.body.startswith("<!doctype html>")


def test_trends_machines_published_and_baselines_show_what_is_stored(site: Client) -> None:
    assert "NVIDIA H200" in site.get("/machines").words
    assert "NVIDIA H200, container" in site.get("/trends?workload=train/resnet50_v1.5").words
    assert "context, not a verdict" in site.get("/published").words
    assert "V100" in site.get("/published?q=resnet50+V100").words
    assert "train/lenet" in site.get("/baselines").words
    assert site.get("/baselines/before").status == 200
    assert site.get("/baselines/before/trend.svg").body.startswith("<?xml")


@pytest.mark.parametrize(
    ("query", "there", "absent"),
    [
        ("workload=gemm", "op/gemm", "train/gpt2"),
        ("kind=suite", "suite", "op/gemm"),
        ("workload=op/*&state=done", "op/gemm", "command/own"),
        ("q=no+command+has+this", "No experiment fits", "op/gemm"),
        ("until=2026-10-01", "sweep", "op/gemm"),
    ],
)
def test_filters_choose_experiments(site: Client, query: str, there: str, absent: str) -> None:
    answer = site.get(f"/?{query}")
    listed = answer.body[answer.body.index('id="list"') :]
    assert there in listed
    assert absent not in listed


def test_an_id_in_the_search_opens_its_page(site: Client, ledger: Path) -> None:
    with Ledger.open(str(ledger)) as book:
        newest = book.experiment("last").id
    answer = site.get(f"/?q={newest[:12]}")
    assert (answer.status, answer.headers["location"]) == (303, f"/experiments/{newest[:12]}")


@pytest.mark.parametrize(
    ("where", "status", "said"),
    [
        ("/experiments/x-zzzzzz", 404, "has no experiment"),
        ("/runs/r-zzzzzz", 404, "has no run"),
        ("/nothing/here", 404, "There is no such page"),
        ("/?since=yesterday", 400, "since must be a day"),
        ("/?state=good", 400, "state must be one of"),
        ("/?from=before~1~x", 400, "not complete"),
        ("/runs?sort=fastest", 400, "filter by one workload"),
        ("/baselines/none", 404, "has no baseline"),
    ],
)
def test_what_is_wrong_in_an_address_is_a_sentence(site: Client, where: str, status: int, said: str) -> None:
    answer = site.get(where)
    assert answer.status == status
    assert said in answer.words


def test_the_form_writes_a_command_that_can_be_typed(site: Client) -> None:
    answer = site.get(
        "/new?workload=train/resnet50&verb=compare&arm1=host&arm2=container,shm=1g&blocks=4&p-precision=bf16"
    )
    said = unescape(answer.body.partition('id="new-command">')[2].partition("</code>")[0])
    assert said == "stackmark compare train/resnet50 --arm host --arm container,shm=1g --blocks 4 --precision bf16"
    words = shlex.split(said)[1:]
    with command_line.make_context("stackmark", [], resilient_parsing=True) as top:
        command = command_line.get_command(top, words[0])
        assert command is not None
        assert command.make_context(words[0], words[1:], parent=top).params["blocks"] == 4


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("workload=train/resnet50&p-batch=none", "batch takes a whole number"),
        ("workload=train/resnet50&p-batch=-1", "--batch"),
        ("workload=train/resnet50&runs=0", "runs must be"),
        ("workload=train/resnet50&verb=compare&arm1=moon", "moon"),
    ],
)
def test_a_wrong_value_in_the_form_is_said_as_on_the_command_line(site: Client, query: str, said: str) -> None:
    answer = site.get(f"/new?{query}")
    assert answer.status == 200
    alert = answer.body.partition('role="alert"')[2].partition("</section>")[0]
    assert said in alert
    assert "new-command" not in answer.body


# --- pages of lists -------------------------------------------------------------------------------------------------------


def walked(read: Callable[[Edge | None], Page[T]]) -> list[Page[T]]:
    """All pages of a list, from the first to the last; on the way back they are the same."""
    pages = [read(None)]
    while pages[-1].next:
        pages.append(read(pages[-1].next))
    back = [pages[-1]]
    while back[-1].previous:
        back.append(read(back[-1].previous))
    assert [page.rows for page in reversed(back)] == [page.rows for page in pages]
    return pages


@pytest.mark.parametrize("oldest_first", [False, True], ids=["newest", "oldest"])
def test_pages_in_both_directions_show_each_row_once(ledger_url: str, oldest_first: bool) -> None:
    with Ledger.open(ledger_url) as book:
        made = [complete(book, at=T0 + 10 * number) for number in range(11)]
        by_run = walked(
            lambda edge: page_of_runs(RunFilter(), edge=edge, oldest_first=oldest_first, limit=4, ledger=book)
        )
        by_experiment = walked(
            lambda edge: page_of_experiments(
                ExperimentFilter(), edge=edge, oldest_first=oldest_first, limit=4, ledger=book
            )
        )
    assert [len(page.rows) for page in by_run] == [4, 4, 3]
    assert [row.id for page in by_run for row in page.rows] == (made if oldest_first else made[::-1])
    found = [row.id for page in by_experiment for row in page.rows]
    assert len(found) == len(set(found)) == 11
    assert found == sorted(found, reverse=not oldest_first)


def test_filters_of_experiments_agree_on_both_databases(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as book:
        complete(book, at=T0)
        complete(book, FAILED, at=T0 + 60, workload="train/gpt2")

        def found(**wanted: object) -> int:
            return len(page_of_experiments(ExperimentFilter.model_validate(wanted), ledger=book).rows)

        assert found() == 2
        assert found(workload="train/g*") == 1
        assert found(status="failed") == 1
        assert found(chip="NVIDIA H200", place="host") == 1
        assert found(text="STACKMARK run") == 2
        assert found(text="100%_") == 0
        assert found(kind="compare") == 0
        assert found(since_unix_s=time.time() - 600) == 2
        assert found(until_unix_s=time.time() - 600) == 0


def test_runs_are_sorted_by_rate_where_they_are_few(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as book:
        complete(book)
        complete(book, FAILED)
        assert [row.status for row in runs_by_rate(RunFilter(), ledger=book)] == ["done"]


def test_runs_are_not_sorted_by_rate_where_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stackmark.ledger.queries._FEW_RUNS", 2)
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as book:
        for _ in range(2):
            complete(book)
        with pytest.raises(SpecError, match="too many runs"):
            runs_by_rate(RunFilter(), ledger=book)


def test_a_run_whose_driver_is_gone_is_called_lost_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    with Ledger.open(str(path)) as book:
        run_id = begin(book, at=time.time() - 600, machine=machine_name(), boot=boot_name())
        experiment = book.run(run_id).experiment_id
    with sqlite3.connect(path) as connection:
        handle = json.dumps({"driver_start_ticks": 1, "pid_namespace": pid_namespace()})
        connection.execute("UPDATE runs SET driver_pid = ?, handle = ?", (gone.pid, handle))
    connection.close()
    with serving(path) as client:
        answer = client.get(f"/experiments/{experiment}")
        assert "lost" in answer.words
        assert "Running now" not in answer.words
    with Ledger.open(str(path)) as book:
        assert book.run(run_id).status == "running"


# --- hostile and unusable ledgers -----------------------------------------------------------------------------------------


def test_text_of_a_ledger_is_shown_and_not_obeyed(ledger: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(ledger, tmp_path / "hostile.sqlite3"))
    with sqlite3.connect(path) as connection:
        for table in (runs, experiments):
            names = [c.name for c in table.c if isinstance(c.type, Text) and c.name not in KEYS]
            names += ["workload"] if table is runs else []
            settings = ", ".join(f"{name} = ?" for name in names)
            connection.execute(f"UPDATE {table.name} SET {settings}", [HOSTILE] * len(names))
        ids = [row[0] for row in connection.execute("SELECT id FROM experiments")]
        run_ids = [row[0] for row in connection.execute("SELECT id FROM runs LIMIT 3")]
    connection.close()
    with serving(path) as client:
        pages = [*LISTS, *(f"/experiments/{one}" for one in ids), *(f"/runs/{one}" for one in run_ids)]
        for where in pages:
            answer = client.get(where)
            assert answer.status in (200, 503), where
            assert "<script>alert" not in answer.body
            assert "<img src=x" not in answer.body
            assert "\x1b" not in answer.body
            assert "\u202e" not in answer.body
        assert "alert(1)" in client.get("/runs").words


def test_a_ledger_that_is_missing_is_a_sentence_until_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "later.sqlite3"
    with serving(path) as client:
        answer = client.get("/")
        assert answer.status == 503
        assert "does not exist" in answer.words
        with Ledger.open(str(path)) as book:
            complete(book)
        assert client.get("/").status == 200


def test_a_newer_or_damaged_ledger_is_a_sentence(tmp_path: Path) -> None:
    newer, damaged = tmp_path / "newer.sqlite3", tmp_path / "damaged.sqlite3"
    with Ledger.open(str(newer)):
        pass
    with sqlite3.connect(newer) as connection:
        connection.execute("INSERT INTO schema_versions VALUES (999, 'later', 0, '9')")
    connection.close()
    damaged.write_bytes(b"not a database, but long enough to be looked at" * 100)
    for path in (newer, damaged):
        with serving(path) as client:
            answer = client.get("/")
            assert answer.status == 503
            assert path.name in answer.words
            assert "Traceback" not in answer.body


def test_a_locked_ledger_is_a_sentence_while_it_is_locked(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with Ledger.open(str(path)) as book:
        complete(book)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA journal_mode = DELETE")
    holder.execute("BEGIN EXCLUSIVE")
    with serving(path) as client:
        answer = client.get("/")
        assert answer.status == 503
        assert "locked" in answer.words
        holder.execute("COMMIT")
        holder.close()
        assert client.get("/").status == 200


def test_a_ledger_in_postgresql_is_shown_as_one_in_a_file(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as book:
        run_id = complete(book)
    with serving(ledger_url) as client:
        for where in (*LISTS, f"/runs/{run_id}", "/experiments/last"):
            assert client.get(where).status == 200, where


# --- who may see and do what ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8470", "", "127.0.0.1.evil.example"])
def test_another_name_of_this_server_is_refused(site: Client, host: str) -> None:
    answer = site.get("/", host=host)
    assert answer.status in (400, 421)
    assert "resnet" not in answer.body


def test_hosts_are_names_or_addresses_that_are_listened_at() -> None:
    here, everywhere = Guard("127.0.0.1"), Guard("0.0.0.0", TOKEN, names=("bench.example",))
    assert [here.allows_host(one) for one in ("localhost:1", "127.0.0.1", "[::1]:1", "10.1.2.3")] == [
        True,
        True,
        True,
        False,
    ]
    assert everywhere.allows_host("10.1.2.3:8470")
    assert everywhere.allows_host("BENCH.example")
    assert not everywhere.allows_host("evil.example")
    assert [host_in(one) for one in ("[::1]:80", "a:80", "::1")] == ["::1", "a", "::1"]


def test_without_its_token_a_server_shows_nothing(ledger: Path) -> None:
    with serving(ledger, token=TOKEN) as client:
        for where in (
            "/",
            "/runs",
            "/experiments/last",
            "/experiments/last/events",
            "/events",
            "/baselines/before/trend.svg",
        ):
            refused = client.get(where, accept="*/*")
            assert refused.status == 401
            assert "resnet" not in refused.body
        assert client.get("/").headers["location"] == "/login"
        assert client.get("/", authorization="Bearer wrong-token-of-these", accept="*/*").status == 401
        assert client.get("/", authorization=f"Bearer {TOKEN}").status == 200
        assert client.log_in("not-the-right-token").status == 401
        assert client.get("/", accept="*/*").status == 401
        answer = client.log_in()
        assert answer.status == 303
        assert "HttpOnly" in answer.headers["set-cookie"]
        assert "samesite=strict" in answer.headers["set-cookie"].lower()
        assert client.get("/").status == 200
        assert client.post("/logout", {"secret": client.secret("/")}).status == 303
        assert client.get("/", accept="*/*").status == 401


def test_nothing_is_changed_where_actions_are_not_allowed(ledger: Path) -> None:
    with serving(ledger, token=TOKEN) as client:
        client.log_in()
        with Ledger.open(str(ledger)) as book:
            newest = book.experiment("last").id
        assert "Delete" not in client.get(f"/experiments/{newest}").words
        refused = client.post(f"/experiments/{newest}/delete", {"sure": newest, "secret": client.secret("/")})
        assert refused.status == 403
        with Ledger.open(str(ledger)) as book:
            assert book.experiment("last").id == newest


def test_actions_need_the_session_its_secret_and_our_own_page(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with Ledger.open(str(path)) as book:
        kept, gone = (book.run(complete(book)).experiment_id for _ in range(2))
    with serving(path, token=TOKEN, actions=True) as client:
        delete = f"/experiments/{gone}/delete"
        assert client.post(delete, {"sure": gone}, accept="*/*").status == 401
        client.log_in()
        page = f"/experiments/{gone}"
        right = {"sure": gone, "secret": client.secret(page)}
        assert client.post(delete, {"sure": gone}).status == 403
        assert client.post(delete, {**right, "secret": "x" * 40}).status == 403
        assert client.post(delete, right, origin="http://evil.example").status == 403
        assert client.post(delete, right, sec_fetch_site="cross-site").status == 403
        assert client.post(delete, {**right, "sure": kept}).status == 404
        assert client.get(page).status == 200
        assert client.post(delete, right, origin=client.address, sec_fetch_site="same-origin").status == 303
        assert client.get(page).status == 404
        saved = client.post("/baselines", {**right, "name": "before", "experiment": kept})
        assert (saved.status, saved.headers["location"]) == (303, "/baselines/before")
        assert client.post("/baselines", {**right, "name": "../x", "experiment": kept}).status == 400
        assert client.post("/baselines", {"a": "x" * 20_000}).status == 413


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--allow-actions",), "--allow-actions needs a token"),
        (("--listen", "0.0.0.0"), "needs a token"),
        (("--token-file", "short"), "16 to 256"),
        (("--token-file", "absent"), "No such file"),
        (("--tls-cert", "short"), "belong together"),
        (("--listen", "no.such.name.invalid", "--token-file", "long"), "is no address of this machine"),
    ],
)
def test_what_would_be_open_to_others_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("short")
    Path("long").write_text(f"{TOKEN}\n")
    answer = ask("web", "--port", "0", *arguments)
    assert answer.code == Exit.WRONG_USE
    assert said in answer.err


def test_a_port_that_is_taken_is_a_sentence(site: Client) -> None:
    answer = ask("web", "--port", str(site.port))
    assert answer.code == Exit.PLACE_FAILED
    assert "--port" in answer.err


def test_without_its_packages_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    answer = ask("web", "--port", "0")
    assert answer.code == Exit.WRONG_USE
    assert "stackmark[web]" in answer.err


# --- many, and the end ----------------------------------------------------------------------------------------------------


def test_a_hundred_clients_at_once_are_all_answered(site: Client) -> None:
    with ThreadPoolExecutor(100) as pool:
        found = list(pool.map(lambda number: site.get("/runs" if number % 2 else "/").status, range(100)))
    assert found == [200] * 100


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_server_ends_though_a_browser_follows_the_list(ledger: Path, ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "stackmark", "web", "--port", "0", "--ledger", str(ledger)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**our_path(), "PYTHONUNBUFFERED": "1"}
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/events")
        stream = connection.getresponse()
        assert stream.headers["content-type"].startswith("text/event-stream")
        while not stream.readline().startswith(b"data: "):
            pass
        os.kill(server.pid, ending)
        assert server.wait(60) == Exit.DONE
        assert server.stderr.read() == ""
        connection.close()


# --- other readers --------------------------------------------------------------------------------------------------------


def test_the_views_for_other_readers_can_be_made_in_a_copy_and_agree_with_its_rows(
    ledger: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(ledger, tmp_path / "copy.sqlite3"))
    with sqlite3.connect(path) as connection:
        for _ in range(2):
            assert ask("export", "--views", "-o", str(tmp_path / "views.sql")).out == ""
            connection.executescript((tmp_path / "views.sql").read_text())
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]
        counts = {name: len(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in names}
        made = connection.execute("SELECT count(*) FROM runs").fetchone()[0]
        done = "status = 'done' AND role = 'measured' AND rate_per_s IS NOT NULL"
        assert counts["v_runs"] == made
        assert connection.execute("SELECT sum(runs) FROM v_experiments").fetchone()[0] == made
        assert (
            connection.execute("SELECT sum(runs) FROM v_rates").fetchone()
            == connection.execute(f"SELECT count(*) FROM runs WHERE {done}").fetchone()
        )
    connection.close()
    assert min(counts.values()) > 0
    assert len(names) == 7
    with Ledger.open(str(path)) as book:
        assert book.count() == made
