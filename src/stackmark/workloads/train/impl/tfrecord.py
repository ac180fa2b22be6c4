"""TFRecord shards without TensorFlow: the classic ImageNet format, `train-00000-of-01024` and `validation-00000-of-00128`.

A file is a row of records, each framed by its length and two checksums (tensorflow.org, "TFRecord files"):

    uint64 length, uint32 masked CRC32C of the length, the data, uint32 masked CRC32C of the data       (little endian)

The data are a `tf.train.Example`, a protocol buffer that maps names to lists. Two are read: `image/encoded`, the file's bytes
(JPEG, PNG), and `image/class/label`. Labels are taken as they stand: ImageNet's are 1 to 1000 with 0 for "background", which
is why the classic models have 1001 outputs, and sets that count from 0 need no other rule.

Every record's length is verified by its checksum when the index is made, which reads twelve bytes a record. The checksum of the
data is verified in the first record of some shards and in every record whose image cannot be decoded: it takes Python 25 ms a
record. The index holds eight bytes a record (ImageNet: 10 MB). Records are then read in any order, one `pread` each, so that they
are shuffled by seed over the whole set, as images of a folder are; TensorFlow shuffles within a buffer.
"""

import io
import os
import re
import stat
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import NamedTuple

from torch import Tensor

from stackmark.workloads.train.impl.pictures import UnreadableImage, read_picture, require_pillow
from stackmark.workloads.train.zoo import Model
from stackmark.workloads.workload import WorkloadFailure

IMAGE, LABEL = "image/encoded", "image/class/label"
# `train-00000-of-01024`, `cifar.tfrecords`, `train.tfrecord-00000-of-00010`.
SHARD = re.compile(r"(?P<set>.*)-(?P<number>\d{3,})-of-(?P<count>\d{3,})(\.tfrecords?)?", re.IGNORECASE)
FILE = re.compile(r".*\.tfrecords?", re.IGNORECASE)
# The word that names a split, at the beginning of a name or after a separator: `train-…`, `imagenet-train-…`.
SPLITS = {
    True: re.compile(r"(.*[-_.])?train", re.IGNORECASE),
    False: re.compile(r"(.*[-_.])?(val|test|eval)", re.IGNORECASE),
}
WHAT_IS_READ = "training reads train-00000-of-01024 and so on, eval reads validation-00000-of-00128 and so on"
SPLIT_FOLDERS = ("train", "val", "validation", "test", "eval")
HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
FRAME = HEADER.size + FOOTER.size
GZIP = b"\x1f\x8b"
# An image of ImageNet has 110 kB on average and 15 MB at most; a length beyond this is a damaged or hostile file.
MOST_BYTES = 256 * 2**20
# ImageNet-21k has 14 million. At eight bytes each this is 400 MB.
MOST_RECORDS = 50_000_000
# As many as --classes takes.
MOST_LABELS = 1_000_000
# Labels are looked at in all records of a small set, and in this many of a larger one.
LABELS_BYTES, LABELS_READ = 64 * 2**20, 256
# Shards of which the first record's data are verified, and threads that make the index: it waits for the disk.
SHARDS_VERIFIED, THREADS = 8, 16
# Files without a usual name whose first bytes are looked at.
LOOKED_AT = 8


class BadRecord(Exception):
    """What is wrong with a record; who catches it knows the file and the offset."""


# Checksums


@cache
def _crc_table() -> tuple[int, ...]:
    """CRC32C (Castagnoli), reflected: polynomial 0x82F63B78."""
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


