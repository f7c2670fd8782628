"""The report of a run on disk: what the driver writes of its failures is what a reader is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from small_models import make_job
from torch import nn

from landscape import Problem, run
from landscape.store.landscape import LandscapeStore
from landscape.views.report import write_report


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[1.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w


def observe(model: Any, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    if float(model.w) in (5.0, 7.0):  # at the coordinates 4 and 6
        raise ValueError(f"bad weight {float(model.w)} <b>")
    return {"loss": model(batch)[:, 0]}


def test_a_quarantined_tile_is_named_with_its_cause(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1, 1)}, tmp_path / "d.safetensors")
    directions = [{"kind": "file", "path": str(tmp_path / "d.safetensors")}]
    line = {"name": "l", "directions": directions, "size": 9, "range": [0, 8]}
    opened = run(make_job(tmp_path / "run", lambda: Problem(Line(), torch.ones(3, 1), observe), [line], tile=2))
    assert opened["l"].status.tolist() == [1, 1, 1, 1, 3, 3, 3, 3, 1]
    page = write_report(opened, tmp_path / "report.html").read_text(encoding="utf-8")
    failed = re.findall(r"<li><b>(.*?)</b>, (.*?)<details>.*?<pre>(.*?)</pre>", page, re.S)
    recorded = LandscapeStore.open(opened.path, "l").record.failures
    assert [task for task, _, _ in failed] == [failure.task for failure in recorded]
    tried = [(task, attempts) for task, attempts, _ in failed]
    assert sorted(tried) == [
        ("tile (2,)", "3 attempts on this process: ValueError: bad weight 5.0 &lt;b&gt;"),
        ("tile (3,)", "3 attempts on this process: ValueError: bad weight 7.0 &lt;b&gt;"),
    ]
    assert all("in observe" in traceback for _, _, traceback in failed)
    assert "2 failed tasks" in page
    assert "None" not in "".join(f"{task}{attempts}" for task, attempts, _ in failed)
