"""TFRecord shards: files that TensorFlow wrote, files written here by other code than what reads them, and damaged ones.

The shards in `data/tfrecord` were written by TensorFlow 2.21 (`tf.io.TFRecordWriter`, `tf.train.Example`, `tf.io.encode_jpeg`):
record n has an image of the colour (20·n, 255 − 20·n, 50·label) and the label 1 + n mod 4, with the features of the classic
ImageNet script.
"""

import io
import pickle
import shutil
import struct
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from refusing import fails_as
from stackmark.workloads.train.impl import tfrecord
from stackmark.workloads.train.impl.data import describe_folder, open_feed
from stackmark.workloads.train.impl.folder import Folder, open_folder
from stackmark.workloads.train.impl.pictures import UnreadableImage
from stackmark.workloads.train.impl.tfrecord import BadRecord, crc32c, masked_crc32c, read_example
from stackmark.workloads.train.zoo import MODELS
from stackmark.workloads.workload import WorkloadFailure
from train_rig import CPU, arithmetic_is_left_as_found, peeked, standing, train_params

__all__ = ["arithmetic_is_left_as_found"]

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.. may lead to deadlocks:DeprecationWarning")

RESNET = MODELS["resnet20"]
BY_TENSORFLOW = Path(__file__).parent / "data/tfrecord"
BIT = 1 << 63


# A writer of our own, which shares nothing with the reader: the checksum bit by bit, and the protocol buffer by hand


def crc_bit_by_bit(data: bytes) -> int:
    """Long division by the Castagnoli polynomial 0x1EDC6F41, as RFC 3720 describes it."""

    def reflected(value: int, bits: int) -> int:
        return int(f"{value:0{bits}b}"[::-1], 2)

    register = 0xFFFFFFFF
    for byte in data:
        register ^= reflected(byte, 8) << 24
        for _ in range(8):
            register = (register << 1) ^ (0x11EDC6F41 if register & 0x80000000 else 0)
    return reflected(register ^ 0xFFFFFFFF, 32)