def crc32c(data: bytes | memoryview) -> int:
    table, value = _crc_table(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | memoryview) -> int:
    """Return the checksum as it stands in a file: rotated by 15 bits and moved on, as LevelDB and TensorFlow do."""
    value = crc32c(data)
    return (value >> 15 | value << 17 & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF


# A record's data


class Example(NamedTuple):
    image: memoryview
    label: int


def read_example(data: bytes) -> Example:
    """Read image and label of a `tf.train.Example`. Every length is compared with the bytes that are there."""
    image: memoryview | None = None
    label: int | None = None
    for features in _messages(memoryview(data), 1):
        for entry in _messages(features, 1):
            name = next(iter(_messages(entry, 1)), memoryview(b"")).tobytes().decode(errors="replace")
            if name == IMAGE:
                image = next((value for feature in _messages(entry, 2) for value in _bytes(feature)), None)
            elif name == LABEL:
                label = next((value for feature in _messages(entry, 2) for value in _integers(feature)), None)
    for name, value in ((IMAGE, image), (LABEL, label)):
        if value is None:
            raise BadRecord(f"it has no feature {name}")
    assert image is not None
    assert label is not None
    return Example(image, label)


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field of a protocol buffer: an integer, or the bytes of anything else."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise BadRecord(f"it is not a tf.train.Example: a field has the wire type {kind}")
        if size > len(data) - at:
            raise BadRecord(f"it is not a tf.train.Example: a field of {size} bytes has only {len(data) - at}")
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise BadRecord("it is not a tf.train.Example: it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise BadRecord("it is not a tf.train.Example: a number has more than ten bytes")


def _messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    for number, value in _fields(data):
        if number == wanted and isinstance(value, memoryview):
            yield value


def _bytes(feature: memoryview) -> Iterator[memoryview]:
    """Yield the values of a feature that is a `BytesList`."""
    for values in _messages(feature, 1):
        yield from _messages(values, 1)


def _integers(feature: memoryview) -> Iterator[int]:
    """Yield the values of a feature that is an `Int64List`, packed as usual or one by one."""
    for values in _messages(feature, 3):
        for number, value in _fields(values):
            if number != 1:
                continue
            if isinstance(value, int):
                yield _signed(value)
                continue
            at = 0
            while at < len(value):
                one, at = _varint(value, at)
                yield _signed(one)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


# Which files


@dataclass(frozen=True)
class Shards:
    """The files of a folder that hold records."""

    folder: Path
    files: tuple[Path, ...]

    @property
    def example(self) -> Path:
        return self.files[0]

    def of_split(self, training: bool) -> tuple[Path, ...]:
        """Return the files of training or of validation; all where none is named for either."""
        wanted, others = self.named(training), self.named(not training)
        if wanted or not others:
            return wanted or self.files
        lacking = "training" if training else "validation"
        raise WorkloadFailure(
            "bad_data", f"{self.folder} has {others[0].name}, and no shards for {lacking}", WHAT_IS_READ
        )

    def named(self, training: bool) -> tuple[Path, ...]:
        """Return the files whose folder or, in the set's own folder, whose own name says that they are of this split."""
        return tuple(
            file
            for file in self.files
            if SPLITS[training].match((file.parent if file.parent != self.folder else file).name)
        )


def find_shards(path: Path) -> Shards | None:
    """Find TFRecord files in a folder or in its `train` and `validation`, by their names, or by the first bytes of others."""
    folders = [path, *(path / name for name in SPLIT_FOLDERS if (path / name).is_dir())]
    entries = [sorted(entry.path for entry in os.scandir(one) if entry.is_file()) for one in folders]
    named = [file for files in entries for file in map(Path, files) if _is_named(file.name)]
    if named:
        _check_one_set(path, named)
        return Shards(path, tuple(named))
    others = [Path(file) for file in entries[0]]
    if not any(map(_begins_as_record, others[:LOOKED_AT])):
        return None
    return Shards(path, tuple(filter(_begins_as_record, others)))


def _is_named(name: str) -> bool:
    return bool(SHARD.fullmatch(name) or FILE.fullmatch(name))


def _begins_as_record(file: Path) -> bool:
    try:
        with file.open("rb", buffering=0) as stream:
            head = stream.read(HEADER.size)
    except OSError:
        return False
    return len(head) == HEADER.size and HEADER.unpack(head)[1] == masked_crc32c(head[:8])


def _check_one_set(path: Path, files: Sequence[Path]) -> None:
    """Refuse two sets in one folder. Fewer shards than the names say are a part of a set, which is as good to measure with."""
    counts: dict[tuple[Path, str], set[str]] = {}
    for file in files:
        if shard := SHARD.fullmatch(file.name):
            counts.setdefault((file.parent, shard["set"]), set()).add(shard["count"])
    for (_, name), seen in counts.items():
        if len(seen) > 1:
            parts = " and ".join(f"{name}-…-of-{count}" for count in sorted(seen))
            raise WorkloadFailure("bad_data", f"{path} holds two sets of shards: {parts}", "leave one of them there")


# The index


@dataclass(frozen=True)
class Index:
    """Where the records of a file begin, and where the last one ends."""

    file: Path
    offsets: "array[int]"

    def __len__(self) -> int:
        return len(self.offsets) - 1


def _indexed(files: Sequence[Path]) -> list[Index]:
    seen = []
    for file in files:
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):
            raise WorkloadFailure("bad_data", f"{file} is not a file")
        seen.append((file, about.st_size, about.st_mtime_ns))
    return _index_of(tuple(seen))


# A probe asks for the number of samples, then opens the feed: the same files twice.
@lru_cache(maxsize=2)
def _index_of(files: tuple[tuple[Path, int, int], ...]) -> list[Index]:
    with ThreadPoolExecutor(max_workers=min(THREADS, len(files))) as pool:
        found = list(pool.map(lambda one: _scan(one[0], one[1]), files))
    if (count := sum(map(len, found))) > MOST_RECORDS:
        raise WorkloadFailure("bad_data", f"the shards hold {count} records, and at most {MOST_RECORDS} are read")
    filled = [index for index in found if len(index)]
    for index in filled[:SHARDS_VERIFIED]:
        data, stored = _record(index, 0)
        if masked_crc32c(data) != stored:
            raise _bad(index.file, 0, "the checksum of its data is wrong: the file is damaged")
    return filled


def _scan(file: Path, size: int) -> Index:
    """Walk over the records of a file, and verify each length by its checksum."""
    offsets = array("Q", [0])
    with file.open("rb", buffering=0) as stream:
        descriptor = stream.fileno()
        # Twelve bytes of every hundred thousand: what the kernel would read ahead is not wanted.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        at = 0
        while at < size:
            head = os.pread(descriptor, HEADER.size, at)
            at = _end_of(file, at, head, size)
            offsets.append(at)
            if len(offsets) > MOST_RECORDS:
                raise _bad(file, at, f"the file holds more than {MOST_RECORDS} records")
    return Index(file, offsets)


def _end_of(file: Path, at: int, head: bytes, size: int) -> int:
    """Return where the record ends that begins with these bytes."""
    if at == 0 and head.startswith(GZIP):
        raise WorkloadFailure("bad_data", f"{file} is compressed (gzip)", "unpack it: gunzip")
    if len(head) < HEADER.size:
        raise _bad(file, at, f"the file ends after {len(head)} of the {HEADER.size} bytes that a record begins with")
    length, stored = HEADER.unpack(head)
    if masked_crc32c(head[:8]) != stored:
        what = "the file is damaged" if at else "this is not a TFRecord file"
        raise _bad(file, at, f"the checksum of its length is wrong: {what}")
    if length > MOST_BYTES:
        raise _bad(file, at, f"it claims {length} bytes, and at most {MOST_BYTES} are read")
    if length > size - at - FRAME:
        raise _bad(
            file,
            at,
            f"it claims {length} bytes, and the file ends {max(0, size - at - FRAME)} bytes later: it is cut off",
        )
    return at + int(length) + FRAME


def _record(index: Index, number: int) -> tuple[bytes, int]:
    """Return a record's data and their stored checksum."""
    begin, end = index.offsets[number], index.offsets[number + 1]
    wanted = end - begin - HEADER.size
    with index.file.open("rb", buffering=0) as stream:
        found = os.pread(stream.fileno(), wanted, begin + HEADER.size)
    if len(found) != wanted:
        raise _bad(index.file, begin, "the file is shorter than it was at the start")
    return found[: -FOOTER.size], FOOTER.unpack(found[-FOOTER.size :])[0]


def _bad(file: Path, at: int, what: str) -> WorkloadFailure:
    return WorkloadFailure("bad_data", f"{_place(file, at)}: {what}")


def _place(file: Path, at: int) -> str:
    return f"{file}, record at offset {at}"


class TfRecords:
    """Records of one split; a label is what the record says. `outputs` is how many the model has, where that is decided."""

    def __init__(self, shards: Shards, model: Model, training: bool, outputs: int = 0) -> None:
        require_pillow()
        self._px = model.image_px
        self._shards = _indexed(shards.of_split(training))
        self._ends = list(accumulate(map(len, self._shards)))
        if not self._shards:
            raise WorkloadFailure("bad_data", f"the TFRecord files in {shards.folder} hold no records", WHAT_IS_READ)
        self.classes = self._count_classes(model)
        if not training and (trained := shards.named(True)):
            # A checkpoint has as many outputs as the training shards have labels.
            small = sum(file.stat().st_size for file in trained) <= LABELS_BYTES
            more = TfRecords(shards, model, training=True).classes if small else model.classes
            self.classes = max(self.classes, more)
        self._labels = max(self.classes, outputs)

    def __len__(self) -> int:
        return self._ends[-1]

    def files(self) -> Sequence[str]:
        return [str(shard.file) for shard in self._shards]

    def read(self, index: int, chance: Random | None) -> tuple[Tensor, int]:
        shard, number = self._find(index)
        where = _place(shard.file, shard.offsets[number])
        try:
            data, stored = _record(shard, number)
            example = self._example(data)
        except WorkloadFailure as error:
            raise UnreadableImage(error.message) from error
        except BadRecord as error:
            raise UnreadableImage(f"{where}: {error}") from error
        except OSError as error:
            raise UnreadableImage(f"{shard.file} cannot be read: {error}") from error
        try:
            return read_picture(io.BytesIO(example.image), f"{where}: its image", self._px, chance), example.label
        except UnreadableImage as error:
            whole = masked_crc32c(data) == stored
            why = (
                "the record is as it was written" if whole else "the checksum of its data is wrong: the file is damaged"
            )
            raise UnreadableImage(f"{error} ({why})") from error

    def _example(self, data: bytes) -> Example:
        example = read_example(data)
        if not 0 <= example.label < self._labels:
            # On a GPU a label that is out of range ends the process instead of raising.
            raise BadRecord(f"its label is {example.label}, and the model has {self._labels} outputs: raise --classes")
        return example

    def _find(self, index: int) -> tuple[Index, int]:
        shard = bisect_right(self._ends, index)
        return self._shards[shard], index - (self._ends[shard - 1] if shard else 0)

    def _count_classes(self, model: Model) -> int:
        """Count by the highest label of all records; of a large set by a part of them, and then at least as the model has."""
        total = sum(shard.offsets[-1] for shard in self._shards)
        every = total <= LABELS_BYTES
        step = 1 if every else max(1, len(self) // LABELS_READ)
        highest = 0
        for index in range(0, len(self), step):
            shard, number = self._find(index)
            try:
                label = read_example(_record(shard, number)[0]).label
            except BadRecord as error:
                raise _bad(shard.file, shard.offsets[number], str(error)) from error
            if not 0 <= label < MOST_LABELS:
                raise _bad(
                    shard.file,
                    shard.offsets[number],
                    f"its label is {label}, and labels must be 0 to {MOST_LABELS - 1}",
                )
            highest = max(highest, label)
        return highest + 1 if every else max(model.classes, highest + 1)
