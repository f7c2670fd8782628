"""The service over HTTP, its replica in this process: values to the bit, where they come from, and what is refused."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster.serving import service
from cluster.serving.batching import FEWEST_POINTS
from cluster.serving.requests import ServedAxis, even_steps
from cluster.serving.rest import READ_ON
from cluster.serving.sources import ReplicaStates
from landscape.compute.plans import make_evaluator
from landscape.compute.prepare import prepare
from landscape.core.errors import NotFoundError
from landscape.job.reading import read_job
from landscape.store.results import open_run

PLANE = "/v1/models/lenet/versions/latest/landscapes/plane"
RAW = "application/octet-stream"


@pytest.fixture(scope="module")
def reference(scene: Path):
    """The serial evaluator's values at points of the plane, float64 [P, 2] of loss and accuracy."""
    prepared = prepare(read_job(scene / "job.yaml"))
    evaluator = make_evaluator(prepared, prepared.landscapes[0])

    def values(points):
        found = evaluator.evaluate(np.array(points, np.float64))
        return {"loss": found.mean["loss"].tolist(), "accuracy": found.mean["accuracy"].tolist()}

    return values


def test_points_between_those_of_the_grid_are_the_serial_evaluators_to_the_bit(asker, reference):
    points = [[0.31, 0.7], [-0.2, 0.11], [0.31, 0.7], [0.31, 0.12]]
    answer = asker.post(f"{PLANE}/points", {"points": points}).json
    expected = reference(points)
    assert {name: answer["values"][name] for name in expected} == expected
    assert answer["points"] == points
    assert answer["source"] == ["computed"] * 4
    assert asker.post(f"{PLANE}/points", {"points": points[:1]}).json["source"] == ["cache"]
    assert [len(each) for each in asker.replicas.asked] == [3]  # the point that stands twice is computed once


def test_points_of_the_grid_come_from_the_store(asker, scene):
    surface = open_run(scene / "lenet")["plane"]
    patch = {"low": [-1, 0], "high": [1, 1.5], "shape": [5, 4], "rise": True}
    answer = asker.post(f"{PLANE}/patch", patch).json
    stored = {name: values.tolist() for name, values in surface.observables.items() if name != "loss_rise"}
    assert answer["values"] == stored
    assert np.array(answer["source"]).ravel().tolist() == ["store"] * 20
    assert answer["coordinates"] == {"alpha": surface.alpha.tolist(), "beta": surface.beta.tolist()}
    assert not asker.replicas.asked


def test_even_steps_meet_a_grid_whose_coordinates_its_ends_do_not_tell():
    fitted = [-1.0, np.nextafter(-0.5, 0), 0.0, np.nextafter(0.5, 1), 1.0]
    steps = even_steps(ServedAxis("alpha", np.array(fitted)), -1.0, 1.0, 9)
    assert steps.tolist() == [-1.0, -0.75, fitted[1], -0.25, 0.0, 0.25, fitted[3], 0.75, 1.0]


def test_a_job_that_is_not_computed_is_served_too(make_asker, reference, tmp_path):
    job = Path("job.yaml").read_text().replace("run: lenet", f"run: {tmp_path}/none")
    Path("other.yaml").write_text(job)
    asker = make_asker("new=other.yaml")
    answer = asker.post("/v1/models/new/versions/1/landscapes/plane/points", {"points": [[0, 0], [1, 1.5]]}).json
    assert answer["values"]["loss"] == reference([[0, 0], [1, 1.5]])["loss"]
    assert answer["source"] == ["computed"] * 2


def test_a_line_hits_both_ends_exactly_and_a_patch_is_streamed_row_by_row(shared_asker, reference):
    line = shared_asker.post(f"{PLANE}/line", {"from": [-0.3, 0.1], "to": [0.7, 0.4], "count": 4}).json
    assert (line["points"][0], line["points"][-1]) == ([-0.3, 0.1], [0.7, 0.4])
    assert line["values"]["loss"] == reference(line["points"])["loss"]
    patch = {"low": [0.1, 0.1], "high": [0.3, 0.2], "shape": [3, 6], "stream": True}
    rows = [json.loads(row) for row in shared_asker.post(f"{PLANE}/patch", patch).body.splitlines()]
    whole = shared_asker.post(f"{PLANE}/patch", patch | {"stream": False}).json
    assert [row["row"] for row in rows] == [[number] for number in range(6)]
    assert [row["beta"] for row in rows] == whole["coordinates"]["beta"]
    assert [row["values"]["loss"] for row in rows] == whole["values"]["loss"]


