"""The weights of a model as named tensors: their roles, states of a model, files matched to it, and arithmetic."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvTransposeNd

from landscape.core.errors import JobError
from landscape.model.shards import gathering_modules, is_sharded, reshard, whole_tensor

# ----------------------------------------------------------------------------------------------------
# The role of each parameter, from the types of a model's modules.

NORM_LAYERS: tuple[type[nn.Module], ...] = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


@dataclass(frozen=True)
class ParameterInfo:
    """The properties of one parameter that arithmetic needs, from its module's type.

    Attributes:
        role: `norm` in a normalisation layer, else `bias` for tensors of at most one dimension, else `weight`; fused
            experts have one dimension more.
        trainable: whether directions may move it: it requires gradients and holds real floating-point numbers.
        transposed_groups: the number of groups of a layer whose dimension 0 is the *input*: those of a transposed
            convolution, 1 for GPT-2's `Conv1D`; 0 for all other parameters, whose dimension 0 is the output.
        experts: the order of the dimensions of fused experts after dimension 0, which counts the experts.
    """

    name: str
    shape: tuple[int, ...]
    role: Literal["weight", "bias", "norm"]
    trainable: bool
    transposed_groups: int = 0
    experts: Literal["", "output first", "input first"] = ""


def trainable_matrices(model: nn.Module) -> tuple[ParameterInfo, ...]:
    """The trainable parameters of two dimensions or more: neither biases nor the scales of normalisation layers."""
    return tuple(info for info in describe_parameters(model) if info.trainable and len(info.shape) > 1)


def describe_parameters(model: nn.Module) -> tuple[ParameterInfo, ...]:
    """One `ParameterInfo` per parameter of `model`, tied ones once, in the order of `named_parameters`.

    A packed model holds them in `described`, since its modules no longer have the original types.

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
    """The groups of a layer with weights [in, out, …]; 0 if the output comes first.

    `Conv1D` of transformers (GPT-2, GPT, ImageGPT) is a linear layer with a weight [in, nf]. It is recognised by its
    name and its `nf`, without importing transformers.
    """
    if isinstance(owner, _ConvTransposeNd) and parameter.dim() > 1:
        return int(owner.groups)
    outputs = getattr(owner, "nf", None) if type(owner).__name__ == "Conv1D" else None
    return 1 if parameter.dim() == 2 and outputs == parameter.shape[1] else 0


def _experts_order(parameter: nn.Parameter, owner: nn.Module) -> Literal["", "output first", "input first"]:
    """The order of a parameter of all experts of a mixture: [expert, out, in] by default; empty for other parameters.

    transformers marks modules with [expert, in, out] (GPT-OSS) by `is_transposed`. A parameter [expert, out] beside
    such a weight is the bias of the experts.
    """
    if not type(owner).__name__.endswith("Experts"):
        return ""
    counts = {weight.shape[0] for weight in owner.parameters(recurse=False) if weight.dim() == 3}
    if parameter.dim() not in (2, 3) or parameter.shape[0] not in counts:
        return ""
    return "input first" if getattr(owner, "is_transposed", False) is True else "output first"


def is_norm_layer(module: nn.Module) -> bool:
    """Whether a module normalises, by its type, or by a class name that ends in 'Norm' (in other libraries)."""
    return isinstance(module, NORM_LAYERS) or type(module).__name__.rstrip("123d").endswith(("Norm", "FrozenBatchNorm"))


State = Mapping[str, Tensor]


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers in a model's state dict; tied ones once."""
    saved = set(model.state_dict())
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def targets_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter (tied ones once) and persistent buffer by its name: what directions and snapshots may set."""
    return {**dict(model.named_parameters()), **persistent_buffers(model)}


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy on the CPU of every parameter (tied ones once) and persistent buffer."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in targets_of(model).items()}


def gathered_state(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """The state of a model that is cut over processes, gathered tensor by tensor; all ranks must call this.

    Args:
        keep: whether to return it here; elsewhere the result is empty.
    """
    reshard(gathering_modules(model))
    state = {}
    for name, tensor in targets_of(model).items():
        whole = whole_tensor(tensor.detach())
        if keep:
            state[name] = whole.cpu().clone().contiguous()
    return state


LARGE = 1 << 28  # bytes of weights: larger models are copied where it cannot be avoided, and nowhere else


def is_large(model: nn.Module) -> bool:
    """Whether weights are too many to be copied without need, or are in a file, or cut over processes."""
    size = sum(tensor.nbytes for tensor in targets_of(model).values())
    return size > LARGE or bool(on_meta(model)) or is_sharded(model)


def on_meta(model: nn.Module) -> list[str]:
    """The names of the parameters and buffers that hold no numbers, as they are on torch's meta device."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return [name for name, tensor in tensors if tensor.is_meta]


