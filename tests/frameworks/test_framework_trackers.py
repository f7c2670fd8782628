"""What trackers keep of a landscape is read back from their files; all of them work offline here."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import mlflow
import numpy as np
import pytest
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from landscape import Surface, import_surface, open_run

pytestmark = pytest.mark.frameworks

X, Y = np.linspace(-1, 1, 7), np.linspace(-2, 2, 5)
LOSS = X[None, :] ** 2 + Y[:, None] ** 2


@pytest.fixture
def surface(tmp_path: Path) -> Surface:
    np.savez(tmp_path / "bowl.npz", x=X, y=Y, loss=LOSS)
    import_surface(tmp_path / "bowl.npz", tmp_path / "run")
    return open_run(tmp_path / "run")["bowl"]


def test_tensorboard_keeps_a_picture_with_its_step(surface, tmp_path):
    with SummaryWriter(str(tmp_path / "logs")) as writer:
        writer.add_figure("bowl", surface.plot().figure, global_step=24)
    events = EventAccumulator(str(tmp_path / "logs")).Reload()
    [image] = events.Images("bowl")
    assert image.step == 24
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert image.width > 300


def test_wandb_keeps_the_figure_with_its_values(surface, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(project="landscapes", dir=str(tmp_path), mode="offline") as tracked:
        tracked.log({"bowl": surface.figure("contour")})
    [kept] = tmp_path.rglob("offline-run-*/**/*.plotly.json")
    grids = [trace["z"] for trace in json.loads(kept.read_text())["data"] if "z" in trace]
    assert any(np.allclose(values_of(grid), LOSS) for grid in grids if np.size(values_of(grid)) == LOSS.size)


def values_of(grid: object) -> np.ndarray:
    """Numbers in a figure's JSON; plotly writes arrays as base64."""
    if not isinstance(grid, dict):
        return np.array(grid, dtype=float)
    shape = [int(size) for size in str(grid["shape"]).split(",")]
    return np.frombuffer(base64.b64decode(grid["bdata"]), grid["dtype"]).reshape(shape)


def test_mlflow_keeps_the_live_figure(surface, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the small package has no database
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "tracked").as_uri())
    with mlflow.start_run():
        mlflow.log_figure(surface.figure(), "bowl.html")
    [page] = (tmp_path / "tracked").rglob("artifacts/bowl.html")
    assert "Plotly.newPlot" in page.read_text()
