"""Outlines of objects: polygons and run lengths, against pycocotools."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from refusing import fails_as
from stackmark.workloads.fit.impl.coco import read_parts
from stackmark.workloads.fit.impl.outlines import MOST_POINTS, OutlineReader, Outlines, mask_of_polygons
from test_fit_coco import Files, change, files  # noqa: F401

Polygons = list[list[float]]


def read(segmentation: Any, width: int, height: int) -> Outlines:
    reader = OutlineReader()
    reader.add(segmentation, width, height)
    return reader.finish()


def random_polygons(draw: random.Random, width: int, height: int) -> Polygons:
    """Polygons that cross themselves and the edges of the picture, some on whole pixels."""
    found: Polygons = []
    for _ in range(draw.randint(1, 3)):
        step = draw.choice((1.0, 0.5, 0.01))
        points = [(draw.uniform(-3, width + 3), draw.uniform(-3, height + 3)) for _ in range(draw.randint(3, 12))]
        found.append(
            [
                min(max(round(side / step) * step, -edge), 2.0 * edge)
                for point in points
                for side, edge in zip(point, (width, height), strict=True)
            ]
        )
    return found


# --- polygons and run lengths -------------------------------------------------------------------------------------------


# pycocotools makes an array as an older NumPy wanted it.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_polygons_cover_the_pixels_that_they_cover_for_pycocotools() -> None:
    coco = pytest.importorskip("pycocotools.mask")
    draw = random.Random(1)
    for _ in range(150):
        width, height = draw.randint(1, 60), draw.randint(1, 60)
        polygons = random_polygons(draw, width, height)
        expected = coco.decode(coco.merge(coco.frPyObjects(polygons, height, width)))
        assert torch.equal(read(polygons, width, height).mask(0, height, width), torch.from_numpy(expected) > 0)


def test_run_lengths_are_decoded_as_pycocotools_wrote_them() -> None:
    coco = pytest.importorskip("pycocotools.mask")
    torch.manual_seed(2)
    for width, height, share in ((1, 1, 0.0), (1, 1, 1.0), (30, 20, 0.5), (7, 90, 0.02), (200, 150, 0.9)):
        pixels = torch.rand(height, width) < share
        pixels[: height // 2, : width // 3] = True
        # Column by column, as COCO counts.
        text = coco.encode(pixels.numpy().astype("uint8", order="F"))["counts"].decode()
        size = [height, width]
        assert torch.equal(read({"size": size, "counts": text}, width, height).mask(0, height, width), pixels)
        counts, last = [0], False
        for pixel in pixels.T.flatten().tolist():
            if pixel != last:
                counts.append(0)
            counts[-1] += 1
            last = pixel
        plain = read({"size": size, "counts": counts}, width, height)
        assert torch.equal(plain.mask(0, height, width), pixels)


def test_outlines_of_several_objects_do_not_mix() -> None:
    reader = OutlineReader()
    square, triangle = [2.0, 2, 8, 2, 8, 8, 2, 8], [10.0, 0, 20, 0, 20, 10]
    for segmentation in ([square], {"size": [12, 24], "counts": [0, 12, 276]}, [square, triangle]):
        reader.add(segmentation, 24, 12)
    found = reader.finish()
    masks = [found.mask(number, 12, 24) for number in range(3)]
    assert int(masks[0].sum()) == 36
    assert bool(masks[1][:, 0].all())
    assert int(masks[1].sum()) == 12
    assert torch.equal(masks[2], masks[0] | mask_of_polygons([torch.tensor(triangle).view(-1, 2)], 12, 24))


@pytest.mark.parametrize("as_runs", [False, True])
def test_what_an_object_covers_of_its_box_does_not_depend_on_how_it_is_written(as_runs: bool) -> None:
    """A triangle of 60 × 40 pixels with its right angle at the lower left."""
    points = [20.0, 10, 20, 50, 80, 50]
    outlines = read([points], 100, 70)
    if as_runs:
        flat = outlines.mask(0, 70, 100).T.flatten()
        counts = [0, *torch.unique_consecutive(flat, return_counts=True)[1].tolist()][0 if bool(flat[0]) else 1 :]
        outlines = read({"size": [70, 100], "counts": counts}, 100, 70)
    found = outlines.in_box(0, torch.tensor([20.0, 10, 80, 50], dtype=torch.float64), 64, 70, 100)
    y, x = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    assert float((found != (x < y)).float().mean()) < 0.03


@pytest.mark.parametrize("wide", [1e-12, 0.01, 3.0])
def test_a_box_much_smaller_than_its_outline_takes_no_longer(wide: float) -> None:
    """The outline is of the whole picture, so all of the box is covered."""
    outlines = read([[0.0, 0, 100, 0, 100, 70, 0, 70]], 100, 70)
    box = torch.tensor([50.0, 30, 50 + wide, 30 + wide], dtype=torch.float64)
    assert bool(outlines.in_box(0, box, 112, 70, 100).all())


BROKEN: list[tuple[Any, str]] = [
    (None, "no segmentation"),
    ([], "no segmentation"),
    ("polygon", "no segmentation"),
    ([[1, 2, 3, 4, 5]], "three points"),
    ([[1, 2, 3, 4]], "three points"),
    ([[1, 2, 3, 4, 5, 6, 7]], "three points"),
    ([7], "three points"),
    ([{"x": 1}], "three points"),
    ([[1, 2, 3, 4, 5, float("nan")]], "far outside"),
    ([[1, 2, 3, 4, 5, 1e12]], "far outside"),
    ([[0, 0, 20, 10] * (MOST_POINTS // 100)], "longer than"),
    ([[1, 2, 3, 4, 5, "x"]], "x"),
    ({"size": [10, 20]}, "counts"),
    ({"counts": [200]}, "size"),
    ({"size": [20, 10], "counts": [200]}, "[20, 10]"),
    ({"size": [10, 20], "counts": [199]}, "add up to the 200"),
    ({"size": [10, 20], "counts": [-1, 201]}, "add up to the 200"),
    ({"size": [10, 20], "counts": [10**30]}, "add up to the 200"),
    ({"size": [10, 20], "counts": 200}, "neither"),
    ({"size": [10, 20], "counts": [0] * 5000}, "more than there are pixels"),
    ({"size": [10, 20], "counts": "\x01"}, "character"),
    ({"size": [10, 20], "counts": "o" * 50}, "character"),
    ({"size": [10, 20], "counts": "Pé"}, "character"),
    ({"size": [10, 20], "counts": "o"}, "middle of a number"),
]


@pytest.mark.parametrize(("segmentation", "named"), BROKEN)
def test_a_broken_segmentation_is_named(segmentation: Any, named: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)) as raised:
        read(segmentation, 20, 10)
    assert named in str(raised.value)


# --- COCO's files -------------------------------------------------------------------------------------------------------


def segment(how: Callable[[dict[str, Any]], object]) -> Callable[[Files], None]:
    return change(lambda content: how(content["annotations"][0]))


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (segment(lambda one: one.pop("segmentation")), "segmentation"),
        (segment(lambda one: one.update(segmentation=[])), "segmentation"),
        (segment(lambda one: one.update(segmentation=[[1, 2, 3, 4, 5]])), "polygon"),
        (segment(lambda one: one.update(segmentation={"size": [1, 1], "counts": "1"})), "run lengths"),
        (change(lambda content: content["images"][0].update(width=30_000, height=30_000)), "30000 × 30000"),
    ],
)
def test_a_folder_with_broken_segmentations_is_refused(
    files: Files,  # noqa: F811
    spoil: Callable[[Files], None],
    named: str,
) -> None:
    spoil(files)
    with fails_as("bad_data", named, "instances_train2017.json"):
        read_parts(files.folder, outlined=True)
