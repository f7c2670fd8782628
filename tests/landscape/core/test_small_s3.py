"""The S3 of the tests answers as moto does, to every request that runs make of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
from object_stores import BUCKET, Raw, new_url, request, s3_server, serving, use

from landscape.core.folders import open_folder

pytestmark = pytest.mark.long  # moto is imported


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """The address of moto's S3, with the same bucket.

    Moto's own server finds out for each request which of two hundred services it asks for, which costs half of it.
    """
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Quiet(MotoRequestHandler):
        def log(self, *words: object) -> None:
            pass

    with serving(make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True, request_handler=Quiet)) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        assert request(endpoint, "PUT", f"/{BUCKET}").status == 200
        yield endpoint


def told(endpoint: str, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[Any, ...]:
    """What of an answer a client of S3 goes by."""
    answer = request(endpoint, method, path, body, **headers)
    found = {name: answer.headers[name] for name in ("ETag", "Content-Range") if name in answer.headers}
    if not answer.body.startswith(b"<"):
        return answer.status, found, answer.body
    document = ElementTree.fromstring(answer.body)
    if document.tag == "Error":
        return answer.status, document.findtext("Code")
    tags = ("Code", "Key", "Prefix", "ETag", "Size", "IsTruncated", "KeyCount")
    below = [each for each in document.iter() if each not in document.findall("{*}Prefix")]
    inside = [(name, each.text) for each in below if (name := each.tag.rpartition("}")[2]) in tags]
    return answer.status, found, sorted(inside, key=str)


KEYS = ["a", "b/one", "b/two & three", "b/ö", "c/d/e", "z"]
DELETED = "<Delete><Object><Key>run/b/one</Key></Object><Object><Key>run/none</Key></Object></Delete>"
REQUESTS: list[tuple[str, str, bytes, dict[str, str]]] = [
    *(("PUT", f"/{BUCKET}/run/{key}".replace(" ", "%20").replace("ö", "%C3%B6"), key.encode(), {}) for key in KEYS),
    ("GET", f"/{BUCKET}/run/a", b"", {}),
    ("HEAD", f"/{BUCKET}/run/a", b"", {}),
    ("GET", f"/{BUCKET}/run/b/one", b"", {"Range": "bytes=1-2"}),
    ("GET", f"/{BUCKET}/run/b/one", b"", {"Range": "bytes=2-99"}),
    ("GET", f"/{BUCKET}/run/b/one", b"", {"Range": "bytes=3-"}),
    ("GET", f"/{BUCKET}/run/b/one", b"", {"Range": "bytes=-2"}),
    ("GET", f"/{BUCKET}/run/b/one", b"", {"Range": "bytes=5-9"}),
    ("GET", f"/{BUCKET}/run/none", b"", {}),
    ("GET", "/none/run/a", b"", {}),
    ("PUT", "/none/run/a", b"x", {}),
    ("GET", "/none?list-type=2&prefix=run", b"", {}),
    ("GET", f"/{BUCKET}?list-type=2&prefix=run%2F", b"", {}),
    ("GET", f"/{BUCKET}?list-type=2&prefix=run%2F&max-keys=2", b"", {}),
    ("GET", f"/{BUCKET}?list-type=2&prefix=run%2F&start-after=run%2Fb%2Fone", b"", {}),
    ("GET", f"/{BUCKET}?list-type=2&prefix=run%2F&delimiter=%2F", b"", {}),
    ("GET", f"/{BUCKET}?list-type=2&prefix=run%2Fb%2F&delimiter=%2F", b"", {}),
    ("GET", f"/{BUCKET}?list-type=2&prefix=none%2F", b"", {}),
    ("PUT", f"/{BUCKET}/run/a", b"x", {"If_None_Match": "*"}),
    ("PUT", f"/{BUCKET}/run/new", b"x", {"If_None_Match": "*"}),
    ("PUT", f"/{BUCKET}/run/new", b"y", {"If_Match": '"9dd4e461268c8034f5c8564e155c67a6"'}),
    ("PUT", f"/{BUCKET}/run/new", b"z", {"If_Match": '"9dd4e461268c8034f5c8564e155c67a6"'}),
    ("PUT", f"/{BUCKET}/run/none", b"z", {"If_Match": '"9dd4e461268c8034f5c8564e155c67a6"'}),
    ("GET", f"/{BUCKET}/run/new", b"", {}),
    ("PUT", f"/{BUCKET}/run/copy", b"", {"x_amz_copy_source": f"/{BUCKET}/run/b/two%20%26%20three"}),
    ("PUT", f"/{BUCKET}/run/copy", b"", {"x_amz_copy_source": f"/{BUCKET}/run/none"}),
    ("GET", f"/{BUCKET}/run/copy", b"", {}),
    ("POST", f"/{BUCKET}?delete", DELETED.encode(), {}),
    ("DELETE", f"/{BUCKET}/run/c/d/e", b"", {}),
    ("DELETE", f"/{BUCKET}/run/none", b"", {}),
    ("DELETE", f"/{BUCKET}", b"", {}),
    ("GET", f"/{BUCKET}?list-type=2&prefix=run%2F", b"", {}),
]  # fmt: skip


def test_each_request_has_the_answer_that_moto_gives(moto):
    with s3_server() as small:
        for method, path, body, headers in REQUESTS:
            asked = (method, path, body)
            assert told(small, *asked, **headers) == told(moto, *asked, **headers), (asked, headers)


def test_a_listing_in_pages_has_every_key_and_prefix_once(moto, monkeypatch):
    with s3_server() as small:
        for endpoint in (small, moto):
            place = new_url()
            raw = Raw(place, endpoint)
            for number in range(5):
                raw.write(f"{number}/a", b"a")
                raw.write(f"{number}.txt", b"b")
            prefix, token, found = f"prefix={place.split('/')[-2]}%2Frun%2F&delimiter=%2F&max-keys=3", "", []
            while token is not None:
                asked = f"/{BUCKET}?list-type=2&{prefix}{token and f'&continuation-token={token}'}"
                page = ElementTree.fromstring(request(endpoint, "GET", asked.replace("/run", "%2Frun")).body)
                found += [each.text for each in page.iterfind("{*}Contents/{*}Key")]
                found += [each.text for each in page.iterfind("{*}CommonPrefixes/{*}Prefix")]
                token = page.findtext("{*}NextContinuationToken")
            below = place.removeprefix(f"s3://{BUCKET}/")
            assert sorted(found) == sorted(f"{below}/{n}{end}" for n in range(5) for end in ("/", ".txt")), endpoint


def test_a_run_asks_the_same_of_both_and_hears_the_same(moto, monkeypatch, tmp_path):
    large = os.urandom((11 << 20) + 17)  # three parts of a multipart upload

    def seen(endpoint: str) -> list[object]:
        use(monkeypatch, endpoint)
        place = new_url()
        folder = open_folder(place)
        first = folder.exists()
        folder.write("a", b"0123456789")
        folder.write("b/c", b"c")
        folder.copy("a", "b/copy")
        with folder.whole("large") as file:
            file.write_bytes(large)
        with folder.fetched("large") as file:
            same = file.read_bytes() == large
        tag = folder.create("lock", b"1")
        refused = folder.create("lock", b"2")
        renewed = folder.replace("lock", b"3", tag)
        stale = folder.replace("lock", b"4", tag)
        gone = folder.replace("none", b"5", tag)
        looks = [folder.read("a"), folder.read("none"), folder.read_range("a", 2, 3), folder.read_range("a", 20, 3)]
        looks += [folder.names(""), folder.folders(""), folder.names("b"), folder.stamps("b")]
        folder.delete("a")
        folder.delete("none")
        folder.delete_below("b")
        tags = (tag, refused, renewed, stale, gone)
        return [first, folder.exists(), same, tags, looks, Raw(place, endpoint).digests()]

    with s3_server() as small:
        assert seen(small) == seen(moto)
