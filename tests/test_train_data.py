"""Samples from the host and from folders: real images, real files in CIFAR-10's formats, real reading processes."""

import multiprocessing
import os
import pickle
import signal
import struct
import sys
import zlib
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from refusing import fails_as
from stackmark.workloads.train.impl.data import CopyFeed, Feed, open_feed
from stackmark.workloads.train.impl.folder import open_folder
from stackmark.workloads.train.zoo import MODELS
from stackmark.workloads.workload import WorkloadFailure
from train_rig import CPU, arithmetic_is_left_as_found, peeked, standing, train_params

__all__ = ["arithmetic_is_left_as_found"]

# Python 3.12 warns of every fork of a process with threads, and torch has threads. Torch's loader forks.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.. may lead to deadlocks:DeprecationWarning")

RESNET = MODELS["resnet20"]
COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}  # in the order of their names
MEAN = torch.tensor([123.675, 116.28, 103.53])
STD = torch.tensor([58.395, 57.12, 57.375])


def feed_of(folder: Path, **given: Any) -> Feed:
    params = train_params("resnet20", data=str(folder), **{"classes": 10, **given})
    return open_feed(params, RESNET, CPU)


def take(feed: Feed, batches: int) -> list[tuple[Tensor, Tensor]]:
    found = []
    for _ in range(batches):
        feed.fill()
        found.append((feed.target.inputs[0].clone(), feed.target.targets[0].clone()))
    return found


def pixels(images: Tensor) -> Tensor:
    """Normalised images as the bytes they were."""
    return images * STD.view(1, 3, 1, 1) + MEAN.view(1, 3, 1, 1)


def readers() -> set[int]:
    return {child.pid for child in multiprocessing.active_children() if child.pid}


