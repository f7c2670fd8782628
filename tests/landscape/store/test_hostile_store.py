"""Stores made to harm whoever looks at them: nothing runs, nothing large is made, nothing is waited for or followed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import make_job, quadratic_problem

from landscape import open_run, run
from landscape.core.errors import LandscapeError
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import landscape_names, survey


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two landscapes, to be copied."""
    place = tmp_path_factory.mktemp("whole") / "run"
    run(job_of(place))
    return place


@pytest.fixture
def place(whole, tmp_path):
    copied = Path(shutil.copytree(whole, tmp_path / "run"))
    root = copied / "landscapes.zarr" / "zarr.json"
    root.write_text(json.dumps({"attributes": {}, "zarr_format": 3, "node_type": "group"}))  # no copy helps
    return copied


def job_of(place: Path) -> Any:
    problem = quadratic_problem()
    return make_job(place, lambda: problem, [{"name": name, "size": 4} for name in ("a", "b")], tile=2)


def edit(place: Path, path: str, change: Callable[[dict[str, Any]], object]) -> None:
    file = place / "landscapes.zarr" / path / "zarr.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


class Trap:
    """Its unpickling leaves a file."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._place,)


def test_a_pickle_codec_in_consolidated_metadata_of_version_2_is_not_looked_at(place, tmp_path):
    group = place / "landscapes.zarr" / "a"
    filters = [{"id": "pickle"}]
    array = {"shape": [1], "chunks": [1], "dtype": "|O", "fill_value": 0, "order": "C", "zarr_format": 2}
    metadata = {".zgroup": {"zarr_format": 2}, "loss/.zarray": {**array, "compressor": None, "filters": filters}}
    (group / "zarr.json").unlink()
    (group / ".zgroup").write_text('{"zarr_format": 2}')
    (group / ".zmetadata").write_text(json.dumps({"zarr_consolidated_format": 1, "metadata": metadata}))
    (group / "loss" / "0").write_bytes(pickle.dumps(Trap(str(tmp_path / "ran"))))
    assert landscape_names(place) == ["b"]
    for look in (lambda: open_run(place)["a"], lambda: run(job_of(place))):
        with pytest.raises(LandscapeError, match=r"landscape 'a' cannot be read: .*is not there"):
            look()
    assert not (tmp_path / "ran").exists()
    assert (group / "loss" / "0").exists()


CHANGES: dict[str, tuple[str, Callable[[dict[str, Any]], object], str]] = {
    "version 2": ("a/loss", lambda d: d.update(zarr_format=2), "zarr_format: must be 3, not 2"),
    "pickle": ("a/loss", lambda d: d.update(codecs=[{"name": "numcodecs.pickle"}]), "codecs: must be bytes, zstd and"),
    "one more codec": ("a/loss", lambda d: d["codecs"].insert(0, {"name": "transpose"}), "codecs: must be"),
    "a codec's name": ("a/loss", lambda d: d["codecs"].append([1]), "codecs: must be"),
    "big-endian": ("a/loss", lambda d: d["codecs"][0]["configuration"].update(endian="big"), "must be little-endian"),
    "objects": ("a/loss", lambda d: d.update(data_type="object"), "data_type: must be one of"),
    "another type": ("a/loss", lambda d: d.update(data_type="uint8", fill_value=0), "data_type: must be float64"),
    "huge": ("a/status", lambda d: d.update(shape=[10**9, 10**9]), "shape: must"),
    "huge chunks": (
        "a/status", lambda d: d["chunk_grid"]["configuration"].update(chunk_shape=[10**9, 10**9]), "chunk_shape: must"
    ),
    "no chunks": (
        "a/status", lambda d: d["chunk_grid"]["configuration"].update(chunk_shape=[0, 2]), "chunk_shape: must"
    ),
    "negative": ("a/status", lambda d: d.update(shape=[-4, 4]), "shape: must"),
    "a number that is none": ("a/status", lambda d: d.update(shape=[True, 4.0]), "shape: must"),
    "other shapes": ("a/loss", lambda d: d.update(shape=[5, 4]), r"shape: must be \(4, 4\) in chunks of \(2, 2\)"),
    "other axes": ("a/status", lambda d: d.update(dimension_names=["x", "y"]), "dimension_names: must be axes"),
    "another fill": ("a/loss", lambda d: d.update(fill_value="0xdeadbeef"), "fill_value: must be 0 or NaN"),
    "transformers": ("a/loss", lambda d: d.update(storage_transformers=[{"name": "x"}]), "storage_transformers: must"),
    "an array for a group": ("a", lambda d: d.update(node_type="array"), "node_type: must be 'group'"),
    "no observables": ("a", lambda d: d["attributes"].pop("observables"), "observables: must be a list"),
    "observables outside": (
        "a", lambda d: d["attributes"].update(observables=["loss", "../b"]), "observables: must be different names"
    ),
    "another identity": (
        "a", lambda d: d["attributes"]["identity"].update(seed=7), "digest: does not match the recorded identity"
    ),
    "a plan that is none": ("a", lambda d: d["attributes"].update(plan=[1]), "plan: must be a JSON object"),
    "a version that is none": ("a", lambda d: d["attributes"].update(schema_version="1"), "schema_version: must be"),
    "a layout too long": (
        "a/directions", lambda d: d["attributes"]["layout"][0].update(shape=[2**40, 2**40]), "layout: "
    ),
    "a layout that is none": ("a/directions", lambda d: d["attributes"].update(layout=7), "layout: must be a list"),
    "directions of terabytes": ("a/directions", lambda d: d.update(shape=[2, 10**13]), "(shape|layout): must"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_metadata_that_are_not_ours_are_refused_by_name_and_the_others_are_read(place, change):
    path, how, message = CHANGES[change]
    edit(place, path, how)
    before = sorted(place.rglob("*"))
    for look in (lambda: open_run(place)["a"], lambda: run(job_of(place))):
        with pytest.raises(
            LandscapeError, match=rf"landscape 'a' cannot be read: '.*{path}/zarr.json': .*{message}"
        ) as e:
            look() if path != "a/directions" else LandscapeStore.open(place, "a").problems()
        assert "\n" not in str(e.value)
    assert (open_run(place)["b"].status == 1).all()
    assert {*before} <= {*place.rglob("*")}


def test_a_key_that_stands_twice_in_a_document_is_refused(place):
    file = place / "landscapes.zarr" / "a" / "zarr.json"
    file.write_text('{"zarr_format": 3, ' + file.read_text().lstrip().removeprefix("{"))
    with pytest.raises(LandscapeError, match=r"landscape 'a' cannot be read: .* holds the key 'zarr_format' twice"):
        open_run(place)["a"]
    assert (open_run(place)["b"].status == 1).all()


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'{"zarr_format": ' + b"9" * 5000 + b"}",
        b"\xff\xfe{}",
        b"null",
    ],
    ids=["brackets", "deep", "a long number", "no text", "null"],
)
def test_a_document_that_is_hard_to_parse_is_refused(place, data):
    (place / "landscapes.zarr" / "a" / "zarr.json").write_bytes(data)
    with pytest.raises(LandscapeError, match="landscape 'a' cannot be read") as caught:
        open_run(place)["a"]
    assert not {"Recursion", "JSONDecode", "Unicode"} & set(str(caught.value).split())
    assert landscape_names(place) == ["b"]


def test_a_shape_that_no_memory_holds_is_refused_before_anything_is_made(place):
    size = 1 << 16
    arrays = {
        "status": (size, size),
        "loss": (size, size),
        "loss_stderr": (size, size),
        "alpha": (size,),
        "beta": (size,),
    }
    for array, shape in arrays.items():

        def grow(document: dict[str, Any], shape: tuple[int, ...] = shape) -> None:
            chunks = [64] * 2 if len(shape) == 2 else list(shape)
            document.update(shape=list(shape))
            document["chunk_grid"]["configuration"].update(chunk_shape=chunks)

        edit(place, f"a/{array}", grow)
    with pytest.raises(LandscapeError, match=r"landscape 'a': its 4294967296 points need .* GiB of memory, of which"):
        open_run(place)["a"]


def test_what_only_tells_of_a_landscape_is_left_out_where_it_is_malformed_and_written_anew(place, caplog):
    bad = {"progress": {"seconds": "long"}, "failures": [7], "provenance": 3, "cosine": "x", "origin_step": "last"}
    edit(place, "a", lambda document: document["attributes"].update(bad))
    surface = open_run(place)["a"]
    assert (surface.status == 1).all()
    assert not {*bad} & ({*surface.attributes} - {"failures"})
    assert surface.attributes["failures"] == []
    run(job_of(place))
    assert "progress: is malformed and left out" in caplog.text
    attributes = json.loads((place / "landscapes.zarr" / "a" / "zarr.json").read_text())["attributes"]
    assert attributes["progress"]["state"] == "complete"
    assert LandscapeStore.open(place, "a").problems() == []


def test_a_pipe_in_place_of_a_file_is_not_waited_for(place):
    for path in ("a/zarr.json", "b/loss/c/0/0"):
        file = place / "landscapes.zarr" / path
        file.unlink()
        os.mkfifo(file)
    with pytest.raises(LandscapeError, match=r"landscape 'a' cannot be read: .*is no file"):
        open_run(place)["a"]
    surface = open_run(place)["b"]
    assert (surface.status == 0).sum() == 4


def test_links_are_not_gone_through_to_list_or_to_write(place, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    chunks = place / "landscapes.zarr" / "a" / "loss" / "c"
    (chunks / "1" / "1").unlink()
    (chunks / "1" / "0").rename(elsewhere / "0")
    (chunks / "1").rmdir()
    (chunks / "1").symlink_to(elsewhere)
    (place / "landscapes.zarr" / "b" / "loss" / "c" / "2").symlink_to("..")  # a circle
    assert LandscapeStore.open(place, "b").examine().complete
    with pytest.raises(LandscapeError, match="leads out of the run by a link, which is not followed"):
        run(job_of(place))
    assert [each.name for each in elsewhere.iterdir()] == ["0"]
    (place / "landscapes.zarr").rename(tmp_path / "moved")
    (place / "landscapes.zarr").symlink_to(tmp_path / "moved")
    assert list(open_run(place)) == ["a", "b"]
    shutil.rmtree(tmp_path / "moved" / "a")
    with pytest.raises(LandscapeError, match="leads out of the run by a link"):
        run(job_of(place))


def test_a_run_that_is_itself_a_link_is_written(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "scratch")
    (tmp_path / "run").symlink_to(tmp_path / "scratch")
    chunk = tmp_path / "scratch" / "landscapes.zarr" / "a" / "loss" / "c" / "0" / "0"
    before = chunk.read_bytes()
    chunk.unlink()
    run(job_of(tmp_path / "run"))
    assert chunk.read_bytes() == before


def test_a_file_in_place_of_the_landscapes_and_names_of_no_landscape_are_said(place, tmp_path):
    (place / "landscapes.zarr" / "not\x1b[31mours").mkdir()
    (place / "landscapes.zarr" / "notes").mkdir()
    (place / "landscapes.zarr" / "notes" / "mine.txt").write_text("mine")
    causes = survey(place).unreadable
    assert list(causes) == ["notes"], "an empty folder is nothing yet"
    assert "is not there" in causes["notes"]
    shutil.rmtree(place / "landscapes.zarr")
    (place / "landscapes.zarr").write_text("mine")
    with pytest.raises(LandscapeError, match=r"landscapes.zarr' must be a folder, not a file"):
        survey(place)
    assert np.array_equal((place / "landscapes.zarr").read_text(), "mine")
