"""Imports at the first use: of the public names of packages, and of what lower rooms need from upper ones."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_PROVIDERS: dict[str, Callable[[], Any]] = {}


def provide(name: str, load: Callable[[], Any]) -> None:
    """Say how something is loaded that rooms below get by `provided`."""
    _PROVIDERS[name] = load


def provided(name: str) -> Any:
    """What a room above provides. So the views draw a surface, for example, whose module imports nothing that draws."""
    return _PROVIDERS[name]()


def import_on_use(package: str, homes: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562), which imports a public name at its first use.

    Args:
        package: the `__name__` of the package.
        homes: modules of the package, by their names within it, with the public names that each defines.

    Returns:
        A function that takes a name and returns its value. It raises AttributeError for a name that is not public. The
        value is kept in the package, so the function is called once for each name.
    """
    modules = {name: f"{package}.{home}" for home, names in homes.items() for name in names}

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return import_name
