"""The bend of a curve: the ring valley against scipy's optimum, the chain rule, the schedule, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.integrate import quad
from scipy.optimize import minimize
from small_models import make_job

from landscape import Job, Problem
from landscape.analysis.connect import curve
from landscape.analysis.connect.connect import read_losses, read_progress, remove_progress, write_made, write_progress
from landscape.analysis.connect.curve import Bend, BendProgress, BendTraining, EpochHooks, train_bend, train_by
from landscape.compute.executor import EvaluationSetting, LocalExecutor
from landscape.compute.prepare import prepare
from landscape.core.errors import Interrupted, JobError, LandscapeError
from landscape.model.parameters import state_of
from landscape.problem.batches import TensorSamples
from landscape.surface.barriers import curve_shares

ENDS = {"place": torch.tensor([-1.0, 0.0])}, {"place": torch.tensor([1.0, 0.0])}


class Ring(torch.nn.Module):
    """A network of two weights whose loss is (x² + y² − 1)², a valley along the unit circle."""

    def __init__(self) -> None:
        super().__init__()
        self.place = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))


def observe(model, batch):
    return {"loss": (model.place.square().sum() - 1).square().expand(len(batch))}


def ring(count: int = 64) -> TensorSamples:
    return TensorSamples(torch.zeros(count))


@pytest.mark.parametrize(("kind", "epochs", "near"), [("bezier", 12, 1e-3), ("polyline", 6, 2e-2)])
def test_the_bend_of_the_ring_valley_is_scipys(kind, epochs, near):
    def on_curve(t, bend):
        x, y = curve_shares(kind, np.array([t]))[0] @ np.array([[-1, 0], [1, 0], [0.0, bend]])
        return (x * x + y * y - 1) ** 2

    def mean_loss(bend):
        return quad(on_curve, 0, 1, args=(bend[0],), points=[0.5], epsabs=1e-12)[0]

    best = minimize(mean_loss, [1.0], options={"gtol": 1e-9})
    training = BendTraining(epochs, learning_rate=0.005, momentum=0.0, batch_size=1)
    start = {"place": torch.tensor([0.0, 0.1]), "seen": torch.tensor(0)}  # on the line itself the gradient is zero
    states = [{**end, "seen": torch.tensor(0)} for end in ENDS]
    found = train_bend(Ring(), ring(400), observe, *states, kind, training, start=start)
    assert found.bend["place"].tolist() == pytest.approx([0.0, best.x[0]], abs=near)
    highest = max(on_curve(t, found.bend["place"][1].item()) for t in np.linspace(0, 1, 101))
    assert highest < {"bezier": 0.1, "polyline": 0.3}[kind] * on_curve(0.5, 0.0)  # where the linear barrier is
    assert found.losses[-1] == pytest.approx(best.fun, rel=0.05)


def states() -> tuple[dict, dict]:
    torch.manual_seed(0)
    both = []
    for _ in range(2):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        model[1].running_var.uniform_(0.5, 2)
        both.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    return both[0], both[1]


def model_and_samples() -> tuple[torch.nn.Module, TensorSamples]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    return model, TensorSamples((torch.randn(40, 3), torch.randint(0, 2, (40,))))


def cross_entropy(model, batch):
    return {"loss": torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")}


def test_one_seed_gives_one_bend_whose_curve_ends_in_the_bytes_of_its_ends():
    first, second = states()
    model, samples = model_and_samples()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    one, same, other = (
        train_bend(model, samples, cross_entropy, first, second, training=BendTraining(2, 0.1, seed=seed))
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(one.bend[name], same.bend[name]) for name in one.bend)
    assert not torch.equal(one.bend["0.weight"], other.bend["0.weight"])
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    for t, end in ((0.0, first), (1.0, second)):
        point = one.at(t)
        assert list(point) == list(end)
        assert all(point[name].numpy().tobytes() == tensor.numpy().tobytes() for name, tensor in end.items())
    quarter = one.at(0.25)
    exact = 0.5625 * first["0.weight"] + 0.0625 * second["0.weight"] + 0.375 * one.bend["0.weight"]
    assert torch.allclose(quarter["0.weight"], exact)
    assert quarter["1.num_batches_tracked"].dtype == torch.int64


def test_a_single_step_is_the_chain_rule_with_decay_of_the_curves_weights():
    """From the middle, one batch, no momentum: θ − lr·2t(1−t)·(∇L(φ(t)) + decay·φ(t)) for the t that was drawn."""
    first, second = ({"place": torch.tensor(place)} for place in ([0.5, 1.0], [2.0, -1.0]))
    model = Ring()
    del model.seen
    training = BendTraining(epochs=1, learning_rate=0.1, momentum=0.0, weight_decay=0.3, batch_size=9, seed=3)
    found = train_bend(model, ring(9), observe, first, second, training=training).bend["place"].double()
    generator = torch.Generator().manual_seed(3)
    torch.randperm(9, generator=generator)
    torch.randperm(1, generator=generator)
    below = torch.rand(1, generator=generator, dtype=torch.float64).item() / 2
    t = below if torch.rand(1, generator=generator).item() < 0.5 else 1 - below
    middle = (first["place"] + second["place"]).double() / 2
    shares = curve_shares("bezier", np.array([t]))[0]
    place = shares[0] * first["place"].double() + shares[1] * second["place"].double() + shares[2] * middle
    gradient = 4 * (place.square().sum() - 1) * place
    assert torch.allclose(found, middle - 0.1 * 2 * t * (1 - t) * (gradient + 0.3 * place), atol=1e-6)


class Dropping(torch.nn.Module):
    """A network that draws random numbers, and writes to itself, while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        layers = [torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2)]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


