"""The callback of a landscape job: the model, the data, and what to observe per sample."""

import torch
from torch import nn

from landscape import Problem


def problem() -> Problem:
    """Called without arguments, on every worker. Replace the model and the data by your own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    # model.load_state_dict(torch.load("model.pt", weights_only=True))

    inputs = torch.randn(4096, 2)
    targets = (inputs[:, 0] * inputs[:, 1] > 0).long()
    # Data: tensors as here, a map-style Dataset, or an iterable of batches.
    return Problem.supervised(model, (inputs, targets), nn.CrossEntropyLoss(), metrics=["accuracy"])

    # Anything else that has one loss per sample:
    #   def observe(model, batch):
    #       return {"loss": ...}      # Tensor[N]; more names give more surfaces
    #   return Problem(model, data, observe)
