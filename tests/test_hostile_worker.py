"""A worker that lies: what an image says must not decide what runs on this machine, nor become a number that cannot be.

Each lie is told by a real container (tests/hostile_images.py) to the real command line. The host is always another arm, which
must not run with anything that the image chose.
"""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asking import Answer, ask
from hostile_images import hostile_image
from stackmark.cli.main import ITSELF_FAILED
from stackmark.errors import Exit
from stackmark.histogram import Histogram
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.machine.container import READ_ONLY
from stackmark.machine.host import boot_id
from stackmark.places.bundle import worker_bundle
from stackmark.places.place import SUBJECTS
from stackmark.workloads.serve.endpoint import EndpointParams
from stackmark.workloads.train.definition import TrainParams

BATCH = 4
CHOSEN: dict[str, Any] = {
    "device": "cpu", "batch": BATCH, "precision": "fp32", "tune": "fast", "optimizer": "momentum", "classes": 1000,
    "seconds": 1.0, "layout": "nchw", "autotune": False, "fused": True, "cuda_graph": False, "compile": False, "threads": 0,
    "data_workers": 0, "learning_rate": 0.1, "at_least_steps": 0, "warmup_steps": 2, "warmup_seconds": 1.0,
}  # fmt: skip
PARAMS = TrainParams.model_validate(CHOSEN).model_dump(mode="json")
Lie = Callable[[dict[str, Any], Path], object]


def stream(*parts: dict[str, Any]) -> str:
    """Lines of a worker, numbered as all are."""
    hello = {"event": "hello", "time_unix_s": 1.0, "pid": 1, "schema_version": 1}
    numbered = [
        {"event": part["event"], "seq": seq, "t": 0.01 * seq, **part} for seq, part in enumerate((hello, *parts))
    ]
    return "".join(json.dumps(part, separators=(",", ":")) + "\n" for part in numbered)


def probe(params: dict[str, Any] | None = None, workload: str = "train/lenet", **more: Any) -> dict[str, Any]:
    spec = {"schema_version": 1, "workload": workload, "params": PARAMS if params is None else params, **more}
    return {"event": "probe", "spec": spec, "choices": {"batch": "\x1b]0;owned\x07 it is the best"}}


def facts(**more: Any) -> list[dict[str, Any]]:
    """What a worker in that container would have said of it, if it said the truth."""
    told: dict[str, Any] = {subject: {} for subject in SUBJECTS}
    inside = {"engine": "podman", "network": False, "mounts": {"/lie": READ_ONLY}}
    told |= {"host": {"boot_id": boot_id()}, "container": inside, **more}
    # The last that a worker sends: by it a pod's log is known to be whole.
    told["stackmark"] = {"bundle_sha256": worker_bundle().sha256, **more.get("stackmark", {})}
    return [{"event": "facts", "subject": subject, "facts": known} for subject, known in told.items()]


def measured(step_s: float = 0.001, steps: int = 20, **more: Any) -> list[dict[str, Any]]:
    result = {
        "sample": "image",
        "samples_per_step": BATCH,
        "steps": steps,
        "wall_s": step_s * steps,
        "tick_s": 1e-9,
        **more,
    }
    return [
        {"event": "steps", "phase": "measure", "first": 0, "step_s": [step_s] * steps},
        {"event": "result", **result},
    ]


class Liar:
    """The image with its folder of lies, and a ledger."""

    def __init__(self, folder: Path, image: str) -> None:
        self.folder, self.image = folder, image
        self.ledger = folder / "ledger.sqlite3"
        self.lies = folder / "lies"
        self.lies.mkdir()
        self.tell(probe=stream(probe(), *facts()), run=stream(*facts(), *measured()))

    def tell(self, **files: str) -> None:
        for name, text in files.items():
            (self.lies / name).write_text(text)

    @property
    def arm(self) -> str:
        return f"container,engine=podman,image={self.image},mount={self.lies}:/lie:ro"

    def compare(self, *more: str) -> Answer:
        """The liar is probed first; the host is the other arm."""
        return ask(
            "compare", "train/lenet", "--batch", str(BATCH), "--arm", self.arm, "--arm", "host", "--blocks", "2", *more
        )

    def run(self, workload: str = "train/lenet", *more: str) -> Answer:
        return ask(
            "run", workload, *more, "--on", "container", "--engine", "podman", "--image", self.image, "--mount",
            f"{self.lies}:/lie:ro", "--runs", "1", "--json",
        )  # fmt: skip

    def rows(self) -> list[RunRow]:
        with Ledger.open(str(self.ledger)) as book:
            return book.runs()


