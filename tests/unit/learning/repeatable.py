"""A round of training whose digest two processes compare: `python -m tests.unit.learning.repeatable SEED`."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from hanse.learning.classification import guided_loss
from hanse.learning.local_training import train
from hanse.learning.networks.small_cnn import SmallCNN
from hanse.learning.training_options import TrainingOptions

X = torch.linspace(-1, 1, 12 * 64).reshape(12, 1, 8, 8).sin()


class Cloud:
    """Twelve images, changed at random."""

    def batch(self, rows: Any, generator: Generator | None) -> tuple[Tensor, Tensor]:
        assert generator is not None
        return X[rows] + torch.rand((len(rows), 1, 8, 8), generator=generator), torch.from_numpy(rows % 3)

    def objective(self, network: nn.Module) -> Any:
        return guided_loss(network, classifier="fc", guide=0.5)


def trained(seed: int) -> str:
    """The digest of a network after a round on one thread."""
    torch.manual_seed(0)
    network = SmallCNN(classes=3, width=2)
    options = TrainingOptions(batch_size=4, local_epochs=2)
    train(network, Cloud(), np.arange(12), options, rate=0.1, seed=seed, shared={})
    digest = hashlib.sha256()
    for tensor in network.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(trained(int(sys.argv[1])))
