"""The exporter: what it shows of a ledger and of GPUs, who may ask, and that nothing takes it down."""

import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from scipy import stats

import ledger_runs
import recorded
from asking import ask
from experiment_asking import empty_ledger
from leaving_out import leave_out
from other_days import MARGIN, change, checked, only, three_series, verdict
from prometheus_parts import driver_of_gpus, fetch, free_port, running, serving, until, url_of
from stackmark.api.latest import Latest
from stackmark.errors import Exit
from stackmark.experiments.baseline import held_by
from stackmark.experiments.recorder import new_experiment
from stackmark.ids import new_id
from stackmark.ledger.rows import RunEnd, RunStart
from stackmark.ledger.store import Ledger
from stackmark.monitor.exporter import Exporter
from stackmark.monitor.fresh import Fresh
from stackmark.monitor.gpus import GpuWatch, dcgm_answers
from stackmark.monitor.results import ledger_metrics
from stackmark.monitor.server import MetricsServer

# Recorded runs and those of ledger_runs are old.
AGES_S = 1e12
Labels = dict[str, str]


@contextmanager
def exporting(file: Path | str | None, module: object = None, **options: Any) -> Iterator[Exporter]:
    options = {"ledger_age_s": 0.0, "horizon_s": AGES_S, **options}
    gpus = GpuWatch(options.pop("expected", None), module) if module is not None else None
    with Exporter(str(file) if file else None, gpus=gpus, source="nvml" if gpus else "none", **options) as exporter:
        yield exporter


def samples(exporter: Exporter, name: str) -> list[tuple[Labels, float]]:
    """What an independent reader of the format finds."""
    families = text_string_to_metric_families(exporter.text().decode())
    return [(one.labels, one.value) for family in families for one in family.samples if one.name == name]


def value(exporter: Exporter, name: str, **labels: str) -> float:
    (found,) = [one for mine, one in samples(exporter, name) if mine.items() >= labels.items()]
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite3"


# --- the ledger


def test_the_newest_result_has_the_mean_and_the_interval_of_its_runs(file: Path) -> None:
    with Ledger.open(str(file)) as book:
        experiment = recorded.load(book, "h200_gemm_bf16")
        rates = [row.rate_per_s for row in book.runs_of(experiment) if row.rate_per_s]
    with exporting(file) as exporter:
        logs = np.log(rates)
        reach = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
        assert value(exporter, "stackmark_result_rate") == pytest.approx(np.exp(logs.mean()))
        assert value(exporter, "stackmark_result_rate_low") == pytest.approx(np.exp(logs.mean() - reach))
        assert value(exporter, "stackmark_result_rate_high") == pytest.approx(np.exp(logs.mean() + reach))
        ((labels, _),) = samples(exporter, "stackmark_result_rate")
        assert (labels["workload"], labels["place"], labels["chip"]) == ("op/gemm", "host", "NVIDIA H200")
        assert labels["unit"] == "TFLOP/s"


def test_ids_are_labels_of_info_series_alone(file: Path) -> None:
    with Ledger.open(str(file)) as book:
        experiment = recorded.load(book, "h200_host_container_pod")
        ids = {experiment, *(row.id for row in book.runs_of(experiment))}
    with exporting(file) as exporter:
        families = list(text_string_to_metric_families(exporter.text().decode()))
    with_ids = {one.name for family in families for one in family.samples if ids & set(one.labels.values())}
    assert with_ids == {"stackmark_result_info"}


def test_a_result_stands_next_to_what_was_published(file: Path) -> None:
    with Ledger.open(str(file)) as book:
        recorded.load(book, "h200_host_container_pod")
    with exporting(file) as exporter:
        found = samples(exporter, "stackmark_published_ratio")
        assert {labels["place"] for labels, _ in found} == {"host", "container", "pod"}
        assert all(
            ratio > 0 and labels["source"] and labels["recipe"] in ("same", "differs") for labels, ratio in found
        )


