"""Scenes that small detectors are trained on: figures with exact boxes, and garments of Fashion-MNIST."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from refusing import fails_as
from stackmark.workloads.fit.impl import scenes
from stackmark.workloads.fit.impl.fashion_mnist import read_garments
from stackmark.workloads.fit.impl.scenes import (
    EDGES,
    FIRST_TESTED,
    PX,
    Figures,
    draw_scenes,
    garment_scenes,
    generated_scenes,
    plain_figures,
    random_pictures,
)


def test_generated_scenes_are_the_same_everywhere() -> None:
    data = generated_scenes()
    assert (data.classes, data.samples, data.test_samples) == (4, 600, 100)
    assert data.sha256 == "5f1f288de2f987be554bcfae7d7715ee111a16347d69677727d438a8b2189f67"


def test_a_scene_depends_on_its_seed_and_index_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = plain_figures()
    whole = draw_scenes(figures, 10, 12)
    monkeypatch.setattr(scenes, "DRAWN_TOGETHER", 5)
    part = draw_scenes(figures, 13, 7)
    for one, other in zip(vars(whole).values(), vars(part).values(), strict=True):
        assert torch.equal(one[3:10], other)
    assert not torch.equal(draw_scenes(figures, 10, 12, seed=1).pictures, whole.pictures)
    assert not torch.equal(draw_scenes(figures, FIRST_TESTED, 12).pictures, whole.pictures)


def test_boxes_are_those_of_the_pixels() -> None:
    """Figures of full brightness: what is as bright is of a figure, what is not is of the canvas."""
    drawn = draw_scenes(plain_figures(), 0, 60)
    for picture, boxes, labels in zip(drawn.pictures, drawn.boxes, drawn.labels, strict=True):
        seen = (picture == 255).any(0)
        for box, label in zip((boxes * PX).tolist(), labels.tolist(), strict=True):
            if not label:
                continue
            left, top, right, bottom = map(round, box)
            inside = seen[top:bottom, left:right]
            for side in (inside[0], inside[-1], inside[:, 0], inside[:, -1]):
                assert bool(side.any())
            assert EDGES[0] - 2 <= right - left <= EDGES[1]
            share = float(inside.float().mean())
            # A square is all of its box, a disc π/4 of it, a triangle a half.
            assert share == pytest.approx({1: 1.0, 2: 0.785, 3: 0.5}[label], abs=0.06)
            seen[top:bottom, left:right] = False
        assert not bool(seen.any())


def test_figures_do_not_overlap_and_there_are_one_to_three() -> None:
    drawn = draw_scenes(plain_figures(), 0, 200)
    counts = (drawn.labels > 0).sum(1)
    assert sorted(counts.unique().tolist()) == [1, 2, 3]
    for boxes, labels in zip(drawn.boxes, drawn.labels, strict=True):
        own = boxes[labels > 0]
        for number, one in enumerate(own):
            for other in own[number + 1 :]:
                assert bool((one[2:] <= other[:2]).any() | (other[2:] <= one[:2]).any())


def test_random_pictures_have_the_full_shape_and_boxes_inside() -> None:
    data = random_pictures(20, 5, 40)
    assert (data.classes, data.samples, data.test_samples) == (81, 20, 5)
    (batch,) = data.train([torch.arange(20)], 0)
    assert batch.pictures.shape == (20, 3, 40, 40)
    real = batch.labels > 0
    assert bool(real.any(1).all())
    assert bool((batch.boxes[:, :, 2:] > batch.boxes[:, :, :2])[real].all())
    assert 0 <= float(batch.boxes.min()) <= float(batch.boxes.max()) <= 1
    assert int(batch.labels.max()) <= 80


def idx(*sizes: int, data: bytes) -> bytes:
    return bytes((0, 0, 8, len(sizes))) + b"".join(size.to_bytes(4, "big") for size in sizes) + data


def write_garments(folder: Path, count: int = 30) -> Path:
    """Write files as Fashion-MNIST's: each garment a bright block, of another height in each class."""
    folder.mkdir(exist_ok=True)
    for name, shift in (("train", 0), ("t10k", 3)):
        labels = [(number + shift) % 10 for number in range(count)]
        pictures = torch.zeros(count, 28, 28, dtype=torch.uint8)
        for number, label in enumerate(labels):
            pictures[number, 4 : 10 + label, 6:20] = 200
        images = idx(count, 28, 28, data=bytes(pictures.flatten().tolist()))
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(count, data=bytes(labels)))
    return folder


def test_garments_are_read_compressed_or_not(tmp_path: Path) -> None:
    pictures, labels = read_garments(write_garments(tmp_path), training=False)
    assert pictures.shape == (30, 28, 28)
    assert labels.tolist() == [(number + 3) % 10 for number in range(30)]
    assert int(pictures[0].sum()) == 200 * (6 + 3) * 14


def test_scenes_of_garments_have_boxes_around_what_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks are 14 of 28 pixels wide, and begin 4 from the top: a figure's box is not that of its picture."""
    monkeypatch.setattr(scenes, "GARMENTS_TRAINED", 40)
    monkeypatch.setattr(scenes, "GARMENTS_TESTED", 10)
    data = garment_scenes(write_garments(tmp_path))
    assert (data.classes, data.samples, data.test_samples) == (11, 40, 10)
    (batch,) = data.train([torch.arange(40)], 0)
    real = batch.labels > 0
    sides = (batch.boxes[:, :, 2:] - batch.boxes[:, :, :2])[real]
    expected = (5 + batch.labels[real]) / 14
    assert (sides[:, 1] / sides[:, 0]).tolist() == pytest.approx(expected.tolist(), rel=0.25)


def test_a_figure_without_a_visible_pixel_is_no_object() -> None:
    dark = Figures(torch.zeros(1, 28, 28, dtype=torch.uint8), torch.ones(1, dtype=torch.long))
    drawn = draw_scenes(dark, 0, 5)
    assert not bool(drawn.labels.any())
    assert not bool(drawn.boxes.any())


def cut_off(folder: Path) -> None:
    file = folder / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])


def other_size(folder: Path) -> None:
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(2, 3, 3, data=bytes(18))))


def short(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(30, data=bytes(29)))


def fewer(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(29, data=bytes(29)))


def eleventh(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(30, data=bytes([10] * 30)))


def missing(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte").unlink()


@pytest.mark.parametrize("spoil", [cut_off, other_size, short, fewer, eleventh, missing])
def test_other_files_than_fashion_mnists_are_refused(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(write_garments(tmp_path))
    with fails_as("bad_data", str(tmp_path), "dataset-fashion-mnist"):
        read_garments(tmp_path, training=True)
