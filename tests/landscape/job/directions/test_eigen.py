"""Eigenvectors as axes: what they are, what is recorded of them, kept meanwhile, foreseen and refused."""

from __future__ import annotations

import errno
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from curved import dense_hessian, labelled, mlp
from small_models import Quadratic, make_job, observe_quadratic, quadratic_samples, raw_directions
from torch import nn

from landscape import EigenDirection, JobError, Problem, open_run, run
from landscape.compute.eigenpairs import KeptSteps, solver_of
from landscape.compute.executor import local_executors
from landscape.compute.planning import plan_job, plan_text
from landscape.compute.prepare import prepare
from landscape.core.errors import LandscapeError
from landscape.core.files import LocalFolder
from landscape.core.lock import run_lock
from landscape.core.text import plus_minus

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch.func itself
ENDS = [{"kind": "eigen", "rank": 1}, {"kind": "eigen", "rank": -1}]
CURVATURE = np.linspace(0.5, 2.0, 18)


def quadratic() -> Problem:
    return Problem(Quadratic(), quadratic_samples(23), observe_quadratic)


def plane(directions=ENDS, size=5, **fields):
    return {"name": "sharpest", "directions": directions, "size": size, **fields}


def job_of(folder: Path, problem, landscape=None, **fields):
    # The files of a store are those of its tiles, whose shape follows from how long a point took unless it is given.
    return make_job(folder, problem, [landscape or plane()], num_samples=17, batch_size=7, tile=(2,), **fields)


