"""A model's modules, parameters and buffers as plain values, in their order, tied ones by one name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from landscape.errors import JobError, shown
from landscape.parameters import describe_parameters
from landscape.portable.modules import PATH, options_of


def described_tree(model: nn.Module) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """What `landscape.portable.modules.build_tree` makes the model's tree from: entries, and tensors by name.

    Raises:
        JobError: a module or parameter has a name that cannot be kept.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    first: dict[int, str] = {}
    entries: list[dict[str, Any]] = []

    def known(path: str, name: str, tensor: Tensor) -> str:
        whole = f"{path}.{name}" if path else name
        if not re.fullmatch(PATH, whole):
            raise JobError(f"model: {shown(whole)} cannot be packed under this name; rename the parameter in ASCII")
        if id(tensor) not in names:
            names[id(tensor)], tensors[whole] = whole, tensor
        return names[id(tensor)]

    for path, module in model.named_modules(remove_duplicate=False):
        if path and not re.fullmatch(PATH, path):
            raise JobError(f"model: {shown(path)} cannot be packed under this name; rename the module in ASCII")
        if id(module) in first:
            entries.append({"path": path, "same": first[id(module)]})
            continue
        first[id(module)] = path
        passing = module._non_persistent_buffers_set
        entry: dict[str, Any] = {
            "path": path,
            "parameters": {
                name: None if each is None else [known(path, name, each), bool(each.requires_grad)]
                for name, each in module._parameters.items()
            },
            "buffers": {
                name: None if each is None else [known(path, name, each), name not in passing]
                for name, each in module._buffers.items()
            },
        }
        options = options_of(module)
        if options is not None:
            entry |= {"layer": type(module).__name__, "options": options}
        entries.append(entry)
    return entries, tensors


def described_parameters(model: nn.Module) -> list[Mapping[str, Any]]:
    """What directions must know of each parameter, which the types of the packed modules no longer tell."""
    return [asdict(info) for info in describe_parameters(model)]
