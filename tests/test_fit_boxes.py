"""Boxes of detectors: overlaps, codes, matches and suppression, against loops over single boxes."""

import math
import random

import pytest
import torch
from torch import Tensor

from stackmark.workloads.fit.impl import boxes
from stackmark.workloads.fit.impl.boxes import areas, centred, cornered, decode, encode, iou, match, suppress

Box = list[float]


def random_boxes(draw: random.Random, count: int) -> list[Box]:
    """Boxes on a grid of tenths, so that some are alike and many overlaps are equal."""
    found = []
    for _ in range(count):
        left, right = sorted(draw.sample(range(11), 2))
        top, bottom = sorted(draw.sample(range(11), 2))
        found.append([left / 10, top / 10, right / 10, bottom / 10])
    return found


def plain_iou(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(0.0, width) * max(0.0, height)
    own = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return shared / (sum(own) - shared)


def doubles(rows: list[Box]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_overlaps_are_those_of_single_boxes() -> None:
    draw = random.Random(1)
    ones, others = random_boxes(draw, 20), random_boxes(draw, 30)
    expected = [[plain_iou(one, other) for other in others] for one in ones]
    torch.testing.assert_close(iou(doubles(ones)[:, None], doubles(others)), doubles(expected))


def test_empty_boxes_overlap_nothing() -> None:
    empty = torch.zeros(1, 4)
    assert float(iou(empty, empty)) == float(areas(empty)) == 0


def test_codes_are_those_of_the_formula_and_lead_back() -> None:
    draw = random.Random(2)
    wanted, defaults = doubles(random_boxes(draw, 50)), centred(doubles(random_boxes(draw, 50)))
    codes = encode(wanted, defaults)
    left, top, right, bottom = wanted[7].tolist()
    x, y, width, height = defaults[7].tolist()
    expected = [
        ((left + right) / 2 - x) / width / 0.1,
        ((top + bottom) / 2 - y) / height / 0.1,
        math.log((right - left) / width) / 0.2,
        math.log((bottom - top) / height) / 0.2,
    ]
    assert codes[7].tolist() == pytest.approx(expected)
    torch.testing.assert_close(decode(codes, defaults), wanted)
    torch.testing.assert_close(cornered(centred(wanted)), wanted)


def plain_match(defaults: list[Box], wanted: list[Box], threshold: float) -> list[int]:
    found = []
    for default in defaults:
        overlaps = [plain_iou(box, default) for box in wanted]
        best = max(range(len(wanted)), key=lambda number: overlaps[number]) if wanted else -1
        found.append(best if wanted and overlaps[best] > threshold else -1)
    for number, box in enumerate(wanted):
        favourite = max(range(len(defaults)), key=lambda place: plain_iou(box, defaults[place]))
        found[favourite] = number
    return found


def test_matches_are_those_of_single_boxes() -> None:
    draw = random.Random(3)
    defaults = [
        [draw.uniform(0, 0.5), draw.uniform(0, 0.5), draw.uniform(0.5, 1), draw.uniform(0.5, 1)] for _ in range(60)
    ]
    pictures = [random_boxes(draw, count) for count in (0, 1, 3, 7, 7)]
    # Two alike boxes have one favourite: the last one gets it.
    pictures[-1][3] = pictures[-1][5]
    rows = doubles([box for one in pictures for box in [*one, *[[0.0] * 4] * (7 - len(one))]]).view(5, 7, 4)
    real = torch.tensor([[place < len(one) for place in range(7)] for one in pictures])
    found = match(doubles(defaults), rows, real, 0.5)
    assert found.tolist() == [plain_match(defaults, one, 0.5) for one in pictures]
    assert any(number > 0 for number in found[3].tolist())


def plain_suppress(ordered: list[Box], threshold: float) -> list[bool]:
    kept: list[Box] = []
    said = []
    for box in ordered:
        remains = all(plain_iou(box, better) <= threshold for better in kept)
        said.append(remains)
        if remains:
            kept.append(box)
    return said


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.9])
def test_suppression_is_that_of_one_box_after_the_other(threshold: float) -> None:
    draw = random.Random(4)
    groups = [random_boxes(draw, 40) for _ in range(10)]
    real = torch.tensor([[place < 4 * number for place in range(40)] for number in range(10)])
    found = suppress(doubles([box for one in groups for box in one]).view(10, 40, 4), real, threshold)
    for number, one in enumerate(groups):
        count = 4 * number
        assert found[number].tolist() == plain_suppress(one[:count], threshold) + [False] * (40 - count)


def test_a_chain_of_boxes_is_suppressed_link_by_link() -> None:
    """Each overlaps the next one: whether the last remains depends on all before it."""
    chain = [[0.1 * number, 0.0, 0.1 * number + 0.3, 1.0] for number in range(30)]
    found = suppress(doubles(chain)[None], torch.ones(1, 30, dtype=torch.bool), 0.4)
    assert found[0].tolist() == [number % 2 == 0 for number in range(30)]


def test_many_groups_are_suppressed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(5)
    rows = doubles([box for _ in range(9) for box in random_boxes(draw, 12)]).view(9, 12, 4)
    real = torch.ones(9, 12, dtype=torch.bool)
    whole = suppress(rows, real, 0.4)
    monkeypatch.setattr(boxes, "COMPARED_TOGETHER", 2 * 12 * 12)
    assert torch.equal(suppress(rows, real, 0.4), whole)
