"""Layers that the source calls as modules, and whose calls stand in the graphs as plain operations.

What is done to such a layer by its type, as a mode of batch normalisation or rounded activations do it, would reach the
source alone. The file names these layers, and jobs that would do it are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from landscape.evaluation.model_rounding import rounded_layers


def inlined_layers(
    model: nn.Module, run: Callable[[], object], graphs: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[str]]:
    """The inlined layers by their paths: `norms` have running statistics, `rounded` are linear ones and convolutions.

    Args:
        run: calls the model on a batch.
        graphs: what was made of it, see `landscape.model.packed_graph`.
    """
    norms = {path: each for path, each in model.named_modules() if isinstance(each, _NormBase)}
    kinds: dict[str, Mapping[str, nn.Module]] = {"norms": norms, "rounded": rounded_layers(model)}
    called = _called({path: layer for layers in kinds.values() for path, layer in layers.items()}, run)
    nodes = (node for graph in graphs.values() for node in graph["graph"]["nodes"])
    kept = {id(model.get_submodule(name)) for kind, name, *_ in nodes if kind == "layer"}
    return {
        kind: [path for path, layer in layers.items() if path in called and id(layer) not in kept]
        for kind, layers in kinds.items()
    }


def _called(layers: Mapping[str, nn.Module], run: Callable[[], object]) -> set[str]:
    """The layers that are called as modules while the model runs."""
    called: set[str] = set()
    hooks = [each.register_forward_pre_hook(lambda *_, path=path: called.add(path)) for path, each in layers.items()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return called