def test_a_run_is_in_progress_and_then_a_result(file: Path) -> None:
    from stackmark.experiments.driver import boot_name, machine_name

    with Ledger.open(str(file)) as book, exporting(file) as exporter:
        run_id = ledger_runs.begin(book, machine=machine_name(), boot=boot_name())
        assert value(exporter, "stackmark_runs_in_progress", workload="train/resnet50") == 1
        assert samples(exporter, "stackmark_result_rate") == []
        book.finish(run_id, ledger_runs.DONE, ledger_runs.LINES)
        assert value(exporter, "stackmark_runs_in_progress", workload="train/resnet50") == 0
        assert value(exporter, "stackmark_result_rate") == pytest.approx(1234.5678901234567)
        assert value(exporter, "stackmark_last_run_success") == 1


def test_failures_are_counted_by_kind_and_have_no_rate(file: Path) -> None:
    out_of_memory = RunEnd(status="failed", ended_unix_s=ledger_runs.T0 + 20, failure_kind="out_of_memory")
    with Ledger.open(str(file)) as book, exporting(file) as exporter:
        ledger_runs.complete(book, ledger_runs.FAILED)
        assert value(exporter, "stackmark_run_failures_total", kind="not_finite") == 1
        for _ in range(2):
            ledger_runs.complete(book, out_of_memory)
        assert value(exporter, "stackmark_run_failures_total", kind="not_finite") == 1
        assert value(exporter, "stackmark_run_failures_total", kind="out_of_memory") == 2
        assert value(exporter, "stackmark_last_run_success") == 0
        assert samples(exporter, "stackmark_result_rate") == []


def test_older_runs_that_are_imported_and_runs_that_are_deleted_are_seen(file: Path) -> None:
    with Ledger.open(str(file)) as book, exporting(file) as exporter:
        run_id = ledger_runs.complete(book)
        assert value(exporter, "stackmark_ledger_runs") == 1
        recorded.load(book, "h200_gemm_bf16")  # its ids are older
        assert value(exporter, "stackmark_ledger_runs") == 4
        assert {labels["workload"] for labels, _ in samples(exporter, "stackmark_result_rate")} == {
            "op/gemm", "train/resnet50",
        }  # fmt: skip
        book.delete([run_id])
        assert value(exporter, "stackmark_ledger_runs") == 3
        assert value(exporter, "stackmark_result_rate", workload="op/gemm") > 0


