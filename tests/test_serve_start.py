"""The start of a server: its phases, what it is ended by, and that nothing of it is left, with small real servers."""

import json
import os
import shlex
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from asking import ask
from stackmark.errors import SpecError
from stackmark.spec import Request, Scalar, Spec, Task
from stackmark.workloads.registry import check_request
from stackmark.workloads.serve.impl import page_cache
from stackmark.workloads.serve.start import PHASES, StartParams, read_ready, read_request
from worker_process import Finished, environment, finish, give, gone, read_pids, run_worker, start

SERVER = """
import http.server, os, subprocess, sys, time
port, mode, note = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if mode == "dies":
    sys.exit("no such model: tiny.gguf")
child = subprocess.Popen(["sleep", "300"])
open(note, "a").write(f"{os.getpid()} {child.pid}\\n")
asked = []
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(self.path)
        self.send_response(503 if mode == "loads" or len(asked) < 4 else 200)
        self.end_headers()
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if mode == "hangs":
            time.sleep(300)
        self.send_response(400 if mode == "refuses" else 200)
        self.end_headers()
        self.wfile.write(b"there is no " + body)
    def log_message(self, *args):
        pass
print("loading", file=sys.stderr, flush=True)
if mode == "deaf":
    time.sleep(300)
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
    return port


def spec(folder: Path, mode: str, **params: Scalar) -> Spec:
    (folder / "server.py").write_text(SERVER)
    port = free_port()
    cmd = shlex.join([sys.executable, str(folder / "server.py"), str(port), mode, str(folder / "pids")])
    given = {"cmd": cmd, "cwd": str(folder), "ready": f"http://127.0.0.1:{port}/health", "within": 30.0, **params}
    return Spec(workload="serve/start", params=StartParams.model_validate(given).model_dump(mode="json"))


def ran(folder: Path, mode: str, **params: Scalar) -> Finished:
    return run_worker(spec(folder, mode, **params), environment())


def failed(folder: Path, mode: str, kind: str, **params: Scalar) -> str:
    done = ran(folder, mode, **params)
    assert (done.last["event"], done.last.get("kind")) == ("failed", kind), done.last
    return str(done.last["message"])


def metrics(done: Finished) -> dict[str, float]:
    return {event["name"]: event["value"] for event in done.events if event["event"] == "metric"}


def test_each_phase_is_timed_and_the_first_answer_is_the_figure(tmp_path: Path) -> None:
    done = ran(tmp_path, "works", request='/v1/completions {"prompt": "hi"}')
    assert done.last["event"] == "result", done.last
    phases = [metrics(done)[f"{phase}_s"] for phase in ("process", *PHASES)]
    assert phases == sorted(phases)
    figure = done.last["figure"]
    assert (figure["name"], figure["unit"], figure["higher_is_better"]) == ("time to first answer", "s", False)
    assert figure["value"] == pytest.approx(phases[-1])
    assert gone(read_pids(tmp_path / "pids", 2))


def test_an_answer_that_says_loading_is_an_answer_but_not_ready(tmp_path: Path) -> None:
    done = ran(tmp_path, "works")
    assert done.last["figure"]["name"] == "time to ready"
    assert metrics(done)["first_http_s"] < metrics(done)["ready_s"] == done.last["figure"]["value"]
    assert "first_answer_s" not in metrics(done)


@pytest.mark.parametrize(
    ("mode", "kind", "params", "said"),
    [
        ("dies", "command_failed", {}, "the server ended with code 1 before it was ready; its last output was: no such model"),
        ("deaf", "no_answer", {"within": 1.5}, "was not listening on port"),
        ("loads", "no_answer", {"within": 3.0}, "it answered /health with 503; its last output was: loading"),
        ("hangs", "no_answer", {"within": 3.0, "request": "/v1 {}"}, "/v1 was not answered"),
        ("refuses", "no_answer", {"request": '/v1 "model"'}, 'answered /v1 with 400: there is no "model"'),
    ],
)  # fmt: skip
def test_a_server_that_never_answers_is_ended_with_a_sentence(
    mode: str, kind: str, params: dict[str, Scalar], said: str, tmp_path: Path
) -> None:
    assert said in failed(tmp_path, mode, kind, **params)
    if mode != "dies":
        assert gone(read_pids(tmp_path / "pids", 2))


def test_a_port_that_is_taken_is_refused_before_the_server_starts(tmp_path: Path) -> None:
    one = spec(tmp_path, "works")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", read_ready(str(one.params["ready"])).port))
        taken.listen()
        done = run_worker(one, environment())
    assert (done.last["event"], done.last["kind"]) == ("failed", "bad_parameter")
    assert "is taken before the server starts" in done.last["message"]
    assert not (tmp_path / "pids").exists()


def test_a_worker_whose_driver_was_killed_ends_the_server(tmp_path: Path) -> None:
    worker = start(environment())
    give(worker, Task(do="run", spec=spec(tmp_path, "loads")))
    pids = read_pids(tmp_path / "pids", 2)
    lifeline, worker.stdin = worker.stdin, None
    assert lifeline is not None
    lifeline.close()  # as the kernel does when a driver is killed
    worker.communicate(timeout=60)
    assert gone(pids)


def test_the_page_cache_of_the_servers_files_is_looked_at(tmp_path: Path) -> None:
    model = tmp_path / "model.bin"
    model.write_bytes(os.urandom(1 << 20))
    files = page_cache.files_of(["server", "--model", "model.bin", f"--folder={tmp_path}", "other"], str(tmp_path))
    assert files == [str(model)]
    seen = page_cache.cached(files)
    assert seen is not None
    assert (seen.files, seen.bytes, seen.share) == (1, 1 << 20, 1.0)


def test_without_rights_a_cold_start_drops_what_it_may_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "DROP_CACHES", str(tmp_path / "no" / "such" / "file"))
    model = tmp_path / "model.bin"
    model.write_bytes(b"x" * (1 << 20))
    said = page_cache.drop([str(model), str(tmp_path / "gone")])
    assert "could not be dropped (No such file or directory); that of 1 files named in --cmd was" in said


def test_its_runs_are_shown_with_their_phases(tmp_path: Path) -> None:
    params = spec(tmp_path, "works").params
    words = [word for name in ("cmd", "cwd", "ready") for word in (f"--{name}", str(params[name]))]
    answer = ask("run", "serve/start", *words, "--runs", "1", "--ledger", str(tmp_path / "l.sqlite3"), "--json")
    assert answer.code == 0, answer.err
    served: dict[str, Any] = json.loads(answer.out)["results"][0]["served"]
    assert [one["name"] for one in served["metrics"]] == ["listening_s", "first_http_s", "ready_s"]
    assert served["valid"] is None
    assert served["cached_shares"] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"cmd": "x"}, "serve/start needs --ready"),
        ({"ready": "http://127.0.0.1:8000/"}, "serve/start needs --cmd"),
        ({"cmd": "x", "ready": "https://127.0.0.1/"}, "is not a URL like http://127.0.0.1:8000/health"),
        ({"cmd": "x", "ready": "http://me:secret@127.0.0.1/"}, "does not belong in the URL"),
        ({"cmd": "x", "ready": "http://127.0.0.1:99999/"}, "ort"),
        ({"cmd": "a | b", "ready": "http://127.0.0.1:1/"}, "without a shell"),
        ({"cmd": "x", "ready": "http://127.0.0.1:1/", "request": "v1"}, "does not begin with a path"),
        ({"cmd": "x", "ready": "http://127.0.0.1:1/", "request": "/v1 {"}, "is not JSON"),
        ({"cmd": "x", "ready": "http://127.0.0.1:1/", "within": 0.0}, "within"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(params: dict[str, Scalar], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_request(Request(workload="serve/start", params=params))
    assert said in caught.value.message


def test_a_request_is_a_path_and_json() -> None:
    assert read_request('/v1/completions {"prompt": "a b"}') == ("/v1/completions", '{"prompt": "a b"}')
    assert read_request("/v1/models") == ("/v1/models", "")


def test_a_network_is_not_given_a_command(tmp_path: Path) -> None:
    answer = ask("run", "train/resnet20", "--cmd", "true", "--ledger", str(tmp_path / "l.sqlite3"))
    assert (answer.code, "both a workload and --cmd were given" in answer.err) == (2, True)


def test_a_server_is_ended_by_an_interrupt(tmp_path: Path) -> None:
    worker = start(environment())
    give(worker, Task(do="run", spec=spec(tmp_path, "loads")))
    pids = read_pids(tmp_path / "pids", 2)
    worker.send_signal(signal.SIGTERM)
    finish(worker)
    assert gone(pids)
