"""Large models: set where they are, directions drawn when needed, weights read from files; the bits of small ones."""

from __future__ import annotations

import gc
import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from live_bytes import LiveBytes
from pooled import CPU
from safetensors.torch import save_file
from small_models import make_job
from torch import nn

import landscape
from landscape import JobError, NotFoundError, Problem, run
from landscape.core.plan import Plan
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.weights import MovingWeights, StagedWeights
from landscape.job.directions.random import DrawnTensors, random_direction
from landscape.model.checkpoint_import import import_checkpoints
from landscape.model.parameters import describe_parameters, match_state, state_of
from landscape.model.weight_files import load_weights, read_about
from landscape.problem.large_models import read_tokens, repeated_blocks, without_weights
from landscape.problem.mesh import takes_mesh


class Shapes(nn.Module):
    """Tensors of many shapes, whose ends lie anywhere in a vector of a processor."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.ModuleList([nn.Linear(37, 11), nn.Linear(11, 1), nn.Linear(1, 300)])
            self.conv, self.transposed = nn.Conv2d(3, 5, 3), nn.ConvTranspose2d(4, 6, 3, groups=2)
            self.norm, self.scalar = nn.LayerNorm(13), nn.Parameter(torch.randn(()))


def set_to(model: nn.Module, origin, directions, point) -> dict[str, torch.Tensor]:
    model = model.requires_grad_(False)
    MovingWeights(model, origin, directions, {}).set_point(point)
    return state_of(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 16])
def test_every_way_to_set_weights_gives_the_same_bits(dtype, axes, piece, monkeypatch):
    monkeypatch.setattr("landscape.evaluation.weights.PIECE", piece)
    model = Shapes().to(dtype)
    origin, infos = state_of(model), describe_parameters(model)
    drawn = [random_direction(origin, infos, seed, ignore=()) for seed in range(axes)]
    point = [0.37, -0.21, 0.11][:axes]
    flat = set_to(Shapes().to(dtype), origin, [dict(direction) for direction in drawn], point)
    monkeypatch.setattr("landscape.evaluation.weights.LARGE", 0)
    held = set_to(Shapes().to(dtype), origin, [dict(direction) for direction in drawn], point)
    staged = set_to(Shapes().to(dtype), origin, drawn, point)
    for name in origin:
        moves = [c * direction[name].double() for c, direction in zip(point, drawn, strict=True)]
        exact = sum(moves, start=origin[name].double())
        torch.testing.assert_close(flat[name].double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
        assert torch.equal(flat[name], held[name]), name
        assert torch.equal(flat[name], staged[name]), name


def test_any_layout_in_memory_is_set():
    model = Shapes()
    model.conv.weight.data = model.conv.weight.data.contiguous(memory_format=torch.channels_last)
    origin, infos = state_of(model), describe_parameters(model)
    direction = random_direction(origin, infos, 1)
    targets = dict(model.requires_grad_(False).named_parameters())
    weights = StagedWeights(targets, list(targets), origin, [direction], lambda name, tensor: None, (), "host")
    weights.set_point([0.5])
    expected = torch.add(origin["conv.weight"], direction["conv.weight"], alpha=0.5)
    assert torch.equal(model.conv.weight, expected)
    assert not model.conv.weight.is_contiguous()
    (start, move) = weights.parts(model.conv.weight)
    assert torch.equal(torch.add(start, move, alpha=0.5), expected)
    stacked = weights.stacked([[0.5], [0.0]])
    assert torch.equal(stacked["conv.weight"][0], expected)
    assert torch.equal(stacked["conv.weight"][1], origin["conv.weight"])


def test_asking_whether_a_tensor_moves_draws_nothing(monkeypatch):
    model = Shapes()
    direction = random_direction(state_of(model), describe_parameters(model), 1)
    monkeypatch.setattr(DrawnTensors, "__getitem__", lambda self, name: pytest.fail(name))
    assert "conv.weight" in direction
    assert "conv.bias" not in direction
    assert len(direction) == len(list(direction))


# -- weights in files ------------------------------------------------------------------------------------------------


INDEX = "model.safetensors.index.json"


class Reader(nn.Module):
    """A small language model with tied weights, a persistent buffer, and one that no file holds."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(50, 32, dtype=dtype), nn.Linear(32, 32, dtype=dtype)
        self.norm, self.head = nn.LayerNorm(32, dtype=dtype), nn.Linear(32, 50, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(1.5, dtype=dtype))
        self.register_buffer("ramp", torch.arange(32, dtype=dtype) / 32, persistent=False)

    def forward(self, tokens):
        states = self.embed(tokens)
        return self.head(self.norm(torch.relu(self.body(states)) * self.scale + self.ramp + states))


