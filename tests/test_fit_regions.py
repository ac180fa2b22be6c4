"""Regions of pictures: features of boxes (RoIAlign), anchors, matches, draws and proposals, against loops over single boxes."""

import math
import random

import pytest
import torch
from torch import Tensor

from stackmark.workloads.fit.impl import proposals
from stackmark.workloads.fit.impl.boxes import best_of_classes, centred, cornered, decode, iou
from stackmark.workloads.fit.impl.proposals import (
    BACKGROUND,
    BETWEEN,
    anchors_of,
    clipped,
    draw_regions,
    match_regions,
    propose,
)
from stackmark.workloads.fit.impl.regions import align, fitted, levels_of, resampled


def random_boxes(count: int, width: float, height: float) -> Tensor:
    corner = torch.rand(count, 2) * 0.7
    share = torch.cat((corner, corner + 0.02 + torch.rand(count, 2) * (0.98 - corner)), 1)
    return share * torch.tensor([width, height, width, height])


# --- features of boxes --------------------------------------------------------------------------------------------------


def at(plane: Tensor, y: float, x: float) -> Tensor:
    """The value of a map between the centres of its cells, one point alone."""
    height, width = plane.shape[-2:]
    if y < -1 or y > height or x < -1 or x > width:
        return plane[..., 0, 0] * 0
    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    down, across = y - top, x - left
    upper = plane[..., top, left] * (1 - across) + plane[..., top, right] * across
    lower = plane[..., bottom, left] * (1 - across) + plane[..., bottom, right] * across
    return upper * (1 - down) + lower * down


def plain_align(plane: Tensor, box: list[float], stride: int, size: int) -> Tensor:
    left, top, right, bottom = (side / stride - 0.5 for side in box)
    rows = []
    for row in range(size):
        for column in range(size):
            points = [
                at(plane, top + (bottom - top) * (row + dy) / size, left + (right - left) * (column + dx) / size)
                for dy in (0.25, 0.75)
                for dx in (0.25, 0.75)
            ]
            rows.append(torch.stack(points).mean(0))
    return torch.stack(rows, -1).view(-1, size, size)