@pytest.fixture(scope="module")
def image(podman_reach: dict[str, str]) -> str:
    return hostile_image()


@pytest.fixture
def liar(tmp_path: Path, image: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Liar]:
    before = signal.getsignal(signal.SIGTERM)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "ledger.sqlite3"))
    yield Liar(tmp_path, image)
    signal.signal(signal.SIGTERM, before)


def with_param(name: str, value: Any) -> Lie:
    return lambda answer, canary: answer["spec"]["params"].update({name: value(canary) if callable(value) else value})


def as_a_command(answer: dict[str, Any], canary: Path) -> None:
    command = {"device": "cpu", "cmd": f"touch {canary}", "cwd": "/", "metric": "", "metric_take": "last"}
    answer["spec"] = {"schema_version": 1, "workload": "command/own", "params": command}


LIES: dict[str, Lie] = {
    "a command instead of the workload": as_a_command,
    "another model": lambda answer, _: answer["spec"].update(workload="train/alexnet"),
    "a folder for checkpoints": with_param("checkpoint_dir", lambda canary: str(canary)),
    "a file for a trace": with_param("trace_file", lambda canary: str(canary)),
    "a folder of data": with_param("data", lambda canary: str(canary.parent)),
    "another batch than was typed": with_param("batch", 4096),
    "a parameter that nobody knows": with_param("cmd", lambda canary: f"touch {canary}"),
    "a length out of bounds": with_param("seconds", 1e9),
    "a device that is a path": with_param("device", "/dev/sda"),
    "a default that nobody may choose": with_param("loss_every", 1_000_000),
    "an incomplete spec": lambda answer, _: answer["spec"]["params"].pop("precision"),
    "more ranks": lambda answer, _: answer["spec"].update(ranks=1_000_000_000),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_what_a_probe_may_not_choose_is_refused_and_nothing_runs(liar: Liar, lie: Lie) -> None:
    canary = liar.folder / "canary"
    answer = probe(dict(PARAMS))
    lie(answer, canary)
    liar.tell(probe=stream(answer, *facts()))
    said = liar.compare()
    assert said.code in (Exit.RUN_FAILED, Exit.WRONG_USE), said
    assert "stackmark: " in said.err
    assert "Traceback" not in said.err
    assert not canary.exists()
    assert liar.rows() == []


def test_an_honest_answer_of_the_same_image_is_taken(liar: Liar) -> None:
    said = liar.run("train/lenet", "--batch", str(BATCH))
    assert said.code == Exit.DONE, said
    (row,) = liar.rows()
    assert (row.status, row.place) == ("done", "container")
    assert row.rate_per_s == pytest.approx(BATCH / 0.001)


def test_what_a_worker_says_cannot_move_the_cursor(liar: Liar) -> None:
    said = ask(
        "run", "train/lenet", "--batch", str(BATCH), "--on", "container", "--engine", "podman", "--image", liar.image,
        "--mount", f"{liar.lies}:/lie:ro", "--runs", "1",
    )  # fmt: skip
    assert said.code == Exit.DONE, said
    assert "\x1b]" not in said.out + said.err


RESULTS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "more time than passed": ([*facts(), *measured(step_s=100.0)], "impossible_result"),
    "a wall clock that ran longer": ([*facts(), *measured(wall_s=9e3)], "impossible_result"),
    "more samples than the batch": ([*facts(), *measured(samples_per_step=4000)], "impossible_result"),
    "another unit": ([*facts(), *measured(sample="token")], "impossible_result"),
    "latencies before time began": (
        [*facts(), {"event": "latencies", "name": "latency", "counts": [[999_999, 1]]}, *measured()],
        "impossible_result",
    ),
    "a figure instead of steps": (
        [*facts(), *measured(figure={"name": "rate", "value": 1e9, "unit": "images/s"})],
        "impossible_result",
    ),
    "no facts at all": (measured(), "not_enforced"),
    "no facts about limits": ([part for part in facts() if part["subject"] != "limits"] + measured(), "not_enforced"),
    "facts of another machine": ([*facts(host={"boot_id": "another"}), *measured()], "not_enforced"),
    "another worker than was mounted": ([*facts(stackmark={"bundle_sha256": "0" * 64}), *measured()], "not_enforced"),
    "not a word about the worker's file": ([*facts(stackmark={"bundle_sha256": None}), *measured()], "not_enforced"),
    "not a word about a network": ([*facts(container={"engine": "podman"}), *measured()], "not_enforced"),
    "a failure that only a driver may name": (
        [{"event": "failed", "kind": "lost", "message": "it never was", "hint": ""}],
        "unknown_failure",
    ),
    "steps that were never sent": ([*facts(), *measured()[1:]], "broken_stream"),
    "no end": ([*facts(), measured()[0]], "cut_off"),
    "not a number": ([*facts(), *measured(wall_s="1e999")], "broken_stream"),
}


