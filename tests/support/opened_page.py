"""The page over a place, as a client that has its token opens it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from page_client import Client, asking

from landscape.core.http import Guard
from landscape.page.api import Api
from landscape.page.server import make_app
from landscape.page.watching import SEARCH_SECONDS
from landscape.store.status import open_place

GUARD = Guard("t")


@contextmanager
def opened(place: Path | str, search_seconds: float = SEARCH_SECONDS) -> Iterator[tuple[Client, dict[str, str]]]:
    """The page once it has found the runs of a place, and their identifiers by their names."""
    places = [open_place(str(place))]
    with asking(make_app(places, GUARD, Api(places, search_seconds)), f"{GUARD.cookie}=t") as client:
        while (answer := client.json("/api/runs"))["scanning"]:
            time.sleep(0.01)
        yield client, {row["name"]: row["id"] for row in answer["runs"]}