class Killed(Exception):
    """Stands for the end of the process."""


def test_a_training_that_ended_early_goes_on_from_its_last_epoch_to_the_same_bytes(monkeypatch, tmp_path):
    """Also where a question is a few steps, and whoever answers them."""
    monkeypatch.setattr(curve, "STRETCH", 3)
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    prepared = prepare(
        Job(
            run=tmp_path, num_samples=40, batch_size=8, engine="eager", landscapes=[{"name": "a", "size": 3}],
            threads=torch.get_num_threads(),
            problem=lambda: Problem.supervised(
                Dropping(), (inputs, (inputs[:, 0] > 0).long()), torch.nn.CrossEntropyLoss()
            ),
        )
    )  # fmt: skip
    (landscape,) = prepared.landscapes
    first = state_of(Dropping())
    second = {name: tensor + 0.1 if tensor.is_floating_point() else tensor for name, tensor in first.items()}
    training = BendTraining(4, 0.1, batch_size=8, seed=2)
    file, made_of = tmp_path / "bend.safetensors", {"seed": 2}

    def train(along: EpochHooks) -> Bend:
        executor = LocalExecutor(prepared, landscape)
        setting = EvaluationSetting(first, (), landscape.plan)
        return train_by(executor, setting, prepared.samples, first, second, "bezier", training, along)

    def keep(progress: BendProgress) -> None:
        write_progress(file, progress, made_of)
        if len(progress.losses) == 2:
            raise Killed

    whole = train(EpochHooks())
    with pytest.raises(Killed):
        train(EpochHooks(keep=keep))
    assert read_progress(file, {"seed": 3}) is None
    known = read_progress(file, made_of)
    assert len(known.losses) == 2
    resumed = train(EpochHooks(known))
    here = train_bend(
        prepared.problem.model, prepared.samples, prepared.problem.observe, first, second, training=training
    )
    for other in (resumed, here):
        assert other.losses == whole.losses
        assert all(torch.equal(other.bend[name], tensor) for name, tensor in whole.bend.items())
    remove_progress(file)
    assert read_progress(file, made_of) is None