@pytest.mark.parametrize(("told", "kind"), RESULTS.values(), ids=RESULTS.keys())
def test_a_result_that_cannot_be_is_a_failed_run(liar: Liar, told: list[dict[str, Any]], kind: str) -> None:
    liar.tell(run=stream(*told))
    said = liar.run("train/lenet", "--batch", str(BATCH))
    assert said.code == Exit.RUN_FAILED, said
    (row,) = liar.rows()
    assert (row.status, row.failure_kind, row.rate_per_s) == ("failed", kind, None)


def test_a_limit_is_not_believed_without_its_facts(liar: Liar) -> None:
    liar.tell(run=stream(*facts(cgroup={}), *measured()))
    liar.run("train/lenet", "--batch", str(BATCH), "--cpus", "1", "--memory", "1g", "--cap-drop", "ALL")
    (row,) = liar.rows()
    assert row.failure_kind == "not_enforced"
    for asked in ("CPU limit", "memory limit", "capabilities"):
        assert asked in (row.failure_message or "")


def op_row(**more: Any) -> dict[str, Any]:
    """The one product that was typed, timed."""
    shape = {"m": 64, "n": 64, "k": 64, "a_t": False, "b_t": False}
    row = {
        "index": 0,
        "op": "gemm",
        "shape": shape,
        "precision": "fp32",
        "operations": 2 * 64.0**3,
        "call_s": [1e-4] * 10,
    }
    return {"event": "row", "row": {**row, **more}, "done": 1, "of": 1}


