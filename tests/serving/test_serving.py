"""`landscape serve` on Ray Serve, by real clients: curl, grpcio, many at once; replicas, services and clients die."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from importlib import import_module
from pathlib import Path

import grpc
import numpy as np
import pytest
from load import load, table_of
from served import Running, serving
from waiting import wait_for

from cluster.serving.grpc import LandscapeStub
from cluster.serving.landscape_pb2 import Point, PointsRequest, Target
from landscape.compute.plans import make_evaluator
from landscape.compute.prepare import prepare
from landscape.compute.serial import run
from landscape.core.http import services_of
from landscape.job.reading import read_job
from landscape.store.results import open_run

pytestmark = pytest.mark.serve

PROBLEM = """
import time
from pathlib import Path

import torch

from landscape import Problem
from landscape.bench.problems import synthetic_problem


class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 3)

    def forward(self, inputs):
        time.sleep(0.05)
        with Path(__file__).with_name("calls").open("a") as calls:
            calls.write(".")
        return self.inner(inputs)


def problem():
    return synthetic_problem("tiny", 64)


def slow():
    here = Path(__file__)
    while here.with_name("hold").exists():
        here.with_name("loading").touch()
        time.sleep(0.05)
    generator = torch.Generator().manual_seed(0)
    model = Slow()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    data = torch.randn(16, 8, generator=generator), torch.randint(0, 3, (16,), generator=generator)
    return Problem.supervised(model, data)
"""
JOB = """
run: {name}
problem: serving_problem:{problem}
num_samples: {samples}
engine: eager
device: cpu
landscapes: [{{name: plane, size: [5, 4]}}]
"""
PLANE = "/v1/models/mlp/versions/latest/landscapes/plane"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two job files and the run of the first one."""
    made = tmp_path_factory.mktemp("serving")
    (made / "serving_problem.py").write_text(PROBLEM)
    (made / "job.yaml").write_text(JOB.format(name="mlp", problem="problem", samples=64))
    (made / "slow.yaml").write_text(JOB.format(name="slow", problem="slow", samples=16))
    run(read_job(made / "job.yaml"))
    return made


@pytest.fixture(scope="module")
def expected(folder):
    """The serial evaluator's values of points, by point and name."""
    prepared = prepare(read_job(folder / "job.yaml"))
    evaluator = make_evaluator(prepared, prepared.landscapes[0])

    def values(points):
        return table_of(points, evaluator.evaluate(np.array(points), rise=True).arrays())

    return values


@pytest.fixture(scope="module")
def service(folder):
    """A service of two versions of a model, and a model whose job is not computed."""
    places = ["mlp", "mlp=job.yaml", "slow=slow.yaml"]
    with serving(places, folder, "--grpc-port", "18801", "--replicas", "2", "--cache", "1") as running:
        yield running


def drawn(count: int, seed: int) -> list[tuple[float, float]]:
    return [(a, b) for a, b in np.random.default_rng(seed).uniform(-1, 1, (count, 2)).round(3).tolist()]


def test_curl_gets_the_bits_of_the_serial_evaluator(service: Running, expected):
    points = drawn(20, 1)
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl")
    command = [
        curl, "-sS", "-H", f"Authorization: Bearer {service.token}", f"{service.url}{PLANE}/points",
        "--data", json.dumps({"points": points, "rise": True}),
    ]  # fmt: skip
    values = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["values"]
    known = expected(points)
    names = [name for name in values if name in known[points[0]]]
    assert "loss_rise_stderr" in names
    assert {name: values[name] for name in names} == {
        name: [known[point][name] for point in points] for name in names
    }  # fmt: skip


def test_grpcio_gets_them_too_and_the_store_its_own(service: Running, folder, expected):
    surface = open_run(folder / "mlp")["plane"]
    points = [*drawn(5, 2), (float(surface.alpha[1]), float(surface.beta[2]))]
    with grpc.insecure_channel(service.grpc) as channel:
        answer = LandscapeStub(channel).Points(
            PointsRequest(
                target=Target(model="mlp", version="1", landscape="plane"),
                points=[Point(coordinates=point) for point in points],
            ),
            metadata=(("authorization", f"Bearer {service.token}"),),
        )
    losses = next(list(each.values) for each in answer.values if each.name == "loss")
    assert losses[:5] == [each["loss"] for each in expected(points[:5]).values()]
    assert losses[5] == surface.loss[2, 1]
    assert list(answer.source) == [2] * 5 + [0]


def test_nothing_of_it_listens_beyond_this_machine(service: Running):
    replica, *_ = service.replicas()
    hosts = [each.laddr.ip for each in replica.net_connections("inet") if each.status == "LISTEN"]
    assert hosts
    assert {host.removeprefix("::ffff:") for host in hosts} == {"127.0.0.1"}


