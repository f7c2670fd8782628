"""`landscape.plane` of models of peft, transformers and PyTorch Geometric, as they stand in memory."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GraphConv, global_mean_pool
from transformers import GPT2Config, GPT2LMHeadModel

import landscape

pytestmark = pytest.mark.frameworks

QUIET = {"progress": False, "size": 3}


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=256)).eval()


def tokens() -> torch.Tensor:
    return torch.randint(0, 256, (8, 12), generator=torch.Generator().manual_seed(0))


def test_a_language_model_and_the_weights_of_a_point():
    model = gpt2()
    surface = landscape.plane(model, tokens(), "causal_lm", **QUIET)
    assert surface.loss[1, 1] == pytest.approx(float(model(tokens(), labels=tokens()).loss.detach()), rel=1e-5)
    moved = gpt2()
    moved.load_state_dict(surface.weights(1.0, -1.0))
    assert surface.loss[0, 2] == pytest.approx(float(moved(tokens(), labels=tokens()).loss.detach()), rel=1e-5)
    assert moved.lm_head.weight.data_ptr() == moved.transformer.wte.weight.data_ptr()


def test_lora_moves_its_adapters_alone():
    base = gpt2()
    settings = LoraConfig(r=4, target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True)
    model = get_peft_model(base, settings).eval()
    surface = landscape.line(model, tokens(), "causal_lm", **QUIET)
    assert surface.loss[1] == pytest.approx(float(model(tokens(), labels=tokens()).loss.detach()), rel=1e-5)
    before, after = model.state_dict(), surface.weights(1.0)
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert moved
    assert all("lora_" in name for name in moved)


class Graphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GraphConv(1, 8), nn.Linear(8, 2)

    def forward(self, batch) -> torch.Tensor:
        return self.last(global_mean_pool(self.first(batch.x, batch.edge_index).relu(), batch.batch))


def loss_of_graphs(model: nn.Module, batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch), batch.y, reduction="none")


def test_graphs_of_a_loader():
    torch.manual_seed(0)
    graphs = [
        Data(x=torch.rand(size, 1), edge_index=torch.randint(0, size, (2, 3 * size)), y=torch.tensor([size % 2]))
        for size in range(3, 15)
    ]
    model = Graphs()
    surface = landscape.plane(model, DataLoader(graphs, batch_size=5), loss_of_graphs, **QUIET)
    with torch.no_grad():
        losses = torch.cat([loss_of_graphs(model, batch) for batch in DataLoader(graphs, batch_size=5)])
    assert surface.loss[1, 1] == pytest.approx(float(losses.mean()), rel=1e-5)
