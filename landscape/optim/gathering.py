"""Hooks that gather a layer's statistics in the backward passes of those steps whose statistics are needed."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils.hooks import RemovableHandle

from landscape.optim.layers import Found, Layer, Norm, modules_of
from landscape.optim.moments import moments_of, samples_in
from landscape.optim.statistics import Statistics


class Gatherer:
    """Sums statistics of layers while `active`; at other times a hook costs a look at it.

    A layer's input is kept until the gradient of its output arrives, and both are summed then: a forward pass without
    a backward one adds nothing, and one that is computed again in the backward pass is counted once. Autograd keeps
    the input anyway. The hooks hold no reference to this object, and go when it goes.

    Attributes:
        active: whether this step's statistics are needed.
        passes: the number of the model's last call; 0 where there was none since the last step. Several uses of a layer
            in one call are positions of the same samples; another call has other samples.
    """

    def __init__(self, model: nn.Module, found: Found) -> None:
        self.active = True
        self.passes = 0
        # Calls are numbered throughout: gradients of one may arrive after `clear`, beside those of the next.
        self._numbers = itertools.count(1)
        self._found = found
        self._counted: set[tuple[int, int]] = set()  # passes and layers whose samples are counted
        reference = weakref.ref(self)
        # torch.compile would trace the hook of a tensor, and cannot. Every optimiser has imported it by now.
        wait = torch.compiler.disable(_wait)  # type: ignore[no-untyped-call]
        handles: list[RemovableHandle] = [model.register_forward_pre_hook(_PassHook(reference))]
        for layer, module in modules_of(found):
            hook = _LayerHook(reference, weakref.ref(layer), weakref.ref(module), wait)
            handles.append(module.register_forward_hook(hook, with_kwargs=True))
        self.close = weakref.finalize(self, _remove, handles)
        self.close.atexit = False

    def begin_pass(self) -> None:
        """Note that the model is called."""
        self.passes = next(self._numbers)

    def clear(self) -> None:
        """Forget what was gathered since the last step."""
        self.passes = 0
        self._counted.clear()
        for layer in self._found.layers:
            layer.pending = None
        for norm in self._found.norms:
            norm.pending = 0.0

    def add(self, layer: Layer | Norm, module: nn.Module, given: Tensor, number: int, gradient: Tensor) -> None:
        """Add a use of a layer to its sums, given its input and the gradient of its output."""
        key = (number, id(layer))
        is_new = number == 0 or key not in self._counted  # 0: a part of the model was called, not the whole
        self._counted.add(key)
        samples = samples_in(module, given) if is_new else 0
        if isinstance(layer, Norm):
            layer.pending += samples
            return
        if layer.pending is None:
            layer.pending = Statistics.empty(layer.inputs, layer.outputs, layer.dtype, layer.weight.device)
        layer.pending.samples += samples
        layer.pending.rows += gradient.numel() // layer.outputs.size
        moments = moments_of(module)
        with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
            layer.pending.add_inputs(moments.of_inputs(module, given, layer.inputs, layer.dtype))
            layer.pending.add_gradients(moments.of_gradients(module, given, gradient, layer.outputs, layer.dtype))


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


class _Hook:
    """Copies of a model, and models read from files, get hooks that do nothing: no optimiser trains them."""

    def __init__(self, gatherer: Callable[[], Gatherer | None] = lambda: None) -> None:
        self._gatherer = gatherer

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class _PassHook(_Hook):
    """Numbers the calls of the model."""

    def __call__(self, model: nn.Module, args: Any) -> None:
        gatherer = self._gatherer()
        if gatherer is not None and gatherer.active and torch.is_grad_enabled():
            gatherer.begin_pass()


class _LayerHook(_Hook):
    """Waits for the gradient of a layer's output, in training mode, where its weight is trained."""

    def __init__(
        self,
        gatherer: Callable[[], Gatherer | None] = lambda: None,
        layer: Callable[[], Layer | Norm | None] = lambda: None,
        module: Callable[[], nn.Module | None] = lambda: None,
        wait: Callable[..., None] = lambda: None,
    ) -> None:
        super().__init__(gatherer)
        self._layer, self._module, self._wait = layer, module, wait

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        gatherer = self._gatherer()
        if gatherer is not None and gatherer.active and module.training and torch.is_grad_enabled():
            self._wait(self, module, args[0] if args else kwargs["input"], output)

    def wait(self, module: nn.Module, given: Tensor, output: Tensor) -> None:
        """Have this use of the layer added to its sums when the gradient of its output arrives, if one will."""
        gatherer, layer = self._gatherer(), self._layer()
        if gatherer is None or layer is None or module is not self._module():
            return
        # A hook of the user's may make something else of the output; under torch.func it has no backward pass.
        if not isinstance(output, Tensor) or is_functorch_wrapped_tensor(output) or not output.requires_grad:
            return
        if module.weight is not layer.weight:  # torch.func.functional_call has put in another for this call
            return
        if isinstance(layer, Layer) and (layer.frozen or not layer.weight.requires_grad):
            return
        waiting = partial(_gradient_arrived, self._gatherer, self._layer, module, given.detach(), gatherer.passes)
        output.register_hook(waiting)  # type: ignore[no-untyped-call]


def _wait(hook: _LayerHook, module: nn.Module, given: Tensor, output: Tensor) -> None:
    hook.wait(module, given, output)


def _gradient_arrived(
    gatherer: Callable[[], Gatherer | None],
    layer: Callable[[], Layer | Norm | None],
    module: nn.Module,
    given: Tensor,
    number: int,
    gradient: Tensor,
) -> None:
    alive, target = gatherer(), layer()
    if alive is not None and target is not None and alive.active:
        alive.add(target, module, given, number, gradient.detach())
