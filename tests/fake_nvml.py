"""NVML with the answers of GPUs that we do not have."""

from collections.abc import Callable

import pynvml


class FakeNvml:
    """A driver with the GPUs we do not have. What it was not told to answer is not supported, as in old drivers."""

    NVMLError = pynvml.NVMLError

    def __init__(self, **answers: object) -> None:
        self.answers: dict[str, object] = {"nvmlInit": None, "nvmlShutdown": None, **answers}

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if name not in self.answers:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            answer = self.answers[name]
            return answer(*arguments) if callable(answer) else answer

        return call
