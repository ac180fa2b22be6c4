"""One rank of several that train the tiny ResNet of `fit/` for an epoch, and write what they have then: for test_fit_resnet.py.

`python resnet_ranks.py FILE`, with torchrun's variables.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fit_rig import fit_params
from stackmark.ranks import Rank, own_rank
from stackmark.workloads.fit.definition import FitParams
from stackmark.workloads.fit.impl import resnet
from stackmark.workloads.fit.impl.images import ImageSet, generate_images
from stackmark.workloads.fit.impl.learner import Bench
from stackmark.workloads.impl.process_group import Group, joined_as

CPU = torch.device("cpu")
ALONE = Rank(0, 1, 0, 1)
# Few images, of which a last step repeats some. The ranks do not all evaluate as many.
SMALL = partial(generate_images, train=150, test=75)
BATCH = 16


def small_images(_params: FitParams, _rank: Rank = ALONE) -> ImageSet:
    return SMALL()


def small_learner(rank: Rank = ALONE, group: Group | None = None, **given: Any) -> resnet.ResnetLearner:
    with patch.object(resnet, "load_images", small_images):
        return resnet.build(Bench(fit_params("resnet", **{"batch": BATCH, **given}), CPU, 1, rank, group))


def weights(learner: resnet.ResnetLearner) -> dict[str, torch.Tensor]:
    """Copy what the network has now, in the form that it can load."""
    found = learner.net.state_dict()
    found.update({name: tensor.clone() for name, tensor in found.items()})
    return found


def main(file: Path) -> None:
    rank = own_rank(os.environ)
    assert rank is not None
    torch.set_num_threads(1)
    with joined_as(rank, CPU) as group:
        learner = small_learner(rank, group)
        samples = learner.train_epoch(0)
        torch.save({"samples": samples, "trained": weights(learner), "quality": learner.evaluate()}, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
