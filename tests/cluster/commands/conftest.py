"""A command given in this process, as the tests of single commands do."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from cluster.commands.app import command


@pytest.fixture
def call(capsys, monkeypatch, logging_as_it_was) -> Callable[..., tuple[int, str, str]]:
    """Give a command; its exit code, and what it said on stdout and stderr."""

    def give(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["landscape", *map(str, words)])
        capsys.readouterr()
        return command(), *capsys.readouterr()

    return give
