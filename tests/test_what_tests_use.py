"""The tests use what users of a room use: no private names, and scripts that import what is there."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parent
FILES = sorted(path for path in TESTS.rglob("*.py") if path != Path(__file__).resolve())
PACKAGES = ("landscape", "cluster")
IMPORT = re.compile(r"^\s*from ((?:landscape|cluster)(?:\.\w+)*) import ([\w, ]+?)(?: as \w+)?\s*$", re.M)
OF_OURS = re.compile(r"(?:landscape|cluster)(?:\.\w+)+")
PRIVATE = re.compile(r"_(?!_)\w+")
# Names of Python's and of libraries that begin with an underscore: zarr writes a chunk by `_set`.
FOREIGN = {"_exit", "_private", "_actor_id", "_forward_hooks", "_store_dict", "_schema", "_set"}


def shown(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def own_names(nodes: list[ast.AST]) -> set[str]:
    """What the file defines itself: functions, classes, and attributes of its own objects."""
    names = {each.name for each in nodes if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    for each in nodes:
        match each:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), ctx=ast.Store(), attr=name):
                names.add(name)
    return names


def private_names(nodes: list[ast.AST]) -> Iterator[str]:
    """The private names that a file asks of others: as attributes, in imports, and as text where they are replaced."""
    known = own_names(nodes) | FOREIGN
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                names = []
            case ast.Attribute(attr=name):
                names = [name]
            case ast.ImportFrom(module=str(module), names=aliases) if module.partition(".")[0] in PACKAGES:
                names = [*module.split("."), *(each.name for each in aliases)]
            case ast.Constant(value=str(text)) if OF_OURS.fullmatch(text):
                names = text.split(".")
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                names = name.split(".")
            case _:
                continue
        yield from (each for each in names if PRIVATE.fullmatch(each) and not {each, each[1:].split("__")[0]} & known)


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """Every module of ours and the name that a line of the file imports from it, also where the line is in a text."""
    for module, names in IMPORT.findall(path.read_text()):
        yield from ((module, name.split(" as ")[0].strip()) for name in re.split(r",\s*", names))


@cache
def is_there(module: str, name: str) -> bool:
    return hasattr(importlib.import_module(module), name) or is_module(f"{module}.{name}")


def asked_of_modules(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Every attribute that the file asks of a module of ours which it has imported by name, and the module."""
    modules = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in PACKAGES:
            imported = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            modules |= {name: module for name, module in imported.items() if is_module(module)}
    variables = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    variables |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=asked) if name in modules.keys() - variables:
                yield modules[name], asked


@cache
def is_module(name: str) -> bool:
    place = TESTS.parent / name.replace(".", "/")
    return place.is_dir() or place.with_suffix(".py").is_file()


@cache
def findings(path: Path) -> tuple[frozenset[str], list[str]]:
    """The private names that a file asks of others, and what it asks of our modules that is not there."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    asked = dict.fromkeys([*imported_names(path), *asked_of_modules(nodes)])
    return frozenset(private_names(nodes)), [f"{module}.{name}" for module, name in asked if not is_there(module, name)]


def test_no_private_name_is_used():
    assert not {shown(path): findings(path)[0] for path in FILES if findings(path)[0]}


def test_what_scripts_import_and_ask_of_our_modules_is_there():
    """Some stand in texts, where no import fails before a process has started; some measure, and are run by hand."""
    assert not {shown(path): findings(path)[1] for path in FILES if findings(path)[1]}


def test_no_two_files_of_tests_have_the_same_name() -> None:
    """They are no packages: Python would take the second one for the first."""
    names = [path.name for path in FILES if path.name.startswith("test_")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
