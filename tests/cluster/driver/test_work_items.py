"""Questions answered by workers: the bytes of this process's answers, whatever happens to the workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from cluster.driver.pool import Metrics, RayWorkerPool
from cluster.driver.ray_executor import RayExecutor
from cluster.driver.schedule import Policy
from cluster.runtime.session import ray_session
from landscape.analysis.connect.curve import BendTraining, Reached, StepsOfBend
from landscape.compute.executor import (
    AtPoints,
    AtWeights,
    BlockGradient,
    EvaluationSetting,
    LocalExecutor,
    ProductOfBlocks,
    TotalsOfBlocks,
    setting_of,
)
from landscape.compute.point_extras import LayersAt
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob
from landscape.core.errors import Interrupted, JobError
from landscape.core.grid import Floats

pytestmark = pytest.mark.usefixtures("local_ray")

NO_SUCH_POINT = """
def trouble(x, y):
    if abs(x - 1.0) < 1e-6:
        raise RuntimeError("no such point")
"""
POINTS = np.array([[0.0, 0.0], [0.5, -0.5], [1.0, 0.25]])


class RayAnswers:
    """An executor of workers, and the processes of these."""

    def __init__(self, prepared: PreparedJob, workers: int, stop=lambda: False) -> None:
        self._session = ray_session(prepared.job, None, workers)
        self.pool = RayWorkerPool(prepared, self._session.__enter__(), workers)
        self.executor = RayExecutor(self.pool, stop, Policy(), Metrics(prepared.run, "somebody"))

    def __enter__(self) -> RayAnswers:
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.close()
        self._session.__exit__(None, None, None)


def work_items_of(executor, setting: EvaluationSetting) -> list[Floats]:
    """What a few questions of every kind are answered, as numbers."""
    values = executor.ask(setting, [AtPoints(POINTS[:2], keep=True), AtPoints(POINTS[2:])])
    weights = executor.ask(setting, [AtWeights(executor.share(setting.origin))])
    numbers = [array for value in values + weights for _, array in sorted(value.arrays().items())]
    totals = executor.ask(setting, [TotalsOfBlocks([block]) for block in range(2)])
    factors = {"loss": 1 / sum(total["loss"] for (total,) in totals)}
    vectors = executor.share(np.eye(2))
    numbers += executor.ask(setting, [BlockGradient(block, factors) for block in range(2)])
    products = executor.ask(setting, [ProductOfBlocks([block], factors, vectors) for block in range(2)])
    numbers += [each.total for each in products if each.total is not None]
    (seen,) = executor.ask(setting, [LayersAt((0.5, -0.5), gradients=True)])
    known = [each.statistics for each in (*seen.layers, *seen.weights, *seen.gradients)]
    numbers += [np.array([each.count, each.mean, each.squares, each.magnitude]) for each in known]
    return numbers + [tensor.numpy() for tensor in steps_of_a_bend(executor, setting).values()]


def steps_of_a_bend(executor, setting: EvaluationSetting) -> dict[str, torch.Tensor]:
    """The bend of a curve after the steps of one epoch."""
    second = {name: tensor + 1 for name, tensor in setting.origin.items()}
    steps = StepsOfBend("bezier", BendTraining(1, 0.1, batch_size=2), 0, 0, 2, Reached({}))
    asked = steps.about(executor.share((setting.origin, second)), executor.share(Reached(dict(setting.origin))))
    (stepped,) = executor.ask(setting, [asked])
    assert not torch.equal(stepped.reached.bend["x"], setting.origin["x"])
    return stepped.reached.bend


@pytest.mark.faults
def test_workers_answer_with_the_bytes_of_this_process_and_one_may_be_killed(make_job):
    prepared = prepare(make_job(batch_size=2, num_samples=4))
    (landscape,) = prepared.landscapes
    setting = setting_of(landscape)
    expected = work_items_of(LocalExecutor(prepared, landscape), setting)
    with RayAnswers(prepared, 2) as ray:
        found = work_items_of(ray.executor, setting)
        assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]
        apart = ray.executor.ask_apart(setting, AtPoints(POINTS), 3)
        assert len({each.mean["loss"].tobytes() for each in apart}) == 1
        victim = next(iter(ray.pool.ready.values())).pid
        killing = threading.Thread(target=lambda: (time.sleep(0.05), os.kill(victim, signal.SIGKILL)))
        killing.start()
        again = [work_items_of(ray.executor, setting) for _ in range(3)]
        killing.join()
        ray.executor.ask(setting, [AtPoints(POINTS)] * 8)
        assert victim not in {each.pid for each in ray.pool.ready.values()}
    assert all([a.tobytes() for a in each] == [b.tobytes() for b in expected] for each in again)


def test_a_question_that_cannot_be_answered_says_why_and_others_still_are(make_job):
    prepared = prepare(make_job(NO_SUCH_POINT))
    (landscape,) = prepared.landscapes
    setting = setting_of(landscape)
    for executor in (LocalExecutor(prepared, landscape), None):
        if executor is None:
            with RayAnswers(prepared, 1) as ray:
                refuses_one_and_answers_another(ray.executor, setting)
                # As where the driver's machine has a GPU and those of the workers have none, or the other way round.
                elsewhere = replace(setting, plan=replace(setting.plan, device="cuda"))
                with pytest.raises(
                    JobError, match=r"has cpu, this is planned for cuda, .*; set device: cpu in the job"
                ):
                    ray.executor.ask(elsewhere, [AtPoints(POINTS[:1])])
        else:
            refuses_one_and_answers_another(executor, setting)


def refuses_one_and_answers_another(executor, setting: EvaluationSetting) -> None:
    with pytest.raises(JobError, match="1 points: RuntimeError: no such point"):
        executor.ask(setting, [AtPoints(POINTS[:1]), AtPoints(POINTS[2:]), AtPoints(POINTS[1:2])])
    (values,) = executor.ask(setting, [AtPoints(POINTS[:2])])
    assert np.isfinite(values.mean["loss"]).all()


def test_a_stop_ends_it(make_job):
    prepared = prepare(make_job())
    (landscape,) = prepared.landscapes
    for executor in (LocalExecutor(prepared, landscape, stop=lambda: True),):
        with pytest.raises(Interrupted):
            executor.ask(setting_of(landscape), [AtPoints(POINTS)])
    with RayAnswers(prepared, 1, stop=lambda: True) as ray, pytest.raises(Interrupted):
        ray.executor.ask(setting_of(landscape), [AtPoints(POINTS)])
