"""Pure arithmetic on named parameter tensors: what each is, its filters and norms, flattening, digests.

A *state* maps names to tensors: every parameter once (tied weights under their first name) and the
persistent buffers. All functions leave their inputs unchanged unless their name says `set`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvTransposeNd

from landscape.errors import JobError

State = Mapping[str, Tensor]

EPSILON = 1e-10  # Li et al. 2018, as in their published code
NORM_LAYERS: tuple[type[nn.Module], ...] = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


@dataclass(frozen=True)
class ParameterInfo:
    """What the arithmetic must know about one parameter, read off its module's type.

    `role` is `norm` in a normalisation layer, else `bias` for tensors of at most one dimension, else `weight`; fused
    experts have one dimension more. `transposed_groups` is the number of groups of a layer whose dimension 0 is the
    *input*: those of a transposed convolution, 1 for GPT-2's `Conv1D`; 0 for all other parameters, whose dimension 0
    is the output. `experts` says in which order fused experts, whose dimension 0 counts them, hold the rest.
    """

    name: str
    shape: tuple[int, ...]
    role: Literal["weight", "bias", "norm"]
    trainable: bool
    transposed_groups: int = 0
    experts: Literal["", "output first", "input first"] = ""


def describe_parameters(model: nn.Module) -> tuple[ParameterInfo, ...]:
    """One `ParameterInfo` per parameter of `model`, tied ones once, in the order of `named_parameters`."""
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
    """How a mixture of experts that keeps all of them in one parameter holds each: [expert, out, in] by default.

    transformers marks the modules that hold [expert, in, out] (GPT-OSS) with `is_transposed`. A parameter [expert, out]
    beside such a weight is their bias.
    """
    if not type(owner).__name__.endswith("Experts"):
        return ""
    counts = {each.shape[0] for each in owner.parameters(recurse=False) if each.dim() == 3}
    if parameter.dim() not in (2, 3) or parameter.shape[0] not in counts:
        return ""
    return "input first" if getattr(owner, "is_transposed", False) is True else "output first"


def in_first_version(infos: Sequence[ParameterInfo]) -> tuple[ParameterInfo, ...]:
    """What version 0.1.0 made of them, by which its random directions are drawn anew where they are kept as seeds.

    It took the first dimension of every weight but a transposed convolution's for its output.
    """
    return tuple(_in_first_version(info) for info in infos)


def _in_first_version(info: ParameterInfo) -> ParameterInfo:
    # A transposed convolution has three dimensions at least.
    groups = 0 if len(info.shape) == 2 else info.transposed_groups
    role = "weight" if info.role == "bias" and len(info.shape) > 1 else info.role
    return replace(info, role=role, transposed_groups=groups, experts="")


def is_norm_layer(module: nn.Module) -> bool:
    """A normalisation layer by its type, or by a class name that ends in 'Norm' (those of other libraries)."""
    return isinstance(module, NORM_LAYERS) or type(module).__name__.rstrip("123d").endswith(("Norm", "FrozenBatchNorm"))


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that a state dict holds; tied ones once."""
    saved = set(model.state_dict())
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy on the CPU of every parameter (tied ones once) and persistent buffer."""
    tensors = {**dict(model.named_parameters()), **persistent_buffers(model)}
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}


def match_state(model: nn.Module, weights: State, what: str) -> dict[str, Tensor]:
    """`weights` reduced to the state of `model`: nothing missing, extra or misshapen.

    Second names of tied weights may stand in `weights` or not; so may `num_batches_tracked`. Where no name fits as it
    is, the model may be one part of what was saved, as in a Lightning module: `model.fc.weight` for `fc.weight`.

    Raises:
        JobError: names what differs. `what` says whose weights they are.
    """
    own = {**dict(model.named_parameters()), **persistent_buffers(model)}
    names = set(model.state_dict()) | set(own)
    if weights and not any(name in names for name in weights):
        weights = _part_of(weights, own)
    optional = {name for name in own if name.endswith("num_batches_tracked")}
    missing = [name for name in own if name not in weights and name not in optional]
    extra = [name for name in weights if name not in names]
    misshapen = [
        f"{name} {tuple(weights[name].shape)} where the model has {tuple(own[name].shape)}"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    refuse_mismatch(what, missing, extra, misshapen)
    return {name: (weights.get(name, tensor)).detach().cpu().to(tensor.dtype) for name, tensor in own.items()}


def _part_of(weights: State, own: State) -> State:
    """The weights below the one prefix under which every tensor of the model is found; all of them where none is, or
    several are (a model and its moving average): which is meant cannot be told.
    """
    first = next(iter(own), "")
    needed = [name for name in own if not name.endswith("num_batches_tracked")]
    prefixes = [name[: -len(first)] for name in weights if first and name.endswith(f".{first}")]
    fitting = [
        prefix
        for prefix in prefixes
        if all(f"{prefix}{name}" in weights and weights[f"{prefix}{name}"].shape == own[name].shape for name in needed)
    ]
    if len(fitting) != 1:
        return weights
    return {name.removeprefix(fitting[0]): tensor for name, tensor in weights.items() if name.startswith(fitting[0])}


def refuse_mismatch(what: str, missing: Sequence[str], extra: Sequence[str], misshapen: Sequence[str]) -> None:
    """Raise one line that lists what of a file of tensors does not fit the model, if anything."""
    kinds = (("missing", missing), ("extra", extra), ("misshapen", misshapen))
    found = [f"{kind} {_some(names)}" for kind, names in kinds if names]
    if found:
        raise JobError(f"{what}: must hold one tensor per parameter of the model; {'; '.join(found)}")


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def refuse_not_finite(weights: State, infos: Sequence[ParameterInfo], what: str) -> None:
    """Refuse NaN in any tensor and infinity in parameters that train; buffers such as masks may hold infinity."""
    trained = {info.name for info in infos if info.trainable}
    for name, tensor in weights.items():
        if tensor.is_floating_point() or tensor.is_complex():
            bad = ~torch.isfinite(tensor) if name in trained else torch.isnan(tensor)
            if bool(bad.any()):
                raise JobError(
                    f"{what}: must be finite, not NaN or infinity in {name} ({int(bad.sum())} of {bad.numel()} "
                    "values); take weights from before the training diverged"
                )


def immobile(model: nn.Module) -> list[str]:
    """A line on weights that no direction moves for what they are, and on those computed in another type."""
    odd = [(name, each) for name, each in model.named_parameters() if not each.is_floating_point()]
    packed = [name for name, module in model.named_modules() if "quantized" in type(module).__module__.split(".")]
    half = [(name, each) for name, each in model.named_parameters() if each.is_floating_point() and each.itemsize < 4]
    found = []
    if odd:
        types = ", ".join(sorted({str(each.dtype).removeprefix("torch.") for _, each in odd}))
        names = _some([name for name, _ in odd])
        found.append(
            f"model: {names} ({types}) stay as they are, at the far end of a direction towards other weights too: "
            "only real floating-point weights move"
        )
    if packed:
        found.append(
            f"model: {_some(packed)} hold quantised weights, which stay as they are; for a landscape of all weights "
            "return the model before quantisation"
        )
    if half:
        types = ", ".join(sorted({str(each.dtype).removeprefix("torch.") for _, each in half}))
        found.append(
            f"model: {_some([name for name, _ in half])} ({types}) are taken to the type that `precision` computes in, "
            "so that points between two of their values are points of their own"
        )
    return found


def filter_view(tensor: Tensor, info: ParameterInfo) -> Tensor:
    """The tensor as [filters, elements], one row per output filter.

    Dimension 0 is the output of linear and convolution weights, of embeddings (one row per token) and of
    vectors (one element per unit). A transposed convolution holds [in, out/groups, …]: its output filter
    (g, j) is made of the input channels of group g, so [in, o, …] → [groups, in/groups, o, …] → [groups·o, …].
    Fused experts have a filter per expert and output: [e, out, in] → [e·out, in], and [e, in, out] likewise.
    """
    if tensor.dim() == 0:
        return tensor.reshape(1, 1)
    if info.experts:
        ordered = tensor.transpose(1, 2) if info.experts == "input first" and tensor.dim() == 3 else tensor
        return ordered.reshape(ordered.shape[0] * ordered.shape[1], math.prod(ordered.shape[2:]))
    if not info.transposed_groups:
        return tensor.reshape(tensor.shape[0], math.prod(tensor.shape[1:]))
    groups = info.transposed_groups
    grouped = tensor.reshape(groups, tensor.shape[0] // groups, *tensor.shape[1:]).transpose(1, 2)
    return grouped.reshape(groups * tensor.shape[1], math.prod(grouped.shape[2:]))


def filter_unview(rows: Tensor, info: ParameterInfo) -> Tensor:
    """The inverse of `filter_view`."""
    if info.experts == "input first" and len(info.shape) == 3:
        count, inputs, outputs = info.shape
        return rows.reshape(count, outputs, inputs).transpose(1, 2).contiguous()
    if not info.transposed_groups:
        return rows.reshape(info.shape)
    groups = info.transposed_groups
    grouped = rows.reshape(groups, info.shape[1], info.shape[0] // groups, *info.shape[2:]).transpose(1, 2)
    return grouped.reshape(info.shape).contiguous()


def scale_to_filters(direction: Tensor, weight: Tensor, info: ParameterInfo) -> Tensor:
    """Filter normalisation: d_f ← d_f · ‖w_f‖ / (‖d_f‖ + 1e-10) for every output filter f (Li et al. 2018, §4)."""
    rows, weights = filter_view(direction.double(), info), filter_view(weight.double(), info)
    scale = weights.norm(dim=1, keepdim=True) / (rows.norm(dim=1, keepdim=True) + EPSILON)
    return filter_unview(rows * scale, info)


def norm(state: State) -> float:
    """Euclidean norm over all tensors, accumulated in float64."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in state.values()))


