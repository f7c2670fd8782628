"""Landscapes that are removed, renamed or replaced: whole under one name at every moment, wherever the run lies."""

from __future__ import annotations

import builtins
import contextlib
import io
import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import disk
import numpy as np
import pytest
import safetensors.torch
import torch
import zarr
from object_stores import Raw

from landscape import JobError, LandscapeError, NotFoundError, open_run
from landscape.core.files import LocalFolder
from landscape.core.folders import open_folder
from landscape.core.grid import Grid, axis_coordinates
from landscape.core.text import digest
from landscape.store.commit import finish_move
from landscape.store.compact import compact_stored
from landscape.store.format import NewArrays
from landscape.store.landscape import LandscapeStore
from landscape.store.results import remove_stored, rename_stored, replace_landscape, staged_name
from landscape.store.runs import Move, landscape_names, survey, write_move
from landscape.surface.record import Record

VALUES = {"a": 1.0, "ab": 2.0, "b": 3.0}


def make(place: str, name: str, value: float, position: int = 0, size=(4, 3), tile=(2, 3)) -> LandscapeStore:
    """A complete landscape, all of whose losses are one value."""
    identity = {"seed": int(value * 10), "observables": ["loss"]}
    record = Record().changed(
        observables=["loss"], identity=identity, digest=digest(identity), plan={"engine": "eager"},
        job={"seed": 0, "landscapes": [{"name": name, "size": list(size)}]}, position=position, provenance={},
    )  # fmt: skip
    grid = Grid(("alpha", "beta"), tuple(axis_coordinates(n, -1, 1) for n in size))
    axes = [{"kind": "random", "label": axis} for axis in grid.names]
    layout = [{"name": "w", "shape": [1], "offset": 0}]
    new = NewArrays(grid, tile, ("loss",), axes, [{"w": torch.ones(1)}] * 2, layout)
    store = LandscapeStore.create(place, name, new, record)
    tiles = [store.tile(index) for index in np.ndindex(-(-size[1] // tile[0]), -(-size[0] // tile[1]))]
    arrays = ("loss", "loss_stderr", "loss_rise_stderr")
    store.write_tiles([(each, {array: np.full(each.points, value) for array in arrays}) for each in tiles])
    store.consolidate()
    return store


def make_all(place: str) -> None:
    for position, (name, value) in enumerate(VALUES.items()):
        make(place, name, value, position)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of all of them, to be copied."""
    place = tmp_path_factory.mktemp("all") / "run"
    make_all(str(place))
    return place


@pytest.fixture
def made(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "run")


def values(place: str) -> dict[str, float]:
    """The value of each landscape that is whole, by its name; a landscape that is not whole fails."""
    assert survey(place).unreadable == {}
    found = dict(open_run(place).items())
    for name, surface in found.items():
        arrays = (*surface.observables.values(),)
        assert (surface.status == 1).all(), name
        assert all((array == surface.loss.flat[0]).all() for array in arrays), name
    return {name: float(surface.loss.flat[0]) for name, surface in found.items()}


def in_root(raw: Raw) -> set[str]:
    """The landscapes in the root's consolidated metadata, which xarray reads."""
    root = json.loads(raw.read("landscapes.zarr/zarr.json"))
    return {path for path in root["consolidated_metadata"]["metadata"] if "/" not in path}


def at_rest(place: str, endpoint: str, expected: dict[str, float]) -> None:
    """Nothing is left of what was removed, and every document says the same."""
    raw = Raw(place, endpoint)
    assert values(place) == expected
    assert in_root(raw) == set(expected)
    below = [key.split("/")[1] for key in raw.keys() if key.startswith("landscapes.zarr/")]  # noqa: SIM118
    folders = {name for name in below if ".partial" not in name}  # of a process that was killed
    assert folders == {*expected, "zarr.json"}
    for name in expected:
        attributes = json.loads(raw.read(f"landscapes.zarr/{name}/zarr.json"))["attributes"]
        assert attributes["name"] == attributes["job"]["landscapes"][0]["name"] == name
        assert LandscapeStore.open(place, name).problems() == []


# -- what they do --------------------------------------------------------------------------------------------------


def copies(place: Path) -> dict[str, Any]:
    return json.loads((place / "landscapes.zarr" / "zarr.json").read_text())["consolidated_metadata"]["metadata"]


def test_the_root_copies_what_has_changed_and_keeps_the_copies_of_other_landscapes(made):
    first, other = (LandscapeStore.open(str(made), name, write=True) for name in ("a", "b"))
    before = copies(made)
    first.update_attributes(guessing=0.5)
    other.update_attributes(guessing=0.25)
    other.consolidate()
    assert copies(made)["b"]["attributes"]["guessing"] == 0.25
    assert copies(made)["a"] == before["a"], "nobody said that it has changed"
    first.consolidate()  # it was opened before the other one was copied
    after = copies(made)
    assert [after[name]["attributes"]["guessing"] for name in "ab"] == [0.5, 0.25]
    assert set(after) == set(before)
    # One that a killed driver did not come to copy is copied when the next one opens it.
    first.update_attributes(guessing=0.75)
    LandscapeStore.open(str(made), "a", write=True)
    assert copies(made)["a"]["attributes"]["guessing"] == 0.75


def test_a_wrong_copy_of_an_array_is_mended_when_the_landscape_is_opened(made):
    root = made / "landscapes.zarr" / "zarr.json"
    document = json.loads(root.read_text())
    right = document["consolidated_metadata"]["metadata"]
    wrong = {**right, "a/loss": {**right["a/loss"], "shape": [7, 7]}}
    root.write_text(json.dumps({**document, "consolidated_metadata": {"metadata": wrong}}))
    LandscapeStore.open(str(made), "b", write=True)
    assert copies(made) == wrong
    LandscapeStore.open(str(made), "a", write=True)
    assert copies(made) == right


def test_a_landscape_costs_no_more_documents_in_a_run_of_many(tmp_path, monkeypatch):
    real, read = LocalFolder.read_range, [0]

    def counted(self, path, start, count):
        read[0] += path.endswith("zarr.json")
        return real(self, path, start, count)

    monkeypatch.setattr(LocalFolder, "read_range", counted)
    counts = []
    for number in range(9):
        read[0] = 0
        make(str(tmp_path / "run"), f"l{number}", 1.0 + number, number)
        LandscapeStore.open(str(tmp_path / "run"), f"l{number}")
        counts.append(read[0])
    assert counts[1:] == [counts[1]] * 8
    assert {path.split("/")[0] for path in copies(tmp_path / "run")} == {f"l{number}" for number in range(9)}


def test_a_landscape_is_removed_and_nothing_else(place, endpoint):
    make_all(place)
    before = Raw(place, endpoint).digests()
    remove_stored(place, "a")
    at_rest(place, endpoint, {"ab": 2.0, "b": 3.0})
    kept = {
        key: each for key, each in before.items() if not key.startswith(("landscapes.zarr/a/", "landscapes.zarr/z"))
    }
    after = Raw(place, endpoint).digests()
    after.pop("landscapes.zarr/zarr.json")
    assert after == kept
    with pytest.raises(NotFoundError, match=r"landscape 'a' is not in run .*; .*known: ab, b"):
        remove_stored(place, "a")


def test_a_renamed_landscape_keeps_its_values_its_record_and_its_position(place, endpoint):
    make_all(place)
    before = LandscapeStore.open(place, "a").record
    rename_stored(place, "a", "z")
    at_rest(place, endpoint, {"z": 1.0, "ab": 2.0, "b": 3.0})
    assert landscape_names(place) == ["z", "ab", "b"], "the order of the job"
    after = LandscapeStore.open(place, "z").record
    assert (after.digest, after.position, after.plan) == (before.digest, before.position, before.plan)
    assert open_run(place)["z"].name == "z"


def test_the_last_landscape_can_be_removed(place, endpoint):
    make(place, "a", 1.0)
    remove_stored(place, "a")
    at_rest(place, endpoint, {})
    make(place, "a", 2.0)
    at_rest(place, endpoint, {"a": 2.0})


def test_a_staged_landscape_takes_the_place_of_another_one(place, endpoint):
    make_all(place)
    make(place, staged_name("ab"), 7.0, position=9)
    assert landscape_names(place) == ["a", "ab", "b"], "a staged one is not listed"
    replace_landscape(place, staged_name("ab"), "ab")
    at_rest(place, endpoint, {"a": 1.0, "ab": 7.0, "b": 3.0})
    assert landscape_names(place) == ["a", "ab", "b"], "in the place of the one before"
    with pytest.raises(NotFoundError):
        replace_landscape(place, staged_name("ab"), "ab")


def test_what_a_killed_process_was_writing_is_not_taken_along(place, endpoint):
    make_all(place)
    staged, raw = staged_name("a"), Raw(place, endpoint)
    make(place, staged, 7.0)
    left = ["loss/c/0/0.3f2a.partial", "status/c/0/.0-12-0a1b2c3d.partial", ".zarr-12-0a1b2c3d.partial.json"]
    for file in left:
        raw.write(f"landscapes.zarr/{staged}/{file}", b"half")
    replace_landscape(place, staged, "a")
    at_rest(place, endpoint, VALUES | {"a": 7.0})
    assert not [key for key in Raw(place, endpoint).keys() if "partial" in key]  # noqa: SIM118


def test_what_was_being_written_when_the_change_of_names_was_killed_is_deleted(place, endpoint):
    make_all(place)
    make(place, staged_name("a"), 7.0)
    write_move(open_folder(place), Move(staged_name("a"), "a"))
    Raw(place, endpoint).write(f"landscapes.zarr/{staged_name('a')}/.zarr-12-0a1b2c3d.partial.json", b"half")
    finish_move(place)
    at_rest(place, endpoint, VALUES | {"a": 7.0})
    assert not [key for key in Raw(place, endpoint).keys() if "partial" in key]  # noqa: SIM118


def test_what_was_begun_to_replace_a_landscape_is_removed_with_it(place, endpoint):
    make_all(place)
    make(place, staged_name("a"), 7.0)
    remove_stored(place, "a")
    at_rest(place, endpoint, {"ab": 2.0, "b": 3.0})


REFUSED = {
    "taken": ("b", r"name: 'b' is in the run already; choose another name, or remove that"),
    "itself": ("a", r"name: 'a' is in the run already"),
    "case": ("AB", r"name: 'ab' is in the run already, which differs from 'AB' in case alone; choose another name"),
    "own case": ("A", r"name: 'a' is in the run already, which differs from 'A' in case alone"),
    "path": ("../x", r"name: must be letters, digits, '\.', '-' and '_', at most 100, not '\.\./x'"),
    "hidden": (".x", r"name: must be letters"),
    "empty": ("", r"name: must be letters"),
    "file": ("zarr.json", r"name: must not be 'zarr.json'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_name_that_is_none_or_taken_is_refused_and_nothing_changed(made, endpoint, case):
    new, told = REFUSED[case]
    before = Raw(str(made), endpoint).digests()
    with pytest.raises(JobError, match=told):
        rename_stored(made, "a", new)
    assert Raw(str(made), endpoint).digests() == before


FOREIGN = {"a file": "notes.txt", "a folder": "mine/deep/file", "hidden": ".config"}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_this_software_did_not_write_is_not_taken_along(place, endpoint, case):
    make_all(place)
    make(place, staged_name("a"), 7.0)
    raw = Raw(place, endpoint)
    raw.write(f"landscapes.zarr/a/{FOREIGN[case]}", b"mine")
    before = raw.digests()
    for change in (
        lambda: remove_stored(place, "a"),
        lambda: rename_stored(place, "a", "z"),
        lambda: replace_landscape(place, staged_name("a"), "a"),
    ):
        with pytest.raises(LandscapeError, match=r"landscape 'a': '.*' was not written by this software; move it away"):
            change()
    assert Raw(place, endpoint).digests() == before


def test_somebody_elses_group_is_not_removed(made):
    group = zarr.open_group(made / "landscapes.zarr", path="mine", mode="a", zarr_format=3)
    group.create_array("x", data=np.arange(3.0))
    for change in (lambda: remove_stored(made, "mine"), lambda: rename_stored(made, "mine", "z")):
        with pytest.raises(LandscapeError, match=r"'mine' cannot be read: .*this is no landscape of this software"):
            change()
    assert (group["x"][:] == np.arange(3.0)).all()


def test_a_link_is_not_followed(made, tmp_path):
    make(str(tmp_path / "other"), "a", 1.0)
    link = made / "landscapes.zarr" / "linked"
    link.symlink_to(tmp_path / "other" / "landscapes.zarr" / "a")
    with pytest.raises(OSError, match="leads out of the run by a link"):
        remove_stored(made, "linked")
    assert values(str(tmp_path / "other")) == {"a": 1.0}


def test_a_renamed_landscape_whose_document_is_damaged_is_mended_from_the_root(made, endpoint):
    (made / "landscapes.zarr" / "a" / "zarr.json").write_bytes(b"{")
    rename_stored(made, "a", "z")
    at_rest(str(made), endpoint, {"z": 1.0, "ab": 2.0, "b": 3.0})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b'{"source": "../x", "target": null, "position": null}'])
def test_a_damaged_journal_hides_no_landscape_and_removes_nothing(made, content):
    (made / "landscapes.zarr" / ".moving").write_bytes(content)
    assert values(str(made)) == VALUES
    rename_stored(made, "a", "z")
    assert set(values(str(made))) == {"z", "ab", "b"}


# -- killed at every change ----------------------------------------------------------------------------------------


class Killed(Exception):
    """From here on this process changes nothing."""


@contextlib.contextmanager
def killed_at(place: str, number: int, seen: list[int]) -> Iterator[None]:
    """Refuse every change of the run from the `number`-th on (from 0); `seen` counts them."""

    def count() -> None:
        seen[0] += 1
        if seen[0] > number:
            raise Killed

    if "://" in place:
        with open_folder(place).guarded(count):
            yield
        return

    def handler(call: disk.Call, change: Callable[..., Any]) -> Any:
        count()
        return disk.perform(call, change)

    names = {name: getattr(os, name) for name in (*disk.REAL, "fsync")}
    opening = io.open
    disk.Disk(Path(place), handler).install()
    try:
        yield
    finally:
        for name, real in names.items():
            setattr(os, name, real)
        io.open = builtins.open = opening
        safetensors.torch.save_file = disk.REAL_SAVE


# What is done, and the values before and afterwards.
CHANGES: dict[str, tuple[Callable[[str], None], dict[str, float], dict[str, float]]] = {
    "remove": (lambda place: remove_stored(place, "a"), VALUES, {"ab": 2.0, "b": 3.0}),
    "rename": (lambda place: rename_stored(place, "a", "z"), VALUES, {"z": 1.0, "ab": 2.0, "b": 3.0}),
    "replace": (
        lambda place: replace_landscape(place, staged_name("a"), "a"),
        VALUES,
        {"a": 7.0, "ab": 2.0, "b": 3.0},
    ),
}
FINISHES: dict[str, Callable[[str], object]] = {
    "open": lambda place: LandscapeStore.find(place, "b", write=True),
    "new": lambda place: make(place, "new", 5.0),
    "remove": lambda place: remove_stored(place, make(place, "other", 4.0).name),
}
EVERY = pytest.mark.slow  # change: the other ones leave most of them out


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["replace", *(pytest.param(kind, marks=pytest.mark.faults) for kind in ("remove", "rename"))]
)
@pytest.mark.parametrize(
    ("place", "step"),
    [
        ("local", 4),
        pytest.param("s3", 13, marks=pytest.mark.faults),
        pytest.param("local", 1, marks=EVERY),
        pytest.param("s3", 1, marks=EVERY),
    ],
    indirect=["place"],
)
def test_killed_at_any_change_there_is_one_whole_landscape_and_the_next_writer_finishes(place, step, endpoint, kind):
    change, before, after = CHANGES[kind]

    def begin(run: str) -> None:
        for name in ("a", "b"):
            make(run, name, VALUES[name], size=(3, 2), tile=(2, 3))
        if kind == "replace":
            make(run, staged_name("a"), 7.0, size=(3, 2), tile=(2, 3))

    before, after = ({name: each for name, each in found.items() if name != "ab"} for found in (before, after))
    template = f"{place}-template"
    if "://" not in place:
        begin(template)
    seen, states = [0], []
    for number in itertools.count(0, step):
        run = f"{place}-{number}"
        begin(run) if "://" in place else shutil.copytree(template, run)
        seen[0] = 0
        try:
            with killed_at(run, number, seen):
                change(run)
        except (Killed, LandscapeError):
            found = values(run)
            assert found in (before, after), number
            states.append(found == after)
        else:
            break
        if not states[-1]:
            change(run)
            at_rest(run, endpoint, after)
            continue
        how = list(FINISHES)[number // step % len(FINISHES)]
        FINISHES[how](run)
        at_rest(run, endpoint, after | ({"new": 5.0} if how == "new" else {}))
    assert states == sorted(states), "once it holds, it goes on holding"
    assert step > 1 or {True, False} == set(states)
    at_rest(run, endpoint, after)


@pytest.mark.parametrize(
    ("place", "step"),
    [
        ("local", 16),
        pytest.param("s3", 13, marks=pytest.mark.faults),
        pytest.param("local", 1, marks=EVERY),
        pytest.param("s3", 1, marks=EVERY),
    ],
    indirect=["place"],
)
def test_killed_while_it_is_compacted_a_landscape_is_whole_and_the_next_call_finishes(place, step, endpoint):
    left = {name: VALUES[name] for name in ("a", "b")}
    template, seen, tiles = f"{place}-template", [0], []

    def begin(run: str) -> None:
        for name, value in left.items():
            make(run, name, value, size=(3, 2), tile=(1, 1))

    if "://" not in place:
        begin(template)
    for number in itertools.count(0, step):
        run = f"{place}-{number}"
        begin(run) if "://" in place else shutil.copytree(template, run)
        seen[0] = 0
        with contextlib.suppress(Killed, LandscapeError), killed_at(run, number, seen):
            compact_stored(run, "a")
        assert values(run) == left, number
        tiles.append(LandscapeStore.open(run, "a").tile_count)
        done = seen[0] <= number
        compact_stored(run, "a")
        at_rest(run, endpoint, left)
        assert LandscapeStore.open(run, "a").tile_count == 1
        if done:
            break
    assert tiles == sorted(tiles, reverse=True), "once it holds, it goes on holding"
    assert set(tiles) == {6, 1}


def test_a_compacted_landscape_has_its_values_wherever_it_lies(place, endpoint):
    make(place, "a", 1.0)
    opened, before = LandscapeStore.open(place, "a"), len(list(Raw(place, endpoint).keys()))
    found = compact_stored(place, "a")
    assert (found.files_before - found.files, before - len(list(Raw(place, endpoint).keys()))) == (12, 12)
    at_rest(place, endpoint, {"a": 1.0})
    with pytest.raises(LandscapeError, match="'a' was removed, renamed or replaced while it was read; open the run"):
        opened.read_surface()


# -- readers -------------------------------------------------------------------------------------------------------


@pytest.mark.faults
@pytest.mark.long
def test_a_reader_of_what_is_replaced_gets_whole_values_or_an_error(tmp_path):
    make(str(tmp_path), "a", 1.0, size=(12, 9), tile=(3, 3))
    stop, mixed, looks = threading.Event(), [], []

    def read() -> None:
        while not stop.is_set():
            try:
                surface = open_run(tmp_path)["a"]
            except LandscapeError as error:
                looks.append(str(error))
                continue
            looks.append("")
            every = np.concatenate([surface.status.ravel(), *(each.ravel() for each in surface.observables.values())])
            if not (surface.status == 1).all() or len(set(every.tolist()) - {1.0}) > 1:
                mixed.append(every)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(2, 6):
            make(str(tmp_path), staged_name("a"), float(number), size=(12, 9), tile=(3, 3))
            replace_landscape(tmp_path, staged_name("a"), "a")
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert not mixed
    assert "" in looks


@pytest.mark.parametrize("change", CHANGES)
def test_an_open_landscape_gives_no_values_of_another_one(place, change):
    make_all(place)
    make(place, staged_name("a"), 7.0)
    opened = LandscapeStore.open(place, "a")
    if change == "rename":
        remove_stored(place, staged_name("a"))
    CHANGES[change][0](place)
    with pytest.raises(LandscapeError, match="'a' was removed, renamed or replaced while it was read; open the run"):
        opened.read_surface()
