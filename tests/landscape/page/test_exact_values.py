"""Exact values on the page: what is forwarded to a service, what comes back, and what is said where there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from fake_service import TOKEN, FakeService, fake_service, loss_at
from opened_page import opened
from page_client import Client
from starlette.responses import JSONResponse, PlainTextResponse

from landscape import open_run
from landscape.page import service as forwarding
from landscape.page.service import passes


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of one's own, in which services leave their notes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def service(finished: Path) -> Iterator[FakeService]:
    with fake_service(finished / "net", "minimum", "line", "cube") as fake:
        yield fake


def question(kind: str, net: str, landscape: str = "minimum", **more: str) -> str:
    pairs = {"run": net, "landscape": landscape, **more}
    return f"/api/{kind}?" + "&".join(f"{name}={quote(value)}" for name, value in pairs.items())


def rows_of(client: Client, address: str) -> tuple[list[list[float]], list[dict]]:
    """The coordinates and the rows of a patch."""
    reply = client.get(address)
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/x-ndjson"
    first, *rows = [json.loads(line) for line in reply.body.splitlines()]
    return first["coordinates"], rows


def test_a_point_is_computed_by_the_service(client: Client, net: str, service: FakeService):
    answer = client.json(question("exact", net, at="0.25,-0.5"))
    loss, origin = loss_at(0.25, -0.5), 0.35009
    assert answer["at"] == [0.25, -0.5]
    assert (answer["source"], answer["status"]) == ("computed", 1)
    assert answer["values"] == [
        {"name": "loss", "title": "loss", "value": loss, "stderr": 0.25},
        {"name": "accuracy", "title": "accuracy", "value": 0.5, "stderr": 0.125},
    ]
    assert answer["rise"]["stderr"] == 0.0625
    assert answer["rise"]["value"] == pytest.approx(loss - origin, abs=1e-4)
    assert service.asked == [("points", {"points": [[0.25, -0.5]], "rise": True})]


def test_a_point_beside_one_of_the_grid_by_rounding_is_that_of_the_grid(client: Client, net: str, service: FakeService):
    answer = client.json(question("exact", net, at="-0.0000001,0.3333333"))
    assert answer["at"] == [0.0, 1 / 3]
    assert client.json(question("exact", net, at="0,0.3334"))["at"] == [0.0, 0.3334]


def test_slopes_are_asked_for_at_the_same_point(client: Client, net: str, service: FakeService):
    answer = client.json(question("slopes", net, at="0.5,1"))
    assert answer == {
        "at": [0.5, 1.0],
        "gradient": [1.0, 4.0],
        "stderr": [0.5, 0.5],
        "curvature": [[2.0, 0.0], [0.0, 4.0]],
        "eigenvalues": [2.0, 4.0],
    }


def test_the_token_goes_to_the_service_and_nowhere_else(client: Client, net: str, service: FakeService):
    replies = [
        client.get(question("exact", net, at="0,0")),
        client.get(question("patch", net, low="0,0", high="1,1", shape="2,2")),
        client.get(f"/api/run?run={net}"),
    ]
    assert service.tokens == {f"Bearer {TOKEN}"}
    for reply in replies:
        assert reply.status == 200
        assert TOKEN.encode() not in reply.body
        assert service.url.encode() not in reply.body


def test_the_rows_of_a_patch_come_evenly_spread_and_each_once(
    client: Client, net: str, service: FakeService, finished: Path
):
    origin = open_run(finished / "net")["minimum"].origin_loss
    (across, up), rows = rows_of(client, question("patch", net, low="-0.4,-0.25", high="0.6,0.75", shape="3,9"))
    assert (across, up) == ([-0.4, 0.1, 0.6], [-0.25, -0.125, 0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75])
    assert [row["index"] for row in rows] == [0, 4, 8, 2, 6, 1, 3, 5, 7]
    for row in rows:
        assert row["values"]["loss"] == [loss_at(x, up[row["index"]]) for x in across]
        assert row["values"]["loss_rise"] == pytest.approx([loss_at(x, up[row["index"]]) - origin for x in across])
    assert {row["computed"] for row in rows} == {3}


def test_a_line_is_filled_by_every_eighth_point_first(client: Client, net: str, service: FakeService):
    (along,), parts = rows_of(client, question("patch", net, "line", low="-0.5", high="0.5", shape="65"))
    assert [part["index"][:2] for part in parts] == [[0, 8], [4, 12], [2, 6], [1, 3]]
    found = {place: loss for part in parts for place, loss in zip(part["index"], part["values"]["loss"], strict=True)}
    assert [found[place] for place in range(65)] == [loss_at(x) for x in along]


def test_a_patch_of_three_axes_lies_in_one_slice(client: Client, net: str, service: FakeService):
    asked = question("patch", net, "cube", low="0,0,1", high="1,1,1", shape="2,3,1")
    (across, up, beyond), rows = rows_of(client, asked)
    assert beyond == [1.0]
    assert {row["index"]: row["values"]["loss"] for row in rows} == {
        j: [loss_at(x, y, 1) for x in across] for j, y in enumerate(up)
    }


def test_what_is_not_finite_is_null_and_says_so(client: Client, net: str, service: FakeService):
    answer = client.json(question("exact", net, at="0,9"))
    assert (answer["status"], answer["values"][0]["value"], answer["rise"]["value"]) == (2, None, None)
    _, rows = rows_of(client, question("patch", net, low="0,0", high="1,9", shape="2,2"))
    assert [row["status"] for row in rows] == [[1, 1], [2, 2]]


@pytest.mark.parametrize("count", [2, 3, 7, 16, 64, 65, 128])
def test_passes_have_every_row_once(count: int):
    rows = [row for each in passes(count) for row in each]
    assert sorted(rows) == list(range(count))


@pytest.mark.parametrize(
    ("kind", "more", "sentence"),
    [
        ("exact", {}, "at: must name a coordinate for each axis"),
        ("exact", {"at": "0"}, "at: must be a coordinate for each axis, alpha, beta, not 1"),
        ("exact", {"at": "0,nan"}, "at: must be a finite number"),
        ("exact", {"at": "0,0,0,0"}, "at: must be a coordinate for each axis, not 4"),
        ("exact", {"at": "0,0", "rise": "1"}, "'rise' is no parameter here"),
        ("patch", {"low": "0,0", "high": "1,1", "shape": "2,999"}, "shape: must be whole numbers from 1 to 128"),
        ("patch", {"low": "0,0", "high": "1,1", "shape": "2,x"}, "shape: must be whole numbers"),
        ("patch", {"low": "0,0", "high": "1,1", "shape": "2"}, "shape: must be as many as low and high have"),
        ("patch", {"low": "0", "high": "1", "shape": "2"}, "shape: must be points along each of the 2 axes"),
        ("patch", {"low": "0,1", "high": "1,0", "shape": "2,2"}, "high: must be above low"),
        ("patch", {"low": "0,0", "high": "1,1", "shape": "2,1"}, "high: must be above low"),
    ],
)
def test_bad_questions_are_refused_before_the_service_is_asked(
    client: Client, net: str, service: FakeService, kind: str, more: dict[str, str], sentence: str
):
    reply = client.get(question(kind, net, **more))
    assert (reply.status, service.asked) == (400, [])
    assert reply.error.startswith(sentence)


def test_without_a_service_the_command_that_starts_one_is_told(client: Client, net: str, finished: Path):
    for address in (question("exact", net, at="0,0"), question("patch", net, low="0,0", high="1,1", shape="2,2")):
        reply = client.get(address)
        assert reply.status == 503
        assert reply.error == (f"no service answers for this landscape; start one: landscape serve {finished / 'net'}")


def test_a_service_of_other_landscapes_is_not_asked(client: Client, net: str, finished: Path):
    with fake_service(finished / "net", "line") as fake:
        assert "no service answers for this landscape" in client.get(question("exact", net, at="0,0")).error
        assert not fake.asked


@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        (
            JSONResponse({"error": "queue: it is full"}, 429, {"retry-after": "7"}),
            "the service has too much to do; ask again in 7 s",
        ),
        (JSONResponse({"error": "token"}, 401), "the service does not take the token that it has noted"),
        (JSONResponse({"error": "landscape: its run is gone"}, 404), "landscape: its run is gone"),
        (PlainTextResponse("oh", 500), "the service answers with 500"),
        (PlainTextResponse("oh"), "the service answers what this version does not understand"),
        (JSONResponse([1]), "the service answers what this version does not understand"),
        (JSONResponse({"values": {"loss": 3}}), "the service answers what this version does not understand"),
        (PlainTextResponse("x" * 2_000_000), "the service answers what this version does not understand"),
    ],
)
def test_what_the_service_refuses_is_one_sentence(
    client: Client, net: str, service: FakeService, refusal: JSONResponse, sentence: str
):
    service.refusal = refusal
    reply = client.get(question("exact", net, at="0,0"))
    assert reply.status == 503
    assert reply.error.startswith(sentence)


@pytest.mark.parametrize(
    ("breaks", "sentence"),
    [
        ("gone", "landscape: its run is gone"),
        ("killed", "the service broke off its answer; it may have ended, its terminal says why"),
    ],
)
def test_a_patch_that_breaks_off_keeps_its_rows_and_says_why(
    client: Client, net: str, service: FakeService, breaks: str, sentence: str
):
    service.breaks = breaks
    _, rows = rows_of(client, question("patch", net, low="0,0", high="1,1", shape="2,3"))
    assert [row.get("index") for row in rows] == [0, None]
    assert rows[-1] == {"error": sentence}


def test_a_service_that_says_nothing_is_not_waited_for_for_ever(
    client: Client, net: str, service: FakeService, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(forwarding, "ANSWER_SECONDS", 0.2)
    while service.rows.acquire(blocking=False):
        pass
    _, rows = rows_of(client, question("patch", net, low="0,0", high="1,1", shape="2,2"))
    assert rows == [{"error": "the service has not answered for 0 s; ask again, or for less"}]
    assert service.left.wait(20)


def test_where_the_browser_goes_away_the_service_computes_no_more(client: Client, net: str, service: FakeService):
    while service.rows.acquire(blocking=False):
        pass
    service.rows.release(2)
    first, *rows = client.leave(question("patch", net, low="0,0", high="1,1", shape="2,64"), 3)
    assert len(first["coordinates"][1]) == 64
    assert [row["index"] for row in rows] == [0, 8]
    assert service.left.wait(20)
    assert [kind for kind, _ in service.asked] == ["patch"]


def test_a_service_that_was_killed_is_not_asked_for_long(client: Client, net: str, finished: Path, home: Path):
    with fake_service(finished / "net", "minimum"):
        (note,) = (home / "state").rglob("*.json")
        kept = note.read_text()
    note.write_text(kept)
    reply = client.get(question("exact", net, at="0,0"))
    assert reply.error.startswith("the service does not answer any more; start it again: landscape serve ")
    with fake_service(finished / "net", "minimum"):
        assert client.json(question("exact", net, at="0,0"))["at"] == [0.0, 0.0]


@pytest.mark.faults
def test_an_open_page_is_told_when_a_service_comes_and_goes(finished: Path):
    command = f"landscape serve {finished / 'net'}"
    with opened(finished) as (client, ids), client.stream(f"/api/events?run={ids['net']}") as stream:
        assert stream.next("serving") == {"landscapes": [], "command": command}
        with fake_service(finished / "net", "minimum", "line"):
            assert stream.next("serving") == {"landscapes": ["line", "minimum"], "command": command}
        assert stream.next("serving") == {"landscapes": [], "command": command}