def files_of(folder: Path) -> dict[str, bytes]:
    """The arrays of the landscape, apart from documents, which hold times."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if "/c/" in name}


def network() -> Problem:
    return Problem.supervised(mlp(), labelled(), nn.CrossEntropyLoss())


# -- what they are -------------------------------------------------------------------------------------------------


def test_the_axes_are_unit_eigenvectors_and_rise_as_their_eigenvalues_say(tmp_path):
    surface = run(job_of(tmp_path, network, precision="float64"))["sharpest"]
    matrix = dense_hessian(mlp(), labelled()).detach().numpy()
    values, vectors = np.linalg.eigh(matrix)
    for axis, stored, place in zip(surface.axes, raw_directions(tmp_path, "sharpest"), (-1, 0), strict=True):
        vector = np.concatenate([stored[name].reshape(-1) for name, _ in mlp().named_parameters()])
        recorded = axis.attributes
        assert np.linalg.norm(vector) == pytest.approx(1, rel=1e-6)
        assert recorded["eigenvalue"] == pytest.approx(values[place], rel=0.01)
        assert abs(vector @ vectors[:, place]) > 0.99
        assert recorded["eigenvalue_residual"] <= 0.01 * abs(recorded["eigenvalue"])
        assert recorded["eigenvalue_stderr"] > 0
        assert recorded["second_derivatives"] == "autograd"
        size = plus_minus(recorded["eigenvalue"], recorded["eigenvalue_stderr"])
        assert f"(λ = {size}, 2 s.e." in recorded["label"]
    assert np.all(np.abs(np.array(surface.attributes["cosine"]) - np.eye(2)) < 1e-5)
    assert not (tmp_path / "curvature").exists()


def test_a_label_says_where_the_residual_is_not_smaller_than_the_eigenvalue(tmp_path):
    # ½Σaθ² with a from 0 to 1, mostly small: three steps tell nothing of the smallest a.
    curvature = torch.linspace(0, 1, 300) ** 4
    model = nn.ParameterDict({"weights": nn.Parameter(torch.ones(300))})

    def problem() -> Problem:
        return Problem(
            model, torch.zeros(8, 1), lambda m, x: {"loss": (curvature * m["weights"] ** 2).sum().expand(len(x)) / 2}
        )

    axes = [{"kind": "eigen", "rank": rank, "steps": 3} for rank in (1, -1)]
    surface = run(make_job(tmp_path, problem, [{"name": "few", "directions": axes, "size": 3}], num_samples=8))["few"]
    first, last = (axis.attributes for axis in surface.axes)
    assert first["eigenvalue_residual"] < first["eigenvalue"]
    assert "resolved" not in first["label"]
    assert last["eigenvalue_residual"] >= abs(last["eigenvalue"])
    assert f"not resolved: residual {last['eigenvalue_residual']:.2g})" in last["label"]


@pytest.mark.parametrize("ranks", [(1, 2), (2, -1), (1, 2, -1)])
def test_as_many_parameters_as_ranks_suffice_and_each_rank_has_a_vector_of_its_own(tmp_path, ranks):
    width = 3 if len({2, -1} & set(ranks)) == 2 else 2
    curvature = torch.tensor([2.0, 0.5, 1.0][:width])
    model = nn.Linear(width, 1, bias=False)

    def observe(model, batch):
        return {"loss": 0.5 * (curvature * model.weight[0] ** 2).sum() + 0.0 * batch[:, 0]}

    data = torch.ones(9, width)
    axes = [{"kind": "eigen", "rank": rank, "steps": 3} for rank in ranks]
    surface = run(make_job(tmp_path, lambda: Problem(model, data, observe), [plane(axes, size=3)]))["sharpest"]
    ascending = np.sort(curvature.numpy())
    expected = [ascending[-rank] if rank > 0 else ascending[-rank - 1] for rank in ranks]
    assert [axis.attributes["eigenvalue"] for axis in surface.axes] == pytest.approx(expected, rel=1e-5)
    assert np.array(surface.attributes["cosine"]) == pytest.approx(np.eye(len(ranks)), abs=1e-5)


def test_the_grids_second_difference_is_the_eigenvalue(tmp_path):
    line = plane([{"kind": "eigen", "rank": 1}], size=3, range=[-0.02, 0.02])
    surface = run(job_of(tmp_path, network, line, precision="float64"))["sharpest"]
    before, at, after = surface.loss
    assert (after - 2 * at + before) / 0.02**2 == pytest.approx(surface.axes[0].attributes["eigenvalue"], rel=0.02)


def test_the_default_range_is_where_the_parabola_has_risen_by_the_loss(tmp_path):
    surface = run(job_of(tmp_path, quadratic, plane([{"kind": "eigen"}])))["sharpest"]
    half = np.sqrt(2 * surface.loss[2] / 2.0)
    assert surface.alpha[[0, 2, 4]] == pytest.approx([-half, 0, half], rel=0.01)
    assert surface.loss[0] + surface.loss[4] == pytest.approx(4 * surface.loss[2], rel=0.02)


@pytest.mark.parametrize("scale, centre, half", [(1e-6, 0.0, math.sqrt(2 * 5 / 4)), (1.0, 1 - 1e-5, 0.002)])
def test_the_default_range_suits_a_loss_far_below_a_tenth(tmp_path, scale, centre, half):
    model = nn.ParameterDict({"weights": nn.Parameter(torch.ones(4))})  # of length 2

    def observe(model, batch):
        losses = torch.arange(1, 5) * (model["weights"] - centre).square() / 2
        return {"loss": scale * losses.sum().expand(len(batch))}

    job = job_of(tmp_path, lambda: Problem(model, torch.zeros(17, 1), observe), plane([{"kind": "eigen"}]))
    surface = run(job)["sharpest"]
    assert surface.loss[2] < 1e-5
    assert surface.alpha[[0, 4]] == pytest.approx([-half, half], rel=0.01)
    assert surface.loss[0] + surface.loss[4] > 3.9 * surface.loss[2]


def test_one_lanczos_run_serves_all_axes_and_a_finished_landscape_needs_none(tmp_path):
    job, calls = job_of(tmp_path, quadratic), []
    solve = solver_of(local_executors())

    def counting(prepared, ranks, steps, seed):
        calls.append(ranks)
        return solve(prepared, ranks, steps, seed)

    prepare(job, solver=counting)
    assert calls == [(-1, 1)]
    run(job)
    found = prepare(job, solver=counting).landscapes[0]
    assert calls == [(-1, 1)]
    recorded = open_run(tmp_path)["sharpest"]
    assert [axis.attributes["eigenvalue"] for axis in found.directions] == [
        axis.attributes["eigenvalue"] for axis in recorded.axes
    ]
    assert found.grid.coordinates[0].tolist() == recorded.alpha.tolist()


# -- what is kept --------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return Path(run(job_of(tmp_path_factory.mktemp("whole"), network)).path)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_computation_that_was_killed_goes_on_to_the_same_bytes(whole, tmp_path, monkeypatch, damaged):
    job, keep, numbers = job_of(tmp_path / "killed", network), KeptSteps.keep, []

    def keeping(self, number, step):
        keep(self, number, step)
        numbers.append(number)
        if number == 7:
            raise Killed

    monkeypatch.setattr(KeptSteps, "keep", keeping)
    with pytest.raises(Killed):
        run(job)
    steps = sorted((tmp_path / "killed" / "curvature" / "sharpest").rglob("step-*"))
    assert len(steps) == 8
    if damaged:
        steps[5].write_bytes(steps[5].read_bytes()[:-1] + b"x")
    numbers.clear()
    run_although_killed(job)
    assert numbers[0] == (5 if damaged else 8)
    assert files_of(tmp_path / "killed") == files_of(whole)
    assert not (tmp_path / "killed" / "curvature").exists()


def run_although_killed(job) -> None:
    try:
        run(job)
    except Killed:
        run(job)


def test_steps_of_a_problem_that_was_changed_are_not_gone_on_from(tmp_path, monkeypatch, caplog):
    smoothing, keep = [0.0], KeptSteps.keep

    def smoothed() -> Problem:
        return Problem.supervised(mlp(), labelled(), nn.CrossEntropyLoss(label_smoothing=smoothing[0]))

    def keeping(self, number, step):
        keep(self, number, step)
        if number == 4:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(KeptSteps, "keep", keeping)
        with pytest.raises(Killed):
            run(job_of(tmp_path / "changed", smoothed))
    smoothing[0] = 0.5
    run(job_of(tmp_path / "changed", smoothed))
    run(job_of(tmp_path / "new", smoothed))
    assert files_of(tmp_path / "changed") == files_of(tmp_path / "new")
    assert "when steps towards eigenvectors were kept: they start again" in caplog.text


# -- what is foreseen and refused ----------------------------------------------------------------------------------


def test_of_two_processes_with_one_job_the_second_is_refused_before_it_computes_steps(tmp_path):
    asked = job_of(tmp_path, network)
    place = f"{asked.run_path}/curvature/sharpest"
    with run_lock(place), pytest.raises(LandscapeError, match="is being written by process"):
        prepare(asked, solver=solver_of(local_executors()))
    assert list((tmp_path / "curvature").rglob("step-*")) == []


def test_steps_that_a_full_disk_takes_not_are_told_in_one_line(tmp_path, monkeypatch):
    def full(self, path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalFolder, "write", full)
    with pytest.raises(LandscapeError, match="cannot be written: No space left on device; what was committed is"):
        KeptSteps(str(tmp_path), "plane", "key", 2).keep_loss(1.0)


@pytest.mark.parametrize("number", [errno.ENOTEMPTY, errno.ENOENT])
def test_steps_that_another_process_adds_to_or_removes_are_left_to_it(number, tmp_path, monkeypatch):
    def beside(self, path):
        raise OSError(number, "another process")

    kept = KeptSteps(str(tmp_path), "plane", "key", 2)
    kept.keep_loss(1.0)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(LocalFolder, "delete_below", beside)
        kept.remove()
    kept.remove()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_in_one_line(tmp_path, monkeypatch):
    def full(self, number, step):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(KeptSteps, "keep", full)
    with pytest.raises(LandscapeError, match="cannot be written: No space left on device; what was committed is"):
        run(job_of(tmp_path, quadratic))


def test_a_look_at_the_job_computes_nothing(tmp_path):
    (landscape,) = prepare(job_of(tmp_path, quadratic)).landscapes
    labels = [axis.record.label for axis in landscape.directions]
    assert labels[0] == "first eigenvector of the Hessian, computed when the job runs"
    assert not tmp_path.joinpath("curvature").exists()


def refusal(job) -> str:
    with pytest.raises(JobError) as error:
        run(job)
    return str(error.value)


def test_what_has_no_eigenvectors_is_refused_and_nothing_stays(tmp_path):
    model = nn.Linear(18, 1)
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))  # has no part in the length of the weights
    linear = Problem(model, quadratic_samples(23), lambda model, batch: {"loss": model(batch)[:, 0]})
    text = refusal(job_of(tmp_path / "flat", lambda: linear))
    assert text.startswith("directions: eigenvalue -1 of the Hessian at the origin is ")
    assert text.endswith("take another rank, origin or kind of direction")
    model.weight.data.zero_(), model.bias.data.zero_()
    still = Problem(model, quadratic_samples(23), lambda model, batch: {"loss": 1 + 0 * model(batch)[:, 0]})
    assert "is 0: along its vector the loss is flat, and rises by 1 nowhere; take" in refusal(
        job_of(tmp_path / "still", lambda: still)
    )
    text = refusal(job_of(tmp_path / "moving", network, batch_norm="recalibrate"))
    assert text.startswith("batch_norm: recalibrate computes the statistics anew")
    model.weight.data.fill_(1e30)
    squares = Problem(model, quadratic_samples(23), lambda model, batch: {"loss": model(batch)[:, 0] ** 2})
    text = refusal(job_of(tmp_path / "huge", lambda: squares))
    assert text.startswith("directions: the loss at the origin must be finite for eigenvectors")
    model.weight.data.zero_(), model.bias.data.zero_()
    roots = Problem(model, quadratic_samples(23), lambda model, batch: {"loss": (model(batch)[:, 0] ** 2).sqrt()})
    text = refusal(job_of(tmp_path / "kink", lambda: roots))
    assert text.startswith("directions: the Hessian at the origin must be finite for eigenvectors")
    constant = Problem(model, quadratic_samples(23), lambda model, batch: {"loss": model(batch).detach()[:, 0]})
    assert "the loss has no graph of gradients" in refusal(job_of(tmp_path / "constant", lambda: constant))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_bases_beyond_the_limit_are_refused_with_what_would_fit(tmp_path, monkeypatch):
    monkeypatch.setenv("LANDSCAPE_CURVATURE_BYTES", "1000")
    expected = (
        "steps: the vectors of the Lanczos method must take at most 1000 bytes, not 2736 (18 steps of 18 parameters); "
        "take steps: 5, or set LANDSCAPE_CURVATURE_BYTES=2736"
    )
    assert refusal(job_of(tmp_path, quadratic)) == expected
    with pytest.raises(JobError, match="Lanczos method must take at most"):
        prepare(job_of(tmp_path, quadratic))


def test_ranks_are_three_and_so_are_the_least_steps():
    assert EigenDirection().rank == 1
    with pytest.raises(JobError, match=r"steps: must be at least 3, not 2"):
        job_of(Path("unused"), quadratic, plane([{"kind": "eigen", "steps": 2}]))
    with pytest.raises(JobError, match=r"rank: must be 1, 2 or -1, not 3"):
        job_of(Path("unused"), quadratic, plane([{"kind": "eigen", "rank": 3}]))


def test_a_plan_shows_what_eigenvectors_cost(tmp_path):
    plan = plan_job(job_of(tmp_path, network), workers=1)
    (landscape,) = plan["landscapes"]
    assert landscape["curvature"] == {"products": 60, "evaluations": 420, "bytes": 8 * 212 * 61}
    text = plan_text(plan)
    assert "alpha: as far as its eigenvalue says, first eigenvector of the Hessian, computed when the job runs" in text
    assert "eigenvectors: at most 60 products with the Hessian, each about 7 points' time; 103 kB of memory" in text
    run(job_of(tmp_path, network))
    assert plan_job(job_of(tmp_path, network), workers=1)["landscapes"][0]["curvature"] is None