def reader() -> Reader:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Reader()


def tokens() -> torch.Tensor:
    return torch.randint(0, 50, (11, 7), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """The weights as Hugging Face writes them: two shards and an index, the tied tensor once."""
    folder = tmp_path_factory.mktemp("shards")
    state = state_of(reader())
    parts = {"model-00001-of-00002.safetensors": list(state)[:2], "model-00002-of-00002.safetensors": list(state)[2:]}
    for file, names in parts.items():
        save_file({name: state[name] for name in names}, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, names in parts.items() for name in names}}
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def on_file(shards) -> Problem:
    with without_weights():
        model = Reader()
    return replace(Problem.causal_lm(model, tokens()), weights=shards)


def test_a_model_without_weights_takes_no_memory_and_keeps_its_ties():
    with without_weights():
        model, large = Reader(), nn.Linear(1 << 14, 1 << 14)
    assert large.weight.is_meta
    assert large.bias.is_meta
    assert model.head.weight is model.embed.weight
    assert [name for name, buffer in model.named_buffers() if buffer.is_meta] == []
    assert not nn.Linear(2, 2).weight.is_meta


@pytest.mark.parametrize("precision", ["bfloat16", "float32", "float64"])
def test_a_landscape_of_weights_in_a_file_has_the_bits_of_one_in_memory(tmp_path, shards, precision, monkeypatch):
    def surface(name: str, problem):
        spec = {"name": "a", "size": [4, 3], "range": [-1, 1]}
        return run(make_job(tmp_path / name, problem, [spec], num_samples=11, precision=precision))["a"]

    memory = surface("memory", lambda: Problem.causal_lm(reader(), tokens()))
    file = surface("file", lambda: on_file(shards))
    monkeypatch.setattr("landscape.job.directions.computed.HELD_BYTES", 0)
    drawn = surface("drawn", lambda: on_file(shards))
    for other in (file, drawn):
        assert other.loss.tobytes() == memory.loss.tobytes()
        assert other.attributes["own_model"]["state"] == "agrees"
        assert other.attributes["identity"]["origin"] == memory.attributes["identity"]["origin"]


@pytest.mark.parametrize("change", ["in place", "replaced", "removed"])
def test_a_file_that_is_written_to_while_it_is_read_ends_the_job(tmp_path, monkeypatch, change):
    monkeypatch.setattr("landscape.model.parameters.LARGE", 0)
    file = tmp_path / "weights.safetensors"
    save_file({name: tensor.clone() for name, tensor in state_of(reader()).items()}, file)
    calls = []

    def problem() -> Problem:
        made = Problem.causal_lm(without_weights_of_reader(), tokens(), weights=file)

        def observe(model, batch):
            calls.append(1)
            if len(calls) == 20:
                if change == "in place":
                    with file.open("r+b") as opened:
                        opened.seek(file.stat().st_size - 1)
                        opened.write(b"\x01")
                else:
                    other = tmp_path / "other"
                    other.write_bytes(file.read_bytes())
                    other.replace(file)
                if change == "removed":
                    file.unlink()
            return made.observe(model, batch)

        return replace(made, observe=observe)

    spec = {"name": "a", "size": [7, 5], "range": [-1, 1]}
    with pytest.raises(JobError, match=r"weights.safetensors' were written to, replaced or removed while"):
        run(make_job(tmp_path / "run", problem, [spec], num_samples=11, precision="bfloat16", engine="eager"))


