"""Worst cases near some weights, against closed forms of a paraboloid, and what rescaling of layers leaves as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sharpness_scene import Scene, bowl, relu_net, scene_of
from torch import nn

from landscape import Problem
from landscape.analysis.measures.document import MeasureRow
from landscape.analysis.measures.lines import draws_of
from landscape.analysis.measures.measure import ExtraMeasures, WeightsMeasures, measure
from landscape.analysis.measures.worst import (
    ASAM_RHO,
    SAM_RHO,
    Region,
    ascend,
    curvature_rows,
    keskar,
    rises_at,
    sharpness,
)
from landscape.compute import eigenpairs
from landscape.core.errors import JobError
from landscape.model.parameters import describe_parameters

CURVATURES = [0.5, 1.0, 4.0, 2.0, 8.0, 3.0]
THETA = [0.3, -1.0, 0.5, 0.2, -0.4, 0.6]


def measured(context: Scene, label: str = "problem", asked: ExtraMeasures | None = None) -> WeightsMeasures:
    base = context.base
    return measure(base.executor, context.prepared, base.plan, base.origin, label, asked or ExtraMeasures())


def theta_of(context: Scene) -> np.ndarray:
    return context.base.origin["bowl.weight"].double().numpy().reshape(-1)


def test_one_step_of_sam_and_asam_has_its_closed_form(tmp_path):
    context = scene_of(tmp_path, bowl(CURVATURES, THETA))
    found = sharpness(context.base, context.slope)
    a, theta = np.array(CURVATURES), theta_of(context)
    g = a * theta
    length = np.sqrt((g**2).sum())
    sam = SAM_RHO * length + 0.5 * SAM_RHO**2 * (a * g**2).sum() / length**2
    assert found.rows["sam 1 step"].value == pytest.approx(sam, rel=1e-6)
    scaled = np.abs(theta) * g
    epsilon = ASAM_RHO * np.abs(theta) * scaled / np.sqrt((scaled**2).sum())
    asam = (g * epsilon + 0.5 * a * epsilon**2).sum()
    assert found.rows["asam 1 step"].value == pytest.approx(asam, rel=1e-6)
    for name in ("sam", "asam"):
        one, many = (found.rows[f"{name} {steps}"] for steps in ("1 step", "20 steps"))
        assert many.value >= one.value
        assert found.samples[f"{name} 1 step"].mean() == pytest.approx(one.value, rel=1e-5)
        assert one.stderr > 0


def test_at_the_minimum_the_worst_case_is_half_the_largest_eigenvalue(tmp_path):
    context = scene_of(tmp_path, bowl(CURVATURES, [0.0] * 6))
    size = context.slope.layout.size
    _, best, broken = ascend(context.slope, Region(np.full(size, SAM_RHO)), 20)
    assert broken == 0
    row = rises_at(context.base, context.slope.layout, {"sam 20 steps": best}).rows["sam 20 steps"]
    assert row.value == pytest.approx(0.5 * SAM_RHO**2 * max(CURVATURES), rel=1e-3)
    assert context.slope.gradients == 21


def test_rescaling_layers_that_keep_the_network_changes_sam_and_not_asam(tmp_path):
    plain, scaled = (
        sharpness(context.base, context.slope).rows
        for context in (scene_of(tmp_path / str(scale), relu_net(scale)) for scale in (1.0, 4.0))
    )
    for steps in ("1 step", "20 steps"):
        assert scaled[f"asam {steps}"].value == pytest.approx(plain[f"asam {steps}"].value, rel=1e-5)
        assert abs(scaled[f"sam {steps}"].value / plain[f"sam {steps}"].value - 1) > 0.2


@pytest.mark.parametrize("beyond", [np.inf, np.nan])
def test_where_the_loss_breaks_the_worst_case_is_a_bound(tmp_path, beyond):
    """A slope of 1 along the first weight: within the ball the finite loss rises by at most 0.6 of SAM's ρ."""
    model = nn.Linear(2, 1, bias=False).double()
    start = model.weight.detach().clone()

    def observe(model, batch):
        moved = (model.weight - start)[0, 0]
        losses = 1.0 + moved + 0 * (model.weight**2).sum() + 0 * batch[:, 0]
        return {"loss": losses if moved <= 0.6 * SAM_RHO else losses * beyond}

    context = scene_of(tmp_path, Problem(model, torch.zeros(32, 2, dtype=torch.float64), observe))
    found = sharpness(context.base, context.slope)
    row = found.rows["sam 20 steps"]
    assert row.value is None
    assert row.stderr is None
    assert 0.2 * SAM_RHO < row.above <= 0.6 * SAM_RHO + 1e-9
    assert "of the 20 steps" in row.note
    assert found.rows["sam 1 step"] == MeasureRow(None, note="the loss is not finite there")
    assert "sam 20 steps" not in found.samples


