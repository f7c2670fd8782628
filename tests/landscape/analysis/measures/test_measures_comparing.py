"""Comparisons of measures: their intervals, what they refuse, and what they say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from landscape.analysis.measures import document
from landscape.analysis.measures.comparison import (
    BETWEEN_WEIGHTS,
    compare,
    of_errors,
    resampled,
    resampled_apart,
    targets_of,
    welch,
)
from landscape.analysis.measures.document import Entry, MeasureRow
from landscape.core.errors import JobError, NotFoundError
from landscape.views.prepare.tables import comparison_lines

LINES, SAMPLES = 16, 64
SETTINGS = {"samples": "abc", "num_samples": SAMPLES, "precision": "float32", "batch_norm": "eval", "batch_size": 8,
            "distances": [0.25, 0.5], "rho": {"sam": 0.05}, "architecture": "net"}  # fmt: skip


def tables(b: np.ndarray, e: np.ndarray, shift: float, own: np.ndarray) -> np.ndarray:
    """Rises [lines, distances, samples] of a shared part of lines and samples, and a part of the weights' own."""
    one = 1.0 + b[:, None] + e[None] + shift + own[None]
    return np.stack([0.0625 * one, 0.25 * one], 1).astype(np.float32)


def put(
    run: Path, rises: np.ndarray, number: int = 1, keep: bool = True, more: dict[str, np.ndarray] | None = None,
    sample_set: str = "", **changes: Any,
) -> str:  # fmt: skip
    """Measures on disk, with the losses of samples, or with what else is kept."""
    losses = rises[0, 0].astype(np.float32)
    means = rises.astype(np.float64).mean(2)
    rows = {
        "loss": MeasureRow(float(losses.mean()), 0.1),
        "rise 0.25": MeasureRow(float(means[:, 0].mean()), 0.1, 0.0, 1.0, LINES),
        "rise 0.5": MeasureRow(float(means[:, 1].mean()), 0.1, 0.0, 1.0, LINES),
        "radius": MeasureRow(1.0, None, 0.9, 1.1, LINES),
        "lambda max": MeasureRow(5.0 + float(means.mean()), 0.5),
        "trace": MeasureRow(10.0, None, 9.0, 11.0, 16),
        "1/sigma^2": MeasureRow(None, note="none"),
    }
    radii = (1 + means[:, 0]).tolist()
    entry = Entry(
        f"epoch {number}", f"digest {run} {number}", rows, number, "epoch", {}, radii, means.tolist(),
        sample_set=sample_set,
    )  # fmt: skip
    samples = {"loss": losses, "rises": rises, "weights": np.ones(SAMPLES, np.float32)}
    document.add(str(run), SETTINGS | changes, entry, (samples if keep else {}) | (more or {}))
    return str(run)


@pytest.fixture
def parts() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    return generator.normal(0, 0.5, LINES), generator.normal(0, 0.5, SAMPLES)


def two_runs(tmp_path: Path, parts: tuple[np.ndarray, np.ndarray], shift: float, **changes: Any) -> tuple[str, str]:
    noise = np.random.default_rng(2).normal(0, 0.05, SAMPLES)
    a = put(tmp_path / "a", tables(*parts, 0.0, np.zeros(SAMPLES)))
    return a, put(tmp_path / "b", tables(*parts, shift, noise - noise.mean()), **changes)


def test_a_paired_difference_is_seen_through_the_noise_that_both_share(tmp_path, parts):
    a, b = two_runs(tmp_path, parts, 0.1)
    found = compare(targets_of(a), targets_of(f"{b}:epoch-1"))
    assert found.paired
    assert found.says == BETWEEN_WEIGHTS
    row = found.rows["rise 0.5"]
    assert row.verdict == "the second is larger"
    assert row.difference == pytest.approx(0.025, rel=1e-4)
    assert row.high - row.low < 0.02  # of one alone it is about 0.13
    assert found.rows["radius"].how == "over 16 lines, paired"
    assert found.rows["1/sigma^2"].verdict == "not judged"
    assert found.rows["lambda max"].verdict == "no difference shown"
    assert found.rows["trace"].low < 0 < found.rows["trace"].high
    assert compare(targets_of(a), targets_of(b)).document() == found.document()


