"""The service over gRPC, by a client of grpcio: the values, sources and sentences that REST has."""

from __future__ import annotations

import grpc
import numpy as np
import pytest

from cluster.serving.grpc import LandscapeStub, start_rpc
from cluster.serving.landscape_pb2 import (
    COMPUTED,
    STORE,
    HealthRequest,
    LineRequest,
    ModelsRequest,
    PatchRequest,
    PlaceRequest,
    Point,
    PointsRequest,
    Target,
)
from landscape.core.http import Guard

PLANE = "/v1/models/lenet/versions/latest/landscapes/plane"
TARGET = Target(model="lenet", landscape="plane")


@pytest.fixture
def stub(asker):
    """A client of the service, and its token."""
    server, port = asker.run(start_rpc(asker.service, Guard("secret"), "127.0.0.1", 0))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield LandscapeStub(channel)
    asker.run(server.stop(None))


KNOWN = {"metadata": (("authorization", "Bearer secret"),)}


def point(*coordinates):
    return Point(coordinates=coordinates)


def test_values_are_those_of_rest(asker, stub):
    points = [[0.31, 0.7], [1.0, 1.5], [-0.4, 0.25]]
    answer = stub.Points(PointsRequest(target=TARGET, points=[point(*each) for each in points], rise=True), **KNOWN)
    expected = asker.post(f"{PLANE}/points", {"points": points, "rise": True}).json
    assert {each.name: list(each.values) for each in answer.values} == expected["values"]
    assert list(answer.source) == [COMPUTED, STORE, COMPUTED]
    assert (list(answer.axes), answer.target.version) == (["alpha", "beta"], "1")
    line = stub.Line(LineRequest(target=TARGET, **{"from": point(0, 0)}, to=point(1, 1), count=3), **KNOWN)
    assert [list(each.coordinates) for each in line.points] == [[0, 0], [0.5, 0.5], [1, 1]]


def test_a_patch_comes_row_by_row(asker, stub):
    asked = {"low": [0, 0], "high": [1, 1], "shape": [3, 2]}
    request = PatchRequest(target=TARGET, low=point(0, 0), high=point(1, 1), shape=[3, 2])
    rows = list(stub.Patch(request, **KNOWN))
    expected = asker.post(f"{PLANE}/patch", asked).json["values"]["loss"]
    assert [list(row.values[0].values) for row in rows] == expected
    assert [(list(row.row), list(row.place)) for row in rows] == [([0], [0.0]), ([1], [1.0])]


def test_derivatives_models_and_health(asker, stub):
    request = PlaceRequest(target=TARGET, point=point(0.3, 0.7))
    body = {"point": [0.3, 0.7]}
    assert list(stub.Gradient(request, **KNOWN).gradient) == asker.post(f"{PLANE}/gradient", body).json["gradient"]
    curvature = asker.post(f"{PLANE}/curvature", body).json["curvature"]
    assert list(stub.Curvature(request, **KNOWN).curvature) == np.ravel(curvature).tolist()
    (model,) = stub.Models(ModelsRequest(), **KNOWN).models
    assert (model.name, [each.name for each in model.versions[0].landscapes]) == ("lenet", ["plane", "line"])
    assert stub.Health(HealthRequest()).status == "ready"


@pytest.mark.parametrize(
    ("request_", "code", "sentence"),
    [
        (PointsRequest(target=TARGET, points=[point(1)]), "INVALID_ARGUMENT", "points[0]: must be 2 finite numbers"),
        (PointsRequest(target=TARGET, points=[point(np.nan, 1)]), "INVALID_ARGUMENT", "points[0]: must be finite"),
        (PointsRequest(target=TARGET, points=[point(1, 1)] * 1001), "INVALID_ARGUMENT", "points: must be at most 1000"),
        (PointsRequest(target=Target(model="lennet")), "NOT_FOUND", "did you mean 'lenet'?"),
    ],
)
def test_what_is_refused_has_the_sentence_as_its_details(stub, request_, code, sentence):
    with pytest.raises(grpc.RpcError) as refused:
        stub.Points(request_, **KNOWN)
    assert refused.value.code().name == code
    assert sentence in refused.value.details()
    with pytest.raises(grpc.RpcError, match="token: must be sent as the metadata"):
        stub.Points(request_)
    with pytest.raises(grpc.RpcError, match="token: is not that of this service"):
        stub.Points(request_, metadata=[("authorization", "Bearer another")])


