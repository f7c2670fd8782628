"""Which layers of a model have Kronecker factors, which are LayerNorms, and which parameters are left first order."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from landscape.core.errors import MOST_NAMES, JobError
from landscape.training.thor.blocks import Split
from landscape.training.thor.factors import MOMENTS
from landscape.training.thor.optim_inverses import Inverse
from landscape.training.thor.statistics import Factors, Statistics

# First order by the algorithm, so that no warning names them.
SILENT = (nn.modules.batchnorm._NormBase, nn.GroupNorm)


@dataclass(eq=False)
class Layer:
    """A weight with Kronecker factors, and what is known of its curvature.

    Attributes:
        name: of its first module in the model; the model's type where that is the layer itself.
        modules: all that multiply by this weight; their uses count as positions of one layer.
        inputs, outputs: how its factors A [I, I] and G [O, O] are cut into blocks.
        pending: sums since the last step, where statistics are gathered.
        factors: those that the inverse was made of, or their moving average.
        traces: tr A and tr G of the factors whose inverse is in use.
        inverse: None as long as the layer is trained first order.
        frozen: whether the trace rule has ended its refreshes.
        is_told: whether a line has said that no statistics of it arrive, or that the model has it no more.
    """

    name: str
    modules: tuple[nn.Module, ...]
    weight: nn.Parameter
    inputs: Split
    outputs: Split
    pending: Statistics | None = None
    factors: Factors | None = None
    traces: tuple[float, float] | None = None
    inverse: Inverse | None = None
    frozen: bool = False
    is_told: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Of statistics, factors and inverses: float64 for weights in float64, else float32."""
        return torch.float64 if self.weight.dtype == torch.float64 else torch.float32

    @property
    def cost(self) -> int:
        """Of an inversion, up to a factor."""
        return self.inputs.cost + self.outputs.cost

    def preconditioned(self, gradient: Tensor) -> Tensor:
        """G⁻¹·∇W·A⁻¹ in the weight's own shape; the gradient itself where there is no inverse."""
        if self.inverse is None:
            return gradient
        dtype = self.inverse.a[0].dtype  # of a refresh before `model.to(dtype)`, up to the next one
        if isinstance(self.modules[0], nn.Embedding):  # its weight is [I, O]
            return self.inverse.between(gradient.t().to(dtype)).t().to(gradient.dtype)
        matrix = self.inverse.between(gradient.flatten(1).to(dtype))
        return matrix.reshape(gradient.shape).to(gradient.dtype)


@dataclass(eq=False)
class Norm:
    """A LayerNorm, whose weight and bias are divided by their squared gradients.

    Attributes:
        pending: samples that it saw since the last step.
        samples: of the last refresh; 0 before the first.
    """

    name: str
    module: nn.LayerNorm
    weight: nn.Parameter
    pending: float = 0.0
    samples: float = 0.0

    def preconditioned(self, gradient: Tensor, damping: float) -> Tensor:
        """g/(g²/N + √λ), elementwise."""
        if not self.samples:
            return gradient
        return gradient / (gradient.square() / self.samples + math.sqrt(damping))


@dataclass
class Found:
    """The layers of a model, as an optimiser treats them.

    Attributes:
        unsupported: what is trained first order although it is no bias and no batch norm, in words.
    """

    layers: list[Layer] = field(default_factory=list)
    norms: list[Norm] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)

    def keeping(self, older: Found) -> Found:
        """These, with the layers in place that were found before: what is known of their curvature is kept."""
        layers = {id(layer.weight): layer for layer in older.layers}
        norms = {id(norm.module): norm for norm in older.norms}
        return Found(
            [layers.get(id(layer.weight), layer) for layer in self.layers],
            [norms.get(id(norm.module), norm) for norm in self.norms],
            self.unsupported,
        )


