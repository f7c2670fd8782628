"""Hooks that gather a layer's statistics in the backward passes of those steps whose statistics are needed."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._autograd import _get_current_graph_task_keep_graph
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

from landscape.training.thor.factors import moments_of, samples_in
from landscape.training.thor.layers import Found, Layer, Norm, modules_of
from landscape.training.thor.statistics import Statistics


class Gatherer:
    """Sums statistics of layers while `active`; at other times a hook costs a look at it.

    A layer's input is kept until the gradient of its output arrives, and both are summed then: a forward pass without
    a backward one adds nothing, and one that is computed again in the backward pass is counted once. Autograd keeps
    the input anyway. The hooks hold no reference to this object, and go when it goes.

    Attributes:
        active: whether this step's statistics are needed.
        passes: the number of the model's last call; 0 where there was none since the last step. Several uses of a layer
            in one call are positions of the same samples; another call has other samples.
        cleared: how often what was gathered has been forgotten.
    """

    def __init__(self, model: nn.Module, found: Found) -> None:
        self.active = True
        self.passes = self.cleared = 0
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
        self.cleared += 1
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
        if not samples_in(module, given) or not gradient.numel():
            return
        layer.pending.samples += samples
        layer.pending.rows += gradient.numel() // layer.outputs.size
        with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
            layer.pending.add_inputs(moments_of(module).of_inputs(module, given, layer.inputs, layer.dtype))
        self._add_gradient(layer, module, given, gradient)

    def replace(self, layer: Layer | Norm, module: nn.Module, given: Tensor, old: Tensor, new: Tensor) -> None:
        """Put a use's new gradient in the place of its old one; its input and its samples are counted already."""
        if isinstance(layer, Layer):
            self._add_gradient(layer, module, given, new)
            self._add_gradient(layer, module, given, old, -1)

    def _add_gradient(self, layer: Layer, module: nn.Module, given: Tensor, gradient: Tensor, times: int = 1) -> None:
        assert layer.pending is not None
        with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
            moments = moments_of(module).of_gradients(module, given, gradient, layer.outputs, layer.dtype)
            layer.pending.add_gradients(moments, times)


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
        use = _Use(self._gatherer, self._layer, module, given.detach(), gatherer.passes)
        output.register_hook(use.gradient_arrived)  # type: ignore[no-untyped-call]


def _wait(hook: _LayerHook, module: nn.Module, given: Tensor, output: Tensor) -> None:
    hook.wait(module, given, output)


class _Use:
    """One use of a layer, up to the last backward pass through it.

    Where the graph is kept another pass may follow, and what counts is the sum of the gradients of all of them since
    the last step. Otherwise nothing is kept: the graph, and this with it, may live as long as the loss does.
    """

    def __init__(
        self,
        gatherer: Callable[[], Gatherer | None],
        layer: Callable[[], Layer | Norm | None],
        module: nn.Module,
        given: Tensor,
        number: int,
    ) -> None:
        self._gatherer, self._layer, self._module, self._number = gatherer, layer, module, number
        self._given: Tensor | None = given
        self._gradient: Tensor | None = None  # the sum over the passes before
        self._cleared = 0  # the gatherer's, when that sum began

    def gradient_arrived(self, gradient: Tensor) -> None:
        """Add this use to its layer's sums, if this backward pass adds to the gradient of the layer's weight."""
        gatherer, layer, given = self._gatherer(), self._layer(), self._given
        if gatherer is None or layer is None or given is None or not gatherer.active:
            return
        if not _is_trained(self._module):
            return
        total, before = gradient.detach(), self._gradient
        if before is not None and self._cleared == gatherer.cleared:
            total = before + total
            gatherer.replace(layer, self._module, given, before, total)
        else:
            gatherer.add(layer, self._module, given, self._number, total)
        if _get_current_graph_task_keep_graph():
            self._gradient, self._cleared = total, gatherer.cleared
        else:
            self._given = self._gradient = None


def _is_trained(module: nn.Module) -> bool:
    """Whether the backward pass at work makes the layer's gradient, and not those of inputs or other layers alone."""
    parameters = [each for each in module.parameters(recurse=False) if each.requires_grad]
    if not parameters:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(get_gradient_edge(parameters[0]).node))
    except RuntimeError:  # it is what `torch.autograd.grad` was asked for
        return True
