"""A model's modules, parameters and buffers as plain values, in their order, tied ones by one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn

from landscape.core.errors import JobError, shown
from landscape.model.packed_graph import PATH, options_of
from landscape.model.parameters import describe_parameters


def described_tree(model: nn.Module) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """What `landscape.model.packed_graph.build_tree` makes the model's tree from: entries, and tensors by name.

    Raises:
        JobError: a module or parameter has a name that cannot be kept.
    """
    tensors = _Tensors()
    first: dict[int, str] = {}
    entries: list[dict[str, Any]] = []
    for path, module in model.named_modules(remove_duplicate=False):
        if path and not PATH.fullmatch(path):
            raise JobError(f"model: {shown(path)} cannot be packed under this name; rename the module in ASCII")
        if id(module) in first:
            entries.append({"path": path, "same": first[id(module)]})
            continue
        first[id(module)] = path
        entries.append({"path": path, **_described_module(path, module, tensors)})
    return entries, tensors.by_name


@dataclass
class _Tensors:
    """The tensors of a model by the first name of each, under which it is kept once."""

    by_name: dict[str, Tensor] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    def name_of(self, path: str, name: str, tensor: Tensor) -> str:
        whole = f"{path}.{name}" if path else name
        if not PATH.fullmatch(whole):
            raise JobError(f"model: {shown(whole)} cannot be packed under this name; rename the parameter in ASCII")
        if id(tensor) not in self._names:
            self._names[id(tensor)], self.by_name[whole] = whole, tensor
        return self._names[id(tensor)]


def _described_module(path: str, module: nn.Module, tensors: _Tensors) -> dict[str, Any]:
    """The entry of a module, which is not that of another path."""
    unsaved = module._non_persistent_buffers_set
    entry: dict[str, Any] = {
        "parameters": {
            name: None if each is None else [tensors.name_of(path, name, each), bool(each.requires_grad)]
            for name, each in module._parameters.items()
        },
        "buffers": {
            name: None if each is None else [tensors.name_of(path, name, each), name not in unsaved]
            for name, each in module._buffers.items()
        },
    }
    options = options_of(module)
    return entry if options is None else {**entry, "layer": type(module).__name__, "options": options}


def described_parameters(model: nn.Module) -> list[Mapping[str, Any]]:
    """What directions must know of each parameter, which the types of the packed modules no longer tell."""
    return [asdict(info) for info in describe_parameters(model)]
