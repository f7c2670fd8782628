"""The table of kinds: what each answers, and that one class and one line make a new one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from small_models import Quadratic, make_job, quadratic_problem, wandering, write_trajectory

from landscape.compute.landscape_context import LandscapeContext, Weights
from landscape.compute.prepare import prepare
from landscape.core.grid import AXIS_NAMES
from landscape.job.directions.base import DirectionSpec
from landscape.job.directions.file import FileDirection
from landscape.job.directions.kinds import KINDS
from landscape.job.directions.plane import PcaDirection, PlaneDirection, TowardsDirection
from landscape.job.directions.random import RandomDirection
from landscape.job.landscape import Landscape
from landscape.model.parameters import describe_parameters
from landscape.model.snapshots import read_trajectory
from landscape.problem.batches import as_samples

BASIS = '''
"""A unit vector along one element of one parameter."""

from typing import Literal

from landscape.job.directions.base import DirectionSpec


class BasisDirection(DirectionSpec):
    kind: Literal["basis"] = "basis"
    parameter: str
    element: int = 0

    default_range = (-0.5, 0.5)

    def make(self, context):
        import torch

        tensor = torch.zeros(context.origin[self.parameter].shape)
        tensor.view(-1)[self.element] = 1.0
        return {self.parameter: tensor}

    def label(self, context):
        return f"element {self.element} of {self.parameter}, of {len(context.samples)} samples"

    def attributes(self, context):
        return {"elements": context.origin[self.parameter].numel()}
'''

SCRIPT = """
import json, sys

import landscape.job.directions.kinds as kinds
from basis import BasisDirection

kinds.KINDS = (*kinds.KINDS, BasisDirection)  # the line in the table
kinds.Direction = kinds.one_of(kinds.KINDS)

from landscape import Job, JobError, run
from small_models import quadratic_problem

def directions(element):
    return [{"kind": "basis", "parameter": "vector", "element": element}, {"kind": "random"}]

def job(element):
    plane = {"name": "plane", "directions": directions(element), "size": [5, 3]}
    return Job(run="run", problem=quadratic_problem, num_samples=23, landscapes=[plane], engine="eager")

def refusal(make):
    try:
        make()
    except JobError as error:
        return str(error)

