"""A model as the graph of its operations, rewritten to compute the same in fewer passes over memory."""

from __future__ import annotations

from torch import fx, nn

from landscape.evaluation.engines.folding import fold_norms
from landscape.evaluation.engines.fusion import fuse
from landscape.evaluation.engines.pooling import use_maxima


class Traced:
    """A model with its batch normalisations folded into convolutions, or its layers fused with what follows, or both.

    It shares all other modules, and so their weights, with the one it was made of.

    Args:
        maxima: whether its max-pooling is by maxima.
        leave: layers to call as they are.

    Raises:
        ValueError: there is nothing to fold, or nothing to fuse.
        Exception: whatever tracing the model raises, such as for control flow that depends on the data.
    """

    def __init__(
        self, model: nn.Module, *, folded: bool = False, fused: bool = False, maxima: bool = False,
        leave: frozenset[nn.Module] = frozenset(),
    ) -> None:  # fmt: skip
        self.model = fx.symbolic_trace(model)
        self._folds = fold_norms(self.model, leave) if folded else []
        if folded and not self._folds and not leave:
            raise ValueError("no convolution is followed by a batch normalisation of its own")
        if fused and not fuse(self.model, leave) and not leave:
            raise ValueError("no layer is followed by anything that its kernel here could do")
        if maxima:
            use_maxima(self.model)
        self.model.delete_all_unused_submodules()
        self.model.graph.lint()
        self.model.recompile()
        self.model.eval().requires_grad_(False)

    def refresh(self) -> None:
        """Take over the weights that the model has now."""
        for each in self._folds:
            each.refresh()
