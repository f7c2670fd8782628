"""The Ray run against the serial one: the same bytes, whatever happens to its workers."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from counting import WITNESS

import cluster
import landscape
from cluster.driver import worker_manager
from cluster.driver.pool import RayWorkerPool
from cluster.driver.schedule import Policy
from cluster.driver.worker import Receipt, WorkerHandle
from landscape.compute.reproducibility import OtherModel
from landscape.core.errors import Interrupted, JobError
from landscape.job.directions.file import FileDirection
from landscape.job.job import Job
from landscape.job.reading import read_job
from landscape.model.snapshots import write_snapshot
from landscape.store.landscape import LandscapeStore
from landscape.store.results import open_run
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED, Surface

pytestmark = pytest.mark.usefixtures("local_ray")


def serially(job: Job) -> Surface:
    return landscape.run(job.replace(run=job.run + "-serial"))["plane"]


def assert_same(first: Surface, second: Surface) -> None:
    for name in first.observables:
        assert first[name].tobytes() == second[name].tobytes(), name
    assert first.status.tobytes() == second.status.tobytes()


def points_evaluated(job: Job) -> int:
    log = job.folder / "points.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_workers_give_the_bytes_of_the_serial_run_and_say_what_was_prepared_before_the_first_value(make_job, caplog):
    job = make_job()
    weights = {"x": torch.full((1, 1), 0.5), "y": torch.zeros(1, 1)}
    for run in (job.run_path, job.run_path + "-serial"):
        write_snapshot(run, "epoch", 3, weights)
    said = []
    found = cluster.run(job, workers=2, observer=lambda progress: said.append(len(caplog.messages)))["plane"]
    assert caplog.messages[0].startswith("origin: epoch 3 of the trajectory")
    assert min(said) > 0
    assert sum(each.startswith("origin:") for each in caplog.messages) == 1
    expected = serially(job)
    assert_same(expected, found)
    assert (found.status == OK).all()
    assert found.attributes["progress"]["state"] == "complete"
    assert found.origin_loss == expected.origin_loss
    kept, serial = (LandscapeStore.open(run, "plane") for run in (job.run_path, job.run_path + "-serial"))
    assert yaml.safe_dump(kept.attributes["check"]) == yaml.safe_dump(serial.attributes["check"])


LINE = {"name": "plane", "directions": [{"kind": "file", "path": "d1.safetensors"}], "size": 5, "range": [[-1, 1]]}

LENET = """
import torch
from landscape import Problem
from landscape.recipes.lenet import LeNet5


def problem():
    torch.manual_seed(0)
    return Problem.supervised(LeNet5(), (torch.randn(24, 1, 32, 32), torch.randint(0, 10, (24,))))
