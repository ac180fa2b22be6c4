"""Read images from disk: an ImageFolder tree, TFRecord shards or CIFAR-10's own files, through a real input pipeline.

Worker processes read, decode, crop and flip; batches travel as bytes and become normalised floats on the device. This is
PyTorch's DataLoader with Pillow. torchvision would be the usual dataset here; it is not used because its builds must match
the torch build exactly, and next to a CPU build of torch there is none.
"""

import io
import os
import pickle
import re
import signal
import threading
import traceback
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from stackmark.ranks import Rank
from stackmark.workloads.train.definition import TrainParams
from stackmark.workloads.train.impl import nets
from stackmark.workloads.train.impl.pictures import UnreadableImage, read_picture, require_pillow
from stackmark.workloads.train.impl.tfrecord import TfRecords, find_shards
from stackmark.workloads.train.zoo import Model
from stackmark.workloads.workload import WorkloadFailure

IMAGE_ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
SPLITS = {True: ("train",), False: ("val", "validation", "test")}
CIFAR_RECORD = 1 + 3 * 32 * 32
CIFAR_PAD = 4

Source = Generator[nets.Sample, None, None]


class Folder(Protocol):
    classes: int

    def __len__(self) -> int: ...
    def read(self, index: int, chance: Random | None) -> tuple[Tensor, int]:
        """Read an image as bytes, 3 × height × width, and its label; cropped and flipped at random if requested."""

    def files(self) -> Sequence[str]:
        """Return the paths of the files that hold the images."""


def open_folder(path: Path, model: Model, training: bool, outputs: int = 0) -> Folder:
    """Find out what a path holds by looking; a folder that holds nothing we read is a sentence.

    `outputs` is the number of the model's outputs, where that is decided already.
    """
    if not model.image_px:
        raise WorkloadFailure("bad_data", f"{model.name} reads tokens, not images", "use --data device or --data host")
    try:
        return _find(path, model, training, outputs)
    except OSError as error:
        raise WorkloadFailure("bad_data", f"the folder {path} cannot be read: {error}") from error


def _find(path: Path, model: Model, training: bool, outputs: int) -> Folder:
    if not path.is_dir():
        raise WorkloadFailure(
            "bad_data", f"the folder {path} does not exist", "--data takes a folder; of train/ also device and host"
        )
    cifar = next((root for root in _cifar_roots(path) if _holds_cifar(root)), None)
    shards = find_shards(path)
    if shards is not None:
        other = "CIFAR-10's files" if cifar else _an_image(path)
        if other:
            raise WorkloadFailure(
                "bad_data",
                f"{path} holds both TFRecord files ({shards.example.name}) and {other}",
                "name a folder that holds one of them",
            )
        return TfRecords(shards, model, training, outputs)
    if cifar is not None:
        return CifarFiles(cifar, training, model.image_px)
    return _open_tree(path, model.image_px, training)


def _cifar_roots(path: Path) -> tuple[Path, ...]:
    return path, path / "cifar-10-batches-py", path / "cifar-10-batches-bin"


def _holds_cifar(root: Path) -> bool:
    return (root / "data_batch_1").is_file() or (root / "data_batch_1.bin").is_file()


def _an_image(path: Path) -> str:
    """Name the first image below a folder; empty where it holds none."""
    for found, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            if os.path.splitext(name)[1].lower() in IMAGE_ENDINGS:
                return f"images ({os.path.relpath(os.path.join(found, name), path)})"
    return ""


def _open_tree(path: Path, px: int, training: bool) -> "ImageTree":
    """The wanted split of a tree, or the whole of a tree without splits. Labels are numbered by the training split."""
    train, held_out = (next((path / n for n in SPLITS[side] if (path / n).is_dir()), None) for side in (True, False))
    root = (train if training else held_out) or path
    if root == path and (train or held_out):
        raise WorkloadFailure(
            "bad_data",
            f"{path} has {(train or held_out or path).name}/ but no {' or '.join(f'{n}/' for n in SPLITS[training])}",
            "training reads train/CLASS/*.jpg, eval reads val/CLASS/*.jpg",
        )
    return ImageTree(root, px, _class_names(train or root))