def dot(first: State, second: State) -> float:
    """Inner product over all tensors, accumulated in float64."""
    return sum(float((tensor.double() * second[name].double()).sum()) for name, tensor in first.items())


def difference(first: State, second: State) -> dict[str, Tensor]:
    """first − second in float64, over the floating-point tensors of `second`."""
    return {
        name: first[name].double() - tensor.double() for name, tensor in second.items() if tensor.is_floating_point()
    }


def combine(origin: State, directions: Sequence[State], coordinates: Sequence[float]) -> dict[str, Tensor]:
    """θ = θ₀ + Σₖ cₖ·dₖ, in the type of θ₀; tensors that no direction names stay as they are."""
    found = dict(origin)
    for coordinate, direction in zip(coordinates, directions, strict=True):
        for name, tensor in direction.items():
            found[name] = torch.add(found[name], tensor.to(found[name].dtype), alpha=coordinate)
    return found


def layout(state: State, names: Iterable[str]) -> list[dict[str, Any]]:
    """Where each tensor lies in the flattened vector: name, shape and offset, in elements."""
    found, offset = [], 0
    for name in names:
        found.append({"name": name, "shape": list(state[name].shape), "offset": offset})
        offset += state[name].numel()
    return found


def flatten(state: State, places: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """The tensors one after the other as a float32 vector; zero where `state` lacks one."""
    pieces = [
        state[place["name"]].reshape(-1).float().numpy()
        if place["name"] in state
        else np.zeros(int(np.prod(place["shape"], dtype=np.int64)), np.float32)
        for place in places
    ]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def unflatten(vector: np.ndarray, places: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The inverse of `flatten`; tensors that are zero throughout are left out, as nothing moves them."""
    found = {}
    for place in places:
        size = int(np.prod(place["shape"], dtype=np.int64))
        piece = vector[place["offset"] : place["offset"] + size]
        if piece.any():
            found[place["name"]] = torch.from_numpy(np.array(piece, np.float32)).reshape(place["shape"])
    return found


def state_digest(state: State) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names."""
    found = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def direction_digest(state: State) -> str:
    """The digest of a direction as it is stored: in float32, tensors that are zero throughout left out."""
    return state_digest({name: tensor.float() for name, tensor in state.items() if bool(tensor.any())})