def test_the_service_is_found_by_its_run(service: Running, folder):
    (found,) = services_of(folder / "mlp")
    assert (found.url, found.grpc, found.token) == (service.url, service.grpc, service.token)
    assert [each.address("plane") for each in found.runs][:2] == [
        f"/v1/models/mlp/versions/{number}/landscapes/plane" for number in (1, 2)
    ]


def test_derivatives_and_a_streamed_patch(service: Running):
    asker = service.asker()
    gradient = asker.ask(f"{PLANE}/gradient", {"point": [0.2, 0.3]})[2]
    ends = [asker.ask(f"{PLANE}/points", {"points": [[0.2 + step, 0.3]]})[2] for step in (-1e-3, 1e-3)]
    slope = (ends[1]["values"]["loss"][0] - ends[0]["values"]["loss"][0]) / 2e-3
    np.testing.assert_allclose(gradient["gradient"][0], slope, rtol=0.05, atol=1e-3)
    assert np.array(asker.ask(f"{PLANE}/curvature", {"point": [0.2, 0.3]})[2]["curvature"]).shape == (2, 2)
    asker.close()


def test_many_clients_lose_nothing_while_replicas_are_killed(service: Running, expected):
    points, ended, kills = drawn(400, 3), threading.Event(), []

    def kill() -> None:
        while len(kills) < 3 and not ended.wait(6.0):
            for replica in service.replicas()[:1]:
                replica.kill()
                kills.append(replica.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    # Points that differ, so that none of them is answered from the cache.
    fresh = ((a + 1e-6 * number, b) for number in itertools.count() for a, b in points)
    seen: list[tuple[float, float]] = []
    answers: dict[tuple[float, float], float] = {}

    def check(point, values) -> bool:
        seen.append(point)
        answers[point] = values["loss"][0]
        return True

    tally = asyncio.run(load(service.url, service.token, f"{PLANE}/points", 50, fresh, check, 20.0))
    ended.set()
    killer.join()
    assert len(kills) >= 2
    assert (tally.failed, tally.wrong) == ([], [])
    assert len(seen) == len(set(seen)) == tally.answered == len(tally.seconds)
    some = seen[:: max(1, len(seen) // 300)]
    known = expected(some)
    assert [answers[point] for point in some] == [known[point]["loss"] for point in some]
    assert service.ask("/v1/health")[2]["requests"] == 0


def test_a_client_that_leaves_leaves_the_replicas_to_others(service: Running, folder):
    calls, slow = folder / "calls", "/v1/models/slow/versions/1/landscapes/plane"

    def count() -> int:
        return calls.stat().st_size if calls.exists() else 0

    before, leaving = count(), service.asker()
    leaving.send(f"{slow}/patch", {"low": [0.1, 0.1], "high": [0.9, 0.9], "shape": [50, 80]})
    while count() < before + 4:
        time.sleep(0.01)
    leaving.close()
    left = count()
    for number in range(4):  # more than there are replicas
        assert service.ask(f"{slow}/points", {"points": [[0.01 * number, 0.02]]})[2]["source"] == ["computed"]
    # Of 4,000 points 256 had been sent to the replicas.
    assert count() - left < 128
    assert service.ask("/v1/health")[2]["computing"] == 0


def test_clients_that_wait_have_a_second_replica_started_which_is_asked_once_it_has_loaded(folder, tmp_path):
    for name in ("serving_problem.py", "slow.yaml"):
        shutil.copy(folder / name, tmp_path)
    issued, answered, over = set(), set(), threading.Event()

    def points():
        for number in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
            a, b = np.random.default_rng(number).uniform(-1, 1, 2).tolist()
            issued.add((a, b))
            yield a, b

    def check(point, _):
        answered.add(point)
        return True

    options = ("--grpc-port", "0", "--replicas", "1,2", "--cache", "0")
    hold, loading = tmp_path / "hold", tmp_path / "loading"
    with serving(["slow=slow.yaml"], tmp_path, *options) as running, contextlib.ExitStack() as stack:
        stack.callback(over.set)
        hold.touch()
        path = "/v1/models/slow/versions/1/landscapes/plane/points"
        asking = threading.Thread(
            target=lambda: asyncio.run(load(running.url, running.token, path, 20, points(), check, 600.0))
        )
        asking.start()
        assert len(running.replicas()) == 1
        wait_for(loading.exists, "the second replica to load")
        while_it_loads = set(issued)
        wait_for(lambda: while_it_loads <= answered, "the answers to those who asked before")
        said = running.errors.read_text
        assert "2 running" not in said()
        hold.unlink()
        wait_for(lambda: "replicas: 2 running, 0 starting, 2 at most" in said(), "the second replica")
        asked = urllib.request.Request(f"{running.url}/metrics", headers={"Authorization": f"Bearer {running.token}"})
        with urllib.request.urlopen(asked) as answer:
            assert 'landscape_serve_replicas{state="running"} 2.0' in answer.read().decode()
        over.set()
        asking.join()


class Ending:
    """The handle of replicas of which the first one ends while it computes, as Serve hands that on by gRPC."""

    def __init__(self):
        self.asked, self.told = 0, 0

    def options(self, **_):
        return self

    def remote(self, *_):
        self.asked += 1
        return self

    def cancel(self):
        self.told += 1

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        if self.asked == 1:
            raise asyncio.CancelledError
        yield from asyncio.sleep(3600 if self.asked == 2 else 0).__await__()
        return "values"


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")  # within Ray Serve
def test_what_a_replica_that_ends_was_asked_for_is_asked_of_another_one(monkeypatch):
    deployment = import_module("cluster.serving.deployment")  # here, as Ray Serve warns where it is imported
    monkeypatch.setattr(deployment, "PAUSE_SECONDS", 0.0)
    handle = Ending()
    replicas = deployment.RayReplicas("replicas", handle, routed=False)

    async def scene():
        leaving = asyncio.create_task(replicas.points("key", np.zeros((1, 2))))
        while handle.asked < 2:
            await asyncio.sleep(0)
        assert handle.told == 0
        leaving.cancel()
        await asyncio.wait([leaving])
        assert leaving.cancelled()
        assert handle.told == 1
        assert await replicas.points("key", np.zeros((1, 2))) == "values"

    asyncio.run(scene())


def test_a_signal_lets_answers_under_way_finish_and_what_was_kept_survives_a_kill(folder, expected):
    points = drawn(30, 5)
    places, options = ["mlp", "slow=slow.yaml"], ("--grpc-port", "0", "--keep")
    with serving(places, folder, *options) as running:
        first = running.ask(f"{PLANE}/points", {"points": points})[2]
        assert first["source"] == ["computed"] * 30
        for each in [*running.replicas()]:
            each.kill()
        running.process.kill()
        running.process.wait()
    with serving(places, folder, *options) as running:
        again = running.ask(f"{PLANE}/points", {"points": points})[2]
        assert (again["source"], again["values"]) == (["cache"] * 30, first["values"])
        slow = "/v1/models/slow/versions/1/landscapes/plane/line"
        answers: list[int] = []

        def ask() -> None:
            body = {"from": [-1, -1], "to": [1, 1], "count": 60}
            answers.append(running.ask(slow, body)[0])

        clients = [threading.Thread(target=ask) for _ in range(3)]
        for client in clients:
            client.start()
        while running.ask("/v1/health")[2]["requests"] < 3:
            time.sleep(0.05)
        assert running.stop(signal.SIGTERM) == 130
        for client in clients:
            client.join()
        assert answers == [200] * 3
        assert not services_of(folder / "mlp") or running.url not in [each.url for each in services_of(folder / "mlp")]
        assert "the service has ended" in running.errors.read_text()


CODE = """
import torch

from landscape import Problem


def observe(model, batch):
    losses = torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return {{"loss": {factor} * losses}}


def problem():
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    data = torch.randn(16, 3, generator=generator), torch.randint(0, 2, (16,), generator=generator)
    return Problem(model, data, observe)
"""


def compute(folder: Path, factor: float) -> None:
    """The run of a job whose code has this factor, which is no part of the job's identity."""
    (folder / "serving_code.py").write_text(CODE.format(factor=factor))
    (folder / "code.yaml").write_text(
        JOB.format(name="mlp", problem="problem", samples=16).replace("serving_problem", "serving_code")
    )
    sys.modules.pop("serving_code", None)
    run(read_job(folder / "code.yaml"))
    sys.modules.pop("serving_code", None)


def test_a_run_of_other_code_is_neither_answered_for_nor_are_its_kept_values_taken(tmp_path):
    compute(tmp_path, 1.0)
    body = {"points": [[0.3, 0.4]]}
    with serving(["mlp"], tmp_path, "--grpc-port", "0", "--keep") as running:
        assert running.ask(f"{PLANE}/points", body)[2]["source"] == ["computed"]
        shutil.move(tmp_path / "mlp", tmp_path / "old")
        compute(tmp_path, 2.0)
        time.sleep(2.1)  # what the documentation promises
        status, _, answer = running.ask(f"{PLANE}/points", body)
        assert (status, "was computed again since this service began" in answer["error"]) == (404, True)
    shutil.copytree(tmp_path / "old" / "served", tmp_path / "mlp" / "served", dirs_exist_ok=True)
    command = [sys.executable, "-m", "cluster", "serve", "mlp", "--port", "0", "--grpc-port", "0", "--keep"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "holds other values than this machine and code compute now" in done.stderr


def test_what_cannot_be_served_ends_the_command_with_a_sentence(folder):
    (folder / "broken.yaml").write_text(JOB.format(name="none", problem="absent", samples=16))
    command = [sys.executable, "-m", "cluster", "serve", "broken.yaml", "--port", "0", "--grpc-port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    *stages, error = done.stderr.splitlines()
    assert error.startswith("none/1/plane: problem: module 'serving_problem' has no function 'absent'; known: ")
    assert all(re.match("loading|starting|preparing", stage) for stage in stages), done.stderr
