"""Synthetic surfaces from closed forms, for the tests of the views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.core.plan import Plan
from landscape.surface.record import Record
from landscape.surface.record_parts import ProgressRecord, Provenance
from landscape.surface.surface import Axis, ProjectedPath, Surface

RANDOM = "random direction (seed {}, filter-normalised, bias and norm ignored)"


def attributes(tiles: int = 64, done: int = 64, **more: Any) -> Mapping[str, Any]:
    """What a landscape has recorded, written by the types that a job writes it by; `more` are fields of the record."""
    record = Record().changed(
        schema_version=1,
        digest="0123456789abcdef" * 4,
        num_samples=512,
        precision="float32",
        batch_norm="eval",
        seed=0,
        observables=["loss", "accuracy"],
        cosine=[[1.0, 0.0031], [0.0031, 1.0]],
        origin="epoch 10",
        origin_step=10,
        plan=Plan(256, 1, "cpu").record(),
        provenance=Provenance(
            created="2026-11-20T12:00:00+00:00",
            versions={"torch": "2.13.0", "numpy": "2.3.1"},
            host="node-1",
            model="LeNet5",
            parameters=61706,
        ),
        failures=[],
        progress=ProgressRecord(
            state="complete" if done == tiles else "partial",
            tiles_done=done,
            tiles=tiles,
            points_done=100,
            points=100,
            seconds=12.3,
        ),
    )
    return record.changed(**more).attributes


def with_record(surface: Surface, **changes: Any) -> Surface:
    """The same surface with other fields of its record."""
    return replace(surface, attributes=surface.record.changed(**changes).attributes)


def axis(name: str, coordinates: np.ndarray, seed: int = 1, **more: Any) -> Axis:
    return Axis(name, coordinates, {"kind": "random", "label": RANDOM.format(seed), "norm": 12.3} | more)


def quadratic(
    width: int = 40, height: int = 30, offset: float = 0.1, path: ProjectedPath | None = None, **more: Any
) -> Surface:
    """loss = offset + α² + 3β² + αβ on [-1, 1] × [-0.75, 0.75]: a bowl whose every value is known."""
    alpha, beta = np.linspace(-1, 1, width), np.linspace(-0.75, 0.75, height)
    loss = bowl(alpha[None, :], beta[:, None], offset)
    return two_axes("minimum", alpha, beta, loss, path=path, **more)


def bowl(alpha: Any, beta: Any, offset: float = 0.1) -> Any:
    return offset + alpha**2 + 3 * beta**2 + alpha * beta


def two_axes(
    name: str, alpha: np.ndarray, beta: np.ndarray, loss: np.ndarray, path: ProjectedPath | None = None, **more: Any
) -> Surface:
    observables = {
        "loss": loss,
        "loss_stderr": 0.03 * np.abs(loss) + 0.001,
        "accuracy": np.exp(-np.abs(np.nan_to_num(loss, posinf=9, neginf=9))),
        "accuracy_stderr": np.full(loss.shape, 0.01),
    }
    status = np.where(np.isfinite(loss), 1, 2).astype(np.uint8)
    axes = (axis("alpha", alpha, 1), axis("beta", beta, 2))
    return Surface(name, axes, observables, status, path, attributes(**more))


def spiral(
    count: int = 10, unit: str = "epoch", names: tuple[str, ...] = ("alpha", "beta"), offset: float = 0.1
) -> ProjectedPath:
    """A path that winds into the bowl's minimum at 0; its last snapshot lies there."""
    t = np.linspace(1, 0, count)
    places = {"alpha": 0.9 * t * np.cos(2.5 * t), "beta": 0.65 * t * np.sin(2.5 * t), "gamma": 0.5 * t}
    projected = bowl(places["alpha"], places["beta"] if "beta" in names else 0.0, offset)
    return ProjectedPath(
        unit=unit,
        step=np.arange(1, count + 1),
        coordinates={name: places[name] for name in names},
        loss=projected * 0.97,
        projected_loss=projected,
        distance=0.4 * t,
        status=np.ones(count, np.uint8),
    )


def holed() -> Surface:
    """A partial bowl with a block not computed, a diverged corner and a quarantined tile."""
    surface = quadratic(40, 30, path=spiral(), done=37)
    loss, status = surface.loss.copy(), surface.status.copy()
    status[20:, :8] = 0
    status[:5, 32:] = 2
    status[12:16, 30:34] = 3
    loss[status == 0] = np.nan
    loss[status == 3] = np.nan
    loss[status == 2] = np.inf
    observables = {name: np.where(status == 1, values, np.nan) for name, values in surface.observables.items()}
    return Surface(surface.name, surface.axes, observables | {"loss": loss}, status, surface.path, surface.attributes)


