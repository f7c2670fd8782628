"""The outputs, weights and gradients of every layer of a network at one set of weights, over all samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from landscape.core.devices import is_out_of_memory
from landscape.core.errors import JobError, LandscapeError, message_of
from landscape.core.plan import Engine
from landscape.evaluation.derivatives import Differentiation
from landscape.evaluation.engines.base import arithmetic
from landscape.evaluation.evaluation_order import Walk
from landscape.evaluation.evaluator import Evaluator
from landscape.model.layer_rules import LayerFinding, Tensors, Thresholds, findings
from landscape.model.layer_statistics import statistics_of
from landscape.model.layer_watch import NetworkWatcher, WatchedLayer
from landscape.model.parameters import State, describe_parameters, targets_of
from landscape.problem.batches import Batch
from landscape.problem.supervised import Combination, Observe
from landscape.problem.user_code import in_words

# ----------------------------------------------------------------------------------------------------
# The factors that turn sums of losses into the mean loss, or into the sum of the means of its terms.


def loss_factors(totals: Sequence[Mapping[str, float]], observe: Observe) -> dict[str, float]:
    """f = λ / Σ wᵢ for the loss or for each of its terms, from the totals of all blocks in order.

    >>> loss_factors([{"loss": 3.0}, {"loss": 1.0}], lambda model, batch: {})
    {'loss': 0.25}
    """
    sums: dict[str, float] = {}
    for block in totals:
        for name, total in block.items():
            sums[name] = sums.get(name, 0.0) + total
    weights = observe.factors if isinstance(observe, Combination) else dict.fromkeys(sums, 1.0)
    return {name: weights[name] / total for name, total in sums.items()}


# ----------------------------------------------------------------------------------------------------

VARIANCE = "running_var"  # of normalisation layers: if it is all zero, they divide by nearly zero


@dataclass(frozen=True)
class LayersSeen:
    """The layers as watched at one set of weights.

    Attributes:
        layers: in the order of computation.
        weights: the parameters and the variances of norms, by name, in the model's order.
        gradients: of the mean loss with respect to the trainable parameters; None if the caller did not ask for them.
        no_gradients: why the requested gradients are missing.
    """

    layers: tuple[WatchedLayer, ...]
    weights: tuple[Tensors, ...]
    gradients: tuple[Tensors, ...] | None = None
    no_gradients: str = ""

    def findings(self, thresholds: Thresholds) -> list[LayerFinding]:
        """The rules that fire, in the order of computation: for each layer first its weights, then its outputs."""
        outputs = findings("outputs", [layer.seen() for layer in self.layers], thresholds)
        order = {layer.name: place for place, layer in enumerate(self.layers)}
        ordered = [(float(order[finding.layer]), finding) for finding in outputs]
        of_weights = findings("weights", self.weights, thresholds)
        ordered += [(self._first_use(finding.layer) - 0.5, finding) for finding in of_weights]
        gradients = findings("gradients", self.gradients or (), thresholds)
        return [finding for _, finding in sorted(ordered, key=lambda pair: pair[0])] + gradients

    def _first_use(self, parameter: str) -> float:
        """When a parameter is used: with the first layer of its module, or of a module that contains this module."""
        owner = parameter
        while owner:
            owner = owner.rpartition(".")[0]
            for place, layer in enumerate(self.layers):
                if layer.name == owner or layer.name.startswith((f"{owner}.", f"{owner}[", f"{owner} #")):
                    return float(place)
        return 0.0 if self.layers else 1.0


def layers_at(evaluator: Evaluator, point: Sequence[float], *, gradients: bool = False) -> LayersSeen:
    """Watch every layer at a point of an evaluator's axes, over all of its samples, operation by operation.

    The arithmetic is that of the evaluator's plan. Its engine is not used, as most do not call the layers one by one.

    Raises:
        JobError: the network cannot be watched, or raises; says in which layer.
    """
    plan = replace(evaluator.plan, engine=Engine(), batch_size=evaluator.batch_size)
    walk = evaluator.twin(plan).walk()
    outputs = tuple(_watch_outputs(walk, point, evaluator))
    with torch.no_grad():
        weights = walk.running.target.weights.state_at(point)
    seen = LayersSeen(outputs, tuple(_describe_weights(evaluator.model, weights)))
    if not gradients:
        return seen
    try:
        return replace(seen, gradients=tuple(_compute_gradients(evaluator, weights)))
    except LandscapeError as error:
        return replace(seen, no_gradients=message_of(error))
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return replace(seen, no_gradients=in_words(error))


def _watch_outputs(walk: Walk, point: Sequence[float], evaluator: Evaluator) -> list[WatchedLayer]:
    watcher, passes = NetworkWatcher(walk.running.target.model), list[None]()

    def batches() -> Iterator[tuple[int, Batch]]:
        passes.append(None)
        # If statistics of normalisation are recomputed, they have a pass of their own, which comes first.
        counts = len(passes) > 1 or not walk.recalibrates
        for index, batch in walk.batches():
            watcher.begin(on=counts)
            yield index, batch

    try:
        with arithmetic(evaluator.plan, evaluator.device), torch.no_grad(), watcher:
            for _ in replace(walk, batches=batches).points([list(point)]):
                pass
    except Exception as error:
        if isinstance(error, LandscapeError) or is_out_of_memory(error):
            raise
        where = f" in layer {watcher.where}" if watcher.where else ""
        raise JobError(f"the network{where} {in_words(error)}") from error
    finally:
        walk.running.close()
    return list(watcher.layers.values())


def _describe_weights(model: nn.Module, weights: State) -> Iterator[Tensors]:
    for name, tensor in targets_of(model).items():
        value, variance = weights.get(name, tensor), name.endswith(VARIANCE)
        if (variance or isinstance(tensor, nn.Parameter)) and _has_values(value):
            yield Tensors(name, statistics_of(value), dimensions=2 if variance else value.dim())


def _has_values(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized) and not tensor.is_meta


def _compute_gradients(evaluator: Evaluator, weights: State) -> list[Tensors]:
    """The gradients of the mean loss over all samples, in the model's order."""
    derivatives = Differentiation.beside(evaluator, weights)
    totals = [derivatives.totals(block) for block in range(derivatives.blocks)]
    factors: Mapping[str, float] = loss_factors(totals, evaluator.observe)
    whole = np.zeros(derivatives.size)
    for block in range(derivatives.blocks):
        whole += derivatives.gradient(block, factors).numpy()
    names = [info.name for info in describe_parameters(evaluator.model) if info.trainable and info.name in weights]
    parts = torch.split(torch.from_numpy(whole), [parameter.numel() for parameter in derivatives.parameters])
    return [
        Tensors(name, statistics_of(part), dimensions=parameter.dim())
        for name, part, parameter in zip(names, parts, derivatives.parameters, strict=True)
    ]
