"""Means over other samples, beside landscapes computed of these samples alone, and bootstraps beside plain loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import Quadratic, make_job, quadratic_samples

from landscape import Problem, Surface, bootstrap, by_class, run, subset
from landscape.core.errors import JobError

LANDSCAPE = {"name": "a", "size": [5, 4], "range": [[-1, 1], [-0.5, 1]]}


def computed(folder: Path, *, weighted: bool = False, samples: int = 20, data: Any = None, **fields: Any) -> Surface:
    def observe(model, batch):
        weight = {"weight": 1.0 + batch[:, 0].abs()} if weighted else {}
        return {"loss": model(batch), **weight}

    def problem() -> Problem:
        return Problem(Quadratic(), quadratic_samples(97) if data is None else data, observe)

    fields = {"batch_size": 8, "tile": [3, 2], "seed": 3, "keep_samples": True, **fields}
    return run(make_job(folder, problem, [LANDSCAPE], num_samples=samples, **fields))["a"]


@pytest.fixture(scope="module")
def surfaces(tmp_path_factory) -> dict[bool, Surface]:
    """The landscape of all samples, with weights and without."""
    return {weighted: computed(tmp_path_factory.mktemp("run"), weighted=weighted) for weighted in (False, True)}


@pytest.mark.parametrize("weighted", [False, True])
def test_a_subset_is_the_landscape_of_these_samples(surfaces, tmp_path, weighted):
    whole = surfaces[weighted]
    chosen = np.array([3, 17, 4, 11, 0])
    places = torch.from_numpy(np.sort(whole.sample_index[chosen]))
    alone = computed(tmp_path / "alone", weighted=weighted, samples=5, data=quadratic_samples(97)[places])
    for samples in (chosen, np.isin(np.arange(20), chosen)):
        found = subset(whole, samples, "few")
        np.testing.assert_allclose(found.loss, alone.loss, rtol=1e-6)
        np.testing.assert_allclose(found.stderr(), alone.stderr(), rtol=1e-5)
        np.testing.assert_allclose(found.rise_stderr, alone.rise_stderr, rtol=1e-5, atol=1e-6)
        assert found.origin_loss == pytest.approx(alone.origin_loss, rel=1e-6)
        assert found.origin_loss_stderr == pytest.approx(alone.origin_loss_stderr, rel=1e-5)
        assert (found.name, found.record.num_samples) == ("few", 5)
        assert set(found.sample_index) == set(places.tolist())
    every = subset(whole, np.arange(20))
    np.testing.assert_allclose(every.loss, whole.loss, rtol=1e-7)
    np.testing.assert_allclose(every.rise_stderr, whole.rise_stderr, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [[], [0, 0], [20], [-1], [0.5], [True, False], 3])
def test_what_are_no_samples_is_refused(surfaces, wrong):
    with pytest.raises(JobError, match="samples: must be different whole numbers from 0 to 19"):
        subset(surfaces[False], wrong)


def test_classes_are_subsets_by_the_labels_of_the_data(surfaces):
    surface = surfaces[False]
    labels = np.array(["even", "odd"])[np.arange(97) % 2]
    classes = by_class(surface, labels)
    assert list(classes) == ["even", "odd"]
    for remainder, found in enumerate(classes.values()):
        own = np.flatnonzero(surface.sample_index % 2 == remainder)
        assert found["loss"].tobytes() == subset(surface, own)["loss"].tobytes()
    assert classes["odd"].name == "a: odd"
    sizes = [found.record.num_samples for found in classes.values()]
    assert sum(sizes) == 20
    mean = sum(n * found.loss for n, found in zip(sizes, classes.values(), strict=True)) / 20
    np.testing.assert_allclose(mean, surface.loss, rtol=1e-6)
    with pytest.raises(JobError, match="labels: must be one for each item of the data"):
        by_class(surface, labels[:20])


@pytest.mark.parametrize("statistic", ["mean", "rise"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_bootstrap_is_that_of_a_plain_loop(surfaces, statistic, weighted):
    surface = surfaces[weighted]
    found = bootstrap(surface, statistic, resamples=300, seed=5)
    losses = np.asarray(surface.loss_samples, np.float64)
    if statistic == "rise":
        losses = losses - surface.loss_samples.origin
    draws = np.random.default_rng(5).integers(0, 20, (300, 20))
    weights = surface.loss_samples.weights
    means = np.stack([np.average(losses[..., draw], axis=-1, weights=weights[draw]) for draw in draws])
    np.testing.assert_allclose(found.value, np.average(losses, axis=-1, weights=weights), rtol=1e-9)
    np.testing.assert_allclose(found.stderr, means.std(0, ddof=1), rtol=1e-7)
    np.testing.assert_allclose(found.low, np.quantile(means, 0.025, axis=0), rtol=1e-9)
    np.testing.assert_allclose(found.high, np.quantile(means, 0.975, axis=0), rtol=1e-9)
    # Both are errors of the same mean: they agree as far as 20 samples and 300 resamples let them.
    formula = surface.rise_stderr if statistic == "rise" else surface.stderr()
    np.testing.assert_allclose(found.stderr, formula, rtol=0.25)


def test_wrong_arguments_are_refused(surfaces, tmp_path):
    for arguments, why in [
        ({"statistic": "median"}, "statistic"), ({"resamples": 1}, "resamples"), ({"confidence": 1.0}, "confidence"),
    ]:  # fmt: skip
        with pytest.raises(JobError, match=why):
            bootstrap(surfaces[False], **arguments)
    without = computed(tmp_path / "without", keep_samples=False)
    with pytest.raises(JobError, match="holds no losses of single samples"):
        bootstrap(without)
