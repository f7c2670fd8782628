"""The files that a browser loads: those of this package, by a table of their names, and plotly out of its package."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from threading import Lock

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from landscape.page.answers import Answer, in_thread, pack

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
}
PLOTLY = "plotly.js"
SMALL = 6  # the level of gzip: these files are compressed once


@dataclass(frozen=True)
class Asset:
    """A file as it is sent; `tag` is its strong ETag."""

    answer: Answer
    tag: str


class Assets:
    """The files by their names. Those of this package are read anew where they have changed; plotly is read once."""

    def __init__(self) -> None:
        self._table = asset_table()
        self._loaded: dict[str, Asset] = {}
        self._threads = ThreadPoolExecutor(2, "landscape-assets")
        self._once = Lock()

    def begin(self) -> None:
        """Compress plotly, which takes a moment, before somebody asks for it."""
        self._threads.submit(self.load, PLOTLY)

    async def response(self, name: str, request: Request) -> Response:
        """The answer to a request for a file.

        Raises:
            HTTPException: there is no such file.
        """
        if name not in self._table:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        asset = await in_thread(self._threads, partial(self.load, name))
        headers = {"cache-control": "no-cache", "etag": asset.tag, "vary": "accept-encoding"}
        if asset.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        answer = asset.answer
        packed = answer.packed if "gzip" in request.headers.get("accept-encoding", "") else None
        headers |= {"content-encoding": "gzip"} if packed is not None else {}
        return Response(answer.body if packed is None else packed, headers=headers, media_type=answer.media_type)

    def load(self, name: str) -> Asset:
        """The file of that name, which must be in the table."""
        if name != PLOTLY:
            return self._load(name)
        with self._once:
            return self._loaded.get(name) or self._load(name)

    def _load(self, name: str) -> Asset:
        known = self._loaded.get(name)
        data = self._table[name].read_bytes()
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        if known is None or known.tag != tag:
            known = self._loaded[name] = Asset(pack(data, TYPES[_suffix(name)], SMALL), tag)
        return known


def asset_table() -> Mapping[str, Traversable]:
    """The files that may be asked for, by their names; nothing else is ever opened for a request."""
    folder = files("landscape.page").joinpath("static")
    table = {file.name: file for file in folder.iterdir() if file.is_file() and _suffix(file.name) in TYPES}
    table[PLOTLY] = files("plotly").joinpath("package_data").joinpath("plotly.min.js")
    table["fit.js"] = files("landscape.views").joinpath("static").joinpath("fit.js")
    return table


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]
