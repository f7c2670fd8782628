"""Refined landscapes that are extended, level by level: the bytes of extending first and refining then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from extended_scene import EVALUATED, compute, computed, observe, observe_more, problem_of
from small_models import Quadratic, chunks_of, wandering, write_trajectory

from landscape import extend, open_run, refine, run
from landscape.core.errors import Interrupted, JobError
from landscape.core.text import digest
from landscape.store.landscape import LandscapeStore

BOX = [(-0.3, 0.2), (0.0, 0.5)]
LINE = {"name": "a", "directions": [{"kind": "random", "seed": 1}], "size": 9, "range": [-1, 1]}
NOT_SAME = ("provenance", "progress")  # of two runs: their times and places


def records_of(folder: Path) -> list[dict[str, Any]]:
    """What the records of a landscape and of its levels say, but for times."""
    stores = [store := LandscapeStore.open(str(folder), "a"), *store.levels()]
    return [
        json.loads(json.dumps({key: value for key, value in store.attributes.items() if key not in NOT_SAME}))
        for store in stores
    ]


def without_run(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**record, "job": {**record["job"], "run": "", "problem": ""}} for record in records]


@pytest.mark.parametrize(
    ("more", "function", "factor"),
    [({"num_samples": 53}, observe, 4), ({"num_samples": 41, "observables": ["root"]}, observe_more, 2)],
)
def test_extending_after_refining_gives_the_bytes_of_refining_after_extending(tmp_path, more, function, factor):
    before, after = computed(tmp_path / "before"), computed(tmp_path / "after")
    extend(before, "a", problem=problem_of(function), **more)
    refine(before, "a", factor=factor, box=BOX, problem=problem_of(function))
    refine(after, "a", factor=factor, box=BOX, problem=problem_of())
    points = sum(int((level.status > 0).sum()) for level in open_run(after)["a"].levels)
    EVALUATED.clear()
    surface = extend(after, "a", problem=problem_of(function), **more)["a"]
    assert chunks_of(after) == chunks_of(before)
    assert without_run(records_of(after)) == without_run(records_of(before))
    assert list(open_run(after)) == ["a"]
    assert len(surface.levels) == factor // 2
    if "observables" not in more:
        beside = 3 * 12 * 53  # of each part: the first look, measured points, the origin, the point that is reproduced
        assert sum(EVALUATED) <= (20 + points) * (53 - 16) + beside
    # What is there already is done.
    EVALUATED.clear()
    extend(after, "a", problem=problem_of(function), **more)
    assert not EVALUATED


def test_a_line_and_a_path_are_extended_with_their_levels(tmp_path):
    for name, spec in (("line", LINE), ("path", {"name": "a", "trajectory": "all", "size": [5, 3]})):
        before, after = tmp_path / name, tmp_path / f"{name}-after"
        write_trajectory(before, wandering(Quadratic(), 3))
        compute(before, spec=spec)
        shutil.copytree(before, after)
        extend(before, "a", num_samples=53, problem=problem_of())
        refine(before, "a", problem=problem_of())
        refine(after, "a", problem=problem_of())
        extend(after, "a", num_samples=53, problem=problem_of())
        assert chunks_of(after) == chunks_of(before)


def test_an_extension_that_is_interrupted_at_any_point_goes_on_with_its_levels(tmp_path):
    before, after = computed(tmp_path / "before"), computed(tmp_path / "after")
    extend(before, "a", num_samples=53, problem=problem_of())
    refine(before, "a", box=BOX, problem=problem_of())
    refine(after, "a", box=BOX, problem=problem_of())
    kept, states, left = chunks_of(after), set[tuple[int, bool]](), [0]

    def stopped(job):
        return run(job, stop=lambda: left.append(left.pop() - 1) or left[0] < 0)

    for left[0] in (12, 45, 200):
        try:
            extend(after, "a", num_samples=53, problem=problem_of(), compute=stopped)
            break
        except Interrupted:
            assert chunks_of(after) == kept
            half = LandscapeStore.open(str(after), "a.extending")
            states.add((len(half.levels()), half.examine().complete))
            with pytest.raises(JobError, match=r"is being extended; give that command again first"):
                refine(after, "a", factor=4, problem=problem_of())
    assert states == {(0, False), (1, True)}
    assert chunks_of(after) == chunks_of(before)
    assert list(open_run(after)) == ["a"]


def test_a_level_that_is_not_complete_is_computed_first_and_ranges_stay_refused(tmp_path):
    folder = computed(tmp_path)
    asked = iter(range(1000))
    with pytest.raises(Interrupted):
        refine(folder, "a", problem=problem_of(), compute=lambda job: run(job, stop=lambda: next(asked) > 12))
    with pytest.raises(JobError, match=r"'a' cannot be extended: of its level 1, it is not complete; run its own job"):
        extend(folder, "a", num_samples=53, problem=problem_of())
    refine(folder, "a", problem=problem_of())
    before = chunks_of(folder)
    told = r"ranges: landscape 'a' has been refined, .*; compute the wider range under another name, and refine that$"
    with pytest.raises(JobError, match=told):
        extend(folder, "a", num_samples=53, ranges=[(-2, 1), (-0.5, 1)], problem=problem_of())
    assert chunks_of(folder) == before
    assert list(open_run(folder)) == ["a"]
    extended = extend(folder, "a", num_samples=53, problem=problem_of())["a"].merged()
    assert (extended.interpolated == 0).all()
    assert np.isfinite(extended.loss).all()


def test_other_values_of_a_level_are_refused_and_nothing_changes(tmp_path):
    folder = computed(tmp_path)
    refine(folder, "a", problem=problem_of())
    before = chunks_of(folder)
    level = LandscapeStore.open(str(folder), "a", write=True, level=1)
    level.update_attributes(identity=(other := {**level.identity.whole, "seed": 4}), digest=digest(other))
    with pytest.raises(JobError, match=r"'a' cannot be extended: it was computed with another job; changed: seed 4 to"):
        extend(folder, "a", num_samples=53, problem=problem_of())
    assert chunks_of(folder) == before
