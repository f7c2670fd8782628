"""Snapshots and files that a landscape names: which one is the origin, and what is said of those that are not there."""

from __future__ import annotations

import copy

import pytest
from small_models import make_job, quadratic_problem, wandering, write_trajectory

from landscape import JobError, run
from landscape.core.errors import LandscapeError

UNKNOWN = {
    "snapshot": ({"trajectory": [1, 2, 9]}, ["trajectory: epoch 9", "collected there: epochs 1-4"]),
    "origin": ({"origin": 7}, ["epoch 7", "epochs 1-4"]),
    "target": ({"directions": [{"kind": "towards", "target": 0}]}, ["epoch 0", "epochs 1-4"]),
    "mixed axes": (
        {"directions": [{"kind": "pca", "trajectory": "all"}, {"kind": "random"}]}, ["range: must be given"],
    ),
    "component": (
        {"directions": [{"kind": "pca", "trajectory": "all", "component": 4}]}, ["4 snapshots span 3 directions"],
    ),
    "file": ({"origin": "nowhere.pt"}, ["nowhere.pt", "does not exist"]),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_weights_that_are_not_there_are_refused_with_those_that_are(tmp_path, case):
    spec, words = UNKNOWN[case]
    problem = quadratic_problem()
    write_trajectory(tmp_path, wandering(problem.model, 4, 0.3))
    with pytest.raises(LandscapeError) as caught:
        run(make_job(tmp_path, lambda: problem, [{"name": "a", "size": 3, **spec}]))
    assert caught.value.exit_code in (2, 3)
    assert str(caught.value).count("\n") <= 1
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "landscapes.zarr").exists()


def test_a_trajectory_that_was_never_collected_is_told(tmp_path):
    problem = quadratic_problem()
    for spec, word in (({"origin": "last"}, "the run has none"), ({"trajectory": [1, 2, 3]}, "none")):
        with pytest.raises(JobError, match=word):
            run(make_job(tmp_path / "run", lambda: problem, [{"name": "a", "size": 3, **spec}]))
    every = [{"name": "a", "size": 3, "trajectory": "all"}]
    with pytest.raises(JobError, match="trajectory: PCA needs at least 3 snapshots, the run has 0"):
        run(make_job(tmp_path / "run", lambda: problem, every))
    assert not (tmp_path / "run").exists()
    write_trajectory(tmp_path / "run", wandering(problem.model, 2, 0.3))
    with pytest.raises(JobError, match="the run has 2; collect more"):
        run(make_job(tmp_path / "run", lambda: problem, every))


def test_the_origin_is_the_problems_own_or_the_last_snapshot(tmp_path):
    problem = quadratic_problem()
    line = {"directions": [{"kind": "random", "seed": 1}], "size": 3, "range": [-1, 1]}
    own = float(problem.model(problem.data).detach().double().mean())
    assert run(make_job(tmp_path / "own", lambda: problem, [{"name": "a", **line}]))["a"].loss[1] == pytest.approx(own)
    snapshots = wandering(problem.model, 4, 0.3)
    write_trajectory(tmp_path / "run", snapshots)
    specs = [{"name": str(origin), "origin": origin, **line} for origin in ("problem", "first", "last", 2)]
    found = run(make_job(tmp_path / "run", lambda: problem, [{"name": "a", **line}, *specs]))
    for name, number in (("a", 4), ("last", 4), ("first", 1), ("2", 2)):
        model = copy.deepcopy(problem.model)
        model.load_state_dict(snapshots[number])
        assert found[name].loss[1] == pytest.approx(float(model(problem.data).detach().double().mean()), rel=1e-6)
        assert found[name].attributes["origin"] == f"epoch {number}"
    assert found["problem"].loss[1] == pytest.approx(own)
    assert found["problem"].attributes["origin_step"] is None
