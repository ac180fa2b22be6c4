"""Computes batches as a server does: in few sizes, compiled or recorded for each, without waiting for what is copied back.

A batch is padded to the next of a few sizes (buckets), because a compiled network and a CUDA graph are each for one size. On a
GPU the numbers of the samples go over in pinned memory, the samples are gathered on the device, the graph is replayed, and the
answers come back in pinned memory; whoever started the batch gets a function that waits for them. Two batches are under way at
the most: while one is computed, the next is put together.

The network with what follows it must be of fixed sizes for a graph: boxes that are left after a suppression are not, nor are
texts of any length. Where a graph cannot be recorded, the network is called as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stackmark.workloads.serve.definition import SERVED, ServeParams

# Calls before a graph is recorded: libraries allocate and choose in them.
CAPTURE_WARMUP = 3
SLOTS = 2
Compute = Callable[[Tensor], Tensor]
Answer = Callable[[], Sequence[int]]


def fixed_sizes(network: str) -> bool:
    """Tell whether a network and what follows it have the same sizes whatever the samples are."""
    return bool(SERVED[network].source) and SERVED[network].kind in ("classifier", "question")


def buckets_of(batch: int) -> list[int]:
    """Return the sizes that batches are padded to: 1, 4, 16 … and the largest."""
    sizes = [1]
    while sizes[-1] * 4 < batch:
        sizes.append(sizes[-1] * 4)
    return sizes if sizes[-1] == batch else [*sizes, batch]


@dataclass
class _Slot:
    """What one batch under way needs in pinned memory."""

    numbers: Tensor
    on_device: Tensor
    answers: Tensor
    done: "torch.cuda.Event"


@dataclass
class _Bucket:
    inputs: Tensor
    output: Tensor
    replay: Callable[[], None] | None = None


@dataclass
class Batches:
    """Answers numbers of samples with `compute`, in buckets of at most `params.batch` samples.

    `one_size` says that only full batches come, as in the scenarios with one query at a time.
    """

    params: ServeParams
    compute: Compute
    samples: Tensor
    one_size: bool = False
    _buckets: dict[int, _Bucket] = field(default_factory=dict)
    _slots: list[_Slot] = field(default_factory=list)
    _turn: int = 0

    def __post_init__(self) -> None:
        self._cuda = self.samples.device.type == "cuda"
        self.sizes = [self.params.batch] if self.one_size else buckets_of(self.params.batch)
        self._padded = self.params.compile or self.params.cuda_graph
        if self.params.compile:
            self.compute = torch.compile(self.compute, dynamic=False)
        with torch.inference_mode():
            if self._cuda:
                self._stream = torch.cuda.Stream(self.samples.device)
                torch.cuda.synchronize(self.samples.device)  # weights and samples were made on another stream
                with torch.cuda.stream(self._stream):
                    for size in self.sizes:
                        self._buckets[size] = self._bucket(size)
                self._stream.synchronize()
                words = self._buckets[self.sizes[-1]].output.numel()
                self._slots = [self._slot(words) for _ in range(SLOTS)]
            elif self.params.compile:
                for size in self.sizes:
                    self.compute(self.samples[[0] * size])

    @property
    def asynchronous(self) -> bool:
        """Tell whether `launch` comes back before the answers are there."""
        return self._cuda

    def __call__(self, indices: Sequence[int]) -> Sequence[int]:
        return self.launch(indices)()

    def launch(self, indices: Sequence[int]) -> Answer:
        """Start a batch; the function that it returns waits for the answers."""
        return self._on_gpu(indices) if self._cuda else self._on_cpu(indices)

    def _on_cpu(self, indices: Sequence[int]) -> Answer:
        count = len(indices)
        if self._padded:
            indices = [*indices, *([indices[0]] * (self._size_for(count) - count))]
        with torch.inference_mode():
            # One sample is a view: nothing is copied before it is computed.
            chosen = self.samples[indices[0]][None] if len(indices) == 1 else self.samples[list(indices)]
            found: list[int] = self.compute(chosen)[:count].flatten().tolist()
        return lambda: found

    def _size_for(self, count: int) -> int:
        return next((size for size in self.sizes if size >= count), self.sizes[-1])

    # --- on a GPU -----------------------------------------------------------------------------------------------------------

    def _bucket(self, size: int) -> _Bucket:
        """Make the inputs of a size, and record what is done with them where that was asked for."""
        numbers = torch.zeros(size, dtype=torch.long, device=self.samples.device)
        inputs = self.samples.index_select(0, numbers)
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        for _ in range(CAPTURE_WARMUP):
            output = self.compute(inputs)
        if not self.params.cuda_graph:
            return _Bucket(inputs, output)
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            output = self.compute(inputs)
        return _Bucket(inputs, output, graph.replay)

    def _slot(self, words: int) -> _Slot:
        batch, device = self.sizes[-1], self.samples.device
        return _Slot(
            torch.zeros(batch, dtype=torch.long).pin_memory(),
            torch.zeros(batch, dtype=torch.long, device=device),
            torch.zeros(words, dtype=torch.int32).pin_memory(),
            torch.cuda.Event(),
        )

    def _on_gpu(self, indices: Sequence[int]) -> Answer:
        """Queue a batch on the stream. A slot is used again only after its answers were taken: two are under way at the most."""
        count, slot = len(indices), self._slots[self._turn % SLOTS]
        self._turn += 1
        size = self._size_for(count)
        bucket = self._buckets[size]
        slot.numbers[:count] = torch.as_tensor(indices)
        slot.numbers[count:size] = indices[0]
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            slot.on_device[:size].copy_(slot.numbers[:size], non_blocking=True)
            bucket.inputs.copy_(self.samples.index_select(0, slot.on_device[:size]))
            if bucket.replay is not None:
                bucket.replay()
                output = bucket.output
            else:
                output = self.compute(bucket.inputs)
            words = output.numel() // size
            answers = slot.answers[: count * words]
            answers.copy_(output[:count].flatten(), non_blocking=True)
            slot.done.record(self._stream)

        def wait() -> Sequence[int]:
            slot.done.synchronize()
            found: list[int] = answers.tolist()
            return found

        return wait
