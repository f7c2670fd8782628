"""Extensions where memory or disk do not suffice, another one is under way, points were given up; every engine."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from extended_scene import compute, computed, observe, problem_of
from pooled import Pooled
from small_models import Quadratic, chunks_of, image_samples, make_job
from torch import Tensor

from landscape import Problem, extend, open_run, run
from landscape.compute.extend import More, extension_job
from landscape.compute.prepare import prepare
from landscape.core.errors import Interrupted, JobError, LandscapeError
from landscape.store.landscape import LandscapeStore

WIDER = [(-2, 1), (-0.5, 1)]


problem = problem_of()


def observe_up_to(most: float = float("inf"), highest: float = float("inf")) -> Callable[..., dict[str, Tensor]]:
    """Batches of more than `most` samples do not fit, and what is above the loss `highest` fails."""

    def observe_some(model: Quadratic, batch: Tensor) -> dict[str, Tensor]:
        if len(batch) > most:
            raise MemoryError
        observed = observe(model, batch)
        if len(batch) > 2 and float(observed["loss"].mean()) > highest:  # not the first look
            raise ValueError("too far")
        return observed

    return observe_some


def begin(folder: Path, points: int = 12, **more: Any) -> None:
    """Begin to extend, and stop after so many points."""
    asked = iter(range(1000))
    with pytest.raises(Interrupted):
        extend(folder, "a", problem=problem, compute=lambda job: run(job, stop=lambda: next(asked) > points), **more)
    assert "a.extending" in open_run(folder)


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("more", [{"num_samples": 53}, {"ranges": WIDER}])
def test_batches_that_do_not_fit_are_told_and_nothing_is_begun(tmp_path, more):
    """In smaller ones the blocks of samples would be others, and with them every value."""
    folder = computed(tmp_path)
    before = files_of(folder)
    with pytest.raises(
        JobError, match=r"batch_size: 8, .* 'a' was computed, does not fit the memory here, only 4 does"
    ):
        extend(folder, "a", problem=problem_of(observe_up_to(most=4)), **more)
    assert files_of(folder) == before


def test_a_landscape_is_not_extended_on_another_kind_of_device(tmp_path):
    job = extension_job(computed(tmp_path), "a", More(num_samples=53), problem)
    (prepared,) = prepare(job).landscapes
    with pytest.raises(JobError, match="device: landscape 'a' was computed on cpu, here is cuda"):
        prepared.on_device("cuda", job)


@pytest.mark.parametrize("more", [{"num_samples": 53}, {"ranges": WIDER}])
def test_an_extension_is_not_finished_with_values_of_another_plan(tmp_path, more):
    folder = computed(tmp_path)
    begin(folder, points=9, **more)
    shutil.rmtree(folder / "landscapes.zarr" / "a")
    compute(folder, batch_size=4)
    before = files_of(folder / "landscapes.zarr" / "a")
    with pytest.raises(JobError, match=r"computed again by another plan since 'a.extending' was begun; drop that by"):
        extend(folder, "a", problem=problem, **more)
    assert files_of(folder / "landscapes.zarr" / "a") == before


def test_an_extension_of_which_nothing_is_computed_yet_is_not_dropped_by_another_request(tmp_path):
    folder = computed(tmp_path)
    begin(folder, points=6, num_samples=53)
    assert LandscapeStore.open(folder, "a.extending").counts()[0] == 20
    for more in ({"num_samples": 60}, {"ranges": WIDER}):
        with pytest.raises(JobError, match="another extension of landscape 'a' is under way"):
            extend(folder, "a", problem=problem, **more)
        assert sorted(open_run(folder)) == ["a", "a.extending"]


def test_a_later_step_is_refused_before_the_first_one_is_computed(tmp_path):
    folder = computed(tmp_path)
    before = files_of(folder)
    with pytest.raises(JobError, match=r"by whole steps of 0.5"):
        extend(folder, "a", num_samples=53, ranges=[(-1.3, 1), (-0.5, 1)], problem=problem)
    assert files_of(folder) == before


def test_points_that_were_given_up_are_counted_and_computed_first(tmp_path):
    folder = compute(tmp_path, function=observe_up_to(highest=24.0))
    lost = LandscapeStore.open(folder, "a").counts()[3]
    assert lost
    with pytest.raises(JobError, match=f"cannot be extended: {lost} of its points were given up; run its own job"):
        extend(folder, "a", num_samples=53, problem=problem)
    compute(folder)
    opened = extend(folder, "a", ranges=WIDER, problem=problem_of(observe_up_to(highest=24.0)))
    assert opened["a"].loss.shape == (4, 5), "what fails at new points stays beside it"
    assert opened["a.extending"].record.failures
    assert extend(folder, "a", ranges=WIDER, problem=problem)["a"].loss.shape == (4, 7)


def test_a_disk_that_takes_nothing_is_told_in_one_line(tmp_path, monkeypatch):
    folder = computed(tmp_path)
    before = files_of(folder)

    def full(run: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("landscape.store.results.run_lock", full)
    with pytest.raises(LandscapeError, match=r"cannot be written: No space left on device; .*make room"):
        extend(folder, "a", num_samples=53, problem=problem)
    monkeypatch.setattr("os.access", lambda *given: False)
    with pytest.raises(JobError, match="no permission to write"):
        extend(folder, "a", num_samples=53, problem=problem)
    assert files_of(folder) == before


def images(*metrics: str) -> Callable[[], Problem]:
    return lambda: Problem.supervised(Pooled().eval(), image_samples(97), metrics=list(metrics))


@pytest.mark.parametrize(
    "engine",
    [
        "vmap:3+maxima",
        pytest.param("eager+channels_last+maxima+folded+fused+superposed", marks=pytest.mark.faults),
    ],
)
def test_every_engine_gives_the_bytes_of_asking_at_once(tmp_path, engine):
    fields = {"engine": engine, "batch_size": 4, "tile": [3, 2], "seed": 3}
    small = {"name": "a", "size": 3, "range": [-1, 1]}
    wider = {**small, "range": [[-2, 1], [-1, 1]], "size": [4, 3]}
    run(make_job(tmp_path / "once", images("accuracy"), [wider], num_samples=21, **fields))
    run(make_job(tmp_path / "run", images(), [small], num_samples=10, **fields))
    more: dict[str, Any] = {"num_samples": 21, "observables": ["accuracy"], "ranges": [(-2, 1), (-1, 1)]}
    extend(tmp_path / "run", "a", problem=images("accuracy"), **more)
    assert chunks_of(tmp_path / "run") == chunks_of(tmp_path / "once")
    assert str(open_run(tmp_path / "run")["a"].record.plan.engine) == engine
