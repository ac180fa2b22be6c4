"""Work between steps: a learning rate that changes by epoch, checkpoints."""

import math
import os
import pickle
import re
import struct
import tempfile
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stackmark.workloads.train.definition import TrainParams
from stackmark.workloads.workload import WorkloadFailure

_NAME = re.compile(r"model\.ckpt-(\d+)\.pt")
# What reading a damaged checkpoint was seen to raise; which of them depends on the bytes.
_DAMAGE = (
    OSError, RuntimeError, LookupError, ValueError, TypeError, EOFError, AttributeError, pickle.UnpicklingError,
    struct.error,
)  # fmt: skip


def parse_schedule(text: str) -> list[tuple[float, float]]:
    """Parse `LR0;E1;LR1;…` as (first epoch, rate): the classic grammar of piecewise_learning_rate_schedule."""
    try:
        numbers = [float(part) for part in text.split(";")]
    except ValueError:
        numbers = []
    if len(numbers) % 2 == 0 or any(number < 0 or not math.isfinite(number) for number in numbers):
        raise WorkloadFailure("bad_parameter", f"{text!r} is not a schedule", "write it like 0.1;30;0.01;60;0.001")
    pieces = [(0.0, numbers[0]), *zip(numbers[1::2], numbers[2::2], strict=True)]
    if any(later <= earlier for (earlier, _), (later, _) in pairwise(pieces)):
        raise WorkloadFailure(
            "bad_parameter", f"the epochs of {text!r} do not increase", "write it like 0.1;30;0.01;60;0.001"
        )
    return pieces


class Schedule:
    """Called around each step where there is something to do; absent where there is nothing, so that it costs nothing."""

    def __init__(
        self,
        params: TrainParams,
        net: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        scaler: "torch.amp.GradScaler | None",
        epoch_samples: float,
        saves: bool = True,
    ) -> None:
        """`epoch_samples` are those that this rank sees in an epoch. Of several ranks, which have the same weights, one saves."""
        self._params, self._net, self._optimizer, self._scaler = params, net, optimizer, scaler
        self._pieces = parse_schedule(params.lr_schedule) if params.lr_schedule else []
        self._steps_in_epoch = epoch_samples / params.batch
        self._step = 0
        self._saves = saves and bool(params.checkpoint_dir) and params.mode == "train"
        if self._saves:
            _require_folder(Path(params.checkpoint_dir))
        self.restored = self._restore()

    def before_step(self) -> None:
        if not self._pieces or self._optimizer is None:
            return
        epoch = self._step / self._steps_in_epoch
        rate = [rate for first, rate in self._pieces if first <= epoch][-1]
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def after_step(self) -> None:
        self.passed(1)
        every = self._params.checkpoint_every
        if self._saves and every and self._step % every == 0:
            self.save()

    def passed(self, steps: int) -> None:
        """Count steps, also those made outside the loop: they trained too."""
        self._step += steps

    def save(self) -> Path:
        """Save one complete file: write it next to its final path, then move it there."""
        folder = Path(self._params.checkpoint_dir)
        path = folder / f"model.ckpt-{self._step}.pt"
        part = path.with_suffix(".part")
        state: dict[str, Any] = {"step": self._step, "model": self._net.state_dict()}
        if self._optimizer:
            state["optimizer"] = self._optimizer.state_dict()
            state["optimizer_name"] = self._params.optimizer
        if self._scaler:
            state["scaler"] = self._scaler.state_dict()
        try:
            torch.save(state, part)
            os.replace(part, path)
            for _, old in find_checkpoints(folder)[: -self._params.checkpoint_keep]:
                old.unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise WorkloadFailure(
                "bad_output", f"the checkpoint {path} cannot be written: {_in_a_line(error)}", "is the disk full?"
            ) from error
        return path

    def _restore(self) -> str:
        """Goes on from the newest checkpoint, as the classic does with a train_dir that holds one."""
        found = find_checkpoints(Path(self._params.checkpoint_dir)) if self._params.checkpoint_dir else []
        if not found:
            if self._params.mode == "eval":
                raise WorkloadFailure(
                    "bad_data",
                    f"{self._params.checkpoint_dir} contains no checkpoint",
                    "train first, with the same folder",
                )
            return ""
        _, path = found[-1]
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            weights, self._step = state["model"], int(state["step"])
        except _DAMAGE as error:
            raise WorkloadFailure(
                "bad_data", f"the checkpoint {path} is damaged or not from stackmark: {_in_a_line(error)}",
                "remove it to use the one before",
            ) from error  # fmt: skip
        try:
            self._net.load_state_dict(weights)
            said = self._restore_optimizer(state)
        except (RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise WorkloadFailure(
                "bad_data", f"the checkpoint {path} does not fit: {_in_a_line(error)}",
                "another model wrote it, or this model with different --classes",
            ) from error  # fmt: skip
        return f"the weights are from {path.name} (step {self._step}){said}"

    def _restore_optimizer(self, state: dict[str, Any]) -> str:
        """Moments and counts come from the checkpoint; learning rate, decay and the like are this run's own."""
        if self._optimizer is None:
            return ""
        written_by = state.get("optimizer_name")
        if written_by != self._params.optimizer:
            return f"; {self._params.optimizer} starts again, because {written_by} wrote the checkpoint"
        saved = state["optimizer"]
        for mine, group in zip(self._optimizer.param_groups, saved["param_groups"], strict=True):
            group.update({name: value for name, value in mine.items() if name != "params"})
        self._optimizer.load_state_dict(saved)
        if self._scaler and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])
        return ""


def _require_folder(folder: Path) -> None:
    """Found out before the first step, not after the last one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise WorkloadFailure(
            "bad_output", f"checkpoints cannot be written to {folder}: {error.strerror}", "use another folder"
        ) from error


def _in_a_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def find_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Find the checkpoints by step, the newest last."""
    if not folder.is_dir():
        return []
    return sorted((int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)))
