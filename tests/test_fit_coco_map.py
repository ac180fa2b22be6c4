"""COCO's mean average precision, against pycocotools."""

import contextlib
import io
import json
import math
import random
from typing import Any

import pytest
import torch

from stackmark.workloads.fit.impl import coco_map
from stackmark.workloads.fit.impl.boxes import areas
from stackmark.workloads.fit.impl.coco_map import (
    ALL_SIZES,
    RECALLS,
    THRESHOLDS,
    Detections,
    Judged,
    Truth,
    average_precision,
    box_overlaps,
    judge,
    mean_average_precision,
)

CLASSES, IMAGES = 4, 25
SIZES = (ALL_SIZES, (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e10))
Rows = list[dict[str, Any]]


def drawn(seed: int) -> tuple[Rows, Rows]:
    """Objects and detections in whole pixels with scores in tenths, so that there are ties of both; some objects are crowds."""
    draw = random.Random(seed)
    objects: Rows = []
    found: Rows = []

    def detect(image: int, label: int, box: list[int]) -> None:
        found.append({"image_id": image, "category_id": label, "bbox": box, "score": draw.randint(1, 10) / 10})

    for image in range(1, IMAGES + 1):
        for _ in range(draw.randint(0, 8)):
            box = [draw.randint(0, 60), draw.randint(0, 60), draw.randint(4, 130), draw.randint(4, 130)]
            label = draw.randint(1, CLASSES)
            objects.append({
                "id": len(objects) + 1, "image_id": image, "category_id": label, "bbox": box,
                "area": box[2] * box[3] * draw.choice((1, 0.5)), "iscrowd": int(draw.random() < 0.15),
            })  # fmt: skip
            for _ in range(draw.randint(0, 3)):
                moved = [max(1, side + draw.randint(-5, 5)) for side in box]
                detect(image, draw.randint(1, CLASSES) if draw.random() < 0.2 else label, moved)
        for _ in range(draw.randint(0, 5)):
            detect(image, draw.randint(1, CLASSES), [draw.randint(0, 60), *(draw.randint(2, 90) for _ in range(3))])
    return objects, found


def tensors(objects: Rows, found: Rows) -> tuple[Detections, Truth, coco_map.Overlaps]:
    def column(rows: Rows, name: str) -> torch.Tensor:
        return torch.tensor([row[name] for row in rows])

    def corners(rows: Rows) -> torch.Tensor:
        boxes = torch.tensor([row["bbox"] for row in rows], dtype=torch.float64).view(-1, 4)
        return torch.cat((boxes[:, :2], boxes[:, :2] + boxes[:, 2:]), 1)

    truth = Truth(
        column(objects, "image_id"), column(objects, "category_id") - 1, column(objects, "area").double(),
        column(objects, "iscrowd").bool(),
    )  # fmt: skip
    boxes = corners(found)
    detections = Detections(
        column(found, "image_id"), column(found, "category_id") - 1, areas(boxes), column(found, "score").double()
    )
    return detections, truth, box_overlaps(boxes, corners(objects), truth.crowd)


def pycocotools_says(objects: Rows, found: Rows) -> Any:
    coco = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):
        data = coco.COCO()
        data.dataset = {
            "info": {},
            "images": [{"id": number} for number in range(1, IMAGES + 1)],
            "annotations": [dict(row) for row in objects],
            "categories": [{"id": number} for number in range(1, CLASSES + 1)],
        }
        data.createIndex()
        told = evaluation.COCOeval(data, data.loadRes([dict(row) for row in found]), "bbox")
        told.evaluate()
        told.accumulate()
        told.summarize()
    return told


@pytest.mark.parametrize("seed", range(6))
def test_precision_is_that_of_pycocotools(seed: int) -> None:
    objects, found = drawn(seed)
    told = pycocotools_says(objects, found)
    detections, truth, overlaps = tensors(objects, found)
    for number, sizes in enumerate(SIZES):
        judged = judge(detections, truth, overlaps, sizes=sizes)
        positives = truth.positives(CLASSES, sizes)
        expected = torch.from_numpy(told.eval["precision"][:, :, :, number, -1].mean(1))
        expected[expected < 0] = math.nan
        torch.testing.assert_close(average_precision(judged, positives), expected, equal_nan=True, rtol=0, atol=1e-12)
    whole = judge(detections, truth, overlaps)
    assert mean_average_precision(whole, truth.positives(CLASSES)) == pytest.approx(told.stats[0], abs=1e-12)


def test_thresholds_and_recalls_are_those_of_pycocotools_to_the_last_bit() -> None:
    params = pytest.importorskip("pycocotools.cocoeval").Params(iouType="bbox")
    assert tuple(params.iouThrs.tolist()) == THRESHOLDS
    assert tuple(params.recThrs.tolist()) == RECALLS


def test_no_more_than_a_hundred_detections_of_a_class_are_looked_at() -> None:
    """The only right one has the lowest score of 101."""
    objects = [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10], "area": 100, "iscrowd": 0}]
    wrong = [{"image_id": 1, "category_id": 1, "bbox": [50, 50, 10, 10], "score": 0.9} for _ in range(100)]
    right = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10], "score": 0.1}
    told = pycocotools_says(objects, [*wrong, right])
    detections, truth, overlaps = tensors(objects, [*wrong, right])
    positives = truth.positives(CLASSES)
    assert mean_average_precision(judge(detections, truth, overlaps), positives) == told.stats[0] == 0
    assert mean_average_precision(judge(detections, truth, overlaps, most=101), positives) == pytest.approx(1 / 101)


def test_judgements_of_parts_of_the_images_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    objects, found = drawn(7)
    detections, truth, overlaps = tensors(objects, found)
    positives = truth.positives(CLASSES)
    whole = mean_average_precision(judge(detections, truth, overlaps), positives)
    assert 0.1 < whole < 0.9
    entries = []
    for part in range(3):
        own = [row for row in found if row["image_id"] % 3 == part]
        detections, truth, overlaps = tensors(objects, own)
        entries += json.loads(json.dumps(judge(detections, truth, overlaps).entries()))
    assert mean_average_precision(Judged.of(entries), positives) == pytest.approx(whole, abs=1e-12)
    # However they are cut into tables.
    monkeypatch.setattr(coco_map, "LOOKED_AT_TOGETHER", 50)
    detections, truth, overlaps = tensors(objects, found)
    assert mean_average_precision(judge(detections, truth, overlaps), positives) == whole


def test_nothing_found_is_a_quality_of_zero() -> None:
    objects, _ = drawn(8)
    detections, truth, overlaps = tensors(objects, [])
    assert mean_average_precision(judge(detections, truth, overlaps), truth.positives(CLASSES)) == 0
    assert mean_average_precision(Judged.of([]), truth.positives(CLASSES)) == 0
    assert mean_average_precision(Judged.of([]), torch.zeros(CLASSES, dtype=torch.long)) == 0
