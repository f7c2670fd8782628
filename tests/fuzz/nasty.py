"""Values that nobody expects, for YAML, JSON and the command line."""

from __future__ import annotations

import datetime
import math
import random
from typing import Any

LONG = "x" * 200_000
SCALARS: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 10**3, 2**31, 2**63, 2**64, 10**30, -(10**30), 0.5, 1.5, -0.0, 1e-320, 1e308,
    math.inf, -math.inf, math.nan, "", " ", "0", "-1", "1.5", "nan", "true", "null", "all", "last", "first", "problem",
    "float32", "eager", "../..", "/", "/etc/passwd", "/dev/zero", "/dev/full", "~", "s3://", "s3://bucket/x?X-Amz-Signature=abc",
    "http://user:secret@host/x", "file:///tmp", "a:b:c", ":", "os:getcwd", "sys:exit", "\x00", "\x1b[31mred\x1b[0m",
    "\u202egnp.exe", "ünïcödé", "名前", "a\nb", "a\tb", "{}", "[]", "%s%n", "$(id)", "`id`", "'; --", LONG, "x" * 300,
    "zarr.json", "con", ".", "..", "a/b", "a\\b", datetime.date(2026, 11, 21), b"\xff\xfe",
]  # fmt: skip
NUMBERS = [0, 1, -1, 2, 3, 5, 0.5, 1e9, 2**40, 10**9, math.nan, math.inf]


def value(chance: random.Random, depth: int = 2) -> Any:
    """A scalar, or a list or mapping of some."""
    kind = chance.random()
    if depth == 0 or kind < 0.7:
        return chance.choice(SCALARS)
    if kind < 0.85:
        return [value(chance, depth - 1) for _ in range(chance.choice([0, 1, 2, 3, 4]))]
    if kind < 0.9:
        return [chance.choice(NUMBERS) for _ in range(chance.choice([1, 2, 3, 5000]))]
    keys = ["kind", "name", "size", "x", "", "\x1b", "seed", "path", 1, None]
    return {chance.choice(keys): value(chance, depth - 1) for _ in range(chance.choice([0, 1, 2, 3]))}


def json_value(chance: random.Random) -> Any:
    """The same, of what JSON can hold."""
    found = value(chance)
    return _plain(found)


def _plain(found: Any) -> Any:
    if isinstance(found, dict):
        return {str(key): _plain(each) for key, each in found.items()}
    if isinstance(found, list):
        return [_plain(each) for each in found]
    return found if isinstance(found, (type(None), bool, int, float, str)) else str(found)


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in nested mappings and lists."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [found for key, each in items for found in [(*at, key), *places(each, (*at, key))]]


def at(tree: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        tree = tree[key]
    return tree
