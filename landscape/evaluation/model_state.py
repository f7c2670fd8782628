"""A model's state beside its weights: plain attributes, containers, tensors and generators, restored before each point.

A forward pass may count, cache or assign. All of that is undone before the next point, so the value of a point depends
on the point alone. Changes are found by the identity of objects, since the original objects are kept alive here.
Before every point, one comparison of all containers together shows whether anything may have changed; only then is
each container compared by itself.

Members of large containers, and writes that bypass torch's version counters (`tensor.data`, NumPy), are checked only
after the first point of a task and at its end. A change made at a later point and undone before the end is missed.
"""

from __future__ import annotations

import copy
import random
from collections import OrderedDict, deque
from collections.abc import Iterator, MutableMapping, Sequence
from itertools import chain, repeat
from operator import is_
from types import MemberDescriptorType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.weight_norm import WeightNorm

from landscape.core.errors import JobError, one_line, quoted
from landscape.evaluation.feed import checksums
from landscape.problem.user_code import kept_alive

# ----------------------------------------------------------------------------------------------------
# Tensors, NumPy arrays and generators that a model holds beside its weights, and restoring their values.

GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


class Array:
    """A tensor that is neither parameter nor buffer, or a NumPy array: its memory and its values."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.always = name, False
        self._tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
        self.home = self._tensor.detach()
        self._before, self._wants_gradient = self.home.clone(), self._tensor.requires_grad
        self.sum, self._mark = checksums([self.home])[0], self._now()

    def _now(self) -> tuple[Any, ...]:
        tensor = self._tensor
        layout = tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride()
        return *layout, tensor.requires_grad, tensor.grad is None

    def changed(self) -> bool:
        """Whether it was written to, moved or replaced since the last `restore`, by torch's counters."""
        return self.always or self._now() != self._mark

    def restore(self) -> None:
        """Restore its values, its memory and its `requires_grad`."""
        if not self._tensor.is_leaf:
            self._tensor.detach_()
        self._tensor.requires_grad_(self._wants_gradient).grad = None
        self._tensor.data = self.home
        self.home.copy_(self._before)
        self._mark = self._now()


def is_plain(array: Tensor | np.ndarray) -> bool:
    """Whether the array has its own values, which can be kept and restored."""
    if isinstance(array, np.ndarray):
        return array.flags.writeable and array.dtype.kind in "biufc" and array.dtype.isnative and array.size > 0
    strided = type(array) in (Tensor, nn.Parameter) and array.layout is torch.strided and array.is_leaf
    own = strided and not (array.is_meta or array.is_quantized or array.is_inference())
    # An expanded tensor cannot be written to, so its values need not be kept.
    return own and not any(step == 0 and size > 1 for step, size in zip(array.stride(), array.shape, strict=True))


def generator_state(generator: Any) -> Any:
    """The state of one of `GENERATORS`, for `set_generator_state`."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    """Set a generator back to a state of its own."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


# ----------------------------------------------------------------------------------------------------
# Dicts, attributes, lists and sets of a model: their original content, whether it changed, and restoring it.

OURS = "forward"  # attribute of a module by which engines replace its calls


class NamedMembers:
    """A dict, or the attributes of an object: its names, and the objects that they name."""

    def __init__(self, name: str, items: MutableMapping[Any, Any]) -> None:
        self.container, self.name, self.always = items, name, False
        self.before = {key: member for key, member in items.items() if key != OURS}
        self._keys, self._values = list(self.before), list(self.before.values())

    @property
    def is_plain(self) -> bool:
        """Whether asking for a member calls no code of the user's."""
        return type(self.container) in (dict, OrderedDict)

    def has_another_length(self) -> bool:
        """Whether it has more or fewer names than at first."""
        return len(self.container) - (OURS in self.container) != len(self._keys)

    def changed(self) -> bool:
        """Whether a name is new, gone, or names another object."""
        now = map(self.container.get, self._keys, repeat(self))
        return self.has_another_length() or not all(map(is_, now, self._values))

    def names_changed(self) -> list[str]:
        """The full names of members that are new, gone, or another object."""
        keys = [*self._keys, *(key for key in self.container if key not in self.before and key != OURS)]
        changed = [key for key in keys if self.container.get(key, self) is not self.before.get(key, self)]
        return [joined_name(self.name, key) for key in changed]

    def restore(self) -> None:
        """Restore the names and their objects, in the original order."""
        ours = {OURS: self.container[OURS]} if OURS in self.container else {}
        self.container.clear()
        self.container.update(self.before)
        self.container.update(ours)


class Members:
    """The members of a list, a deque or a set."""

    def __init__(self, name: str, members: Any) -> None:
        self.container, self.name, self.always, self.before = members, name, False, list(members)

    @property
    def is_plain(self) -> bool:
        """Whether asking for a member calls no code of the user's."""
        return type(self.container) in (list, deque, set)

    def has_another_length(self) -> bool:
        """Whether it has more or fewer members than at first."""
        return len(self.container) != len(self.before)

    def changed(self) -> bool:
        """Whether a member is new, gone, elsewhere, or another object."""
        return self.has_another_length() or not all(map(is_, self.container, self.before))

    def names_changed(self) -> list[str]:
        """The container's own name, as members have none."""
        return [self.name]

    def restore(self) -> None:
        """Restore the members, in the original order."""
        self.container.clear()
        add = self.container.update if isinstance(self.container, set) else self.container.extend
        add(self.before)


