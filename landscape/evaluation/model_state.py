"""What a model holds beside its weights: plain attributes, containers, tensors and generators, put back as they were.

A forward pass may count, cache or assign. All of that is put back before the next point, so that the value of a point
depends on the point alone. A change is seen by the identity of objects, since those of the start are kept alive here.
Before every point one comparison of all containers together shows whether anything has changed; only then is each one
compared by itself.

Members of large containers, and writes past torch's version counters (`tensor.data`, NumPy), are looked for after the
first point of a task and at its end alone. A change that is made at a later point and undone before the end is missed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, MutableMapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from landscape.evaluation.arrays import GENERATORS, Array, generator_state, is_plain, set_generator_state
from landscape.evaluation.checksum import checksums
from landscape.evaluation.containers import Glance, Items, Members, Slots, joined_name

LARGE = 2000  # members of a container, such as a vocabulary, that are not compared before every point
OUR_HOOKS = "_forward_pre_hooks"  # through which layers are watched
REGISTERS = ("_parameters", "_buffers", "_modules")  # of a module: what they hold goes by its own name


class ModuleState:
    """The state of `model` beside the values of its parameters and buffers, as it is now.

    Args:
        copied: the objects that are the model's own; others, which it shares with the process, are left alone.
    """

    def __init__(self, model: nn.Module, copied: Sequence[Any]) -> None:
        self._copied = set(map(id, copied))
        self._seen = {id(each) for each in (*model.parameters(), *model.buffers())}
        self._groups: list[Items | Members] = []
        self._arrays: list[Array] = []
        self._generators: list[tuple[Any, Any]] = []
        self._look_through(model)
        self._empty = [each.container for each in self._groups if not each.container]
        self._large = [each for each in self._groups if len(each.container) > LARGE]
        self._filled = [each for each in self._groups if 0 < len(each.container) <= LARGE]
        self._restless: list[Items | Members] = []  # have changed before, and so are compared at every point
        self._missed: list[str] = []  # names of what changed and a glance did not see

    def changed(self) -> bool:
        """Whether anything was assigned, added, removed, or written to in place; draws are no change.

        Large containers are compared by their length alone, until `unnoticed` looks closer.
        """
        return self._groups_changed() or any(each.changed() for each in self._arrays)

    def _groups_changed(self) -> bool:
        small = any(self._empty) or any(each.changed() for each in self._filled)
        return small or any(each.changed() if each.always else each.has_another_length() for each in self._large)

    @cached_property
    def _glance(self) -> Glance:
        return Glance(self._filled)

    def _seen_to_change(self) -> bool:
        long = any(each.has_another_length() for each in self._large)
        return long or any(self._empty) or self._glance.tells_a_change()

    def names_changed(self) -> list[str]:
        """The attributes that are not what they were."""
        names = [name for each in self._groups if each.changed() for name in each.names_changed()]
        return names + [each.name for each in self._arrays if each.changed()]

    def restore(self) -> None:
        """Put everything back as it was."""
        for group in self._restless:
            if group.changed():
                group.restore()
        if self._seen_to_change():
            self._restore_groups()
        for array in self._arrays:
            if array.changed():
                array.restore()
        for generator, state in self._generators:
            set_generator_state(generator, state)

    def _restore_groups(self) -> None:
        for group in self._groups:
            if group.changed():
                if not group.always:
                    group.always = True
                    self._restless.append(group)
                    at_once = len(group.container) <= LARGE or group.has_another_length()
                    self._missed += [] if at_once else group.names_changed()
                group.restore()
        self._glance.remember()

    def unnoticed(self) -> list[str]:
        """Names of what was written to in a way that `restore` does not see; from now on always put back."""
        sums = checksums([each.home for each in self._arrays])
        written = [each for each, now in zip(self._arrays, sums, strict=True) if each.sum != now and not each.always]
        for each in written:
            each.always = True
        self._restore_groups()
        missed, self._missed = self._missed, []
        return [each.name for each in written] + missed

    # -- looking through the model ----------------------------------------------------------------------------

    def _look_through(self, model: nn.Module) -> None:
        waiting: list[tuple[str, Any]] = [("", model)]
        while waiting:
            name, value = waiting.pop()
            if id(value) not in self._seen:
                self._seen.add(id(value))
                waiting.extend(self._look_at(name, value))

    def _look_at(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Keep what a value is, and name what it holds."""
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
            yield from ((f"{name}[{k}]", each) for k, each in enumerate(value))
        elif isinstance(value, (list, deque, set)):
            self._groups.append(Members(name, value))
            yield from ((f"{name}[{k}]", each) for k, each in enumerate(value))
        elif isinstance(value, nn.Module) or id(value) in self._copied:
            items, slots = getattr(value, "__dict__", None), Slots(value)
            if isinstance(items, dict):
                yield from self._look_into(name, items)
            if slots.has_any:
                yield from self._look_into(name, slots)

    def _look_into(self, name: str, items: MutableMapping[Any, Any]) -> Iterator[tuple[str, Any]]:
        self._groups.append(Items(name, items))
        for key, each in items.items():
            if key != OUR_HOOKS:
                yield name if key in REGISTERS else joined_name(name, key), each
