"""Between the steps: learning rates by epoch, checkpoints, and the quality of a checkpoint."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from stackmark.workloads.train.definition import TrainParams
from stackmark.workloads.train.impl import nets, train
from stackmark.workloads.train.impl.data import open_feed
from stackmark.workloads.train.impl.schedule import Schedule, find_checkpoints, parse_schedule
from stackmark.workloads.train.impl.step import Machine
from stackmark.workloads.train.zoo import MODELS
from stackmark.workloads.workload import WorkloadFailure
from train_rig import CPU, RecordingRig, arithmetic_is_left_as_found, losses, peeked, standing, train_params

__all__ = ["arithmetic_is_left_as_found"]


def machine_of(params: TrainParams, name: str = "lenet") -> Machine:
    return Machine.build(params, MODELS[name], open_feed(params, MODELS[name], CPU), RecordingRig())


def schedule_of(machine: Machine, epoch_samples: int = 50_000) -> Schedule:
    return Schedule(machine.params, machine.net, machine.optimizer, machine.scaler, epoch_samples)


def train_to(folder: Path, steps: int, name: str = "lenet", rig: RecordingRig | None = None, **given: Any) -> None:
    """The first step of a run belongs to its set-up; it trains, so it is counted."""
    with standing(name, rig, checkpoint_dir=str(folder), **given) as ready:
        for _ in range(steps - 1):
            ready.step()


def saved(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(find_checkpoints(folder)[-1][1], weights_only=True)
    return state


# --- learning rates --------------------------------------------------------------------------------------------------


def test_a_schedule_is_rates_with_the_epochs_between_them() -> None:
    assert parse_schedule("0.1") == [(0.0, 0.1)]
    assert parse_schedule("0.3;10;0.2;25.5;0.1") == [(0.0, 0.3), (10.0, 0.2), (25.5, 0.1)]


@pytest.mark.parametrize(
    "text", ["", "fast", "0.1;30", "0.1;30;", "-0.1", "nan", "0.1;inf;0.2", "0.1;30;0.2;20;0.3", "0.1;5;0.2;5;0.3"]
)
def test_what_is_not_a_schedule_is_a_sentence_with_an_example(text: str) -> None:
    with pytest.raises(WorkloadFailure) as failed:
        parse_schedule(text)
    assert failed.value.kind == "bad_parameter"
    assert repr(text) in failed.value.message
    assert "0.1;30;0.01" in failed.value.hint


def test_the_learning_rate_changes_at_the_epochs_named() -> None:
    # Eight samples in batches of four: two steps an epoch.
    machine = machine_of(train_params("lenet", lr_schedule="0.1;1;0.02;2.5;0.003", learning_rate=9.0))
    schedule = schedule_of(machine, epoch_samples=8)
    assert machine.optimizer is not None
    rates = []
    for _ in range(6):
        schedule.before_step()
        rates.append({group["lr"] for group in machine.optimizer.param_groups})
        schedule.after_step()
    assert rates == [{0.1}, {0.1}, {0.02}, {0.02}, {0.02}, {0.003}]


def test_the_first_step_of_all_has_the_first_rate_of_the_schedule() -> None:
    still = losses("lenet", 3, lr_schedule="0.0", learning_rate=5.0)
    assert still[0] == still[1] == still[2]
    assert still == losses("lenet", 3, learning_rate=0.0)


def test_a_schedule_of_synthetic_data_counts_the_epochs_of_the_data_set_it_stands_for() -> None:
    # Sixteen of CIFAR-10's 50,000 images are four steps.
    given = {"batch": 4, "learning_rate": 0.01, "optimizer": "sgd"}
    changed = losses("trivial_cifar10", 6, lr_schedule=f"0.01;{4 * 4 / 50_000};0.0", **given)
    constant = losses("trivial_cifar10", 6, **given)
    # The set-up's step and the next three have a rate, the fifth has none.
    assert changed[:4] == constant[:4]
    assert changed[4] == changed[5] != constant[5]


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_run_leaves_one_checkpoint_at_its_end_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    train_to(folder, 5)
    assert [path.name for path in folder.iterdir()] == ["model.ckpt-5.pt"]


def test_checkpoints_are_written_every_so_many_steps_and_the_newest_are_kept(tmp_path: Path) -> None:
    train_to(tmp_path, 11, checkpoint_every=2, checkpoint_keep=3)
    assert [number for number, _ in find_checkpoints(tmp_path)] == [8, 10, 11]


def test_the_newest_checkpoint_is_that_of_the_highest_step_not_of_the_last_name(tmp_path: Path) -> None:
    for name in ("model.ckpt-9.pt", "model.ckpt-10.pt", "model.ckpt-11.part", "notes.txt"):
        (tmp_path / name).write_text("")
    assert [number for number, _ in find_checkpoints(tmp_path)] == [9, 10]


@pytest.mark.parametrize("optimizer", ["momentum", "rmsprop", "adam", "adamw"])
def test_training_goes_on_as_if_it_had_not_been_interrupted(tmp_path: Path, optimizer: str) -> None:
    given: dict[str, Any] = {"optimizer": optimizer, "learning_rate": 0.002, "adam_epsilon": 0.01}
    rig = RecordingRig()
    train_to(tmp_path / "whole", 6, **given)
    train_to(tmp_path / "parts", 3, **given)
    train_to(tmp_path / "parts", 3, rig=rig, **given)
    (flag,) = rig.flags
    assert "model.ckpt-3.pt" in flag
    assert optimizer not in flag
    whole, parts = saved(tmp_path / "whole"), saved(tmp_path / "parts")
    assert whole["step"] == parts["step"] == 6
    assert all(torch.equal(value, parts["model"][name]) for name, value in whole["model"].items())


def test_a_restored_run_has_the_weights_and_momenta_of_the_checkpoint(tmp_path: Path) -> None:
    train_to(tmp_path, 4, name="resnet20")
    machine = machine_of(train_params("resnet20", checkpoint_dir=str(tmp_path), seed=99), "resnet20")
    schedule_of(machine)
    assert machine.optimizer is not None
    state = saved(tmp_path)
    assert all(torch.equal(value, state["model"][name]) for name, value in machine.net.state_dict().items())
    momenta = [entry["momentum_buffer"] for entry in state["optimizer"]["state"].values()]
    mine = [machine.optimizer.state[p]["momentum_buffer"] for g in machine.optimizer.param_groups for p in g["params"]]
    assert len(momenta) == len(mine) > 10
    assert all(torch.equal(a, b) for a, b in zip(momenta, mine, strict=True))


def test_a_restored_run_has_its_own_learning_rate_and_decay(tmp_path: Path) -> None:
    train_to(tmp_path, 2, learning_rate=0.01, weight_decay=0.1, fused=False)
    params = train_params("lenet", checkpoint_dir=str(tmp_path), learning_rate=0.5, weight_decay=0.2, fused=True)
    machine = machine_of(params)
    schedule_of(machine)
    assert machine.optimizer is not None
    first, second = machine.optimizer.param_groups
    assert (first["lr"], first["weight_decay"], first["fused"], second["weight_decay"]) == (0.5, 0.2, True, 0.0)


def test_another_optimizer_takes_the_weights_and_starts_again(tmp_path: Path) -> None:
    rig = RecordingRig()
    train_to(tmp_path, 2, optimizer="momentum")
    train_to(tmp_path, 2, optimizer="adam", rig=rig)
    (flag,) = rig.flags
    assert all(named in flag for named in ("model.ckpt-2.pt", "adam", "momentum"))
    assert find_checkpoints(tmp_path)[-1][0] == 4


def test_the_loss_scale_is_restored_too(tmp_path: Path) -> None:
    params = train_params("lenet", checkpoint_dir=str(tmp_path)).model_copy(update={"precision": "fp16"})
    one, other = machine_of(params), machine_of(params)
    assert one.scaler is not None
    assert other.scaler is not None
    one.scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    one.body()()
    schedule_of(one).save()
    schedule_of(other)
    assert other.scaler.get_scale() == 512.0


def damage(kind: str, folder: Path) -> None:
    path = find_checkpoints(folder)[-1][1]
    whole = path.read_bytes()
    if kind == "list":
        torch.save([1, 2, 3], path)
    else:
        changed = {"cut off": whole[: len(whole) // 2], "empty": b"", "text": b"a note, not a checkpoint"}
        path.write_bytes(changed[kind])


@pytest.mark.parametrize("kind", ["cut off", "empty", "text", "list"])
def test_a_damaged_checkpoint_is_a_sentence(tmp_path: Path, kind: str) -> None:
    train_to(tmp_path, 2)
    damage(kind, tmp_path)
    with pytest.raises(WorkloadFailure) as failed:
        train_to(tmp_path, 2)
    assert failed.value.kind == "bad_data"
    assert "model.ckpt-2.pt" in failed.value.message
    assert "--classes" not in failed.value.hint, "it is not taken for another model's"


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"step": 1, "model": Hostile()}, tmp_path / "model.ckpt-1.pt")
    with pytest.raises(WorkloadFailure) as failed:
        train_to(tmp_path, 2)
    assert failed.value.kind == "bad_data"
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_of_another_model_is_a_sentence_that_says_what_differs(tmp_path: Path) -> None:
    train_to(tmp_path, 2, classes=10)
    with pytest.raises(WorkloadFailure) as failed:
        train_to(tmp_path, 2, classes=11)
    assert failed.value.kind == "bad_data"
    assert "size mismatch" in failed.value.message, "PyTorch's own words"
    assert "--classes" in failed.value.hint


def test_a_folder_that_cannot_be_written_is_found_out_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rig = RecordingRig()
    with pytest.raises(WorkloadFailure) as failed:
        train_to(tmp_path / "file" / "below", 2, rig=rig)
    assert failed.value.kind == "bad_output"
    assert str(tmp_path / "file" / "below") in failed.value.message
    assert "first step" not in rig.parts


def test_a_full_disk_is_a_sentence_and_leaves_the_older_checkpoints(tmp_path: Path) -> None:
    train_to(tmp_path, 2)
    (tmp_path / "model.ckpt-4.part").symlink_to("/dev/full")
    with pytest.raises(WorkloadFailure) as failed:
        train_to(tmp_path, 2)
    assert failed.value.kind == "bad_output"
    assert "model.ckpt-4.pt" in failed.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["model.ckpt-2.pt"]


def test_a_failed_run_writes_no_checkpoint_at_its_end(tmp_path: Path) -> None:
    session = train.run("lenet", train_params("lenet", checkpoint_dir=str(tmp_path)), RecordingRig())
    next(session)
    session.close()
    assert list(tmp_path.iterdir()) == []


# --- the quality of a checkpoint ---------------------------------------------------------------------------------------


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    """Twelve images of noise to train on and twelve others to be judged by, in three classes."""
    random = np.random.default_rng(4)
    for split in ("train", "val"):
        for index in range(12):
            path = tmp_path / "data" / split / f"class{index % 3}" / f"{index:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            low, high = sorted(random.integers(0, 256, 2))
            Image.fromarray(random.integers(low, high + 1, (40, 48, 3), dtype=np.uint8)).save(path)
    return tmp_path / "data"


def independent_hits(folder: Path, checkpoint: dict[str, Any]) -> dict[str, bool]:
    """Whether each validation image is classified rightly, without the input pipeline and without the step."""
    net = nets.build(MODELS["resnet20"], 3)
    net.load_state_dict(checkpoint["model"])
    net.eval()
    hits = {}
    for path in sorted(folder.glob("val/*/*.png")):
        image = Image.open(path)  # 48 × 40: the middle 35 × 35
        middle = image.resize((32, 32), Image.Resampling.BILINEAR, box=(6.5, 2.5, 41.5, 37.5))
        pixels = torch.from_numpy(np.array(middle)).permute(2, 0, 1).float()
        mean, std = torch.tensor([123.675, 116.28, 103.53]), torch.tensor([58.395, 57.12, 57.375])
        scores = net(((pixels - mean[:, None, None]) / std[:, None, None])[None])
        hits[path.name] = bool(scores.argmax() == int(path.parent.name[-1]))
    return hits


def test_eval_gives_the_accuracy_of_the_checkpoint_over_exactly_the_measured_steps(noise: Path, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    given: dict[str, Any] = {"data": str(noise), "classes": 3, "checkpoint_dir": str(checkpoints), "batch": 4}
    with standing("resnet20", **given, learning_rate=0.05) as ready:
        for _ in range(6):
            ready.step()
    hits = independent_hits(noise, saved(checkpoints))
    assert 0 < sum(hits.values()) < 12
    rig = RecordingRig()
    with standing("resnet20", rig, **given, mode="eval") as ready:
        peeked(ready, 2)  # warm-up
        ready.reset()
        read = peeked(ready, 3)  # the whole of it, once
        metrics = {metric.name: metric.value for metric in ready.metrics()}
    assert metrics["top_1_accuracy"] == pytest.approx(sum(hits.values()) / 12)
    assert metrics["top_5_accuracy"] == 1.0
    assert metrics["examples"] == 12
    assert sum(values["top_1"] for values in read) / 3 == pytest.approx(metrics["top_1_accuracy"])
    assert find_checkpoints(checkpoints)[-1][0] == 7  # eval writes none
    (flag,) = rig.flags
    assert "model.ckpt-7.pt" in flag


def test_eval_without_a_checkpoint_is_a_sentence(noise: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(WorkloadFailure) as failed,
        standing("resnet20", data=str(noise), classes=3, mode="eval", checkpoint_dir=str(tmp_path / "none")),
    ):
        pass
    assert failed.value.kind == "bad_data"
    assert str(tmp_path / "none") in failed.value.message
    assert not (tmp_path / "none").exists()
