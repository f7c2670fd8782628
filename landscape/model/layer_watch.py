"""The outputs of each layer of a network, watched while it computes: of modules, and of operations between modules.

No layer is changed: global module hooks report which module is called, and a mode of torch's dispatcher sees every
operation, so that networks without modules, such as exported graphs, can be watched too.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all
from torch.utils._python_dispatch import TorchDispatchMode

from landscape.model.layer_rules import BOUNDS, Tensors
from landscape.model.layer_statistics import ValueStatistics, merge_statistics, statistics_of

# ----------------------------------------------------------------------------------------------------
# Masks: values that they make infinite, or hugely negative, are no fault.

SIGN_CHANGING = ("neg", "mul", "div", "sub", "rsub", "abs")  # they turn a mask's -Inf into Inf
MASKING = ("add", "mul", "sub")  # they make a mask of finite numbers, and add it to scores
# A mask's number, such as -1e9 or the lowest of a type, is below MASKED; masked scores differ from it by NEAR at most.
MASKED, NEAR = -1e4, 1e-2


def is_watchable(value: Any) -> bool:
    """Whether a value is a tensor whose values can be read."""
    if not isinstance(value, Tensor) or value.is_meta or value._is_zerotensor():
        return False  # a derivative that is zero has no memory: reading it would end the process
    return value.is_floating_point() or value.is_complex()


def values_given(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """The arguments of an operation before its call, with copies of tensors that it will write into, as `exp_` does."""
    values = [*arguments, *named.values()]
    if not function._schema.is_mutable:
        return values
    all_of_them = function._schema.arguments
    written = {
        argument.name for argument in all_of_them if argument.alias_info is not None and argument.alias_info.is_write
    }
    names = [*(argument.name for argument in all_of_them[: len(arguments)]), *named]
    return [
        value.clone() if name in written and is_watchable(value) else value
        for name, value in zip(names, values, strict=True)
    ]


def origin_of_infinite(name: str, tensor: Tensor, arguments: Sequence[Any]) -> tuple[bool, bool]:
    """Whether an operation made values not finite from finite ones; whether its infinite values come from inputs."""
    if tensor.layout is not torch.strided or bool(torch.isfinite(tensor).all()):
        return False, False
    inputs = [value for argument in arguments for value in _flat(argument)]
    if bool(torch.isnan(tensor).any()):
        return not any(_any(torch.isnan, value) for value in inputs), False
    ways = (torch.isinf,) if name in SIGN_CHANGING or tensor.is_complex() else (torch.isposinf, torch.isneginf)
    born = any(_any(way, tensor) and not any(_any(way, value) for value in inputs) for way in ways)
    return born, not born


def _any(way: Callable[[Tensor], Tensor], value: Tensor | float) -> bool:
    return bool(way(torch.as_tensor(value)).any())


def _flat(argument: Any) -> list[Any]:
    """The members of an argument that may be infinite: numbers and tensors."""
    members = argument if isinstance(argument, (list, tuple)) else [argument]
    return [
        value
        for value in members
        if isinstance(value, float) or (is_watchable(value) and value.layout is torch.strided)
    ]


def beside_mask(operation: str, tensor: Tensor, statistics: ValueStatistics) -> ValueStatistics:
    """The statistics of an operation's values, without those that a mask has set far below the others.

    >>> scores = torch.tensor([0.5, -1.5, -1e9, -1e9])
    >>> beside_mask("add", scores, statistics_of(scores)).magnitude
    1.0
    """
    if (
        operation not in MASKING
        or not statistics.low <= MASKED
        or tensor.layout is not torch.strided
        or tensor.is_complex()
    ):
        return statistics
    hidden = tensor <= statistics.low / 2
    rest, lowest = tensor[~hidden], tensor[hidden].double()
    if lowest.numel() < 2 or not rest.numel() or not bool((lowest <= statistics.low * (1 - NEAR)).all()):
        return statistics
    return statistics_of(rest)


# ----------------------------------------------------------------------------------------------------
# Logarithms of zeros: -Inf is a mask if later operations make finite values of all of it, and otherwise a fault.

LOGARITHMS = ("log", "log2", "log10")


def is_log_of_zeros(operation: str, tensor: Tensor) -> bool:
    """Whether all values that are not finite are -Inf from a logarithm, as from the zeros of a mask."""
    return operation in LOGARITHMS and bool((torch.isfinite(tensor) | torch.isneginf(tensor)).all())


@dataclass
class _Memory:
    """Memory that holds -Inf: the layers that it comes from, and whether an operation has read it since."""

    layers: frozenset[str]
    used: bool = False


class LogMasks:
    """Follows the -Inf that logarithms make of zeros through one pass of a network.

    A softmax makes finite values of it. It is a fault if NaN or +Inf results from it, or if the pass ends with it.

    Attributes:
        guilty: the layers whose -Inf was a fault.
    """

    def __init__(self) -> None:
        self.guilty = set[str]()
        self._memories = dict[int, _Memory]()  # by the address of the memory, which views share

    def note(self, layer: str, tensor: Tensor) -> None:
        """Note that the logarithm of a layer made -Inf of zeros."""
        self._memories[_address(tensor)] = _Memory(frozenset((layer,)))

    def follow(self, arguments: Sequence[Any], before: Sequence[Any], output: Any) -> None:
        """Follow -Inf through an operation.

        Args:
            before: the arguments before the operation, which may have written into some.
        """
        if not self._memories:
            return
        pairs = zip(_tensors(arguments), _tensors(before), strict=True)
        inputs = [(self._memories.get(_address(tensor)), values) for tensor, values in pairs]
        memories = [memory for memory, values in inputs if memory is not None and _has(torch.isneginf, values)]
        if not memories:
            return
        layers = frozenset[str]().union(*(memory.layers for memory in memories))
        for memory in memories:
            memory.used = True
        wrong = any(_has(torch.isnan, tensor) or _has(torch.isposinf, tensor) for tensor in _tensors(before))
        for tensor in _tensors([output]):
            if not wrong and (_has(torch.isnan, tensor) or _has(torch.isposinf, tensor)):
                self.guilty |= layers
            elif _has(torch.isneginf, tensor):
                self._memories[_address(tensor)] = _Memory(layers)

    def end(self) -> None:
        """End the pass: -Inf that no operation has read is in its output, a fault."""
        for memory in self._memories.values():
            self.guilty |= frozenset() if memory.used else memory.layers
        self._memories = {}


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    flat = [member for value in values for member in (value if isinstance(value, (list, tuple)) else [value])]
    return [
        member for member in flat if is_watchable(member) and member.layout is torch.strided and not member.is_complex()
    ]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _has(way: Any, tensor: Tensor) -> bool:
    return bool(way(tensor).any())


ACTIVATIONS = {
    "relu": "relu", "threshold": "relu", "sigmoid": "sigmoid", "hardsigmoid": "sigmoid", "tanh": "tanh",
}  # fmt: skip
CLAMPS = ("clamp_min", "clamp", "hardtanh")  # a ReLU if they clamp at 0
MODULES = {"ReLU": "relu", "ReLU6": "relu", "Sigmoid": "sigmoid", "Hardsigmoid": "sigmoid", "Tanh": "tanh"}
# Operations that only move, make or choose values: their results are no layer's output.
MOVING = frozenset((
    "alias", "arange", "bernoulli", "cat", "clone", "constant_pad_nd", "contiguous", "copy", "detach", "dropout",
    "empty", "empty_like", "fill", "flip", "full", "full_like", "gather", "index", "index_select", "lift_fresh",
    "lift_fresh_copy", "local_scalar_dense", "masked_fill", "native_dropout", "new_empty", "new_full", "new_ones",
    "new_zeros", "ones", "ones_like", "rand_like", "randn_like", "repeat", "reshape", "resize", "roll",
    "scalar_tensor", "select_scatter", "slice_scatter", "sort", "stack", "to_copy", "topk", "tril", "triu",
    "unsafe_view", "where", "zero", "zeros", "zeros_like", "new_zeros_with_same_feature_meta",
))  # fmt: skip
OUTSIDE = "observe"  # the owner of operations outside the network


@dataclass
class WatchedLayer:
    """The outputs so far of a layer: a module, an operation between modules, or one outside the network.

    Attributes:
        name: of the module; `block1.relu()` for an operation in it; with `#2` and so on for later calls.
        kind: the class of the module, or `operation`.
        activation: `relu`, `sigmoid` or `tanh`, if it is one.
        shape: of the output in the first batch.
        unmasked: statistics without values that a mask has made hugely negative.
        from_infinite: whether all infinite values come from infinite inputs.
        born: the first operation in it that made a value not finite from finite ones.
    """

    name: str
    kind: str
    in_model: bool
    activation: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    statistics: ValueStatistics = field(default_factory=ValueStatistics)
    unmasked: ValueStatistics = field(default_factory=ValueStatistics)
    from_infinite: bool = False
    born: str = ""

    def seen(self) -> Tensors:
        """The values in the form that rules judge."""
        return Tensors(
            self.name, self.statistics, self.activation, in_model=self.in_model, from_infinite=self.from_infinite,
            unmasked=self.unmasked,
        )  # fmt: skip


@dataclass
class _Call:
    """A call of a module that has not returned.

    Attributes:
        name: with the number of the call.
        whole: whether it is a layer of torch, whose operations are not watched one by one.
        parent: whether it has child modules.
        operations: how many it carried out itself.
        last: its last activation, or '' if another operation came after it.
        born: its first operation that made a value not finite from finite ones.
    """

    name: str
    module: nn.Module
    whole: bool
    parent: bool
    operations: int = 0
    last: str = ""
    born: str = ""


class NetworkWatcher(contextlib.AbstractContextManager["NetworkWatcher"]):
    """Collects the statistics of every layer of a network while it is entered.

    Nothing is collected before `begin`, which must be called at each batch: repeated calls of a module are
    distinguished by their number in the batch.

    Args:
        model: the network, in eval mode; operations outside it belong to `observe`.
        operations: whether operations between modules are watched, beside modules.
        numbered: whether repeated calls of a module are distinguished.
        when: whether a call counts.

    Attributes:
        layers: in the order in which they were first computed.
    """

    def __init__(
        self, model: nn.Module, *, operations: bool = True, numbered: bool = True,
        when: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._names = {id(module): name for name, module in model.named_modules()}
        self.layers: dict[str, WatchedLayer] = {}
        self.on = False
        self._busy, self._stack, self._log_masks = False, list[_Call](), LogMasks()
        self._numbers, self._last = Counter[str](), (0, 0)
        self._operations, self._told_apart, self._when = operations, numbered, when
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> NetworkWatcher:
        self._opened.callback(hooks_of_all.register_module_forward_pre_hook(self._called).remove)
        self._opened.callback(hooks_of_all.register_module_forward_hook(self._returned).remove)
        if self._operations:
            self._opened.enter_context(_Operations(self))
        return self

    def __exit__(self, *details: object) -> None:
        self._end()
        self._opened.close()

    def begin(self, *, on: bool = True) -> None:
        """Begin a batch."""
        self._end()
        self.on, self._stack, self._numbers, self._last = on, [], Counter(), (0, 0)

    def _end(self) -> None:
        self._log_masks.end()
        for name in self._log_masks.guilty:
            self.layers[name].from_infinite, self.layers[name].born = False, "log"

    @property
    def where(self) -> str:
        """The innermost layer that is being called, for errors of user code; '' if there is none."""
        return self._stack[-1].name or "the model" if self._stack else ""

    @property
    def busy(self) -> bool:
        """Whether statistics are being computed, whose operations are not those of the network."""
        return self._busy

    def _called(self, module: nn.Module, _: Any) -> None:
        if not self.on or id(module) not in self._names or self._busy or not self._when():
            return
        name = self._numbered(self._names[id(module)])
        parent = next(module.children(), None) is not None
        whole = type(module).__module__.startswith("torch.nn.modules")
        self._stack.append(_Call(name, module, whole, parent))

    def _returned(self, module: nn.Module, _: Any, output: Any) -> None:
        while self._stack and any(call.module is module for call in self._stack):
            call = self._stack.pop()  # calls above it have raised, and their caller caught the exception
            if call.module is module:
                with self._computing():
                    self._keep(call, output)
                break

    def _keep(self, call: _Call, output: Any) -> None:
        named = _named_tensors(output)
        for place, tensor in named:
            leaf = not call.parent and (call.operations or not self._operations)
            if not leaf and _place(tensor) == self._last:
                continue  # it returned the output of its last layer unchanged
            name = f"{call.name or 'the model'}{place}"
            kind = type(call.module).__name__
            activation = call.last if leaf and len(named) == 1 else ""
            if not self._operations:
                activation = MODULES.get(kind, "")
            layer = self._add(name, kind, True, activation, tensor)
            layer.born = layer.born or call.born
        if self._stack and call.born:
            self._stack[-1].born = self._stack[-1].born or call.born

    def note_operation(self, function: Any, arguments: Sequence[Any], before: Sequence[Any], output: Any) -> None:
        """Note an operation that was carried out; `before` are its arguments before the call."""
        tensor = output[0] if isinstance(output, (tuple, list)) and output else output
        if not self.on or function.is_view:
            return
        with self._computing():
            self._log_masks.follow(arguments, before, output)
        if not is_watchable(tensor):
            return
        name, call = function._schema.name.partition("::")[2].strip("_"), self._stack[-1] if self._stack else None
        if name in MOVING:
            return
        with self._computing():
            activation = _activation_of(name, arguments)
            born, from_infinite = origin_of_infinite(name, tensor, before)
            masks = born and (call is None or not call.whole) and is_log_of_zeros(name, tensor)
            born, from_infinite = born and not masks, from_infinite or masks
            if call is not None:
                call.operations += 1
                call.last = activation
                call.born = call.born or (name if born else "")
            if call is not None and call.whole and not (call.parent and activation):
                return
            owner = OUTSIDE if call is None else call.name
            layer = self._numbered(f"{owner}.{name}()" if owner else f"{name}()")
            added = self._add(layer, "operation", call is not None, activation, tensor, name)
            added.born = added.born or (name if born else "")
            added.from_infinite = added.from_infinite or from_infinite
            if masks:
                self._log_masks.note(layer, tensor)

    def _add(
        self, name: str, kind: str, in_model: bool, activation: str, tensor: Tensor, operation: str = ""
    ) -> WatchedLayer:
        layer = self.layers.get(name)
        if layer is None:
            shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            layer = self.layers[name] = WatchedLayer(name, kind, in_model, activation, shape, dtype)
        statistics = statistics_of(tensor, BOUNDS.get(activation))
        layer.statistics = merge_statistics([layer.statistics, statistics])
        layer.unmasked = merge_statistics([layer.unmasked, beside_mask(operation, tensor, statistics)])
        self._last = _place(tensor)
        return layer

    def _numbered(self, name: str) -> str:
        self._numbers[name] += 1
        return name if self._numbers[name] == 1 or not self._told_apart else f"{name} #{self._numbers[name]}"

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        self._busy = True
        try:
            with torch.no_grad():
                yield
        finally:
            self._busy = False


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reports every operation to a watcher."""

    def __init__(self, watcher: NetworkWatcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watcher = watcher

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if self._watcher.busy:
            return func(*args, **named)
        before = values_given(func, args, named)
        output = func(*args, **named)
        self._watcher.note_operation(func, [*args, *named.values()], before, output)
        return output


def _activation_of(name: str, arguments: Sequence[Any]) -> str:
    if name in CLAMPS:
        return "relu" if len(arguments) > 1 and arguments[1] == 0 else ""
    return ACTIVATIONS.get(name, "")


def _named_tensors(output: Any, place: str = "") -> list[tuple[str, Tensor]]:
    """The tensors that a module returns, each with its place in tuples, lists and dicts ('' for a single tensor)."""
    while isinstance(output, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(output):
        output = torch._C._functorch.get_unwrapped(output)  # in torch.func.jvp, wrapped tensors have no memory
    if isinstance(output, Tensor):
        return [(place, output)] if is_watchable(output) else []
    if isinstance(output, Mapping):
        members = [(f"[{name}]", member) for name, member in output.items()]
    elif isinstance(output, (tuple, list)):
        members = [(f"[{number}]", member) for number, member in enumerate(output)]
    else:
        members = [(f".{name}", member) for name, member in getattr(output, "__dict__", {}).items()]
        members = [(name, member) for name, member in members if isinstance(member, (Tensor, tuple, list, dict))]
    if len(members) == 1 and isinstance(output, (tuple, list)):
        return _named_tensors(members[0][1], place)
    return [pair for name, member in members for pair in _named_tensors(member, place + name)]


def _place(tensor: Tensor) -> tuple[int, int]:
    """The address and the number of a tensor's values."""
    return (tensor.data_ptr(), tensor.numel()) if tensor.layout is torch.strided else (id(tensor), 0)
