"""Models whose weights are read from files: built without numbers, and read from a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary


@contextmanager
def without_weights() -> Iterator[None]:
    """Within the block, modules are built with their parameters on torch's `meta` device, where they take no memory.

    Buffers are real: a file of weights holds few of them, and modules compute the others, such as frequencies of
    rotary embeddings, when they are built.

    >>> from torch import nn
    >>> with without_weights():
    ...     layer = nn.Linear(10_000, 10_000)
    >>> layer.weight.is_meta
    True
    """
    register: Any = nn.Module.register_parameter
    moved: MutableMapping[nn.Parameter, nn.Parameter] = WeakIdKeyDictionary()  # so that tied parameters stay tied

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is None or parameter.is_meta:
            return
        if parameter not in moved:
            kind: Any = type(parameter)
            moved[parameter] = kind(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            moved[parameter].__dict__.update(parameter.__dict__)
        module._parameters[name] = moved[parameter]

    with patch.object(nn.Module, "register_parameter", register_on_meta):
        yield