def fails(kind: str, folder: Path, said: str, **given: Any) -> WorkloadFailure:
    def use() -> None:
        feed = feed_of(folder, **given)
        with closing(feed):
            take(feed, 6)

    with pytest.raises(WorkloadFailure) as failed:
        use()
    assert failed.value.kind == kind
    assert said in failed.value.message
    return failed.value


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three classes of four images each, one of every kind: usual, tall, tiny, with transparency; and other files."""
    root = tmp_path / "images"
    for split in ("train", "val"):
        for name, colour in COLOURS.items():
            folder = root / split / name
            (folder / "deeper").mkdir(parents=True)
            Image.new("RGB", (60, 40), colour).save(folder / "usual.png")
            Image.new("RGB", (20, 300), colour).save(folder / "tall.bmp")
            Image.new("RGB", (3, 2), colour).save(folder / "deeper" / "tiny.PNG")
            Image.new("RGBA", (40, 40), (*colour, 255)).save(folder / "clear.webp", lossless=True)
            (folder / "notes.txt").write_text("not an image")
        (root / split / ".hidden").mkdir()
    return root


# --- image trees -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_images_come_with_their_own_label_normalised_and_each_once_an_epoch(tree: Path, workers: int) -> None:
    feed = feed_of(tree, batch=6, data_workers=workers)
    seen: Counter[int] = Counter()
    for images, labels in take(feed, 4):
        assert images.shape == (6, 3, 32, 32)
        colours = torch.tensor(list(COLOURS.values()), dtype=torch.float32)[labels]
        expected = ((colours - MEAN) / STD)[:, :, None, None].expand_as(images)
        torch.testing.assert_close(images, expected, rtol=1e-5, atol=1e-5)
        seen.update(labels.tolist())
    feed.close()
    assert seen == {0: 8, 1: 8, 2: 8}


def test_a_grey_image_has_three_equal_channels(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    Image.new("L", (50, 50), 77).save(tmp_path / "one" / "grey.jpg")
    images, _ = take(feed_of(tmp_path, batch=1), 1)[0]
    torch.testing.assert_close(pixels(images), torch.full_like(images, 77.0))


def test_the_middle_is_taken_without_distortions(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    ramp = np.tile(np.arange(256, dtype=np.uint8), (64, 1))
    Image.fromarray(ramp).save(tmp_path / "one" / "ramp.png")
    images, _ = take(feed_of(tmp_path, batch=1, distortions=False), 1)[0]
    row = pixels(images)[0, 0, 16]
    # The middle 56 of 256 columns, in 32 steps of 1.75.
    assert row.tolist() == pytest.approx([100 + 1.75 * (i + 0.5) - 0.5 for i in range(32)], abs=1)


def test_crops_stay_inside_the_image_and_half_of_them_are_flipped(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    ramp = np.tile(np.linspace(50, 200, 96, dtype=np.uint8), (64, 1))
    Image.fromarray(ramp).save(tmp_path / "one" / "ramp.png")
    folder, chance = open_folder(tmp_path, RESNET, training=True), Random(3)
    rows = [folder.read(0, chance)[0][0, 16].float() for _ in range(200)]
    rising = sum(bool(row[-1] > row[0]) for row in rows)
    assert 70 < rising < 130
    assert min(row.min() for row in rows) >= 50
    assert max(row.max() for row in rows) <= 200
    widths = [float((row[-1] - row[0]).abs()) for row in rows]
    assert min(widths) < 70
    assert max(widths) > 110


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (400, 1), (5000, 3)])
def test_an_image_of_any_shape_can_be_cropped(tmp_path: Path, size: tuple[int, int]) -> None:
    (tmp_path / "one").mkdir()
    Image.new("RGB", size, (9, 9, 9)).save(tmp_path / "one" / "odd.png")
    folder, chance = open_folder(tmp_path, RESNET, training=True), Random(1)
    for _ in range(50):
        image, _ = folder.read(0, chance)
        assert image.shape == (3, 32, 32)
        assert image.dtype == torch.uint8
        assert bool((image == 9).all())


@pytest.fixture
def ramps(tmp_path: Path) -> Path:
    """Ten images in which a crop can be told from another."""
    random = np.random.default_rng(1)
    for index in range(10):
        folder = tmp_path / "ramps" / f"class{index % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / f"{index}.png")
    return tmp_path / "ramps"


def ordered(batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    return torch.cat([images for images, _ in batches])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_seed_gives_the_same_distortions_in_the_same_order(ramps: Path, workers: int) -> None:
    runs = []
    for seed in (1, 1, 2):
        feed = feed_of(ramps, batch=5, data_workers=workers, seed=seed)
        runs.append(ordered(take(feed, 4)))
        feed.close()
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_two_reading_processes_do_not_draw_the_same_crops(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    noise = np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    for name in ("a", "b"):
        Image.fromarray(noise).save(tmp_path / "one" / f"{name}.png")
    with closing(feed_of(tmp_path, batch=1, data_workers=2)) as feed:
        first, second = take(feed, 2)  # one from each process
    assert not torch.equal(first[0], second[0])


def test_an_image_is_distorted_differently_each_time_unless_distortions_are_off(ramps: Path) -> None:
    def different(**given: Any) -> int:
        feed = feed_of(ramps, batch=10, **given)
        images = ordered(take(feed, 3))
        return len({image.numpy().tobytes() for image in images})

    assert different(distortions=True) == 30
    assert different(distortions=False) == 10


def test_eval_reads_the_validation_images_in_order_and_undistorted(tree: Path) -> None:
    for path in (tree / "val").rglob("*.*"):
        if path.name != "usual.png" and path.is_file():
            path.unlink()
    feed = feed_of(tree, batch=3, mode="eval", checkpoint_dir="unused")
    assert [labels.tolist() for _, labels in take(feed, 2)] == [[0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("split", ["val", "validation", "test"])
def test_labels_are_those_of_training_where_validation_has_fewer_classes(tree: Path, split: str) -> None:
    (tree / "val").rename(tree / split)
    for path in sorted((tree / split / "blue").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (tree / split / "blue").rmdir()
    feed = feed_of(tree, batch=8, mode="eval", checkpoint_dir="unused")
    assert set(take(feed, 1)[0][1].tolist()) == {1, 2}


def test_a_tree_without_splits_serves_both(tree: Path) -> None:
    for training in (True, False):
        folder = open_folder(tree / "train", RESNET, training)
        assert (len(folder), folder.classes) == (12, 3)


def test_epochs_follow_each_other_without_new_processes(tree: Path) -> None:
    feed = feed_of(tree, batch=12, data_workers=2)
    take(feed, 1)
    before = readers()
    take(feed, 12)
    assert len(before) == 2
    assert readers() == before
    feed.close()
    assert readers() == set()


def test_a_run_leaves_no_reading_process_behind(tree: Path) -> None:
    with standing("resnet20", data=str(tree), classes=3, data_workers=2) as ready:
        ready.step()
        assert len(readers()) == 2
    assert readers() == set()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_named(tree: Path, workers: int) -> None:
    path = tree / "train" / "green" / "usual.png"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    failure = fails("bad_data", tree, str(path), data_workers=workers, batch=6)
    assert "\n" not in failure.message
    assert readers() == set()


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n" + b"\0" * 50])
def test_what_only_has_the_name_of_an_image_is_named(tree: Path, content: bytes) -> None:
    path = tree / "train" / "red" / "usual.png"
    path.write_bytes(content)
    fails("bad_data", tree, str(path), batch=6)


def test_an_image_of_absurd_size_is_named(tree: Path) -> None:
    path = tree / "train" / "red" / "usual.png"
    header = struct.pack(">IIBBBBB", 200_000, 200_000, 8, 2, 0, 0, 0)
    checksum = zlib.crc32(b"IHDR" + header)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", 13, b"IHDR") + header + struct.pack(">I", checksum))
    fails("bad_data", tree, str(path), batch=6)


def test_a_reading_process_that_is_killed_is_a_sentence(tree: Path) -> None:
    feed = feed_of(tree, batch=6, data_workers=1)
    take(feed, 1)
    os.kill(readers().pop(), signal.SIGKILL)
    with fails_as("bad_data", "--data-workers"):
        take(feed, 50)


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    fails("bad_data", tmp_path / "none", str(tmp_path / "none"))


def test_a_folder_without_images_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "readme.txt").write_text("")
    assert "train/CLASS" in fails("bad_data", tmp_path, str(tmp_path)).hint


@pytest.mark.parametrize(("split", "mode"), [("train", "eval"), ("val", "train")])
def test_a_split_that_is_missing_is_a_sentence_and_not_one_class(tmp_path: Path, split: str, mode: str) -> None:
    (tmp_path / split / "one").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / split / "one" / "a.png")
    fails("bad_data", tmp_path, f"{split}/", mode=mode, checkpoint_dir="unused")


def test_a_validation_class_that_training_does_not_know_is_a_sentence(tree: Path) -> None:
    (tree / "val" / "azure").mkdir()
    fails("bad_data", tree, "azure", mode="eval", checkpoint_dir="unused")


def test_fewer_images_than_a_batch_is_a_sentence(tree: Path) -> None:
    assert "--batch 12" in fails("bad_data", tree, "13", batch=13).hint


def test_more_classes_than_outputs_is_a_sentence(tree: Path) -> None:
    assert "--classes 3" in fails("bad_data", tree, "3 classes", classes=2).hint


def test_a_model_of_text_reads_no_folder(tree: Path) -> None:
    with fails_as("bad_data", "gpt2"):
        open_folder(tree, MODELS["gpt2"], training=True)


def test_images_without_pillow_are_a_sentence(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert f"{sys.executable}: pip install pillow numpy" in fails("missing_package", tree, "Pillow").hint


# --- CIFAR-10 ------------------------------------------------------------------------------------------------------------


def cifar_images(count: int, first: int) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], list[int]]:
    """Images whose first byte is their number, and labels that go with it."""
    images = np.random.default_rng(first).integers(0, 256, (count, 3072), dtype=np.uint8)
    images[:, 0] = np.arange(first, first + count)
    return images, [(first + i) % 10 for i in range(count)]


def binary_batch(images: np.ndarray[Any, np.dtype[np.uint8]], labels: list[int]) -> bytes:
    """The authors' binary version: a byte of label, then red, green and blue, 1,024 bytes each."""
    return b"".join(bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True))