def test_keskar_s_sharpness_of_a_plane_by_hand(tmp_path):
    context = scene_of(tmp_path, bowl([2.0, 6.0], [0.5, -1.0]))
    row = keskar(context.base, context.slope).rows["keskar 0.001"]
    # The corner (0.5 + 0.0015, −1 − 0.002): both components move away from the minimum.
    rise = 0.5 * 2 * (0.5015**2 - 0.5**2) + 0.5 * 6 * (1.002**2 - 1.0**2)
    loss, _ = context.slope(np.zeros(context.slope.layout.size))
    assert row.value == pytest.approx(100 * rise / (1 + loss), rel=1e-5)


def test_curvature_of_a_paraboloid(tmp_path):
    context = scene_of(tmp_path, bowl(CURVATURES, THETA))
    rows = curvature_rows(context.slope, 1.0).rows
    assert rows["lambda max"].value == pytest.approx(8.0)
    assert rows["lambda min"].value == pytest.approx(0.0, abs=1e-9)
    assert rows["trace"].value == pytest.approx(sum(CURVATURES))
    assert rows["lambda max"].stderr == pytest.approx(0.0, abs=1e-2)  # losses of single samples are float32


def test_the_smallest_eigenvalue_of_a_flat_bulk_is_computed_on_or_undecided(tmp_path, monkeypatch):
    bulk = np.linspace(1e-3, 1, 500).tolist()

    def row(folder, smallest):
        values = [*bulk, smallest, 2.0]
        return curvature_rows(scene_of(tmp_path / folder, bowl(values, [0.1] * len(values))).slope, 1.0).rows[
            "lambda min"
        ]

    resolved = row("zero", 0.0)  # after more than the usual steps
    assert resolved.value == pytest.approx(0.0, abs=1e-6)
    assert "no eigenvalue is below -1e-06 of the largest" in resolved.note
    assert row("negative", -1e-4).value < 0
    monkeypatch.setattr(eigenpairs, "FURTHER", 1)
    undecided = row("few", 0.0)
    assert undecided.value is None
    assert "sign undecided: between -0.0" in undecided.note


@pytest.mark.faults
def test_all_of_it_is_the_same_in_batches_of_any_size_up_to_rounding(tmp_path):
    one, other = (
        measured(scene_of(tmp_path / str(size), relu_net(), batch_size=size), asked=ExtraMeasures(True, True))
        for size in (8, 32)
    )
    assert one.rows.keys() == other.rows.keys() >= {"radius", "1/sigma^2", "keskar 0.001", "lambda max"}
    assert list(one.layers) == ["0", "2"]
    for name, row in one.rows.items():
        expected = other.rows[name].value
        assert row.value == (expected if expected is None else pytest.approx(expected, rel=1e-6, abs=1e-12)), name
    assert one.samples["rises"].shape == (16, 4, 32)


def test_a_loss_without_a_gradient_is_refused(tmp_path):
    model = nn.Linear(2, 2).double()

    def observe(model, batch):
        return {"loss": torch.from_numpy(model(batch).detach().numpy()).square().sum(1)}

    context = scene_of(tmp_path, Problem(model, torch.randn(32, 2, dtype=torch.float64), observe))
    with pytest.raises(JobError, match="the loss has no graph of gradients"):
        measured(context)


def exact_error_of_the_rise(context, points) -> float:
    """Of the mean rise at 0.5 over the 16 lines, from the losses of the points within; the ends are conditions of 2."""
    origin, rises = context.base.origin, []
    inputs = points.squeeze(1).numpy()
    for draw in draws_of(origin, describe_parameters(context.prepared.problem.model)):
        direction = draw()

        def loss(c, direction=direction):
            weight, bias = (
                float(origin[name]) + c * float(direction.get(name, torch.zeros(1))) for name in ("weight", "bias")
            )
            inside = (weight * inputs + bias - inputs) ** 2
            ends = np.array([(weight * x + bias) ** 2 for x in (-1, 1)])
            return inside, ends

        pairs = zip(*(loss(c) for c in (-0.5, 0.0, 0.5)), strict=True)
        rises.append([0.5 * (before + after) - at for before, at, after in pairs])
    parts = [np.mean([line[k] for line in rises], axis=0) for k in (0, 1)]
    errors = [factor * part.std(ddof=1) / len(part) ** 0.5 for factor, part in zip((1.0, 2.0), parts, strict=True)]
    return float(np.hypot(*errors))


