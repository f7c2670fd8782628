"""A private copy of the user's model on a device, ready to be given weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from landscape.core.plan import Engine, Plan
from landscape.evaluation.engines.activations import ActivationRounding
from landscape.evaluation.model_state import ModuleState
from landscape.evaluation.private import private_copy
from landscape.evaluation.rounding import WeightRounding
from landscape.evaluation.table import layouts_of
from landscape.evaluation.weights import MovingWeights, lay_out
from landscape.model.parameters import State


class LoadedModel:
    """A private copy of the model in eval mode, in the plan's type and with its mode of batch normalisation.

    Args:
        model: is copied; the caller's is never touched.
        plan: its engine may change later, see `place`.

    Attributes:
        names: of the observables, in their order, once they were seen.
        hides_writes: whether user code is known to write to the model past torch's version counters.
        activations: rounds the inputs of layers; None where the plan does not quantise them.
    """

    def __init__(self, model: nn.Module, plan: Plan, device: torch.device) -> None:
        self.dtype = torch.float64 if plan.precision == "float64" else torch.float32
        copied, objects = private_copy(model)
        self.model = copied.to(device)
        take_to_type(self.model, plan)
        quantise = plan.quantise
        self._rounding = WeightRounding.of(self.model, quantise)
        self.activations = ActivationRounding(self.model, quantise.bits) if quantise and quantise.activations else None
        self.model.eval().requires_grad_(False)
        self._norms = [module for module in self.model.modules() if isinstance(module, _NormBase)]
        if plan.statistics.of_each_batch:
            _use_batch_statistics(self._norms)
        self.state = ModuleState(self.model, objects)
        self.names: tuple[str, ...] | None = None
        self.hides_writes = False

    def place(self, origin: State, directions: Sequence[State], engine: Engine) -> MovingWeights:
        """Set θ₀ and the axes, in the memory formats of an engine."""
        self.state.restore()
        if self.activations is not None:
            self.activations.forget()
        layouts = layouts_of(engine)
        lay_out(self.model, layouts)
        return MovingWeights(self.model, origin, directions, layouts, self._rounding)

    def recalibrating(self, batches: Iterable[tuple[int, Any]]) -> Iterator[Any]:
        """The batches; a model that has observed all of them has running statistics that are means over the batches.

        Everything else stays in eval mode.
        """
        momenta = [module.momentum for module in self._norms]
        for module in self._norms:
            module.reset_running_stats()
            module.train()
        for index, batch in batches:
            for module in self._norms:
                # A cumulative mean; what torch does for momentum None it does for batch normalisation only.
                module.momentum = 1 / (index + 1)
            yield batch
        for module, momentum in zip(self._norms, momenta, strict=True):
            module.momentum = momentum
            module.eval()


def take_to_type(model: nn.Module, plan: Plan) -> None:
    """Take the model's real floating-point tensors, in place, to the type that the plan holds them in.

    That is float64 or float32; where the plan rounds weights what is in bfloat16 stays in it.
    """
    # `Module.to(dtype)` would drop the imaginary part of complex weights; these leave them alone. They are torch's own,
    # as transformers refuses them to a model that was read from a quantised file, though its weights are plain numbers.
    if plan.precision == "float64":
        nn.Module.double(model)
    elif not plan.rounds_weights:
        nn.Module.float(model)
    else:
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point() and tensor.dtype is not torch.bfloat16:
                tensor.data = tensor.data.float()


def _use_batch_statistics(norms: Sequence[Any]) -> None:
    """Make normalisation layers use each batch's own statistics, and keep none, in eval mode as well."""
    for module in norms:
        module.track_running_stats = False
        module.running_mean = module.running_var = module.num_batches_tracked = None