def test_a_run_from_a_clock_that_is_ahead_hides_none(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(str(file)) as book, exporting(file) as exporter:
        run_id = ledger_runs.complete(book)
        change(file, "UPDATE streams SET run_id = 'x'")
        change(file, "UPDATE runs SET id = ? WHERE id = ?", "r-" + "7" * 26, run_id)
        assert value(exporter, "stackmark_ledger_runs") == 1
        monkeypatch.setattr("stackmark.api.latest._Tally", lambda: pytest.fail("all was read once more"))
        for count in (2, 3):
            ledger_runs.complete(book)
            assert value(exporter, "stackmark_ledger_runs") == count


def test_results_beyond_the_horizon_are_left_out(file: Path) -> None:
    with Ledger.open(str(file)) as book:
        ledger_runs.complete(book)
    with exporting(file, horizon_s=3600.0) as exporter:
        assert value(exporter, "stackmark_ledger_runs") == 1
        assert samples(exporter, "stackmark_result_rate") == []


def test_a_ledger_on_postgresql_is_read(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as book:
        ledger_runs.complete(book)
    with Exporter(ledger_url, ledger_age_s=0.0, horizon_s=AGES_S) as exporter:
        assert value(exporter, "stackmark_ledger_up") == 1
        assert value(exporter, "stackmark_result_runs") == 1


def test_nothing_is_written_to_the_ledger(file: Path) -> None:
    with Ledger.open(str(file)) as book:
        ledger_runs.complete(book)
    before = file.read_bytes()
    with exporting(file) as exporter:
        assert value(exporter, "stackmark_ledger_up") == 1
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_missing_ledger_is_a_metric_until_it_is_there(file: Path) -> None:
    with exporting(file) as exporter:
        assert value(exporter, "stackmark_ledger_up") == 0
        assert value(exporter, "stackmark_ledger_problem", kind="no-ledger") == 1
        with Ledger.open(str(file)) as book:
            ledger_runs.complete(book)
        assert value(exporter, "stackmark_ledger_up") == 1
        assert value(exporter, "stackmark_ledger_errors_total") >= 1


@pytest.mark.parametrize(
    ("sql", "kind"),
    [("INSERT INTO schema_versions VALUES (999, 'x', 1, '9')", "newer"), ("PRAGMA application_id = 1", "foreign")],
)
def test_a_ledger_of_another_program_or_version_is_a_metric(file: Path, sql: str, kind: str) -> None:
    with Ledger.open(str(file)):
        pass
    connection = sqlite3.connect(file)
    connection.execute(sql)
    connection.commit()
    connection.close()
    with exporting(file) as exporter:
        assert value(exporter, "stackmark_ledger_up") == 0
        assert value(exporter, "stackmark_ledger_problem", kind=kind) == 1


def test_a_ledger_that_is_locked_does_not_hold_a_scrape_and_its_results_stay(file: Path) -> None:
    with Ledger.open(str(file)) as book:
        ledger_runs.complete(book)
    with exporting(file, ledger_wait_s=0.3) as exporter:
        assert until(lambda: value(exporter, "stackmark_ledger_up") == 1)
        connection = sqlite3.connect(file, isolation_level=None)
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN EXCLUSIVE")
        # A reader that need not heed a lock (nobody wrote a -wal) is asked to.
        file.with_name(file.name + "-wal").touch()
        assert value(exporter, "stackmark_ledger_up") == 0
        assert value(exporter, "stackmark_result_runs") == 1
        connection.execute("ROLLBACK")
        connection.close()
        assert until(lambda: value(exporter, "stackmark_ledger_up") == 1)


def test_damaged_cells_are_no_metrics(file: Path) -> None:
    with Ledger.open(str(file)) as book:
        ledger_runs.complete(book)
    connection = sqlite3.connect(file)
    connection.execute("UPDATE runs SET rate_per_s = 1e999, workload = ?", ("a\nb" * 500,))
    connection.commit()
    connection.close()
    with exporting(file) as exporter:
        assert samples(exporter, "stackmark_result_rate") == []
        ((labels, _),) = samples(exporter, "stackmark_last_run_success")
        assert len(labels["workload"]) <= 120
        assert "\n" not in labels["workload"]


def test_while_a_check_runs_the_verdict_of_the_one_before_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = empty_ledger(tmp_path, monkeypatch)
    monkeypatch.setattr("stackmark.api.latest.SETTLED_S", 0.0)
    with Ledger.open(str(file)) as book, exporting(file) as exporter:
        three_series(book, file, faster=3.0)
        first = verdict(only(checked(book)))
        assert value(exporter, "stackmark_check_verdict", verdict="SLOWER") == 1
        assert value(exporter, "stackmark_check_verdict", verdict="EQUIVALENT") == 0
        assert value(exporter, "stackmark_baseline_ratio") == pytest.approx(first.ratio)
        assert first.interval_90
        assert value(exporter, "stackmark_baseline_ratio_low") == pytest.approx(first.interval_90.low)
        before = value(exporter, "stackmark_check_timestamp_seconds")
        second = new_experiment(
            kind="check", command="", note="before", request={"baseline": "before", "margin": MARGIN}
        )
        book.start_experiment(second)
        held = held_by(book, "before")[0].rows[-1]
        asked = {name: held.model_dump()[name] for name in ("machine_id", "boot_id", "driver_pid", "stackmark_version")}
        run = RunStart(
            id=new_id("r"), experiment_id=second.id, spec=held.spec, place="host", started_unix_s=time.time(), **asked
        )
        book.start(run)
        assert value(exporter, "stackmark_check_verdict", verdict="SLOWER") == 1
        assert value(exporter, "stackmark_check_timestamp_seconds") > before
        book.finish(run.id, RunEnd(status="failed", ended_unix_s=time.time(), failure_kind="lost"), [])
        assert value(exporter, "stackmark_check_verdict", verdict="SLOWER") == 0
        assert value(exporter, "stackmark_check_verdict", verdict="FAILED") == 1
        assert samples(exporter, "stackmark_baseline_ratio") == []


# --- GPUs


def test_gpus_are_shown_in_base_units() -> None:
    with exporting(None, driver_of_gpus(2)) as exporter:
        one = {"gpu": "1", "UUID": "GPU-gpu1"}
        assert value(exporter, "stackmark_gpu_power_watts", **one) == pytest.approx(626.3)
        assert value(exporter, "stackmark_gpu_power_limit_watts", **one) == 700
        assert value(exporter, "stackmark_gpu_temperature_celsius", **one) == 52
        assert value(exporter, "stackmark_gpu_memory_used_bytes", **one) == 70_000 * 2**20
        assert value(exporter, "stackmark_gpu_utilization_ratio", **one) == 0.97
        assert value(exporter, "stackmark_gpu_clock_hertz", clock="sm", **one) == 1.98e9
        assert value(exporter, "stackmark_gpu_clock_limited", reason="power cap", **one) == 1
        assert value(exporter, "stackmark_gpu_clock_limited", reason="hardware power brake", **one) == 0
        assert value(exporter, "stackmark_gpu_clock_limited_seconds_total", reason="thermal", **one) == 75
        assert value(exporter, "stackmark_gpu_ecc_errors_total", kind="corrected", **one) == 3
        assert value(exporter, "stackmark_gpu_info", model_name="NVIDIA H200", **one) == 1
        assert value(exporter, "stackmark_gpus") == 2


def test_an_xid_is_counted_and_critical_ones_begin_at_zero() -> None:
    with exporting(None, driver_of_gpus(1, xids=(79, 13, 79))) as exporter:
        assert value(exporter, "stackmark_gpu_xid_errors_total", xid="79") == 2
        assert value(exporter, "stackmark_gpu_xid_errors_total", xid="13") == 1
        assert value(exporter, "stackmark_gpu_xid_errors_total", xid="48") == 0


def test_a_gpu_that_is_lost_is_missed() -> None:
    driver = driver_of_gpus(2)
    with exporting(None, driver) as exporter:
        assert value(exporter, "stackmark_gpu_up", gpu="1") == 1
        driver.answers |= driver_of_gpus(2, lost=(1,)).answers
        assert until(lambda: value(exporter, "stackmark_gpu_up", gpu="1") == 0)  # a reading is shared for a second
        assert value(exporter, "stackmark_gpu_up", gpu="0") == 1
        assert (value(exporter, "stackmark_gpus"), value(exporter, "stackmark_gpus_expected")) == (1, 2)
        assert [labels["gpu"] for labels, _ in samples(exporter, "stackmark_gpu_power_watts")] == ["0"]


def test_without_a_driver_expected_gpus_are_missed() -> None:
    class NoDriver:
        class NVMLError(Exception):
            value = 12

        def nvmlInit(self) -> None:  # noqa: N802 - its name there
            raise self.NVMLError

    with exporting(None, NoDriver(), expected=8) as exporter:
        assert value(exporter, "stackmark_gpus_up") == 0
        assert (value(exporter, "stackmark_gpus"), value(exporter, "stackmark_gpus_expected")) == (0, 8)


def test_a_driver_that_hangs_shows_no_old_numbers_and_holds_nobody() -> None:
    hanging = threading.Event()
    fresh: Fresh[int] = Fresh("test", lambda: int(hanging.wait(60)), (OSError,), age_s=0.0, wait_s=0.1)
    try:
        assert fresh.get().overdue
        assert not fresh.get().is_good
    finally:
        hanging.set()
    assert until(lambda: fresh.get().value) == 1


def test_dcgm_on_its_port_is_left_its_gpus(file: Path) -> None:
    class Dcgm(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\n')

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - its name there

    with Ledger.open(str(file)):
        pass
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Dcgm)) as server:
        assert dcgm_answers(server.server_port)
        answer = ask("exporter", "--once", "--ledger", str(file), "--dcgm-port", str(server.server_port))
    assert answer.code == 0
    assert 'stackmark_exporter_gpu_source{source="dcgm"} 1.0' in answer.out
    assert "stackmark_gpus" not in answer.out
    assert str(server.server_port) in answer.err
    assert not dcgm_answers(free_port())


# --- who asks


@contextmanager
def served(exporter: Exporter, **options: Any) -> Iterator[MetricsServer]:
    with serving(MetricsServer(exporter, "127.0.0.1", 0, **options)) as server:
        yield server


def test_a_hundred_scrapes_at_once_are_answered_by_few_readings(file: Path) -> None:
    with Ledger.open(str(file)) as book:
        ledger_runs.complete(book)
    with exporting(file, ledger_age_s=3600.0) as exporter, served(exporter) as server:
        with ThreadPoolExecutor(100) as pool:
            texts = list(pool.map(lambda _: fetch(url_of(server)), range(100)))
        assert all("stackmark_result_rate{" in text for text in texts)
        assert value(exporter, "stackmark_exporter_scrapes_total") == 101


def test_the_results_of_a_ledger_are_rendered_once_for_each_reading_and_format(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(str(file)) as book:
        ledger_runs.complete(book)
    rendered = []

    def counting(found: Latest) -> Iterator[Metric]:
        rendered.append(found)
        return ledger_metrics(found)

    monkeypatch.setattr("stackmark.monitor.exporter.ledger_metrics", counting)
    openmetrics = {"Accept": "application/openmetrics-text; version=1.0.0"}
    with exporting(file, ledger_age_s=3600.0) as exporter, served(exporter) as server:
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda _: fetch(url_of(server)), range(40)))
        assert len(rendered) == 1
        text = fetch(url_of(server), openmetrics)
        assert len(rendered) == 2
        found = read_openmetrics(text)  # type: ignore[no-untyped-call]
        families = {one.name: one.samples[0].value for one in found if one.samples}
        assert families["stackmark_exporter_scrapes"] == 41
        assert families["stackmark_result_rate"] > 0
    with exporting(file) as exporter, served(exporter) as server:
        for _ in range(2):
            fetch(url_of(server))
        assert len(rendered) == 4


