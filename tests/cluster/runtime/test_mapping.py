"""Functions that directions have computed on the workers of a cluster."""

from __future__ import annotations

import os
import signal
import threading
import time

import psutil
import pytest
import torch
from waiting import wait_for

from cluster.runtime.session import ray_workers
from landscape.core.errors import Interrupted, JobError, LandscapeError


class Unpicklable(Exception):
    def __init__(self, text: str, handle: object) -> None:
        super().__init__(text)
        self.handle = handle


@pytest.mark.usefixtures("local_ray")
def test_results_come_in_order_from_at_most_as_many_workers_at_once_and_errors_as_they_are_or_told(make_job, tmp_path):
    """The threads are this process's."""

    def work(item):
        (tmp_path / f"begun-{item}").write_text(repr(time.time()))
        time.sleep(0.2)
        (tmp_path / f"ended-{item}").write_text(repr(time.time()))
        return item, os.getpid(), torch.get_num_threads()

    def refuse(item):
        raise JobError(f"directions: must not be {item}")

    def fail(item):
        raise Unpicklable("bad weather", threading.Lock())

    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ray_workers(make_job(), None, 2) as on_ray:
            results = on_ray(work, range(5))
            with pytest.raises(JobError, match="must not be 3"):
                on_ray(refuse, [3])
            with pytest.raises(LandscapeError, match=r"directions: the cluster could not compute them: .*bad weather"):
                on_ray(fail, [3])
    finally:
        torch.set_num_threads(threads)
    assert [item for item, _, _ in results] == list(range(5))
    assert os.getpid() not in {pid for _, pid, _ in results}
    assert {number for _, _, number in results} == {3}
    times = [(float(file.read_text()), 1 if "begun" in file.name else -1) for file in tmp_path.glob("*-*")]
    running = most = 0
    for _, change in sorted(times):
        running += change
        most = max(most, running)
    assert most <= 2


@pytest.mark.usefixtures("local_ray")
def test_a_stop_ends_what_computes(make_job, tmp_path):
    begun = tmp_path / "begun"

    def work(item):
        begun.write_text(str(os.getpid()))
        time.sleep(600)

    def stop():
        return begun.exists() and begun.read_text() != ""

    with ray_workers(make_job(), None, 1, stop=stop) as on_ray, pytest.raises(Interrupted, match="goes on"):
        on_ray(work, [1, 2])
    pid = int(begun.read_text())
    wait_for(lambda: not psutil.pid_exists(pid), "the worker to end")


@pytest.mark.slow
def test_a_session_of_its_own_leaves_the_handlers_of_signals_alone_and_ends_with_the_block(
    make_job, ray_folder, monkeypatch
):
    import ray

    monkeypatch.setenv("RAY_TMPDIR", str(ray_folder))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with ray_workers(make_job(), None, 1) as on_ray:
        assert not ray.is_initialized(), "a session is started by the first call"
        assert on_ray(lambda item: item + 1, [1, 2]) == [2, 3]
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert not ray.is_initialized()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
