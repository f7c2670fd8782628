"""Power cuts: of what was not synced anything may be lost, and still all that was promised is there.

The model of the disk is in `power`; it is cut at every promise (a snapshot written, a landscape made, a tile
committed) and at other changes, and several of the disks that may be found are gone on with.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from disk import Call
from power import Chooser, Model
from scenes import needs_proc
from test_crash import scenes

pytestmark = [needs_proc, pytest.mark.faults]


PARTS = 6  # so that several processes share the work, and each ends within minutes


@pytest.mark.long
def test_what_was_promised_survives_a_power_cut(tmp_path):
    """At a quarter of the promises and of a few other changes; `test_a_power_cut_at_every_change` has all of them."""
    [found] = scenes(tmp_path, "power,0,2,1,0/4")
    assert not found["wrong"]
    assert found["promises"] >= (3 + 2 + 7 + 2) // 4
    assert found["worlds"] == 3 * found["cuts"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_power_cut_at_every_change(tmp_path, part):
    [found] = scenes(tmp_path, f"power,1,all,1,{part}/{PARTS}")
    assert not found["wrong"]
    assert found["worlds"] == 3 * found["cuts"] > 2000 // PARTS


def worlds(folder: Path, calls: list[Call]) -> set[tuple[tuple[str, bytes], ...]]:
    """The disks that may be found after these calls, as names and bytes of their files."""
    chance, found = random.Random(0), set()
    for number in range(80):
        model = Model(Path("/disk"))
        for call in calls:
            model.apply(call)
        place = folder / str(number)
        model.materialise(place, Chooser(0.5, chance))
        found.add(tuple((path.name, path.read_bytes()) for path in sorted(place.rglob("*")) if path.is_file()))
    return found


BEGUN = [Call("create", "/disk/t"), Call("write", "/disk/t", data=b"ab")]
NAMED = [Call("rename", "/disk/t", "/disk/f")]


def test_the_model_may_lose_bytes_that_were_not_synced_and_keep_their_name(tmp_path):
    assert (("f", b""),) in worlds(tmp_path, [*BEGUN, *NAMED, Call("fsync", "/disk")])


def test_the_model_may_lose_a_name_that_was_not_synced_and_keeps_what_was(tmp_path):
    synced = Call("fsync", "/disk/t")
    assert () in worlds(tmp_path / "unsynced", [*BEGUN, synced, *NAMED])
    assert worlds(tmp_path / "synced", [*BEGUN, synced, *NAMED, Call("fsync", "/disk")]) == {(("f", b"ab"),)}


def test_the_model_may_lose_a_folder_whose_name_was_not_synced_with_all_that_is_in_it(tmp_path):
    inside = [Call(each.kind, each.path.replace("/disk", "/disk/d"), data=each.data) for each in BEGUN]
    synced = [Call("fsync", "/disk/d/t"), Call("fsync", "/disk/d")]
    assert () in worlds(tmp_path / "unsynced", [Call("mkdir", "/disk/d"), *inside, *synced])
    kept = worlds(tmp_path / "synced", [Call("mkdir", "/disk/d"), *inside, *synced, Call("fsync", "/disk")])
    assert kept == {(("t", b"ab"),)}
