"""On a real GPU: every precision and tuning, every data source, and the failures only a device can have.

Left out where there is no CUDA device. What it was seen passing on stands in docs/performance.md.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_runs import SHORT, run
from refusing import fails_as
from stackmark.spec import Request
from stackmark.workloads.workload import TimedSteps

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: the GPU's tests are left out"),
    # What torch's compiler imports from torch itself.
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    # Data workers are forked, from a process that a worker would be and that a test is not.
    pytest.mark.filterwarnings("ignore:.*use of fork.. may lead to deadlocks:DeprecationWarning"),
]


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [loss for event in events if event["event"] == "steps" for _, loss in event["losses"]]


@pytest.mark.parametrize("tune", ["off", "fast"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_every_precision_trains_eagerly_and_as_a_graph(precision: str, tune: str) -> None:
    ended, last, events = run("train/resnet20", batch=64, precision=precision, tune=tune)
    assert (ended, last["event"]) == ("done", "result"), last
    assert losses(events)[-1] < losses(events)[0]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "rmsprop", "adam", "adamw"])
def test_every_optimizer_runs_in_a_graph(optimizer: str) -> None:
    ended, last, _ = run("train/resnet20", batch=64, optimizer=optimizer, tune="fast")
    assert (ended, last["event"]) == ("done", "result"), last


@pytest.mark.parametrize("optimizer", ["rmsprop", "momentum"])
def test_fp16_trains_with_a_constant_loss_scale(optimizer: str) -> None:
    ended, last, events = run(
        "train/resnet20", batch=64, precision="fp16", loss_scale=128.0, optimizer=optimizer, tune="fast"
    )
    assert (ended, last["event"]) == ("done", "result"), last
    assert losses(events)[-1] < losses(events)[0]


def test_a_graph_computes_what_eager_steps_compute() -> None:
    same = {"batch": 32, "precision": "fp32", "layout": "nchw", "fused": False, "autotune": False, "loss_every": 1}
    _, _, eager = run("train/resnet20", tune="off", **same)
    _, _, graph = run("train/resnet20", tune="off", cuda_graph=True, **same)
    # The graph had some more steps before the first one that is seen: it lies on the same curve, further down.
    assert losses(graph)[0] < losses(eager)[0]
    assert losses(graph)[-1] == pytest.approx(losses(eager)[-1], rel=0.5, abs=0.05)


def test_steps_by_device_events_add_up_to_the_wall_clock() -> None:
    _, last, events = run("train/resnet50", batch=64, steps=100)
    steps = [
        s for event in events if event["event"] == "steps" and event["phase"] == "measure" for s in event["step_s"]
    ]
    assert len(steps) == 100
    assert sum(steps) == pytest.approx(last["wall_s"], rel=0.005)


@pytest.mark.parametrize("tune", ["off", "fast"])
def test_batches_from_the_host_train(tune: str) -> None:
    ended, last, _ = run("train/resnet20", batch=64, data="host", tune=tune)
    assert (ended, last["event"]) == ("done", "result"), last


@pytest.mark.filterwarnings(r"ignore:\s*Online softmax is disabled:UserWarning")  # torch's compiler about two classes
def test_images_from_a_folder_train(tmp_path: Path) -> None:
    from PIL import Image

    for label, colour in enumerate(("black", "white")):
        folder = tmp_path / "train" / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(40):
            Image.new("RGB", (64, 48), colour).save(folder / f"{number}.jpg")
    ended, last, events = run("train/resnet20", batch=16, data=str(tmp_path), data_workers=2, steps=40, accuracy=True)
    assert (ended, last["event"]) == ("done", "result"), last
    assert last["data_wait_s"] > 0
    top_1 = [value for event in events if event["event"] == "steps" for _, value in event["top_1"]]
    assert top_1[-1] == 1.0


def test_a_batch_that_does_not_fit_is_a_failure_with_a_reason() -> None:
    ended, _, _ = run("train/vgg19", batch=200_000)
    assert ended.startswith("out_of_device_memory")
    assert "--batch" in ended


def test_a_loss_that_is_not_finite_is_a_failure() -> None:
    ended, _, _ = run("train/resnet20", batch=16, learning_rate=1e30)
    assert ended.startswith("not_finite")


def test_a_worker_of_its_own_says_that_a_device_is_not_there() -> None:
    request = Request(workload="train/lenet", params={"device": "cuda:7"})
    task = json.dumps({"do": "probe", "request": request.model_dump(mode="json"), "lifeline": False})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "stackmark.worker"]
    done = subprocess.run(command, input=task + "\n", env=environment, text=True, capture_output=True, check=False)
    last = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, last["kind"]) == (12, "no_device")
    assert "cuda:7" in last["message"]


def test_the_facts_name_the_gpu_under_test() -> None:
    _, _, events = run("train/lenet", batch=32)
    gpu = next(event["facts"] for event in events if event["event"] == "facts" and event["subject"] == "gpu")
    assert gpu["under_test"] == gpu["devices"][0]["uuid"]
    assert gpu["devices"][0]["name"] == torch.cuda.get_device_name(0)


def test_a_trace_shows_kernels(tmp_path: Path) -> None:
    ended, _, _ = run("train/lenet", batch=32, trace_file=str(tmp_path / "trace.json"), tune="off")
    assert ended == "done"
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert any(event.get("cat") == "kernel" for event in trace["traceEvents"])


def test_no_pinned_memory_is_taken_in_the_loop() -> None:
    from stackmark.worker.run import Bench
    from stackmark.worker.stream import Emitter
    from stackmark.workloads.registry import find

    statistics = getattr(torch.cuda, "host_memory_stats", None)
    if statistics is None:
        pytest.skip("this torch does not count its pinned memory")
    workload = find("train/resnet20")[0].load()
    request = Request(workload="train/resnet20", params={**SHORT, "batch": 32, "loss_every": 1, "accuracy": True})
    with tempfile.TemporaryFile() as out:
        bench = Bench(Emitter(out.fileno()))
        params, _ = workload.probe(request, bench)
        course = workload.run("resnet20", params, bench)
        ready = next(course)
        assert isinstance(ready, TimedSteps)
        assert ready.peek is not None
        ready.reserve(60)
        before = statistics()
        reads = []
        for _ in range(60):
            ready.step()
            reads.append(ready.peek())
        after = statistics()
        torch.cuda.synchronize()
        course.close()
    handed_out = [
        key for key in after if key.startswith(("active_requests.", "allocations.")) and key.endswith("allocated")
    ]
    assert handed_out, f"its counters have other names now: {sorted(after)}"
    assert [after[key] - before[key] for key in handed_out] == [0] * len(handed_out)
    values = [read() for read in reads]
    assert values[-1]["loss"] < values[0]["loss"]
    assert len({value["loss"] for value in values}) > 50


@pytest.mark.parametrize("tune", ["off", "fast"])
def test_the_kernels_of_a_step_are_named_also_those_of_a_graph(tune: str) -> None:
    seen = []
    for _ in range(2):
        ended, _, events = run("train/resnet20", batch=64, precision="fp32", tune=tune, autotune=False)
        assert ended == "done"
        (facts,) = [event for event in events if event["event"] == "facts" and event["subject"] == "kernels"]
        assert facts["problems"] == []
        seen.append(facts["facts"])
    assert seen[0]["hash"] == seen[1]["hash"]
    assert seen[0]["count"] > 10
    assert any(
        "conv" in name.lower() or "gemm" in name.lower() or "cudnn" in name.lower() for name in seen[0]["heaviest"]
    )


def test_heat_clock_and_power_at_both_ends_are_metrics() -> None:
    _, _, events = run("train/resnet20", batch=64)
    metrics = {event["name"]: event["value"] for event in events if event["event"] == "metric"}
    for name in ("temperature_{}_c", "clock_sm_{}_mhz", "power_{}_w"):
        assert metrics[name.format("start")] > 0
        assert metrics[name.format("end")] > 0
    assert metrics["cpu_s"] > 0


def test_the_counters_of_a_gpu_are_read_beside_a_users_own_program() -> None:
    ended, last, events = run("command/own", cmd=f"{sys.executable} -c 'print(5)'", metric="([0-9]+)", device="cuda:0")
    assert (ended, last["figure"]["value"]) == ("done", 5.0)
    assert any(event.get("name") == "temperature_start_c" for event in events)


def test_forward_only_and_transformers_run() -> None:
    ended, last, _ = run("train/resnet50", batch=32, mode="forward")
    assert (ended, last["event"]) == ("done", "result"), last
    for name in ("gpt2", "bert-large", "vit-b16", "llama3-1b"):
        ended, last, _ = run(f"train/{name}", batch=2, tune="fast")
        assert (ended, last["event"]) == ("done", "result"), last


def test_vectors_are_added_rightly_on_every_gpu() -> None:
    ended, last, events = run("check/vector-add", device="cuda:0", every_gpu=True)
    assert (ended, last["event"]) == ("done", "result"), last
    metrics = {event["name"]: event["value"] for event in events if event["event"] == "metric"}
    assert metrics["devices_checked"] == torch.cuda.device_count()
    assert last["figure"]["unit"] == "GB/s"


def test_a_wrong_sum_of_a_gpu_is_found() -> None:
    from stackmark.workloads.check.impl.vector_add import add_on

    def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        made = left + right
        made.view(torch.int32)[-1] ^= 1
        return made

    with fails_as("wrong_result"):
        add_on("cuda:0", 1 << 20, seed=1, add=add)
