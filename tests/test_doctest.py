"""The examples in docstrings are run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = [path for package in ("landscape", "cluster") for path in sorted((ROOT / package).rglob("*.py"))]
WITH_EXAMPLES = [path for path in FILES if ">>> " in path.read_text()]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=module_name)
def test_the_examples_of_a_module_print_what_they_say(path, tmp_path, monkeypatch):
    """In a folder of their own, where they may write."""
    monkeypatch.chdir(tmp_path)
    done = doctest.testmod(importlib.import_module(module_name(path)), optionflags=doctest.ELLIPSIS)
    assert done.attempted > 0
    assert done.failed == 0


def test_there_are_examples():
    assert WITH_EXAMPLES
