"""The weights of a model as named tensors: taken from it, matched to it, and refused where they cannot be its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from landscape.core.errors import JobError
from landscape.model.description import ParameterInfo

State = Mapping[str, Tensor]


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers of a model that its state dict holds; tied ones once."""
    saved = set(model.state_dict())
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy on the CPU of every parameter (tied ones once) and persistent buffer."""
    tensors = {**dict(model.named_parameters()), **persistent_buffers(model)}
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}


def match_state(model: nn.Module, weights: State, what: str) -> dict[str, Tensor]:
    """`weights` as a state of `model`: nothing missing, extra or misshapen, in the types of the model's tensors.

    `weights` may hold second names of tied weights and `num_batches_tracked`, or leave them out. Where no name fits as
    it is, the model may be one part of what was saved, as in a Lightning module: `model.fc.weight` for `fc.weight`.

    Args:
        what: how an error names the weights.

    Returns:
        A tensor on the CPU per parameter and persistent buffer of `model`.

    Raises:
        JobError: the weights are not those of such a model; names what differs.
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
    return {name: weights.get(name, tensor).detach().cpu().to(tensor.dtype) for name, tensor in own.items()}


def _part_of(weights: State, own: State) -> State:
    """The weights below the prefix under which every tensor of the model stands.

    All of them where there is no such prefix, or more than one (a model and its moving average), since it is unknown
    which of these is meant.
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
    """Refuse a file of tensors that does not fit the model.

    Args:
        what: how the error names the file.
        missing, extra, misshapen: the tensors that do not fit, by how they do not; all empty where the file fits.

    Raises:
        JobError: one of the lists is not empty; names its first tensors.
    """
    kinds = (("missing", missing), ("extra", extra), ("misshapen", misshapen))
    differences = [f"{kind} {_first(names)}" for kind, names in kinds if names]
    if differences:
        raise JobError(f"{what}: must hold one tensor per parameter of the model; {'; '.join(differences)}")


def _first(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def refuse_not_finite(weights: State, infos: Sequence[ParameterInfo], what: str) -> None:
    """Refuse NaN in any tensor and infinity in parameters that train; buffers such as masks may hold infinity.

    Args:
        what: how the error names the weights.

    Raises:
        JobError: names the first tensor that is not finite.
    """
    trained = {info.name for info in infos if info.trainable}
    for name, tensor in weights.items():
        if tensor.is_floating_point() or tensor.is_complex():
            bad = ~torch.isfinite(tensor) if name in trained else torch.isnan(tensor)
            if bool(bad.any()):
                raise JobError(
                    f"{what}: must be finite, not NaN or infinity in {name} ({int(bad.sum())} of {bad.numel()} "
                    "values); take weights from before the training diverged"
                )


def holds_bfloat16(model: nn.Module) -> bool:
    """Whether a parameter of the model is in bfloat16."""
    return any(parameter.dtype is torch.bfloat16 for parameter in model.parameters())


def immobile(model: nn.Module, *, bfloat16_weights: bool = False) -> list[str]:
    """Warnings of weights that no direction moves because of their type, and of those computed in another type.

    Args:
        bfloat16_weights: whether those in bfloat16 are computed as they are.
    """
    parameters = dict(model.named_parameters())
    odd = {name: each for name, each in parameters.items() if not each.is_floating_point()}
    packed = [name for name, module in model.named_modules() if "quantized" in type(module).__module__.split(".")]
    half = {name: each for name, each in parameters.items() if each.is_floating_point() and each.itemsize < 4}
    if bfloat16_weights:
        half = {name: each for name, each in half.items() if each.dtype is not torch.bfloat16}
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