def test_no_difference_is_shown_where_there_is_none(tmp_path, parts):
    a, b = two_runs(tmp_path, parts, 0.0)
    found = compare(targets_of(a), targets_of(b))
    assert {row.verdict for name, row in found.rows.items() if name != "1/sigma^2"} == {"no difference shown"}
    same = compare(targets_of(a), targets_of(a))
    assert (same.rows["rise 0.5"].low, same.rows["rise 0.5"].high) == (0.0, 0.0)


def test_curvature_is_paired_over_the_samples_and_over_the_probes(tmp_path, parts):
    generator, runs = np.random.default_rng(5), []
    shared, probes = generator.normal(5, 4, SAMPLES), generator.normal(10, 4, 16)
    for name, shift in (("a", 0.0), ("b", 0.5)):
        own = {
            "lambda max": shared + shift + generator.normal(0, 0.1, SAMPLES),
            "trace probes": probes + 2 * shift + generator.normal(0, 0.1, 16),
        }
        runs.append(put(tmp_path / name, tables(*parts, shift, np.zeros(SAMPLES)), more=own))
    found = compare(*map(targets_of, runs))
    eigenvalue, trace = found.rows["lambda max"], found.rows["trace"]
    assert eigenvalue.how == "over samples, paired"
    assert eigenvalue.low < 0.5 < eigenvalue.high < eigenvalue.low + 0.15
    assert trace.how == "over 16 probes, paired; the samples are held fixed"
    assert trace.low < 1.0 < trace.high < trace.low + 0.3
    unpaired = put(tmp_path / "c", tables(*parts, 0.5, np.zeros(SAMPLES)), more=own, architecture="other")
    assert compare(targets_of(runs[0]), targets_of(unpaired)).rows["trace"].how == "from the error of each, unpaired"


def test_the_same_samples_in_another_order_are_paired_by_their_numbers(tmp_path, parts):
    numbers, turned = np.arange(SAMPLES), np.random.default_rng(3).permutation(SAMPLES)
    noise = np.random.default_rng(2).normal(0, 0.05, SAMPLES)
    one, other = (tables(*parts, shift, own) for shift, own in ((0.0, np.zeros(SAMPLES)), (0.1, noise - noise.mean())))
    in_order, in_another = {"sample_index": numbers}, {"sample_index": numbers[turned]}
    anew: dict[str, Any] = {"sample_set": "all", "samples": "x"}
    runs = {
        "a": put(tmp_path / "a", one, more=in_order, sample_set="all"),
        "same": put(tmp_path / "same", other, more=in_order, sample_set="all"),
        "turned": put(tmp_path / "turned", other[..., turned], more=in_another, **anew),
        "unknown": put(tmp_path / "unknown", other[..., turned], **anew),
        "batches": put(tmp_path / "batches", other, batch_norm="batch", **anew),
    }
    same, found, unknown = (
        compare(*map(targets_of, (runs["a"], runs[name]))) for name in ("same", "turned", "unknown")
    )
    row, expected = found.rows["rise 0.5"], same.rows["rise 0.5"]
    assert row.how == expected.how == "over lines and samples, paired"
    assert (row.low, row.high) == (pytest.approx(expected.low, rel=1e-5), pytest.approx(expected.high, rel=1e-5))
    assert unknown.rows["rise 0.5"].how == "over 16 lines, paired"
    with pytest.raises(JobError, match="the samples are different ones"):
        compare(*map(targets_of, (put(tmp_path / "c", one, sample_set="all", batch_norm="batch"), runs["batches"])))


def test_lines_of_other_networks_are_not_paired(tmp_path, parts):
    a, b = two_runs(tmp_path, parts, 0.1, architecture="other")
    found = compare(targets_of(a), targets_of(b))
    assert not found.paired
    row = found.rows["rise 0.5"]
    assert row.high - row.low > 0.05
    assert "as the networks differ" in row.how


