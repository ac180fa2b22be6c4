"""Detection with SSD: the model, its loss, what it finds, what is done to pictures, and runs to a target."""

import io
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from asking import ask
from fit_rig import fit_params
from refusing import fails_as
from stackmark.events import Evaluation, Facts, Result, Stream
from stackmark.ranks import Rank
from stackmark.spec import Request, Scalar, Spec, Task
from stackmark.workloads.fit.impl import scenes, ssd_data
from stackmark.workloads.fit.impl.backbone_weights import RESNET34
from stackmark.workloads.fit.impl.boxes import areas, cornered, decode, iou
from stackmark.workloads.fit.impl.coco import WHOLE
from stackmark.workloads.fit.impl.coco_map import Judged, mean_average_precision
from stackmark.workloads.fit.impl.detection_data import Labelled, plan_of_rank
from stackmark.workloads.fit.impl.learner import Bench
from stackmark.workloads.fit.impl.ssd import (
    SIZES,
    Ssd,
    SsdLearner,
    build,
    default_boxes,
    detection_loss,
    find,
)
from stackmark.workloads.fit.impl.ssd_data import LEAST_OVERLAPS, draw_crop, flip, recolour
from test_fit_coco import write_coco
from test_fit_scenes import write_garments
from worker_process import environment, work

CPU = torch.device("cpu")
ALONE = Rank(0, 1, 0, 1)


