"""The layers of a model that have Kronecker factors or are LayerNorms, and hooks that gather their statistics."""

from __future__ import annotations

import itertools
import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._autograd import _get_current_graph_task_keep_graph
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

from landscape.core.errors import MOST_NAMES, JobError
from landscape.training.thor.factors import MOMENTS, Factors, FactorStatistics, Inverse, Split, count_samples
from landscape.training.thor.formulas import FactorFormula

# First order by the algorithm, so no warning names them.
SILENT = (nn.modules.batchnorm._NormBase, nn.GroupNorm)


@dataclass(eq=False)
class KroneckerLayer:
    """A weight with Kronecker factors, and its curvature.

    Attributes:
        name: of its first module in the model; the model's type if the model is the layer itself.
        modules: all that multiply by this weight; their uses count as positions of one layer.
        inputs, outputs: the blocks of its factors A [I, I] and G [O, O].
        pending: sums since the last step, if statistics are gathered.
        factors: those of the present inverse, or their moving average.
        traces: tr A and tr G of the factors of the present inverse.
        inverse: None while the layer is trained first order.
        frozen: whether the trace rule has ended its refreshes.
        is_told: whether the user was warned that the layer has no statistics, or is no longer in the model.
    """

    name: str
    modules: tuple[nn.Module, ...]
    weight: nn.Parameter
    inputs: Split
    outputs: Split
    pending: FactorStatistics | None = None
    factors: Factors | None = None
    traces: tuple[float, float] | None = None
    inverse: Inverse | None = None
    frozen: bool = False
    is_told: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Of statistics, factors and inverses: float64 for weights in float64, else float32."""
        return torch.float64 if self.weight.dtype == torch.float64 else torch.float32

    @property
    def cost(self) -> int:
        """The cost of an inversion, up to a factor."""
        return self.inputs.cost + self.outputs.cost

    def preconditioned(self, gradient: Tensor) -> Tensor:
        """G⁻¹·∇W·A⁻¹ in the weight's own shape; the gradient itself if there is no inverse."""
        if self.inverse is None:
            return gradient
        dtype = self.inverse.a[0].dtype  # after `model.to(dtype)`, still the old type until the next refresh
        if isinstance(self.modules[0], nn.Embedding):  # its weight is [I, O]
            return self.inverse.between(gradient.t().to(dtype)).t().to(gradient.dtype)
        matrix = self.inverse.between(gradient.flatten(1).to(dtype))
        return matrix.reshape(gradient.shape).to(gradient.dtype)


@dataclass(eq=False)
class Norm:
    """A LayerNorm, whose weight and bias are divided by their squared gradients.

    Attributes:
        pending: the number of samples since the last step.
        samples: their number at the last refresh; 0 before the first.
    """

    name: str
    module: nn.LayerNorm
    weight: nn.Parameter
    pending: float = 0.0
    samples: float = 0.0

    def preconditioned(self, gradient: Tensor, damping: float) -> Tensor:
        """g/(g²/N + √λ), elementwise."""
        if not self.samples:
            return gradient
        return gradient / (gradient.square() / self.samples + math.sqrt(damping))


@dataclass
class KroneckerLayers:
    """The layers of a model by their treatment in the optimiser.

    Attributes:
        unsupported: parameters that are trained first order although they are no biases and no batch norms, in words.
    """

    layers: list[KroneckerLayer] = field(default_factory=list)
    norms: list[Norm] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)

    def keeping(self, older: KroneckerLayers) -> KroneckerLayers:
        """These layers, but `older` ones where they are the same: their curvature is kept."""
        layers = {id(layer.weight): layer for layer in older.layers}
        norms = {id(norm.module): norm for norm in older.norms}
        return KroneckerLayers(
            [layers.get(id(layer.weight), layer) for layer in self.layers],
            [norms.get(id(norm.module), norm) for norm in self.norms],
            self.unsupported,
        )