def without_weights_of_reader() -> Reader:
    with without_weights():
        return Reader()


def test_a_folder_of_shards_is_an_origin_and_a_target(tmp_path, shards):
    spec = {"name": "line", "directions": [{"kind": "towards", "target": str(shards)}], "size": 3, "range": [0, 1]}
    other = reader()
    other.body.weight.data.mul_(0.5)
    surface = run(make_job(tmp_path, lambda: Problem.causal_lm(other, tokens()), [spec], num_samples=11))["line"]
    own = Problem.causal_lm(reader().float(), tokens())
    with torch.no_grad():
        found = own.observe(own.model, tokens())
    mean = float((found["loss"] * found["weight"]).sum() / found["weight"].sum())
    assert surface.loss[-1] == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize(
    "content, message",
    [
        ({}, "must hold one file of weights, or shards with their index .* not none"),
        ({"a.safetensors": b"", "b.safetensors": b""}, "not several: a.safetensors, b.safetensors"),
        ({".metadata": b"", "__0_0.distcp": b""}, "is a distributed checkpoint of torch, whose index is a pickle"),
        ({INDEX: b"{}"}, "is no index of shards"),
        ({INDEX: b'{"weight_map": {"a": "gone.safetensors"}}'}, "'gone.safetensors', which is not in its folder"),
        ({INDEX: b'{"weight_map": {"a": "../up.safetensors"}}'}, "up.safetensors', which is not in its folder"),
        ({INDEX: b'{"weight_map": {}}'}, "names 'nothing'"),
    ],
)  # fmt: skip
def test_a_folder_that_is_no_model_is_refused_in_one_line(tmp_path, content, message):
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(JobError, match=message) as caught:
        load_weights(tmp_path)
    assert "\n" not in str(caught.value)


def test_what_no_file_holds_is_refused(tmp_path, shards):
    with torch.device("meta"):
        model = Reader()
    problem = Problem(model, tokens(), lambda model, batch: {"loss": model(batch)[:, 0, 0]}, weights=shards)
    job = make_job(tmp_path, lambda: problem, [{"name": "a", "size": 3}], num_samples=11)
    with pytest.raises(JobError, match=r"'ramp' holds no numbers .*; nor does a file hold it"):
        run(job)


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("in_file", [True, False])
def test_a_large_model_is_in_memory_once_beside_its_origin(dtype, in_file, tmp_path, monkeypatch):
    monkeypatch.setattr("landscape.evaluation.weights.PIECE", 1 << 10)
    monkeypatch.setattr("landscape.model.parameters.LARGE", 1 << 20)
    monkeypatch.setattr("landscape.evaluation.weights.LARGE", 1 << 20)
    whole = nn.Sequential(nn.Linear(512, 1024, bias=False), nn.Linear(1024, 512, bias=False)).to(dtype)
    save_file(state_of(whole), tmp_path / "w.safetensors")
    with without_weights():
        model = nn.Sequential(nn.Linear(512, 1024, bias=False), nn.Linear(1024, 512, bias=False)).to(dtype)
    if not in_file:
        model = whole
    origin = match_state(model, load_weights(tmp_path / "w.safetensors"), "w") if in_file else state_of(model)
    axes = [random_direction(origin, describe_parameters(model), seed) for seed in (1, 2)]
    size = sum(tensor.nbytes for tensor in origin.values())
    plan = Plan(2, 1, "cpu", "bfloat16" if dtype is torch.bfloat16 else "float32", bfloat16_weights=True)
    gc.collect()

    def observe(model, batch):
        return {"loss": model(batch).float().square().sum(1)}

    with LiveBytes([*origin.values(), *model.parameters()]) as live:
        evaluator = Evaluator(model, torch.ones(2, 512), observe, plan, CPU, origin, axes)
        values = evaluator.evaluate(np.array(list(itertools.product([-0.5, 0.5], repeat=2))))
    assert math.isfinite(values.mean["loss"].sum())
    assert live.now / size < 1.05
    assert live.peak / size < 1.1


