"""The time that MindSpore's SummaryLandscape takes for each row of a grid, while another process waits.

    python mindspore_rows.py MNIST_FOLDER FOLDER BATCH_SIZE SAMPLES SIZE THREADS

This runs in an interpreter that has MindSpore, and imports nothing of this project. FOLDER has weights.npz. The
landscape is made by the documented call, whose metric, the caller's own, stops after each row: one line of JSON goes
out, and the next row begins when a line comes in. Compiling and starting are in the first row.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import mindspore
import numpy as np
from mindspore import SummaryLandscape, Tensor
from mindspore.device_context.cpu import op_tuning
from mindspore.train import Loss

sys.path.insert(0, str(Path(__file__).parents[1] / "mindspore"))
from tutorial import DIRECTION_SEED, callback


class TimedRows(Loss):
    """The loss of each point; after a row it tells them with the seconds they took, and waits for its turn."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.size, self.out = size, os.fdopen(out, "w")
        self.start()

    def start(self) -> None:
        self.losses: list[float] = []
        self.wall, self.processor = time.perf_counter(), time.process_time()

    def eval(self) -> float:
        loss = float(super().eval())
        self.losses.append(loss)
        if len(self.losses) == self.size:
            self.hand_over()
        return loss

    def hand_over(self) -> None:
        row = {"losses": self.losses, "seconds": time.perf_counter() - self.wall}
        row["processor_seconds"] = time.process_time() - self.processor
        print(json.dumps(row), file=self.out, flush=True)
        sys.stdin.readline()
        self.start()


def write_summary(folder: Path, weights: Path, options: dict[str, int]) -> None:
    """The folder that SummaryCollector leaves behind, with the weights as its last snapshot."""
    (folder / "ckpt_dir").mkdir(parents=True)
    with np.load(weights) as read:
        saved = [{"name": name, "data": Tensor(read[name])} for name in read.files]
    checkpoint = str(folder / "ckpt_dir" / "LeNet5_3_epoch.ckpt")
    mindspore.save_checkpoint(saved, checkpoint)
    metadata = {
        "epoch_group": {"0": [1, 2, 3]}, "model_params_file_map": dict.fromkeys("123", checkpoint), "unit": "epoch",
        "step_per_epoch": 1, "create_landscape": {"train": False, "result": True}, **options,
    }  # fmt: skip
    (folder / "ckpt_dir" / "train_metadata.json").write_text(json.dumps(metadata))


def main(data: Path, folder: Path, batch_size: int, samples: int, size: int, threads: int) -> None:
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    op_tuning.threads_num(threads)
    mindspore.dataset.config.set_num_parallel_workers(threads)
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # it prints a line for each point
    summary = Path(tempfile.mkdtemp(prefix="summary", dir=folder))
    write_summary(summary, folder / "weights.npz", {"num_samples": samples, "landscape_size": size})
    np.random.seed(DIRECTION_SEED)  # noqa: NPY002 - MindSpore draws from this one
    rows = TimedRows(size, out)
    SummaryLandscape(str(summary)).gen_landscapes_with_multi_process(callback(data, batch_size, rows), device_ids=[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
