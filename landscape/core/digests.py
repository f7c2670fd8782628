"""Digests of plain values: each value has one text, and the digest is the SHA-256 of that text."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, the shortest text of each float.

    Example:
        >>> canonical_json({"b": 0.5, "a": [1, None]})
        '{"a":[1,null],"b":0.5}'

    Raises:
        ValueError: it holds NaN or infinity, which JSON has not.
        TypeError: it holds something else that JSON has not.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value, in hexadecimal.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
        >>> digest([])[:8]
        '4f53cda1'
    """
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


# ----------------------------------------------------------------------------------------------------
# Public names of a package that are imported when they are first used, so that importing the package stays quick.


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
