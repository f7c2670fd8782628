"""Twenty landscapes that are hard to print: values and axes of all sizes, long names, six snapshots, holes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import synthetic_surfaces as make

from landscape.surface.surface import Axis, ProjectedPath, Surface

LONG = "the whole network with every regulariser that anybody has thought of"


def plane(
    values: Callable[[np.ndarray, np.ndarray], np.ndarray] = make.bowl,
    spans: tuple[float, float] = (1.0, 0.75),
    size: tuple[int, int] = (13, 11),
    axes: Mapping[str, Any] | None = None,
    path: bool = True,
    name: str = "plane",
) -> Surface:
    """A plane of values over [-1, 1]², on axes of these half spans, with a path of six snapshots."""
    across, up = np.linspace(-1, 1, size[0]), np.linspace(-1, 1, size[1])
    loss = np.asarray(values(across[None, :], up[:, None]), np.float64)
    t = np.linspace(1, 0, 6)
    x, y = 0.9 * t * np.cos(2.5 * t), 0.7 * t * np.sin(2.5 * t)
    own = np.array([float(values(a, b)) for a, b in zip(x, y, strict=True)])
    steps = ProjectedPath(
        "epoch", np.array([0, 10, 200, 3000, 40000, 500000]), {"alpha": x * spans[0], "beta": y * spans[1]},
        own, own, 0 * t, np.ones(6, np.uint8),
    )  # fmt: skip
    surface = make.two_axes(name, across * spans[0], up * spans[1], loss, path=steps if path else None)
    if axes is not None:
        surface = replace(surface, axes=tuple(Axis(axis.name, axis.coordinates, axes) for axis in surface.axes))
    return surface


def bowl(a: Any, b: Any) -> Any:
    return make.bowl(a, b)


def line(values: Callable[[np.ndarray], np.ndarray], span: float = 1.0) -> Surface:
    """One axis with these values over [-1, 1], and errors of a twentieth."""
    at = np.linspace(-1, 1, 31)
    loss = np.asarray(values(at), np.float64)
    observables = {"loss": loss, "loss_stderr": 0.05 * np.abs(loss)}
    axes = (Axis("alpha", at * span, {"kind": "towards", "label": f"from {LONG} (0) towards epoch 1 (1)"}),)
    return Surface("line", axes, observables, np.ones(31, np.uint8), None, make.attributes(cosine=[[1.0]]))


def renamed(surface: Surface, observable: str) -> Surface:
    """The same with its accuracy under another name."""
    values = dict(surface.observables)
    values[observable] = values.pop("accuracy")
    return replace(surface, observables=values)


PCA = {"kind": "pca", "label": "principal component 1 of epochs 0 to 500000", "explained_variance": 0.862}
EIGEN = {"kind": "eigen", "label": "first eigenvector of the Hessian (λ = 3.1 ± 0.2)"}
FILE = {"kind": "file", "label": f"direction from {LONG.replace(' ', '-')}.safetensors (layer-normalised)"}


def problems() -> dict[str, Surface]:
    """The landscapes by what is hard about them."""
    return {
        "a bowl": plane(),
        "values of 1e-12": plane(lambda a, b: 1e-12 * bowl(a, b)),
        "values of 1e12": plane(lambda a, b: 1e12 * bowl(a, b)),
        "large values, small differences": plane(lambda a, b: 1000 + 1e-3 * bowl(a, b)),
        "negative values": plane(lambda a, b: -5 - bowl(a, b)),
        "both signs": plane(lambda a, b: bowl(a, b) - 1.5),
        "thirty decades": plane(lambda a, b: 10.0 ** (15 * (a + b))),
        "one value": plane(lambda a, b: 0.5 + 0 * a * b),
        "tiny axes": plane(spans=(1e-7, 1e-7)),
        "huge axes": plane(spans=(2e6, 2e6)),
        "a flat plane": plane(spans=(6.0, 1.3), axes=PCA),
        "a tall plane": plane(spans=(1.0, 3.0), axes=EIGEN),
        "axes of two sizes": plane(spans=(1e4, 1e-3)),
        "long names of axes": plane(axes=FILE, name="a landscape of a long name"),
        "no path, a fine grid": plane(size=(70, 65), path=False),
        "a hole and a rim": make.holed(),
        "a line over two decades": line(lambda at: 0.01 + at**2 * 3),
        "a line of 1e12": line(lambda at: 1e12 * (1 + at**2), 1e-5),
        "a path over a line": make.line(path=True),
        "three axes": make.block(),
    }