def test_a_slow_client_is_cut_off_and_holds_nobody() -> None:
    with exporting(None) as exporter, served(exporter, lifetime_s=1.0) as server:
        slow = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(20)]
        try:
            for one in slow:
                one.sendall(b"GET /metrics HT")
            assert "stackmark_exporter_info" in fetch(url_of(server))
            for one in slow:
                one.settimeout(60)
                assert one.recv(1) == b""
        finally:
            for one in slow:
                one.close()


def test_a_token_is_asked_for_and_not_for_the_probe() -> None:
    token = b"a-token-that-nobody-guesses"
    with exporting(None) as exporter, served(exporter, token=token) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": token.decode()}):
            with pytest.raises(urllib.error.HTTPError) as refused:
                fetch(url_of(server), headers)
            assert refused.value.code == 401
            refused.value.close()
        assert "stackmark_exporter_info" in fetch(url_of(server), {"Authorization": f"Bearer {token.decode()}"})
        assert fetch(url_of(server, "/healthy")) == "ok\n"


def test_tls_is_spoken_and_a_client_without_it_holds_nobody(tmp_path: Path) -> None:
    from stackmark.monitor.server import tls_context

    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", key, "-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(cafile=str(certificate))
    with (
        exporting(None) as exporter,
        served(exporter, tls=tls_context(certificate, key)) as server,
        socket.create_connection(("127.0.0.1", server.server_port)) as plain,
    ):
        plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        with (
            socket.create_connection(("127.0.0.1", server.server_port)) as connection,
            context.wrap_socket(connection, server_hostname="127.0.0.1") as safe,
        ):
            safe.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: safe.recv(65536), b""))
    assert b"stackmark_exporter_info" in answer