class Slots(MutableMapping[str, Any]):
    """The attributes of an object that its classes keep in `__slots__`, as a mapping; private names in mangled form.

    They are read and set without the object's own `__getattr__` and `__setattr__`.
    """

    def __init__(self, of: Any) -> None:
        kinds = [kind for kind in reversed(type(of).__mro__) if "__slots__" in vars(kind)]
        values = [(kind, value) for kind in kinds for value in vars(kind).values()]
        slots = [slot for kind, slot in values if isinstance(slot, MemberDescriptorType) and slot.__objclass__ is kind]
        self._of, self._members = of, {slot.__name__: slot for slot in slots}

    @property
    def has_any(self) -> bool:
        """Whether there is any slot, filled or not."""
        return bool(self._members)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._members[name].__get__(self._of)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        self._members[name].__set__(self._of, value)

    def __delitem__(self, name: str) -> None:
        self._members[name].__delete__(self._of)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._members if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def joined_name(name: str, key: Any) -> str:
    """The name of a member: `name.key`, without a dot in front where the container has no name."""
    return f"{name}.{key}".lstrip(".")


# ----------------------------------------------------------------------------------------------------

LARGE = 2000  # members: larger containers, such as a vocabulary, are not compared before every point
OUR_HOOKS = "_forward_pre_hooks"  # layers are watched by these
REGISTERS = ("_parameters", "_buffers", "_modules")  # of a module: not part of the names of their members


