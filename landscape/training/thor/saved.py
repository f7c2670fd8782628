"""What a layer's curvature is in a state dict: tensors, numbers and lists, which `weights_only` reads."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from landscape.core.errors import JobError
from landscape.training.thor.blocks import Blocks
from landscape.training.thor.layers import Layer
from landscape.training.thor.optim_inverses import Inverse
from landscape.training.thor.statistics import Factors

Curvature = tuple[Inverse | None, Factors | None, tuple[float, float] | None, bool]


def saved_layer(layer: Layer) -> dict[str, Any]:
    """The inverse, the averaged factors, the traces and whether it is frozen."""
    return {
        "name": layer.name,
        "shape": [layer.inputs.size, layer.outputs.size],
        "width": [layer.inputs.width, layer.outputs.width],
        "inverse": _pair(layer.inverse),
        "factors": _pair(layer.factors),
        "traces": None if layer.traces is None else list(layer.traces),
        "frozen": layer.frozen,
    }


def layer_from(layer: Layer, saved: dict[str, Any]) -> Curvature:
    """What `saved_layer` gave, on the layer's device.

    Raises:
        JobError: it was of a layer of other sizes, or split into other blocks.
    """
    sizes, widths = [layer.inputs.size, layer.outputs.size], [layer.inputs.width, layer.outputs.width]
    if saved["shape"] != sizes or saved["width"] != widths:
        raise JobError(
            f"optimizer: {layer.name} must have factors of {sizes} in blocks of {widths}, as in its state, not "
            f"{saved['shape']} in blocks of {saved['width']}; take the model and the split_dim that were saved"
        )
    inverse, factors, traces = saved["inverse"], saved["factors"], saved["traces"]
    return (
        None if inverse is None else Inverse(_blocks(inverse["a"], layer), _blocks(inverse["g"], layer)),
        None if factors is None else Factors(_blocks(factors["a"], layer), _blocks(factors["g"], layer)),
        None if traces is None else (traces[0], traces[1]),
        saved["frozen"],
    )


def own_state(state_dict: dict[str, Any]) -> dict[str, Any]:
    """What THOR adds to the state dict of an optimiser.

    Raises:
        JobError: it was another optimiser's, or something is missing.
    """
    own = state_dict.get("thor")
    if own is None:
        raise JobError("optimizer: must be the state of a THOR, not of another optimiser")
    missing = [name for name in ("steps", "interval", "due", "layers", "norms") if name not in own]
    if missing:
        raise JobError(f"optimizer: must be the whole state of a THOR; it lacks {', '.join(missing)}")
    return dict(own)


def paired(own: list[Any], saved: list[Any]) -> list[tuple[Any, Any]]:
    """Each layer with what was saved of it.

    Raises:
        JobError: there were more of them, or fewer.
    """
    if len(own) != len(saved):
        raise JobError(f"optimizer: must be the state of a model with {len(own)} such layers, not {len(saved)}")
    return list(zip(own, saved, strict=True))


def _pair(blocks: Inverse | Factors | None) -> dict[str, list[Tensor]] | None:
    return None if blocks is None else {"a": list(blocks.a), "g": list(blocks.g)}


def _blocks(saved: list[Tensor], layer: Layer) -> Blocks:
    return tuple(block.to(layer.weight.device, copy=True) for block in saved)
