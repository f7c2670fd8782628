"""Train the tutorial's network for two epochs, let MindSpore make its landscapes, and record what it reads of them.

    python make_summary.py MNIST_FOLDER SUMMARY_DIR RECORD.npz

This runs in an interpreter that has MindSpore, and imports nothing of this project.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import mindspore
import numpy as np
from mindspore import SummaryCollector, SummaryLandscape, nn
from mindspore.train import CheckpointConfig, Loss, Model, ModelCheckpoint
from mindspore.train.lineage_pb2 import LineageEvent
from mindspore.train.summary_pb2 import Event
from tutorial import PIXELS, LeNet5, callback, images, loss_function, pixels

EPOCHS, BATCH_SIZE, NUM_SAMPLES, SIZE = 2, 32, 512, 6


def train(data: Path, summary_dir: Path) -> list[int]:
    """Two epochs with the collector; the steps whose weights it keeps, of which the tutorial wants three or more."""
    dataset, network = images(data, BATCH_SIZE, PIXELS, shuffle=True), LeNet5()
    steps = dataset.get_dataset_size()
    kept = [steps // 2, steps, EPOCHS * steps]
    options = {
        "landscape_size": SIZE, "unit": "step", "create_landscape": {"train": True, "result": True},
        "num_samples": NUM_SAMPLES, "intervals": [kept],
    }  # fmt: skip
    collector = SummaryCollector(str(summary_dir), collect_specified_data={"collect_landscape": options})
    config = CheckpointConfig(save_checkpoint_steps=steps, keep_checkpoint_max=1)
    saver = ModelCheckpoint("lenet", str(summary_dir / "saved"), config)
    model = Model(network, loss_function(), nn.Momentum(network.trainable_params(), 0.01, 0.9))
    model.train(EPOCHS, dataset, callbacks=[collector, saver], dataset_sink_mode=False)
    return kept


def frames(file: Path) -> Iterator[bytes]:
    content, at = file.read_bytes(), 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        yield content[at + 12 : at + 12 + length]
        at += 16 + length


def record_events(summary_dir: Path) -> dict[str, np.ndarray]:
    """The landscapes `landscape/TAG/PART/x`, and the losses with their steps, as MindSpore's own messages have them."""
    found: dict[str, np.ndarray] = {}
    losses: list[tuple[int, float]] = []
    for file in sorted(summary_dir.glob("*_MS")):
        for frame in frames(file):
            event = Event.FromString(frame)
            for value in event.summary.value:
                if value.tag == "loss/auto":
                    losses.append((event.step, value.scalar_value))
                if value.HasField("loss_landscape"):
                    made = value.loss_landscape
                    parts = {"grid": made.landscape, "end": made.convergence_point}
                    parts |= {"path": made.loss_path.points} if made.HasField("loss_path") else {}
                    for part, points in parts.items():
                        for axis in "xyz":
                            tensor = getattr(points, axis)
                            values = np.array(tensor.float_data, np.float32).reshape(tensor.dims)
                            found[f"landscape/{value.tag}/{part}/{axis}"] = values
    found["steps"], found["losses"] = (np.array(column) for column in zip(*losses, strict=True))
    return found


def record_lineage(summary_dir: Path) -> str:
    for file in sorted(summary_dir.glob("*_lineage")):
        for event in map(LineageEvent.FromString, frames(file)):
            if event.HasField("train_lineage"):
                lineage, chosen = event.train_lineage, event.train_lineage.hyper_parameters
                return json.dumps(
                    {"network": lineage.algorithm.network, "optimizer": chosen.optimizer, "epochs": chosen.epoch,
                     "learning_rate": chosen.learning_rate, "batch_size": chosen.batch_size}
                )  # fmt: skip
    raise SystemExit("MindSpore wrote no lineage of the training")


def record_snapshots(data: Path, summary_dir: Path, kept: list[int]) -> dict[str, np.ndarray]:
    """The weights `weights/STEP/NAME` as MindSpore loads them, and the loss `loss/STEP` that it has with them."""
    found: dict[str, np.ndarray] = {}
    for step in kept:
        weights = mindspore.load_checkpoint(str(summary_dir / "ckpt_dir" / f"LeNet5_{step}_step.ckpt"))
        found |= {f"weights/{step}/{name}": each.asnumpy() for name, each in weights.items()}
        network = LeNet5()
        mindspore.load_param_into_net(network, weights)
        samples = images(data, BATCH_SIZE, PIXELS).take(NUM_SAMPLES // BATCH_SIZE)
        model = Model(network, loss_function(), metrics={"Loss": Loss()})
        found[f"loss/{step}"] = np.array(model.eval(samples, dataset_sink_mode=False)["Loss"])
    return found


def main(data: Path, summary_dir: Path, record: Path) -> None:
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    mindspore.set_seed(1)
    kept = train(data, summary_dir)
    landscape = SummaryLandscape(str(summary_dir))
    landscape.gen_landscapes_with_multi_process(callback(data, BATCH_SIZE, Loss()), device_ids=[0])
    found = record_events(summary_dir) | record_snapshots(data, summary_dir, kept)
    found |= {"resized": pixels(data, PIXELS[:1]), "pixels": pixels(data, PIXELS)[:NUM_SAMPLES]}
    np.savez(record, kept=kept, lineage=record_lineage(summary_dir), **found)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