def learner(rank: Rank = ALONE, **given: Any) -> SsdLearner:
    return build(Bench(fit_params("ssd", **given), CPU, 1, rank))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small models on a busy machine are slower with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some scenes of the generated ones: enough for a step."""
    monkeypatch.setattr(scenes, "TRAINED", 44)
    monkeypatch.setattr(scenes, "TESTED", 13)


# --- the model ----------------------------------------------------------------------------------------------------------


def convolution(channels: int, out: int, edge: int, *, bias: bool) -> int:
    return channels * out * edge**2 + (out if bias else 0)


def test_full_has_the_parameters_of_the_reference() -> None:
    net = Ssd(SIZES["full"], 81)
    expected = convolution(3, 64, 7, bias=False) + 2 * 64
    for channels, out, blocks in ((64, 64, 3), (64, 128, 4), (128, 256, 6)):
        expected += convolution(channels, out, 3, bias=False) + (2 * blocks - 1) * convolution(out, out, 3, bias=False)
        expected += 2 * blocks * 2 * out
        expected += convolution(channels, out, 1, bias=False) + 2 * out if channels != out else 0
    extras = ((256, 256, 512), (512, 256, 512), (512, 128, 256), (256, 128, 256), (256, 128, 256))
    for channels, narrow, out in extras:
        expected += convolution(channels, narrow, 1, bias=True) + convolution(narrow, out, 3, bias=True)
    for channels, boxes in ((256, 4), (512, 6), (512, 6), (256, 6), (256, 4), (256, 4)):
        expected += convolution(channels, boxes * (4 + 81), 3, bias=True)
    assert sum(p.numel() for p in net.parameters()) == expected == 19_972_534


def test_full_has_the_default_boxes_of_the_reference() -> None:
    found = default_boxes(SIZES["full"])
    assert len(found) == 38**2 * 4 + (19**2 + 10**2 + 5**2) * 6 + (3**2 + 1) * 4 == 8732
    assert 0 < float(found.min()) <= float(found.max()) <= 1
    between, wide = math.sqrt(21 * 45), 21 * math.sqrt(2)
    shapes = [(21, 21), (between, between), (wide, 10.5 * math.sqrt(2)), (10.5 * math.sqrt(2), wide)]
    # The second cell of the first line.
    torch.testing.assert_close(found[4:8] * 300, torch.tensor([(12.0, 4.0, *shape) for shape in shapes]))
    # The largest ones cannot be larger than the picture.
    assert found[-3].tolist() == pytest.approx([0.5, 0.5, math.sqrt(261 * 315) / 300, math.sqrt(261 * 315) / 300])
    ratios = found[38**2 * 4 : 38**2 * 4 + 6]
    assert (ratios[:, 2] / ratios[:, 3]).tolist() == pytest.approx([1, 1, 2, 1 / 2, 3, 1 / 3])


@pytest.mark.slow
def test_full_trains_a_batch_of_its_shape() -> None:
    torch.manual_seed(1)
    size = SIZES["full"]
    net = Ssd(size, 81)
    codes, logits = net(torch.rand(2, 3, 300, 300))
    assert (codes.shape, logits.shape) == ((2, 8732, 4), (2, 8732, 81))
    labels = torch.zeros(2, 8732, dtype=torch.long)
    # Some of each map.
    labels[:, ::97] = 7
    labels[:, -40:] = 80
    loss = detection_loss(codes, logits, torch.zeros_like(codes), labels)
    loss.backward()
    assert math.isfinite(loss.item())
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert bool(parameter.grad.any()), name


def test_what_a_map_says_is_in_the_order_of_the_default_boxes() -> None:
    """Pixels change in the upper right corner: what is said of a default box there changes most."""
    size = SIZES["tiny"]
    torch.manual_seed(2)
    net = Ssd(size, 4).eval()
    picture = torch.rand(1, 3, 96, 96)
    changed = picture.clone()
    changed[:, :, 2:6, 82:94] += 1
    with torch.inference_mode():
        moved = (net(picture)[0] - net(changed)[0]).abs().sum(2)[0]
    defaults = default_boxes(size)
    first = moved[: 12 * 12 * 4]
    strongest = defaults[int(first.argmax())]
    assert float(strongest[0]) > 0.6
    assert float(strongest[1]) < 0.4


def test_weights_of_torchvisions_file_start_the_backbone(tmp_path: Path) -> None:
    torch.manual_seed(3)
    full, other = Ssd(SIZES["full"], 3), Ssd(SIZES["full"], 3)
    weights = dict(other.backbone.state_dict())
    # As in the file, whose last stage and classes SSD has not.
    more = {"fc.weight": torch.zeros(1000, 512), "layer4.0.conv1.weight": torch.zeros(512, 256, 3, 3)}
    counts = {"bn1.num_batches_tracked": torch.tensor(7)}
    assert {"conv1.weight", "layer1.2.bn2.running_var", "layer2.0.downsample.1.bias", "layer3.5.conv2.weight"} <= set(
        weights
    )
    torch.save({**weights, **more, **counts}, tmp_path / "resnet34.pth")
    RESNET34.load(full.backbone, tmp_path / "resnet34.pth")
    assert all(torch.equal(part, weights[name]) for name, part in full.backbone.state_dict().items())
    torch.save(more, tmp_path / "resnet34.pth")
    with fails_as("bad_data", str(tmp_path / "resnet34.pth"), "torchvision"):
        RESNET34.load(full.backbone, tmp_path / "resnet34.pth")


# --- targets and loss ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
def test_targets_lead_back_to_the_boxes() -> None:
    one = learner()
    (batch,) = one.data.train([torch.arange(20)], 0)
    wanted, labels = one.targets(batch)
    assert bool(wanted.isfinite().all())
    found = decode(wanted, one.defaults)
    for number in range(20):
        positive = labels[number] > 0
        real = batch.labels[number] > 0
        overlap = iou(found[number][positive][:, None], batch.boxes[number][real])
        assert overlap.amax(1).tolist() == pytest.approx([1.0] * int(positive.sum()), abs=1e-4)
        assert torch.equal(batch.labels[number][real][overlap.argmax(1)], labels[number][positive])
        # Each object has a default box that has to find it.
        assert bool((overlap > 0.999).any(0).all())
        # What overlaps an object by more than a half has to find one.
        near = iou(cornered(one.defaults)[:, None], batch.boxes[number][real]).amax(1) > 0.5
        assert bool(positive[near].all())


def plain_loss(codes: Tensor, logits: Tensor, wanted: Tensor, labels: Tensor) -> float:
    total = 0.0
    for number in range(len(codes)):
        moved, right, wrong = 0.0, 0.0, []
        for place, label in enumerate(labels[number].tolist()):
            cost = -float(logits[number, place].log_softmax(0)[label])
            if label:
                right += cost
                apart = (codes[number, place] - wanted[number, place]).abs().tolist()
                moved += sum(one - 0.5 if one > 1 else one**2 / 2 for one in apart)
            else:
                wrong.append(cost)
        count = int((labels[number] > 0).sum())
        if count:
            total += (moved + right + sum(sorted(wrong, reverse=True)[: 3 * count])) / count
    return total / len(codes)


def test_the_loss_is_that_of_a_plain_sum() -> None:
    torch.manual_seed(4)
    codes, wanted = torch.randn(4, 50, 4), torch.randn(4, 50, 4)
    logits = torch.randn(4, 50, 5) * 2
    # No object, one, some, and more than leave three others for each.
    chance = torch.tensor([0.0, 0.02, 0.2, 0.6])[:, None]
    labels = torch.where(torch.rand(4, 50) < chance, torch.randint(1, 5, (4, 50)), 0)
    assert (labels > 0).sum(1).tolist()[0] == 0
    found = detection_loss(codes, logits, wanted, labels)
    assert found.item() == pytest.approx(plain_loss(codes, logits, wanted, labels), rel=1e-5)


# --- what is found ------------------------------------------------------------------------------------------------------


def plain_find(boxes: Tensor, scores: Tensor) -> list[tuple[float, int, int]]:
    """Of one picture: score, class and default box of what remains."""
    found, overlaps = [], iou(boxes[:, None], boxes).tolist()
    for label in range(1, scores.shape[1]):
        kept: list[int] = []
        for place in sorted(range(len(boxes)), key=lambda place: -float(scores[place, label]))[:200]:
            near = any(overlaps[place][better] > 0.5 for better in kept)
            if float(scores[place, label]) > 0.05 and not near:
                kept.append(place)
        found += [(float(scores[place, label]), label, place) for place in kept]
    return sorted(found, reverse=True)[:200]


def test_what_is_found_is_what_a_plain_search_finds() -> None:
    torch.manual_seed(5)
    size = SIZES["tiny"]
    defaults = default_boxes(size)[660:]
    codes, logits = torch.randn(2, len(defaults), 4), torch.randn(2, len(defaults), 4) * 2
    found = find(codes, logits, defaults)
    for number in range(2):
        boxes = decode(codes[number], defaults).clamp(0, 1)
        expected = plain_find(boxes, logits[number].softmax(1))
        real = found.scores[number] > 0
        assert int(real.sum()) == len(expected)
        assert found.scores[number][real].tolist() == pytest.approx([score for score, _, _ in expected])
        assert found.labels[number][real].tolist() == [label for _, label, _ in expected]
        torch.testing.assert_close(found.boxes[number][real], boxes[[place for _, _, place in expected]])


def test_a_network_that_is_sure_of_nothing_finds_nothing() -> None:
    defaults = default_boxes(SIZES["tiny"])
    logits = torch.zeros(2, len(defaults), 30)
    found = find(torch.zeros(2, len(defaults), 4), logits, defaults)
    assert not bool(found.scores.any())


@pytest.mark.usefixtures("few")
def test_a_network_that_knows_everything_has_a_quality_of_one() -> None:
    one = learner()
    said = []
    for boxes, labels in _test_objects(one):
        batch = Labelled(torch.zeros(1), boxes[None], labels[None])
        wanted, named = one.targets(batch)
        said.append((wanted, F.one_hot(named, one.data.classes) * 20.0))
    found = [find(codes, logits, one.defaults) for codes, logits in said]
    entries = one._judged(list(torch.arange(13).split(1)), found)
    positives = one.data.truth.positives(3)
    assert mean_average_precision(Judged.of(entries), positives) == pytest.approx(1.0)


def _test_objects(one: SsdLearner) -> list[tuple[Tensor, Tensor]]:
    truth = one.data.truth
    own = [truth.image == number for number in range(one.data.test_samples)]
    return [((one.data.true_boxes[rows] / 96).float(), truth.label[rows] + 1) for rows in own]


# --- what is done to pictures -------------------------------------------------------------------------------------------


def test_a_crop_keeps_the_objects_whose_centres_it_has() -> None:
    chance = random.Random(6)
    whole = 0
    for _ in range(300):
        corner = torch.rand(5, 2) * 0.7
        boxes = torch.cat((corner, corner + 0.05 + torch.rand(5, 2) * 0.25), 1)
        crop, kept, labels = draw_crop(boxes, torch.arange(1, 6), chance)
        whole += crop == WHOLE
        left, top, right, bottom = crop
        width, height = right - left, bottom - top
        assert 0 <= left < right <= 1
        assert 0 <= top < bottom <= 1
        assert 0.5 <= width / height <= 2
        centres = (boxes[:, :2] + boxes[:, 2:]) / 2
        inside = [left < x < right and top < y < bottom for x, y in centres.tolist()]
        assert labels.tolist() == [number for number, there in enumerate(inside, 1) if there]
        back = kept * torch.tensor([width, height] * 2) + torch.tensor([left, top] * 2)
        cut = boxes[torch.tensor(inside)].clamp(torch.tensor([left, top] * 2), torch.tensor([right, bottom] * 2))
        torch.testing.assert_close(back, cut)
    assert 0 < whole < 300


def test_a_crop_overlaps_each_object_as_much_as_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssd_data, "LEAST_OVERLAPS", (0.3,))
    chance = random.Random(7)
    boxes = torch.tensor([[0.2, 0.2, 0.7, 0.8], [0.3, 0.3, 0.9, 0.9]])
    crops = [draw_crop(boxes, torch.tensor([1, 2]), chance)[0] for _ in range(50)]
    assert len({*crops}) > 25
    for crop in crops:
        assert crop == WHOLE or float(iou(boxes, torch.tensor(crop)).min()) >= 0.3
    assert None in LEAST_OVERLAPS


def test_a_crop_that_cannot_be_found_is_the_whole_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssd_data, "LEAST_OVERLAPS", (0.9,))
    boxes = torch.tensor([[0.0, 0.0, 0.1, 0.1], [0.9, 0.9, 1.0, 1.0], [0.5, 0.5, 0.5, 0.7]])
    crop, kept, labels = draw_crop(boxes, torch.tensor([1, 2, 3]), random.Random(8))
    assert (crop, labels.tolist()) == (WHOLE, [1, 2])
    assert torch.equal(kept, boxes[:2])


@pytest.mark.usefixtures("few")
def test_a_flip_turns_pictures_with_their_boxes() -> None:
    (batch,) = learner().data.train([torch.arange(44)], 0)
    torch.manual_seed(9)
    flipped = flip(batch)
    turned = [not torch.equal(one, other) for one, other in zip(batch.pictures, flipped.pictures, strict=True)]
    assert 10 < sum(turned) < 34
    for number, there in enumerate(turned):
        if there:
            assert torch.equal(flipped.pictures[number], batch.pictures[number].flip(2))
            left, right = batch.boxes[number, :, 0], batch.boxes[number, :, 2]
            torch.testing.assert_close(flipped.boxes[number, :, 0], 1 - right)
            torch.testing.assert_close(flipped.boxes[number, :, 2], 1 - left)
        else:
            assert torch.equal(flipped.boxes[number], batch.boxes[number])
    torch.testing.assert_close(areas(flipped.boxes), areas(batch.boxes))


def spread(monkeypatch: pytest.MonkeyPatch, **given: float) -> None:
    for name in ("BRIGHTNESS", "CONTRAST", "SATURATION", "HUE"):
        monkeypatch.setattr(ssd_data, name, given.get(name, 0.0))


def test_colours_change_only_as_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(10)
    pictures = torch.rand(6, 3, 8, 8) * 0.5 + 0.25
    grey = pictures.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    spread(monkeypatch)
    torch.testing.assert_close(recolour(pictures), pictures, atol=1e-5, rtol=0)
    spread(monkeypatch, SATURATION=0.5, HUE=0.5)
    # Neither changes what has no colour, nor how bright a colour is.
    torch.testing.assert_close(recolour(grey), grey, atol=1e-3, rtol=0)
    assert float((recolour(pictures) - pictures).abs().max()) > 0.05
    spread(monkeypatch, BRIGHTNESS=0.1)
    shares = recolour(pictures) / pictures
    torch.testing.assert_close(shares, shares[:, :1, :1, :1].expand_as(shares), atol=1e-4, rtol=0)
    spread(monkeypatch, CONTRAST=0.5)
    weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    before, after = ((one * weights).sum(1).mean((1, 2)) for one in (pictures, recolour(pictures)))
    torch.testing.assert_close(before, after, atol=1e-3, rtol=0)


# --- ranks and checkpoints ----------------------------------------------------------------------------------------------


def test_ranks_share_each_batch() -> None:
    order = torch.randperm(50)
    plans = [plan_of_rank(order, 4, number, 3) for number in range(3)]
    assert [[len(part) for part in plan] for plan in plans] == [[4, 4, 4, 4]] * 3
    whole = [torch.cat(parts).tolist() for parts in zip(*plans, strict=True)]
    assert whole == [order[start : start + 12].tolist() for start in (0, 12, 24, 36)]
    assert [len(part) for part in plan_of_rank(order, 4, 0, 1)] == [4] * 12 + [2]


@pytest.mark.usefixtures("few")
def test_the_quality_does_not_depend_on_how_pictures_are_shared() -> None:
    alone = learner()
    for number in range(2):
        alone.train_epoch(number)
    entries: list[Any] = []
    for number in range(3):
        one = learner(Rank(number, 3, number, 3))
        one.load(alone.state())
        mine = torch.arange(number, 13, 3)
        one.net.eval()
        with torch.inference_mode():
            pictures = next(one.data.test([mine])).float() / 255
            codes, logits = one.net(pictures)
            found = find(codes, logits, one.defaults)
        entries += one._judged([mine], [found])
    whole = alone.evaluate()["mAP"]
    positives = alone.data.truth.positives(3)
    assert mean_average_precision(Judged.of(json.loads(json.dumps(entries))), positives) == pytest.approx(
        whole, abs=1e-6
    )


@pytest.mark.usefixtures("few")
def test_a_run_that_went_on_from_its_state_is_as_one_without_a_pause() -> None:
    first = learner()
    torch.manual_seed(11)
    first.train_epoch(0)
    file = io.BytesIO()
    torch.save(first.state(), file)
    file.seek(0)
    second = learner()
    second.load(torch.load(file, weights_only=True))
    for one in (first, second):
        torch.manual_seed(12)
        assert one.train_epoch(1) == 44
    for name, part in first.net.state_dict().items():
        assert torch.equal(part, second.net.state_dict()[name]), name


@pytest.mark.usefixtures("few")
def test_ranks_have_the_mean_of_their_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank's are simulated: its numbers are all five."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda whole, group: whole.add_(5))
    group: Any = SimpleNamespace(control=None)
    bench = Bench(fit_params("ssd"), CPU, 1, Rank(0, 2, 0, 2), group)
    norms = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm1d(2)
    linear = torch.nn.Linear(2, 2)
    weights = linear.weight.detach().clone()
    bench.average_statistics(torch.nn.Sequential(norms[0], linear, norms[1]))
    for norm in norms:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert set(norm.running_mean.tolist()) == {2.5}
        assert set(norm.running_var.tolist()) == {3.0}
    assert torch.equal(linear.weight, weights)


@pytest.mark.usefixtures("few")
def test_the_learning_rate_rises_and_falls_as_the_reference_says() -> None:
    full = SsdLearner.__new__(SsdLearner)
    full.bench = Bench(
        fit_params("ssd", preset="full", batch=32, learning_rate=2.5e-3, data_sha256="0" * 64), CPU, 1, ALONE
    )
    full.size = SIZES["full"]
    rates = [full._learning_rate(update) for update in (0, 149, 299, 159_999, 160_000, 199_999, 200_000)]
    assert rates == pytest.approx([2.5e-3 / 300, 1.25e-3, 2.5e-3, 2.5e-3, 2.5e-4, 2.5e-4, 2.5e-5])


def test_garments_train_by_the_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "GARMENTS_TRAINED", 20)
    monkeypatch.setattr(scenes, "GARMENTS_TESTED", 6)
    one = learner(source="real", data=str(write_garments(tmp_path)))
    assert (one.data.classes, one.train_epoch(0)) == (11, 20)
    assert 0 <= one.evaluate()["mAP"] <= 1
    # The rate falls after 12,000 pictures.
    assert one._learning_rate(749) == pytest.approx(10 * one._learning_rate(750))


# --- runs ---------------------------------------------------------------------------------------------------------------


def told(task: Task) -> tuple[Stream, list[Evaluation]]:
    finished = work(task, environment())
    stream = Stream()
    for line in finished.lines:
        assert stream.feed(line) is not None, line
    assert isinstance(stream.ended(), Result), finished.stderr
    return stream, [event for event in stream.events if isinstance(event, Evaluation) and event.rank == 0]


@pytest.mark.slow
def test_tiny_reaches_its_target_by_the_worker() -> None:
    """From a request, so through the probe too."""
    stream, evaluations = told(Task(do="run", request=Request(workload="fit/ssd", params={"device": "cpu"})))
    assert evaluations[-1].quality["mAP"] >= 0.75 > evaluations[-2].quality["mAP"]
    assert evaluations[-1].epoch <= 10
    assert evaluations[0].samples == 600
    facts = [event.facts for event in stream.events if isinstance(event, Facts) and event.subject == "fit"]
    assert facts[0]["model_parameters"] == 175_856


@pytest.mark.slow
def test_two_ranks_reach_the_quality_of_one() -> None:
    """Their batches together are as large as one rank's. A part of the way shows it."""
    params: dict[str, Scalar] = fit_params("ssd", batch=8, target="0.5").model_dump(mode="json")
    _, evaluations = told(Task(do="run", spec=Spec(workload="fit/ssd", params=params, ranks=2)))
    assert evaluations[-1].quality["mAP"] >= 0.5
    assert evaluations[0].samples == 600
    assert evaluations[-1].epoch <= 5


@pytest.mark.slow
def test_the_log_of_a_full_model_on_cocos_files_passes_the_checker_of_mlcommons(tmp_path: Path) -> None:
    """Its target is zero, so one epoch reaches it."""
    pytest.importorskip("mlperf_logging")
    data, ledger = write_coco(tmp_path / "coco"), str(tmp_path / "ledger.sqlite3")
    done = ask(
        "run", "fit/ssd", "--preset", "full", "--data", str(data), "--target", "0", "--evaluate-every", "1", "--batch", "2",
        "--device", "cpu", "--precision", "fp32", "--runs", "1", "--ledger", ledger,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert ask("mlperf", "log", "last", "-o", str(tmp_path / "logs"), "--style", "v0.6", "--ledger", ledger).code == 0
    log = tmp_path / "logs" / "result_0.txt"
    checked = json.loads(ask("mlperf", "check", str(log), "--ruleset", "0.6.0", "--json").out)
    assert checked["files"] == [{"file": str(log), "passed": True, "findings": []}]