def find_layers(model: nn.Module, trained: Container[int], split_dim: int, formula: FactorFormula) -> KroneckerLayers:
    """The layers whose weights are trained.

    A weight that several modules of one type share is one layer. A weight shared by modules of different types, such as
    an embedding and the output layer, has no Kronecker factors.

    Args:
        trained: the `id` of each parameter that the optimiser trains.
        split_dim: the width of the blocks that factors are cut into.

    Raises:
        JobError: no layer has Kronecker factors, the formula refuses one, a parameter has no shape yet, or gradients
            are sparse.
    """
    modules, users = dict(model.named_modules()), _users(model, trained)
    result = KroneckerLayers()
    for owners in users.values():
        (name, module, key), *others = owners
        weight = getattr(module, key)
        if nn.parameter.is_lazy(weight):
            raise JobError(f"model: {name}.{key} must have a shape, not be lazy; call the model on a batch first")
        kinds = {kind_of(modules, owner, owned, role) for owner, owned, role in owners}
        kind = kinds.pop() if len(kinds) == 1 else None
        if not weight.numel():
            continue  # there is nothing to train
        if weight.is_complex():
            kind = None  # factors are real
        if kind is not None and kind in formula.refused:
            raise JobError(
                f"factors: 'mindspore-gpu' must have no {kind.__name__} like {name or key}, {formula.refused[kind]}; "
                "take 'exact'"
            )
        if kind in formula.moments and len({_settings(owned) for _, owned, _ in owners}) == 1:
            result.layers.append(
                _layer(name or type(module).__name__, tuple(owned for _, owned, _ in owners), weight, split_dim)
            )
        elif kind is nn.LayerNorm and not others:
            if key == "weight":
                result.norms.append(Norm(name, module, weight))  # type: ignore[arg-type]
        elif kind is not nn.Identity:
            result.unsupported.append(_in_words(owners))
    if not result.layers:
        *names, last = [kind.__name__ for kind in formula.moments]
        raise JobError(
            f"model: must have a {', '.join(names)} or {last} layer whose weights are trained, or there is "
            "nothing to precondition; take torch.optim.SGD"
        )
    return result


Owner = tuple[str, nn.Module, str]  # a module's name, the module, its own name of the parameter


def _users(model: nn.Module, trained: Container[int]) -> dict[int, list[Owner]]:
    """The modules that each trained parameter belongs to."""
    users: dict[int, list[Owner]] = defaultdict(list)
    for name, module in model.named_modules():
        if getattr(module, "sparse", False):
            raise JobError(f"model: {name} must be without `sparse`, since steps take dense gradients")
        for key, parameter in module._parameters.items():
            if parameter is not None and id(parameter) in trained:
                users[id(parameter)].append((name, module, key))
    return users


def kind_of(modules: dict[str, nn.Module], name: str, module: nn.Module, key: str) -> type[nn.Module] | None:
    """The treatment of a parameter: a key of MOMENTS, LayerNorm, or Identity for plain gradients; None: unknown.

    A subclass with its own `forward` may use its weight differently: its treatment is unknown.
    """
    parent = modules.get(name.rpartition(".")[0])
    if isinstance(module, SILENT):
        return nn.Identity
    forward = type(module).forward
    kind = next((kind for kind in (*MOMENTS, nn.LayerNorm) if forward is kind.forward), None)  # type: ignore[attr-defined]
    if isinstance(parent, nn.MultiheadAttention) and name:  # uses the weight of its last layer without calling it
        return nn.Identity if key == "bias" else None
    if kind is nn.LayerNorm:
        return kind
    if kind is None or getattr(module, "groups", 1) > 1 or getattr(module, "scale_grad_by_freq", False):
        return None
    # Weight norm and pruning have other parameters, from which the weight is computed.
    return {"weight": kind, "bias": nn.Identity}.get(key)


def _settings(module: nn.Module) -> str:
    """The settings that must be equal for modules to share factors, beside the weight."""
    return f"{type(module).__name__} {module.extra_repr()}"


def _layer(name: str, modules: tuple[nn.Module, ...], weight: nn.Parameter, split_dim: int) -> KroneckerLayer:
    if isinstance(modules[0], nn.Embedding):
        words, dimensions = weight.shape
        return KroneckerLayer(name, modules, weight, Split(words, 1), Split(dimensions, split_dim))
    outputs, inputs = weight.shape[0], weight[0].numel()
    return KroneckerLayer(name, modules, weight, Split(inputs, split_dim), Split(outputs, split_dim))