def test_where_samples_have_no_loss_of_their_own_lines_alone_are_compared(tmp_path, parts):
    runs = [put(tmp_path / str(shift), tables(*parts, shift, np.zeros(SAMPLES)), keep=False) for shift in (0.0, 0.1)]
    row = compare(*map(targets_of, runs)).rows["rise 0.5"]
    assert row.how == "over 16 lines, paired"
    assert (row.low, row.high) == pytest.approx((0.025, 0.025), rel=1e-3)


def test_what_is_not_comparable_is_refused_with_the_list_why(tmp_path, parts):
    a, b = two_runs(tmp_path, parts, 0.1, num_samples=32, samples="other", precision="float64", rho={"sam": 0.1})
    with pytest.raises(
        JobError, match="are not comparable: num_samples 64 and 32; precision 'float32' and 'float64'; ρ"
    ):
        compare(targets_of(a), targets_of(b))
    other = put(tmp_path / "c", tables(*parts, 0.0, np.zeros(SAMPLES)), samples="other")
    with pytest.raises(JobError, match="the samples are different ones; measure both with the same settings"):
        compare(targets_of(a), targets_of(other))
    with pytest.raises(JobError, match="at least 3 runs, not 2 and 1"):
        compare(targets_of(f"{a},{a}"), targets_of(a))


def test_three_runs_of_each_are_compared_by_their_spread(tmp_path, parts):
    for side, shift in (("a", 0.0), ("b", 1.0)):
        for k, own in enumerate((-0.1, 0.0, 0.1)):
            put(tmp_path / f"{side}{k}", tables(*parts, shift + own, np.zeros(SAMPLES)))
    sides = [",".join(str(tmp_path / f"{side}{k}") for k in range(3)) for side in "ab"]
    found = compare(targets_of(sides[0]), targets_of(sides[1]))
    row = found.rows["rise 0.5"]
    margin = 2.776445 * 0.25 * math.sqrt(2 * 0.01 / 3)
    assert (row.low, row.high) == pytest.approx((0.25 - margin, 0.25 + margin), rel=1e-3)
    assert "3 and 3 runs show it" in found.says
    put(tmp_path / "b2", tables(*parts, 1.0, np.zeros(SAMPLES)), 2)
    once = ",".join(str(tmp_path / f"b{k}") for k in range(2))
    for others in (f"{once},{tmp_path / 'b0'}", f"{once},{tmp_path / 'b2'}:1,{tmp_path / 'b2'}:2"):
        with pytest.raises(JobError, match=r"each run must be another training, but .* are not; name each once"):
            compare(targets_of(sides[0]), targets_of(others))


def test_weights_are_named_as_commands_name_them(tmp_path, parts):
    run = put(tmp_path / "a", tables(*parts, 0.0, np.zeros(SAMPLES)), 2)
    put(tmp_path / "a", tables(*parts, 0.0, np.zeros(SAMPLES)), 10)
    for text, number in (("", 10), (":last", 10), (":2", 2), (":epoch-2", 2), (":epoch 2", 2)):
        assert targets_of(run + text)[0].entry.number == number
    with pytest.raises(JobError, match=r"'epoch-3' was not measured; name one of epoch 2, epoch 10, as .*:ORIGIN"):
        targets_of(f"{run}:epoch-3")
    with pytest.raises(JobError, match="'step-2' was not measured"):
        targets_of(f"{run}:step-2")
    with pytest.raises(NotFoundError, match="holds no measures; make them by landscape measure"):
        targets_of(str(tmp_path))