class ModuleState:
    """The current state of `model` beside the values of its parameters and buffers.

    Args:
        copied: the model's own objects; objects that it shares with the process are left alone.
    """

    def __init__(self, model: nn.Module, copied: Sequence[Any]) -> None:
        self._copied = set(map(id, copied))
        self._seen = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self._groups: list[NamedMembers | Members] = []
        self._arrays: list[Array] = []
        self._generators: list[tuple[Any, Any]] = []
        self._look_through(model)
        self._empty = [group for group in self._groups if not group.container]
        self._filled = [group for group in self._groups if 0 < len(group.container) <= LARGE]
        self._large = [group for group in self._groups if len(group.container) > LARGE]
        # Dicts and lists are compared all at once, in half the time; comparing the others may call user code.
        plain = [group for group in self._filled if group.is_plain]
        self._others = [group for group in self._filled if not group.is_plain]
        dicts = [group.container for group in plain if isinstance(group, NamedMembers)]
        self._containers = [group.container for group in plain]
        self._empty_containers = [group.container for group in self._empty]
        self._members = [*dicts, *(items.values() for items in dicts),
                         *(group.container for group in plain if isinstance(group, Members))]  # fmt: skip
        self._remember_members()

    def _remember_members(self) -> None:
        self._lengths, self._held = [*map(len, self._containers)], [*chain.from_iterable(self._members)]

    def changed(self) -> bool:
        """Whether anything was assigned, added, removed, or written to in place; drawing random numbers is no change.

        Large containers are compared by their length only, until `unnoticed` compares their members.
        """
        return any(self._changed_groups()) or any(array.changed() for array in self._arrays)

    def _changed_groups(self) -> Iterator[NamedMembers | Members]:
        """The containers whose content has changed; large ones by the rule of `changed`."""
        if not self._are_as_before():
            changed = [group for group in self._empty if group.container]
            changed += [group for group in self._filled if group.changed()]
            if not changed:  # an engine has added or removed something, which is there next time too
                self._remember_members()
            yield from changed
        else:
            yield from (group for group in self._others if group.changed())
        for group in self._large:
            if group.changed() if group.always else group.has_another_length():
                yield group

    def _are_as_before(self) -> bool:
        """Whether dicts and lists hold the same objects in the same order, apart from an engine's additions."""
        if any(self._empty_containers) or [*map(len, self._containers)] != self._lengths:
            return False
        return all(map(is_, chain.from_iterable(self._members), self._held))

    def names_changed(self) -> list[str]:
        """The names of the changed attributes."""
        names = [name for group in self._groups if group.changed() for name in group.names_changed()]
        return names + [array.name for array in self._arrays if array.changed()]

    def restore(self) -> None:
        """Restore everything."""
        for group in [*self._changed_groups()]:
            group.always = True
            group.restore()
        for array in self._arrays:
            if array.changed():
                array.restore()
        for generator, state in self._generators:
            set_generator_state(generator, state)

    def unnoticed(self) -> list[str]:
        """Names of members that were changed without `restore` noticing; from now on they are always restored."""
        sums = checksums([array.home for array in self._arrays])
        written = [
            array for array, now in zip(self._arrays, sums, strict=True) if array.sum != now and not array.always
        ]
        replaced = [group for group in self._large if not group.always and group.changed()]
        names = [array.name for array in written] + [name for group in replaced for name in group.names_changed()]
        for member in (*written, *replaced):
            member.always = True
        self.restore()
        return names

    # -- looking through the model ----------------------------------------------------------------------------

    def _look_through(self, model: nn.Module) -> None:
        waiting: list[tuple[str, Any]] = [("", model)]
        while waiting:
            name, value = waiting.pop()
            if id(value) not in self._seen:
                self._seen.add(id(value))
                waiting.extend(self._look_at(name, value))

    def _look_at(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Keep the state of a value, and yield the name and value of each member."""
        if isinstance(value, (torch.jit.ScriptModule, type)):
            return
        if isinstance(value, GENERATORS):
            self._generators.append((value, generator_state(value)))
        elif isinstance(value, (Tensor, np.ndarray)):
            if is_plain(value):
                self._arrays.append(Array(name, value))
        elif isinstance(value, dict):
            yield from self._look_into(name, value)
        elif isinstance(value, tuple):
            yield from ((f"{name}[{k}]", member) for k, member in enumerate(value))
        elif isinstance(value, (list, deque, set)):
            self._groups.append(Members(name, value))
            yield from ((f"{name}[{k}]", member) for k, member in enumerate(value))
        elif isinstance(value, nn.Module) or id(value) in self._copied:
            items, slots = getattr(value, "__dict__", None), Slots(value)
            if isinstance(items, dict):
                yield from self._look_into(name, items)
            if slots.has_any:
                yield from self._look_into(name, slots)

    def _look_into(self, name: str, items: MutableMapping[Any, Any]) -> Iterator[tuple[str, Any]]:
        self._groups.append(NamedMembers(name, items))
        for key, member in items.items():
            if key != OUR_HOOKS:
                yield name if key in REGISTERS else joined_name(name, key), member


# ----------------------------------------------------------------------------------------------------
# A copy of the user's model that only the evaluation touches.


def _derived_weight(model: nn.Module) -> str:
    """The first layer whose weight a hook computes, which torch does not copy, with the remedy; empty if none has."""
    for path, module in model.named_modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, BasePruningMethod):
                call = f"torch.nn.utils.prune.remove(layer, {hook._tensor_name!r})"
                return f"as its layer {quoted(path)} is pruned; make that permanent before you return it: {call}"
            if isinstance(hook, WeightNorm):
                return (
                    f"as its layer {quoted(path)} has torch.nn.utils.weight_norm, which is deprecated; use "
                    "torch.nn.utils.parametrizations.weight_norm, or call torch.nn.utils.remove_weight_norm(layer)"
                )
    return ""


def private_copy(model: nn.Module) -> tuple[nn.Module, list[Any]]:
    """A deep copy of the model without gradient graphs, and all objects that were copied for it."""
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise JobError(
                f"model: must be a module of Python, and {quoted(path) if path else 'it'} is a ScriptModule; return "
                "the module that torch.jit was given"
            )
    memo: dict[int, Any] = {}
    try:
        with kept_alive():
            copied = copy.deepcopy(model, memo)
    except Exception as cause:
        reason = _derived_weight(model) or f"({one_line(cause)}); return one that copy.deepcopy takes"
        raise JobError(f"model: {type(model).__name__} cannot be copied {reason}") from cause
    _refuse_shared(model, copied)
    copies = dict(copied.named_modules())  # a user's __deepcopy__ may leave some out
    lost = [
        f"{type(module).__name__}.{slot}"
        for name, module in model.named_modules()
        if type(copies.get(name)) is type(module)
        for slot in Slots(module)
        if slot not in Slots(copies[name])
    ]
    if lost:
        raise JobError(f"model: {lost[0]} is in __slots__, which copies of a module lose; make it a plain attribute")
    return copied, [copy_of for original, copy_of in memo.items() if id(copy_of) != original]


def _refuse_shared(model: nn.Module, copied: nn.Module) -> None:
    """Refuse a copy that shares parameters with the model: moving its weights would move the user's.

    Raises:
        JobError: a user's __deepcopy__ returns the model itself, or a model with the same trainable parameters.
    """
    own = {key: name for name, parameter in model.named_parameters() for key in _identities(parameter)}
    shared = [own[key] for parameter in copied.parameters() for key in _identities(parameter) if key in own]
    if copied is model or shared:
        what = "itself" if copied is model else f"one that has the same {shared[0]}"
        raise JobError(
            f"model: copy.deepcopy of {type(model).__name__} gives {what}, and what is moved must be a copy: let its "
            "__deepcopy__ copy its parameters"
        )


def _identities(parameter: nn.Parameter) -> list[tuple[str, int]]:
    """Keys that identify a parameter: the object, and the address of its values if there is one."""
    if not parameter.requires_grad or parameter.layout is not torch.strided or not parameter.numel():
        return []
    place = parameter.data_ptr()  # 0 for parameters without memory of their own: on `meta`, or distributed
    return [("object", id(parameter)), *([("memory", place)] if place else [])]
