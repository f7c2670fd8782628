"""Dicts, attributes, lists and sets of a model: what they held at first, whether it changed, and putting it back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import chain, repeat
from operator import is_
from types import MemberDescriptorType
from typing import Any

OURS = "forward"  # attribute of a module by which engines take over its calls


class Items:
    """A dict, or the attributes of an object: which names there are, and which objects they name."""

    def __init__(self, name: str, items: MutableMapping[Any, Any]) -> None:
        self.container, self.name, self.always = items, name, False
        self.before = {key: each for key, each in items.items() if key != OURS}
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
        """The full names of what is new, gone, or another object."""
        keys = [*self._keys, *(key for key in self.container if key not in self.before and key != OURS)]
        changed = [key for key in keys if self.container.get(key, self) is not self.before.get(key, self)]
        return [joined_name(self.name, key) for key in changed]

    def restore(self) -> None:
        """Put back the names and their objects, in their first order."""
        ours = {OURS: self.container[OURS]} if OURS in self.container else {}
        self.container.clear()
        self.container.update(self.before)
        self.container.update(ours)


class Members:
    """The members of a list, a deque or a set."""

    def __init__(self, name: str, members: Any) -> None:
        self.container, self.name, self.always, self.before = members, name, False, list(members)

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
        """Put back the members in their first order."""
        self.container.clear()
        add = self.container.update if isinstance(self.container, set) else self.container.extend
        add(self.before)


class Slots(MutableMapping[str, Any]):
    """The attributes of an object that its classes keep in `__slots__`, as a mapping; private names as they are stored.

    They are read and set past the object's own `__getattr__` and `__setattr__`.
    """

    def __init__(self, of: Any) -> None:
        kinds = [kind for kind in reversed(type(of).__mro__) if "__slots__" in vars(kind)]
        values = [(kind, value) for kind in kinds for value in vars(kind).values()]
        slots = [slot for kind, slot in values if isinstance(slot, MemberDescriptorType) and slot.__objclass__ is kind]
        self._of, self._members = of, {slot.__name__: slot for slot in slots}

    @property
    def has_any(self) -> bool:
        """Whether there is a slot at all, be it filled or not."""
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


class Glance:
    """Compares many containers at once with what they held when `remember` was last called.

    The order of the objects and what an engine puts there are compared too. A change may therefore be reported where
    there is none, but none is missed.
    """

    def __init__(self, groups: Sequence[Items | Members]) -> None:
        items = [each for each in groups if isinstance(each, Items) and each.is_plain]
        members = [each for each in groups if isinstance(each, Members)]
        self._others = [each for each in groups if isinstance(each, Items) and not each.is_plain]
        self._items, self._members = [each.container for each in items], [each.container for each in members]
        self._containers = [*self._items, *self._members]
        self._held = [*(each.values() for each in self._items), *self._members]
        self._known = _contents([each.before for each in items], [each.before for each in members])

    def remember(self) -> None:
        """Take what is there now for unchanged."""
        self._known = _contents(self._items, self._members)

    def tells_a_change(self) -> bool:
        """Whether any container may hold something else than when `remember` was last called."""
        lengths, keys, values = self._known
        if [*map(len, self._containers)] != lengths or any(each.changed() for each in self._others):
            return True
        if not all(map(is_, chain.from_iterable(self._held), values)):
            return True
        try:
            return [*chain.from_iterable(self._items)] != keys
        except Exception:  # other keys than before, which cannot be compared with them: tensors
            return True


def _contents(
    items: Sequence[MutableMapping[Any, Any]], members: Sequence[Iterable[Any]]
) -> tuple[list[int], list[Any], list[Any]]:
    """The length of each, the keys of all of them in a row, and the values of all of them in a row."""
    values = [*(list(each.values()) for each in items), *map(list, members)]
    return [*map(len, values)], [*chain.from_iterable(items)], [*chain.from_iterable(values)]


def joined_name(name: str, key: Any) -> str:
    """The name of a member: `name.key`, without a dot in front where the container has no name."""
    return f"{name}.{key}".lstrip(".")