def _class_names(root: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))


class ImageTree:
    """A tree `root/CLASS/….jpg`: one folder per class; a class's label is its index in `folders`."""

    def __init__(self, root: Path, px: int, folders: list[str]) -> None:
        self._px = px
        unknown = sorted(set(_class_names(root)) - set(folders))
        if unknown:
            raise WorkloadFailure(
                "bad_data", f"{root} has a class that is missing in the training images: {unknown[0]}"
            )
        self._items = [
            (os.path.join(found, name), label)
            for label, folder in enumerate(folders)
            for found, _, names in sorted(os.walk(root / folder))
            for name in sorted(names)
            if os.path.splitext(name)[1].lower() in IMAGE_ENDINGS
        ]
        self.classes = len(folders)
        if not self._items:
            raise WorkloadFailure(
                "bad_data",
                f"no images were found below {root}",
                "expected: FOLDER/train/CLASS/*.jpg (FOLDER/val/CLASS/*.jpg to judge answers), or CIFAR-10's files",
            )
        require_pillow()

    def __len__(self) -> int:
        return len(self._items)

    def read(self, index: int, chance: Random | None) -> tuple[Tensor, int]:
        path, label = self._items[index]
        return read_picture(path, f"the image {path}", self._px, chance), label

    def files(self) -> Sequence[str]:
        return [path for path, _ in self._items]


class CifarFiles:
    """CIFAR-10 as its authors publish it, the Python or the binary version, held in memory: 180 MB."""

    classes = 10

    def __init__(self, root: Path, training: bool, px: int) -> None:
        import numpy as np

        if px != 32:
            raise WorkloadFailure(
                "bad_data", f"{root} contains CIFAR-10 images of 32 pixels, but the model takes {px}",
                "use a CIFAR-10 model, such as train/resnet56, or a folder of larger images",
            )  # fmt: skip
        names = [f"data_batch_{i}" for i in range(1, 6)] if training else ["test_batch"]
        found = [file for name in names for file in (root / name, root / f"{name}.bin") if file.is_file()]
        if not found:
            raise WorkloadFailure("bad_data", f"{root} lacks {', '.join(names)}")
        self._files = found
        parts = [_cifar_part(file) for file in found]
        self._images = torch.from_numpy(np.concatenate([images for images, _ in parts]))
        self._labels = np.concatenate([labels for _, labels in parts])

    def __len__(self) -> int:
        return len(self._labels)

    def read(self, index: int, chance: Random | None) -> tuple[Tensor, int]:
        image, label = self._images[index], int(self._labels[index])
        if chance is None:
            return image, label
        padded = torch.nn.functional.pad(image, (CIFAR_PAD,) * 4)
        top, left = chance.randint(0, 2 * CIFAR_PAD), chance.randint(0, 2 * CIFAR_PAD)
        image = padded[:, top : top + 32, left : left + 32]
        return (image.flip(2) if chance.random() < 0.5 else image).contiguous(), label

    def files(self) -> Sequence[str]:
        return [str(file) for file in self._files]


def _cifar_part(file: Path) -> tuple[Any, Any]:
    images, labels = _cifar_binary(file) if file.suffix == ".bin" else _cifar_pickle(file)
    if len(images) != len(labels) or not len(labels) or labels.min() < 0 or labels.max() >= CifarFiles.classes:
        # On a GPU a label that is out of range ends the process instead of raising.
        raise WorkloadFailure("bad_data", f"{file} is not a CIFAR-10 file: its labels are not 0 … 9, one per image")
    return images, labels


def _cifar_binary(file: Path) -> tuple[Any, Any]:
    import numpy as np

    raw = np.frombuffer(file.read_bytes(), dtype=np.uint8)
    if raw.size == 0 or raw.size % CIFAR_RECORD:
        raise WorkloadFailure(
            "bad_data", f"{file} is not a CIFAR-10 file: {raw.size} bytes are not a whole number of records"
        )
    records = raw.reshape(-1, CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].astype(np.int64)


