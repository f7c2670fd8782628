"""What the arithmetic must know about each parameter, read off the types of a model's modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvTransposeNd

NORM_LAYERS: tuple[type[nn.Module], ...] = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


@dataclass(frozen=True)
class ParameterInfo:
    """What the arithmetic must know about one parameter, read off its module's type.

    Attributes:
        role: `norm` in a normalisation layer, else `bias` for tensors of at most one dimension, else `weight`; fused
            experts have one dimension more.
        trainable: whether directions may move it: it requires gradients and holds real floating-point numbers.
        transposed_groups: the number of groups of a layer whose dimension 0 is the *input*: those of a transposed
            convolution, 1 for GPT-2's `Conv1D`; 0 for all other parameters, whose dimension 0 is the output.
        experts: in which order fused experts hold their weights after dimension 0, which counts the experts.
    """

    name: str
    shape: tuple[int, ...]
    role: Literal["weight", "bias", "norm"]
    trainable: bool
    transposed_groups: int = 0
    experts: Literal["", "output first", "input first"] = ""


def trainable_matrices(model: nn.Module) -> tuple[ParameterInfo, ...]:
    """The trainable parameters of two dimensions or more: neither biases nor what normalisation layers scale by."""
    return tuple(info for info in describe_parameters(model) if info.trainable and len(info.shape) > 1)


def describe_parameters(model: nn.Module) -> tuple[ParameterInfo, ...]:
    """One `ParameterInfo` per parameter of `model`, tied ones once, in the order of `named_parameters`.

    A model that was packed says them itself, as its modules are no longer of the types that told them.

    >>> [(info.name, info.role) for info in describe_parameters(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))]
    [('0.weight', 'weight'), ('0.bias', 'bias'), ('1.weight', 'norm'), ('1.bias', 'norm')]
    """
    described = getattr(model, "described", None)
    if isinstance(described, tuple) and all(isinstance(info, ParameterInfo) for info in described) and described:
        return described
    owners = {
        f"{prefix}.{name}" if prefix else name: module
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name, _ in module.named_parameters(recurse=False, remove_duplicate=False)
    }
    return tuple(_describe(name, parameter, owners[name]) for name, parameter in model.named_parameters())


def _describe(name: str, parameter: nn.Parameter, owner: nn.Module) -> ParameterInfo:
    experts = _experts_order(parameter, owner)
    role: Literal["weight", "bias", "norm"] = "bias" if parameter.dim() - bool(experts) <= 1 else "weight"
    if is_norm_layer(owner):
        role = "norm"
    return ParameterInfo(
        name,
        tuple(parameter.shape),
        role,
        parameter.requires_grad and parameter.is_floating_point(),
        _transposed_groups(parameter, owner),
        experts,
    )


def _transposed_groups(parameter: nn.Parameter, owner: nn.Module) -> int:
    """The groups of a layer that holds [in, out, …]; 0 where the output comes first.

    `Conv1D` of transformers (GPT-2, GPT, ImageGPT) is a linear layer with a weight [in, nf]. It is known by its name
    and its `nf`, as this package does without transformers.
    """
    if isinstance(owner, _ConvTransposeNd) and parameter.dim() > 1:
        return int(owner.groups)
    outputs = getattr(owner, "nf", None) if type(owner).__name__ == "Conv1D" else None
    return 1 if parameter.dim() == 2 and outputs == parameter.shape[1] else 0


def _experts_order(parameter: nn.Parameter, owner: nn.Module) -> Literal["", "output first", "input first"]:
    """The order of a parameter that holds all experts of a mixture: [expert, out, in] by default; empty for others.

    transformers marks the modules that hold [expert, in, out] (GPT-OSS) with `is_transposed`. A parameter [expert, out]
    beside such a weight is the bias of the experts.
    """
    if not type(owner).__name__.endswith("Experts"):
        return ""
    counts = {weight.shape[0] for weight in owner.parameters(recurse=False) if weight.dim() == 3}
    if parameter.dim() not in (2, 3) or parameter.shape[0] not in counts:
        return ""
    return "input first" if getattr(owner, "is_transposed", False) is True else "output first"


def in_first_version(infos: Sequence[ParameterInfo]) -> tuple[ParameterInfo, ...]:
    """The same parameters as version 0.1.0 described them. Random directions that it kept as seeds are drawn by these.

    That version took the first dimension of every weight, except those of transposed convolutions, for the output.
    """
    return tuple(_in_first_version(info) for info in infos)


def _in_first_version(info: ParameterInfo) -> ParameterInfo:
    # A transposed convolution has three dimensions at least.
    groups = 0 if len(info.shape) == 2 else info.transposed_groups
    role = "weight" if info.role == "bias" and len(info.shape) > 1 else info.role
    return replace(info, role=role, transposed_groups=groups, experts="")


def is_norm_layer(module: nn.Module) -> bool:
    """Whether a module normalises: by its type, or by a class name that ends in 'Norm' (those of other libraries)."""
    return isinstance(module, NORM_LAYERS) or type(module).__name__.rstrip("123d").endswith(("Norm", "FrozenBatchNorm"))
