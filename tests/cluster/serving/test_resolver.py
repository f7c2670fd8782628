"""Where values come from: grid, refinement, what was served, a replica; and what follows when the disk changes."""

from __future__ import annotations

import asyncio
import math
import shutil
import struct
import sys
import threading
import time

import numpy as np
import pytest

from cluster.serving.landscapes import PointFile, StoredPoints, check_point_file
from cluster.serving.replica import Replica
from cluster.serving.resolver import CALLS_PER_REPLICA, OVERHEAD, PointCache, Queue, Resolver
from cluster.serving.sources import catalog_of, scale_of
from landscape.compute.refine import refine
from landscape.compute.serial import run as run_serially
from landscape.core.errors import JobError, NotFoundError
from landscape.job.reading import read_job
from landscape.store.results import open_run
from landscape.surface.record import Axis
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED, Surface

PLANE = "/v1/models/lenet/versions/latest/landscapes/plane"


@pytest.fixture
def copied(scene, tmp_path, monkeypatch):
    """A copy of the run, which a test may change."""
    shutil.copytree(scene, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def at(asker, *points, **more):
    return asker.post(f"{PLANE}/points", {"points": [list(each) for each in points], **more}).json


def test_points_of_a_level_come_from_it(make_asker, copied):
    asker = make_asker()
    assert at(asker, (0.25, 0.25))["source"] == ["computed"]
    before = at(asker, (0.25, 0.25))["values"]
    refine("lenet", "plane", box=[[0.0, 1.0], [0.0, 1.0]])
    asker.service.served["lenet/1/plane"].read_disk()
    merged = open_run("lenet")["plane"].merged()
    place = np.argwhere(merged.interpolated == 0)
    points = [(float(merged.alpha[a]), float(merged.beta[b])) for b, a in place]
    answer = at(asker, *points)
    assert answer["source"] == ["store"] * len(points)
    assert len(points) > 20
    assert answer["values"]["loss"] == merged.loss[merged.interpolated == 0].tolist()
    assert at(asker, (0.25, 0.25))["values"] == before  # which is a point of the level now
    loaded = Replica(catalog_of(["lenet"]).sources()).make("lenet/1/plane")
    assert loaded.points(np.array(points)).table[:, 0].tolist() == answer["values"]["loss"]


def test_only_what_was_evaluated_comes_from_a_surface():
    status = np.array([[OK, NOT_FINITE, NOT_COMPUTED], [QUARANTINED, OK, OK]], np.uint8)
    axes = (Axis("alpha", np.array([0.0, 0.1, 0.2])), Axis("beta", np.array([-1.0, 1.0])))
    interpolated = np.array([[0, 0, 0], [0, 0, 1]], np.uint8)
    loss = np.arange(6.0).reshape(2, 3)
    surface = Surface("plane", axes, {"loss": loss}, status, interpolated=interpolated)
    points = np.array(
        [[0, -1], [0.1, -1], [0.2, -1], [0, 1], [0.1, 1], [0.2, 1], [0.05, 1], [0.3, 0], [0.1, 1.0000001]]
    )
    held, values = StoredPoints(surface, ("loss", "loss_rise_stderr")).find(points)
    assert np.flatnonzero(held).tolist() == [0, 1, 4]
    assert values[:, 0].tolist() == [0.0, 1.0, 4.0]
    assert np.isnan(values[:, 1]).all()


def test_the_cache_drops_what_was_asked_for_longest_ago():
    size = OVERHEAD + 16 + 8
    cache = PointCache(2 * size)
    for number in (1, 2):
        cache.put("a", struct.pack("<2d", number, 0), struct.pack("<d", number))
    assert cache.get("a", struct.pack("<2d", 1, 0))
    assert cache.get("b", struct.pack("<2d", 1, 0)) is None
    cache.put("a", struct.pack("<2d", 3, 0), b"12345678")
    assert [cache.get("a", struct.pack("<2d", number, 0)) is not None for number in (1, 2, 3)] == [True, False, True]
    assert (len(cache), cache.bytes) == (2, 2 * size)
    nothing = PointCache(0)
    nothing.put("a", b"", b"")
    assert len(nothing) == 0


def test_what_was_served_is_kept_and_found_by_the_next_service(make_asker, copied):
    values = None
    for source in ("computed", "cache"):
        asker = make_asker()
        served = asker.service.served["lenet/1/plane"]
        served.point_file = PointFile(copied / "served", "plane", served.info)
        answer = at(asker, (0.3, 0.4), rise=True)
        assert answer["source"] == [source]
        served.point_file.close()
        values = values or answer["values"]
        assert answer["values"] == values
    assert not asker.replicas.asked


def test_kept_values_of_other_code_are_refused_where_no_grid_tells(make_asker, copied):
    """Weights and samples are those of before, so that the identity is too."""
    (copied / "job.yaml").write_text((copied / "job.yaml").read_text().replace("run: lenet", "run: none"))
    asker, key = make_asker("lenet=job.yaml"), "lenet/1/plane"
    kept = PointFile(copied / "served", "plane", asker.service.served[key].info)
    asker.run(check_point_file(kept, key, asker.replicas))  # of which there are none
    asker.service.served[key].point_file = kept
    at(asker, (0.3, 0.4))
    asker.run(check_point_file(kept, key, asker.replicas))
    kept.commit([(struct.pack("<2d", 0.5, 0.6), kept.latest()[1])])  # as other code had it there
    with pytest.raises(JobError, match="holds other values than this machine and code compute now"):
        asker.run(check_point_file(kept, key, asker.replicas))
    kept.close()


def test_a_run_that_is_gone_is_not_answered_for(make_asker, copied):
    asker = make_asker()
    at(asker, (0.3, 0.4))
    shutil.rmtree("lenet")
    asker.service.served["lenet/1/plane"].clock = lambda: 1e12
    reply = asker.post(f"{PLANE}/points", {"points": [[0.3, 0.4]]})
    assert (reply.status, "is gone; put it back" in reply.json["error"]) == (404, True)


def test_a_landscape_that_was_computed_anew_is_not_answered_for(make_asker, copied):
    asker = make_asker()
    shutil.rmtree("lenet")
    job = (copied / "job.yaml").read_text()
    (copied / "job.yaml").write_text(job.replace("size: [5, 4]", "size: [3, 3]"))
    run_serially(read_job("job.yaml"))
    asker.service.served["lenet/1/plane"].clock = lambda: 1e12
    reply = asker.post(f"{PLANE}/points", {"points": [[0.3, 0.4]]})
    assert (reply.status, "was computed again since this service began" in reply.json["error"]) == (404, True)


ANEW, GONE = (
    "was computed again since this service began; restart the service",
    "is gone; put it back, or serve another one",
)
QUESTIONS = {
    "points": {"points": [[0.3, 0.4]]},
    "line": {"from": [-1, 0], "to": [1, 0], "count": 5},
    "patch": {"low": [-1, 0], "high": [1, 1.5], "shape": [5, 4]},
    "gradient": {"point": [0.3, 0.4]},
    "curvature": {"point": [0.3, 0.4]},
}


def put_another(folder, *, other_code: bool = False):
    """Another landscape of the same name in the run: along other directions, or of other code."""
    shutil.move(folder / "lenet", folder / "old")
    job, problem = (folder / name for name in ("job.yaml", "small_problem.py"))
    if other_code:
        problem.write_text(problem.read_text().replace("torch.nn.Tanh()", "torch.nn.ReLU()"))
    else:
        directions = "directions: [{kind: random, seed: 8}, {kind: random, seed: 9}]"
        job.write_text(job.read_text().replace("range: [[-1, 1]", f"{directions}, range: [[-1, 1]"))
    sys.modules.pop("small_problem", None)
    run_serially(read_job(job))
    sys.modules.pop("small_problem", None)


def take_another_replica(asker):
    """One that has nothing loaded, as after others took all places of the one before."""

    async def make():
        return Replica(asker.service.catalog.sources())

    asker.replicas.replica = asker.run(make())


CHANGES = {
    "moved": (lambda folder: shutil.move(folder / "lenet", folder / "old"), GONE),
    "replaced": (put_another, ANEW),
    "of other code": (lambda folder: put_another(folder, other_code=True), ANEW),
}


@pytest.fixture
def timed_asker(make_asker, copied):
    """A service over the copied run, and its clock, in seconds."""
    asker, now = make_asker(), [0.0]
    for served in asker.service.served.values():
        served.clock = lambda: now[0]
    return asker, now


@pytest.mark.parametrize(("change", "passed"), [*((change, 2.5) for change in CHANGES), ("moved", 3600.0)])
def test_the_first_answer_two_seconds_after_a_run_has_changed_is_not_the_old_one(timed_asker, copied, change, passed):
    asker, now = timed_asker
    do, sentence = CHANGES[change]
    for question, body in QUESTIONS.items():
        assert asker.post(f"{PLANE}/{question}", body).status == 200
    assert len(asker.get("/v1/models").json["models"][0]["versions"][0]["landscapes"]) == 2
    do(copied)
    for question, body in QUESTIONS.items():
        now[0] += passed
        reply = asker.post(f"{PLANE}/{question}", body)
        assert (reply.status, reply.json.get("error", "")[-len(sentence) :]) == (404, sentence), question
    now[0] += passed
    names = [each["name"] for each in asker.get("/v1/models").json["models"][0]["versions"][0]["landscapes"]]
    assert "plane" not in names


def test_what_a_replica_computes_of_another_landscape_is_neither_answered_nor_held(timed_asker, copied):
    (asker, _), job = timed_asker, (copied / "job.yaml").read_text()
    at(asker, (0, 0))  # the disk has been looked at just now, and the replica loads the landscape anew
    put_another(copied)
    take_another_replica(asker)
    for question in ("points", "gradient", "curvature"):
        reply = asker.post(f"{PLANE}/{question}", QUESTIONS[question])
        assert (reply.status, ANEW in reply.json["error"]) == (404, True)
    shutil.move(copied / "lenet", copied / "new")
    shutil.move(copied / "old", copied / "lenet")
    (copied / "job.yaml").write_text(job)
    take_another_replica(asker)
    assert at(asker, (0.3, 0.4))["source"] == ["computed"]


@pytest.mark.parametrize(
    ("change", "question"),
    [("moved", "points"), ("moved", "gradient"), ("moved", "patch"), ("replaced", "points"), ("replaced", "curvature")],
)
def test_a_run_that_changes_while_a_replica_computes_is_not_answered_for(timed_asker, copied, change, question):
    asker, now = timed_asker
    do, sentence = CHANGES[change]
    body = QUESTIONS[question] | ({"low": [0.1, 0.1]} if question == "patch" else {})
    compute = getattr(asker.replicas, name := "points" if question in ("points", "patch") else "derivative")

    async def slowly(*asked):
        found = await compute(*asked)
        do(copied)
        now[0] += 30.0
        return found

    setattr(asker.replicas, name, slowly)
    reply = asker.post(f"{PLANE}/{question}", body)
    assert (reply.status, sentence in reply.json.get("error", "")) == (404, True)


class SlowReplicas:
    """Replicas of which one runs; it computes one batch after another. Counts the calls under way over time."""

    def __init__(self, replica) -> None:
        self._replica, self._one = replica, asyncio.Lock()
        self.calls, self.begin, self.sum, self.last = 0, time.monotonic(), 0.0, time.monotonic()

    async def points(self, key, points):
        self._count(1)
        try:
            async with self._one:
                await asyncio.sleep(0.01)
            return await self._replica.points(key, points)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        now = time.monotonic()
        self.sum, self.last, self.calls = self.sum + self.calls * (now - self.last), now, self.calls + change

    def average(self) -> float:
        """The calls under way, as Ray Serve averages them."""
        return self.sum / (self.last - self.begin)


@pytest.mark.parametrize(
    ("clients", "most", "more"), [(1, 2, False), (2, 2, True), (20, 2, True), (40, 4, True), (1, 8, False)]
)
def test_calls_under_load_are_those_above_which_serve_starts_every_replica(make_asker, clients, most, more):
    """Serve starts ⌈calls / CALLS_PER_REPLICA⌉ replicas; it does not see the requests that wait for a call."""
    asker = make_asker()
    served = asker.service.served["lenet/1/plane"]

    async def average() -> float:
        replicas = SlowReplicas(asker.replicas)
        resolver = Resolver(replicas, PointCache(0), Queue(1000), count=most)
        points = iter(np.random.default_rng(0).uniform(-1, 1, (60 + 3 * clients, 1, 2)))

        async def client() -> None:
            for point in points:
                await resolver.points(served, point)

        await asyncio.gather(*(client() for _ in range(clients)))
        resolver.end()
        return replicas.average()

    started = math.ceil(asker.run(average()) / CALLS_PER_REPLICA)
    assert min(started, most) == (most if more else 1)


def test_no_request_waits_for_the_disk_while_many_ask(timed_asker, monkeypatch):
    asker, now = timed_asker
    served, began = asker.service.served["lenet/1/plane"], threading.Event()
    at(asker, (0.3, 0.4))
    look, ends = served.read_disk, threading.Event()

    def slow():
        began.set()
        ends.wait(20)
        look()

    monkeypatch.setattr(served, "read_disk", slow)
    now[0] = 1.5
    try:
        assert at(asker, (0.3, 0.4))["source"] == ["cache"]  # answered while the look is under way
        assert began.wait(20)
    finally:
        ends.set()


def test_grid_values_of_a_job_go_with_its_landscape(make_asker, copied):
    asker = make_asker("lenet=job.yaml")
    assert at(asker, (1, 1.5))["source"] == ["store"]
    shutil.rmtree(copied / "lenet")
    asker.service.served["lenet/1/plane"].clock = lambda: 1e12
    assert at(asker, (1, 1.5))["source"] == ["computed"]


def test_a_landscape_that_was_begun_later_says_to_start_the_service_again(make_asker, copied):
    asker = make_asker()
    (copied / "lenet/landscapes.zarr/plane").rename(copied / "lenet/landscapes.zarr/later")
    reply = asker.post(f"{PLANE.replace('plane', 'later')}/points", {"points": [[0, 0]]})
    assert (reply.status, "was begun since this service began; start it again" in reply.json["error"]) == (404, True)


def test_a_job_does_not_take_values_of_another_one_that_has_its_run_by_now(make_asker, copied, tmp_path):
    job = (copied / "job.yaml").read_text().replace("run: lenet", f"run: {tmp_path}/new")
    (copied / "one.yaml").write_text(job)
    directions = "directions: [{kind: random, seed: 8}, {kind: random, seed: 9}]"
    (copied / "two.yaml").write_text(job.replace("range: [[-1, 1]", f"{directions}, range: [[-1, 1]"))
    asker = make_asker("new=one.yaml")
    run_serially(read_job("two.yaml"))
    asker.service.served["new/1/plane"].clock = lambda: 1e12
    answer = asker.post(f"{PLANE.replace('lenet', 'new')}/points", {"points": [[1, 1.5]]}).json
    assert answer["source"] == ["computed"]
    assert answer["values"]["loss"] != [float(open_run(tmp_path / "new")["plane"].loss[-1, -1])]


def test_a_replica_that_computes_other_values_does_not_serve(make_asker, copied):
    problem = (copied / "small_problem.py").read_text()
    (copied / "small_problem.py").write_text(problem.replace("torch.nn.Tanh()", "torch.nn.ReLU()"))
    import sys

    sys.modules.pop("small_problem", None)
    replica = Replica(catalog_of(["lenet"], folders={"lenet": copied}).sources())
    try:
        with pytest.raises(JobError, match="landscape 'plane' was computed on this processor"):
            replica.make("lenet/1/plane")
    finally:
        sys.modules.pop("small_problem", None)


def test_user_code_that_raises_at_a_point_fails_its_request_alone(make_asker, copied, monkeypatch):
    asker = make_asker()
    loaded = asker.run(asker.replicas.replica.loading("lenet/1/plane"))
    evaluate = loaded.evaluator.evaluate

    def raising(points, **given):
        if (points[:, 0] == 0.77).any():
            raise ValueError("no such weights")
        return evaluate(points, **given)

    monkeypatch.setattr(loaded.evaluator, "evaluate", raising)

    async def ask_all():
        asked = ([[0.1, 0.2]], [[0.77, 0.2]], [[0.3, 0.2]])
        return await asyncio.gather(*(asker.send("POST", f"{PLANE}/points", {"points": each}) for each in asked))

    answers = asker.run(ask_all())
    assert [each.status for each in answers] == [200, 500, 200]
    assert answers[1].json["error"] == "observe: ValueError: no such weights"


def test_a_landscape_that_cannot_be_loaded_is_loaded_once_for_all_who_ask(make_asker, copied, monkeypatch):
    asker = make_asker()
    replica, loads = asker.replicas.replica, []

    async def failing(key):
        loads.append(key)
        raise JobError("model: cannot be made")

    monkeypatch.setattr(replica, "loading", failing)

    async def ask_all():
        asked = ([[0.1, 0.2]], [[0.7, 0.2]], [[0.3, 0.2]])
        return await asyncio.gather(*(asker.send("POST", f"{PLANE}/points", {"points": each}) for each in asked))

    answers = asker.run(ask_all())
    assert [(each.status, each.json["error"]) for each in answers] == [(400, "model: cannot be made")] * 3
    assert 1 <= len(loads) <= len(asker.replicas.asked) <= 2  # the requests are spread over two calls


@pytest.mark.parametrize("question", ["points", "gradient", "curvature"])
def test_a_landscape_is_loaded_to_the_end_though_who_asked_has_left(question):
    replica, loaded = Replica([]), []

    async def scene():
        gate = asyncio.Event()

        async def loading(key):
            await gate.wait()
            loaded.append(key)
            raise JobError("not needed any more")

        replica.loading = loading
        kind = () if question == "points" else (question,)
        ask = replica.points if question == "points" else replica.derivative
        asked = asyncio.create_task(ask("lenet/1/plane", *kind, np.zeros((1, 2))))
        await settled()
        asked.cancel()
        await asyncio.wait([asked])
        gate.set()
        await settled()

    async def settled():
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(scene())
    assert loaded == ["lenet/1/plane"]


def test_places_have_names_and_versions(copied, tmp_path):
    catalog = catalog_of(["lenet", "mine=job.yaml", "lenet=job.yaml"])
    assert [(each.model, each.number, each.place) for each in catalog] == [
        ("lenet", 1, "lenet"), ("lenet", 2, "job.yaml"), ("mine", 1, "job.yaml"),
    ]  # fmt: skip
    (tmp_path / "a=b").mkdir()
    for place, error, message in (
        ("none", NotFoundError, "run 'none' does not exist"),
        ("a b=lenet", JobError, "name: must be letters"),
        (str(tmp_path / "a=b"), NotFoundError, "holds no landscape"),
    ):
        with pytest.raises(error, match=message):
            catalog_of([place])


@pytest.mark.parametrize("text", ["0", "2,1", "1,", "a", "1,2,3", "-1"])
def test_numbers_of_replicas_that_cannot_be_are_refused(text):
    with pytest.raises(JobError, match="replicas: must be MIN or MIN,MAX"):
        scale_of(text, 1)


def test_a_run_that_comes_back_is_answered_for_again(make_asker, copied):
    asker = make_asker()
    (copied / "lenet").rename(copied / "away")
    asker.service.served["lenet/1/plane"].clock = lambda: 1e12
    body = {"points": [[0.3, 0.4]]}
    assert asker.post(f"{PLANE}/points", body).status == 404
    (copied / "away").rename(copied / "lenet")
    assert asker.post(f"{PLANE}/points", body).status == 200


def test_derivatives_of_rounded_weights_are_refused_and_their_values_are_not(make_asker, copied):
    job = (copied / "job.yaml").read_text().replace("run: lenet", "run: rounded")
    (copied / "job.yaml").write_text(job.replace("{name: plane, ", "{name: plane, quantise: {bits: 4}, "))
    asker = make_asker("lenet=job.yaml")
    assert at(asker, (0.3, 0.4))["status"] == [1]
    for question in ("gradient", "curvature"):
        reply = asker.post(PLANE + "/" + question, {"point": [0.3, 0.4]})
        assert (reply.status, "goes in steps" in reply.json["error"]) == (400, True)
