"""What is imported when it is first used: the public names of packages, and what lower rooms ask upper ones for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_PROVIDERS: dict[str, Callable[[], Any]] = {}


def provide(what: str, load: Callable[[], Any]) -> None:
    """Say how something is loaded that rooms below it ask for by `provided`."""
    _PROVIDERS[what] = load


def provided(what: str) -> Any:
    """What a room above provides: values such as a surface are drawn by the views, and import nothing that draws."""
    return _PROVIDERS[what]()


def import_on_use(package: str, homes: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562), which imports a public name when it is first asked for.

    Args:
        package: the package, its `__name__`.
        homes: modules of the package, by their names within it, with the public names that each defines.

    Returns:
        A function that takes a name and returns its value. It raises AttributeError for a name that is not public. A
        name that was imported is kept in the package, which does not ask for it again.
    """
    modules = {name: f"{package}.{home}" for home, names in homes.items() for name in names}

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return import_name
