"""Persistence against closed forms, another package, and invariants."""

from __future__ import annotations

import gudhi
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from landscape.core.errors import JobError
from landscape.surface.surface import NOT_COMPUTED, OK, Axis, Surface
from landscape.surface.topology import maximum_pairs, minimum_pairs, topology_of

GRIDS = arrays(np.int64, st.tuples(st.integers(1, 7), st.integers(1, 7)), elements=st.integers(0, 9))


def surface_of(values, coordinates=None, **more) -> Surface:
    shape = values.shape
    coordinates = coordinates or [np.linspace(-1, 1, n) if n > 1 else np.zeros(1) for n in reversed(shape)]
    axes = tuple(Axis(name, each) for name, each in zip(("alpha", "beta", "gamma"), coordinates, strict=False))
    status = np.where(np.isfinite(values), OK, NOT_COMPUTED).astype(np.uint8)
    return Surface("made", axes, {"loss": values, **more}, status)


def plane(function, size=(61, 41), span=2.0):
    """A function over [-span, span]², its coordinates beside it."""
    alpha, beta = (np.linspace(-span, span, n) for n in size)
    return surface_of(function(*np.meshgrid(alpha, beta)), [alpha, beta])


def bowls(x, y, height=0.4):
    """Two paraboloids, whose minima are 0 at (−1, 0) and `height` at (1, 0)."""
    return np.minimum((x + 1) ** 2 + y**2, (x - 1) ** 2 + y**2 + height)


def brute_force(values):
    """The pairs of minima, from the components of every sublevel set by plain search."""
    order = sorted(np.ndindex(values.shape), key=lambda at: (values[at], at))
    found, alive = [], {}
    for count in range(1, len(order) + 1):
        there, parts = set(order[:count]), []
        while there:
            part, border = set(), [min(there)]
            while border:
                at = border.pop()
                if at in there:
                    there.remove(at)
                    part.add(at)
                    border += [(at[0] + i, at[1] + j) for i, j in ((0, 1), (1, 0), (0, -1), (-1, 0))]
            parts.append(min(part, key=order.index))
        found += [(gone, order[count - 1]) for gone in set(alive) - set(parts)]
        alive = dict.fromkeys(parts)
    return {(low, saddle) for low, saddle in found} | {(each, None) for each in alive}


def test_two_paraboloids_pair_at_the_analytic_saddle():
    found = topology_of(plane(lambda x, y: bowls(x, y, 0.4)))
    lower, higher = found.basins
    assert lower.minimum.place == {"alpha": pytest.approx(-1, abs=0.04), "beta": 0.0}
    assert lower.minimum.saddle is None
    assert lower.minimum.barrier == np.inf
    # (x+1)² = (x−1)² + h gives x = h/4: the saddle is at (h/4, 0), as high as (1 + h/4)².
    assert higher.minimum.saddle == {"alpha": pytest.approx(0.1, abs=0.04), "beta": 0.0}
    assert higher.minimum.barrier == pytest.approx(1.1**2 - 0.4, abs=0.1)
    assert lower.depth == pytest.approx(1.1**2, abs=0.1)
    assert higher.depth == higher.minimum.barrier
    assert found.smad() == pytest.approx((lower.depth + higher.depth) / 2)
    assert lower.share == pytest.approx(2.1 / 4, abs=0.02)
    assert lower.share + higher.share == pytest.approx(1)
    assert (found.labels[:, 0] == 0).all()
    assert (found.labels[:, -1] == 1).all()


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_an_egg_crate_of_k_by_k_has_as_many_minima(k):
    inner = (np.arange(20 * k) + 0.5) / (20 * k)  # k whole waves per axis, maxima on the rim
    x, y = np.meshgrid(inner, inner)
    values = np.cos(2 * np.pi * k * x) + np.cos(2 * np.pi * k * y) + 1e-3 * (x + 2 * y)
    found = topology_of(surface_of(values, [inner, inner]))
    assert len(found.basins) == k * k
    assert len(found.saddles) == k * k - 1
    shares = [basin.share for basin in found.basins]
    assert shares == pytest.approx([1 / k**2] * k**2, rel=0.2)


@given(GRIDS)
def test_pairs_are_those_of_a_plain_search(values):
    values = values.astype(float)
    assert {(pair.extremum, pair.saddle) for pair in minimum_pairs(values)} == brute_force(values)


