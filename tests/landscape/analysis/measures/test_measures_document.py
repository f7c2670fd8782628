"""measures.json: what is added is read back, what else stands there stays, and no file is left behind."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from landscape.analysis.measures import document
from landscape.analysis.measures.document import Entry, MeasureRow, row_of
from landscape.core.errors import LandscapeError

SETTINGS = {"samples": "abc", "rho": {"sam": 0.05}}
ROW = MeasureRow(1.5, 0.25, 1.0, 2.0, 16, "to a rise of 0.1")


def entry(number: int, value: float = 1.5) -> Entry:
    return Entry(
        f"epoch {number}", f"digest {number}", {"loss": MeasureRow(value, 0.25), "radius": ROW}, number, "epoch"
    )


def losses(value: float) -> dict[str, np.ndarray]:
    return {"loss": np.full(3, value, np.float32)}


def test_entries_are_read_back_in_the_order_of_their_snapshots(tmp_path):
    (tmp_path / "measures.json").write_text(json.dumps({"mine": 3}))
    run = str(tmp_path)
    for number in (3, 1, 2):
        assert not document.add(run, SETTINGS, entry(number), losses(number))
    found = document.read(run)
    assert list(found.entries) == ["epoch 1", "epoch 2", "epoch 3"]
    assert found.entries["epoch 2"].rows == entry(2).rows
    assert found.other == {"mine": 3}
    assert document.read_samples(run, found.entries["epoch 2"])["loss"].tolist() == [2.0] * 3
    assert not document.add(run, SETTINGS, entry(2, 7.0), losses(9))
    again = document.read(run)
    assert again.entries["epoch 2"].rows["loss"].value == 7.0
    assert len(list((tmp_path / "measures").iterdir())) == 3


def test_what_was_measured_before_of_the_same_weights_stays(tmp_path):
    run, layers = str(tmp_path), {"fc": {"rise 0.25": ROW}}
    document.add(run, SETTINGS, replace(entry(1), rows={"loss": ROW, "1/sigma^2": ROW}), {})
    document.add(run, SETTINGS, replace(entry(1, 2.0), layers=layers), {})
    document.add(run, SETTINGS, entry(1, 3.0), {})
    found = document.read(run).entries["epoch 1"]
    assert (found.rows["loss"].value, found.rows["1/sigma^2"], found.layers) == (3.0, ROW, layers)
    document.add(run, SETTINGS, replace(entry(1), weights="others"), {})
    assert document.read(run).entries["epoch 1"] == replace(entry(1), weights="others")


def test_measures_of_other_settings_go(tmp_path):
    document.add(str(tmp_path), SETTINGS, entry(1), losses(1))
    assert document.add(str(tmp_path), {"samples": "other"}, entry(2), {})
    found = document.read(str(tmp_path))
    assert list(found.entries) == ["epoch 2"]
    assert list((tmp_path / "measures").iterdir()) == []
    assert document.read_samples(str(tmp_path), found.entries["epoch 2"]) == {}


def test_what_is_damaged_says_so(tmp_path):
    run = str(tmp_path)
    document.add(run, SETTINGS, entry(1), losses(1))
    (kept,) = (tmp_path / "measures").iterdir()
    kept.write_bytes(b"other")
    with pytest.raises(LandscapeError, match=r"npz' is missing or damaged; delete measures.json, and measure again"):
        document.read_samples(run, document.read(run).entries["epoch 1"])
    for damaged in ({"schema": 2, "origins": {}}, {"schema": 1, "settings": {}, "origins": {"a": 3}}):
        (tmp_path / "measures.json").write_text(json.dumps(damaged))
        with pytest.raises(LandscapeError, match=r"measures.json' is damaged, or of a later version"):
            document.read(run)
    (tmp_path / "measures.json").unlink()
    assert document.read(run) is None


def test_a_row_that_is_not_finite_says_why():
    assert row_of(float("inf")) == MeasureRow(None, note="the loss is not finite there")
    assert MeasureRow.parse(ROW.document()) == ROW
    assert MeasureRow.parse({"value": "x", "draws": None}) == MeasureRow(None)
