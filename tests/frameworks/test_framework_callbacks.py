"""`LandscapeCallback` in real Trainers leaves the run of a plain loop with the collector, resumed too, and by ranks."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

from landscape import JobError, LandscapeCallback, TrajectoryCollector, read_trajectory
from landscape.model.history import read_history
from landscape.model.run_files import read_info

pytestmark = pytest.mark.frameworks

STEPS, EPOCHS, RATE = 5, 3, 0.5  # steps of an epoch
BY_EPOCH = {"unit": "epoch", "intervals": [[1, 2, 3]]}


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(4 * STEPS, 6, generator=generator), torch.randint(0, 3, (4 * STEPS,), generator=generator)
    )


def loader() -> DataLoader:
    return DataLoader(rows(), batch_size=4)


class Classifier(lightning.LightningModule):
    """Half the rate after each epoch; the loss of the validation is logged."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def training_step(self, batch, _):
        return cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("val_loss", cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), RATE)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def lightning_trainer(folder: Path, callbacks: list, **options) -> lightning.Trainer:
    checkpointing = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        **{"max_epochs": EPOCHS} | options, **quiet, accelerator="cpu", default_root_dir=str(folder),
        callbacks=callbacks, enable_checkpointing=checkpointing,
    )  # fmt: skip


def assert_same_runs(first: Path, second: Path) -> None:
    """The same lines, snapshots of the same numbers, and the same bits in them."""
    assert read_history(first) == read_history(second)
    one, other = read_trajectory(first), read_trajectory(second)
    assert one.numbers == other.numbers
    for snapshot, beside in zip(one.snapshots, other.snapshots, strict=True):
        assert_same_weights(snapshot.load(), beside.load())


