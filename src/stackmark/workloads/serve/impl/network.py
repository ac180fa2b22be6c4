"""The networks of `serve/` on a device, ready to answer: weights, and samples that lie in its memory."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from stackmark.workloads.serve.definition import SERVED, Kind, ServeParams
from stackmark.workloads.serve.impl.answering import Answering, Classifier, Setup
from stackmark.workloads.serve.impl.decoder import Decoder
from stackmark.workloads.serve.impl.detectors import Detector
from stackmark.workloads.serve.impl.language import Questions, Translators
from stackmark.workloads.serve.impl.weights import fill_with, read_weights

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
KINDS: dict[Kind, Callable[[Setup], Answering]] = {
    "classifier": Classifier,
    "detector": Detector,
    "question": Questions,
    "translator": Translators,
    "decoder": Decoder,
}


class Network:
    """Answers samples of its library: for each the same number of 32-bit words, one sample after the other.

    `samples` are real ones instead of random ones; `dtype` computes in another precision than the parameters say.
    """

    def __init__(
        self, name: str, params: ServeParams, samples: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> None:
        device = torch.device(params.device)
        torch.manual_seed(params.seed)
        path = Path(params.weights)
        weights = read_weights(path) if params.weights else None
        made = KINDS[SERVED[name].kind](Setup(name, params, device, samples, weights))
        if weights is not None:
            fill_with(made.net, weights, path)
        else:
            made.spread()
        dtype = dtype or DTYPES[params.precision]
        made.net.eval().requires_grad_(False).to(dtype)
        if made.pictures:
            layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
            made.net.to(memory_format=layout)  # type: ignore[call-overload]
            made.samples = made.samples.to(dtype=dtype, memory_format=layout)
        self.made = made

    @property
    def labels(self) -> Tensor | None:
        return self.made.labels

    def words(self, indices: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            return self.made.compute(self.made.chosen(indices))

    @property
    def streams(self) -> bool:
        return isinstance(self.made, Decoder)

    def stream(self, indices: Sequence[int], on_first: Callable[[Sequence[int]], None]) -> Sequence[int]:
        """Answer, and pass on the first token of each answer as soon as it is chosen."""
        assert isinstance(self.made, Decoder)
        with torch.inference_mode():
            found = self.made.decode(self.made.chosen(indices), lambda first: on_first(first.flatten().tolist()))
            said: list[int] = found.flatten().tolist()
        return said

    def __call__(self, indices: Sequence[int]) -> Sequence[int]:
        said: list[int] = self.words(indices).flatten().tolist()
        return said


def nothing(indices: Sequence[int]) -> Sequence[int]:
    """Answer without computing: what is measured then is the path around a network."""
    return [0] * len(indices)
