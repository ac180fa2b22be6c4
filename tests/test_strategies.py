"""What ranks do together equals what one process does with all of their samples."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import strategy_ranks  # noqa: E402
from asking import ask  # noqa: E402
from stackmark.errors import Exit  # noqa: E402
from stackmark.model import ValidationError  # noqa: E402
from stackmark.ranks import Rank, variables  # noqa: E402
from stackmark.spec import Task  # noqa: E402
from stackmark.workloads.train.definition import TrainParams  # noqa: E402
from stackmark.workloads.train.impl.nets import build  # noqa: E402
from stackmark.workloads.train.impl.optimizer import build_optimizer  # noqa: E402
from stackmark.workloads.train.impl.strategies import Strategy, build_strategy  # noqa: E402
from stackmark.workloads.train.impl.strategies.fsdp import blocks_of  # noqa: E402
from stackmark.workloads.train.zoo import MODELS, WITH_BLOCKS  # noqa: E402
from test_node_groups import free_port  # noqa: E402
from worker_process import environment, finish, give, read_until, start, train  # noqa: E402

# Of the norm of the gradients: what sums in another order may differ by.
CLOSE = {"float64": 1e-9, "float32": 1e-4}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, list[Any]]]]:
    """What each of two ranks found with each strategy: `ddp float64` …"""
    folder, port, ranks = tmp_path_factory.mktemp("ranks"), free_port(), 2
    files = [folder / f"{number}.pt" for number in range(ranks)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(Path(strategy_ranks.__file__)), str(file)],
            env={**environment(), **variables(Rank(number, ranks, number, ranks), "127.0.0.1", port), "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE, text=True,
        )
        for number, file in enumerate(files)
    ]  # fmt: skip
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(said)
    return [torch.load(file) for file in files]


def by_one_process(dtype: str, ranks: int = 2) -> tuple[list[Any], list[Any]]:
    """The gradients and the weights after a step over the samples of all ranks."""
    kind = getattr(torch, dtype)
    net = strategy_ranks.network(kind)
    parts = [strategy_ranks.batch(number, kind) for number in range(ranks)]
    images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    optimizer = build_optimizer(strategy_ranks.params("none"), net)
    strategy_ranks.step(Strategy(net), optimizer, images, labels)
    gradients = [strategy_ranks.whole(p.grad) for p in net.parameters()]
    optimizer.step()
    return gradients, [strategy_ranks.whole(p) for p in net.parameters()]


def distance(one: list[Any], other: list[Any]) -> float:
    """The norm of the difference, relative to the norm of the second."""
    first, second = (torch.cat([t.flatten() for t in tensors]) for tensors in (one, other))
    return float((first - second).norm() / second.norm())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("strategy", ["ddp", "parameter-server", "fsdp"])
def test_the_ranks_gradients_are_those_of_one_process_with_all_samples(
    strategy: str, dtype: str, found: list[dict[str, dict[str, list[Any]]]]
) -> None:
    gradients, weights = by_one_process(dtype)
    first, second = (of_rank[f"{strategy} {dtype}"] for of_rank in found)
    assert distance(first["gradients"], gradients) < CLOSE[dtype]
    # On a parameter server only rank 0 has gradients.
    assert strategy == "parameter-server" or distance(second["gradients"], gradients) < CLOSE[dtype]
    assert max(distance(of_rank["weights"], weights) for of_rank in (first, second)) < CLOSE[dtype]


def test_independent_ranks_do_not_exchange(found: list[dict[str, dict[str, list[Any]]]]) -> None:
    first, second = (of_rank["independent float64"] for of_rank in found)
    assert distance(first["gradients"], second["gradients"]) > 0.1


def test_fsdp_shards_the_blocks_of_a_transformer_alone() -> None:
    assert len(blocks_of(strategy_ranks.Small())) == 3
    assert blocks_of(torch.nn.Sequential(torch.nn.Linear(2, 2))) == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"compile": True}, "compile"),
        ({"mode": "eval", "checkpoint_dir": "/tmp/x"}, "eval"),
        ({"mode": "forward"}, "independent"),
        ({"strategy": "fsdp", "checkpoint_dir": "/tmp/x"}, "checkpoint"),
        ({"strategy": "parameter-server", "server_device": "gpu"}, "server_device"),
    ],
)
def test_a_strategy_refuses_what_it_cannot_do(changed: dict[str, Any], named: str) -> None:
    given = {**strategy_ranks.params("ddp").model_dump(), **changed}
    with pytest.raises(ValidationError, match=named):
        TrainParams.model_validate(given)


def test_one_rank_alone_needs_no_strategy() -> None:
    net = strategy_ranks.network(torch.float32)
    assert build_strategy(strategy_ranks.params("none"), net, None).net is net


# On the command line


PARTS = ("compute_step_s", "waiting_step_s", "exchange_step_s")
SHORT = ["--batch", "4", "--seconds", "0.3", "--warmup-seconds", "0s", "--warmup-steps", "1", "--device", "cpu"]


@pytest.mark.parametrize("strategy", ["ddp", "parameter-server", "independent"])
def test_two_ranks_train_and_say_how_their_steps_are_made_up(strategy: str, tmp_path: Path) -> None:
    ledger = ["--ledger", str(tmp_path / "ledger.sqlite3")]
    answer = ask(
        "run", "train/resnet20", "--ranks", "2", "--strategy", strategy, *SHORT, "--runs", "1", *ledger, "--json"
    )
    assert answer.code == 0, answer.err
    events = [json.loads(line) for line in ask("show", "last", "--events", *ledger).out.splitlines()]
    metrics = [
        {e["name"]: e["value"] for e in events if e["event"] == "metric" and e["rank"] == rank} for rank in (0, 1)
    ]
    for of_rank in metrics:
        assert of_rank["exchanged_bytes_step"] == (0 if strategy == "independent" else 4 * MODELS["resnet20"].params)
    if strategy == "independent":
        assert "compute_step_s" not in metrics[0]
        return
    # In each step one of them is the slowest, and the other waits for it.
    assert min(of_rank["waiting_step_s"] for of_rank in metrics) >= 0
    assert sum(of_rank["slowest_steps"] for of_rank in metrics) >= metrics[0]["alone_steps"]
    group = json.loads(answer.out)["results"][0]["group"]
    assert group["exchanged_bytes"] == metrics[0]["exchanged_bytes_step"]
    assert group["compute_s"] == pytest.approx(sum(m["compute_step_s"] for m in metrics) / 2)
    assert "waiting for the slowest rank" in ask("show", "last", *ledger).out
    (step_s,) = {round(sum(m[part] for part in PARTS), 9) for m in metrics}
    assert step_s > 0
    facts = [e["facts"] for e in events if e["event"] == "facts" and e["subject"] == "ranks"]
    assert [(f["strategy"], f["backend"]) for f in facts] == [(strategy, "gloo")] * 2
    assert all(f["clock_uncertainty_s"] < 1 for f in facts)


def test_fsdp_of_a_network_without_blocks_is_a_sentence(tmp_path: Path) -> None:
    ledger = ["--ledger", str(tmp_path / "ledger.sqlite3")]
    answer = ask("run", "train/resnet20", "--ranks", "2", "--strategy", "fsdp", *SHORT, "--runs", "1", *ledger)
    assert answer.code == Exit.WRONG_USE
    assert "--strategy ddp" in answer.err
    assert not (tmp_path / "ledger.sqlite3").exists()
    arms = ("--arm", "host,strategy=ddp", "--arm", "host,strategy=fsdp", *ledger)
    assert ask("compare", "train/resnet20", "--ranks", "2", *SHORT, *arms).code == Exit.WRONG_USE


def test_fsdp_finds_all_blocks_of_each_transformer() -> None:
    with torch.device("meta"):
        found = {name: len(blocks_of(build(MODELS[name], MODELS[name].classes))) for name in WITH_BLOCKS}
    # As GPT-2 (124 M), BERT-Large, ViT-B/16 and Llama 3.2 1B have them.
    assert found == {"gpt2": 12, "bert-large": 24, "vit-b16": 12, "llama3-1b": 16}


SHIFTED = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", "1000"]


def test_clocks_of_ranks_are_aligned_though_one_is_shifted_and_began_later() -> None:
    """The second rank's monotonic clock is 1000 s ahead. The wall clock, which both share, says when each began."""
    if subprocess.run([*SHIFTED, "true"], capture_output=True).returncode:
        pytest.skip("this user may not make a time namespace")
    task = Task(do="run", spec=train(strategy="ddp").model_copy(update={"ranks": 2}))
    port = free_port()
    envs = [
        environment(**variables(Rank(number, 2, number, 2), "127.0.0.1", port), GLOO_SOCKET_IFNAME="lo")
        for number in (0, 1)
    ]
    first = start(envs[0])
    give(first, task)
    lines = read_until(first, lambda event: event["event"] == "hello")
    time.sleep(3)
    second = start(envs[1], SHIFTED)
    give(second, task)
    ended = [finish(second), finish(first, lines)]
    began, clocks = {}, {}
    for finished in ended:
        hello = finished.events[0]
        began[hello["rank"]] = hello["time_unix_s"] - hello["t"]
        (clocks[hello["rank"]],) = (
            event["facts"] for event in finished.events if event["event"] == "facts" and event["subject"] == "ranks"
        )
    assert began[1] - began[0] > 2
    assert abs(clocks[0]["clock_offset_s"]) <= clocks[0]["clock_uncertainty_s"] + 1e-6
    offset_s, uncertain_s = clocks[1]["clock_offset_s"], clocks[1]["clock_uncertainty_s"]
    assert offset_s == pytest.approx(began[0] - began[1], abs=uncertain_s + 1)
