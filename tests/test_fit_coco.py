"""COCO's files: what is read of a small folder in their format, and what is refused."""

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from refusing import fails_as
from stackmark.workloads.fit.impl.boxes import areas
from stackmark.workloads.fit.impl.coco import TEST, TRAIN, read_instances
from stackmark.workloads.fit.impl.ssd_data import CocoFolder, hash_of

# As in COCO, ids have gaps and are in no order.
CATEGORIES = (18, 1, 90)


def write_coco(folder: Path, *, pictures: tuple[int, int] = (5, 3), narrowest: int = 60) -> Path:
    """Write a small COCO: in each part the last picture has no object, and the one before it a crowd only."""
    (folder / "annotations").mkdir(parents=True)
    for part, count in zip((TRAIN, TEST), pictures, strict=True):
        (folder / part).mkdir()
        draw = random.Random(part)
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number in range(count):
            name, width, height = f"{number:012d}.jpg", narrowest + 10 * number, 80
            picture = Image.new("RGB", (width, height), tuple(draw.randint(0, 255) for _ in range(3)))
            picture.save(folder / part / name)
            images.append({"id": 1000 - number, "file_name": name, "width": width, "height": height})
            for place in range(1 if number == count - 2 else 3 if number < count - 2 else 0):
                box = [draw.randint(0, 20) + 0.5, draw.randint(0, 20), draw.randint(20, 30), draw.randint(20, 50)]
                crowd = number == count - 2
                annotations.append({
                    "id": 10 * number + place, "image_id": 1000 - number, "category_id": draw.choice(CATEGORIES), "bbox": box,
                    "area": box[2] * box[3] / 2, "iscrowd": int(crowd),
                    "segmentation": block_of(box, width, height) if crowd else [triangle_in(box)],
                })  # fmt: skip
        draw.shuffle(annotations)
        categories = [{"id": number, "name": str(number), "supercategory": "thing"} for number in CATEGORIES]
        content = {"info": {}, "licenses": [], "images": images, "annotations": annotations, "categories": categories}
        (folder / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    return folder


def triangle_in(box: list[float]) -> list[float]:
    """The lower left half of a box."""
    left, top, wide, high = box
    return [left, top, left, top + high, left + wide, top + high]


def block_of(box: list[float], width: int, height: int) -> dict[str, Any]:
    """The columns of a box, as run lengths."""
    before, wide = int(box[0]) * height, int(box[2]) * height
    return {"size": [height, width], "counts": [before, wide, width * height - before - wide]}


@dataclass(frozen=True)
class Files:
    folder: Path

    @property
    def train(self) -> Path:
        return self.folder / "annotations" / f"instances_{TRAIN}.json"

    def change(self, how: Callable[[dict[str, Any]], object]) -> None:
        content = json.loads(self.train.read_text())
        how(content)
        self.train.write_text(json.dumps(content))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(write_coco(tmp_path / "coco"))


def test_annotations_come_with_their_pictures(files: Files) -> None:
    found = read_instances(files.folder, TRAIN)
    content = json.loads(files.train.read_text())
    assert found.categories == (1, 18, 90)
    assert found.names == [f"{number:012d}.jpg" for number in (4, 3, 2, 1, 0)]
    assert found.sizes.tolist() == [[width, 80] for width in (100, 90, 80, 70, 60)]
    assert found.counts.tolist() == [0, 1, 3, 3, 3]
    own = [one for one in content["annotations"] if one["image_id"] == 1000]
    assert found.labels[-3:].tolist() == [1 + found.categories.index(one["category_id"]) for one in own]
    assert found.boxes[-3:].tolist() == [
        [box[0], box[1], box[0] + box[2], box[1] + box[3]] for box in (one["bbox"] for one in own)
    ]
    assert found.areas[-3:].tolist() == [one["area"] for one in own]
    assert found.crowds.tolist() == [True] + [False] * 9
    assert found.truth().image.tolist() == [1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_boxes_that_are_empty_are_left_out(files: Files) -> None:
    files.change(lambda content: content["annotations"][0].update(bbox=[3, 3, 0, 5]))
    assert len(read_instances(files.folder, TRAIN).boxes) == 9


def test_pictures_with_objects_are_trained_and_all_are_tested(files: Files) -> None:
    data = CocoFolder(files.folder, 32, 2)
    assert (data.classes, data.samples, data.test_samples) == (4, 3, 3)
    plan = [torch.tensor([0, 2]), torch.tensor([1])]
    batches = list(data.train(plan, 5))
    assert [tuple(one.pictures.shape) for one in batches] == [(2, 3, 32, 32), (1, 3, 32, 32)]
    for one in batches:
        real = one.labels > 0
        assert bool(real.any(1).all())
        assert bool((areas(one.boxes)[real] > 0).all())
        assert 0 <= float(one.boxes.min()) <= float(one.boxes.max()) <= 1
    tested = torch.cat(list(data.test([torch.tensor([0]), torch.tensor([1, 2])])))
    # Each is of one colour.
    assert tested.shape == (3, 3, 32, 32)
    assert bool((tested == tested[:, :, :1, :1]).all())
    assert data.sizes.tolist() == [[80, 80], [70, 80], [60, 80]]


def test_an_epoch_is_the_same_again_and_no_other_one(files: Files) -> None:
    data = CocoFolder(files.folder, 32, 3)
    plan = [torch.arange(3)]

    def boxes(seed: int) -> list[Any]:
        found: list[Any] = next(data.train(plan, seed)).boxes.tolist()
        return found

    assert boxes(1) == boxes(1)
    assert len({str(boxes(seed)) for seed in range(8)}) > 1


def test_the_hash_is_of_annotations_pictures_and_weights(files: Files) -> None:
    first = hash_of(files.folder)
    assert CocoFolder(files.folder, 32, 1).sha256 == first
    picture = files.folder / TEST / "000000000000.jpg"
    picture.write_bytes(picture.read_bytes() + b"\0")
    second = hash_of(files.folder)
    (files.folder / "resnet34-0.pth").write_bytes(b"weights")
    assert len({first, second, hash_of(files.folder)}) == 3


def cut_off(files: Files) -> None:
    files.train.write_bytes(files.train.read_bytes()[:-100])


def change(how: Callable[[dict[str, Any]], object]) -> Callable[[Files], None]:
    return lambda files: files.change(how)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (cut_off, "complete"),
        (lambda files: files.train.unlink(), "annotations/"),
        (lambda files: files.train.write_text("[]"), "instances_train2017.json"),
        (change(lambda content: content.pop("categories")), "categories"),
        (change(lambda content: content["annotations"][0].update(category_id=7)), "7"),
        (change(lambda content: content["annotations"][0].update(image_id=7)), "7"),
        (change(lambda content: content["annotations"][0].update(bbox=[1, 2, 3])), "instances_train2017.json"),
        (change(lambda content: content["annotations"][0].update(area=float("nan"))), "finite"),
        (change(lambda content: content["images"][0].update(file_name="../a.jpg")), "../a.jpg"),
        (change(lambda content: content["images"][0].update(id=999)), "two with one id"),
        (change(lambda content: content["images"][0].update(width=0)), "000000000000.jpg"),
        (change(lambda content: content["categories"].append({"id": 5})), "other categories"),
        (change(lambda content: content["annotations"].clear()), "no objects"),
        (lambda files: (files.folder / TRAIN / "000000000001.jpg").unlink(), "000000000001.jpg"),
    ],
)
def test_damaged_annotations_are_a_sentence(files: Files, spoil: Callable[[Files], None], named: str) -> None:
    spoil(files)
    with fails_as("bad_data", named):
        CocoFolder(files.folder, 32, 1)


@pytest.mark.parametrize("content", [b"", b"no picture", b"\xff\xd8\xff\xe0 cut off"])
def test_a_picture_that_cannot_be_read_is_named(files: Files, content: bytes) -> None:
    (files.folder / TRAIN / "000000000001.jpg").write_bytes(content)
    with fails_as("bad_data", "000000000001.jpg"):
        list(CocoFolder(files.folder, 32, 2).train([torch.arange(3)], 1))


def test_a_picture_of_another_size_than_its_annotation_is_named(files: Files) -> None:
    files.change(lambda content: content["images"][0].update(width=61))
    with fails_as("bad_data", "000000000000.jpg", "(61, 80)"):
        list(CocoFolder(files.folder, 32, 2).train([torch.arange(3)], 1))


def test_without_pillow_it_is_said_what_to_install(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with fails_as("missing_package", "Pillow"):
        CocoFolder(files.folder, 32, 1)
