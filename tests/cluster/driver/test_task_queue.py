"""The queue of what no worker has had, and tasks that come into being when they are taken."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.driver.schedule import TaskQueue
from landscape.compute.tasks import Task, TaskList
from landscape.core.grid import coarse_to_fine_order


@given(st.lists(st.text(max_size=4), max_size=5), st.integers(0, 12))
def test_it_gives_what_its_parts_hold_in_their_order(parts, taken):
    expected = list("".join(parts))
    task_queue: TaskQueue[str] = TaskQueue(*parts)
    assert len(task_queue) == len(expected)
    found = [task_queue.popleft() for _ in range(min(taken, len(expected)))]
    assert found == expected[:taken]
    assert list(task_queue) == expected[taken:]
    assert len(task_queue) == len(expected[taken:])
    task_queue.clear()
    assert (len(task_queue), list(task_queue)) == (0, [])
    task_queue.extend("xy")
    assert (len(task_queue), list(task_queue), task_queue.popleft()) == (2, ["x", "y"], "x")


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_tasks_are_the_path_then_the_missing_tiles_coarse_to_fine(counts):
    missing = np.random.default_rng(sum(counts)).random(counts) < 0.7
    order = coarse_to_fine_order(missing)
    tasks = TaskList("plane", [(0, 8), (8, 11)], order, tuple(counts))
    tiles = [Task("plane", tile=tuple(map(int, np.unravel_index(number, counts)))) for number in order]
    assert list(tasks) == [Task("plane", path=(0, 8)), Task("plane", path=(8, 11)), *tiles]
    assert len(tasks) == 2 + missing.sum()
    assert tasks[-1] == list(tasks)[-1]
    assert tasks[1:3] == list(tasks)[1:3]
    with pytest.raises(IndexError):
        tasks[len(tasks)]


def test_a_million_tasks_cost_eight_megabytes():
    tasks = TaskList("plane", (), coarse_to_fine_order(np.ones((1000, 1000), np.bool_)), (1000, 1000))
    assert len(tasks) == 1_000_000
    assert 8_000_000 <= len(pickle.dumps(tasks)) < 8_001_000
    assert tasks[0] == Task("plane", tile=(0, 0))
    assert tasks[999_999] == Task("plane", tile=(999, 999))