def _in_words(owners: list[Owner]) -> str:
    """`decoder.weight (ConvTranspose2d)`, `embedding.weight = head.weight (shared)`."""
    names = [f"{name}.{key}" if name else key for name, _, key in owners]
    if len(owners) > 1:
        return f"{' = '.join(names)} (shared)"
    return f"{names[0]} ({type(owners[0][1]).__name__})"


def list_names(names: list[str]) -> str:
    """A list of names in words, with at most `MOST_NAMES` of them."""
    rest = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def modules_of(layers: KroneckerLayers) -> Iterator[tuple[KroneckerLayer | Norm, nn.Module]]:
    """Every module whose statistics are gathered, with its layer."""
    for layer in layers.layers:
        for module in layer.modules:
            yield layer, module
    for norm in layers.norms:
        yield norm, norm.module


# ----------------------------------------------------------------------------------------------------
# Hooks that gather statistics in backward passes.


class Gatherer:
    """Sums statistics of layers while `active`; otherwise a hook only checks this flag.

    A layer's input is kept until the gradient of its output arrives; then both are summed. A forward pass without a
    backward pass adds nothing, and one that is recomputed in the backward pass is counted once. Autograd keeps the
    input anyway. The hooks hold only weak references to this object, and are removed with it.

    Attributes:
        active: whether the statistics of this step are needed.
        passes: the number of the model's last call; 0 if there was none since the last step. Several uses of a layer in
            one call are positions of the same samples; another call has other samples.
        cleared: how often the statistics were cleared.
    """

    def __init__(self, model: nn.Module, layers: KroneckerLayers, formula: FactorFormula) -> None:
        self.active = True
        self.passes = self.cleared = 0
        # Numbers are never reused: gradients of one call may arrive after `clear`, beside those of the next.
        self._numbers = itertools.count(1)
        self._layers, self._formula = layers, formula
        self._counted: set[tuple[int, int]] = set()  # passes and layers whose samples are counted
        reference = weakref.ref(self)
        # torch.compile cannot trace the hook of a tensor. Every optimiser has imported torch.compiler by now.
        wait = torch.compiler.disable(_wait)  # type: ignore[no-untyped-call]
        handles: list[RemovableHandle] = [model.register_forward_pre_hook(_PassHook(reference))]
        for layer, module in modules_of(layers):
            hook = _LayerHook(reference, weakref.ref(layer), weakref.ref(module), wait)
            handles.append(module.register_forward_hook(hook, with_kwargs=True))
        self.close = weakref.finalize(self, _remove, handles)
        self.close.atexit = False

    def begin_pass(self) -> None:
        """Number a call of the model."""
        self.passes = next(self._numbers)

    def clear(self) -> None:
        """Clear the statistics since the last step."""
        self.passes = 0
        self.cleared += 1
        self._counted.clear()
        for layer in self._layers.layers:
            layer.pending = None
        for norm in self._layers.norms:
            norm.pending = 0.0

    def add(
        self, layer: KroneckerLayer | Norm, module: nn.Module, inputs: Tensor, number: int, gradient: Tensor
    ) -> None:
        """Add a use of a layer to its sums, from its input and the gradient of its output.

        Raises:
            JobError: it is a second use of the layer in a call of the model, and the formula takes one.
        """
        key = (number, id(layer))
        is_new = number == 0 or key not in self._counted  # 0: a part of the model was called, not the whole
        self._counted.add(key)
        samples = count_samples(module, inputs) if is_new else 0
        if isinstance(layer, Norm):
            layer.pending += samples
            return
        if not is_new and self._formula.uses_once:
            raise JobError(
                f"factors: 'mindspore-gpu' must have one use of {layer.name} in a call of the model, since MindSpore "
                "keeps only the last; take 'exact'"
            )
        if layer.pending is None:
            layer.pending = FactorStatistics()
        if not count_samples(module, inputs) or not gradient.numel():
            return
        layer.pending.samples += samples
        layer.pending.rows += gradient.numel() // layer.outputs.size
        with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
            sums = self._formula.moments_of(module).of_inputs(module, inputs, layer.inputs, layer.dtype)
            layer.pending.add_inputs(sums)
        self._add_gradient(layer, module, inputs, gradient)

    def replace(
        self, layer: KroneckerLayer | Norm, module: nn.Module, inputs: Tensor, old: Tensor, new: Tensor
    ) -> None:
        """Replace the gradient of a use that was added before; its input and its samples are counted already."""
        if isinstance(layer, KroneckerLayer):
            self._add_gradient(layer, module, inputs, new)
            self._add_gradient(layer, module, inputs, old, -1)

    def _add_gradient(
        self, layer: KroneckerLayer, module: nn.Module, inputs: Tensor, gradient: Tensor, times: int = 1
    ) -> None:
        assert layer.pending is not None
        with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
            method = self._formula.moments_of(module).of_gradients
            layer.pending.add_gradients(method(module, inputs, gradient, layer.outputs, layer.dtype), times)


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