def assert_same_weights(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def plain_loop(run: Path) -> None:
    """What the Trainer of Lightning does with a `Classifier`."""
    model = Classifier()
    (optimizer,), (schedule,) = model.configure_optimizers()
    with TrajectoryCollector(run, model, optimizer, **BY_EPOCH) as collector:
        for _ in range(EPOCHS):
            for inputs, targets in loader():
                loss = cross_entropy(model.layers(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                collector.step(loss)
            collector.end_epoch()
            schedule.step()


# -- Lightning ---------------------------------------------------------------------------------------------------------


def test_lightning_leaves_the_run_of_a_plain_loop(tmp_path):
    plain_loop(tmp_path / "plain")
    lightning_trainer(tmp_path, [LandscapeCallback(tmp_path / "run", **BY_EPOCH)]).fit(Classifier(), loader())
    assert_same_runs(tmp_path / "run", tmp_path / "plain")
    about, plain = (read_info(tmp_path / name) for name in ("run", "plain"))
    for name in ("model", "optimiser", "hyperparameters", "learning_rate", "steps_per_epoch", "collect_landscape"):
        assert about[name] == plain[name], name


@pytest.mark.parametrize("saved", [{"monitor": "val_loss"}, {"save_on_train_epoch_end": True}])
@pytest.mark.parametrize("epoch", [0, 1])
def test_lightning_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(saved, epoch, tmp_path):
    callback = partial(LandscapeCallback, **BY_EPOCH)
    lightning_trainer(tmp_path, [callback(tmp_path / "calm")]).fit(Classifier(), loader(), loader())
    assert "val_loss" in read_history(tmp_path / "calm")[STEPS]
    keeper = ModelCheckpoint(tmp_path / "kept", filename="{epoch}", save_top_k=-1, **saved)
    lightning_trainer(tmp_path, [callback(tmp_path / "cut"), keeper], max_epochs=2).fit(
        Classifier(), loader(), loader()
    )
    # What came after the checkpoint is dropped.
    assert len(read_history(tmp_path / "cut")) == 2 * (STEPS + 1)
    lightning_trainer(tmp_path, [callback(tmp_path / "cut")]).fit(
        Classifier(), loader(), loader(), ckpt_path=str(tmp_path / "kept" / f"epoch={epoch}.ckpt")
    )
    assert_same_runs(tmp_path / "cut", tmp_path / "calm")


def test_steps_of_lightning_are_those_of_the_optimiser_and_a_cut_epoch_does_not_end(tmp_path):
    callback = LandscapeCallback(tmp_path / "run", intervals=[[1, 2, 3]])
    options = {"max_epochs": 3, "max_steps": 4, "accumulate_grad_batches": 2}
    module = Classifier()
    lightning_trainer(tmp_path, [callback], **options).fit(module, loader())
    lines = read_history(tmp_path / "run")
    assert [(line["step"], line["epoch"], "epoch_end" in line) for line in lines] == [
        (1, 1, False), (2, 1, False), (3, 1, False), (3, 1, True), (4, 2, False),
    ]  # fmt: skip
    assert lines[0]["learning_rate"] == lines[3]["learning_rate"] == RATE
    assert lines[4]["learning_rate"] == RATE / 2
    with torch.no_grad():
        first = Classifier().train()
        expected = [float(cross_entropy(first.layers(inputs), targets)) for inputs, targets in list(loader())[:2]]
    assert lines[0]["loss"] == pytest.approx(sum(expected) / 2, rel=1e-6)
    assert read_trajectory(tmp_path / "run").numbers == (1, 2, 3, 4)
    assert_same_weights(read_trajectory(tmp_path / "run").snapshot(4).load(), module.state_dict())


def test_a_fast_dev_run_writes_nothing_and_a_second_training_is_refused(tmp_path):
    callback = partial(LandscapeCallback, tmp_path / "run", **BY_EPOCH)
    lightning_trainer(tmp_path, [callback()], fast_dev_run=True).fit(Classifier(), loader(), loader())
    assert not (tmp_path / "run").exists()
    lightning_trainer(tmp_path, [callback()]).fit(Classifier(), loader())
    with pytest.raises(JobError, match="already holds a trajectory"):
        lightning_trainer(tmp_path, [callback()]).fit(Classifier(), loader())
    lightning_trainer(tmp_path, [callback(overwrite=True)], max_epochs=1).fit(Classifier(), loader())
    assert len(read_history(tmp_path / "run")) == STEPS + 1


class Pair(lightning.LightningModule):
    """Two networks that are trained in turn, each by an optimiser of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.networks = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])

    def training_step(self, batch, _):
        for network, optimizer in zip(self.networks, self.optimizers(), strict=True):
            loss = cross_entropy(network(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def configure_optimizers(self):
        return [torch.optim.SGD(network.parameters(), RATE) for network in self.networks]


def test_with_two_optimisers_a_step_is_a_batch_also_after_a_checkpoint(tmp_path):
    callback = partial(LandscapeCallback, tmp_path / "run", **BY_EPOCH)
    keeper = ModelCheckpoint(tmp_path / "kept", filename="{epoch}", save_top_k=-1)
    lightning_trainer(tmp_path, [callback(), keeper], max_epochs=2).fit(Pair(), loader())
    checkpoint = str(tmp_path / "kept" / "epoch=1.ckpt")
    lightning_trainer(tmp_path, [callback()]).fit(Pair(), loader(), ckpt_path=checkpoint)
    lines = read_history(tmp_path / "run")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, EPOCHS * STEPS + 1))
    assert [line["epoch"] for line in lines if "epoch_end" in line] == [1, 2, 3]


# -- Hugging Face ------------------------------------------------------------------------------------------------------


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.Linear(6, 3)

    def forward(self, inputs, labels):
        outputs = self.layers(inputs)
        return {"loss": cross_entropy(outputs, labels), "logits": outputs}


def train_by_hugging_face(folder: Path, callbacks: list, *, resume: str | None = None, **options) -> Trainer:
    arguments = TrainingArguments(
        str(folder / "checkpoints"),
        **{"num_train_epochs": EPOCHS, "save_strategy": "no", "logging_steps": 1} | options,
        per_device_train_batch_size=4, learning_rate=RATE, report_to="none", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    data = [{"inputs": inputs, "labels": label} for inputs, label in rows()]
    trainer = Trainer(WithLoss(), arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


class LoopBeside(TrainerCallback):
    """A plain loop in lockstep with the Trainer: it collects its weights and its logs by hand."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
        self.collector = TrajectoryCollector(self.run, model, optimizer.optimizer, **BY_EPOCH)

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            numbers = {name: logs[name] for name in ("learning_rate", "loss", "grad_norm")}
            self.collector.step(**numbers)
            if state.global_step % STEPS == 0:
                self.collector.end_epoch()

    def on_train_end(self, args, state, control, **_):
        self.collector.end_training()


def test_hugging_face_leaves_the_run_of_a_plain_loop(tmp_path):
    callbacks = [LandscapeCallback(tmp_path / "run", **BY_EPOCH), LoopBeside(tmp_path / "plain")]
    trainer = train_by_hugging_face(tmp_path, callbacks)
    assert_same_runs(tmp_path / "run", tmp_path / "plain")
    assert read_info(tmp_path / "run")["optimiser"] == "AdamW"
    assert read_info(tmp_path / "run")["learning_rate"] == RATE
    assert_same_weights(read_trajectory(tmp_path / "run").snapshot(EPOCHS).load(), trainer.model.state_dict())


def test_hugging_face_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(tmp_path):
    callback, evaluated = partial(LandscapeCallback, **BY_EPOCH), {"eval_strategy": "epoch"}
    train_by_hugging_face(tmp_path, [callback(tmp_path / "calm")], **evaluated)
    assert read_history(tmp_path / "calm")[STEPS + 1].keys() >= {"epoch_end", "eval_loss"}
    saved = {**evaluated, "save_strategy": "steps", "save_steps": STEPS}
    train_by_hugging_face(tmp_path, [callback(tmp_path / "cut")], **saved)
    resumed = str(tmp_path / "checkpoints" / f"checkpoint-{STEPS}")
    train_by_hugging_face(tmp_path, [callback(tmp_path / "cut")], resume=resumed, **saved)
    assert_same_runs(tmp_path / "cut", tmp_path / "calm")


def test_logs_of_several_steps_and_a_cut_epoch_are_recorded_as_they_are(tmp_path):
    callback = LandscapeCallback(tmp_path / "run", intervals=[[1, 2, 3]])
    options = {"gradient_accumulation_steps": 2, "max_steps": 4, "logging_steps": 2}
    train_by_hugging_face(tmp_path, [callback], **options)
    lines = read_history(tmp_path / "run")
    assert [(line["step"], line["epoch"], "epoch_end" in line) for line in lines] == [
        (2, 1, False), (3, 1, True), (4, 2, False),
    ]  # fmt: skip
    assert read_trajectory(tmp_path / "run").numbers == (1, 2, 3, 4)


@pytest.mark.parametrize("stopper_first", [True, False])
def test_the_last_weights_are_kept_and_not_the_best_that_are_loaded(stopper_first, tmp_path):
    callbacks = [
        EarlyStoppingCallback(1, 10.0),
        LandscapeCallback(tmp_path / "run", unit="step", intervals=[[1, 2, 3]]),
    ]
    options = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    trainer = train_by_hugging_face(
        tmp_path, callbacks if stopper_first else callbacks[::-1], metric_for_best_model="loss", greater_is_better=True,
        **options,
    )  # fmt: skip
    assert trainer.state.global_step == 2 * STEPS, "the first epoch is the best one, so that training stops after two"
    last = read_trajectory(tmp_path / "run").snapshots[-1]
    assert last.number == 2 * STEPS
    best = trainer.model.state_dict()
    assert not all(torch.equal(tensor, best[name]) for name, tensor in last.load().items())


# -- both --------------------------------------------------------------------------------------------------------------


def test_one_object_is_a_callback_of_both_and_travels_to_other_processes(tmp_path):
    callback = LandscapeCallback(tmp_path / "run", **BY_EPOCH)
    for one in (callback, pickle.loads(pickle.dumps(callback))):
        assert isinstance(one, LandscapeCallback)
        assert isinstance(one, lightning.pytorch.Callback)
        assert isinstance(one, TrainerCallback)
    with pytest.raises(JobError, match="intervals"):
        LandscapeCallback(tmp_path / "run", intervals=[[1]])
    with pytest.raises(JobError, match="watch"):
        LandscapeCallback(tmp_path / "run", **BY_EPOCH, watch=["no such rule"])


RANKS = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_framework_callbacks import *

folder = Path({folder!r})
callback = LandscapeCallback(folder / "run", **BY_EPOCH)
if {framework!r} == "lightning":
    lightning_trainer(folder, [callback], devices=2, strategy="ddp").fit(Classifier(), loader())
else:
    train_by_hugging_face(folder, [callback], ddp_backend="gloo")
"""


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_two_ranks_write_once(framework, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(RANKS.format(tests=str(Path(__file__).parent), folder=str(tmp_path), framework=framework))
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    # As torchrun does; Lightning starts its other ranks itself.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    ranks = [place | {"RANK": rank, "LOCAL_RANK": rank} for rank in "01"] if framework == "transformers" else [{}]
    running = [
        subprocess.Popen([sys.executable, str(script)], env=environment | rank, stderr=subprocess.PIPE, text=True)
        for rank in ranks
    ]
    try:
        told = [process.communicate(timeout=250)[1][-3000:] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * len(running), told
    steps = -(-STEPS // 2)  # of each rank
    lines = read_history(tmp_path / "run")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, EPOCHS * steps + 1))
    assert [line["epoch"] for line in lines if "epoch_end" in line] == [1, 2, 3]
    assert read_trajectory(tmp_path / "run").numbers == (1, 2, 3)
    assert read_info(tmp_path / "run")["steps_per_epoch"] == steps