@pytest.mark.parametrize(
    "words",
    [
        ("--listen", "0.0.0.0"),
        ("--listen", "example.com"),
        ("--tls-cert", "cert.pem"),
        ("--token-file", "no-such-file"),
        ("--textfile", "stackmark.txt"),
        ("--textfile", "a.prom", "--push", "http://127.0.0.1:1"),
        ("--push", "127.0.0.1:9091"),
        ("--ledger", "x.sqlite3", "--no-ledger"),
        ("--ledger", "mysql://host/x"),
        ("--every", "often"),
    ],
)
def test_what_is_not_safe_or_makes_no_sense_is_refused(words: tuple[str, ...]) -> None:
    answer = ask("exporter", "--no-gpu", *words)
    assert answer.code == Exit.WRONG_USE
    assert words[0].removeprefix("--") in answer.err
    assert "Traceback" not in answer.err


def test_a_port_that_is_taken_is_a_sentence() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        answer = ask("exporter", "--no-gpu", "--no-ledger", "--port", port)
    assert answer.code == Exit.PLACE_FAILED
    assert port in answer.err


def test_sigterm_ends_it_with_its_code(file: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "stackmark", "exporter", "--no-gpu", "--port", str(port), "--ledger", str(file)]
    process = subprocess.Popen(command, env=ledger_runs.our_path(), stderr=subprocess.PIPE)
    try:
        assert until(lambda: "stackmark_ledger_up 0" in fetch(f"http://127.0.0.1:{port}/metrics"))
        with socket.create_connection(("127.0.0.1", port)):  # somebody is still connected
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == Exit.TERMINATED
    assert b"Traceback" not in err