surface = run(job(2))["plane"]
again = run(job(2))["plane"]
print(json.dumps({
    "label": surface.axes[0].attributes["label"],
    "elements": surface.axes[0].attributes["elements"],
    "alpha": surface.alpha.tolist(),
    "identity": surface.attributes["identity"]["directions"][0],
    "same": surface.loss.tobytes() == again.loss.tobytes(),
    "other": refusal(lambda: run(job(3))),
    "unknown": refusal(lambda: Job(run="r", problem="a:b", landscapes=[{"name": "x", "directions": [{"kind": "x"}]}])),
    "misspelt": refusal(lambda: Job(run="r", problem="a:b", landscapes=[
        {"name": "x", "directions": [{"kind": "basis", "parameter": "w", "elemnt": 1}]}])),
}))
"""


@pytest.mark.long
def test_a_kind_is_one_class_and_one_line_in_the_table(tmp_path):
    (tmp_path / "basis.py").write_text(BASIS)
    (tmp_path / "script.py").write_text(dedent(SCRIPT))
    support = Path(sys.modules[Quadratic.__module__].__file__).parent
    path = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(support)!r}]; "
    code = path + f"import gc, runpy; runpy.run_path({str(tmp_path / 'script.py')!r}); gc.freeze()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["label"] == "element 2 of vector, of 23 samples"
    assert seen["elements"] == 5
    assert seen["alpha"] == [-0.5, -0.25, 0.0, 0.25, 0.5]
    assert seen["identity"] == {"kind": "basis", "parameter": "vector", "element": 2}
    assert seen["same"]
    assert "changed: directions (axis 1: parameter=vector element=2 to parameter=vector element=3)" in seen["other"]
    assert seen["unknown"].startswith("landscapes.0.directions.0.kind: must be random, towards, file, pca, ")
    assert seen["unknown"].endswith(" or basis, not 'x'")
    assert "landscapes.0.directions.0.elemnt: unknown key 'elemnt'; did you mean 'element'?" in seen["misspelt"]


def test_every_kind_has_a_word_of_its_own_and_says_what_it_is():
    words = [kind.model_fields["kind"].default for kind in KINDS]
    assert words[:6] == ["random", "towards", "file", "pca", "plane", "eigen"]
    assert len(set(words)) == len(words)
    assert all(kind.__doc__ for kind in KINDS)


def test_a_job_is_read_without_torch():
    """Its import takes seconds, and a command that only sends a job needs none of it."""
    code = "import sys, landscape.job.reading, landscape.job.directions.kinds; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


NAMED = [
    (RandomDirection(seed=1), (), False),
    (TowardsDirection(target="last"), (), True),
    (TowardsDirection(target=3), (), True),
    (TowardsDirection(target="problem"), (), False),
    (TowardsDirection(target="far.pt"), ("far.pt",), False),
    (FileDirection(path="d.safetensors"), ("d.safetensors",), False),
    (PcaDirection(trajectory="all"), (), True),
    (PlaneDirection(models=("a.pt", 3, "b.pt")), ("a.pt", "b.pt"), True),
]


@pytest.mark.parametrize(("direction", "files", "trajectory"), NAMED, ids=lambda each: repr(each)[:40])
def test_files_that_travel_and_snapshots_that_are_needed_follow_from_the_kind(direction, files, trajectory):
    spec = Landscape(name="line", directions=[direction], origin="start.pt")
    assert tuple(spec.named_files()) == ("start.pt", *files)
    assert spec.needs_trajectory == trajectory


def test_a_landscape_needs_the_snapshot_at_its_origin():
    assert Landscape(name="plane", origin=7).needs_trajectory
    assert not Landscape(name="plane").needs_trajectory


def test_axes_without_a_seed_are_numbered_by_their_place():
    spec = Landscape(name="space", directions=[{"kind": "random"}] * len(AXIS_NAMES))
    assert [each.seed for each in spec.directions] == [1, 2, 3]


# -- what a kind may ask for ----------------------------------------------------------------------------------


class Asking(DirectionSpec):
    """A kind that asks for everything."""

    kind: str = "asking"

    def make(self, context):
        halves = context.workers(lambda count: count // 2, [2, 4])
        return {
            "origin": context.origin["vector"],
            "first": context.state("first")["vector"],
            "about": torch.tensor([len(context.infos), len(context.samples), len(context.axes)]),
            "halves": torch.tensor(halves),
            "file": context.tensors("d.pt")["w"],
            "model": context.problem.model.vector.detach(),
        }

    def label(self, context):
        return f"{context.unit} {context.snapshots('all')}, {context.name('last')}, {context.digest('first')[:4]}"


def test_a_kind_may_ask_for_weights_files_problem_samples_and_workers(tmp_path):
    problem = quadratic_problem()
    states = wandering(problem.model, 3)
    write_trajectory(tmp_path, states)
    torch.save({"w": torch.ones(2)}, tmp_path / "d.pt")
    weights = Weights(problem, read_trajectory(str(tmp_path)), tmp_path)
    spec = Landscape(name="plane", origin=2)
    infos = describe_parameters(problem.model)

    context = LandscapeContext(spec, weights, infos, problem, as_samples(problem.data))
    made = Asking().make(context)
    assert torch.equal(made["origin"], states[2]["vector"])
    assert torch.equal(made["first"], states[1]["vector"])
    assert made["about"].tolist() == [3, 23, 2]
    assert made["halves"].tolist() == [1, 2]
    assert torch.equal(made["file"], torch.ones(2))
    assert torch.equal(made["model"], problem.model.vector)
    assert Asking().label(context).startswith("epoch (1, 2, 3), epoch 3, ")


def test_what_axes_share_is_computed_once(tmp_path, monkeypatch):
    from landscape.job.directions import tensors

    problem, calls = quadratic_problem(), []
    write_trajectory(tmp_path / "run", wandering(problem.model, 5))
    compute = tensors.principal_components

    def counting(states, names, count, *others):
        calls.append(count)
        return compute(states, names, count, *others)

    monkeypatch.setattr(tensors, "principal_components", counting)
    prepare(make_job(tmp_path / "run", lambda: problem, [{"name": "space", "trajectory": "all", "axes": 3, "size": 3}]))
    assert calls == [3]
