"""The tree of modules that hold a portable model's parameters: containers, and layers of torch where they were that.

Layers are of torch's own classes where the packed model had them, so that everything that knows layers by their types
still does: batch normalisation by its mode, directions by filters, the engines that fold, fuse and superpose.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from landscape.model.packed_rules import largest

PATH = re.compile(r"\w{1,200}(\.\w{1,200})*", re.ASCII)
NUMBERS = (bool, int, float, type(None))
# The layers that are made again, each with the options that its class takes, as it has them in attributes.
_CONVOLUTION = (
    "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode",
)  # fmt: skip
_TRANSPOSED = (*_CONVOLUTION, "output_padding")
_NORM = ("num_features", "eps", "momentum", "affine", "track_running_stats")
LAYERS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "Linear": (nn.Linear, ("in_features", "out_features")),
    "Conv1d": (nn.Conv1d, _CONVOLUTION),
    "Conv2d": (nn.Conv2d, _CONVOLUTION),
    "Conv3d": (nn.Conv3d, _CONVOLUTION),
    "ConvTranspose1d": (nn.ConvTranspose1d, _TRANSPOSED),
    "ConvTranspose2d": (nn.ConvTranspose2d, _TRANSPOSED),
    "ConvTranspose3d": (nn.ConvTranspose3d, _TRANSPOSED),
    "BatchNorm1d": (nn.BatchNorm1d, _NORM),
    "BatchNorm2d": (nn.BatchNorm2d, _NORM),
    "BatchNorm3d": (nn.BatchNorm3d, _NORM),
    "LayerNorm": (nn.LayerNorm, ("normalized_shape", "eps")),
    "GroupNorm": (nn.GroupNorm, ("num_groups", "num_channels", "eps")),
    "Embedding": (nn.Embedding, ("num_embeddings", "embedding_dim", "padding_idx")),
}
WITH_BIAS = {name for name in LAYERS if name.startswith(("Linear", "Conv"))}
LARGEST = 1 << 40  # of a number of channels, as the layers are made without memory


def options_of(module: nn.Module) -> dict[str, Any] | None:
    """What a layer is made from again; None where it is no plain layer of torch's, or has more than its class."""
    kind = type(module).__name__
    plain = kind in LAYERS and type(module) is LAYERS[kind][0] and "forward" not in vars(module)
    if not plain or getattr(module, "padding_mode", "zeros") != "zeros":
        return None
    return {name: getattr(module, name) for name in LAYERS[kind][1]}


def make_layer(kind: str, options: Mapping[str, Any], *, bias: bool) -> nn.Module:
    """A layer of torch's without memory, whose parameters are set afterwards.

    Raises:
        ValueError: there is no such layer, or it takes no such options.
    """
    if kind not in LAYERS or set(options) != set(LAYERS[kind][1]):
        raise ValueError(f"a layer {str(kind)[:40]!r} that is none")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    for name, value in values.items():
        _check_option(name, value)
    if kind in WITH_BIAS:
        values["bias"] = bias
    try:
        return LAYERS[kind][0](**values, device="meta")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"a layer {kind} that cannot be made: {str(error)[:80]}") from None


def _check_option(name: str, value: Any) -> None:
    numbers = value if isinstance(value, tuple) else (value,)
    words = ("zeros",) if name == "padding_mode" else ("same", "valid") if name == "padding" else ()
    if value not in words and not all(
        type(each) in NUMBERS and abs(each or 0) < min(LARGEST, largest(name)) for each in numbers
    ):
        raise ValueError(f"a layer's {name} that is no number")


def build_tree(root: nn.Module, entries: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> None:
    """Put modules, parameters and buffers into a module, in their order and under their names.

    Args:
        entries: of every module its `path` ('' of the root), `parameters` {name: [tensor, trained]} and `buffers`
            {name: [tensor, saved]}, whose tensors are named in `tensors` and None where there is none; `layer` with
            `options` where it is a layer of torch's; or `same` as the module at another path.
        tensors: by the names in the entries; what two entries name is tied.

    Raises:
        ValueError: an entry is none.
    """
    modules: dict[str, nn.Module] = {"": root}
    parameters: dict[str, nn.Parameter] = {}
    for entry in entries:
        path = entry["path"]
        if path:
            if not isinstance(path, str) or not PATH.fullmatch(path) or path in modules:
                raise ValueError(f"a module at {str(path)[:60]!r}")
            parent, _, name = path.rpartition(".")
            module = modules[entry["same"]] if "same" in entry else _made(entry)
            modules[path] = module
            modules[parent].add_module(name, module)
            if "same" in entry:
                continue
        _fill(modules[path], entry, tensors, parameters)


def _made(entry: Mapping[str, Any]) -> nn.Module:
    if "layer" not in entry:
        return nn.Module()
    return make_layer(entry["layer"], entry["options"], bias=entry["parameters"].get("bias") is not None)


def _fill(
    module: nn.Module, entry: Mapping[str, Any], tensors: Mapping[str, Tensor], known: dict[str, nn.Parameter]
) -> None:
    if "layer" in entry:
        # In the order in which the packed layer had them.
        module._parameters.clear()
        module._buffers.clear()
        module._non_persistent_buffers_set.clear()
    for name, value in entry["parameters"].items():
        _refuse_name(name)
        if value is None:
            module.register_parameter(name, None)
            continue
        tensor, trained = value
        if tensor not in known:
            known[tensor] = nn.Parameter(tensors[tensor], requires_grad=trained is True)
        module.register_parameter(name, known[tensor])
    for name, value in entry["buffers"].items():
        _refuse_name(name)
        tensor, saved = (None, True) if value is None else value
        module.register_buffer(name, None if tensor is None else tensors[tensor], persistent=saved is True)
    module.eval()


def _refuse_name(name: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"\w{1,200}", name, re.ASCII):
        raise ValueError(f"a parameter called {str(name)[:60]!r}")
