"""A landscape whose loss is the same at all points: said once, with the reason, and shown wherever it is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_models import make_job, quadratic_problem
from torch import Tensor, nn

from cluster.driver.landscape_states import LandscapeState
from cluster.runtime.status import run_status, status_text
from landscape import Job, Problem, import_surface, open_run, run
from landscape.compute.prepare import prepare
from landscape.compute.tasks import create_landscape
from landscape.store.examination import has_constant_loss
from landscape.store.landscape import LandscapeStore
from landscape.views.prepare.figure import prepare_figure
from landscape.views.prepare.words import caption

SAID = "the loss is the same, to the last bit, at all points: "


class Adapter(nn.Module):
    """A layer that is frozen, and an adapter B·A beside it, with B = 0 as adapters begin; and a bias without effect."""

    def __init__(self, b: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(3, 2).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.full((2, 2), b))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, batch: Tensor) -> Tensor:
        return self.base(batch) + batch @ self.a.T @ self.b.T


def observe(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    return {"loss": model(batch).square().mean(1)}


def job_of(folder: Path, b: float = 0.0, **direction: object) -> Job:
    def problem() -> Problem:
        return Problem(Adapter(b), torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), observe)

    landscapes = [{"name": "plane", "size": 4, "directions": [{"kind": "random", **direction}, {"kind": "random"}]}]
    return make_job(folder / "run", problem, landscapes, num_samples=8, tile=2)


def test_an_adapter_that_is_not_trained_is_named_once_and_wherever_the_landscape_is_read(tmp_path, caplog):
    job = job_of(tmp_path)
    surface = run(job)["plane"]
    assert len(set(surface.loss.flat)) == 1
    [said] = [message for message in caplog.messages if SAID in message]
    assert said.startswith("landscape 'plane': ")
    assert "the directions leave b at zero" in said
    assert "take trained weights, or `normalise: none`" in said
    assert said.endswith("; `landscape inspect RUN plane --at=0,0` says whether a layer is dead")
    run(job)
    assert sum(SAID in message for message in caplog.messages) == 1, "nothing was computed the second time"
    status = run_status(job.run_path)
    assert status["landscapes"][0]["constant"] is True
    assert f"the same loss {surface.loss[0, 0]:.4g} at all points" in status_text(status)
    [told] = [
        part for part in caption(surface, "loss") if part.startswith("The same loss at all points shown: nothing ")
    ]
    assert told.endswith("; `landscape inspect RUN plane --at=0,0` says whether a layer is dead")
    assert prepare_figure(surface).scale.levels_note == "no contour line, as all values are the same"
    assert status_text(status).endswith(f"why the same loss: landscape inspect {job.run_path} plane --at=0,0")


def test_parameters_without_effect_are_another_reason(tmp_path, caplog):
    direction = {name: torch.full_like(tensor, name == "unused") for name, tensor in Adapter().state_dict().items()}
    save_file(direction, tmp_path / "d.safetensors")
    job = job_of(tmp_path, b=0.5)
    line = {"name": "line", "directions": [{"kind": "file", "path": str(tmp_path / "d.safetensors")}], "size": 3}
    run(job.replace(landscapes=[line]))
    [said] = [message for message in caplog.messages if SAID in message]
    assert "nothing that the directions move changes it; check that observe uses the model" in said
    assert "no layer computes with a copy of its weights (such as LoRA's, merged on `eval()`)" in said


@pytest.mark.parametrize("options", [{"b": 0.5}, {"normalise": "none"}])
def test_nothing_is_said_of_a_landscape_that_rises(tmp_path, caplog, options):
    job = job_of(tmp_path, **options)
    surface = run(job)["plane"]
    assert not any(SAID in message for message in caplog.messages)
    status = run_status(job.run_path)
    assert status["landscapes"][0]["constant"] is False
    assert "lowest loss" in status_text(status)
    assert not any("same loss" in part for part in caption(surface, "loss"))


def test_a_driver_says_it_when_the_last_task_is_settled(tmp_path, caplog):
    """And not before: of the tiles that are there all are the same, too."""
    job = job_of(tmp_path)
    prepared = prepare(job)
    state = LandscapeState(prepared.landscapes[0], create_landscape(prepared, prepared.landscapes[0], (2, 2)))
    store = LandscapeStore.open(job.run_path, "plane")
    for task in state.tasks:
        assert not any(SAID in message for message in caplog.messages)
        values = {name: np.full(4, 0.25) for name in ("loss", "loss_stderr", "loss_rise_stderr")}
        values["moments"] = np.zeros((4, store.arrays["moments"].shape[-1]))
        state.store.write_tiles([(store.tile(task.tile), values)])
        state.settle()
    assert sum(SAID in message for message in caplog.messages) == 1


@pytest.mark.parametrize(
    "values, constant",
    [([0.5], False), ([0.5, 0.5], True), ([0.5, 0.5 + 1e-15], False), ([np.nan, 0.5], False), ([0.5, np.nan], False)],
)
def test_one_point_is_no_constant_and_points_that_are_not_finite_are_none(tmp_path, values, constant):
    np.savez(tmp_path / "a.npz", x=np.arange(float(len(values))), loss=np.array(values))
    import_surface(tmp_path / "a.npz", tmp_path / "run")
    assert has_constant_loss(LandscapeStore.open(str(tmp_path / "run"), "a").arrays) is constant
    told = [part for part in caption(open_run(tmp_path / "run")["a"], "loss") if "same loss" in part]
    assert bool(told) is constant
    assert not any("inspect" in part for part in told), "no network of it is known"
    assert "inspect" not in status_text(run_status(str(tmp_path / "run")))


def test_a_landscape_that_is_begun_is_not_constant_yet(tmp_path):
    prepared = prepare(make_job(tmp_path, quadratic_problem, [{"name": "a", "size": 4}], num_samples=8, tile=2))
    store = create_landscape(prepared, prepared.landscapes[0], (2, 2)).store
    assert not has_constant_loss(store.arrays)