def test_what_cannot_be_trained_is_refused():
    first, second = states()
    model, samples = model_and_samples()
    with pytest.raises(JobError, match="learning_rate: the loss on the curve is not finite"):
        train_bend(model, samples, cross_entropy, first, second, training=BendTraining(3, 1e30))
    with pytest.raises(JobError, match="observe: the loss has no graph"):
        train_bend(model, samples, lambda m, b: {"loss": cross_entropy(m, b)["loss"].detach()}, first, second)
    normed = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    for batch_size in (1, 8):  # torch refuses the variance of one
        with pytest.raises(JobError, match=rf"batch_size: must leave no batch of one .*, not {batch_size} of 9"):
            train_bend(
                normed, TensorSamples(torch.rand(9, 2)), lambda m, b: {"loss": m(b).sum(1)}, state_of(normed),
                state_of(normed), training=BendTraining(1, batch_size=batch_size),
            )  # fmt: skip
    with pytest.raises(Interrupted):
        train_bend(model, samples, cross_entropy, first, second, stop=lambda: True)
    with pytest.raises(JobError, match="no parameter requires gradients"):
        train_bend(model.requires_grad_(False), samples, cross_entropy, first, second)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "epochs: must be at least 1, not 0"),
        ({"learning_rate": 0.0}, "learning_rate: must be above 0"),
        ({"momentum": 1.0}, "momentum: must be from 0 to below 1"),
        ({"weight_decay": float("nan")}, "weight_decay: must be at least 0, and finite, not nan"),
    ],
)
def test_impossible_settings_are_refused(settings, words):
    with pytest.raises(JobError, match=words):
        BendTraining(**settings)


def test_tied_weights_bend_under_all_their_names():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
    model[2].weight = model[0].weight
    generator = torch.Generator().manual_seed(0)
    ends = []
    for _ in range(2):
        drawn = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in model.state_dict().items()}
        ends.append(drawn | {"2.weight": drawn["0.weight"]})
    problem = Problem.supervised(model, (torch.randn(8, 3, generator=generator), torch.arange(8) % 3))
    found = train_bend(
        model, TensorSamples(problem.data), problem.observe, *ends, training=BendTraining(epochs=1, batch_size=4)
    )
    middle = found.at(0.5)
    assert torch.equal(middle["2.weight"], middle["0.weight"])
    assert not torch.allclose(found.bend["0.weight"], (ends[0]["0.weight"] + ends[1]["0.weight"]) / 2)


def test_files_of_equal_weights_have_equal_bytes(tmp_path):
    weights = {"b": torch.randn(3, 2), "a": torch.tensor([1, 2]), "c": torch.tensor(1.0, dtype=torch.float64)}
    for number in range(12):  # safetensors writes two entries of metadata in either order
        write_made(tmp_path / f"{number}.safetensors", weights, {"é": number // 12}, [0.5, 0.25])
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1
    found = load_file(tmp_path / "0.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    assert read_losses(tmp_path / "0.safetensors") == (0.5, 0.25)
    with pytest.raises(LandscapeError, match=r"x\.safetensors' cannot be written: No such file or directory"):
        write_made(tmp_path / "none" / "x.safetensors", weights, {})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_networks_of_another_precision_are_joined_in_that_of_the_job(tmp_path, dtype):
    samples = torch.randn(16, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    model = torch.nn.Linear(3, 2).to(dtype)
    problem = Problem.supervised(model, (samples, torch.arange(16) % 2))
    prepared = prepare(make_job(tmp_path, lambda: problem, [{"name": "a", "size": 3}], num_samples=16))
    (landscape,) = prepared.landscapes
    first = landscape.origin
    second = {name: -tensor for name, tensor in first.items()}
    executor, setting = LocalExecutor(prepared, landscape), EvaluationSetting(first, (), landscape.plan)
    bend = train_by(executor, setting, prepared.samples, first, second, "bezier", BendTraining(epochs=1), EpochHooks())
    assert {tensor.dtype for tensor in bend.bend.values()} == {torch.float32}
    assert np.isfinite(bend.losses).all()
