"""Graphs, data modules, physics and policies beside loops in their own frameworks' idiom: means to 1e-6."""

from __future__ import annotations

import sys
from pathlib import Path

import lightning
import pytest
import torch
from blocks import blocks_of
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader as GraphLoader
from torch_geometric.nn import GraphConv, global_mean_pool
from torch_geometric.utils import erdos_renyi_graph

from landscape import Job, Problem, run

pytestmark = pytest.mark.frameworks

DOCS = Path(__file__).parents[2] / "docs"


def at_origin(folder, problem, count: int, **fields):
    """The surface of three points, of which the middle one is the origin."""
    landscapes = [{"name": "line", "directions": [{"kind": "random", "seed": 1}], "size": 3, "range": [-0.1, 0.1]}]
    fields = {"num_samples": count, "tile": 3} | fields
    return run(Job(run=str(folder), problem=problem, landscapes=landscapes, **fields))["line"]


# -- graphs ------------------------------------------------------------------------------------------------------------


class GraphNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.out = GraphConv(2, 8), nn.Linear(8, 3)

    def forward(self, graphs):
        states = self.first(graphs.x, graphs.edge_index).tanh()
        return self.out(global_mean_pool(states, graphs.batch))


def graphs(count: int = 50) -> list[Data]:
    torch.manual_seed(1)
    sizes = torch.randint(3, 12, (count,)).tolist()
    return [
        Data(torch.randn(size, 2), erdos_renyi_graph(size, 0.5), y=torch.tensor([k % 3]))
        for k, size in enumerate(sizes)
    ]


def graph_losses(model, batch):
    outputs = model(batch)
    loss = cross_entropy(outputs, batch.y, reduction="none")
    return {"loss": loss, "accuracy": (outputs.argmax(1) == batch.y).float()}


@pytest.mark.parametrize("batch_size", [1, 16, 64])
def test_graphs_have_the_mean_of_a_loop_over_their_own_loader(batch_size, tmp_path):
    problem = lambda: Problem(GraphNetwork(), GraphLoader(graphs(), batch_size=16), graph_losses)  # noqa: E731
    surface = at_origin(tmp_path, problem, 50, batch_size=batch_size)
    model, total, right = GraphNetwork().eval(), 0.0, 0
    with torch.no_grad():
        for batch in GraphLoader(graphs(), batch_size=10):
            outputs = model(batch)
            total += float(cross_entropy(outputs, batch.y)) * batch.num_graphs
            right += int((outputs.argmax(1) == batch.y).sum())
    assert surface.origin_loss == pytest.approx(total / 50, rel=1e-6)
    assert surface["accuracy"][1] == pytest.approx(right / 50, rel=1e-12)


def test_values_of_nodes_weigh_by_the_number_of_nodes(tmp_path):
    def losses(model, batch):
        values = (model.first(batch.x, batch.edge_index) - 1).square().mean(1)
        nodes = torch.bincount(batch.batch, minlength=batch.num_graphs)
        return {"loss": torch.zeros(batch.num_graphs).index_add(0, batch.batch, values) / nodes, "weight": nodes}

    problem = lambda: Problem(GraphNetwork(), GraphLoader(graphs(), batch_size=16), losses)  # noqa: E731
    surface = at_origin(tmp_path, problem, 50)
    model, everything = GraphNetwork().eval(), next(iter(GraphLoader(graphs(), batch_size=50)))
    with torch.no_grad():
        expected = (model.first(everything.x, everything.edge_index) - 1).square().mean()
    assert surface.origin_loss == pytest.approx(float(expected), rel=1e-6)


# -- Lightning ---------------------------------------------------------------------------------------------------------


class Digits(lightning.LightningDataModule):
    """Vectors of three classes, in loaders as a module of Lightning has them."""

    def setup(self, stage: str | None = None) -> None:
        torch.manual_seed(3)
        self.rows = TensorDataset(torch.randn(70, 6), torch.randint(0, 3, (70,)))

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.rows, batch_size=32)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, inputs):
        return self.layers(inputs)

    def validation_step(self, batch, _):
        self.log("val_loss", cross_entropy(self(batch[0]), batch[1]))


def lightning_problem() -> Problem:
    digits = Digits()
    digits.setup()
    return Problem.supervised(Classifier(), digits.val_dataloader())


def test_a_module_of_lightning_has_the_loss_that_its_trainer_validates(tmp_path):
    surface = at_origin(tmp_path / "run", lightning_problem, 70)
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    trainer = lightning.Trainer(accelerator="cpu", default_root_dir=str(tmp_path), **quiet)
    (metrics,) = trainer.validate(Classifier(), datamodule=Digits(), verbose=False)
    assert surface.origin_loss == pytest.approx(metrics["val_loss"], rel=1e-6)


# -- the examples of the documentation ---------------------------------------------------------------------------------


def example(page: str, folder: Path, monkeypatch, steps: int) -> Path:
    """The files of a page in a folder, with its model trained for a few steps."""
    import runpy

    for block in blocks_of(DOCS / "howto" / f"{page}.md"):
        if block.file:
            (folder / block.file).write_text(block.code)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    (training,) = folder.glob("train_*.py")
    monkeypatch.setattr(sys, "argv", [training.name, str(steps)])
    runpy.run_path(str(training))
    return folder


def test_the_burgers_network_has_the_loss_of_a_plain_loop(tmp_path, monkeypatch):
    example("physics", tmp_path, monkeypatch, 5)
    import burgers

    surface = at_origin(tmp_path / "run", burgers.problem, 2000)
    model, whole = burgers.network(), 0.0
    model.load_state_dict(torch.load("burgers.pt"))
    for name, (points, function, weight) in burgers.terms().items():
        mean = float(function(model, points.requires_grad_()).detach().double().mean())
        assert surface[name][1] == pytest.approx(mean, rel=1e-6)
        whole += weight * mean
    assert surface.origin_loss == pytest.approx(whole, rel=1e-6)


def test_the_forecast_has_the_loss_of_a_plain_loop(tmp_path, monkeypatch):
    example("forecasts", tmp_path, monkeypatch, 5)
    import forecasts

    past, following = forecasts.windows()
    surface = at_origin(tmp_path / "run", forecasts.problem, len(past))
    model = forecasts.Forecast().eval()
    model.load_state_dict(torch.load("forecasts.pt"))
    with torch.no_grad():
        expected = float(mse_loss(model(past).double(), following.double()))
    assert surface.origin_loss == pytest.approx(expected, rel=1e-6)
    assert surface["rmse"][1] == pytest.approx(expected**0.5, rel=1e-6)


def test_the_policy_has_the_loss_of_a_plain_loop(tmp_path, monkeypatch):
    example("policies", tmp_path, monkeypatch, 1)
    import policies

    stored = torch.load("policies.pt")
    surface = at_origin(tmp_path / "run", policies.problem, 64)
    model, total, steps = policies.network(), 0.0, 0
    model.load_state_dict(stored["model"])
    with torch.no_grad():
        for each in stored["episodes"]:
            logs = model(each["states"]).log_softmax(1)[torch.arange(len(each["actions"])), each["actions"]]
            total -= float((logs * (each["returns"] - 20) / 20).double().sum())
            steps += len(each["actions"])
    assert surface.origin_loss == pytest.approx(total / steps, rel=1e-6)