@given(GRIDS)
def test_maxima_are_the_loops_of_the_sublevel_sets(values):
    """A hill in the middle of a lowland of other values is one loop, as high as the hill is above its saddle."""
    ringed = np.pad(values.astype(float), 1, constant_values=-1.0)
    (highest, *_) = maximum_pairs(ringed)
    assert highest.birth == ringed.max()
    assert highest.death == -1.0


@given(GRIDS)
def test_monotone_transforms_keep_the_pairs(values):
    values = values.astype(float)
    for pairs in (minimum_pairs, maximum_pairs):
        before = {(pair.extremum, pair.saddle) for pair in pairs(values)}
        assert {(pair.extremum, pair.saddle) for pair in pairs(np.exp(values / 3) - 5)} == before


@given(GRIDS, st.integers(0, 48))
def test_walls_belong_to_no_basin_and_part_the_grid(values, wall):
    values = values.astype(float)
    values.flat[wall % values.size] = np.nan
    found = topology_of(surface_of(values), threshold=0.0)
    np.testing.assert_array_equal(found.labels == -1, np.isnan(values))
    whole = [pair for pair in found.pairs if pair.saddle is None]
    assert sum(basin.share for basin in found.basins) == (pytest.approx(1) if whole else 0)
    assert all(np.isfinite(values[pair.extremum]) for pair in (*found.pairs, *maximum_pairs(values)))


def test_noise_is_dropped_and_counted():
    generator = np.random.default_rng(0)
    noise = 1e-3
    smooth = plane(lambda x, y: 0.02 * bowls(x, y, 0.1), (129, 129))
    values = smooth.loss + noise * generator.standard_normal(smooth.loss.shape)
    noisy = surface_of(values, [smooth.alpha, smooth.beta], loss_rise_stderr=np.full(values.shape, noise))
    found = topology_of(noisy)
    assert found.dropped > 20
    assert len(found.basins) == 2
    assert len(topology_of(noisy, threshold=0.0).basins) == found.dropped + 2


def test_a_minimum_below_the_noise_gives_its_basin_to_the_one_that_it_joins():
    line = np.array([0.0, 2.0, 1.0, 1.2, 1.1, 3.0, 0.5])
    found = topology_of(surface_of(line), threshold=0.3)
    assert found.labels.tolist() == [0, 0, 2, 2, 2, 1, 1]
    assert [basin.minimum.value for basin in found.basins] == [0.0, 0.5, 1.0]
    assert [basin.depth for basin in found.basins] == [2.0, 2.5, 1.0]


@pytest.mark.parametrize("shape", [(5,), (1, 1), (3, 1), (3, 4, 5)])
def test_any_number_of_axes_and_a_single_point(shape):
    values = np.arange(float(np.prod(shape))).reshape(shape)
    found = topology_of(surface_of(values))
    (basin,) = found.basins
    assert basin.minimum.value == 0.0
    assert basin.share == 1.0
    assert found.maxima == ()


def test_a_long_valley_of_many_small_minima_is_one_basin():
    """What flows together over several minima below the noise belongs to the one that outlasts them all."""
    line = np.linspace(1, 0, 400) + 0.01 * (np.arange(400) % 2)
    found = topology_of(surface_of(line), threshold=0.1)
    assert (len(found.basins), found.dropped) == (1, 199)
    assert (found.labels == 0).all()


def test_nothing_computed_has_no_basins():
    found = topology_of(surface_of(np.full((3, 3), np.nan)))
    assert (found.basins, found.pairs, found.dropped, found.smad()) == ((), (), 0, 0.0)


def test_an_unknown_observable_is_refused():
    with pytest.raises(JobError, match="observable: 'made' has no 'los'"):
        topology_of(surface_of(np.zeros((2, 2))), "los")


def test_the_pairs_are_those_of_gudhi():
    """Of 500 planes and 50 volumes, ties among them: minima by pairs of dimension 0, maxima by those of the highest."""
    generator = np.random.default_rng(1)
    for axes in [2] * 500 + [3] * 50:
        shape = generator.integers(1, {2: 13, 3: 6}[axes], axes)
        values = generator.integers(0, generator.integers(2, 40), shape).astype(float)
        persistence = gudhi.CubicalComplex(vertices=values).persistence(homology_coeff_field=2, min_persistence=0)
        for dimension, pairs in ((0, minimum_pairs(values)), (axes - 1, maximum_pairs(values))):
            intervals = [sorted(pair) for degree, pair in persistence if degree == dimension]
            ours = [sorted((pair.birth, pair.death)) for pair in pairs]
            assert sorted(x for x in ours if x[0] < x[1]) == sorted(x for x in intervals if x[0] < x[1])
