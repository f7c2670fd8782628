"""Comparisons as values: labels, shared scales, grids brought to the same points, differences and their errors."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from landscape.core.errors import JobError
from landscape.core.folders import run_labels
from landscape.surface.surface import Axis, Surface
from landscape.views.figure_spec import ComparisonSpec, FigureSpec
from landscape.views.prepare.comparison import (
    ComparedLandscape,
    check_mode,
    compared,
    contrasts,
    item_labels,
    prepare_overlay,
    share_scale,
    with_rise,
)
from landscape.views.prepare.difference import (
    COMBINED,
    PAIRED,
    UNPAIRED,
    GridValues,
    common_grid,
    coordinates_agree,
    prepare_difference,
    resampled,
    symmetric_scale,
)

RISE = "loss_rise_stderr"
KNOWN = {"origin_loss": 2.0, "origin_loss_stderr": 0.01}


def plane(size: tuple[int, int], offset: float = 0.0, ends: float = 1.0, name: str = "plane") -> Surface:
    """loss = offset + 2 + α + 0.5 β, which linear interpolation meets exactly."""
    alpha, beta = np.linspace(-ends, ends, size[0]), np.linspace(-1, 1, size[1])
    loss = offset + 2 + alpha[None, :] + 0.5 * beta[:, None]
    axes = (Axis("alpha", alpha), Axis("beta", beta))
    observables = {"loss": loss, "loss_stderr": np.full(loss.shape, 0.03)}
    return Surface(name, axes, observables, np.ones(loss.shape, np.uint8))


def pair(first: Surface, other: Surface) -> tuple[ComparedLandscape, ComparedLandscape]:
    one, two = compared([("a", first), ("b", other)])
    return one, two


def test_labels_are_as_short_as_they_can_be() -> None:
    assert run_labels(["/data/runs/sgd", "/data/runs/adam"]) == ["sgd", "adam"]
    assert run_labels(["/a/x/run", "/b/x/run"]) == ["a/x/run", "b/x/run"]
    assert item_labels([("r/a", "m"), ("r/a", "m"), ("r/b", "m")]) == ["a: m", "a: m (2)", "b: m"]


def test_surfaces_without_a_label_are_called_by_name_and_run(make: ModuleType) -> None:
    sgd, adam = (make.with_record(make.quadratic(), job={"run": f"runs/{name}"}) for name in ("sgd", "adam"))
    assert [item.label for item in compared([sgd, adam, make.line()])] == ["sgd: minimum", "adam: minimum", "line"]
    assert [item.label for item in compared([make.line(), ("mine", make.line())])] == ["line", "mine"]
    with pytest.raises(JobError, match="takes surfaces"):
        compared([3])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("mode", "names", "message"),
    [
        ("overlay", ["plane"], "needs at least two landscapes for overlay, not 1"),
        ("difference", ["plane", "line"], r"same number of axes, not 2 \('plane'\) and 1 \('line'\); tile them"),
        ("overlay", ["cube", "cube"], "volumes of three axes hide one another"),
        ("overlay", ["plane"] * 13, "overlays at most 12 landscapes, not 13"),
        ("average", ["plane", "plane"], "mode: unknown 'average'"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(
    make: ModuleType, mode: str, names: list[str], message: str
) -> None:
    surfaces = {"plane": plane((5, 4)), "line": make.line(), "cube": make.block()}
    items = compared([(name, surfaces[name]) for name in names])
    with pytest.raises(JobError, match=message):
        check_mode(mode, items, "loss")


def test_another_observable_is_refused_by_the_label() -> None:
    with pytest.raises(JobError, match="'b' has no 'accuracy'"):
        check_mode("tiled", pair(plane((3, 3)), plane((3, 3)))[1:], "accuracy")


def test_the_difference_of_equal_grids_is_point_by_point() -> None:
    first, other = plane((5, 4)), plane((5, 4), offset=0.25)
    data = prepare_difference(*pair(first, other))
    np.testing.assert_array_equal(data.field.values, other.loss - first.loss)
    assert not data.is_resampled
    assert data.error_kind == COMBINED
    np.testing.assert_allclose(data.field.error, np.hypot(0.03, 0.03))  # type: ignore[arg-type]
    assert data.field.scale.low == -data.field.scale.high
    assert 0.0 in data.field.scale.ticks
    assert data.field.caption[0] == "Loss of b less that of a"


@pytest.mark.parametrize("size", [(9, 7), (4, 11), (5, 4)])
@pytest.mark.parametrize("ends", [1.0, 0.7, 1.6])
def test_other_grids_are_resampled_onto_the_coarser_within_the_common_range(size: tuple[int, int], ends: float) -> None:
    first, other = plane((7, 6)), plane(size, offset=0.5, ends=ends)
    data = prepare_difference(*pair(first, other))
    np.testing.assert_allclose(data.field.values, 0.5, rtol=1e-12)
    alpha, beta = (axis.coordinates for axis in data.field.axes)
    assert np.abs(alpha).max() <= min(1.0, ends) + 1e-9
    assert data.field.values.shape == (len(beta), len(alpha))
    assert data.is_resampled
    assert "resampled linearly" in " ".join(data.field.caption)


def test_coordinates_that_differ_by_rounding_agree() -> None:
    alpha = np.linspace(-1, 1, 41)
    assert coordinates_agree([alpha], [alpha * (1 + 1e-12)])
    assert not coordinates_agree([alpha], [alpha * 1.001])


def test_no_common_range_is_refused() -> None:
    away = plane((5, 4))
    axes = (Axis("alpha", away.alpha + 5), away.axes[1])
    with pytest.raises(JobError, match=r"no common range of alpha: \[4, 6\] and \[-1, 1\]"):
        prepare_difference(*pair(plane((5, 4)), replace(away, axes=axes)))
    with pytest.raises(JobError, match="no common range of beta"):
        common_grid([np.arange(3.0)] * 2, [np.arange(3.0), np.array([1.9, 2.5])], ["alpha", "beta"], ("a", "b"))


def test_what_is_missing_on_either_side_stays_missing_with_its_reason(make: ModuleType) -> None:
    holed, whole = make.holed(), make.quadratic()
    for first, other in ((holed, whole), (whole, holed)):
        data = prepare_difference(*pair(first, other))
        np.testing.assert_array_equal(data.field.states, holed.status)
        assert np.isnan(data.field.values[holed.status != 1]).all()
        assert not data.within[holed.status != 1].any()
    both = np.where(whole.loss > 1, 3, 1).astype(np.uint8)
    data = prepare_difference(*pair(holed, replace(whole, status=both)))
    assert (data.field.states[both == 3] == 3).all()


def test_a_point_between_missing_ones_is_missing_and_one_on_the_grid_is_not() -> None:
    values, states = np.array([0.0, np.nan, 4.0, 6.0]), np.array([1, 2, 1, 1], np.uint8)
    moved = resampled(GridValues(values, None, states), [np.arange(4.0)], [np.array([0.0, 0.5, 2.0, 2.5])])
    np.testing.assert_array_equal(moved.values, [0.0, np.nan, 4.0, 5.0])
    np.testing.assert_array_equal(moved.states, [1, 2, 1, 1])


def test_the_error_is_paired_only_for_the_same_samples_around_the_same_origin(make: ModuleType) -> None:
    identity = {"origin": "o" * 64, "samples": "s" * 64}
    first, other = (
        make.with_record(
            replace(one, observables={**one.observables, RISE: np.full(one.status.shape, error)}), identity=identity
        )
        for one, error in ((plane((5, 4)), 0.001), (plane((5, 4), 0.25), 0.002))
    )
    data = prepare_difference(*pair(first, other))
    assert data.error_kind == PAIRED
    np.testing.assert_allclose(data.field.error, 0.003)  # type: ignore[arg-type]
    for change, kind in (("origin", UNPAIRED), ("samples", COMBINED)):
        elsewhere = make.with_record(other, identity={**identity, change: "x" * 64})
        assert prepare_difference(*pair(first, elsewhere)).error_kind == kind
    ratio = prepare_difference(*pair(first, other), FigureSpec(log=True))
    np.testing.assert_allclose(ratio.field.error, 0.003 / first.loss)  # type: ignore[arg-type]


def test_points_within_two_standard_errors_are_marked_and_counted() -> None:
    first, other = plane((5, 4)), plane((5, 4))
    shifted = other.loss.copy()
    shifted[0, 0] += 10 * 0.03
    data = prepare_difference(*pair(first, replace(other, observables={**other.observables, "loss": shifted})))
    assert data.within.sum() == 19
    assert not data.within[0, 0]
    assert "Within two standard errors of no difference at 19 of 20 points" in data.field.caption
    bare = [replace(one, observables={"loss": one.loss}) for one in (first, plane((5, 4), 1.0))]
    unknown = prepare_difference(*pair(*bare))
    assert unknown.field.error is None
    assert "Standard error not known" in unknown.field.caption


def test_equal_landscapes_say_so() -> None:
    data = prepare_difference(*pair(plane((5, 4)), plane((5, 4))))
    assert "The values are equal at every point" in data.field.caption
    assert data.field.scale.high > 0.01


def test_a_logarithmic_difference_is_the_ratio() -> None:
    first, other = plane((5, 4)), plane((5, 4))
    doubled = replace(other, observables={name: 2 * values for name, values in other.observables.items()})
    data = prepare_difference(*pair(first, doubled), FigureSpec(log=True))
    np.testing.assert_allclose(data.field.values, 2.0)
    np.testing.assert_allclose(data.field.drawn, np.log10(2.0))
    assert data.field.scale.log
    assert data.field.scale.low == -data.field.scale.high
    zero = first.loss.copy()
    zero[1, 2] = 0.0
    data = prepare_difference(*pair(replace(first, observables={"loss": zero}), doubled), FigureSpec(log=True))
    assert data.field.states[1, 2] == 4


def test_the_end_of_the_scale_can_be_given() -> None:
    drawn = np.array([-0.5, 0.1, 0.2])
    assert symmetric_scale(drawn, False, limit=2.0).high == 2.0
    assert symmetric_scale(drawn, True, limit=100.0).low == -2.0
    for log, limit in ((False, 0.0), (True, 1.0), (False, float("nan"))):
        with pytest.raises(JobError, match="limit: must be"):
            symmetric_scale(drawn, log, limit=limit)


def named(axis: Axis, label: str) -> Axis:
    return Axis(axis.name, axis.coordinates, {**axis.attributes, "digest": axis.name, "label": label})


def test_contrasts_name_what_makes_the_comparison_doubtful(make: ModuleType) -> None:
    items = pair(make.quadratic(), make.quadratic(num_samples=64, batch_norm="batch", precision="bfloat16"))
    assert contrasts(items) == [
        "the landscapes have other samples",
        "batch norm differs: eval, batch",
        "precision differs: float32, bfloat16",
    ]
    assert contrasts(pair(make.quadratic(), make.quadratic())) == []
    origins = [make.quadratic(origin=f"epoch {k}", identity={"origin": str(k) * 64}) for k in (5, 7)]
    assert contrasts(pair(*origins)) == ["origin differs: epoch 5, epoch 7"]
    alike = [make.quadratic(origin=name, identity={"origin": "5" * 64}) for name in ("epoch 5", "sgd epoch 5")]
    assert contrasts(pair(*alike)) == [], "the same weights"
    assert "alpha is another direction in each" in contrasts(pair(make.quadratic(), make.pca_plane()))
    other = make.pca_plane()
    axes = tuple(Axis(axis.name, axis.coordinates, {**axis.attributes, "digest": "x" * 64}) for axis in other.axes)
    assert "beta is another direction in each" in contrasts(pair(make.pca_plane(), replace(other, axes=axes)))
    same = [replace(other, axes=tuple(named(axis, label) for axis in other.axes)) for label in ("epochs", "small")]
    assert contrasts(pair(*same)) == [], "the same tensors under another name"


def test_the_shared_scale_is_that_of_all_values_together(make: ModuleType) -> None:
    low, high = make.quadratic(), make.quadratic(offset=3.0)
    shared = share_scale(compared([low, high]))
    assert (shared.low, shared.high, shared.log) == (low.loss.min(), high.loss.max(), False)
    assert share_scale(compared([low, make.valley()])).log
    nothing = replace(low, observables={"loss": np.full(low.status.shape, np.nan)}, status=0 * low.status)
    assert share_scale(compared([nothing])).low is None


def test_an_overlay_has_one_scale_and_axes_that_reach_over_all(make: ModuleType) -> None:
    items = pair(make.quadratic(path=make.spiral()), make.quadratic(21, 11, offset=2.0))
    data = prepare_overlay(items, ComparisonSpec())
    assert data.fields[0].scale.ticks == data.fields[1].scale.ticks
    assert data.labels == ("a", "b")
    assert data.frame.title == "Loss of a and b"
    assert len(data.fields[0].paths) == 1
    own = prepare_overlay(items, ComparisonSpec(lock=False))
    assert own.fields[0].scale.ticks != own.fields[1].scale.ticks
    wide = prepare_overlay(pair(plane((5, 4)), plane((5, 4), ends=3.0)), ComparisonSpec())
    np.testing.assert_array_equal(wide.frame.axes[0].coordinates, [-3.0, 3.0])
    assert any(sentence.startswith("b: 21 × 11 points") for sentence in data.frame.caption)


def known(surface: Surface, make: ModuleType, rise_error: float | None = 0.02) -> Surface:
    """The surface with its loss at the origin, and with one error of the rise everywhere."""
    recorded: Surface = make.with_record(surface, **KNOWN)
    if rise_error is None:
        return recorded
    return replace(recorded, observables={**recorded.observables, RISE: np.full(surface.loss.shape, rise_error)})


def test_the_loss_above_the_origin_is_compared_by_default_on_one_linear_scale(make: ModuleType) -> None:
    items = pair(known(plane((5, 4)), make), known(plane((5, 4), offset=0.5), make))
    raised, spec = with_rise(items, ComparisonSpec())
    assert spec.observable == "loss_rise"
    np.testing.assert_allclose(raised[1].surface["loss_rise"], items[1].surface.loss - 2.0)
    for options in ({"log": True}, {"lock": False}, {"rise": False}, {"observable": "loss_stderr"}):
        assert with_rise(items, ComparisonSpec(**options))[1].observable == options.get("observable", "loss")
    assert with_rise(items, ComparisonSpec(log=True, rise=True))[1].observable == "loss_rise"
    bare = pair(known(plane((5, 4)), make), plane((5, 4)))
    assert with_rise(bare, ComparisonSpec())[1].observable == "loss"
    with pytest.raises(JobError, match="rise: the loss at the origin of 'b' is not known"):
        with_rise(bare, ComparisonSpec(rise=True))
    with pytest.raises(JobError, match="rise: must go with the observable loss, not 'accuracy'"):
        with_rise(items, ComparisonSpec(rise=True, observable="accuracy"))


def test_a_difference_of_rises_has_the_bound_of_pairs_whatever_the_origins_are(make: ModuleType) -> None:
    samples = {"samples": "s"}
    first, other = (
        make.with_record(known(plane((5, 4), offset), make), identity={**samples, "origin": origin}, **KNOWN)
        for offset, origin in ((0.0, "o"), (0.5, "p"))
    )
    raised, spec = with_rise(pair(first, other), ComparisonSpec())
    data = prepare_difference(*raised, spec)
    assert data.error_kind == PAIRED
    np.testing.assert_allclose(data.field.error, 0.04)  # type: ignore[arg-type]
    assert prepare_difference(*pair(first, other)).error_kind == UNPAIRED


def test_where_errors_are_not_known_the_caption_says_so(make: ModuleType) -> None:
    items = [known(make.line(), make, None) for _ in range(2)]
    bare = [replace(item, observables={"loss": item.loss}) for item in items]
    for surfaces, words in ((bare, "standard errors are not known"), (items, "Shaded: ± 2 standard errors")):
        raised, spec = with_rise(pair(*surfaces), ComparisonSpec(rise=False))
        assert words in ". ".join(prepare_overlay(raised, spec).frame.caption)
