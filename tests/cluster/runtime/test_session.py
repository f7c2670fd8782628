"""Sessions: workers pinned to GPUs (fake ones, which Ray hands out like real ones), placement, what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
import warm_workers
from waiting import wait_for

from cluster.runtime.placement import (
    Placement,
    Supply,
    explain_placement,
    placement,
    places,
    refuse_too_few_places,
    workers_that_fit,
)
from cluster.runtime.session import ray_workers
from cluster.runtime.shipping import upload
from landscape.core.errors import Interrupted, JobError, LandscapeError
from landscape.job.job import Job
from landscape.store.results import open_run

PLAIN = {"run": "r", "problem": "a:b"}


@pytest.mark.parametrize(
    ("fields", "workers", "nodes", "expected"),
    [
        ({}, None, [{"CPU": 8}], Placement(8, 1, 0)),
        ({"threads": 3}, None, [{"CPU": 8}], Placement(2, 3, 0)),
        ({"threads": 3}, None, [{"CPU": 4}, {"CPU": 4}, {"CPU": 2}], Placement(2, 3, 0)),
        ({}, 5, [{"CPU": 2}], Placement(5, 1, 0)),
        ({"workers": 3}, None, [{"CPU": 2}], Placement(3, 1, 0)),
        ({}, None, [{"CPU": 64, "GPU": 4}], Placement(4, 0, 1)),
        ({}, None, [{}, {"CPU": 8, "GPU": 2}, {"CPU": 8, "GPU": 1}], Placement(3, 0, 1)),
        ({"num_gpus": 0.5}, None, [{"CPU": 64, "GPU": 4}], Placement(8, 0, 0.5)),
        ({"num_gpus": 2}, None, [{"GPU": 3}, {"GPU": 1}], Placement(1, 0, 2)),
        ({"device": "cpu"}, None, [{"CPU": 6, "GPU": 4}], Placement(6, 1, 0)),
        ({}, None, [{"CPU": 0.5}], Placement(1, 1, 0)),
        ({"max_workers": 3}, None, [{"CPU": 8}], Placement(3, 1, 0, most=3)),
        ({"max_workers": 3}, None, [{"CPU": 2}], Placement(2, 1, 0, most=3)),
        ({"max_workers": 3}, 3, [{"CPU": 8}], Placement(3, 1, 0, most=3)),
        ({"worker_resources": {"a100": 1}}, None, [{"CPU": 8, "a100": 2}, {"CPU": 8}], Placement(2, 1, 0, {"a100": 1})),
        ({"worker_resources": {"a100": 0.5}}, None, [{"CPU": 1, "a100": 2}], Placement(1, 1, 0, {"a100": 0.5})),
    ],
)
def test_one_worker_per_gpu_else_one_per_core(fields, workers, nodes, expected):
    assert placement(Job(**PLAIN, **fields), workers, Supply(tuple(nodes))) == expected


def test_a_site_limits_the_workers_of_a_job_that_does_not_say_how_many(monkeypatch):
    many = Supply(({"CPU": 64},))
    monkeypatch.setenv("LANDSCAPE_MAX_WORKERS", "4")
    assert placement(Job(**PLAIN), None, many).workers == 4
    assert workers_that_fit(placement(Job(**PLAIN), None, many), Supply(({"CPU": 640},))) == 4, (
        "nor does it grow beyond"
    )
    assert placement(Job(**PLAIN, max_workers=16), None, many).workers == 16, "the job's own limit comes first"
    for fields, workers in (({}, 5), ({"workers": 5}, None)):
        with pytest.raises(
            JobError, match=r"workers: must be at most the 4 of LANDSCAPE_MAX_WORKERS, not 5; .*--max-wo"
        ):
            placement(Job(**PLAIN, **fields), workers, many)
    for wrong in ("many", "-1", "1.5", "²", "0", 5000 * "9"):
        monkeypatch.setenv("LANDSCAPE_MAX_WORKERS", wrong)
        with pytest.raises(JobError, match="LANDSCAPE_MAX_WORKERS: must be a whole number"):
            placement(Job(**PLAIN), None, many)
    monkeypatch.setenv("LANDSCAPE_MAX_WORKERS", "")
    assert placement(Job(**PLAIN), None, many).workers == 64


def test_a_custom_resource_that_no_node_has_is_refused_by_its_name():
    job = Job(**PLAIN, worker_resources={"a100": 2})
    with pytest.raises(JobError, match="worker_resources: a worker asks for 2 a100s, the cluster has 2, on one node 1"):
        placement(job, None, Supply(({"CPU": 8, "a100": 1}, {"CPU": 8, "a100": 1})))
    assert placement(job, None, Supply((), grows=True)).asks == (("CPU", 1), ("a100", 2))


def test_resources_that_no_node_has_together_are_refused():
    job = Job(**PLAIN, num_gpus=1, worker_resources={"licence": 1})
    apart = Supply(({"CPU": 8, "GPU": 4}, {"CPU": 8, "licence": 2}))
    words = "worker_resources: a worker asks for 1 GPU and 1 licence, and no node has them all"
    with pytest.raises(JobError, match=words):
        placement(job, None, apart)
    assert placement(job, None, Supply((*apart.nodes, {"GPU": 1, "licence": 1}))).workers == 1
    assert placement(job, 2, replace(apart, grows=True)).workers == 2


@pytest.mark.parametrize(
    "wrong", [{"CPU": 1}, {"a b": 1}, {"a": 0}, {"a": float("nan")}, {"a": 1.5}, {"a": True}, ["a"], 3]
)
def test_custom_resources_that_ray_would_refuse_are_refused(wrong):
    with pytest.raises(JobError, match="worker_resources"):
        Job(**PLAIN, worker_resources=wrong)


IMPOSSIBLE = [
    ({"num_gpus": 2}, "num_gpus: a worker asks for 2 GPUs, the cluster has 3, on one node 1 at most", "GPU 2 of 3"),
    ({"threads": 4}, "threads: a worker asks for 4 CPUs, the cluster has 6, on one node 2 at most", "CPU 4 of 6"),
]


@pytest.mark.parametrize(("fields", "refusal", "explanation"), IMPOSSIBLE)
def test_a_worker_that_no_node_holds_is_refused_or_waited_for_where_nodes_may_be_added(fields, refusal, explanation):
    nodes = ({"CPU": 2, "GPU": 1},) * 3
    job = Job(**PLAIN, **({"device": "cpu"} if "threads" in fields else {}), **fields)
    with pytest.raises(JobError, match=refusal):
        placement(job, None, Supply(nodes))
    waiting = placement(job, None, Supply(nodes, grows=True))
    assert waiting.workers == 1
    text = explain_placement(waiting, Supply(nodes, grows=True), {"CPU": 6, "GPU": 3})
    assert explanation in text
    assert text.endswith("waiting for a larger node, of which its autoscaler is told")


@pytest.mark.parametrize(
    ("nodes", "room"), [([4, 4, 4], 3), ([8, 2, 2], 2), ([8, 2], 1), ([8, 8, 2, 2], 5), ([3, 3, 3], 1), ([2, 1, 1], 0)]
)
def test_a_worker_over_two_nodes_has_one_part_on_each(nodes, room):
    job = Job(**PLAIN, resources={"cpus": 4, "nodes": 2})
    assert (
        places(placement(job, None, Supply((), grows=True)), Supply(tuple({"CPU": count} for count in nodes))) == room
    )
    with pytest.raises(JobError, match="resources: a worker asks for 4 CPUs, the cluster has 3, on one node 3 at most"):
        placement(Job(**PLAIN, resources={"cpus": 4}), None, Supply(({"CPU": 3},)))
    with pytest.raises(JobError, match="resources: nodes must be at most those of the cluster with room, 1, not 2"):
        placement(job, None, Supply(({"CPU": 8},)))


def test_a_gpu_that_is_asked_for_is_not_replaced_by_a_core():
    with pytest.raises(JobError, match="asks for 1 GPUs, the cluster has 0"):
        placement(Job(**PLAIN, device="cuda"), None, Supply(({"CPU": 8},)))


@pytest.mark.parametrize(("nodes", "room"), [([{"CPU": 2}, {"CPU": 3}], 5), ([{"CPU": 8, "GPU": 1}], 1), ([{}], 0)])
def test_workers_that_must_run_at_once_find_a_place_each_or_are_refused(nodes, room):
    wanted = Placement(2, 0, 1) if "GPU" in nodes[0] else Placement(6, 1, 0)
    refuse_too_few_places(wanted, Supply(tuple(nodes), grows=True))
    with pytest.raises(JobError, match=rf"workers: {wanted.workers} must run .* room for {room}; ask for fewer"):
        refuse_too_few_places(wanted, Supply(tuple(nodes)))
    if room:
        refuse_too_few_places(Placement(room, wanted.num_cpus, wanted.num_gpus), Supply(tuple(nodes)))


def test_an_unplaced_worker_is_explained():
    text = explain_placement(Placement(2, 0, 1), Supply(({"CPU": 4, "GPU": 2},)), {"CPU": 4})
    assert "GPU 1 of 2 (0 free, 2 on one node); waiting for the cluster" in text


def test_only_a_callback_beside_the_job_file_is_uploaded_and_never_the_run(make_job, capsys):
    job = make_job()
    (job.folder / ".env").write_text("KEY=1")
    Path(job.run_path).mkdir()
    (Path(job.run_path) / "run.json").write_text("{}")
    with upload(job) as found:
        assert set(zipfile.ZipFile(found["working_dir"]).namelist()) == {
            "job.yaml", "my_problem.py", "d1.safetensors", "d2.safetensors",
        }  # fmt: skip
    assert not Path(found["working_dir"]).exists()
    assert capsys.readouterr().err == "not sent with the job: .env (may hold secrets)\n"
    with upload(job.replace(problem="landscape.recipes.digits:problem")) as found:
        assert found == {}


def test_a_folder_too_large_to_ship_is_refused_before_it_is_zipped(make_job, monkeypatch):
    job = make_job()
    monkeypatch.setattr("cluster.runtime.shipping.LARGEST_UPLOAD", 1 << 20)
    (job.folder / "run").mkdir()
    (job.folder / "run" / "large").write_bytes(bytes(2 << 20))
    with upload(job) as found:
        assert found  # the run does not travel
    (job.folder / "large").write_bytes(bytes(2 << 20))
    with pytest.raises(JobError, match=r"more than 1 MiB; move .*'large' 2\.1 MB"), upload(job):
        pass


def script(text: str, ray_folder: Path, **environment: str) -> dict[str, object]:
    """Run a script in a process of its own, where Ray can be started afresh; its last line is JSON."""
    env = {**os.environ, "RAY_TMPDIR": str(ray_folder), **environment}
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(text)],
        env=env, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.strip().splitlines()[-1])


@pytest.mark.slow  # two nodes with two workers each; test_device_ids_restrict_a_local_ray has one
def test_each_worker_sees_the_gpu_it_was_given_and_no_other(make_job, ray_folder):
    """Two nodes with two fake GPUs each, four workers: every worker has one device of its own node."""
    job = make_job(
        """
        def trouble(x, y):
            company(4, after=20)  # the first is alone when it measures
            time.sleep(0.05)
    """,
        tile=[1],
        num_gpus=1,
    )
    script(
        f"""
        import os, ray
        from ray.cluster_utils import Cluster
        nodes = Cluster(initialize_head=True, head_node_args={{"num_cpus": 2, "num_gpus": 2}})
        nodes.add_node(num_cpus=2, num_gpus=2)
        nodes.wait_for_nodes()
        import cluster
        from landscape.job.reading import read_job
        cluster.run(read_job({str(job.folder / "job.yaml")!r}, device="auto"), address=nodes.address)
        nodes.shutdown()
        print("{{}}")
        """,
        ray_folder,
    )
    surface = open_run(job.run_path)["plane"]
    assert devices_used(job) == {"0", "1"}
    assert surface.attributes["progress"]["workers"] == 4
    assert surface.attributes["plan"]["device"] == "cpu"  # torch sees no GPU here, Ray's are make-believe


@pytest.mark.slow
def test_device_ids_restrict_a_local_ray(make_job, ray_folder):
    job = make_job(
        """
        def trouble(x, y):
            company(2, after=20)
    """,
        tile=[1],
        device_ids=[1, 3],
    )
    script(
        f"""
        import os, torch
        torch.cuda.device_count = lambda: 4   # a machine with four GPUs, as far as the session can tell
        import cluster
        from landscape.job.reading import read_job
        cluster.run(read_job({str(job.folder / "job.yaml")!r}))
        assert "CUDA_VISIBLE_DEVICES" not in os.environ
        print("{{}}")
        """,
        ray_folder,
    )
    assert devices_used(job) == {"1", "3"}


def devices_used(job) -> set[str]:
    """The GPUs that workers were shown, as the callback noted them."""
    return set((job.folder / "devices.log").read_text().split())


GPU_CODE = """
import os

