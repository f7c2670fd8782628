"""A landscape that is too large to send: picked points are drawn, and everything else is said of all points."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from live_landscape import LiveLandscape, value_at
from opened_page import opened
from page_client import Client
from small_models import Quadratic

from landscape.core.grid import Grid, axis_coordinates
from landscape.model.parameters import layout, state_of
from landscape.page.content import picks_of
from landscape.store.format import NewArrays
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import Record

pytestmark = pytest.mark.long
SIZES, TILE = (700, 400), (200, 350)  # alpha and beta; beta and alpha
MODEL = Quadratic()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a landscape of 280,000 points in four tiles, the last of which is not computed."""
    run = tmp_path_factory.mktemp("large") / "run"
    grid = Grid(("alpha", "beta"), tuple(axis_coordinates(n, -1, 1) for n in SIZES))
    directions = [{"vector": torch.full((5,), float(k + 1))} for k in range(2)]
    axes = [{"kind": "random", "label": f"axis {k}"} for k in range(2)]
    new = NewArrays(grid, TILE, ["loss"], axes, directions, layout(state_of(MODEL), ["matrix", "vector"]))
    LandscapeStore.create(str(run), "plane", new, Record().changed(observables=["loss"], identity={}))
    LiveLandscape(run, "plane").commit((0, 0), (0, 1), (1, 0))
    return run


@pytest.fixture(scope="module")
def page(large: Path) -> Iterator[tuple[Client, str]]:
    with opened(large) as (client, ids):
        yield client, f"run={ids['run']}&landscape=plane"


def count(value: Any) -> int:
    """The numbers of a figure."""
    if isinstance(value, dict):
        if "bdata" in value:
            return len(base64.b64decode(value["bdata"])) // int(value["dtype"][1])
        return sum(map(count, value.values()))
    if isinstance(value, list):
        return sum(map(count, value))
    return isinstance(value, (int, float))


def test_the_picks_keep_the_bound_whatever_the_shape():
    for sizes in [(4096, 4096), (65_536, 65_536), (65_536, 5), (600, 500), (300, 300, 300), (65_536, 3, 3)]:
        picks = picks_of(sizes)
        assert picks is not None
        assert np.prod([len(pick) for pick in picks]) * 7 <= 1_000_000
        assert all((pick[0], pick[-1]) == (0, size - 1) for pick, size in zip(picks, sizes, strict=True))
        assert all((np.diff(pick) > 0).all() for pick in picks)
    assert [picks_of(sizes) for sizes in [(512, 512), (65_536,), (48, 48, 48)]] == [None] * 3


@pytest.mark.parametrize("kind", ["contour", "surface"])
def test_a_figure_has_the_picked_points_and_the_words_of_all(page, kind):
    client, address = page
    answer = client.json(f"/api/figure?{address}&kind={kind}&levels=60&uncertainty=1")
    assert count(answer["figure"]) <= 1_000_000
    alpha, beta = answer["index"]
    assert len(alpha) * len(beta) <= 376**2
    assert "700 × 400 points" in answer["caption"]
    assert answer["caption"][-1] == f"Drawn from {len(alpha)} × {len(beta)} points of them"
    done = 700 * 200 + 350 * 200
    words = f"Interrupted: {done:,} of 280,000 points".replace(",", "\u202f")
    assert words in answer["caption"]
    assert answer["low"] == 1.0
    with_minima = client.json(f"/api/figure?{address}&kind={kind}&extrema=1")
    assert with_minima["caption"][-1] == "Minima are those of the points drawn"


def test_a_tile_has_those_of_its_points_that_are_drawn(page, large):
    client, address = page
    index = client.json(f"/api/figure?{address}&max=50")["index"]
    assert [len(picks) for picks in index] == [50, 50]
    with client.stream(f"/api/events?{address}&max=50&log=0") as stream:
        stream.next("state")
        LiveLandscape(large, "plane").commit((1, 1))
        (tile,) = stream.next("tiles")["tiles"]
    drawn = np.frombuffer(base64.b64decode(tile["drawn"]["bdata"]), "<f4").reshape(tile["shape"])
    rows, columns = (np.array(picks) for picks in reversed(index))
    rows, columns = rows[tile["start"][0] :], columns[tile["start"][1] :]
    assert rows[0] >= 200
    assert columns[0] >= 350
    expected = [[value_at((j, i)) for i in columns] for j in rows]
    assert np.array_equal(drawn, np.array(expected, np.float32))
    assert client.json(f"/api/run?{address.partition('&')[0]}")["landscapes"][0]["state"] == "complete"


def test_the_tables_tell_the_numbers_of_all_points_apart_from_those_of_the_drawn_ones(page, large):
    client, address = page
    run = address.partition("&")[0]
    lowest = min(row[0] for row in ([value_at((j, i)) for i in range(700)] for j in range(400)))
    (landscape,) = client.json(f"/api/run?{run}")["landscapes"]
    rows = dict(landscape["rows"]["landscape"])
    assert rows["resolution"] == "700 × 400 points"
    assert rows["state"] == landscape["state_text"]
    loss = dict(landscape["rows"]["observables"]["loss"])
    assert loss["lowest"] == f"{lowest:g} at alpha -1, beta -1"
    assert "highest" not in loss
    assert "highest, of the points drawn" in loss
    item = f"item={run.removeprefix('run=')}|plane"
    answer = client.json(f"/api/differences?{item}")
    assert len(answer["notes"]) == 1
    assert answer["notes"][0].endswith("of 700 × 400 points")