class _CifarUnpickler(pickle.Unpickler):
    """CIFAR-10's Python files are pickles of arrays. A pickle can run anything, so only arrays are let through."""

    _ALLOWED = {
        ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
        ("numpy.core.numeric", "_frombuffer"), ("numpy._core.numeric", "_frombuffer"),
    }  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it uses {module}.{name}, which CIFAR-10 files do not need")
        import numpy as np

        # numpy 2 renamed it, and files name either.
        ours = "numpy.core" if np.__version__.startswith("1.") else "numpy._core"
        return super().find_class(re.sub(r"^numpy\._?core", ours, module), name)


def _cifar_pickle(file: Path) -> tuple[Any, Any]:
    import numpy as np

    try:
        data = _CifarUnpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        images = np.asarray(data[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        return images, np.asarray(data[b"labels"], dtype=np.int64)
    except (pickle.UnpicklingError, KeyError, TypeError, ValueError, EOFError, AttributeError, IndexError) as error:
        raise WorkloadFailure("bad_data", f"{file} is not a CIFAR-10 file: {error}") from error


class _Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: Folder, chance: Random | None) -> None:
        self._folder, self.chance = folder, chance

    def __len__(self) -> int:
        return len(self._folder)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._folder.read(index, self.chance)


class _Endless(Sampler[int]):
    """Epoch after epoch in one stream: a loader that ended would stop its workers at each epoch, inside the measurement."""

    def __init__(self, size: int, seed: int, shuffle: bool, rank: Rank) -> None:
        self._size, self._seed, self._shuffle, self._rank = size, seed, shuffle, rank

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed)
        while True:
            order: Sequence[int] = range(self._size)
            if self._shuffle:
                order = torch.randperm(self._size, generator=generator).tolist()
            # All ranks draw the same order, and each reads its own part of it.
            yield from order[self._rank.number :: self._rank.size]


def begin_worker(_index: int) -> None:
    """A reading process has no part in the worker's signals: it ends when it is told to, or when its parent is gone."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    info = get_worker_info()
    if info is not None and isinstance(info.dataset, _Images) and info.dataset.chance:
        # torch's seed of this process: the run's and the process's number.
        info.dataset.chance.seed(info.seed)


def batches(folder: Folder, params: TrainParams, pin: bool, rank: Rank) -> Source:
    """Yield batches without end; closing it ends the reading processes."""
    training = params.mode == "train"
    seed = params.seed + rank.number
    loader = DataLoader(
        _Images(folder, Random(seed) if training and params.distortions else None),
        batch_size=params.batch,
        sampler=_Endless(len(folder), params.seed, training, rank),
        num_workers=params.data_workers,
        pin_memory=pin,
        worker_init_fn=begin_worker,
        generator=torch.Generator().manual_seed(seed),
        prefetch_factor=4 if params.data_workers else None,
    )
    for images, labels in read_ahead(loader, "use fewer --data-workers, or give it more memory and a larger /dev/shm"):
        yield nets.Sample((images,), (labels,))


def read_ahead(loader: DataLoader[tuple[Tensor, int]], hint: str) -> Generator[tuple[Tensor, Tensor], None, None]:
    """Yield the batches of a loader; `hint` is for the loss of one of its processes. Closing it ends the processes."""
    try:
        yield from _begin(loader)
    except UnreadableImage as error:
        # Else the error's own frames hold the loader until a garbage collection, which ends its processes only in 10 s.
        traceback.clear_frames(error.__traceback__)
        said = _last_line(error).removeprefix(f"{UnreadableImage.__module__}.{UnreadableImage.__name__}: ")
        raise WorkloadFailure("bad_data", said) from error
    except (OSError, EOFError, RuntimeError) as error:
        # A process that dies while it hands a batch over is seen as a broken connection, else as a RuntimeError.
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        raise WorkloadFailure("bad_data", f"a data worker died: {_last_line(error)}", hint) from error


def _begin(loader: DataLoader[tuple[Tensor, int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Starts the reading processes, without torch's handler of SIGCHLD.

    It raises in whatever the main thread happens to do when one of them dies. Without it the loss is noticed where a
    batch is waited for, within five seconds.
    """
    before = signal.getsignal(signal.SIGCHLD)
    iterator = iter(loader)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, before)
    return iterator


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