# -- checkpoints of the trainer of transformers ----------------------------------------------------------------------


def test_folders_of_checkpoints_are_imported_by_their_steps(tmp_path):
    for number, step in enumerate((500, 1000, 1500)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        model = reader()
        model.body.weight.data.add_(number)
        save_file(state_of(model), folder / "model.safetensors")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "epoch": step / 1000}))
    folders = sorted(tmp_path.glob("checkpoint-*"), reverse=True)
    trajectory = import_checkpoints(folders, tmp_path / "run")
    assert (trajectory.unit, trajectory.numbers) == ("step", (500, 1000, 1500))
    assert torch.equal(trajectory.snapshots[2].load()["body.weight"], reader().body.weight + 2)
    assert read_about(tmp_path / "checkpoint-1500") == {"global_step": 1500, "epoch": 1.5}


# -- what a reviewer found -------------------------------------------------------------------------------------------


def test_an_index_of_shards_that_are_not_there_hides_no_safetensors(tmp_path):
    save_file(state_of(reader()), tmp_path / "model.safetensors")
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"embed.weight": "pytorch_model-1.bin"}}')
    assert set(load_weights(tmp_path)) == set(state_of(reader()))


def test_prefixes_are_those_of_all_shards_together(tmp_path):
    parts = {"a.safetensors": ["module.a.weight"], "b.safetensors": ["head.weight", "module.b.weight"]}
    for file, names in parts.items():
        save_file({name: torch.ones(1) for name in names}, tmp_path / file)
    index = {"weight_map": {name: file for file, names in parts.items() for name in names}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert set(load_weights(tmp_path)) == {"module.a.weight", "head.weight", "module.b.weight"}


def test_a_file_backed_problem_serves_in_three_lines(shards):
    surface = landscape.plane(on_file(shards), size=3, progress=False)
    memory = landscape.plane(Problem.causal_lm(reader(), tokens()), size=3, progress=False)
    assert surface.loss.tobytes() == memory.loss.tobytes()


def test_a_callback_with_a_mesh_of_its_own_keeps_its_default():
    assert not takes_mesh(lambda mesh=100: None)
    assert takes_mesh(lambda mesh: None)


def test_the_blocks_of_a_network_do_not_lie_in_one_another():
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    model = nn.Module()
    model.layers = nn.ModuleList([Mixture(), nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])])
    assert [type(block).__name__ for block in repeated_blocks(model)] == ["Mixture", "Linear", "Linear"]


@pytest.mark.parametrize("packed", [True, False])
def test_texts_are_read_by_lines_of_json_and_no_other_breaks(tmp_path, packed):
    ids = np.arange(40, dtype=np.int32).reshape(4, 10)
    np.save(tmp_path / "ids.npy", ids)
    found = read_tokens(tmp_path / "ids.npy", None, 8, 16, packed=packed)
    if packed:
        assert found.flatten().tolist() == list(range(40))
    else:
        assert [row.tolist() for row in found] == ids[:, :8].tolist()
    for place, message in (("no.txt", "does not exist"), ("ids.npy", "length: must be at most 4")):
        with pytest.raises((JobError, NotFoundError), match=message):
            read_tokens(tmp_path / place, None, 8, 4, packed=packed)
    (tmp_path / "text.jsonl").write_text('{"text": "a\u2028b"}\n', encoding="utf-8")
    with pytest.raises(JobError, match=r"a text needs the tokenizer\.json"):
        read_tokens(tmp_path / "text.jsonl", None, 8, 16, packed=packed)