def test_one_axis_is_served_like_two(shared_asker, scene):
    line = "/v1/models/lenet/versions/1/landscapes/line"
    surface = open_run(scene / "lenet")["line"]
    answer = shared_asker.post(f"{line}/points", {"points": surface.alpha[:, None].tolist()}).json
    assert answer["values"]["loss"] == surface.loss.tolist()
    patch = shared_asker.post(f"{line}/patch", {"low": [-1], "high": [1], "shape": [9], "stream": True})
    assert json.loads(patch.body)["values"]["loss"] == surface.loss.tolist()


def test_raw_numbers_have_the_bits_of_json(shared_asker):
    points = np.array([[0.25, 0.5], [-0.7, 0.3]])
    raw = shared_asker.post(f"{PLANE}/points?rise=true", points.astype("<f8").tobytes(), content_type=RAW, accept=RAW)
    names = raw.headers["x-observables"].split(",")
    values = shared_asker.post(f"{PLANE}/points", {"points": points.tolist(), "rise": True}).json["values"]
    assert names == list(values)
    assert np.frombuffer(raw.body, "<f8").reshape(2, -1).T.tolist() == [values[name] for name in names]


def losses_along_the_axes(scene):
    """The loss of each sample of the plane as a function of the coordinates, [2] to [samples], in float64."""
    prepared = prepare(read_job(scene / "job.yaml"))
    plane, model = prepared.landscapes[0], prepared.problem.model.double()
    inputs, targets = prepared.samples.batch(0, 40)

    def losses(coordinates):
        weights = {
            name: origin.double() + sum(coordinates[axis] * each.tensors[name].double()
            for axis, each in enumerate(plane.directions) if name in each.tensors)
            for name, origin in plane.origin.items()
        }  # fmt: skip
        outputs = torch.func.functional_call(model, weights, inputs.double())
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    return losses


