"""Reading the loss of a step while the next ones run.

On a GPU it is copied into pinned memory, without waiting. That memory is taken before a stretch of steps begins, one row
for each time the loss will be read in it: to pin memory in the loop is to call the driver there, which may wait for the
device. A row is read when its step is complete, at the latest at the end of the stretch, so
the next stretch takes the same rows again.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from stackmark.workloads.train.impl.step import Machine
from stackmark.workloads.workload import Values

Peek = Callable[[], Callable[[], Values]]


def make_peek(machine: Machine) -> tuple[Peek | None, Callable[[int], None]]:
    """How loss and accuracy of the step just done are read, and how room is made for it beforehand."""
    params = machine.params
    if params.mode == "forward" and not params.accuracy:
        return None, _nothing
    sources: dict[tuple[str, ...], Tensor] = {("loss",): machine.loss.view(1)}
    if params.accuracy or params.mode == "eval":
        sources["top_1", "top_5"] = machine.accuracy[:2]
    if params.device == "cpu":

        def peek_now() -> Callable[[], Values]:
            values = {
                name: value
                for names, tensor in sources.items()
                for name, value in zip(names, tensor.tolist(), strict=True)
            }
            return lambda: values

        return peek_now, _nothing
    rows = Rows(sources)
    return rows.peek, rows.reserve


def _nothing(_peeks: int) -> None: ...


class Rows:
    """Memory of the host for the values of some tensors, one row for each time they are read. Pinned, but in tests."""

    def __init__(self, sources: dict[tuple[str, ...], Tensor], pinned: bool = True) -> None:
        self._names = [name for names in sources for name in names]
        self._sources = list(sources.values())
        self._pinned = pinned
        self._targets: list[tuple[Tensor, ...]] = []
        self._reads: list[Callable[[], Values]] = []
        self._next = 0

    def reserve(self, peeks: int) -> None:
        """Room for so many; the rows that there are may be written again."""
        self._next = 0
        if peeks > len(self._targets):
            self._targets, self._reads = [], []
            self._add(peeks)

    def _add(self, peeks: int) -> None:
        table = torch.empty((peeks, len(self._names)), pin_memory=self._pinned)
        sizes = [source.numel() for source in self._sources]
        for row in table.unbind():
            self._targets.append(row.split(sizes))
            self._reads.append(partial(self._read, row))

    def _read(self, row: Tensor) -> Values:
        return dict(zip(self._names, row.tolist(), strict=True))

    def peek(self) -> Callable[[], Values]:
        if self._next == len(self._targets):
            self._add(max(1, len(self._targets)))  # nobody said how many there would be
        for target, source in zip(self._targets[self._next], self._sources, strict=True):
            target.copy_(source, non_blocking=True)
        self._next += 1
        return self._reads[self._next - 1]