def python_batch(images: np.ndarray[Any, np.dtype[np.uint8]], labels: list[int]) -> bytes:
    """The authors' Python version, opcode by opcode as Python 2's cPickle wrote it: byte strings, numpy.core."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    raw = images.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01" + b"J" + struct.pack("<i", len(images)) + b"M\x00\x0c\x86"
        b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    )  # fmt: skip
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"](" + text(b"leptodactylus_s_000004.png") + b"e"
    parts = {b"batch_label": text(b"training batch 1 of 5"), b"labels": numbers, b"data": array, b"filenames": names}
    return b"\x80\x02}(" + b"".join(text(key) + value for key, value in parts.items()) + b"u."


@pytest.mark.parametrize("version", ["python", "binary"])
@pytest.mark.parametrize("below", [True, False])
def test_cifars_own_files_are_read(tmp_path: Path, version: str, below: bool) -> None:
    write, ending = (python_batch, "") if version == "python" else (binary_batch, ".bin")
    inner = "cifar-10-batches-py" if version == "python" else "cifar-10-batches-bin"
    root = tmp_path / inner if below else tmp_path
    root.mkdir(exist_ok=True)
    for number in range(1, 6):
        (root / f"data_batch_{number}{ending}").write_bytes(write(*cifar_images(4, 4 * number)))
    (root / f"test_batch{ending}").write_bytes(write(*cifar_images(4, 100)))
    training, held_out = (open_folder(tmp_path, RESNET, training) for training in (True, False))
    assert (len(training), training.classes, len(held_out)) == (20, 10, 4)
    for folder, first in ((training, 4), (held_out, 100)):
        for index in range(len(folder)):
            image, label = folder.read(index, None)
            assert label == (first + index) % 10
            assert int(image[0, 0, 0]) == first + index
    expected = cifar_images(4, 100)[0][2].reshape(3, 32, 32)
    assert torch.equal(held_out.read(2, None)[0], torch.from_numpy(expected))


def test_cifar_files_that_python_3_wrote_are_read_too(tmp_path: Path) -> None:
    images, labels = cifar_images(4, 7)
    for protocol in range(2, 6):
        content = pickle.dumps({b"data": images, b"labels": labels}, protocol)
        (tmp_path / f"data_batch_{protocol - 1}").write_bytes(content)
    folder = open_folder(tmp_path, RESNET, training=True)
    assert [folder.read(index, None)[1] for index in range(16)] == [7, 8, 9, 0] * 4


def test_cifar_is_cropped_from_its_padded_image_and_flipped(tmp_path: Path) -> None:
    images, labels = cifar_images(1, 5)
    (tmp_path / "data_batch_1.bin").write_bytes(binary_batch(images, labels))
    folder, chance = open_folder(tmp_path, RESNET, training=True), Random(2)
    padded = torch.zeros(3, 40, 40, dtype=torch.uint8)
    padded[:, 4:36, 4:36] = torch.from_numpy(images).view(3, 32, 32)
    possible = {}
    for top in range(9):
        for left in range(9):
            crop = padded[:, top : top + 32, left : left + 32]
            possible[crop.numpy().tobytes()] = (top, left, False)
            possible[crop.flip(2).contiguous().numpy().tobytes()] = (top, left, True)
    seen = [possible[folder.read(0, chance)[0].numpy().tobytes()] for _ in range(400)]
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(9))
    assert 150 < sum(flipped for _, _, flipped in seen) < 250


class Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def test_a_pickle_that_would_run_a_command_is_refused(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": Hostile(marker), b"labels": [1]}))
    fails("bad_data", tmp_path, "posix.system")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data_batch_1.bin", b"\x01" * 3072),
        ("data_batch_1.bin", b""),
        ("data_batch_1.bin", b"\x0a" + b"\x00" * 3072),  # label 10
        ("data_batch_1", b""),
        ("data_batch_1", b"not a pickle"),
        ("data_batch_1", pickle.dumps([1, 2])),
        ("data_batch_1", pickle.dumps({b"fine_labels": [1]})),
        ("data_batch_1", pickle.dumps({b"data": b"123", b"labels": [1]})),
        ("data_batch_1", pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]})),
    ],
)
def test_what_is_not_cifar_is_a_sentence_with_the_file(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    fails("bad_data", tmp_path, str(tmp_path / name))


def test_cifar_without_its_test_batch_cannot_be_evaluated(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(binary_batch(*cifar_images(4, 0)))
    fails("bad_data", tmp_path, "test_batch", mode="eval", checkpoint_dir="unused")


def test_cifar_for_a_model_of_another_size_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(binary_batch(*cifar_images(4, 0)))
    with fails_as("bad_data", "32", "224", "resnet56"):
        open_folder(tmp_path, MODELS["resnet50"], training=True)


# --- synthetic -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_data_of_the_host_are_copied_anew_each_step_into_the_same_place(layout: str) -> None:
    feed = open_feed(train_params("resnet20", data="host", layout=layout), RESNET, CPU)
    assert isinstance(feed, CopyFeed)
    place = feed.target.inputs[0].data_ptr()
    batches = take(feed, 5)
    assert feed.target.inputs[0].data_ptr() == place
    assert len({images.numpy().tobytes() for images, _ in batches}) == 4
    assert torch.equal(batches[0][0], batches[4][0])
    assert torch.equal(batches[0][1], batches[4][1])
    feed.target.inputs[0].zero_()
    feed.fill()
    assert torch.equal(feed.target.inputs[0], batches[1][0])


def test_data_of_the_device_stay_as_they_are() -> None:
    feed = open_feed(train_params("resnet20"), RESNET, CPU)
    one, other = take(feed, 2)
    assert torch.equal(one[0], other[0])


def test_only_a_feed_that_reads_is_waited_for(tree: Path) -> None:
    with standing("resnet20", data="device") as ready:
        ready.step()
        assert ready.data_wait_s() == 0
    with standing("resnet20", data=str(tree), classes=3, data_workers=1) as ready:
        waited = [ready.data_wait_s()]
        for _ in range(3):
            ready.step()
            waited.append(ready.data_wait_s())
    assert waited[0] > 0
    assert waited == sorted(set(waited))


# --- all of it -----------------------------------------------------------------------------------------------------------


def test_black_and_white_images_are_learnt_to_the_last_one(tmp_path: Path) -> None:
    for name, value in (("black", 0), ("white", 255)):
        (tmp_path / "train" / name).mkdir(parents=True)
        for index in range(4):
            Image.new("L", (40 + index, 40), value).save(tmp_path / "train" / name / f"{index}.png")
    given: dict[str, Any] = {"data": str(tmp_path), "classes": 2, "batch": 8, "data_workers": 2, "learning_rate": 0.02}
    with standing("resnet20", accuracy=True, **given) as ready:
        values = peeked(ready, 12)
    assert [value["top_1"] for value in values[-3:]] == [1.0, 1.0, 1.0]
    assert values[-1]["loss"] < 0.1