def two_levels(dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(1)
    maps = [torch.randn(2, 3, height, width, dtype=dtype).requires_grad_() for height, width in ((8, 12), (4, 6))]
    boxes = torch.stack((random_boxes(6, 48, 32), random_boxes(6, 48, 32)))
    # As large as the picture, on its edge, without an area, and beyond its edge.
    boxes[0, 0], boxes[0, 1] = torch.tensor([0.0, 0, 48, 32]), torch.tensor([44.0, 28, 48, 32])
    boxes[0, 2], boxes[0, 3] = torch.tensor([5.0, 5, 5, 5]), torch.tensor([30.0, 20, 64, 44])
    return maps, boxes


def test_features_of_boxes_are_those_of_single_points() -> None:
    maps, boxes = two_levels()
    level = torch.tensor([[0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0]])
    found = align(maps, (4, 8), boxes, level, 3)
    expected = torch.stack(
        [
            plain_align(maps[which][picture], box, 4 << which, 3)
            for picture in range(2)
            for box, which in zip(boxes[picture].tolist(), level[picture].tolist(), strict=True)
        ]
    )
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    gradients = torch.autograd.grad((found * weights).sum(), maps)
    plain = torch.autograd.grad((expected * weights).sum(), maps)
    for one, other in zip(gradients, plain, strict=True):
        torch.testing.assert_close(one, other)


def test_features_of_boxes_are_those_of_torchvision() -> None:
    ops = pytest.importorskip("torchvision.ops")
    maps, boxes = two_levels()
    found = align(maps[:1], (4,), boxes, torch.zeros(2, 6, dtype=torch.long), 7)
    expected = ops.roi_align(maps[0], list(boxes), 7, 1 / 4, 2, aligned=True)
    torch.testing.assert_close(found, expected)


def test_features_in_bfloat16_are_summed_in_float32() -> None:
    maps, boxes = two_levels()
    coarse = [one.detach().bfloat16() for one in maps]
    level = torch.zeros(2, 6, dtype=torch.long)
    expected = align([one.float() for one in coarse], (4, 8), boxes, level, 3)
    assert torch.equal(align(coarse, (4, 8), boxes, level, 3), expected)


def test_boxes_take_their_features_from_the_map_for_their_size() -> None:
    """The formula of the paper: floor(4 + log2(√area / 224)), from 2 to 5."""
    edges = torch.tensor([1.0, 50, 111, 113, 223, 225, 447, 449, 2000])
    boxes = torch.stack((0 * edges, 0 * edges, edges, edges), 1)
    expected = [min(5, max(2, math.floor(4 + math.log2(edge / 224)))) - 2 for edge in edges.tolist()]
    assert levels_of(boxes, 56, 4).tolist() == expected == [0, 0, 0, 1, 1, 2, 2, 3, 3]


# --- masks in boxes -----------------------------------------------------------------------------------------------------


def test_a_mask_is_pasted_as_a_loop_over_pixels_does() -> None:
    torch.manual_seed(2)
    masks, boxes = torch.rand(4, 5, 5), random_boxes(4, 20, 14)
    boxes[0] = torch.tensor([-3.0, -2, 8, 9])
    found = resampled(masks, boxes, torch.tensor([0.0, 0, 20, 14]).expand(4, 4), 14, 20)
    padded = torch.nn.functional.pad(masks, (1, 1, 1, 1))
    for number, (left, top, right, bottom) in enumerate(boxes.tolist()):
        for y in range(14):
            for x in range(20):
                down = (y + 0.5 - top) / (bottom - top) * 5 - 0.5
                across = (x + 0.5 - left) / (right - left) * 5 - 0.5
                inside = -1 < down < 5 and -1 < across < 5
                expected = at(padded[number], down + 1, across + 1) if inside else 0.0
                assert float(found[number, y, x]) == pytest.approx(float(expected), abs=1e-5)


def test_what_is_cut_out_and_pasted_again_is_the_same() -> None:
    """A disc, seen in the window of its own box, and brought back into the picture."""
    y, x = torch.meshgrid(torch.arange(60), torch.arange(80), indexing="ij")
    disc = ((x - 40) ** 2 + (y - 25) ** 2 <= 18**2).float()[None]
    picture, box = torch.tensor([[0.0, 0, 80, 60]]), torch.tensor([[21.0, 6, 59, 44]])
    part = (resampled(disc, picture, box, 48, 48) >= 0.5).float()
    back = resampled(part, box, picture, 60, 80) >= 0.5
    differs = int((back != (disc > 0)).sum())
    assert differs < 0.05 * float(disc.sum())
    assert not bool(back[0, :4].any())


def test_pictures_are_as_large_as_both_limits_allow() -> None:
    assert fitted(640, 480, 800, 1333) == (1067, 800)
    assert fitted(480, 640, 800, 1333) == (800, 1067)
    assert fitted(640, 320, 800, 1333) == (1333, 667)
    assert fitted(1, 10_000, 800, 1333) == (1, 1333)


# --- anchors and matches ------------------------------------------------------------------------------------------------


def test_anchors_are_in_the_middle_of_their_cells_and_have_one_area() -> None:
    found = anchors_of(3, 5, 16, 128, (0.5, 1.0, 2.0), torch.device("cpu"))
    assert found.shape == (3 * 5 * 3, 4)
    # The second cell of the first line.
    assert found[3:6, :2].tolist() == [[24.0, 8.0]] * 3
    torch.testing.assert_close(found[:, 2:].prod(1), torch.full((45,), 128.0**2))
    torch.testing.assert_close((found[:, 3] / found[:, 2]).view(15, 3), torch.tensor([0.5, 1.0, 2.0]).expand(15, 3))


def plain_match(regions: Tensor, boxes: Tensor, low: float, high: float, favourites: bool) -> list[int]:
    overlaps = [[float(iou(box, region)) for box in boxes] for region in regions]
    tops = [max(row[number] for row in overlaps) for number in range(len(boxes))]
    found = []
    for row in overlaps:
        best = max(row, default=0.0)
        number = row.index(best) if row else BACKGROUND
        favourite = favourites and any(one == top > 0 for one, top in zip(row, tops, strict=True))
        found.append(number if row and (best >= high or favourite) else BACKGROUND if best < low else BETWEEN)
    return found


@pytest.mark.parametrize("favourites", [False, True])
def test_matches_are_those_of_single_regions(favourites: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    regions = random_boxes(80, 30, 30).round()
    boxes = torch.stack([random_boxes(6, 30, 30).round() for _ in range(4)])
    real = torch.arange(6) < torch.tensor([0, 1, 3, 6])[:, None]
    boxes = boxes * real[:, :, None]
    found = match_regions(regions, boxes, real, 0.3, 0.5, favourites=favourites)
    expected = [plain_match(regions, boxes[number][real[number]], 0.3, 0.5, favourites) for number in range(4)]
    assert found.tolist() == expected
    assert {BACKGROUND, BETWEEN, 0} <= {number for row in expected for number in row}
    each = match_regions(regions.expand(4, -1, -1), boxes, real, 0.3, 0.5, favourites=favourites)
    assert torch.equal(each, found)
    monkeypatch.setattr(proposals, "COMPARED_TOGETHER", 6 * 80)
    assert torch.equal(match_regions(regions, boxes, real, 0.3, 0.5, favourites=favourites), found)


def test_draws_have_as_many_of_each_kind_as_there_may_be() -> None:
    torch.manual_seed(4)
    kinds = torch.full((4, 100), 2)
    # Many with an object, few, none; and few of both.
    kinds[0, :60], kinds[1, 10:13], kinds[2, :] = 1, 1, 2
    kinds[3, :] = 0
    kinds[3, 5], kinds[3, 50:54] = 1, 2
    drawn = draw_regions(kinds == 1, kinds == 2, 20, 8)
    assert drawn.positive.sum(1).tolist() == [8, 3, 0, 1]
    assert drawn.real.sum(1).tolist() == [20, 20, 20, 5]
    for row, number, real, positive in zip(kinds, drawn.number, drawn.real, drawn.positive, strict=True):
        assert len(set(number[real].tolist())) == int(real.sum())
        assert torch.equal(row[number][real] == 1, positive[real])
        # Those with an object come first.
        assert positive.tolist() == sorted(positive.tolist(), reverse=True)
    again = draw_regions(kinds == 1, kinds == 2, 20, 8)
    assert not torch.equal(again.number[0], drawn.number[0])


# --- proposals ----------------------------------------------------------------------------------------------------------


def plain_propose(
    scores: list[Tensor], codes: list[Tensor], anchors: list[Tensor], extent: Tensor, before: int, after: int
) -> list[tuple[float, list[float]]]:
    """Of one picture: score and box of what remains."""
    found: list[tuple[float, list[float]]] = []
    for score, code, anchor in zip(scores, codes, anchors, strict=True):
        kept: list[Tensor] = []
        for place in score.argsort(descending=True)[:before].tolist():
            box = clipped(decode(code[place], anchor[place], (1.0, 1.0))[None, None], extent[None])[0, 0]
            if bool((box[2:] > box[:2]).all()) and all(float(iou(box, one)) <= 0.7 for one in kept):
                kept.append(box)
                found.append((float(score[place]), box.tolist()))
    return sorted(found, reverse=True)[:after]


def test_proposals_are_those_of_one_box_after_the_other() -> None:
    torch.manual_seed(5)
    anchors = [centred(random_boxes(count, 60, 40)) for count in (90, 30, 5)]
    scores = [torch.randn(2, len(one)) for one in anchors]
    codes = [torch.randn(2, len(one), 4) * 0.3 for one in anchors]
    extents = torch.tensor([[60, 40], [30, 20]])
    boxes, real = propose(scores, codes, anchors, extents, before=40, after=50, threshold=0.7)
    for number in range(2):
        expected = plain_propose(
            [one[number] for one in scores], [one[number] for one in codes], anchors, extents[number], 40, 50
        )
        assert int(real[number].sum()) == len(expected)
        torch.testing.assert_close(boxes[number][real[number]], torch.tensor([box for _, box in expected]))
        assert bool((boxes[number][:, 2:] <= extents[number]).all())


def test_boxes_of_each_class_are_suppressed_apart() -> None:
    """Each class may move a proposal to another place."""
    random.seed(6)
    torch.manual_seed(6)
    scores, boxes = torch.rand(2, 3, 30), torch.stack([random_boxes(90, 10, 10) for _ in range(2)]).view(2, 3, 30, 4)
    found = best_of_classes(scores, boxes, least=0.3, threshold=0.5, most=25, most_of_class=30)
    for number in range(2):
        expected = []
        for label in range(3):
            kept: list[int] = []
            for place in scores[number, label].argsort(descending=True).tolist():
                own = boxes[number, label]
                if float(scores[number, label, place]) > 0.3 and all(
                    float(iou(own[place], own[better])) <= 0.5 for better in kept
                ):
                    kept.append(place)
            expected += [
                (float(scores[number, label, place]), label + 1, boxes[number, label, place]) for place in kept
            ]
        expected = sorted(expected, key=lambda one: -one[0])[:25]
        real = found.scores[number] > 0
        assert found.labels[number][real].tolist() == [label for _, label, _ in expected]
        torch.testing.assert_close(found.boxes[number][real], torch.stack([box for _, _, box in expected]))


def test_a_side_grows_no_more_than_allowed() -> None:
    defaults = torch.tensor([5.0, 5, 2, 2])
    grown = centred(decode(torch.tensor([0.0, 0, 50, 0]), defaults, most_growth=math.log(10)))
    torch.testing.assert_close(grown, torch.tensor([5.0, 5, 20, 2]))
    torch.testing.assert_close(cornered(grown), torch.tensor([-5.0, 4, 15, 6]))
