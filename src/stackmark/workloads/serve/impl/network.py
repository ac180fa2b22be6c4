"""The networks of `serve/` on a device, ready to answer: weights, and samples that lie in its memory."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from stackmark.workloads.fit.impl.checkpoint import DAMAGE
from stackmark.workloads.serve.definition import SERVED, ServeParams
from stackmark.workloads.train.impl.nets import build, synthetic
from stackmark.workloads.train.zoo import MODELS
from stackmark.workloads.workload import WorkloadFailure

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMED_WRONG = 3


class Network:
    """Answers samples of its library with the class that the network thinks likeliest."""

    def __init__(self, name: str, params: ServeParams) -> None:
        device = torch.device(params.device)
        model = MODELS[SERVED[name].source]
        torch.manual_seed(params.seed)
        with torch.device(device):
            net = build(model, model.classes)
        if params.weights:
            load_weights(net, Path(params.weights))
        (samples,) = synthetic(model, params.library, model.classes, device, params.seed).inputs
        dtype = DTYPES[params.precision]
        layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        self._net: nn.Module = net.eval().requires_grad_(False).to(dtype).to(memory_format=layout)  # type: ignore[call-overload]
        self._samples: Tensor = samples.to(dtype=dtype, memory_format=layout)

    def __call__(self, indices: Sequence[int]) -> Sequence[int]:
        with torch.inference_mode():
            # A view where there is one sample: nothing is copied before it is computed.
            batch = self._samples[indices[0]][None] if len(indices) == 1 else self._samples[list(indices)]
            classes: list[int] = self._net(batch).argmax(1).tolist()
        return classes


def nothing(indices: Sequence[int]) -> Sequence[int]:
    """Answer without computing: what is measured then is the path around a network."""
    return [0] * len(indices)


def load_weights(net: nn.Module, path: Path) -> None:
    """Load a state dict. A file may come from anywhere: only tensors are read from it."""
    hint = "name a file that torch.save(net.state_dict(), FILE) wrote"
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except DAMAGE as error:
        said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise WorkloadFailure("bad_data", f"--weights {path} cannot be read: {said}", hint) from error
    if not isinstance(found, dict) or not all(isinstance(one, Tensor) for one in found.values()):
        raise WorkloadFailure("bad_data", f"--weights {path} is not a state dict: names with tensors", hint)
    wanted = net.state_dict()
    wrong = [
        f"{name} is {tuple(found[name].shape)} instead of {tuple(tensor.shape)}"
        if name in found
        else f"{name} is missing"
        for name, tensor in wanted.items()
        if name not in found or found[name].shape != tensor.shape
    ]
    wrong += [f"{name} is not known" for name in found if name not in wanted]
    if wrong:
        more = f" and {len(wrong) - NAMED_WRONG} more" if len(wrong) > NAMED_WRONG else ""
        raise WorkloadFailure(
            "bad_data", f"--weights {path} does not fit the network: {'; '.join(wrong[:NAMED_WRONG])}{more}", hint
        )
    net.load_state_dict(found)