@pytest.mark.parametrize(("architecture", "how"), [("net", "over 3 lines, paired"), ("other", "over lines, unpaired")])
def test_radii_are_compared_by_the_geometric_means_that_tables_show(tmp_path, architecture, how):
    runs = []
    for k, (of, radii) in enumerate([("net", [1.0, 4.0, 16.0]), (architecture, [2.0, 8.0, 20.0])]):
        row = MeasureRow(math.prod(radii) ** (1 / 3), None, 0.9, 1.1, 3)
        runs.append(str(tmp_path / str(k)))
        document.add(runs[-1], SETTINGS | {"architecture": of}, Entry("a", "d", {"radius": row}, radii=radii), {})
    row = compare(*map(targets_of, runs)).rows["radius"]
    assert row.how == how
    assert row.difference == pytest.approx(320 ** (1 / 3) - 4)  # of arithmetic means it would be 3
    assert row.low < 0 < row.difference < row.high
    if architecture == "net":
        ratios = np.log([2.0, 2.0, 1.25])
        margin = 4.302653 * ratios.std(ddof=1) / math.sqrt(3)
        ends = ratios.mean() + np.array([-margin, margin])
        assert (row.low, row.high) == pytest.approx(tuple(4 * np.expm1(ends)))


def test_radii_to_other_rises_are_not_judged(tmp_path):
    def measured(name: str, loss: float, radii: list[float]) -> str:
        rows = {"loss": MeasureRow(loss), "radius": MeasureRow(math.prod(radii) ** (1 / 3), None, 0.1, 9.0, 3)}
        document.add(str(tmp_path / name), SETTINGS, Entry("a", f"d {name}", rows, radii=radii), {})
        return str(tmp_path / name)

    trained = [measured(f"trained{k}", 0.001 * k, [0.2, 0.21, 0.2 + 0.01 * k]) for k in range(3)]
    less = [measured(f"less{k}", 0.526 + 0.1 * k, [0.5, 0.51, 0.5 + 0.01 * k]) for k in range(3)]
    row = compare(targets_of(less[0]), targets_of(trained[0])).rows["radius"]
    assert (row.low, row.high, row.verdict, row.how) == (None, None, "not judged", "to rises of 0.526 and 0.1")
    row = compare(targets_of(",".join(less)), targets_of(",".join(trained))).rows["radius"]
    assert (row.low, row.high, row.verdict, row.how) == (None, None, "not judged", "to rises of 0.526 to 0.726 and 0.1")
    # Below 0.1 all are measured to 0.1, and by 2 % no radius changes much.
    assert compare(targets_of(trained[0]), targets_of(trained[2])).rows["radius"].how == "over 3 lines, paired"
    near = measured("near", 0.53, [0.5, 0.52, 0.5])
    assert compare(targets_of(less[0]), targets_of(near)).rows["radius"].how == "over 3 lines, paired"


def test_what_one_side_alone_has_is_named_with_the_command_that_gives_it_to_the_other(tmp_path):
    one, other = str(tmp_path / "one run"), str(tmp_path / "other")
    less = {"loss": MeasureRow(1.0, 0.1)}
    document.add(one, SETTINGS, Entry("epoch 3", "a", less, 3, "epoch"), {})
    document.add(other, SETTINGS, Entry("problem", "b", less | {"keskar 0.001": MeasureRow(2.0, 0.1)}), {})
    found = compare(targets_of(one), targets_of(other)).document()
    assert list(found["rows"]) == ["loss"]
    command = f"landscape measure '{one}' --origins epoch-3 --all"
    assert found["lacking"] == [{"of": f"{one} epoch 3", "rows": ("keskar 0.001",), "command": command}]
    told = f"not compared, as {one} epoch 3 has none: Keskar's sharpness, ε = 0.001; measure them by {command}"
    assert comparison_lines(found)[-2] == told
    assert compare(targets_of(one), targets_of(one)).lacking == ()


def test_the_bootstrap_over_lines_and_samples_has_the_error_of_its_parts():
    generator = np.random.default_rng(3)
    b, e = generator.normal(0, 1, (40, 1)), generator.normal(0, 2, (1, 100))
    found = resampled(b + e, np.ones(100))
    expected = math.sqrt(b.var() / 40 + e.var() / 100)
    assert found.stderr == pytest.approx(expected, rel=0.06)
    ends = (found.mean - 1.96 * expected, found.mean + 1.96 * expected)
    assert (found.low, found.high) == pytest.approx(ends, rel=0.15, abs=0.05)
    apart = resampled_apart(b[:20] + e, b[20:] + e, np.ones(100))
    assert apart.stderr == pytest.approx(math.sqrt(b[:20].var() / 20 + b[20:].var() / 20), rel=0.06)
    weights = np.repeat([1.0, 0.0], 50)
    assert resampled(b + e, weights).mean == pytest.approx(float((b + e[:, :50]).mean()))