def masked(data: bytes) -> bytes:
    crc = crc_bit_by_bit(data)
    rotated = ((crc >> 15) | (crc << 17)) % 2**32
    return struct.pack("<I", (rotated + 0xA282EAD8) % 2**32)


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def varint(value: int) -> bytes:
    value %= 2**64
    found = bytearray()
    while value > 127:
        found.append(value % 128 + 128)
        value //= 128
    return bytes([*found, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number * 8 + 2) + varint(len(content)) + content


def feature(name: str, value: bytes) -> bytes:
    return field(1, field(1, name.encode()) + field(2, value))


def integers(*values: int, packed: bool = True) -> bytes:
    content = field(1, b"".join(map(varint, values))) if packed else b"".join(varint(8) + varint(v) for v in values)
    return field(3, content)


def picture(colour: Any = (10, 20, 30), size: tuple[int, int] = (20, 20), form: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, form)
    return stream.getvalue()


def example(image: bytes | None = None, label: int | None = 1, packed: bool = True) -> bytes:
    parts = feature("image/height", integers(20)) + feature("image/format", field(1, field(1, b"PNG")))
    if label is not None:
        parts += feature("image/class/label", integers(label, packed=packed))
    parts += feature("image/object/bbox/xmin", field(2, field(1, struct.pack("<2f", 0.1, 0.2))))
    return field(1, parts + feature("image/encoded", field(1, field(1, picture() if image is None else image))))


def shard(path: Path, records: Sequence[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(framed, records)))
    return path


def opened(path: Path, training: bool = True, outputs: int = 0) -> Folder:
    return open_folder(path, RESNET, training, outputs)


def batches(path: Path, count: int, **given: Any) -> list[tuple[Tensor, Tensor]]:
    params = train_params("resnet20", data=str(path), **{"classes": 11, **given})
    with closing(open_feed(params, RESNET, CPU)) as feed:
        found = []
        for _ in range(count):
            feed.fill()
            found.append((feed.target.inputs[0].clone(), feed.target.targets[0].clone()))
        return found


# Checksums


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),  # the check value of CRC-32C
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_the_checksum_is_castagnoli_s(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc_bit_by_bit(data) == crc


def test_the_mask_is_as_in_files_that_tensorflow_wrote() -> None:
    for file in BY_TENSORFLOW.iterdir():
        whole, at = file.read_bytes(), 0
        while at < len(whole):
            length, crc = struct.unpack_from("<QI", whole, at)
            data = whole[at + 12 : at + 12 + length]
            assert masked_crc32c(whole[at : at + 8]) == crc
            assert struct.pack("<I", masked_crc32c(data)) == whole[at + 12 + length : at + 16 + length] == masked(data)
            at += length + 16


# What TensorFlow wrote


@pytest.mark.parametrize(("training", "first", "count"), [(True, 0, 6), (False, 6, 2)])
def test_images_and_labels_are_those_that_tensorflow_wrote(training: bool, first: int, count: int) -> None:
    folder = opened(BY_TENSORFLOW, training)
    assert (len(folder), folder.classes) == (count, 5)
    for index in range(count):
        number = first + index
        image, label = folder.read(index, None)
        assert label == 1 + number % 4
        colour = torch.tensor([number * 20, 255 - number * 20, label * 50], dtype=torch.float32)
        # JPEG of quality 95: a few steps of 256.
        assert (image.float().mean((1, 2)) - colour).abs().max() < 4


def test_a_folder_per_split_is_read_as_well(tmp_path: Path) -> None:
    for file in BY_TENSORFLOW.iterdir():
        (tmp_path / file.name.partition("-")[0]).mkdir(exist_ok=True)
        shutil.copy(file, tmp_path / file.name.partition("-")[0])
    assert [len(opened(tmp_path, training)) for training in (True, False)] == [6, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_records_of_all_shards_are_shuffled_by_seed_and_come_once_an_epoch(workers: int) -> None:
    runs = {
        seed: [labels.tolist() for _, labels in batches(BY_TENSORFLOW, 4, batch=6, data_workers=workers, seed=seed)]
        for seed in (1, 2)
    }
    again = [labels.tolist() for _, labels in batches(BY_TENSORFLOW, 4, batch=6, data_workers=workers, seed=1)]
    assert runs[1] == again
    assert runs[1] != runs[2]
    for epoch in (*runs[1], *runs[2]):
        assert Counter(epoch) == {1: 2, 2: 2, 3: 1, 4: 1}


def test_a_network_trains_on_them() -> None:
    with standing("resnet20", data=str(BY_TENSORFLOW), classes=5, batch=6, data_workers=1) as ready:
        assert all(0 < one["loss"] < 100 for one in peeked(ready, 2))


def test_the_reader_can_be_handed_to_a_process_that_does_not_fork() -> None:
    copy = pickle.loads(pickle.dumps(opened(BY_TENSORFLOW)))
    assert torch.equal(copy.read(4, None)[0], opened(BY_TENSORFLOW).read(4, None)[0])


# Names


@pytest.mark.parametrize(
    "name",
    [
        "train-00000-of-01024", "imagenet-train-00000-of-01024", "train-00000-of-00001.tfrecord", "flowers.tfrecords", "data",
        "a.rec",
    ],
)  # fmt: skip
def test_a_file_is_found_by_its_name_or_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    shard(tmp_path / name, [example(label=label) for label in (0, 3)])
    (tmp_path / "labels.txt").write_text("n01440764\n")
    folder = opened(tmp_path)
    assert [folder.read(index, None)[1] for index in range(len(folder))] == [0, 3]
    assert folder.classes == 4


def test_a_split_without_shards_is_a_sentence(tmp_path: Path) -> None:
    shard(tmp_path / "train-00000-of-00001", [example()])
    with fails_as("bad_data", "train-00000-of-00001", "validation-00000-of-00128"):
        opened(tmp_path, training=False)


def test_two_sets_of_shards_are_a_sentence(tmp_path: Path) -> None:
    for count in (2, 3):
        shard(tmp_path / f"train-00000-of-{count:05}", [example()])
    with fails_as("bad_data", "of-00002", "of-00003"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "other", ["train/cat/a.jpg", "cat/a.png", "data_batch_1.bin", "cifar-10-batches-py/data_batch_1"]
)
def test_a_folder_with_shards_and_something_else_is_a_sentence(tmp_path: Path, other: str) -> None:
    shard(tmp_path / "train-00000-of-00001", [example()])
    (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / other).write_bytes(b"")
    with fails_as("bad_data", "train-00000-of-00001", "CIFAR-10" if "batch" in other else other):
        opened(tmp_path)


def test_a_part_of_a_set_and_an_empty_shard_are_read_and_a_set_without_records_is_not(tmp_path: Path) -> None:
    shard(tmp_path / "train-00003-of-01024", [])
    with fails_as("bad_data", str(tmp_path)):
        opened(tmp_path)
    shard(tmp_path / "train-00007-of-01024", [example(), example()])
    assert len(opened(tmp_path)) == 2


# Labels


def test_labels_of_validation_do_not_make_the_model_smaller_than_training_does(tmp_path: Path) -> None:
    shard(tmp_path / "train-00000-of-00001", [example(label=9)])
    shard(tmp_path / "validation-00000-of-00001", [example(label=2)])
    assert opened(tmp_path, training=False).classes == 10


def test_a_large_set_has_as_many_classes_as_the_model_and_a_label_beyond_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfrecord, "LABELS_BYTES", 100)
    monkeypatch.setattr(tfrecord, "LABELS_READ", 1)
    file = shard(tmp_path / "train-00000-of-00001", [example(label=1), example(label=40)])
    folder = opened(tmp_path)
    assert folder.classes == RESNET.classes == 11
    with pytest.raises(UnreadableImage) as caught:
        folder.read(1, None)
    assert all(named in str(caught.value) for named in (str(file), str(len(framed(example()))), "40", "--classes"))
    assert opened(tmp_path, outputs=41).read(1, None)[1] == 40
    for workers in (0, 1):
        with fails_as("bad_data", "40", str(file)):
            batches(tmp_path, 4, batch=1, data_workers=workers)


@pytest.mark.parametrize("label", [-1, 1_000_000, BIT, 2**64 - 1])
def test_a_label_that_no_model_has_is_a_sentence(tmp_path: Path, label: int) -> None:
    file = shard(tmp_path / "train-00000-of-00001", [example(), example(label=label)])
    with fails_as("bad_data", str(file), f"offset {len(framed(example()))}"):
        opened(tmp_path)


def test_the_probe_is_told_classes_and_samples() -> None:
    assert describe_folder(str(BY_TENSORFLOW), RESNET, training=True) == (5, 6)


# Damage


def damaged(whole: bytes, at: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


RECORD = len(framed(example()))


@pytest.mark.parametrize(
    ("content", "offset"),
    [
        (b"not a record at all", 0),
        (framed(example())[:7], 0),
        (framed(example())[:-1], 0),
        (framed(example()) + framed(example())[:40], RECORD),
        (framed(example()) + b"\0" * 16, RECORD),
        (framed(example()) + damaged(framed(example()), 0), RECORD),  # the length
        (framed(example()) + damaged(framed(example()), 8), RECORD),  # its checksum
        (damaged(framed(example()), 60), 0),  # the data
        (framed(example()) + struct.pack("<Q", 2**40) + masked(struct.pack("<Q", 2**40)), RECORD),
        (framed(example()) + struct.pack("<Q", 2**64 - 1) + masked(struct.pack("<Q", 2**64 - 1)), RECORD),
        (framed(example()) + framed(b""), RECORD),
        (framed(example()) + framed(example(label=None)), RECORD),
        (framed(example()) + framed(field(1, feature("image/class/label", integers(1)))), RECORD),
        (framed(example()) + framed(field(1, feature("image/class/label", field(2, b"")))), RECORD),
        (framed(example()) + framed(b"\xff" * 30), RECORD),
        (framed(example()) + framed(varint(10) + varint(2**40)), RECORD),
    ],
)
def test_a_damaged_file_is_named_with_the_record_s_offset(tmp_path: Path, content: bytes, offset: int) -> None:
    (tmp_path / "train-00000-of-00001").write_bytes(content)
    with fails_as("bad_data", str(tmp_path / "train-00000-of-00001"), f"offset {offset}:"):
        opened(tmp_path)


def test_a_compressed_file_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "train-00000-of-00001").write_bytes(b"\x1f\x8b\x08\0" + bytes(20))
    with fails_as("bad_data", "gunzip"):
        opened(tmp_path)


def test_a_file_with_more_records_than_are_read_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "MOST_RECORDS", 3)
    shard(tmp_path / "train-00000-of-00001", [example()] * 4)
    with fails_as("bad_data", "3"):
        opened(tmp_path)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("image", [b"", b"no image", picture()[:40]])
