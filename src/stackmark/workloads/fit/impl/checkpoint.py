"""Checkpoints of a training to a target: one file, replaced whole, from which a killed run goes on.

By MLPerf's rule the clock never stops: the file has the time at which it was started, and a run that goes on counts from
there, with the time between the checkpoint and its own first epoch as lost. The file is written next to its place, forced to
the disk and then moved there, so that a kill while it is written leaves the one before.

What is read is verified by the checksums that the file has: PyTorch itself loads weights with wrong bits without a word.
"""

import os
import pickle
import struct
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stackmark.workloads.workload import Evaluated, WorkloadFailure

# What reading a damaged file was seen to raise; which of them depends on the bytes.
DAMAGE = (
    OSError, RuntimeError, LookupError, ValueError, TypeError, EOFError, AttributeError, pickle.UnpicklingError,
    struct.error, zipfile.BadZipFile,
)  # fmt: skip
VERSION = 1


@dataclass(frozen=True)
class Saved:
    """The state of a run after an evaluation."""

    epochs: int
    samples: int
    # When the clock was started, and when this was saved.
    started_unix_s: float
    saved_unix_s: float
    evaluations: tuple[Evaluated, ...]
    learner: dict[str, Any]


class Checkpoints:
    """The checkpoint of one run. `work` names what is trained: a file of other work is refused, not gone on from."""

    def __init__(self, folder: Path, name: str, work: str, *, saves: bool) -> None:
        self.path = folder / f"{name}.checkpoint"
        self._part = self.path.with_suffix(".part")
        self._work, self._saves = work, saves
        if saves:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise WorkloadFailure(
                    "bad_output", f"the folder for checkpoints {folder} cannot be made: {error.strerror}"
                ) from error

    def save(self, saved: Saved) -> None:
        if not self._saves:
            return
        state = {
            "version": VERSION,
            "work": self._work,
            "epochs": saved.epochs,
            "samples": saved.samples,
            "started_unix_s": saved.started_unix_s,
            "saved_unix_s": saved.saved_unix_s,
            "evaluations": [
                [one.epoch, one.samples, one.clock_s, one.quality, one.target] for one in saved.evaluations
            ],
            "learner": saved.learner,
        }
        part = self._part
        try:
            with part.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.path)
        except (OSError, RuntimeError) as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise WorkloadFailure(
                "bad_output", f"the checkpoint {self.path} cannot be written: {why}", "is the disk full?"
            ) from error

    def load(self, device: torch.device) -> Saved | None:
        """Return what was saved; None where there is nothing."""
        if not self.path.exists():
            return None
        try:
            _verify_checksums(self.path)
            # Tensors, numbers and texts only: a file from elsewhere cannot run code.
            state = torch.load(self.path, map_location=device, weights_only=True)
            if state["version"] != VERSION or state["work"] != self._work:
                raise WorkloadFailure(
                    "bad_data",
                    f"{self.path} is the checkpoint of another run: other parameters, data or version",
                    "use another --checkpoint-dir, or delete the file to start from the beginning",
                )
            return Saved(
                int(state["epochs"]),
                int(state["samples"]),
                float(state["started_unix_s"]),
                float(state["saved_unix_s"]),
                tuple(
                    Evaluated(float(epoch), int(samples), float(clock_s), dict(quality), dict(target))
                    for epoch, samples, clock_s, quality, target in state["evaluations"]
                ),
                state["learner"],
            )
        except DAMAGE as error:
            raise self.unusable(error) from error

    def unusable(self, error: Exception) -> WorkloadFailure:
        return WorkloadFailure(
            "bad_data",
            f"the checkpoint {self.path} cannot be used: it is damaged, or another version wrote it ({type(error).__name__})",
            "delete it to start from the beginning",
        )

    def remove(self) -> None:
        """Remove the file of a run that is over: the next one with its name starts from the beginning."""
        if self._saves:
            for file in (self.path, self._part):
                with suppress(OSError):
                    file.unlink(missing_ok=True)


def _verify_checksums(path: Path) -> None:
    with zipfile.ZipFile(path) as file:
        # PyTorch compresses nothing: no damage may start a decompressor.
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in file.infolist()) or file.testzip() is not None:
            raise zipfile.BadZipFile
