"""Which tests of a run with several processes stay together: those that share what a file's fixtures made.

pytest-xdist's own `loadgroup` hands every test out by itself, so that each process makes every fixture of every file;
and it groups by a name that pytest no longer reads since 9.2. A scope is what one process computes, one after another.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

MOST = 40  # tests of a file at a time: at the end of the run a process waits for another one's scope


def scopes_of(items: list[pytest.Item]) -> dict[str, str]:
    """The scope of each test: its `xdist_group`; a long or slow one alone; else its file, or a part of one."""
    scopes: dict[str, str] = {}
    counts: dict[str, int] = {}
    for item in items:
        group = item.get_closest_marker("xdist_group")
        file = item.nodeid.partition("::")[0]
        if group is not None:
            scopes[item.nodeid] = str(group.args[0])
        elif any(item.get_closest_marker(mark) for mark in ("long", "slow")):
            scopes[item.nodeid] = item.nodeid
        else:
            scopes[item.nodeid] = f"{file} {counts.setdefault(file, 0) // MOST}"
            counts[file] += 1
    return scopes


class Scopes(LoadScopeScheduling):
    """Hands out scopes in the order of the tests, as a file says that the processes of the run write."""

    def __init__(self, config: pytest.Config, log: object, file: Path) -> None:
        super().__init__(config, log)
        self._file, self._scopes = file, {}

    def schedule(self) -> None:
        if self.collection is None:
            self._scopes = json.loads(self._file.read_text())
            self._file.unlink()
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._scopes[nodeid]
