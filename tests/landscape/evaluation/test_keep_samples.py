"""Losses of single samples: those of direct evaluation, the same bytes however computed, extended, mended, refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import extended_scene
import numpy as np
import pytest
import torch
from extended_scene import LANDSCAPE, observe, observe_more, observe_weighted, problem_of
from small_models import Quadratic, chunks_of, make_job, quadratic_samples
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import landscape
from landscape import Problem, Surface, by_class, extend, open_run, subset
from landscape.core.devices import KEPT_BYTES
from landscape.core.errors import Interrupted, JobError
from landscape.problem.supervised import Combination
from landscape.store.landscape import LandscapeStore

EVERY = slice(None)


def computed(folder: Path, samples: int = 20, spec: dict[str, Any] | None = None, **fields: Any) -> Surface:
    """What another test may have computed."""
    return open_run(extended_scene.computed(folder, samples, spec, **{"keep_samples": True, **fields}))["a"]


def compute(folder: Path, samples: int = 20, spec: dict[str, Any] | None = None, **fields: Any) -> Surface:
    return open_run(extended_scene.compute(folder, samples, spec, **{"keep_samples": True, **fields}))["a"]


def file_of(folder: Path, chunk: str) -> Path:
    return folder / "landscapes.zarr" / "a" / chunk


@pytest.mark.parametrize("engine", ["eager", "vmap:3"])
def test_the_losses_are_those_of_direct_evaluation(tmp_path, engine):
    surface = computed(tmp_path / "run", 21, engine=engine)
    losses, index = surface.loss_samples, surface.sample_index
    store = LandscapeStore.open(str(tmp_path / "run"), "a")
    directions, model = store.directions(), Quadratic()
    samples = quadratic_samples(97)[torch.from_numpy(index)]
    for j, beta in enumerate(surface.beta):
        for i, alpha in enumerate(surface.alpha):
            state = {
                name: values + alpha * directions[0].get(name, 0) + beta * directions[1].get(name, 0)
                for name, values in Quadratic().state_dict().items()
            }
            model.load_state_dict(state)
            np.testing.assert_allclose(losses[j, i], model(samples).detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(losses.origin, Quadratic()(samples).detach().numpy(), rtol=1e-6)
    assert losses.dtype == losses[...].dtype == np.float32
    assert (losses.weights == 1).all()


def test_windows_are_those_of_the_whole_array(tmp_path):
    losses = computed(tmp_path / "run").loss_samples
    whole = np.asarray(losses)
    assert losses.shape == whole.shape == (4, 5, 20)
    windows = [0, -1, (1, 2), (EVERY, 4), (slice(1, 3), slice(2, 5), 7), (..., -2), (1, ..., slice(3, 9)), slice(4, 1)]
    for window in windows:
        np.testing.assert_array_equal(losses[window], whole[window])
    for wrong in (4, (0, 5), (0, 0, 0, 0), slice(None, None, 2), [1], True):
        with pytest.raises(IndexError, match="loss_samples"):
            losses[wrong]
    assert [whole[slab].shape[0] for slab in losses.slabs(1)] == [2, 2]


def test_a_window_reads_its_chunks_alone(tmp_path):
    losses = computed(tmp_path / "run").loss_samples
    expected = np.asarray(losses)[0, 0]
    for chunk in (tmp_path / "run/landscapes.zarr/a/loss_samples/c").rglob("*"):
        if chunk.is_file() and chunk.parent.parent.name + chunk.parent.name + chunk.name != "000":
            chunk.unlink()
    np.testing.assert_array_equal(losses[0, 0], expected)
    assert np.isnan(losses[3]).all()


@pytest.mark.parametrize("function", [observe, observe_weighted])
def test_an_interruption_gives_the_same_bytes_and_means_stay_what_they_are_without(tmp_path, function):
    computed(tmp_path / "once", function=function)
    computed(tmp_path / "without", function=function, keep_samples=False)
    tiles = []

    def stop_after_two(progress: Any) -> None:
        tiles.append(progress)

    job = make_job(
        tmp_path / "two", problem_of(function), [LANDSCAPE], num_samples=20, batch_size=8, tile=[3, 2], seed=3,
        keep_samples=True,
    )  # fmt: skip
    with pytest.raises(Interrupted):
        landscape.run(job, observer=stop_after_two, stop=lambda: len(tiles) > 1)
    assert 0 < np.isnan(np.asarray(open_run(tmp_path / "two")["a"].loss_samples)).sum() < 400
    landscape.run(job.replace(keep_samples=False))  # as it was begun
    once, without = chunks_of(tmp_path / "once"), chunks_of(tmp_path / "without")
    assert chunks_of(tmp_path / "two") == once
    assert without == {name: data for name, data in once.items() if name in without}
    kept = {name.split("/")[0] for name in set(once) - set(without)}
    assert kept == {"loss_samples", "sample_weights", "origin_loss_samples"}


@pytest.mark.parametrize("few, many, function", [(16, 32, observe), (20, 53, observe_weighted), (5, 9, observe)])
def test_more_samples_give_the_bytes_of_all_at_once(tmp_path, few, many, function):
    computed(tmp_path / "once", many, batch_size=min(8, few), function=function)
    computed(tmp_path / "run", few, batch_size=min(8, few), function=function)
    extend(tmp_path / "run", "a", num_samples=many, problem=problem_of(function))
    assert chunks_of(tmp_path / "run") == chunks_of(tmp_path / "once")


class Stream(IterableDataset):
    """Batches of 7, which cannot be cut."""

    def __iter__(self) -> Iterator[Any]:
        rows = quadratic_samples(97)
        return ({"rows": rows[start : start + 7], "name": "batch"} for start in range(0, 90, 7))


def test_whole_batches_are_extended_too_and_subsets_of_them_have_no_places(tmp_path):
    def of_batches() -> Problem:
        data = DataLoader(Stream(), batch_size=None)
        return Problem(
            Quadratic(), data, lambda model, batch: observe_weighted(model, batch["rows"]),
            length=lambda batch: len(batch["rows"]),
        )  # fmt: skip

    for folder, samples in (("once", 40), ("run", 20)):
        job = make_job(tmp_path / folder, of_batches, [LANDSCAPE], num_samples=samples, tile=2, keep_samples=True)
        landscape.run(job)
    surface = extend(tmp_path / "run", "a", num_samples=42, problem=of_batches)["a"]
    assert chunks_of(tmp_path / "run") == chunks_of(tmp_path / "once")
    assert surface.loss_samples.shape == (4, 5, 42)
    assert subset(surface, [41, 0]).sample_index is None
    with pytest.raises(JobError, match="have no places in the data"):
        by_class(surface, np.arange(97))


def test_more_samples_get_tiles_that_hold_no_more_of_their_losses(tmp_path, monkeypatch):
    at_once = computed(tmp_path / "once", 53)
    computed(tmp_path / "run", 20)
    monkeypatch.setattr("landscape.compute.plans.TILE_BYTES", 4 * 53 * 3)
    surface = extend(tmp_path / "run", "a", num_samples=53, problem=problem_of())["a"]
    assert np.prod(LandscapeStore.open(str(tmp_path / "run"), "a").tile_shape) <= 3
    assert surface.loss.tobytes() == at_once.loss.tobytes()
    np.testing.assert_array_equal(surface.loss_samples, at_once.loss_samples)


def test_a_wider_range_and_another_observable_give_the_bytes_of_asking_at_once(tmp_path):
    wider = {**LANDSCAPE, "range": [[-1.5, 1], [-0.5, 2]], "size": [6, 6]}
    computed(tmp_path / "once", 41, wider, function=observe_more)
    computed(tmp_path / "run")
    ranges = [(-1.5, 1.0), (-0.5, 2.0)]
    extend(tmp_path / "run", "a", num_samples=41, observables=["root"], ranges=ranges, problem=problem_of(observe_more))
    assert chunks_of(tmp_path / "run") == chunks_of(tmp_path / "once")


@pytest.mark.parametrize(
    "chunk, lost",
    [
        ("loss_samples/c/0/1/0", True),
        ("loss_samples/c/1/0/0", False),
        ("sample_weights/c/0", True),
        ("sample_weights/c/0", False),
        ("origin_loss_samples/c/0", True),
    ],
)
def test_a_damaged_chunk_is_found_and_computed_again(tmp_path, caplog, chunk, lost):
    computed(tmp_path / "run", function=observe_weighted)
    before, file = chunks_of(tmp_path / "run"), file_of(tmp_path / "run", chunk)
    if lost:
        file.unlink()
    else:
        file.write_bytes(before[chunk][:-3] + b"abc")
    with pytest.raises(JobError, match="a chunk of it is damaged"):
        extend(tmp_path / "run", "a", num_samples=40, problem=problem_of(observe_weighted))
    compute(tmp_path / "run", function=observe_weighted)
    assert f"{chunk.split('/')[0]} chunk" in caplog.text
    assert chunks_of(tmp_path / "run") == before


def test_a_tile_that_is_given_up_holds_no_losses(tmp_path):
    def fails_far_away(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        losses = model(batch)
        if losses.mean() > limit:
            raise ValueError("too far")
        return {"loss": losses}

    whole = computed(tmp_path / "whole")
    limit = float(np.sort(whole.loss.ravel())[-2])
    surface = compute(tmp_path / "run", function=fails_far_away)
    given_up = np.isnan(surface.loss)
    assert given_up.any()
    losses = np.asarray(surface.loss_samples)
    assert np.isnan(losses[given_up]).all()
    np.testing.assert_array_equal(losses[~given_up], np.asarray(whole.loss_samples)[~given_up])


def test_above_the_limit_the_job_is_refused_with_what_fits(tmp_path, monkeypatch):
    monkeypatch.setenv(KEPT_BYTES, "1599")
    with pytest.raises(JobError) as refused:
        compute(tmp_path / "run")
    message = str(refused.value)
    assert "must take at most 1599 bytes, not the 1600" in message
    assert "num_samples: 19" in message
    assert f"{KEPT_BYTES}=1600" in message
    assert not (tmp_path / "run" / "landscapes.zarr").exists()
    monkeypatch.setenv(KEPT_BYTES, "1600")
    compute(tmp_path / "run")
    with pytest.raises(JobError, match="not the 1680"):
        extend(tmp_path / "run", "a", num_samples=21, problem=problem_of())


def test_what_was_begun_without_is_refused_and_says_so(tmp_path):
    surface = computed(tmp_path / "run", keep_samples=False)
    assert surface.loss_samples is None
    assert len(surface.sample_index) == 20
    with pytest.raises(JobError, match="holds no losses of single samples, as it was begun without"):
        compute(tmp_path / "run")


def test_weights_that_depend_on_the_point_are_refused(tmp_path):
    def observe_moving(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        losses = model(batch)
        return {"loss": losses, "weight": 1.0 + losses}

    for tile in ([3, 2], 1):
        with pytest.raises(JobError, match="'weight' must be the same at every point"):
            compute(tmp_path / str(tile), function=observe_moving, tile=tile)
    compute(tmp_path / "without", function=observe_moving, keep_samples=False)


def test_terms_have_no_losses_of_samples(tmp_path):
    def terms(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"inside": model(batch), "border": model(batch[:3])}

    problem = Problem(Quadratic(), quadratic_samples(40), Combination(terms, {"inside": 1.0, "border": 2.0}))
    with pytest.raises(JobError, match="keep_samples: the loss is a sum of terms"):
        landscape.run(make_job(tmp_path, lambda: problem, [LANDSCAPE], num_samples=20, keep_samples=True))


def test_xarray_opens_them(tmp_path):
    xarray = pytest.importorskip("xarray")
    surface = computed(tmp_path / "run")
    dataset = xarray.open_zarr(tmp_path / "run" / "landscapes.zarr", group="a")
    assert dataset.loss_samples.dims == ("beta", "alpha", "sample")
    np.testing.assert_array_equal(dataset.loss_samples.values, np.asarray(surface.loss_samples))
    np.testing.assert_allclose(dataset.loss_samples.mean("sample"), surface.loss, rtol=1e-6)