"""


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("eager+superposed", marks=pytest.mark.faults),
        pytest.param("vmap:2+maxima", marks=pytest.mark.slow),
    ],
)
def test_every_engine_gives_the_bytes_of_the_serial_run(tmp_path, engine):
    (tmp_path / "lenet_problem.py").write_text(LENET)
    (tmp_path / "job.yaml").write_text(
        f"{{run: run, problem: 'lenet_problem:problem', num_samples: 24, batch_size: 8, engine: '{engine}', tile: 2, "
        "landscapes: [{name: plane, size: [5, 4]}]}"
    )
    job = read_job(tmp_path / "job.yaml")
    found = cluster.run(job, workers=1)["plane"]
    assert_same(serially(job), found)
    assert found.attributes["plan"]["engine"] == engine


def test_a_finished_job_keeps_batch_size_and_tile_shape_of_its_plan_and_needs_no_cluster(make_job, monkeypatch):
    job = make_job(tile=[3, 3])
    serial = landscape.run(job)["plane"]
    for module in ("cluster.driver.ray_executor", "cluster.runtime.session"):
        monkeypatch.setattr(f"{module}.ray_session", lambda *given: pytest.fail("a session was started"))
    before = points_evaluated(job)
    with pytest.raises(JobError, match="batch_size 20 to 7"):
        cluster.run(job.replace(batch_size=7), workers=1)
    for tile in ((3, 3), (5, 5)):
        assert_same(serial, cluster.run(job.replace(tile=tile), workers=1)["plane"])
    assert points_evaluated(job) == before


@pytest.mark.faults  # test_mapping asks the same workers
def test_a_kind_of_direction_may_compute_on_the_workers(make_job, monkeypatch):
    """There its functions find the modules and the folder of the job; the serial run computes them itself."""
    made = FileDirection.make

    def make(self, context):
        def noted(entry):
            import my_problem

            my_problem.note("made.log", f"{os.getpid()} {os.getcwd()}")
            return entry[0], entry[1].clone()

        return dict(context.workers(noted, list(made(self, context).items())))

    monkeypatch.setattr(FileDirection, "make", make)
    job = make_job(tile=[1], landscapes=[LINE])
    found, log = cluster.run(job, workers=1)["plane"], job.folder / "made.log"
    assert {line.split()[1] for line in log.read_text().splitlines()} == {str(job.folder)}
    assert str(os.getpid()) not in log.read_text()
    log.unlink()
    assert_same(serially(job), found)
    assert {line.split()[0] for line in log.read_text().splitlines()} == {str(os.getpid())}


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "is lost"),
        pytest.param("time.sleep(3600)", "no progress", marks=pytest.mark.faults),
    ],
)
def test_a_worker_that_is_killed_or_hangs_is_replaced_and_its_tiles_computed(make_job, caplog, trouble, said):
    job = make_job(f"def trouble(x, y):\n    if x > 0.6 and once('begun'):\n        {trouble}", tile=[1])
    found = cluster.run(job, workers=1, policy=Policy(hang_seconds=4, straggler_done=10**6))["plane"]
    assert (job.folder / "begun").exists()
    assert_same(serially(job), found)
    assert said in caplog.text
    assert found.attributes["progress"]["retries"] >= 1
    assert not found.attributes["failures"]


KILLED_WHILE_EXTENDING = """
def trouble(x, y):
    if (HERE / "extending").exists() and x > 0.6 and once("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.faults  # levels are extended serially in test_extending_levels
def test_workers_extend_the_levels_of_a_landscape_though_one_is_killed(make_job):
    job = make_job(KILLED_WHILE_EXTENDING, batch_size=4, num_samples=10)
    at_once = job.replace(run=job.run + "-at-once", num_samples=24)
    landscape.run(job)
    landscape.refine(job.run_path, "plane")
    (job.folder / "extending").touch()
    compute = functools.partial(cluster.run, workers=2)
    found = landscape.extend(job.run_path, "plane", num_samples=24, compute=compute)["plane"]
    assert (job.folder / "killed").exists()
    landscape.run(at_once)
    assert_same(landscape.refine(at_once.run_path, "plane")["plane"].merged(), found.merged())


@pytest.mark.faults  # workers extend in test_keep_samples_on_ray
def test_workers_extend_a_landscape_to_the_bytes_of_asking_at_once_though_one_is_killed(make_job):
    job = make_job(KILLED_WHILE_EXTENDING, batch_size=4, num_samples=10)
    landscape.run(job)
    (job.folder / "extending").touch()
    compute = functools.partial(cluster.run, workers=2)
    ranges = [(-1.0, 1.25), (0.0, 3.0)]
    found = landscape.extend(job.run_path, "plane", num_samples=24, ranges=ranges, compute=compute)["plane"]
    assert (job.folder / "killed").exists()
    spec = job.landscapes[0].model_dump(mode="json") | {"range": [list(limits) for limits in ranges], "size": [10, 7]}
    at_once = landscape.run(job.replace(run=job.run + "-at-once", num_samples=24, landscapes=[spec]))["plane"]
    assert_same(at_once, found)


def chunks(job: Job) -> dict[Path, tuple[int, int]]:
    """Every chunk of the plane's values, and which file that is: a chunk written anew is another one."""
    plane = Path(job.run_path) / "landscapes.zarr" / "plane"
    files = [each for name in ("loss", "status") for each in (plane / name / "c").rglob("*") if each.is_file()]
    return {each: (each.stat().st_ino, each.stat().st_mtime_ns) for each in files}


@pytest.mark.faults  # the policy is tested in test_schedule
def test_a_tile_that_kills_three_workers_is_given_up_and_retried_by_the_next_run(make_job):
    job = make_job(
        """
        def trouble(x, y):
            if x == 1.0 and y == 3.0 and not (HERE / "healed").exists():
                note("deaths", "x")
                os._exit(1)
    """,
        tile=[1],
    )
    # One task at a time: a death right after an answer may take it along, and is charged to the task before.
    found = cluster.run(job, workers=1, policy=Policy(in_flight=1))["plane"]
    assert len((job.folder / "deaths").read_text().splitlines()) == 3
    assert found.status[-1, -1] == QUARANTINED
    assert (found.status == OK).sum() == 62
    (failure,) = found.attributes["failures"]
    assert failure["attempts"] == 3
    assert "worker died" in failure["cause"]
    assert found.attributes["progress"]["state"] == "partial"

    (job.folder / "healed").touch()
    before = points_evaluated(job)
    kept = chunks(job)
    healed = landscape.run(job)["plane"]
    assert points_evaluated(job) - before == WITNESS + 1
    assert {path.name for path, each in chunks(job).items() if kept.get(path) != each} == {"8"}, "the others stay"
    assert_same(serially(job), healed)


@pytest.mark.faults  # the rule is tested in test_schedule
def test_exceptions_and_exits_of_user_code_are_tried_again_then_given_up_with_their_place(make_job):
    job = make_job("""
        class Unpicklable(Exception):
            def __init__(self, text, handle):
                super().__init__(text)
                self.handle = handle

        def trouble(x, y):
            if x == -1.0 and y == 0.0:
                raise Unpicklable("bad weather", open(__file__))
            if x == 1.0 and y == 0.0 and (once("first") or once("second")):
                raise ValueError("twice only")
            if x == 1.0 and y == 3.0:
                sys.exit(0)
    """)
    found = cluster.run(job, workers=1)["plane"]
    assert found.status[0, 0] == QUARANTINED
    assert np.isnan(found.loss[0, 0])
    assert found.status[0, -1] == OK
    raised, ended = sorted(found.attributes["failures"], key=lambda failure: failure["cause"])
    assert raised["attempts"] == ended["attempts"] == 3
    assert raised["cause"] == "Unpicklable: bad weather"
    assert "trouble(x, y)" in raised["traceback"]
    assert ended["cause"].startswith("called sys.exit(0) (my_problem.py:")


@pytest.mark.faults
def test_points_that_are_not_finite_are_kept_as_such_and_do_not_stop_the_job(make_job):
    job = make_job()
    file = job.folder / "my_problem.py"
    wild = "    factor = float('inf') if x == 1 else float('nan') if x == -1 else 1.0\n    loss = factor * ("
    file.write_text(file.read_text().replace("    loss = (", wild))
    found = cluster.run(job, workers=2)["plane"]  # that agree on what is not finite
    assert (found.status[:, [0, -1]] == NOT_FINITE).all()
    assert np.isnan(found.loss[:, 0]).all()
    assert not np.isfinite(found.loss[:, -1]).any()
    assert (found.status[:, 1:-1] == OK).all()
    assert found.attributes["progress"]["state"] == "complete"


@pytest.mark.faults
def test_a_problem_that_fails_on_the_workers_stops_the_job_before_anything_is_written_or_one_is_replaced(
    make_job, monkeypatch
):
    """One worker may be at fault: only where none can load the problem does the job end."""
    monkeypatch.setattr(worker_manager, "LOADS", 2)
    job = make_job()
    file = job.folder / "my_problem.py"
    guard = (
        f"    if os.getpid() != {os.getpid()} and (not (HERE / 'mended').exists() or once('again')):\n"
        "        raise OSError('no data here')\n"
    )
    file.write_text(file.read_text().replace("def problem():\n", "def problem():\n" + guard))
    with pytest.raises(JobError, match=r"fails to load on worker-\d+: JobError: problem: .* no data here"):
        cluster.run(job, workers=1)
    assert not (Path(job.run_path) / "landscapes.zarr").exists()
    (job.folder / "mended").touch()
    found = cluster.run(job, workers=1)["plane"]
    assert (job.folder / "again").exists()
    assert_same(serially(job), found)


def test_interrupted_and_resumed_by_other_workers_gives_the_same_bytes(make_job):
    job = make_job(tile=[1])
    expected = serially(job)
    before = points_evaluated(job)
    seen: list[int] = []
    with pytest.raises(Interrupted):
        cluster.run(job, 2, observer=lambda p: seen.append(p.points_done), stop=lambda: max(seen, default=0) > 20)
    part = open_run(job.run_path)["plane"]
    assert part.attributes["progress"]["state"] == "interrupted"
    assert 0 < (part.status == NOT_COMPUTED).sum() < part.status.size
    known = part.status == OK
    np.testing.assert_array_equal(part.loss[known], expected.loss[known])
    assert_same(expected, cluster.run(job, workers=1)["plane"])
    # Two measured points, every point once, at most two tiles in flight at each of two workers, and in each of the two
    # runs two points by each worker before its first tile.
    assert points_evaluated(job) - before <= 2 + 63 + 4 + (2 + 1) * WITNESS


@pytest.mark.faults  # that a worker ends the job is tested in test_transfer
def test_observables_that_change_between_points_are_refused(make_job):
    job = make_job()
    text = (job.folder / "my_problem.py").read_text()
    (job.folder / "my_problem.py").write_text(
        text.replace("    return {", "    if x > 0.5: return {'loss': loss}\n    return {")
    )
    with pytest.raises(JobError, match="must return the same names for every batch and point"):
        cluster.run(job, workers=1)


@pytest.mark.faults
def test_a_job_is_planned_for_the_workers_devices_and_stays_on_them(make_job, monkeypatch):
    """Workers of which the driver hears that they have a GPU (they have not), and a driver that has none.

    The pool is replaced, which stays in this process; a worker's class would be changed for other jobs of this Ray.
    """
    started = RayWorkerPool.note_start

    def started_on_a_gpu(pool: RayWorkerPool, name: str, receipt: Receipt) -> WorkerHandle:
        return started(pool, name, replace(receipt, details={**receipt.details, "device": "cuda"}))

    monkeypatch.setattr(RayWorkerPool, "note_start", started_on_a_gpu)
    job = make_job(tile=[1])
    seen: list[int] = []
    with pytest.raises(Interrupted):
        cluster.run(job, 1, observer=lambda p: seen.append(p.points_done), stop=lambda: max(seen, default=0) > 5)
    assert open_run(job.run_path)["plane"].attributes["plan"]["device"] == "cuda"
    assert open_run(job.run_path)["plane"].attributes["plan"]["batch_size"] == 20
    with pytest.raises(JobError, match="computed on cuda, here is cpu"):
        landscape.run(job)
    assert cluster.run(job, 1)["plane"].attributes["progress"]["state"] == "complete"


def test_what_does_not_arrive_is_not_waited_for_for_ever(monkeypatch):
    """As on a node that reaches the head and not the driver; the worker that is asked says so, and is replaced."""
    import ray

    from cluster.driver import pool

    waiting = ray.remote(resources={"nowhere": 1})(lambda: 0).remote()
    monkeypatch.setattr(pool, "FETCH_SECONDS", 0.5)
    try:
        with pytest.raises(TimeoutError, match=r"within 0.5 s; every node must reach the driver's machine"):
            pool.fetch([waiting])
    finally:
        ray.cancel(waiting)


HOOKED = """
import torch
from torch import nn
from landscape import Problem


def problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    first = model[0]
    model[2].register_forward_hook(lambda module, given, made: made * first.weight.square().mean())
    return Problem.supervised(model, (torch.randn(40, 4), torch.randint(0, 2, (40,))))
"""


@pytest.mark.faults  # serially in test_own_model
def test_a_model_that_is_not_what_is_moved_is_found_by_a_worker_and_no_value_of_any_is_stored(tmp_path, caplog):
    (tmp_path / "hooked_problem.py").write_text(HOOKED)
    (tmp_path / "job.yaml").write_text(
        "{run: run, problem: 'hooked_problem:problem', num_samples: 40, threads: 1, tile: 1, engine: eager, "
        "landscapes: [{name: plane, size: 5}]}"
    )
    job = read_job(tmp_path / "job.yaml")
    with pytest.raises(OtherModel, match=r"^landscape 'plane': beside the centre it is not your model: loss"):
        cluster.run(job, workers=2)
    store = LandscapeStore.open(job.run_path, "plane")
    assert store.counts()[1:].sum() == 0
    assert not store.record.has_check

    found = cluster.run(job, workers=2, accept_origin=True)["plane"]
    assert found.record.own_model.state == "accepted"
    assert caplog.text.count(found.record.own_model.text) == 1
    serial = landscape.run(job.replace(run=job.run + "-serial"), accept_origin=True)["plane"]
    assert_same(serial, found)
    assert serial.record.own_model == found.record.own_model
