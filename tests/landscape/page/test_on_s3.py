"""Runs in an object store: found, shown, followed, and a sentence where the store stops answering."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from object_stores import BUCKET, Raw, s3_server, use
from opened_page import opened
from page_client import Client

from landscape.core.errors import StoreError
from landscape.store.status import open_place


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as found:
        yield found


@contextmanager
def opened_run() -> Iterator[tuple[Client, str]]:
    """The page over the bucket, and the identifier of the run there."""
    with opened(f"s3://{BUCKET}/runs") as (client, ids):
        yield client, ids["team/net"]


def test_a_run_in_a_bucket_is_found_shown_and_followed(endpoint, finished: Path, monkeypatch):
    use(monkeypatch, endpoint)
    raw, chunk = Raw(f"s3://{BUCKET}/runs/team/net", endpoint), "landscapes.zarr/minimum/status/c/0/0"
    for file in (finished / "net").rglob("*"):
        path = file.relative_to(finished / "net").as_posix()
        if file.is_file() and (path == "run.json" or path.startswith("landscapes.zarr/minimum/")):
            raw.write(path, file.read_bytes())
    with opened_run() as (client, run):
        address = f"landscape=minimum&run={run}"
        before = client.json(f"/api/figure?{address}")
        assert before["generation"] == client.json(f"/api/figure?{address}")["generation"]
        data = raw.read(chunk)
        raw.delete(chunk)
        answer = client.json(f"/api/figure?{address}")
        assert "Interrupted: 16 of 20 points" in answer["caption"]
        assert answer["generation"] != before["generation"]
        with client.stream(f"/api/events?{address}") as stream:
            assert stream.next("state")["landscapes"][0]["missing"] == 4
            raw.write(chunk, data)
            (tile,) = stream.next("tiles")["tiles"]
            assert (tile["start"], tile["shape"]) == ([0, 0], [2, 2])
        assert client.json(f"/api/run?run={run}")["landscapes"][0]["state"] == "complete"


@pytest.mark.faults
def test_a_store_that_stops_answering_is_a_sentence(monkeypatch):
    with s3_server() as endpoint:
        use(monkeypatch, endpoint, LANDSCAPE_STORE_RETRY="0.5")
        Raw(f"s3://{BUCKET}/runs/team/net", endpoint).write("run.json", b"{}")
        serving = opened_run()
        client, run = serving.__enter__()
        assert client.get(f"/api/run?run={run}").status == 200
    reply = client.get(f"/api/run?run={run}")
    assert reply.status == 503
    assert "see that it answers" in reply.error
    assert client.get("/api/looks").status == 200
    with pytest.raises(StoreError):
        open_place(f"s3://{BUCKET}/runs")
    serving.__exit__(None, None, None)