def test_95_percent_of_the_intervals_of_a_difference_hold_it():
    generator, held = np.random.default_rng(4), 0
    for repeat in range(200):
        table = generator.normal(0.3, 0.2, (LINES, 1)) + generator.normal(0, 0.5, (1, SAMPLES))
        found = resampled(table, np.ones(SAMPLES), repeat, 300)
        held += found.low <= 0.3 <= found.high
    assert 182 <= held <= 196


def test_two_errors_and_two_sets_of_runs():
    same = of_errors(1.0, 0.0, 0.0, (3, 3))
    assert (same.low, same.high) == (1.0, 1.0)
    found = of_errors(0.0, 0.3, 0.4, (1000, 1000))
    assert found.high == pytest.approx(1.96 * 0.5, rel=2e-3)
    assert welch([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).mean == 0
    draws = [0.1, 0.4, 0.2], [3.0, 1.0, 8.0, 2.0]
    reference = stats.ttest_ind(draws[1], draws[0], equal_var=False).confidence_interval(0.95)
    assert (welch(*draws).low, welch(*draws).high) == pytest.approx(reference, rel=1e-9)


def test_the_interval_over_draws_is_taken_back_to_their_error_beside_that_over_samples(tmp_path, parts):
    """A half-width of t(15)·e has the error e, and both together are their root of squares."""
    runs = two_runs(tmp_path, parts, 0.1)
    for run, value, stderr, error in zip(runs, (10.0, 13.0), (0.3, None), (0.4, 1.2), strict=True):
        entry, half = document.read(run).entries["epoch 1"], 2.1314495 * error
        row = MeasureRow(value, stderr, value - half, value + half, 16)
        document.add(run, SETTINGS, replace(entry, rows=entry.rows | {"trace": row}), {})
    found = compare(*map(targets_of, runs)).rows["trace"]
    expected = of_errors(3.0, 0.5, 1.2, (15, 15))
    assert found.difference == 3.0
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_no_difference_is_claimed_from_a_bound(tmp_path, parts):
    runs = list(two_runs(tmp_path, parts, 0.1))
    broken = document.read(runs[1]).entries["epoch 1"]
    rows = broken.rows | {"radius": MeasureRow(None, note="the loss is not finite", below=0.05)}
    document.add(runs[1], SETTINGS, replace(broken, rows=rows, radii=[None] * LINES), {})
    found = compare(*map(targets_of, runs))
    row = found.rows["radius"]
    assert (row.first, row.second, row.difference, row.low) == (1.0, None, None, None)
    assert (row.verdict, row.how) == ("not judged", "of the second only a bound is known")
    assert row.document()["bounds"] == {"second": {"below": 0.05}}
    (line,) = [line for line in comparison_lines(found.document()) if "flatness radius" in line]
    assert line.split()[2:6] == ["1", "<", "0.05", "–"]
    others = [put(tmp_path / f"{k}", tables(*parts, 0.1 * k, np.zeros(SAMPLES)), samples="abc") for k in range(5)]
    over = compare([t for run in others[:3] for t in targets_of(run)],
                   [t for run in [runs[1], *others[3:]] for t in targets_of(run)])  # fmt: skip
    assert over.rows["radius"].verdict == "not judged"
    assert over.rows["radius"].how == "of some of the runs only a bound is known"


def test_lines_that_have_no_value_are_not_left_out_of_a_comparison(tmp_path, parts):
    a, b = two_runs(tmp_path, parts, 0.1)
    known = document.read(b).entries["epoch 1"]
    document.add(b, SETTINGS, replace(known, radii=[None, *known.radii[1:]]), {})
    row = compare(targets_of(a), targets_of(b)).rows["radius"]
    assert (row.verdict, row.how) == ("not judged", "some of the lines have no value")
