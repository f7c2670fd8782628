"""What `LandscapeCallback` needs of the collector, and where no framework is; in its Trainers: tests/frameworks."""

import subprocess
import sys

import torch
from torch import nn

from landscape import TrajectoryCollector
from landscape.model.history import log_end, read_history


def test_what_becomes_known_later_belongs_to_the_step_or_the_epoch_before(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with TrajectoryCollector(tmp_path, model, optimizer, unit="epoch", intervals=[[1, 2, 3]]) as collector:
        for _ in range(2):
            collector.step(2.0)
            collector.step()
            collector.record(loss=1.0)
            collector.end_epoch()
            collector.record(held_out=3.0, learning_rate=0.5)
    places = [(line["step"], line["epoch"], "epoch_end" in line) for line in read_history(tmp_path)]
    first = [(1, 1, False), (2, 1, False), (2, 1, True), (2, 1, True)]
    assert places == [*first, *((step + 2, epoch + 1, ends) for step, epoch, ends in first)]
    assert read_history(tmp_path)[1] == {"step": 2, "epoch": 1, "learning_rate": 0.1, "loss": 1.0}
    assert read_history(tmp_path)[3] == {
        "step": 2, "epoch": 1, "epoch_end": True, "learning_rate": 0.5, "held_out": 3.0,
    }  # fmt: skip
    end = log_end(tmp_path)
    assert (end.step, end.epoch, end.loss) == (4, 2, 1.5)
    TrajectoryCollector(tmp_path, model, optimizer, unit="epoch", intervals=[[1, 2, 3]], start_epoch=1)
    assert read_history(tmp_path)[-1]["held_out"] == 3.0, "it is kept with its epoch"
    assert log_end(tmp_path).epoch == 1


def test_without_a_framework_the_error_names_what_to_import_and_the_collector():
    script = "from landscape import LandscapeCallback; LandscapeCallback('run', intervals=[[1, 2, 3]])"
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=False)
    assert "import lightning or transformers first" in done.stderr
    assert "use TrajectoryCollector" in done.stderr.splitlines()[-1]
