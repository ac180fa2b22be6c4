"""One rank of several that train a small Mask R-CNN of `fit/` for an epoch, and write what they have then: for
test_fit_maskrcnn.py.

`python maskrcnn_ranks.py FILE`, with torchrun's variables.
"""

import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fit_rig import fit_params
from stackmark.ranks import Rank, own_rank
from stackmark.workloads.fit.impl import maskrcnn, maskrcnn_data
from stackmark.workloads.fit.impl.learner import Bench
from stackmark.workloads.impl.process_group import Group, joined_as

CPU = torch.device("cpu")
ALONE = Rank(0, 1, 0, 1)
# The ranks do not all evaluate as many.
TRAINED, TESTED, BATCH = 24, 7, 4


def small_learner(rank: Rank = ALONE, group: Group | None = None, **given: Any) -> maskrcnn.MaskRcnnLearner:
    with patch.multiple(maskrcnn_data, TRAINED=TRAINED, TESTED=TESTED):
        params = fit_params("maskrcnn", **{"batch": BATCH, **given})
        return maskrcnn.build(Bench(params, CPU, 1, rank, group))


def main(file: Path) -> None:
    rank = own_rank(os.environ)
    assert rank is not None
    torch.set_num_threads(1)
    with joined_as(rank, CPU) as group:
        learner = small_learner(rank, group)
        torch.manual_seed(rank.number)
        samples = learner.train_epoch(0)
        trained = learner.net.state_dict()
        trained.update({name: tensor.clone() for name, tensor in trained.items()})
        torch.save({"samples": samples, "trained": trained, "quality": learner.evaluate()}, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