def two_bowls(width: int = 41, height: int = 31, noise: float = 0.0, path: ProjectedPath | None = None) -> Surface:
    """Two paraboloids: minima of 0.1 at (−0.5, 0) and 0.3 at (0.5, 0), which merge at (0.1, 0) at a loss of 0.46."""
    alpha, beta = np.linspace(-1, 1, width), np.linspace(-0.75, 0.75, height)
    a, b = alpha[None, :], beta[:, None]
    loss = 0.1 + np.minimum((a + 0.5) ** 2, (a - 0.5) ** 2 + 0.2) + b**2
    loss = loss + noise * np.random.default_rng(0).standard_normal(loss.shape)
    surface = two_axes("bowls", alpha, beta, loss, path=path)
    errors = {"loss_rise_stderr": np.full(loss.shape, max(noise, 1e-3))}
    return replace(surface, observables={**surface.observables, **errors})


def valley(size: int = 41) -> Surface:
    """A realistic landscape over many decades: Rosenbrock's valley, the loss diverging to 1e10 at the rim."""
    alpha, beta = np.linspace(-1.5, 1.5, size), np.linspace(-1, 2, size)
    a, b = alpha[None, :], beta[:, None]
    loss = 0.01 + (1 - a) ** 2 + 100 * (b - a**2) ** 2
    rim = np.maximum(np.abs(a), np.abs(b - 0.5)) > 1.4
    return two_axes("diverging", alpha, beta, np.where(rim, loss * 1e8, loss))


def pca_plane() -> Surface:
    surface = quadratic(25, 35, path=spiral(26))
    axes = tuple(
        Axis(
            each.name,
            each.coordinates,
            {
                "kind": "pca",
                "label": f"PCA component {k + 1} of epochs 1 to 26",
                "component": k + 1,
                "norm": 1.0,
                "explained_variance": (0.812, 0.124)[k],
                "random_walk_variance": (0.608, 0.152)[k],
            },
        )
        for k, each in enumerate(surface.axes)
    )
    return Surface("epochs-1-26", axes, surface.observables, surface.status, surface.path, surface.attributes)


def line(size: int = 61, path: bool = False) -> Surface:
    """loss = 0.05 + (α (1−α) · 4)² + 0.2 α on [-0.2, 1.2]: two minima with a barrier between."""
    alpha = np.linspace(-0.2, 1.2, size)
    loss = 0.05 + (4 * alpha * (1 - alpha)) ** 2 + 0.2 * np.abs(alpha)
    observables = {
        "loss": loss,
        "loss_stderr": 0.04 * loss + 0.01,
        "accuracy": 0.99 * np.exp(-loss),
        "accuracy_stderr": np.full(size, 0.012),
    }
    axes = (Axis("alpha", alpha, {"kind": "towards", "label": "from epoch 10 (0) towards epoch 1 (1)", "norm": 31.0}),)
    track = None
    if path:
        place = np.array([1.0, 0.8, 0.45, 0.2, 0.05, 0.0])
        on_line = 0.05 + (4 * place * (1 - place)) ** 2 + 0.2 * place
        track = ProjectedPath(
            "step", np.arange(6) * 100, {"alpha": place}, on_line * 0.8, on_line, place * 0, np.ones(6, np.uint8)
        )
    return Surface("line", axes, observables, np.ones(size, np.uint8), track, attributes(cosine=[[1.0]]))


def block(path: bool = True) -> Surface:
    """Three axes of different lengths: loss = 0.1 + α² + 2β² + 3γ²."""
    alpha, beta, gamma = np.linspace(-1, 1, 16), np.linspace(-1, 1, 14), np.linspace(-0.8, 0.8, 9)
    loss = 0.1 + alpha[None, None] ** 2 + 2 * beta[None, :, None] ** 2 + 3 * gamma[:, None, None] ** 2
    status = np.ones(loss.shape, np.uint8)
    status[0, :3, :3] = 0
    loss = np.where(status == 0, np.nan, loss)
    axes = (axis("alpha", alpha, 1), axis("beta", beta, 2), axis("gamma", gamma, 3))
    observables = {"loss": loss, "loss_stderr": 0.05 * loss}
    track = spiral(8, names=("alpha", "beta", "gamma")) if path else None
    return Surface("cube", axes, observables, status, track, attributes(done=60, cosine=np.eye(3).tolist()))


def traces(drawn: go.Figure, role: str) -> list[Any]:
    """The traces of a figure that play this part in it."""
    return [trace for trace in drawn.data if (trace.meta or {}).get("role") == role]
