"""Executors of workers: those of a command, and workers that raise and die, which a script stands in for."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cluster.driver import ray_executor
from cluster.driver.ray_executor import RayExecutor, executor_of
from cluster.driver.schedule import Policy
from cluster.driver.worker import START, Arrival, Receipt, WorkerHandle, WorkerQuery
from landscape.compute.executor import AtPoints, EvaluationSetting, Executor, LocalExecutor, WorkItem, setting_of
from landscape.compute.prepare import prepare
from landscape.core.errors import Interrupted, JobError
from landscape.core.plan import Plan

SETTING = EvaluationSetting({}, (), Plan(1, 1, "cpu"))


SILENCE = 500  # questions for arrivals without one, until a test is taken to hang


class NoMetrics:
    def publish(self, waiting: int, workers: int) -> None: ...


class Named(WorkItem[str]):
    """A question that is answered by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def label(self) -> str:
        return self.name

    def answer(self, context: Any) -> str:
        return self.name


class ScriptedPool:
    """Workers of which a script says what becomes of each question: a receipt, "dies", or None for not yet."""

    def __init__(self, size: int, script: Callable[[str, str], Receipt | str | None]) -> None:
        self.size, self._script, self._hired, self._silent = size, script, 0, 0
        self.handles: dict[str, WorkerHandle] = {}
        self.ready: dict[str, WorkerHandle] = {}
        self._pending: list[tuple[str, Any, str]] = []
        self.shared: list[weakref.ref[Any]] = []

    def missing(self) -> int:
        return self.size - len(self.handles)

    def share(self, value: Any) -> Any:
        self.shared.append(weakref.ref(value))
        return value

    def hire(self) -> None:
        self._hired += 1
        name = f"worker-{self._hired}"
        self.handles[name] = WorkerHandle(name, None)
        self._pending.append((name, START, ""))

    def note_start(self, name: str, receipt: Receipt) -> WorkerHandle:
        self.ready[name] = self.handles[name]
        self.ready[name].device = "cpu"
        return self.ready[name]

    def query(self, name: str, query: WorkerQuery, inputs: Any, question: Named) -> None:
        self._pending.append((name, query, question.name))

    def arrivals(self, seconds: float) -> list[Arrival]:
        found, left = [], []
        for name, asked, label in self._pending:
            told = Receipt() if asked == START else self._script(name, label)
            if told is None:
                left.append((name, asked, label))
            elif isinstance(told, Receipt):
                found.append(Arrival(name, asked, told))
            else:
                found.append(Arrival(name, asked, None, "it was killed"))
        self._pending = left
        self._silent = 0 if found else self._silent + 1
        assert self._silent < SILENCE, "waits for what never comes"
        return found

    def dismiss(self, name: str) -> WorkerHandle:
        self._pending = [each for each in self._pending if each[0] != name]
        self.ready.pop(name, None)
        return self.handles.pop(name)

    def on_draining_nodes(self) -> list[str]:
        return []

    def explain_absence(self, tell: Callable[[str], None]) -> None: ...

    def close(self) -> None: ...


def executor(size: int, script: Callable[[str, str], Receipt | str | None]) -> tuple[RayExecutor, ScriptedPool]:
    pool = ScriptedPool(size, script)
    return RayExecutor(pool, lambda: False, Policy(), NoMetrics(), clock=iter(range(10**9)).__next__), pool  # type: ignore[arg-type]


def answered(name: str) -> Receipt:
    return Receipt(details={"answer": name})


def test_a_question_asked_apart_that_raises_is_tried_as_often_as_any_and_refused():
    tried: list[str] = []

    def script(worker: str, name: str) -> Receipt:
        tried.append(worker)
        return Receipt(cause="RuntimeError: no such point") if name == "bad" or len(tried) == 2 else answered(name)

    asking, _ = executor(2, script)
    assert asking.ask_apart(SETTING, Named("good"), 2) == ["good", "good"]
    assert len(tried) == 3
    with pytest.raises(JobError, match="bad: RuntimeError: no such point"):
        asking.ask_apart(SETTING, Named("bad"), 2)
    assert len(tried) == 3 + 3


def test_a_worker_that_dies_of_a_question_which_nobody_waits_for_spoils_no_other():
    phase = ["refused"]

    def script(worker: str, name: str) -> Receipt | str | None:
        if name == "slow":
            return None if phase[0] == "refused" else "dies"
        return Receipt(cause="RuntimeError: no") if name == "bad" else answered(name)

    asking, _ = executor(2, script)
    with pytest.raises(JobError, match="bad: RuntimeError: no"):
        asking.ask(SETTING, [Named("slow"), Named("bad")])
    phase[0] = "asked again"
    names = [f"question {k}" for k in range(6)]
    assert asking.ask(SETTING, [Named(name) for name in names]) == names


def test_of_many_settings_the_last_ones_are_kept():
    asking, pool = executor(1, lambda worker, name: answered(name))
    settings = [EvaluationSetting({}, (), Plan(1, 1, "cpu")) for _ in range(10)]
    for setting in [*settings, settings[-1]]:
        asking.ask(setting, [Named("a")])
    assert len(pool.shared) == 10
    assert sum(value() is not None for value in pool.shared) < 6


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
