"""The mean average precision of masks, against pycocotools."""

import contextlib
import io
import json
import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from stackmark.workloads.fit.impl.boxes import Found
from stackmark.workloads.fit.impl.coco_map import Detections, Judged, Truth, judge, mean_average_precision
from stackmark.workloads.fit.impl.maskrcnn import Outcome, mask_overlaps, outcomes, shared_pixels
from stackmark.workloads.fit.impl.maskrcnn_data import PixelBatch
from stackmark.workloads.fit.impl.maskrcnn_net import Masked
from test_fit_masks import random_polygons, read


def test_pasted_masks_share_the_pixels_that_a_plain_count_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    masks = torch.rand(5, 6, 6)
    boxes = torch.tensor([[2.0, 3, 18, 19], [0, 0, 30, 20], [25, 10, 30, 20], [-4, -4, 9, 9], [5, 5, 5, 9]])
    pixels = torch.rand(3, 20, 30) < 0.4
    shared, own = shared_pixels(masks, boxes, pixels)
    monkeypatch.setattr("stackmark.workloads.fit.impl.maskrcnn.PASTED_TOGETHER", 1)
    again = shared_pixels(masks, boxes, pixels)
    assert torch.equal(again[0], shared)
    assert torch.equal(again[1], own)
    # A mask that is one everywhere has the pixels of its box, but not the corners: outside of the box it is zero.
    inside = torch.ones(16, 16, dtype=torch.bool)
    inside[::15, ::15] = False
    whole, count = shared_pixels(torch.ones(1, 6, 6), torch.tensor([[2.0, 3, 18, 19]]), pixels)
    assert int(count) == 16 * 16 - 4
    assert whole[0].tolist() == (pixels[:, 3:19, 2:18] & inside).flatten(1).sum(1).tolist()
    assert shared_pixels(masks[:0], boxes[:0], pixels)[0].shape == (0, 3)
    assert shared_pixels(masks, boxes, pixels[:0])[0].shape == (5, 0)


IMAGES, CLASSES, WIDTH, HEIGHT = 12, 3, 40, 30


def drawn(
    seed: int,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[int, list[Tensor]], dict[int, list[Tensor]]]:
    """Objects and detections as pycocotools takes them, and their pixels by image; scores have ties, some objects are crowds."""
    coco = pytest.importorskip("pycocotools.mask")
    draw, objects, found = random.Random(seed), list[dict[str, Any]](), list[dict[str, Any]]()
    true: dict[int, list[Tensor]] = {number: [] for number in range(IMAGES)}
    seen: dict[int, list[Tensor]] = {number: [] for number in range(IMAGES)}

    def row(image: int, label: int, pixels: Tensor, **more: Any) -> dict[str, Any]:
        runs = coco.encode(pixels.numpy().astype("uint8", order="F"))
        return {"image_id": image, "category_id": label, "segmentation": runs, "area": int(pixels.sum()), **more}

    for image in range(IMAGES):
        for _ in range(draw.randint(0, 5)):
            label, polygons = draw.randint(0, CLASSES - 1), random_polygons(draw, WIDTH, HEIGHT)
            pixels = read(polygons, WIDTH, HEIGHT).mask(0, HEIGHT, WIDTH)
            true[image].append(pixels)
            more = {"id": len(objects) + 1, "iscrowd": int(draw.random() < 0.15), "bbox": [0, 0, 1, 1]}
            objects.append(row(image, label, pixels, **more))
            for _ in range(draw.randint(0, 2)):
                moved = pixels.roll((draw.randint(-2, 2), draw.randint(-2, 2)), (0, 1))
                seen[image].append(moved)
                found.append(row(image, label, moved, score=draw.randint(1, 10) / 10))
    return objects, found, true, seen


def pycocotools_says(objects: list[dict[str, Any]], found: list[dict[str, Any]]) -> float:
    coco = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):
        data = coco.COCO()
        data.dataset = {
            "info": {},
            "images": [{"id": number, "width": WIDTH, "height": HEIGHT} for number in range(IMAGES)],
            "annotations": [dict(one) for one in objects],
            "categories": [{"id": number} for number in range(CLASSES)],
        }
        data.createIndex()
        told = evaluation.COCOeval(data, data.loadRes([dict(one) for one in found]), "segm")
        told.evaluate()
        told.accumulate()
        told.summarize()
    return float(told.stats[0])


@pytest.mark.parametrize("seed", range(4))
def test_the_precision_of_masks_is_that_of_pycocotools(seed: int) -> None:
    objects, found, true, seen = drawn(seed)
    truth = Truth(
        torch.tensor([one["image_id"] for one in objects]),
        torch.tensor([one["category_id"] for one in objects]),
        torch.tensor([float(one["area"]) for one in objects], dtype=torch.float64),
        torch.tensor([bool(one["iscrowd"]) for one in objects]),
    )
    entries = []
    # Ranks judge every second picture each, as in an evaluation.
    for rank in range(2):
        own = []
        for image in range(rank, IMAGES, 2):
            rows = [one for one in found if one["image_id"] == image]
            masks = torch.stack(seen[image]) if seen[image] else torch.zeros(0, HEIGHT, WIDTH, dtype=torch.bool)
            things = torch.stack(true[image]) if true[image] else torch.zeros(0, HEIGHT, WIDTH, dtype=torch.bool)
            shared = (masks[:, None] & things).flatten(2).sum(2).double()
            labels = torch.tensor([one["category_id"] for one in rows], dtype=torch.long)
            scores = torch.tensor([one["score"] for one in rows], dtype=torch.float64)
            own.append(
                Outcome(image, torch.zeros(len(rows), 4), labels, scores, masks.flatten(1).sum(1).double(), shared)
            )
        overlaps = mask_overlaps(own, truth, truth.area)
        detections = Detections(
            torch.cat([torch.full((len(one.scores),), one.image) for one in own]),
            torch.cat([one.labels for one in own]),
            torch.cat([one.pixels for one in own]),
            torch.cat([one.scores for one in own]),
        )
        entries += json.loads(json.dumps(judge(detections, truth, overlaps).entries()))
    got = mean_average_precision(Judged.of(entries), truth.positives(CLASSES))
    assert 0.1 < got < 1
    assert got == pytest.approx(pycocotools_says(objects, found), abs=1e-12)


def test_what_was_found_is_brought_into_the_size_of_its_picture() -> None:
    """The network saw the picture twice as wide and high; the second box is none."""
    found = Found(
        torch.tensor([[[20.0, 10, 60, 50], [0, 0, 0, 0]]]), torch.tensor([[2, 1]]), torch.tensor([[0.9, 0.0]])
    )
    pixels = torch.zeros(2, HEIGHT, WIDTH, dtype=torch.bool)
    pixels[0, 5:25, 10:20] = True
    tested = PixelBatch(torch.zeros(1, 3, 64, 96), torch.tensor([[2 * WIDTH, 2 * HEIGHT]]), [pixels])
    sizes = torch.tensor([[1, 1], [WIDTH, HEIGHT]])
    (one,) = outcomes(Masked(found, torch.ones(1, 2, 28, 28)), tested, torch.tensor([1]), sizes)
    assert (one.image, one.labels.tolist(), one.boxes.tolist()) == (1, [1], [[10.0, 5, 30, 25]])
    assert (one.pixels.tolist(), one.shared.tolist()) == ([400.0], [[200.0, 0.0]])
    assert math.isclose(float(one.scores), 0.9, rel_tol=1e-6)