def match_state(model: nn.Module, weights: State, subject: str) -> dict[str, Tensor]:
    """`weights` as a state of `model`: nothing missing, extra or misshapen, in the types of the model's tensors.

    `weights` may hold second names of tied weights and `num_batches_tracked`, or omit them. If no name fits, the model
    may be one part of the saved module, as in a Lightning module: `model.fc.weight` for `fc.weight`.

    Args:
        subject: the name of the weights in errors.

    Returns:
        A tensor on the CPU per parameter and persistent buffer of `model`.

    Raises:
        JobError: the weights are not those of such a model; names the tensors that differ.
    """
    own = targets_of(model)
    names = set(model.state_dict()) | set(own)
    if weights and not any(name in names for name in weights):
        weights = _part_of(weights, own)
    weights = _by_own_names(model, weights)
    optional = {name for name in own if name.endswith("num_batches_tracked")}
    missing = [name for name in own if name not in weights and name not in optional]
    extra = [name for name in weights if name not in names]
    misshapen = [
        f"{name} {tuple(weights[name].shape)} where the model has {tuple(own[name].shape)}"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    refuse_mismatch(subject, missing, extra, misshapen)
    return {name: weights.get(name, tensor).detach().cpu().to(tensor.dtype) for name, tensor in own.items()}


def _by_own_names(model: nn.Module, weights: State) -> State:
    """The weights with the first name of a tied parameter, if they hold it by another one alone."""
    first: dict[int, str] = {}
    renamed = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        own = first.setdefault(id(parameter), name)
        if own not in weights and name in weights:
            renamed[own] = weights[name]
    return {**weights, **renamed} if renamed else weights


def _part_of(weights: State, own: State) -> State:
    """The weights below the one prefix under which every tensor of the model exists.

    All weights if there is no such prefix, or more than one (a model and its moving average): the choice would be a
    guess.
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


def refuse_mismatch(subject: str, missing: Sequence[str], extra: Sequence[str], misshapen: Sequence[str]) -> None:
    """Refuse a file of tensors that does not fit the model.

    Args:
        subject: the name of the file in the error.
        missing, extra, misshapen: the tensors that do not fit; all are empty if the file fits.
    """
    kinds = (("missing", missing), ("extra", extra), ("misshapen", misshapen))
    differences = [f"{kind} {_first(names)}" for kind, names in kinds if names]
    if differences:
        raise JobError(f"{subject}: must hold one tensor per parameter of the model; {'; '.join(differences)}")


def _first(names: Sequence[str], most: int = 3) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def refuse_not_finite(weights: State, infos: Sequence[ParameterInfo], subject: str) -> None:
    """Refuse NaN in any tensor and infinity in parameters that train; buffers such as masks may hold infinity."""
    trained = {info.name for info in infos if info.trainable}
    for name, tensor in weights.items():
        if tensor.is_floating_point() or tensor.is_complex():
            bad = ~torch.isfinite(tensor) if name in trained else torch.isnan(tensor)
            if bool(bad.any()):
                raise JobError(
                    f"{subject}: must be finite, not NaN or infinity in {name} ({int(bad.sum())} of {bad.numel()} "
                    "values); take weights from before the training diverged"
                )


def holds_bfloat16(model: nn.Module) -> bool:
    """Whether a parameter of the model is in bfloat16."""
    return any(parameter.dtype is torch.bfloat16 for parameter in model.parameters())


def immobile(model: nn.Module, *, bfloat16_weights: bool = False) -> list[str]:
    """Warnings about weights that no direction moves because of their type, and about those computed in another type.

    Args:
        bfloat16_weights: whether weights in bfloat16 are computed in it.
    """
    parameters = dict(model.named_parameters())
    odd = {name: parameter for name, parameter in parameters.items() if not parameter.is_floating_point()}
    packed = [name for name, module in model.named_modules() if "quantized" in type(module).__module__.split(".")]
    half = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.is_floating_point() and parameter.itemsize < 4
    }
    if bfloat16_weights:
        half = {name: parameter for name, parameter in half.items() if parameter.dtype is not torch.bfloat16}
    warnings = []
    if odd:
        warnings.append(
            f"model: {_first(list(odd))} ({_types(odd)}) stay as they are, at the far end of a direction towards other "
            "weights too: only real floating-point weights move"
        )
    if packed:
        warnings.append(
            f"model: {_first(packed)} hold quantised weights, which stay as they are; for a landscape of all weights "
            "return the model before quantisation"
        )
    if half:
        warnings.append(
            f"model: {_first(list(half))} ({_types(half)}) are taken to the type that `precision` computes in, "
            "so that points between two of their values are points of their own"
        )
    return warnings


def _types(tensors: State) -> str:
    return ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}))


# ----------------------------------------------------------------------------------------------------
# Arithmetic on states; inputs stay unchanged.


def norm(state: State) -> float:
    """Euclidean norm over all tensors, accumulated in float64.

    >>> norm({"weight": torch.tensor([[2.0, 0.0]]), "bias": torch.tensor([1.0, 2.0])})
    3.0
    """
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in state.values()))


def dot(first: State, second: State) -> float:
    """Inner product over all tensors of `first`, accumulated in float64; `second` holds them too."""
    return sum(float((tensor.double() * second[name].double()).sum()) for name, tensor in first.items())


def layout(state: State, names: Iterable[str]) -> list[dict[str, Any]]:
    """The place of each tensor in the flattened vector: name, shape and offset, in elements."""
    places, offset = [], 0
    for name in names:
        places.append({"name": name, "shape": list(state[name].shape), "offset": offset})
        offset += state[name].numel()
    return places


def flatten(state: State, places: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """The tensors one after the other as a float32 vector; zeros for a tensor that `state` lacks."""
    size = sum(math.prod(place["shape"]) for place in places)
    return next(flat_pieces(state, places, size), np.zeros(0, np.float32))


def flat_pieces(state: State, places: Sequence[Mapping[str, Any]], width: int) -> Iterator[np.ndarray]:
    """The numbers of `flatten`, `width` at a time; one tensor and one piece are in memory."""
    left = sum(math.prod(place["shape"]) for place in places)
    piece, filled = np.zeros(min(width, left), np.float32), 0
    for place in places:
        size, start = math.prod(place["shape"]), 0
        numbers = state[place["name"]].reshape(-1).float().numpy() if place["name"] in state else None
        while start < size:
            taken = min(size - start, len(piece) - filled)
            if numbers is not None:
                piece[filled : filled + taken] = numbers[start : start + taken]
            start, filled = start + taken, filled + taken
            if filled == len(piece):
                yield piece
                left -= filled
                piece, filled = np.zeros(min(width, left), np.float32), 0


def unflatten(vector: np.ndarray, places: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The inverse of `flatten`; tensors that are all zero are left out, as they do not move."""
    state = {}
    for place in places:
        size = int(np.prod(place["shape"], dtype=np.int64))
        piece = vector[place["offset"] : place["offset"] + size]
        if piece.any():
            state[place["name"]] = torch.from_numpy(np.array(piece, np.float32)).reshape(place["shape"])
    return state


def state_digest(state: State) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names, in hexadecimal."""
    hashed = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def direction_digest(state: State) -> str:
    """The digest of a direction as it is stored: in float32, tensors that are zero throughout left out."""
    return state_digest({name: tensor.float() for name, tensor in state.items() if bool(tensor.any())})


# ----------------------------------------------------------------------------------------------------
# Filters and filter normalisation.

EPSILON = 1e-10  # Li et al. 2018, as in their published code


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
    """The inverse of `filter_view`: the tensor from its rows, one per output filter."""
    if info.experts == "input first" and len(info.shape) == 3:
        count, inputs, outputs = info.shape
        return rows.reshape(count, outputs, inputs).transpose(1, 2).contiguous()
    if not info.transposed_groups:
        return rows.reshape(info.shape)
    groups = info.transposed_groups
    grouped = rows.reshape(groups, info.shape[1], info.shape[0] // groups, *info.shape[2:]).transpose(1, 2)
    return grouped.reshape(info.shape).contiguous()


@dataclass(frozen=True)
class FilterScales:
    """A factor for every filter of one parameter, in the layout of the parameter as a matrix [rows, columns].

    The columns are all dimensions after the first; after the second, if the first counts experts. Row r has the factors
    `table[r // period]`: one for each column, or one for all of them.

    Attributes:
        leading: how many dimensions of the parameter are the rows.
        table: float32 [⌈rows / period⌉, columns or 1].
    """

    rows: int
    columns: int
    leading: int
    table: Tensor
    period: int = 1

    @classmethod
    def uniform(cls, info: ParameterInfo, factor: float) -> FilterScales:
        """The same factor for all filters."""
        rows, columns, leading = _matrix_of(info)
        return cls(rows, columns, leading, torch.tensor([[factor]], dtype=torch.float32), max(rows, 1))

    @classmethod
    def of(cls, info: ParameterInfo, factors: Tensor) -> FilterScales:
        """The scales with these factors [filters], in the order of `filter_view`."""
        rows, columns, leading = _matrix_of(info)
        factors = factors.float()
        if info.experts == "input first" and len(info.shape) == 3:
            return cls(rows, columns, leading, factors.view(info.shape[0], columns), info.shape[1])
        if info.transposed_groups:
            groups = info.transposed_groups
            table = factors.view(groups, info.shape[1], 1).expand(-1, -1, columns // info.shape[1])
            return cls(rows, columns, leading, table.reshape(groups, columns), rows // groups)
        return cls(rows, columns, leading, factors.view(-1, 1))

    def rectangle(self, rows: range, columns: range, device: torch.device | str = "cpu") -> Tensor:
        """The factors of a part of the matrix, to multiply it with: [rows or 1, columns or 1]."""
        first, last = rows.start // self.period, (rows.stop - 1) // self.period
        table = self.table[first : last + 1]
        if table.shape[1] > 1:
            table = table[:, columns.start : columns.stop]
        if self.period > 1 and last > first:
            places = torch.arange(rows.start, rows.stop) // self.period - first
            table = table.index_select(0, places)
        return table.to(device)

    def times(self, tensor: Tensor) -> Tensor:
        """The tensor with its filters multiplied by their factors, float32."""
        whole = self.rectangle(range(self.rows), range(self.columns))
        return (tensor.float().reshape(self.rows, self.columns) * whole).view(tensor.shape)


def _matrix_of(info: ParameterInfo) -> tuple[int, int, int]:
    """The rows and columns of a parameter as the matrix of `FilterScales`, and how many dimensions the rows are."""
    leading = min(len(info.shape), 2 if info.experts else 1)
    return math.prod(info.shape[:leading]), math.prod(info.shape[leading:]), leading


AT_ONCE = 1 << 20  # numbers of which the squares are in memory, if a filter has no more


def filter_squares(tensor: Tensor, info: ParameterInfo) -> Tensor:
    """Σ x² over every output filter, float64 [filters], in an order that depends on the filter's size alone.

    The second half of the squares is added to the first half until one is left, so that neither the number of threads
    nor the instructions of a processor change the sum.
    """
    rows = filter_view(tensor, info)
    at_once = max(1, AT_ONCE // max(1, rows.shape[1]))
    return torch.cat([_halved(piece.to(torch.float64, copy=True).square_()) for piece in torch.split(rows, at_once)])


def _halved(rows: Tensor) -> Tensor:
    """The sum of every row [rows, n] → [rows]; the rows are overwritten."""
    count = rows.shape[1]
    while count > 1:
        half = (count + 1) // 2
        rows[:, : count - half] += rows[:, half:count]
        count = half
    return rows[:, 0].clone() if rows.shape[1] else rows.new_zeros(len(rows))


def filter_scales(
    direction: State, origin: State, infos: Sequence[ParameterInfo], normalise: Literal["filter", "layer", "model"]
) -> dict[str, FilterScales]:
    """The factors that scale a direction d to the weights w of the origin (Li et al. 2018, §4).

    filter: ‖w_f‖/(‖d_f‖+ε) for every output filter f · layer: the same for a tensor · model: the same for all tensors.
    ε = 1e-10, so zero weights give a zero direction and never NaN. They are computed in float64, tensor by tensor, and
    rounded to float32.

    Args:
        infos: the parameters that the direction moves.
    """

    def norms(state: State, info: ParameterInfo) -> Tensor:
        squares = filter_squares(state[info.name], info)
        return (squares if normalise == "filter" else squares.new_tensor([math.fsum(squares.tolist())])).sqrt()

    if normalise == "model":
        whole, own = (
            math.sqrt(math.fsum(float(norms(state, info)) ** 2 for info in infos)) for state in (origin, direction)
        )
        return {info.name: FilterScales.uniform(info, whole / (own + EPSILON)) for info in infos}
    ratios = {info: norms(origin, info) / (norms(direction, info) + EPSILON) for info in infos}
    if normalise == "layer":
        return {info.name: FilterScales.uniform(info, float(ratio)) for info, ratio in ratios.items()}
    return {info.name: FilterScales.of(info, factors) for info, factors in ratios.items()}
