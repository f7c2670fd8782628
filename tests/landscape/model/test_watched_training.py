"""A training watched by rules: what fires, once and in the right layer, and that watching changes no bit."""

from __future__ import annotations

import gc
import logging
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from landscape import JobError, TrajectoryCollector
from landscape.model.history import read_history
from landscape.model.layer_watch import NetworkWatcher
from landscape.recipes import digits
from landscape.training.collector import TrainingWatch


class Net(nn.Module):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.fc1, self.act, self.fc2 = nn.Linear(6, 16), activation, nn.Linear(16, 3)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


def train(run: Path, *, steps=4, rate=0.05, plant=None, activation=None, only=None, factor=1.0, **options) -> Net:
    """A few steps of SGD, whose gradients are dropped before the collector is told."""
    model = Net(activation or nn.ReLU())
    if plant is not None:
        with torch.no_grad():
            plant(model)
    parameters = list(model.parameters() if only is None else only(model).parameters())
    optimizer = torch.optim.SGD(parameters, rate)
    collector = TrajectoryCollector(run, model, optimizer, intervals=[[0, 1, 2]], **options)
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(32, 6, generator=generator), torch.randint(0, 3, (32,), generator=generator)
    for _ in range(steps):
        loss = factor * nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(inputs * 1e9)  # an evaluation between steps
        collector.step(loss)
    return model


def found(run: Path) -> list[tuple[int, str, str]]:
    return [(line["step"], each["layer"], each["rule"]) for line in read_history(run) for each in line.get("watch", [])]


