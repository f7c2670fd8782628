"""Surfaces that follow from means: their formulas, what is refused, and where they are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from landscape import Job, JobError, Problem, open_run, run
from landscape.page.runs import LandscapeReader
from landscape.surface.derived import FORMULAS, check_derived, derive
from landscape.views.prepare.figure import prepare_figure


def squares(model, batch):
    return {"loss": (model(batch).squeeze(1) - 1).square()}


def derived_problem(**derived: str) -> Problem:
    torch.manual_seed(0)
    return Problem(nn.Linear(2, 1), torch.randn(16, 2), squares, derived=derived or {"perplexity": "exp(loss)"})


def computed(folder, **derived: str):
    job = Job(
        run=str(folder), problem=lambda: derived_problem(**derived), num_samples=16, tile=3,
        landscapes=[{"name": "plane", "size": 3}],
    )  # fmt: skip
    return run(job)["plane"]


@pytest.mark.parametrize("name", FORMULAS)
def test_the_error_of_a_derived_value_is_its_slope_times_the_error_of_the_mean(name):
    mean, step = np.array([0.3, 2.0]), 1e-6
    slope = (FORMULAS[name].value(mean + step) - FORMULAS[name].value(mean - step)) / (2 * step)
    values = derive({"d": f"{name}(loss)"}, {"loss": mean, "loss_stderr": np.array([0.1, 0.2])})
    np.testing.assert_allclose(values["d_stderr"], slope * [0.1, 0.2], rtol=1e-6)


def test_perplexity_is_the_exponential_of_the_mean_loss_wherever_it_is_read(tmp_path):
    surface = computed(tmp_path)
    reread = open_run(tmp_path)["plane"]
    for read in (surface, reread):
        assert list(read.observables)[:4] == ["loss", "loss_stderr", "loss_rise_stderr", "loss_rise"]
        assert list(read.observables)[4:] == ["perplexity", "perplexity_stderr"]
        np.testing.assert_array_equal(read["perplexity"], np.exp(read.loss))
        np.testing.assert_array_equal(read.stderr("perplexity"), np.exp(read.loss) * read.stderr())
    assert "perplexity" in reread.to_xarray()


def test_the_page_has_derived_surfaces_too(tmp_path):
    surface = computed(tmp_path)
    reader = LandscapeReader(str(tmp_path), "plane")
    assert reader.store().record.surfaces == ("loss", "perplexity", "loss_rise")
    np.testing.assert_array_equal(
        reader.view(reader.store().record.surfaces).surface["perplexity"], surface["perplexity"]
    )
    (block,), _ = reader.blocks("perplexity", [(0, 0)], alive=False)
    np.testing.assert_array_equal(block.values, surface["perplexity"])
    np.testing.assert_array_equal(block.error, surface.stderr("perplexity"))


def test_the_rise_over_the_origin_is_an_observable_of_figures_page_and_exports(tmp_path):
    surface = computed(tmp_path)
    expected = surface.loss - surface.origin_loss
    np.testing.assert_array_equal(surface["loss_rise"], expected)
    np.testing.assert_array_equal(surface.stderr("loss_rise"), surface.rise_stderr)
    (block,), _ = LandscapeReader(str(tmp_path), "plane").blocks("loss_rise", [(0, 0)], alive=False)
    np.testing.assert_array_equal(block.values, expected)
    np.testing.assert_array_equal(block.error, surface.rise_stderr)
    for kind in ("topographic", "contour", "surface"):
        data = prepare_figure(surface, observable="loss_rise", uncertainty=True, extrema=True)
        assert data.origin.height == 0
        figure = surface.figure(kind, observable="loss_rise", uncertainty=True, extrema=True)
        assert figure.layout.title.text == "plane: loss above the origin"
    ratio = prepare_figure(surface, uncertainty=True).difference
    np.testing.assert_array_equal(data.difference, ratio)  # the same points cannot be told from the origin
    assert "loss_rise" in surface.to_xarray()


def test_the_page_refuses_a_formula_of_a_later_version_by_name(tmp_path):
    computed(tmp_path)
    (tmp_path / "landscapes.zarr" / "zarr.json").unlink()
    document = tmp_path / "landscapes.zarr" / "plane" / "zarr.json"
    document.write_text(document.read_text().replace("exp(loss)", "softplus(loss)"))
    reader = LandscapeReader(str(tmp_path), "plane")
    assert "perplexity" not in reader.view(reader.store().record.surfaces).surface.observables
    with pytest.raises(JobError, match="'plane' has no 'perplexity'; known: loss, loss_stderr"):
        reader.blocks("perplexity", [(0, 0)], alive=False)


def test_the_error_of_a_ratio_is_that_of_both_means_as_if_they_were_independent():
    one, other, step = np.array([-0.3, 2.0]), np.array([4.0, -0.5]), 1e-6
    values = derive({"d": "abs(one/other)"}, {"one": one, "other": other})
    np.testing.assert_allclose(values["d"], [0.075, 4.0])
    slopes = [
        (np.abs((one + step) / other) - np.abs((one - step) / other)) / (2 * step),
        (np.abs(one / (other + step)) - np.abs(one / (other - step))) / (2 * step),
    ]
    errors = {"one_stderr": np.array([0.1, 0.2]), "other_stderr": np.array([0.3, 0.1])}
    values = derive({"d": "abs(one/other)"}, {"one": one, "other": other, **errors})
    expected = np.hypot(slopes[0] * errors["one_stderr"], slopes[1] * errors["other_stderr"])
    np.testing.assert_allclose(values["d_stderr"], expected, rtol=1e-6)


def test_a_ratio_is_read_from_both_observables_by_the_page_too(tmp_path):
    def observe(model, batch):
        loss = (model(batch).squeeze(1) - 1).square()
        return {"loss": loss, "slope": loss.sqrt()}

    problem = Problem(nn.Linear(2, 1), torch.ones(16, 2), observe, derived={"share": "abs(slope/loss)"})
    fields = {"num_samples": 16, "tile": 3, "landscapes": [{"name": "plane", "size": 3}]}
    surface = run(Job(run=str(tmp_path), problem=lambda: problem, **fields))["plane"]
    np.testing.assert_allclose(surface["share"], surface["slope"] / surface.loss)
    (block,), _ = LandscapeReader(str(tmp_path), "plane").blocks("share", [(0, 0)], alive=False)
    np.testing.assert_array_equal(block.values, surface["share"])


def test_a_landscape_without_derived_surfaces_records_none(tmp_path):
    job = Job(
        run=str(tmp_path), problem=lambda: Problem(nn.Linear(2, 1), torch.randn(16, 2), squares), num_samples=16,
        tile=3, landscapes=[{"name": "plane", "size": 3}],
    )  # fmt: skip
    assert "derived" not in run(job)["plane"].attributes


@pytest.mark.parametrize(
    "derived, text",
    [
        ({"perplexity": "exp(los)"}, "computed from 'los'"),
        ({"perplexity": "log(loss)"}, r"must be a function of one observable such as 'exp\(loss\)', not 'log\(loss\)'"),
        ({"perplexity": 3}, "must be a function of one observable"),
        ({"a b": "exp(loss)"}, "cannot name a surface"),
        ({"alpha": "exp(loss)"}, "'alpha' cannot name a surface: the store uses it itself"),
        ({"moments": "exp(loss)"}, "'moments' cannot name a surface: the store uses it itself"),
        ({"loss": "exp(loss)"}, "is what observe returns"),
        (["perplexity"], "must be a dict"),
        ({"share": "abs(loss/slope)"}, "'share' is computed from 'slope'"),
    ],
)
def test_what_cannot_be_derived_is_refused(derived, text):
    with pytest.raises(JobError, match=text):
        check_derived(derived, ("loss",))


def test_a_formula_of_an_observable_that_observe_does_not_return_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(JobError, match="computed from 'los'"):
        computed(tmp_path / "run", perplexity="exp(los)")
    assert not (tmp_path / "run").exists()


def test_a_formula_of_a_later_version_is_passed_over():
    assert derive({"d": "softplus(loss)"}, {"loss": np.zeros(2)}) == {}


def test_an_observable_that_an_older_run_called_loss_rise_is_kept():
    assert derive({}, {"loss": np.array([1.0, 2.0]), "loss_rise": np.array([5.0, 5.0])}, 1.0) == {}
    assert derive({}, {"loss": np.array([1.0, 2.0])}, 1.0)["loss_rise"].tolist() == [0.0, 1.0]