def test_gradient_and_curvature_are_those_of_autograd_in_the_coordinates(shared_asker, scene):
    point, losses = torch.tensor([0.31, 0.7], dtype=torch.float64), losses_along_the_axes(scene)
    slopes = torch.autograd.functional.jacobian(losses, point)  # [samples, axes]
    found = shared_asker.post(f"{PLANE}/gradient", {"point": point.tolist()}).json
    np.testing.assert_allclose(found["loss"], losses(point).mean(), rtol=1e-6)
    np.testing.assert_allclose(found["gradient"], slopes.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found["stderr"], slopes.std(0) / np.sqrt(len(slopes)), rtol=1e-3)
    hessian = torch.autograd.functional.hessian(lambda each: losses(each).mean(), point)
    curvature = shared_asker.post(f"{PLANE}/curvature", {"point": point.tolist()}).json
    np.testing.assert_allclose(curvature["curvature"], hessian, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(curvature["eigenvalues"], torch.linalg.eigvalsh(hessian), rtol=1e-5, atol=1e-6)


def test_what_is_derived_is_answered_beside_what_is_computed_from_every_source(asker):
    points = [[0.31, 0.7], [1, 1.5]]
    for source in ("computed", "cache"):
        answer = asker.post(f"{PLANE}/points", {"points": points}).json
        assert answer["source"] == [source, "store"]
        values = {name: np.array(column) for name, column in answer["values"].items()}
        assert values["perplexity"].tolist() == np.exp(values["loss"]).tolist()
        assert values["perplexity_stderr"].tolist() == (values["perplexity"] * values["loss_stderr"]).tolist()


def test_many_clients_at_once_get_their_own_answers(asker, reference):
    points = np.random.default_rng(0).uniform(-1, 1, (40, 2)).round(2).tolist()

    async def ask_all():
        asked = (asker.send("POST", f"{PLANE}/points", {"points": [point]}) for point in points)
        return await asyncio.gather(*asked)

    answers = asker.run(ask_all())
    assert [each.json["values"]["loss"][0] for each in answers] == reference(points)["loss"]


def test_every_answer_says_how_long_it_took_and_its_evaluation(asker):
    def timing(question, body):
        header = asker.post(f"{PLANE}/{question}", body).headers["server-timing"]
        match = re.fullmatch(r"evaluate;dur=(\d+\.\d), total;dur=(\d+\.\d)", header)
        return float(match[1]), float(match[2])

    patch = {"low": [-0.9, 0.1], "high": [0.9, 1.3], "shape": [20, 20]}
    for question, body in (
        ("points", {"points": [[0.31, 0.7]]}),
        ("patch", patch),
        ("gradient", {"point": [0.31, 0.7]}),
        ("curvature", {"point": [0.31, 0.7]}),
    ):
        evaluated, total = timing(question, body)
        assert 0 < evaluated <= total  # also of several chunks, which are computed side by side
    assert timing("patch", patch)[0] == 0  # from the cache
    assert timing("points", {"points": [[1, 1.5]]})[0] == 0  # from the grid
    streamed = asker.post(f"{PLANE}/patch", patch | {"stream": True})
    assert "server-timing" not in streamed.headers  # its rows are computed while it is sent


def test_a_large_body_is_refused_and_the_connection_goes_on_where_it_ends(shared_asker):
    reply = shared_asker.post(f"{PLANE}/points", b"[" * 300_000, content_length="300000")
    assert (reply.status, reply.json["error"][:24]) == (413, "body: must be at most 12")
    assert "connection" not in reply.headers


@pytest.mark.parametrize(
    ("path", "status"), [(f"{PLANE}/points", 413), (f"{PLANE}x/points", 404), ("/v1/models", 405), ("/nowhere", 404)]
)
def test_what_is_left_of_a_body_without_an_end_ends_the_connection(shared_asker, path, status):
    content = b"[" * (READ_ON + 1) * shared_asker.service.limits.body(2)
    reply = shared_asker.run(
        shared_asker.send("POST", path, content, {"transfer-encoding": "chunked"}, unfinished=True)
    )
    assert (reply.status, reply.headers["connection"]) == (status, "close")
    assert "error" in reply.json


def test_a_short_body_that_is_not_read_leaves_the_connection(shared_asker):
    reply = shared_asker.post(f"{PLANE}x/points", {"points": [[0, 0]]}, content_length="20")
    assert (reply.status, "connection" in reply.headers) == (404, False)


def test_health_needs_no_token_and_a_service_without_one_is_asked_by_its_own_names_alone(asker, make_asker):
    assert asker.get("/v1/health", authorization="").json["status"] == "ready"
    free = make_asker(token="")
    assert free.get("/v1/models", authorization="").status == 200
    assert free.get("/v1/models", authorization="", host="evil.example").status == 401


def metrics_of(asker) -> dict[str, float]:
    """The metrics by name and labels, as Prometheus reads them."""
    parse = pytest.importorskip("prometheus_client.parser").text_string_to_metric_families
    text = asker.get("/metrics").body.decode()
    return {
        f"{sample.name}{sorted(sample.labels.items()) or ''}": sample.value
        for family in parse(text)
        for sample in family.samples
    }


def requests_of(asker) -> dict[tuple[str, str], float]:
    """How many requests were counted, by method and status."""
    found = re.findall(
        r'^landscape_serve_requests_total{method="(.+)",status="(.+)"} (.+)$',
        asker.get("/metrics").body.decode(),
        re.MULTILINE,
    )
    return {(method, status): float(count) for method, status, count in found}


def test_requests_points_queue_and_replicas_are_metrics(make_asker):
    asker = make_asker(queue=7)
    asker.service.replicas = ReplicaStates(2, 1)
    points = [[0.31, 0.7], [1, 1.5]]
    for _ in range(2):
        asker.post(f"{PLANE}/points", {"points": points})
    asker.post(f"{PLANE}/points", {"points": 3})
    asker.post(f"{PLANE}/patch", {"low": [0.1, 0.1], "high": [0.7, 0.8], "shape": [2, 2], "stream": True})
    asker.post(f"{PLANE}/gradient", {"point": [0.3, 0.3]})
    for path in ("/v1/models/a/versions/1/landscapes/b/surprise", "/nowhere", "/nowhere/else", "/points"):
        asker.get(path)
    with asker.service.resolver.queue.place():
        known = metrics_of(asker)
    assert requests_of(asker) == {
        ("points", "200"): 2, ("points", "400"): 1, ("patch", "200"): 1, ("gradient", "200"): 1,
        ("other", "404"): 3, ("other", "405"): 1, ("metrics", "200"): 1,
    }  # fmt: skip
    prefix = "landscape_serve_"
    sources = ("store", "cache", "computed")
    assert [known[f"{prefix}points_total[('source', '{source}')]"] for source in sources] == [2, 1, 5]
    assert known[f"{prefix}request_seconds_count[('method', 'points')]"] == 2  # without the refused one
    assert known[f"{prefix}request_seconds_bucket[('le', '+Inf'), ('method', 'patch')]"] == 1
    assert 0 < known[f"{prefix}request_seconds_sum[('method', 'points')]"] < 60
    assert (known[f"{prefix}replicas[('state', 'running')]"], known[f"{prefix}replicas[('state', 'starting')]"]) == (
        2,
        1,
    )
    assert [known[f"{prefix}{name}"] for name in ("replicas_limit", "queue_requests", "queue_limit")] == [1, 1, 7]


def test_metrics_need_the_token_and_are_there_while_the_service_starts(make_asker):
    asker = make_asker()
    assert asker.get("/metrics", authorization="").status == 401
    assert b"landscape_serve" not in asker.get("/metrics", authorization="").body
    asker.service.state = "starting"
    reply = asker.get("/metrics")
    assert (reply.status, reply.headers["content-type"][:10]) == (200, "text/plain")
    assert requests_of(asker)["metrics", "401"] == 2


def test_a_client_that_goes_is_counted_as_one_that_has_gone(make_asker, monkeypatch):
    asker, asked = make_asker(), asyncio.Event()

    async def never(key, points):
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asker.replicas, "points", never)
    asker.run(asker.send("POST", f"{PLANE}/points", {"points": [[0.3, 0.3]]}, gone=asked))
    assert requests_of(asker) == {("points", "499"): 1}


