"""Tests that share a file's fixtures, or a group, are given to one process; long ones each to whoever is free."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from scopes import MOST, Scopes, scopes_of


def item(nodeid: str, *marks: pytest.MarkDecorator) -> SimpleNamespace:
    known = {each.name: each.mark for each in marks}
    return SimpleNamespace(nodeid=nodeid, get_closest_marker=known.get)


def test_a_scope_is_a_group_a_long_test_or_a_part_of_a_file():
    compiler = pytest.mark.xdist_group("compiler")
    long = [item(f"{file}.py::long", pytest.mark.long) for file in "ab"]
    others = [item("a.py::compiled", compiler, pytest.mark.long), item("b.py::compiled", compiler)]
    others += [item("b.py::late", pytest.mark.slow), *(item(f"a.py::{number}") for number in range(MOST + 1))]
    scopes = scopes_of([*long, *others, item("b.py::short")])
    assert [scopes[each.nodeid] for each in long] == ["a.py::long", "b.py::long"]
    assert scopes["a.py::compiled"] == scopes["b.py::compiled"] == "compiler"
    assert scopes["b.py::late"] == "b.py::late"
    assert {scopes[f"a.py::{number}"] for number in range(MOST)} == {scopes["a.py::0"]}
    assert len({scopes[name] for name in ("a.py::0", f"a.py::{MOST}", "b.py::short")}) == 3


class Process:
    """What the scheduling sees of a process of the run."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway, self.given = SimpleNamespace(id=name), []

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


def test_each_scope_is_handed_to_one_process_in_the_order_of_the_tests(tmp_path):
    names = ["x::long", "y::grouped", "a::1", "a::2", "a::3", "b::1", "z::grouped"]
    scopes = dict(zip(names, ["x::long", "group", "a 0", "a 0", "a 0", "b 0", "group"], strict=True))
    (tmp_path / "scopes").write_text(json.dumps(scopes))
    config = SimpleNamespace(getvalue=lambda name: ["2*popen"], option=SimpleNamespace(loadscopereorder=False))
    shared, processes = Scopes(config, None, tmp_path / "scopes"), [Process("0"), Process("1")]
    for each in processes:
        shared.add_node(each)
    for each in processes:
        shared.add_node_collection(each, names)
    shared.schedule()
    first, second = (each.given for each in processes)
    assert (first, second) == ([0, 2, 3, 4], [1, 6, 5])
    assert list(tmp_path.iterdir()) == []