def test_requests_over_grpc_are_counted_like_those_over_http(asker, stub):
    stub.Points(PointsRequest(target=TARGET, points=[point(0, 0)]), **KNOWN)
    list(stub.Patch(PatchRequest(target=TARGET, low=point(0, 0), high=point(1, 1), shape=[2, 2]), **KNOWN))
    stub.Health(HealthRequest())
    for ask in (
        lambda: stub.Points(PointsRequest(target=Target(model="none")), **KNOWN),
        lambda: list(stub.Patch(PatchRequest(target=TARGET))),
    ):
        with pytest.raises(grpc.RpcError):
            ask()
    text = asker.service.metrics.text().decode()
    for method, status in (("points", 200), ("patch", 200), ("health", 200), ("points", 404), ("patch", 401)):
        assert f'landscape_serve_requests_total{{method="{method}",status="{status}"}} 1.0' in text


def test_a_large_patch_is_refused_before_its_first_row(asker, stub):
    with pytest.raises(grpc.RpcError, match="shape: must be at most 1000 points"):
        list(stub.Patch(PatchRequest(target=TARGET, low=point(0, 0), high=point(1, 1), shape=[10**9, 9]), **KNOWN))
    with asker.service.resolver.queue.place():
        asker.service.resolver.queue.most = 1
        with pytest.raises(grpc.RpcError, match="busy: 1 requests") as refused:
            stub.Points(PointsRequest(target=TARGET, points=[point(0.11, 0.12)]), **KNOWN)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert ("retry-after", "1") in [tuple(each) for each in refused.value.trailing_metadata()]


def test_how_long_an_answer_took_comes_as_trailing_metadata(stub):
    def evaluated(call):
        timing = dict(call.trailing_metadata())["server-timing"]
        (evaluate, total) = (float(part.partition("dur=")[2]) for part in timing.split(", "))
        assert 0 <= evaluate <= total
        return evaluate

    asked = PointsRequest(target=TARGET, points=[point(0.17, 0.7)])
    assert evaluated(stub.Points.with_call(asked, **KNOWN)[1]) > 0
    assert evaluated(stub.Points.with_call(asked, **KNOWN)[1]) == 0  # from the cache
    assert evaluated(stub.Gradient.with_call(PlaceRequest(target=TARGET, point=point(0.3, 0.7)), **KNOWN)[1]) > 0
    patch = stub.Patch(PatchRequest(target=TARGET, low=point(0, 0), high=point(0.9, 0.9), shape=[3, 2]), **KNOWN)
    assert len(list(patch)) == 2
    assert evaluated(patch) > 0


def test_the_first_answer_after_a_run_has_gone_says_so(asker, stub, scene):
    """Each question is the first one after a time in which nobody asked."""
    now, away = [0.0], scene / "away"
    for served in asker.service.served.values():
        served.clock = lambda: now[0]
    place = PlaceRequest(target=TARGET, point=point(0.3, 0.7))
    questions = {
        stub.Points: PointsRequest(target=TARGET, points=[point(0.3, 0.7)]),
        stub.Line: LineRequest(target=TARGET, **{"from": point(0, 0)}, to=point(1, 1), count=3),
        stub.Patch: PatchRequest(target=TARGET, low=point(0, 0), high=point(1, 1), shape=[3, 2]),
        stub.Gradient: place,
        stub.Curvature: place,
    }

    def ask(method, request):
        answer = method(request, **KNOWN)
        return list(answer) if method is stub.Patch else answer

    for method, request in questions.items():
        ask(method, request)
    (scene / "lenet").rename(away)
    try:
        for method, request in questions.items():
            now[0] += 2.5
            with pytest.raises(grpc.RpcError) as refused:
                ask(method, request)
            assert refused.value.code() == grpc.StatusCode.NOT_FOUND
            assert "is gone; put it back" in refused.value.details()
        now[0] += 2.5
        assert not stub.Models(ModelsRequest(), **KNOWN).models[0].versions[0].landscapes
    finally:
        away.rename(scene / "lenet")
    for method, request in questions.items():
        ask(method, request)