def test_a_loss_of_several_terms_is_measured_without_losses_of_samples(tmp_path):
    points, ends = torch.linspace(-1, 1, 32).double()[:, None], torch.tensor([[-1.0], [1.0]]).double()
    terms = {
        "inside": (points, lambda model, x: (model(x) - x).square().sum(1), 1.0),
        "ends": (ends, lambda model, x: model(x).square().sum(1), 2.0),
    }
    model = nn.Linear(1, 1).double()
    nn.init.constant_(model.weight, 0.5)  # of a weight near 0 the line is short, and its rises drown in float32 losses
    context = scene_of(tmp_path, Problem.terms(model, terms))
    found = measured(context)
    assert {name: values.shape for name, values in found.samples.items()} == {"trace probes": (16,)}
    assert found.rows["sam 1 step"].stderr > 0
    # The curvature along the weight is 2x² of each point within, and 2 of each end.
    exact = float(np.std(2 * points.numpy() ** 2, ddof=1) / len(points) ** 0.5)
    assert found.rows["lambda min"].stderr == pytest.approx(exact, rel=1e-3)
    assert found.rows["rise 0.5"].stderr == pytest.approx(exact_error_of_the_rise(context, points), rel=1e-3)
    assert found.rows["trace"].value == pytest.approx(float(found.samples["trace probes"].mean()), rel=1e-5)
    assert found.rows["lambda max"].value > 0


def test_too_few_samples_are_refused(tmp_path):
    context = scene_of(tmp_path, relu_net(), num_samples=15)
    with pytest.raises(JobError, match="num_samples: must be at least 16 for errors over samples, not 15"):
        measured(context)


def test_a_loss_that_is_not_finite_is_refused_by_the_name_of_its_weights(tmp_path):
    problem = relu_net()
    infinite = Problem(problem.model, problem.data, lambda model, batch: {"loss": model(batch[0])[:, 0] + torch.inf})
    context = scene_of(tmp_path, infinite)
    with pytest.raises(JobError, match="origin: epoch 3: the loss there must be finite, not inf; take weights from"):
        measured(context, "epoch 3")


def test_where_the_gradient_is_not_finite_no_direction_is_taken_for_the_worst(tmp_path):
    problem = relu_net()
    kink = Problem(problem.model, problem.data, lambda model, batch: {"loss": (0 * model(batch[0])[:, 0]).sqrt() + 1})
    found = measured(scene_of(tmp_path, kink), asked=ExtraMeasures(everything=True))
    for name in ("sam 1 step", "sam 20 steps", "asam 1 step", "asam 20 steps", "keskar 0.001"):
        assert found.rows[name] == MeasureRow(None, note="the gradient of the loss is not finite there")
    assert found.rows["lambda max"] == MeasureRow(None, note="the Hessian is not finite there")
    assert found.rows["loss"].value == 1
    assert "sam 1 step" not in found.samples


def test_recalibrated_statistics_give_the_rises_and_leave_out_what_needs_derivatives(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(64, 3, dtype=torch.float64)
    labels = (x[:, 0] > 0).long()
    problem = Problem.supervised(model, (x, labels), metrics=["accuracy"])
    context = scene_of(tmp_path, problem, batch_norm="recalibrate", num_samples=64, batch_size=64)
    found = measured(context, asked=ExtraMeasures(layers=True, everything=True))

    def loss() -> float:
        """With the mean and the unbiased variance of all 64 samples, which are one batch."""
        hidden = model[0](x)
        normed = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=True) + model[1].eps).sqrt()
        outputs = model[3](torch.tanh(normed * model[1].weight + model[1].bias))
        return float(nn.functional.cross_entropy(outputs, labels))

    rises = []
    with torch.no_grad():
        own = {name: value.clone() for name, value in model.named_parameters()}
        at = loss()
        for draw in draws_of(context.base.origin, context.infos):
            around = []
            for c in (-0.5, 0.5):
                for name, value in model.named_parameters():
                    value.copy_(own[name] + c * draw().get(name, torch.zeros(1)))
                around.append(loss())
            rises.append(sum(around) / 2 - at)
    assert found.rows["loss"].value == pytest.approx(at, rel=1e-6)
    assert found.rows["rise 0.5"].value == pytest.approx(np.mean(rises), rel=1e-5)
    left_out = {name for name, row in found.rows.items() if row.note.startswith("left out: ")}
    assert left_out == {f"{name} {steps}" for name in ("sam", "asam") for steps in ("1 step", "20 steps")} | {
        "lambda max", "lambda min", "trace", "keskar 0.001",
    }  # fmt: skip
    assert all(found.rows[name].value is None for name in left_out)
    assert {"average 0.01", "adaptive average 0.1", "1/sigma^2"} < set(found.rows)
    assert set(found.layers) == {"0", "3"}
    assert set(found.samples) == {"loss", "rises", "weights"}
