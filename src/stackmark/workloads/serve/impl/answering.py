"""What answers queries: a network with its samples on a device. Here the base of all of them, and those that name images.

An answer is a fixed number of words of 32 bits: a class, token numbers, or the bits of floating-point numbers. LoadGen gets the
words as they are, and its accuracy log has them in full.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.serve.definition import SERVED, ServeParams
from stackmark.workloads.train.impl.nets import BUILDERS, build_with, mobile
from stackmark.workloads.train.zoo import MODELS, Model


@dataclass(frozen=True)
class Setup:
    """What a network is made from. `samples` are real ones, or None for random ones."""

    name: str
    params: ServeParams
    device: torch.device
    samples: Tensor | None = None
    # What the file with the weights holds.
    weights: Mapping[str, Tensor] | None = None

    @property
    def library(self) -> int:
        return self.params.library

    def generator(self) -> torch.Generator:
        """Return a source of random samples. It is not that of the weights: the first image would be the first layer."""
        return torch.Generator(self.device).manual_seed(self.params.seed + 0x5E12_7E00)


class Answering(ABC):
    """A network and its samples. It is made in float32 and cast later, so that all precisions have the same weights."""

    # Whether samples are numbers that take the network's precision; token numbers stay whole.
    pictures: ClassVar[bool] = False
    net: nn.Module
    samples: Tensor
    # What is right for samples that were made to be learned.
    labels: Tensor | None = None

    def spread(self) -> None:  # noqa: B027 - most have nothing to do
        """Change random weights so that what follows the network has as much to do as with trained ones."""

    def chosen(self, indices: Sequence[int]) -> Tensor:
        """Return a batch. One sample is a view: nothing is copied before it is computed."""
        return self.samples[indices[0]][None] if len(indices) == 1 else self.samples[list(indices)]

    @abstractmethod
    def compute(self, batch: Tensor) -> Tensor:
        """Answer a batch: int32, (samples, words)."""


def random_images(setup: Setup, px: int) -> Tensor:
    shape = (setup.library, 3, px, px)
    return torch.randn(shape, generator=setup.generator(), device=setup.device)


@dataclass(frozen=True)
class ImageModel:
    build: Callable[[int], nn.Module]
    px: int
    classes: int


def _of_zoo(model: Model) -> ImageModel:
    return ImageModel(partial(BUILDERS[model.name], model), model.image_px, model.classes)


# 1001 classes: the first is "background", as in TensorFlow's and MLPerf's.
MOBILENET = ImageModel(mobile.mobilenet_v1, 224, 1001)


def outputs_of(model: ImageModel, weights: Mapping[str, Tensor] | None) -> int:
    """Return how many classes a network has: as many as its last layer in the file with the weights, if there is one."""
    if weights is None:
        return model.classes
    with torch.device("meta"):
        last = [name for name, module in model.build(model.classes).named_modules() if isinstance(module, nn.Linear)][
            -1
        ]
    found = weights.get(f"{last}.weight")
    return model.classes if found is None or found.dim() != 2 else len(found)


def image_model(name: str) -> ImageModel:
    source = SERVED[name].source
    return MOBILENET if source == "mobilenet_v1" else _of_zoo(MODELS[source])


# Images that can be learned: how many classes, each a coarse pattern, the noise in it, and images of a class to learn from.
LEARNED, PATTERN_PX, NOISE, EXAMPLES = 10, 4, 0.5, 4
# As far as the bytes of a picture go, normalised.
BRIGHTEST = 1.75
COMPUTED_TOGETHER = 16


class Classifier(Answering):
    """Answers with the class that the network thinks likeliest."""

    pictures = True

    def __init__(self, setup: Setup) -> None:
        self.model = model = image_model(setup.name)
        self._setup = setup
        with setup.device:
            self.net = build_with(partial(model.build, outputs_of(model, setup.weights)))
        self.samples = random_images(setup, model.px) if setup.samples is None else setup.samples

    def compute(self, batch: Tensor) -> Tensor:
        logits: Tensor = self.net(batch)
        return logits.argmax(1).int()[:, None]

    @torch.inference_mode()
    def spread(self) -> None:
        """For a run that judges answers, make images that can be learned, and learn them.

        The last layer is solved for, not trained: the class whose mean features are nearest wins. So it is made within seconds,
        the same way each time, for a network of any size.
        """
        if not self._setup.params.accuracy or self._setup.samples is not None:
            return
        generator, device, px = self._setup.generator(), self._setup.device, self.model.px
        coarse = torch.randn((LEARNED, 3, PATTERN_PX, PATTERN_PX), generator=generator, device=device)
        patterns = F.interpolate(coarse, (px, px), mode="nearest")

        def images(labels: Tensor) -> Tensor:
            noise = torch.randn((len(labels), 3, px, px), generator=generator, device=device)
            return (patterns[labels] + NOISE * noise).clamp_(-BRIGHTEST, BRIGHTEST)

        learned = torch.arange(LEARNED * EXAMPLES, device=device) % LEARNED
        labels = torch.arange(self._setup.library, device=device) % LEARNED
        self.samples, self.labels = images(labels), labels.cpu()
        self.learn(images(learned), learned)

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """Solve for the last layer, so that images like these get their labels: numbers below `LEARNED`, each of which occurs."""
        last = [module for module in self.net.modules() if isinstance(module, nn.Linear)][-1]
        seen: list[Tensor] = []
        handle = last.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].double()))
        self.net.eval()
        for part in images.split(COMPUTED_TOGETHER):
            self.net(part)
        handle.remove()
        features = torch.cat(seen)
        means = torch.stack([features[labels == label].mean(0) for label in range(LEARNED)])
        middle = means.mean(0)
        # By their spread within a class: a feature that is only noise counts little.
        spread = (features - means[labels]).square().mean(0)
        towards = (means - middle) / (spread + spread.mean() + torch.finfo(spread.dtype).tiny)
        last.weight.zero_()
        last.bias.fill_(float(torch.finfo(torch.float16).min))
        last.weight[:LEARNED] = towards
        last.bias[:LEARNED] = -(towards * (means + middle) / 2).sum(1)