def test_what_is_served_is_listed_with_its_versions(make_asker):
    asker = make_asker("lenet", "lenet=job.yaml", "other=lenet")
    models = asker.get("/v1/models").json["models"]
    assert [(each["name"], each["latest"], len(each["versions"])) for each in models] == [
        ("lenet", 2, 2), ("other", 1, 1),
    ]  # fmt: skip
    plane = next(each for each in models[0]["versions"][0]["landscapes"] if each["name"] == "plane")
    assert plane["axes"] == [
        {"name": "alpha", "low": -1.0, "high": 1.0, "size": 5}, {"name": "beta", "low": 0.0, "high": 1.5, "size": 4},
    ]  # fmt: skip
    assert (plane["observables"], plane["num_samples"], plane["engine"]) == (
        ["loss", "accuracy", "perplexity"], 40, "eager",
    )  # fmt: skip
    assert asker.post("/v1/models/lenet/versions/1/landscapes/plane/points", {"points": [[0, 0]]}).json["version"] == 1
    assert asker.post(f"{PLANE}/points", {"points": [[0, 0]]}).json["version"] == 2


def test_what_the_disk_does_not_tell_for_a_moment_stays_in_the_list(asker, monkeypatch: pytest.MonkeyPatch):
    def listed() -> set[str]:
        (model,) = asker.get("/v1/models").json["models"]
        return {each["name"] for each in model["versions"][0]["landscapes"]}

    plane, line = (asker.service.served[f"lenet/1/{name}"] for name in ("plane", "line"))
    assert listed() == {"plane", "line"}
    for each in (plane, line):
        each.clock = lambda: time.monotonic() + 60  # the next look is due
    held = threading.Event()
    monkeypatch.setattr(service, "LIST_SECONDS", 0.05)
    monkeypatch.setattr(plane, "read_disk", held.wait)  # a disk that does not answer
    monkeypatch.setattr(line, "read_disk", lambda: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    try:
        assert listed() == {"plane", "line"}
    finally:
        held.set()
    monkeypatch.setattr(line, "read_disk", lambda: (_ for _ in ()).throw(NotFoundError("run: it is gone")))
    assert listed() == {"plane"}


def test_a_full_queue_says_when_to_ask_again(make_asker):
    asker = make_asker(queue=1)
    queue = asker.service.resolver.queue
    with queue.place():
        busy = asker.post(f"{PLANE}/points", {"points": [[0.3, 0.3]]})
        held = asker.post(f"{PLANE}/points", {"points": [[0, 0]]})
    assert (busy.status, busy.headers["retry-after"], "ask again later" in busy.json["error"]) == (429, "1", True)
    assert held.json["source"] == ["store"]  # for which nobody computes
    assert asker.post(f"{PLANE}/points", {"points": [[0.3, 0.3]]}).json["source"] == ["computed"]
    assert queue.waiting == asker.service.resolver.under_way == 0


def test_a_streamed_patch_that_finds_the_queue_full_is_a_429_too(make_asker):
    asker = make_asker(queue=1)
    with asker.service.resolver.queue.place():
        busy = asker.post(f"{PLANE}/patch", {"low": [0, 0], "high": [1, 1], "shape": [3, 3], "stream": True})
    assert (busy.status, busy.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_client_that_has_gone_asked_for_is_dropped_and_its_place_is_free(make_asker, monkeypatch, stream):
    asker = make_asker(queue=1)
    queue, asked = asker.service.resolver.queue, asyncio.Event()

    async def never(key, points):
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asker.replicas, "points", never)
    body = {"low": [0.1, 0.1], "high": [0.7, 0.8], "shape": [3, 3], "stream": stream}
    reply = asker.run(asker.send("POST", f"{PLANE}/patch", body, gone=asked))
    assert "the connection was closed" in reply.json["error"]
    asker.run(asyncio.sleep(0))
    assert queue.waiting == asker.service.resolver.under_way == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_replica_soon_computes_for_others_once_a_client_has_gone(make_asker, monkeypatch, stream):
    asker = make_asker(points=4000)
    loaded = asker.run(asker.replicas.replica.loading("lenet/1/plane"))
    evaluate, counts, begun, held = loaded.evaluator.evaluate, [], threading.Event(), threading.Event()

    def slow(points, **given):
        counts.append(len(points))
        begun.set()
        assert held.wait(60)
        return evaluate(points, **given)

    monkeypatch.setattr(loaded.evaluator, "evaluate", slow)

    async def leave():
        gone = asyncio.Event()
        body = {"low": [0.1, 0.1], "high": [0.7, 0.8], "shape": [50, 80], "stream": stream}
        asking = asyncio.create_task(asker.send("POST", f"{PLANE}/patch", body, gone=gone))
        await asyncio.to_thread(begun.wait, 60)
        gone.set()
        return await asking

    assert "the connection was closed" in asker.run(leave()).json["error"]
    other = asyncio.run_coroutine_threadsafe(
        asker.send("POST", f"{PLANE}/points", {"points": [[0.31, 0.77]]}), asker.loop
    )
    held.set()
    assert other.result(60).json["source"] == ["computed"]
    assert len(counts) == 2  # the few points that were begun, and the other client's
    assert counts[0] <= FEWEST_POINTS
    assert counts[1] == 1


def test_a_body_that_does_not_come_is_not_waited_for(asker):
    asker.service.limits = replace(asker.service.limits, body_seconds=0.01)
    short = {"content-length": "20"}
    reply = asker.run(asker.send("POST", f"{PLANE}/points", b"", short, unfinished=True))
    assert (reply.status, reply.headers["connection"]) == (408, "close")
    assert reply.json["error"].startswith("body: must be whole within 0.01 seconds")
    assert asker.service.resolver.under_way == 0


def test_an_address_with_a_slash_too_many_is_not_redirected_to_the_host_that_a_client_names(shared_asker):
    assert shared_asker.get("/v1/models/", host="evil.example").status == 404


def test_a_host_that_is_no_address_does_not_break_the_answer(shared_asker):
    reply = shared_asker.get("/nowhere", host="[")
    assert (reply.status, reply.json["error"].startswith("address: '/nowhere' is none")) == (404, True)


def test_the_document_and_the_page_name_every_question(shared_asker):
    validate = pytest.importorskip("jsonschema").validate
    document = shared_asker.get("/openapi.json").json
    questions = {path.rpartition("/")[2] for path in document["paths"]}
    assert questions == {"health", "models", "metrics", "points", "line", "patch", "gradient", "curvature"}
    for path, methods in document["paths"].items():
        if "{model}" in path:
            content = methods["post"]["requestBody"]["content"]["application/json"]
            address = path.format(model="lenet", version="1", landscape="plane")
            answer = shared_asker.post(address, content["example"])
            assert answer.status == 200
            validate(answer.json, methods["post"]["responses"]["200"]["content"]["application/json"]["schema"])
            validate(content["example"], content["schema"])
    page = shared_asker.get("/docs").body.decode()
    assert all(f"/{question}" in page for question in questions)
    assert "<script" not in page
