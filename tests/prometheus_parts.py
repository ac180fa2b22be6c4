"""A real Prometheus and a real Alertmanager (Debian's packages), with intervals of a second; a driver of GPUs we do not have."""

import json
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promql_parser
import pynvml

from fake_nvml import MIB, FakeNvml
from stackmark.monitor.server import MetricsServer

PATIENCE_S = 90.0
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def fetch(url: str, headers: dict[str, str] | None = None, timeout: float = 30.0) -> str:
    with OPENER.open(urllib.request.Request(url, headers=headers or {}), timeout=timeout) as answer:
        text: str = answer.read().decode()
        return text


def until(what: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """The first answer that is true, or None; a server that is not ready yet is asked again."""
    deadline = time.monotonic() + patience_s
    while True:
        with suppress(OSError):
            if found := what():
                return found
        if time.monotonic() > deadline:
            return None
        time.sleep(0.1)


@contextmanager
def serving(server: Any) -> Iterator[Any]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def running(*command: str | Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Webhook(ThreadingHTTPServer):
    """Keeps the alerts that Alertmanager sends."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hook)
        self.alerts: list[dict[str, Any]] = []


class _Hook(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.alerts += told["alerts"]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - its name there


class Prometheus:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = json.loads(fetch(f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found


@contextmanager
def prometheus(folder: Path, target: str, rules: str, webhook: int) -> Iterator[Prometheus]:
    """Prometheus that scrapes a target and evaluates rules each second; its Alertmanager calls the webhook."""
    port, alerts_port = free_port(), free_port()
    (folder / "rules.yaml").write_text(rules)
    (folder / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(folder / "rules.yaml")],
                "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alerts_port}"]}]}]},
                "scrape_configs": [{"job_name": "stackmark", "static_configs": [{"targets": [target]}]}],
            }
        )
    )
    (folder / "alertmanager.yml").write_text(
        json.dumps(
            {
                "route": {"receiver": "hook", "group_wait": "0s", "group_interval": "1s", "group_by": ["alertname"]},
                "receivers": [
                    {
                        "name": "hook",
                        "webhook_configs": [{"url": f"http://127.0.0.1:{webhook}/", "send_resolved": False}],
                    }
                ],
            }
        )
    )
    manager = (
        "prometheus-alertmanager", f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'alerts'}",
        f"--web.listen-address=127.0.0.1:{alerts_port}", "--cluster.listen-address=",
    )  # fmt: skip
    server = (
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )  # fmt: skip
    with running(*manager), running(*server):
        found = Prometheus(port)
        assert until(lambda: "Ready" in fetch(f"{found.url}/-/ready"))
        yield found


def url_of(server: MetricsServer, path: str = "/metrics") -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def selectors(expression: str) -> set[str]:
    """The selectors of an expression, each as PromQL, by a parser that shares no code with ours."""
    found: set[str] = set()
    _walk(promql_parser.parse(expression), found)
    return found


def _walk(node: Any, found: set[str]) -> None:
    if isinstance(node, promql_parser.VectorSelector):
        found.add(str(node))
    for name in ("lhs", "rhs", "expr", "param", "args", "vs", "vector_selector", "selector"):
        inner = getattr(node, name, None)
        for one in inner if isinstance(inner, list) else [inner]:
            if one is not None and not isinstance(one, str | int | float):
                _walk(one, found)


def _field(number: int) -> SimpleNamespace:
    return SimpleNamespace(fieldId=number, nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=10**9 * number))


def driver_of_gpus(count: int = 2, xids: tuple[int, ...] = (), lost: tuple[int, ...] = ()) -> FakeNvml:
    """A driver with GPUs at work, as an H200 answers; `lost` do not answer any more."""
    waiting = list(xids)

    def next_event(_events: object, _wait: int) -> SimpleNamespace:
        if not waiting:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(eventType=8, eventData=waiting.pop())

    def handle_of(index: int) -> str:
        if index in lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return f"gpu{index}"

    return FakeNvml(
        nvmlSystemGetDriverVersion="580.95",
        nvmlDeviceGetCount=count,
        nvmlDeviceGetHandleByIndex=handle_of,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetName="NVIDIA H200",
        nvmlDeviceGetPciInfo_v3=SimpleNamespace(busId=b"00000000:17:00.0"),
        nvmlDeviceGetMaxMigDeviceCount=0,
        nvmlDeviceGetComputeRunningProcesses_v3=[SimpleNamespace(pid=1, usedGpuMemory=MIB)],
        nvmlDeviceGetMemoryInfo=SimpleNamespace(total=140_000 * MIB, used=70_000 * MIB),
        nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=97, memory=41),
        nvmlDeviceGetPowerUsage=626_300,
        nvmlDeviceGetEnforcedPowerLimit=700_000,
        nvmlDeviceGetTotalEnergyConsumption=lambda _handle: int(time.monotonic() * 626_300),
        nvmlDeviceGetTemperatureV=52,
        nvmlDeviceGetMarginTemperature=35,
        nvmlDeviceGetClockInfo=lambda _handle, clock: 1980 if clock == 1 else 3201,
        nvmlDeviceGetMaxClockInfo=1980,
        nvmlDeviceGetCurrentClocksEventReasons=0x4,
        nvmlDeviceGetFieldValues=lambda _handle, ids: [_field(number) for number in ids],
        nvmlDeviceGetTotalEccErrors=lambda _handle, kind, _since: 3 if kind == 0 else 0,
        nvmlDeviceGetRemappedRows=(1, 0, 0, 0),
        nvmlDeviceGetPcieReplayCounter=2,
        nvmlEventSetCreate="events",
        nvmlEventSetFree=None,
        nvmlDeviceRegisterEvents=None,
        nvmlEventSetWait_v2=next_event,
    )
