"""Data as PyTorch Geometric, Hugging Face and Lightning give them, against plain loops as their users write them."""

from __future__ import annotations

import lightning
import numpy as np
import pytest
import torch
from datasets import Dataset as Table
from small_models import make_job
from torch import nn
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader as GraphLoader
from torch_geometric.loader import DynamicBatchSampler
from torch_geometric.nn import GCNConv, global_mean_pool
from transformers import BatchEncoding

import cluster
from landscape import Problem, open_run, run
from landscape.problem.batches import TensorSamples
from landscape.problem.collated import Collated, WholeBatches
from landscape.problem.randomness import look_for_randomness
from landscape.problem.selection import select_samples

pytestmark = pytest.mark.frameworks
COUNT, PLANE = 19, {"name": "plane", "size": 3, "directions": [{"kind": "random"}, {"kind": "random"}]}


# -- graphs ------------------------------------------------------------------------------------------------------


def graphs() -> list[Data]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for k in range(COUNT):
        nodes = 3 + k % 6
        edges = torch.randint(0, nodes, (2, 3 * nodes), generator=generator)
        made.append(Data(torch.randn(nodes, 4, generator=generator), edges, y=torch.tensor([k % 2])))
    return made


class GraphNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.head = GCNConv(4, 8), GCNConv(8, 8), nn.Linear(8, 2)

    def forward(self, data):
        hidden = self.first(data.x, data.edge_index).relu()
        hidden = self.second(hidden, data.edge_index).relu()
        return self.head(global_mean_pool(hidden, data.batch))


def observe_graphs(model, data):
    outputs = model(data)
    return {
        "loss": nn.functional.cross_entropy(outputs, data.y, reduction="none"),
        "accuracy": (outputs.argmax(1) == data.y).double(),
    }


def graph_problem(data=None) -> Problem:
    return Problem(GraphNetwork(), GraphLoader(graphs(), batch_size=4) if data is None else data, observe_graphs)


@torch.no_grad()
def own_loop() -> tuple[float, float]:
    """Loss and accuracy as a user of PyTorch Geometric computes them."""
    model, loss, correct = GraphNetwork().eval(), 0.0, 0
    for batch in GraphLoader(graphs(), batch_size=7):
        outputs = model(batch)
        loss += float(nn.functional.cross_entropy(outputs, batch.y, reduction="sum"))
        correct += int((outputs.argmax(1) == batch.y).sum())
    return loss / COUNT, correct / COUNT


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_graphs_have_the_loss_of_an_own_loop(batch_size, tmp_path):
    surface = run(make_job(tmp_path, graph_problem, [PLANE], num_samples=COUNT, batch_size=batch_size))["plane"]
    assert surface.origin_loss == pytest.approx(own_loop()[0], rel=1e-6)
    assert surface["accuracy"][1, 1] == pytest.approx(own_loop()[1], rel=1e-12)


@pytest.mark.parametrize("engine", ["eager+superposed", "eager+channels_last"])
def test_engines_on_graphs(engine, tmp_path):
    job = make_job(tmp_path, graph_problem, [PLANE], num_samples=COUNT, engine=engine)
    assert run(job)["plane"].origin_loss == pytest.approx(own_loop()[0], rel=1e-5)


def test_the_engine_is_chosen_for_graphs(tmp_path):
    job = make_job(tmp_path, graph_problem, [PLANE | {"size": 7}], num_samples=COUNT, engine="auto", batch_size=None)
    assert run(job)["plane"].origin_loss == pytest.approx(own_loop()[0], rel=1e-5)


def test_batches_of_graphs_are_taken_whole():
    loader = GraphLoader(graphs(), batch_size=4)
    for data in (list(loader), iter(loader), DataLoader(list(loader), batch_size=None, collate_fn=lambda batch: batch)):
        samples = select_samples(data, 9, 0, length=lambda batch: batch.num_graphs).samples
        assert isinstance(samples, WholeBatches)
        assert isinstance(samples.batch(0, 4), Batch)
        assert samples.length in (11, 12)


def test_a_batch_sampler_by_nodes_says_which_graphs_there_are():
    data = graphs()
    loader = GraphLoader(data, batch_sampler=DynamicBatchSampler(data, max_num=20, mode="node"))
    chosen = select_samples(loader, COUNT, 0)
    assert sorted(chosen.indices) == list(range(COUNT))
    assert chosen.samples.batch(0, 3).num_graphs == 3