def find_layers(model: nn.Module, trained: Container[int], split_dim: int) -> Found:
    """The layers whose weights are trained.

    A weight that several modules of one type share is one layer. A weight shared by modules of different types, as by
    an embedding and the linear layer behind it, has no Kronecker factors.

    Args:
        trained: the `id` of each parameter that the optimiser trains.
        split_dim: the width of the blocks that factors are cut into.

    Raises:
        JobError: no layer has Kronecker factors, parameters have no shape as yet, or gradients are sparse.
    """
    modules, users = dict(model.named_modules()), _users(model, trained)
    found = Found()
    for owners in users.values():
        (name, module, key), *others = owners
        weight = getattr(module, key)
        if nn.parameter.is_lazy(weight):
            raise JobError(f"model: {name}.{key} must have a shape, not be lazy; call the model on a batch first")
        kinds = {kind_of(modules, owner, owned, role) for owner, owned, role in owners}
        kind = kinds.pop() if len(kinds) == 1 else None
        if not weight.numel():
            continue  # there is nothing to train
        if weight.is_complex():
            kind = None  # factors are real
        if kind in MOMENTS and len({_settings(owned) for _, owned, _ in owners}) == 1:
            found.layers.append(
                _layer(name or type(module).__name__, tuple(owned for _, owned, _ in owners), weight, split_dim)
            )
        elif kind is nn.LayerNorm and not others:
            if key == "weight":
                found.norms.append(Norm(name, module, weight))  # type: ignore[arg-type]
        elif kind is not nn.Identity:
            found.unsupported.append(_in_words(owners))
    if not found.layers:
        raise JobError(
            "model: must have a Linear, Conv1d, Conv2d or Embedding layer whose weights are trained, or there is "
            "nothing to precondition; take torch.optim.SGD"
        )
    return found


Owner = tuple[str, nn.Module, str]  # a module's name, the module, its own name of the parameter


def _users(model: nn.Module, trained: Container[int]) -> dict[int, list[Owner]]:
    """The modules that each trained parameter belongs to."""
    users: dict[int, list[Owner]] = defaultdict(list)
    for name, module in model.named_modules():
        if getattr(module, "sparse", False):
            raise JobError(f"model: {name} must be without `sparse`, since steps take dense gradients")
        for key, parameter in module._parameters.items():
            if parameter is not None and id(parameter) in trained:
                users[id(parameter)].append((name, module, key))
    return users


def kind_of(modules: dict[str, nn.Module], name: str, module: nn.Module, key: str) -> type[nn.Module] | None:
    """What says how a parameter is treated: a key of MOMENTS, LayerNorm, Identity for plain gradients; None: unknown.

    A subclass with a `forward` of its own may use its weight in another way: its type is not known.
    """
    parent = modules.get(name.rpartition(".")[0])
    if isinstance(module, SILENT):
        return nn.Identity
    forward = type(module).forward
    kind = next((kind for kind in (*MOMENTS, nn.LayerNorm) if forward is kind.forward), None)  # type: ignore[attr-defined]
    if isinstance(parent, nn.MultiheadAttention) and name:  # uses the weight of its last layer without calling it
        return nn.Identity if key == "bias" else None
    if kind is nn.LayerNorm:
        return kind
    if kind is None or getattr(module, "groups", 1) > 1 or getattr(module, "scale_grad_by_freq", False):
        return None
    # Weight norm and pruning have other parameters, of which the weight is made.
    return {"weight": kind, "bias": nn.Identity}.get(key)


def _settings(module: nn.Module) -> str:
    """What must be equal for modules to share factors, besides the weight."""
    return f"{type(module).__name__} {module.extra_repr()}"


def _layer(name: str, modules: tuple[nn.Module, ...], weight: nn.Parameter, split_dim: int) -> Layer:
    if isinstance(modules[0], nn.Embedding):
        words, dimensions = weight.shape
        return Layer(name, modules, weight, Split(words, 1), Split(dimensions, split_dim))
    outputs, inputs = weight.shape[0], weight[0].numel()
    return Layer(name, modules, weight, Split(inputs, split_dim), Split(outputs, split_dim))


def _in_words(owners: list[Owner]) -> str:
    """`decoder.weight (ConvTranspose2d)`, `embedding.weight = head.weight (shared)`."""
    names = [f"{name}.{key}" if name else key for name, _, key in owners]
    if len(owners) > 1:
        return f"{' = '.join(names)} (shared)"
    return f"{names[0]} ({type(owners[0][1]).__name__})"


def listed(names: list[str]) -> str:
    """The names in a line, not more than a line holds."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def modules_of(found: Found) -> Iterator[tuple[Layer | Norm, nn.Module]]:
    """Every module that statistics are gathered from, with its layer."""
    for layer in found.layers:
        for module in layer.modules:
            yield layer, module
    for norm in found.norms:
        yield norm, norm.module