def test_an_image_that_cannot_be_decoded_is_named_with_its_record(tmp_path: Path, image: bytes, workers: int) -> None:
    file = shard(tmp_path / "train-00000-of-00001", [example(), example(image)])
    with fails_as("bad_data", f"{file}, record at offset {RECORD}"):
        batches(tmp_path, 4, batch=1, data_workers=workers)


def test_of_an_image_that_cannot_be_decoded_it_is_said_whether_the_record_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "train-00000-of-00001"
    said = []
    for flip in (0, 1):
        second = bytearray(framed(example(b"no image")))
        second[-6] ^= flip
        file.write_bytes(framed(example()) + bytes(second))
        with pytest.raises(UnreadableImage) as caught:
            opened(tmp_path).read(1, None)
        said.append("checksum" in str(caught.value))
    assert said == [False, True]


def test_a_file_that_became_shorter_is_a_sentence(tmp_path: Path) -> None:
    file = shard(tmp_path / "train-00000-of-00001", [example(), example()])
    folder = opened(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UnreadableImage) as caught:
        folder.read(1, None)
    assert str(file) in str(caught.value)
    with pytest.raises(WorkloadFailure):
        opened(tmp_path)  # and is indexed anew


# The protocol buffer


def test_an_integer_list_is_read_packed_and_one_by_one_and_below_zero() -> None:
    assert [read_example(example(label=300, packed=packed)).label for packed in (True, False)] == [300, 300]
    assert read_example(example(label=-5)).label == -5


def test_the_last_of_two_features_of_one_name_counts_and_unknown_fields_are_skipped() -> None:
    unknown = varint(7 * 8) + varint(5) + varint(6 * 8 + 1) + bytes(8) + varint(5 * 8 + 5) + bytes(4) + field(9, b"x")
    twice = feature("image/class/label", integers(1)) + feature("image/class/label", integers(2))
    assert read_example(unknown + field(1, twice + feature("image/encoded", field(1, field(1, b"i"))))).label == 2


def test_any_prefix_and_any_flipped_bit_is_read_or_refused_and_never_anything_else() -> None:
    whole = example(b"0123456789")
    for cut in range(len(whole)):
        with pytest.raises(BadRecord):
            read_example(whole[:cut])
    for at in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[at // 8] ^= 1 << at % 8
        try:
            read_example(bytes(flipped))
        except BadRecord:
            continue
