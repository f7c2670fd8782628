"""The network that is collected: found inside its wrappers, and refused where this process holds only a part of it."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from landscape.core.errors import JobError, shown


def unwrap(model: nn.Module) -> nn.Module:
    """The network itself, inside DistributedDataParallel, DataParallel and torch.compile in any order.

    Example:
        >>> network = nn.Linear(2, 1)
        >>> unwrap(nn.DataParallel(network)) is network
        True
    """
    while True:
        inner = getattr(model, "_orig_mod", None)  # torch.compile's name for it
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def refuse_incomplete(model: nn.Module) -> None:
    """Refuse a model whose weights this process does not hold, since its snapshots would be wrong without a word.

    Raises:
        JobError: a parameter has no shape yet, is sharded over processes, or has no data.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise JobError(f"model: {shown(name)} has no shape yet; run one batch through it before collecting")
        if type(parameter).__name__ in ("DTensor", "FlatParameter") or parameter.is_meta:
            raise JobError(
                f"model: {shown(name)} is sharded or without data (FSDP, meta device), which is not collected; save "
                "full checkpoints and import them: landscape import"
            )