FAULTS = {
    "initial weights of zeros": ({"plant": lambda net: net.fc2.weight.zero_()}, "fc2.weight", "weight_all_zero"),
    "initial weights out of scale": ({"plant": lambda net: net.fc1.weight.mul_(1e4)}, "fc1.weight", "weight_too_large"),
    "dead ReLU": ({"plant": lambda net: net.fc1.bias.fill_(-50)}, "act", "relu_zeros"),
    "saturated": ({"plant": lambda net: net.fc1.bias.fill_(50), "activation": nn.Tanh()}, "act", "tanh_saturated"),
    "vanishing gradient": ({"factor": 1e-9}, "fc1.weight", "gradient_vanishing"),
    "gradient out of scale": ({"factor": 1e5, "rate": 1e-9}, "fc1.weight", "gradient_too_large"),
    "NaN gradient": ({"factor": float("nan"), "rate": 0.0}, "fc1.weight", "gradient_exploding"),
    "NaN weights": ({"factor": float("nan")}, "fc1.weight", "weight_overflow"),
    "NaN outputs": ({"factor": float("nan"), "steps": 2}, "fc1", "tensor_overflow"),
    "unchanged": ({"only": lambda net: net.fc2}, "fc1.weight", "weight_not_changed"),
    "changes too little": ({"rate": 1e-3}, "fc1.weight", "weight_change_too_small"),
    "changes too much": ({"rate": 9.0}, "fc1.weight", "weight_change_too_large"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_training_is_in_the_history_and_warned_of_once(name, tmp_path, caplog):
    options, layer, rule = FAULTS[name]
    with caplog.at_level(logging.WARNING, logger="landscape"):
        train(tmp_path, watch="all", watch_every=1, **options)
    assert (layer, rule) in {(where, what) for _, where, what in found(tmp_path)}
    first, others = (
        f"{layer}: {rule} ",
        re.compile(rf"\b{rule} of [^;]*\b{re.escape(layer)}\b|\b{rule} of [^;]* and \d"),
    )
    told = [record for record in caplog.messages if first in record or others.search(record)]
    assert len(told) == 1
    assert told[0].startswith("watch: step ")


def test_what_one_cause_makes_fire_at_a_step_is_one_line_with_the_layer_where_it_began(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="landscape"):
        train(tmp_path, watch="all", watch_every=1, steps=2, plant=lambda net: net.fc1.weight.fill_(float("nan")))
    of_step = [message for message in caplog.messages if message.startswith("watch: step 1: ")]
    assert len(of_step) == 1
    assert of_step[0].startswith("watch: step 1: fc1: tensor_overflow (NaN or Inf: share not finite 1 > 0), and ")
    recorded = [(where, what) for step, where, what in found(tmp_path) if step == 1]
    assert ("fc1", "tensor_overflow") in recorded
    assert ("fc2", "tensor_overflow") in recorded, "the history has all"


@pytest.mark.long
def test_a_healthy_training_is_left_in_peace_and_its_bits_are_those_without_watching(tmp_path, caplog):
    plain = train(tmp_path / "plain", steps=6)
    with caplog.at_level(logging.WARNING, logger="landscape"):
        watched = train(tmp_path / "watched", steps=6, watch="all", watch_every=2)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert not [message for message in caplog.messages if "watch" in message]
    assert read_history(tmp_path / "plain") == read_history(tmp_path / "watched")
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is NetworkWatcher]  # whose hooks hold them


def test_only_the_steps_that_are_due_are_watched(tmp_path):
    train(tmp_path, steps=7, watch=["gradient_vanishing"], watch_every=5, factor=1e-9)
    assert sorted({step for step, _, _ in found(tmp_path)}) == [1, 2, 5]  # the first, a listed one, a multiple


def test_watched_steps_leave_nothing_behind():
    """A training has millions of steps: what one was watched by is not held until its end."""

    def watchers() -> int:
        gc.collect()
        return sum(type(each) is NetworkWatcher for each in gc.get_objects())

    model = Net(nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watch, before = TrainingWatch(model, model, optimizer, {"tensor_overflow": 0.0}, every=1), watchers()
    for step in range(1, 6):
        watch.prepare(step)
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
        watch.judge(step)
    assert watchers() == before


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_those_without_the_scale_of_the_loss(tmp_path, fused):
    model, scaler = Net(nn.ReLU()), torch.amp.GradScaler("cpu", init_scale=3e38, backoff_factor=0.6)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, fused=fused)
    collector = TrajectoryCollector(tmp_path, model, optimizer, intervals=[[0, 1, 2]], watch="all", watch_every=1)
    skipped = 0
    for _ in range(4):
        loss, scale = 2 * nn.functional.cross_entropy(model(torch.eye(6)), torch.arange(6) % 3), scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        collector.step()
        skipped += scaler.get_scale() < scale
    assert skipped == 2
    assert found(tmp_path) == []


def test_weights_are_not_unchanged_while_gradients_are_accumulated(tmp_path):
    model = Net(nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    collector = TrajectoryCollector(tmp_path, model, optimizer, intervals=[[0, 1, 2]], watch="all", watch_every=1)
    for step in range(1, 7):
        loss = nn.functional.cross_entropy(model(torch.eye(6)), torch.arange(6) % 3)
        loss.backward()
        if step % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        collector.step(loss.detach())
    assert found(tmp_path) == []


def test_thresholds_are_arguments_and_what_is_not_asked_stays_silent(tmp_path):
    train(tmp_path, watch={"weight_change_too_large": 1e-9}, watch_every=1)
    assert {rule for _, _, rule in found(tmp_path)} == {"weight_change_too_large"}


@pytest.mark.filterwarnings("ignore:.*torch.compile")
def test_a_compiled_model_is_watched_but_for_its_outputs(tmp_path, caplog):
    model = torch.compile(Net(nn.ReLU()), backend="eager")
    with caplog.at_level(logging.WARNING, logger="landscape"):
        TrajectoryCollector(tmp_path, model, intervals=[[0, 1, 2]], watch="all").step(1.0)
    assert "watch: outputs of layers are not seen in a model that torch.compile has compiled" in caplog.text


def test_what_is_no_rule_is_refused_before_anything_is_written(tmp_path):
    for options, message in (
        (
            {"watch": ["gradient_vanishin"]},
            "watch: unknown rule 'gradient_vanishin'; did you mean 'gradient_vanishing'",
        ),
        ({"watch": "weights", "watch_every": 0}, "watch_every: must be a whole number from 1 on, not 0"),
    ):
        with pytest.raises(JobError, match=message):
            TrajectoryCollector(tmp_path / "run", Net(nn.ReLU()), intervals=[[0, 1, 2]], **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_recipe_takes_the_rules_and_nothing_fires_on_it(tmp_path, caplog):
    options = {"epochs": 2, "intervals": [[0, 1, 2]], "seed": 3, "batch_size": 256}
    with caplog.at_level(logging.WARNING, logger="landscape"):
        digits.train(tmp_path / "watched", watch="all", watch_every=3, **options)
    digits.train(tmp_path / "plain", **options)
    assert found(tmp_path / "watched") == []
    assert not [message for message in caplog.messages if "watch" in message]
    last = "trajectory/epoch-00002.safetensors"
    watched, plain = (load_file(tmp_path / name / last) for name in ("watched", "plain"))
    assert all(torch.equal(tensor, plain[name]) for name, tensor in watched.items())