def test_graphs_are_what_they_were_wherever_they_are_kept(tmp_path):
    loader = GraphLoader(graphs(), batch_size=4)
    kept, on_disk = (select_samples(loader, 12, 3, limit=limit).samples for limit in (1 << 30, 1))
    assert isinstance(kept, Collated)
    assert kept.digest() == on_disk.digest()
    one, other = kept.batch(4, 8), on_disk.batch(4, 8)
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.ptr, other.ptr)
    assert kept.not_finite() == {}
    assert look_for_randomness(loader, 12, 0).unchecked == ""


def test_workers_give_the_serial_bytes_of_graphs(tmp_path):
    def job(name):
        return make_job(tmp_path / name, graph_problem, [PLANE], num_samples=COUNT, tile=[2, 2])

    run(job("serial"))
    try:
        cluster.run(job("workers"), workers=1)
    finally:
        import ray

        ray.shutdown()
    one, other = (open_run(str(tmp_path / name))["plane"] for name in ("serial", "workers"))
    assert one.loss.tobytes() == other.loss.tobytes()


# -- tables ------------------------------------------------------------------------------------------------------


def table() -> Table:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(COUNT, 4, generator=generator).tolist()
    words = [list(range(1 + k % 5)) for k in range(COUNT)]
    return Table.from_dict({"x": inputs, "y": [k % 3 for k in range(COUNT)], "words": words})


def observe_table(model, batch):
    return {"loss": nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")}


def linear() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(4, 3)


def test_a_table_of_hugging_face_is_rows(tmp_path):
    rows = table().select_columns(["x", "y"]).with_format("torch")
    for data in (rows, DataLoader(rows, batch_size=5)):
        assert isinstance(select_samples(data, 9, 0).samples, TensorSamples)
        problem = Problem(linear(), data, observe_table)
        job = make_job(tmp_path / type(data).__name__, lambda problem=problem: problem, [PLANE], num_samples=COUNT)
        with torch.no_grad():
            expected = float(nn.functional.cross_entropy(linear()(rows[:]["x"]), rows[:]["y"]))
        assert run(job)["plane"].origin_loss == pytest.approx(expected, rel=1e-6)


def padded_words(items):
    """A batch of transformers, as its tokenisers return it."""
    words = nn.utils.rnn.pad_sequence([item["words"] for item in items], batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(item["words"]) for item in items], batch_first=True)
    return BatchEncoding({"input_ids": words, "attention_mask": mask})


def test_ragged_columns_are_padded_by_the_collate_function(tmp_path):
    def observe(model, batch):
        hidden = model(batch.input_ids)[..., 0] * batch.attention_mask
        return {"loss": hidden.sum(1).square()}

    def problem():
        torch.manual_seed(2)
        data = DataLoader(table().with_format("torch"), batch_size=5, collate_fn=padded_words)
        return Problem(nn.Embedding(5, 1), data, observe)

    surface = run(make_job(tmp_path, problem, [PLANE], num_samples=COUNT))["plane"]
    weights = problem().model.weight.detach().double()[:, 0].numpy()
    expected = np.mean([weights[words].sum() ** 2 for words in table()["words"]])
    assert surface.origin_loss == pytest.approx(expected, rel=1e-6)


def test_an_iterable_table_is_read_through_its_loader():
    stream = table().select_columns(["x", "y"]).to_iterable_dataset().with_format("torch")
    samples = select_samples(DataLoader(stream, batch_size=4), 9, 0).samples
    assert samples.rows["x"].shape == (9, 4)


# -- data modules ------------------------------------------------------------------------------------------------


class Module(lightning.LightningDataModule):
    def setup(self, stage):
        self.rows = table().select_columns(["x", "y"]).with_format("torch")

    def val_dataloader(self):
        return DataLoader(self.rows, batch_size=4)

    def test_dataloader(self):
        return GraphLoader(graphs(), batch_size=4)


def test_loaders_of_a_data_module(tmp_path):
    module = Module()
    module.setup("test")
    surface = run(make_job(tmp_path, lambda: graph_problem(module.test_dataloader()), [PLANE], num_samples=COUNT))[
        "plane"
    ]
    assert surface.origin_loss == pytest.approx(own_loop()[0], rel=1e-6)
    assert isinstance(select_samples(module.val_dataloader(), 9, 0).samples, TensorSamples)
    with pytest.raises(Exception, match="data: must be a loader of Module, such as its val_dataloader"):
        select_samples(module, 9, 0)


class Lightning(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = GraphNetwork()

    def forward(self, data):
        return self.network(data)


def test_a_lightning_module_is_a_model(tmp_path):
    problem = Problem(Lightning(), GraphLoader(graphs(), batch_size=4), observe_graphs)
    surface = run(make_job(tmp_path, lambda: problem, [PLANE], num_samples=COUNT))["plane"]
    assert surface.origin_loss == pytest.approx(own_loop()[0], rel=1e-6)