class _Hook:
    """A hook that does nothing in a copy of a model, or a model read from a file: no optimiser trains these."""

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
    """Waits for the gradient of a layer's output, in training mode, if its weight is trained."""

    def __init__(
        self,
        gatherer: Callable[[], Gatherer | None] = lambda: None,
        layer: Callable[[], KroneckerLayer | Norm | None] = lambda: None,
        module: Callable[[], nn.Module | None] = lambda: None,
        wait: Callable[..., None] = lambda: None,
    ) -> None:
        super().__init__(gatherer)
        self._layer, self._module, self._wait = layer, module, wait

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        gatherer = self._gatherer()
        if gatherer is not None and gatherer.active and module.training and torch.is_grad_enabled():
            self._wait(self, module, args[0] if args else kwargs["input"], output)

    def wait(self, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        """Register a hook that adds this use of the layer when the gradient of its output arrives, if one can."""
        gatherer, layer = self._gatherer(), self._layer()
        if gatherer is None or layer is None or module is not self._module():
            return
        # A hook of the user may replace the output; under torch.func, there is no backward pass.
        if not isinstance(output, Tensor) or is_functorch_wrapped_tensor(output) or not output.requires_grad:
            return
        if module.weight is not layer.weight:  # torch.func.functional_call has replaced it for this call
            return
        if isinstance(layer, KroneckerLayer) and (layer.frozen or not layer.weight.requires_grad):
            return
        use = _Use(self._gatherer, self._layer, module, inputs.detach(), gatherer.passes)
        output.register_hook(use.gradient_arrived)  # type: ignore[no-untyped-call]


def _wait(hook: _LayerHook, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
    hook.wait(module, inputs, output)


class _Use:
    """One use of a layer, up to the last backward pass through it.

    If the graph is kept, another pass may follow, and the sum of the gradients of all passes since the last step
    counts. Otherwise nothing is kept here: the graph, and this object with it, may live as long as the loss.
    """

    def __init__(
        self,
        gatherer: Callable[[], Gatherer | None],
        layer: Callable[[], KroneckerLayer | Norm | None],
        module: nn.Module,
        inputs: Tensor,
        number: int,
    ) -> None:
        self._gatherer, self._layer, self._module, self._number = gatherer, layer, module, number
        self._inputs: Tensor | None = inputs
        self._gradient: Tensor | None = None  # the sum over the earlier passes
        self._cleared = 0  # `cleared` of the gatherer when that sum began

    def gradient_arrived(self, gradient: Tensor) -> None:
        """Add this use to its layer's sums, if this backward pass adds to the gradient of the layer's weight."""
        gatherer, layer, inputs = self._gatherer(), self._layer(), self._inputs
        if gatherer is None or layer is None or inputs is None or not gatherer.active:
            return
        if not _is_trained(self._module):
            return
        total, before = gradient.detach(), self._gradient
        if before is not None and self._cleared == gatherer.cleared:
            total = before + total
            gatherer.replace(layer, self._module, inputs, before, total)
        else:
            gatherer.add(layer, self._module, inputs, self._number, total)
        if _get_current_graph_task_keep_graph():
            self._gradient, self._cleared = total, gatherer.cleared
        else:
            self._inputs = self._gradient = None


def _is_trained(module: nn.Module) -> bool:
    """Whether the running backward pass computes the gradient of this layer's parameters."""
    parameters = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
    if not parameters:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(get_gradient_edge(parameters[0]).node))
    except RuntimeError:  # it is an input of `torch.autograd.grad`
        return True