ROWS = {
    "another problem": op_row(shape={"m": 8192, "n": 8192, "k": 8192, "a_t": False, "b_t": False}),
    "more operations": op_row(operations=1e15),
    "a row that nobody asked for": op_row(index=7),
    "another precision": op_row(precision="fp64"),
    "calls that take longer than the run": op_row(call_s=[1.0] * 1000),
    "calls without number": op_row(calls_each=10**12),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_a_row_of_another_problem_is_a_failed_run(liar: Liar, row: dict[str, Any]) -> None:
    params = {
        "device": "cpu", "seed": 1, "precision": "fp32", "set": "typed", "rows": "0", "m": 64, "n": 64, "k": 64, "a_t": False,
        "b_t": False, "shape": "", "budget": 60.0, "row_seconds": 1.0, "threads": 0,
    }  # fmt: skip
    end = {"event": "result", "sample": "run", "samples_per_step": 1, "steps": 1, "wall_s": 0.5, "tick_s": 1e-9, "rows": 1,
           "figure": {"name": "x", "value": 1.0, "unit": "TFLOP/s"}}  # fmt: skip
    step = {"event": "steps", "phase": "measure", "first": 0, "step_s": [0.5]}
    liar.tell(probe=stream(probe(params, "op/gemm"), *facts()), run=stream(*facts(), row, step, end))
    said = liar.run("op/gemm", "--m", "64", "--n", "64", "--k", "64", "--precision", "fp32")
    assert said.code == Exit.RUN_FAILED, said
    assert {row.failure_kind for row in liar.rows()} <= {"impossible_result", "broken_stream"}


def test_a_figure_in_another_unit_than_the_definitions_is_a_failed_run(liar: Liar) -> None:
    params = {"device": "cpu", "seed": 1, "elements": 2**24, "every_gpu": False}
    figure = {"name": "vector add", "value": 900.0, "unit": "TB/s"}
    end = {"event": "result", "sample": "run", "samples_per_step": 1, "steps": 1, "wall_s": 0.1, "tick_s": 1e-9}
    step = {"event": "steps", "phase": "measure", "first": 0, "step_s": [0.1]}
    liar.tell(
        probe=stream(probe(params, "check/vector-add"), *facts()), run=stream(*facts(), step, {**end, "figure": figure})
    )
    said = liar.run("check/vector-add")
    assert said.code == Exit.RUN_FAILED, said
    assert [row.failure_kind for row in liar.rows()] == ["impossible_result"]


@pytest.mark.parametrize(("p99_s", "code"), [(0.035, 0), (0.0351e-3, Exit.RUN_FAILED), (0.03, Exit.RUN_FAILED)])
def test_a_percentile_that_is_not_the_one_of_the_stored_histogram_is_a_failed_run(
    liar: Liar, p99_s: float, code: int
) -> None:
    url = "http://127.0.0.1:1/v1"
    params = EndpointParams.model_validate(
        {"url": url, "model": "m", "device": "cpu", "concurrency": 40, "seconds": 0, "requests": 1000, "warmup_requests": 0,
         "processes": 1}
    ).model_dump(mode="json")  # fmt: skip
    latency = Histogram("latency").record_all([20_000_000] * 980 + [35_000_000] * 20)
    said = {
        "answered": 1000.0,
        "output_per_s": 50.0,
        "output_tokens_total": 1000.0,
        "p50_latency": 0.02,
        "p99_latency": p99_s,
    }
    metrics = [
        {"event": "metric", "name": name, "value": value, "unit": "s", "higher_is_better": False}
        for name, value in said.items()
    ]
    times = [{"event": "latencies", "name": "latency", **vars(piece)} for piece in latency.pieces(1000)]
    figure = {"name": "output throughput", "value": 50.0, "unit": "tokens/s"}
    end = {"event": "result", "sample": "run", "samples_per_step": 1, "steps": 1, "wall_s": 0.5, "tick_s": 1e-9}
    step = {"event": "steps", "phase": "measure", "first": 0, "step_s": [0.5]}
    liar.tell(
        probe=stream(probe(params, "serve/endpoint"), *facts()),
        run=stream(*facts(), *metrics, *times, step, {**end, "figure": figure}),
    )
    answer = liar.run("serve/endpoint", "--url", url, "--model", "m", "--requests", "1000")
    assert answer.code == code, answer
    assert [row.failure_kind for row in liar.rows()] == ["impossible_result" if code else None]


SCRIPTS = {
    "nothing at all": ("exit 0", Exit.PLACE_FAILED),
    "only noise": ("echo hello; echo world; exit 0", Exit.PLACE_FAILED),
    "half an event": ("""echo '{"event":"hello","seq":0,'; exit 0""", Exit.RUN_FAILED),
    "an event that is too deep": (
        """head -c 200000 /dev/zero | tr '\\0' '[' | sed 's/^/{"event":/'; echo; exit 0""",
        Exit.RUN_FAILED,
    ),
    "an error of its own": ("echo 'I do not run here' >&2; exit 3", Exit.PLACE_FAILED),
}


@pytest.mark.parametrize(("script", "code"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_worker_that_is_none_is_a_sentence(liar: Liar, script: str, code: Exit) -> None:
    liar.tell(
        do=script.replace("head", "/bin/busybox head")
        .replace("| tr", "| /bin/busybox tr")
        .replace("| sed", "| /bin/busybox sed")
    )
    said = liar.run("train/lenet", "--batch", str(BATCH))
    assert said.code == code, said
    assert "Traceback" not in said.err
    assert ITSELF_FAILED not in said.err
    assert said.err.startswith("stackmark: ")
    assert len(said.err) < 4000