# --- without a server


def test_a_textfile_is_whole_readable_and_named_as_metrics_are(file: Path, tmp_path: Path) -> None:
    with Ledger.open(str(file)) as book:
        recorded.load(book, "h200_gemm_bf16")
        ledger_runs.complete(book, ledger_runs.FAILED)
    target = tmp_path / "out" / "stackmark.prom"
    target.parent.mkdir()
    with exporting(file, driver_of_gpus(2), patient=True) as exporter:
        exporter.write(target)
    assert [path.name for path in target.parent.iterdir()] == ["stackmark.prom"]
    assert target.stat().st_mode & 0o444 == 0o444
    if not _has("promtool"):
        leave_out("promtool is not installed (apt-get install prometheus)")
    linted = subprocess.run(["promtool", "check", "metrics"], input=target.read_text(), capture_output=True, text=True)
    assert (linted.returncode, linted.stderr) == (0, "")


def test_a_batch_job_pushes_to_a_gateway(file: Path) -> None:
    if not _has("prometheus-pushgateway"):
        leave_out("the Pushgateway is not installed (apt-get install prometheus-pushgateway)")
    with Ledger.open(str(file)) as book:
        recorded.load(book, "h200_gemm_bf16")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with running("prometheus-pushgateway", f"--web.listen-address=127.0.0.1:{port}"):
        assert until(lambda: fetch(f"{url}/-/ready"))
        answer = ask("exporter", "--no-gpu", "--since", "100000d", "--ledger", str(file), "--push", url, "--once")
        assert answer.code == 0, answer.err
        pushed = fetch(f"{url}/metrics")
    assert "stackmark_result_rate{" in pushed
    assert f'instance="{os.uname().nodename}"' in pushed


def test_a_gateway_that_is_not_there_is_a_sentence() -> None:
    answer = ask("exporter", "--no-gpu", "--no-ledger", "--once", "--push", f"http://127.0.0.1:{free_port()}")
    assert answer.code == Exit.PLACE_FAILED
    assert "Pushgateway" in answer.err


def _has(program: str) -> bool:
    from shutil import which

    return which(program) is not None
