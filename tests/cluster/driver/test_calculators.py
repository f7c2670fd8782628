"""The executor of a command: this process or workers, with the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from cluster.driver import ray_executor
from cluster.driver.ray_executor import RayExecutor, executor_of
from landscape.compute.executor import AtPoints, Executor, LocalExecutor, setting_of
from landscape.compute.prepare import prepare
from landscape.core.errors import Interrupted

POINTS = np.array([[0.0, 0.0], [0.5, -0.5]])


@pytest.fixture
def prepared(make_job):
    return prepare(make_job())


def losses(executor: Executor, landscape) -> bytes:
    (values,) = executor.ask(setting_of(landscape), [AtPoints(POINTS)])
    return values.mean["loss"].tobytes()


def test_workers_that_are_asked_for_answer_what_this_process_answers(prepared, local_ray):
    (landscape,) = prepared.landscapes
    with executor_of(prepared, landscape, 2, serial=True) as here:
        assert isinstance(here, LocalExecutor)
        expected = losses(here, landscape)
    with executor_of(prepared, landscape, 2, workers=1) as there:
        assert isinstance(there, RayExecutor)
        assert losses(there, landscape) == expected


class Started(Exception):
    """Ray would be started."""


@pytest.mark.parametrize(
    ("asked", "here"), [({}, True), ({}, False), ({"workers": 2}, False), ({"address": "a:1"}, False)]
)
def test_what_is_over_before_ray_has_started_is_answered_here(prepared, monkeypatch, asked, here):
    (landscape,) = prepared.landscapes
    judged = []

    def is_quicker_here(*given, searches):
        judged.append(given)
        return here and not searches

    def session(*_):
        raise Started

    monkeypatch.setattr(ray_executor, "is_quicker_here", is_quicker_here)
    monkeypatch.setattr(ray_executor, "ray_session", session)
    if here:
        with executor_of(prepared, landscape, 7, **asked) as answering:
            assert isinstance(answering, LocalExecutor)
    else:
        with pytest.raises(Started), executor_of(prepared, landscape, 7, **asked):
            pass
    assert judged == [(prepared, landscape, 7, asked.get("workers"), asked.get("address"))]


def test_a_stop_ends_what_is_asked_here(prepared):
    (landscape,) = prepared.landscapes
    with (
        executor_of(prepared, landscape, 2, serial=True, stop=lambda: True) as executor,
        pytest.raises(Interrupted),
    ):
        losses(executor, landscape)