from my_problem import Plane, data_of, observe
from landscape import Problem


def on_gpus(model, batch):
    if not os.environ.get("CUDA_VISIBLE_DEVICES"):
        raise RuntimeError("no GPU here")
    return observe(model, batch)


def problem():
    return Problem(Plane(), data_of(), on_gpus, observables={observables})
"""


OBSERVABLES = [
    (("distance", "loss"), 0, ""),
    (None, 2, "name what it returns for the workers to look: Problem(..., observables=('loss', ...))"),
    (("loss",), 2, "observe: returns loss, distance, the problem names loss"),
]


@pytest.mark.faults  # a private Ray
def test_a_local_session_has_the_cores_of_the_process_and_workers_look_at_what_runs_on_gpus_alone(make_job, ray_folder):
    """One core. The driver sees no GPU; Ray has a make-believe one, which its workers are given."""
    job = make_job()
    plain = (job.folder / "my_problem.py").read_text()
    (job.folder / "my_problem.py").write_text(plain + "\n\ndef data_of():\n    return torch.linspace(-1, 1, 24)\n")
    for k, (observables, _, _) in enumerate(OBSERVABLES):
        (job.folder / f"gpu_problem_{k}.py").write_text(GPU_CODE.format(observables=observables))
    workers, cores, *ended = script(
        f"""
        import json, os, sys
        os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
        import ray, torch
        sys.path.append({str(Path(warm_workers.__file__).parent)!r})
        from warm_workers import warm_workers
        torch.cuda.device_count = lambda: 1   # as far as the session can tell
        import cluster
        from cluster.runtime.placement import placement
        from cluster.runtime.session import ray_session, supply
        from landscape.core.errors import JobError
        from landscape import read_job

        FOLDER = {str(job.folder)!r}

        def run(k):
            problem = f"gpu_problem_{{k}}:problem"
            try:
                cluster.run(read_job(FOLDER + "/job.yaml", problem=problem, device="cuda", run=f"{{FOLDER}}/run-{{k}}"))
                return 0, ""
            except JobError as error:
                return error.exit_code, str(error)

        job = read_job(FOLDER + "/job.yaml", device="cpu")
        with warm_workers(), ray_session(job.replace(device="auto"), None, None):
            print(json.dumps([placement(job, None, supply()).workers, ray.cluster_resources()["CPU"],
                              *(run(k) for k in range({len(OBSERVABLES)}))]))
        """,
        ray_folder,
    )
    assert (workers, cores) == (1, 1.0)
    for (_, code, said), (ended_with, message) in zip(OBSERVABLES, ended, strict=True):
        assert ended_with == code, ended
        assert said in message
    assert devices_used(job) == {"0"}
    assert (open_run(job.folder / "run-0")["plane"].status == 1).all()
    assert not any((job.folder / f"run-{k}" / "landscapes.zarr" / "plane").exists() for k in (1, 2))


def test_device_ids_that_are_not_there_are_refused(make_job):
    import cluster

    with pytest.raises(JobError, match="this machine has 0 GPUs"):
        cluster.run(make_job(device_ids=[0]))


# ----------------------------------------------------------------------------------------------------
# Functions that directions have computed on the workers of a cluster.


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
