"""Compute and see neural-network loss landscapes. Runs serially by itself; `cluster` runs it on Ray.

Names are imported when they are first used, so that `import landscape` is quick and draws in neither ray nor plotly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from landscape.core.late_imports import import_on_use, provide

if TYPE_CHECKING:
    from landscape.analysis.connect.connect import connect
    from landscape.analysis.inspection import inspect
    from landscape.analysis.questions import check, compare, measure, sharpness
    from landscape.compute.extend import extend
    from landscape.compute.in_memory import between, line, path, plane, volume
    from landscape.compute.pack import pack
    from landscape.compute.planning import plan
    from landscape.compute.refine import refine, run
    from landscape.core.errors import JobError, LandscapeError, NotFoundError
    from landscape.evaluation.tuning.choices import Limits
    from landscape.job.directions.file import EigenDirection, FileDirection
    from landscape.job.directions.plane import PcaDirection, PlaneDirection, TowardsDirection
    from landscape.job.directions.random import RandomDirection
    from landscape.job.job import CollectLandscape, Job
    from landscape.job.landscape import Landscape
    from landscape.job.reading import read_job
    from landscape.model.checkpoint_import import import_checkpoints
    from landscape.model.snapshots import read_trajectory
    from landscape.problem.large_models import without_weights
    from landscape.problem.terms import Problem
    from landscape.store.compact import compact_landscape
    from landscape.store.import_mindspore import import_mindspore
    from landscape.store.importing import import_surface
    from landscape.store.resampling import Bootstrap, bootstrap, by_class, subset
    from landscape.store.results import Run, open_run, remove_landscape, remove_run, rename_landscape
    from landscape.store.status import list_runs
    from landscape.surface.surface import Axis, ProjectedPath, Surface
    from landscape.surface.topology import Topology, topology_of
    from landscape.training.callbacks import LandscapeCallback
    from landscape.training.collector import TrajectoryCollector
    from landscape.training.thor.optimizer import THOR
    from landscape.training.training import Training

__version__ = "1.0.0"

_HOMES = {
    "analysis.connect.connect": ("connect",),
    "analysis.inspection": ("inspect",),
    "analysis.questions": ("check", "compare", "measure", "sharpness"),
    "compute.extend": ("extend",),
    "compute.in_memory": ("between", "line", "path", "plane", "volume"),
    "compute.pack": ("pack",),
    "compute.planning": ("plan",),
    "compute.refine": ("run", "refine"),
    "core.errors": ("JobError", "LandscapeError", "NotFoundError"),
    "evaluation.tuning.choices": ("Limits",),
    "job.directions.file": ("EigenDirection", "FileDirection"),
    "job.directions.plane": ("PcaDirection", "PlaneDirection", "TowardsDirection"),
    "job.directions.random": ("RandomDirection",),
    "job.job": ("CollectLandscape", "Job"),
    "job.landscape": ("Landscape",),
    "job.reading": ("read_job",),
    "model.checkpoint_import": ("import_checkpoints",),
    "model.snapshots": ("read_trajectory",),
    "problem.large_models": ("without_weights",),
    "problem.terms": ("Problem",),
    "store.compact": ("compact_landscape",),
    "store.import_mindspore": ("import_mindspore",),
    "store.importing": ("import_surface",),
    "store.resampling": ("Bootstrap", "bootstrap", "by_class", "subset"),
    "store.results": ("Run", "open_run", "remove_landscape", "remove_run", "rename_landscape"),
    "store.status": ("list_runs",),
    "surface.surface": ("Axis", "ProjectedPath", "Surface"),
    "surface.topology": ("Topology", "topology_of"),
    "training.callbacks": ("LandscapeCallback",),
    "training.collector": ("TrajectoryCollector",),
    "training.thor.optimizer": ("THOR",),
    "training.training": ("Training",),
}

__all__ = [
    "THOR",
    "Axis",
    "Bootstrap",
    "CollectLandscape",
    "EigenDirection",
    "FileDirection",
    "Job",
    "JobError",
    "Landscape",
    "LandscapeCallback",
    "LandscapeError",
    "Limits",
    "NotFoundError",
    "PcaDirection",
    "PlaneDirection",
    "Problem",
    "ProjectedPath",
    "RandomDirection",
    "Run",
    "Surface",
    "Topology",
    "TowardsDirection",
    "Training",
    "TrajectoryCollector",
    "between",
    "bootstrap",
    "by_class",
    "check",
    "compact_landscape",
    "compare",
    "connect",
    "extend",
    "import_checkpoints",
    "import_mindspore",
    "import_surface",
    "inspect",
    "line",
    "list_runs",
    "measure",
    "open_run",
    "pack",
    "path",
    "plan",
    "plane",
    "read_job",
    "read_trajectory",
    "refine",
    "remove_landscape",
    "remove_run",
    "rename_landscape",
    "run",
    "sharpness",
    "subset",
    "topology_of",
    "volume",
    "without_weights",
]


__getattr__ = import_on_use(__name__, _HOMES)
provide("views", lambda: importlib.import_module("landscape.views"))
provide("surface_run", lambda: importlib.import_module("landscape.compute.surface_run"))


def __dir__() -> list[str]:
    return sorted(__all__)
