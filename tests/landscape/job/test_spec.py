"""The job: defaults, short forms, round trips, and one or two useful lines for everything that is wrong with it."""

from __future__ import annotations

import json
import math
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from landscape import CollectLandscape, Job, JobError, Landscape, NotFoundError, read_job
from landscape.core.errors import printable
from landscape.core.text import canonical_json, digest
from landscape.job.directions.base import Normalise
from landscape.job.directions.random import RandomDirection

MINIMAL = {"run": "runs/a", "problem": "mine:problem"}


def job(**fields) -> Job:
    return Job(**(MINIMAL | fields))


def only(**fields) -> Landscape:
    return job(landscapes=[{"name": "a", **fields}]).landscapes[0]


# -- defaults and short forms --------------------------------------------------------------------------------


def test_defaults_are_the_documented_ones():
    found = job(landscapes=[{"name": "a"}])
    assert (found.num_samples, found.seed, found.precision, found.batch_norm) == (2048, 0, "float32", "eval")
    assert (found.batch_size, found.threads, found.tile, found.workers) == (None, None, None, None)
    spec = found.landscapes[0]
    assert spec.size == (41, 41)
    assert spec.origin is None
    assert [each.model_dump() for each in spec.directions] == [
        {"kind": "random", "seed": seed, "normalise": "filter", "ignore": ("bias", "norm"), "generator": "counter"}
        for seed in (1, 2)
    ]
    assert spec.axis_names == ("alpha", "beta")
    assert job().landscapes == ()


def test_the_designs_example_is_read(tmp_path):
    text = """
run: runs/resnet20
problem: my_problem:problem
num_samples: 2048
seed: 0
batch_size: 256
precision: float32
landscapes:
  - name: minimum
    origin: last
    directions:
      - {kind: random, seed: 1, normalise: filter, ignore: [bias, norm]}
      - {kind: random, seed: 2, normalise: filter, ignore: [bias, norm]}
    size: 41
    range: [-1, 1]
  - name: epochs-1-3
    trajectory: [1, 2, 3]
  - name: line
    directions: [{kind: towards, target: first}]
    size: 101
    range: [-0.2, 1.2]
  - name: mine
    directions: [{kind: file, path: d1.safetensors}, {kind: file, path: d2.safetensors}]
"""
    (tmp_path / "job.yaml").write_text(text)
    found = read_job(tmp_path / "job.yaml")
    minimum, path, line, mine = found.landscapes
    assert minimum.range == ((-1.0, 1.0), (-1.0, 1.0))
    assert [(each.kind, each.trajectory, each.component) for each in path.directions] == [
        ("pca", (1, 2, 3), 1), ("pca", (1, 2, 3), 2),
    ]  # fmt: skip
    assert (line.size, line.range, line.axis_names) == ((101,), ((-0.2, 1.2),), ("alpha",))
    assert [each.path for each in mine.directions] == ["d1.safetensors", "d2.safetensors"]
    assert found.run_path == str(tmp_path / "runs/resnet20")
    assert found.folder == tmp_path
    assert read_job(tmp_path / "job.yaml", num_samples=7, seed=None).num_samples == 7


def test_sizes_and_ranges_are_one_for_all_axes_or_one_each():
    assert only(size=5).size == (5, 5)
    assert only(size=[5, 7]).size == (5, 7)
    assert only(range=[-1, 2]).range == ((-1.0, 2.0), (-1.0, 2.0))
    assert only(range=[[-1, 2], [0, 0.5]]).range == ((-1.0, 2.0), (0.0, 0.5))
    assert only(size=3).size == (3, 3)
    assert only(size=65536).size == (65536, 65536)
    assert only(trajectory=[1, 2, 3], axes=3, size=4).size == (4, 4, 4)
    assert only(trajectory="all").directions[0].trajectory == "all"
    assert only(trajectory=[9, 1, 5, 1]).trajectory == (1, 5, 9)


def test_random_directions_without_a_seed_get_different_ones():
    directions = only(directions=[{"kind": "random"}, {"kind": "random"}, {"kind": "random"}]).directions
    assert [each.seed for each in directions] == [1, 2, 3]


def test_a_random_direction_means_the_same_written_out_and_left_out():
    written = only(directions=[{"kind": "random", "seed": 1}, {"kind": "random", "seed": 2}])
    assert written.directions == only().directions
    assert only(directions=[RandomDirection(seed=1), RandomDirection(seed=2)]).directions == written.directions
    assert written.directions[0].ignore == ("bias", "norm")
    assert only(directions=[{"kind": "random", "ignore": []}]).directions[0].ignore == ()


def test_run_may_be_a_path_or_a_url(tmp_path):
    assert job(run=tmp_path / "x").run_path == str(tmp_path / "x")
    assert job(run="s3://bucket/x").run_path == "s3://bucket/x"
    assert job(run=f"file://{tmp_path}/x").run_path == f"{tmp_path}/x"


def test_a_job_is_frozen_and_replaced_by_checked_copies():
    first = job(landscapes=[{"name": "a"}])
    with pytest.raises(Exception, match="frozen"):
        first.seed = 3
    second = first.replace(seed=3, num_samples=None)
    assert (second.seed, second.num_samples, first.seed) == (3, 2048, 0)
    with pytest.raises(JobError, match="seed"):
        first.replace(seed=-1)


# -- round trips ---------------------------------------------------------------------------------------------

DIRECTIONS = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("random"), "seed": st.integers(0, 2**63)},
        optional={"normalise": st.sampled_from(get_args(Normalise)), "ignore": st.just(["norm"])},
    ),
    st.fixed_dictionaries({"kind": st.just("towards"), "target": st.one_of(st.integers(0, 99), st.just("first"))}),
    st.fixed_dictionaries({"kind": st.just("file"), "path": st.sampled_from(["a.pt", "b/c.safetensors"])}),
    st.fixed_dictionaries({"kind": st.just("pca"), "trajectory": st.just([1, 2, 5]), "component": st.integers(1, 3)}),
)
PAIRS = st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).filter(lambda p: p[0] < p[1]).map(list)


@pytest.mark.long
@given(
    directions=st.lists(DIRECTIONS, min_size=1, max_size=3, unique_by=lambda each: str(sorted(each.items()))),
    size=st.integers(3, 65536),
    limits=st.one_of(st.none(), PAIRS),
)
def test_a_job_survives_json_and_yaml(directions, size, limits):
    first = job(landscapes=[{"name": "a", "directions": directions, "size": size, "range": limits}], num_samples=5)
    dumped = first.model_dump(mode="json")
    assert Job(**json.loads(canonical_json(dumped))) == first
    assert Job(**yaml.safe_load(yaml.safe_dump(dumped))) == first
    assert canonical_json(Job(**dumped).model_dump(mode="json")) == canonical_json(dumped)


def test_short_forms_survive_json_too():
    for spec in ({"trajectory": [1, 2, 3]}, {"trajectory": "all", "axes": 3}, {}):
        first = job(landscapes=[{"name": "a", **spec}])
        assert Job(**json.loads(canonical_json(first.model_dump(mode="json")))) == first


def test_canonical_json_is_one_text_per_value():
    assert canonical_json({"b": [1.0, 0.1], "a": None}) == '{"a":null,"b":[1.0,0.1]}'
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"a": math.nan})


# -- the collector's options ---------------------------------------------------------------------------------


def test_the_collectors_defaults_are_the_tutorials():
    found = CollectLandscape(intervals=[[3, 1, 2]])
    assert (found.landscape_size, found.unit, found.num_samples) == (40, "step", 2048)
    assert (found.create_landscape.train, found.create_landscape.result) == (True, True)
    assert found.snapshots == (1, 2, 3)


def test_the_collectors_options_stand_for_landscapes():
    found = CollectLandscape(intervals=[[1, 2, 3], [2, 5, 9]], unit="epoch", landscape_size=30).landscapes()
    assert [each.name for each in found] == ["epochs-1-3", "epochs-2-9", "result"]
    assert found[1].trajectory == (2, 5, 9)
    assert all(each.size == (30, 30) for each in found)
    assert [each.kind for each in found[2].directions] == ["random", "random"]
    only_train = CollectLandscape(intervals=[[1, 2, 3]], create_landscape={"result": False}).landscapes()
    assert [each.name for each in only_train] == ["steps-1-3"]
    same_ends = CollectLandscape(intervals=[[1, 2, 3], [1, 3, 2], [1, 2, 3, 3]]).landscapes()
    assert len({each.name for each in same_ends}) == 4


# -- bad input -----------------------------------------------------------------------------------------------

SPEC = {"name": "a"}
BAD_JOBS = {
    "unknown key": ({"num_sample": 3}, ["num_sample", "unknown key", "did you mean 'num_samples'"]),
    "unknown key of the collector": ({"collect_landscape": {"interval": []}}, ["interval", "did you mean 'intervals'"]),
    "missing run": ({"run": ...}, ["run", "required"]),
    "empty run": ({"run": " "}, ["run", "folder or URL"]),
    "run of another type": ({"run": 3}, ["run", "3"]),
    "problem without function": ({"problem": "mine"}, ["problem", "'module:function'", "'mine'"]),
    "problem with a dot": ({"problem": "mine.problem"}, ["'mine.problem'; write 'mine:problem'"]),
    "problem of another type": ({"problem": 3}, ["problem", "3"]),
    "no samples": ({"num_samples": 0}, ["num_samples", "at least 1", "0"]),
    "negative samples": ({"num_samples": -1}, ["num_samples", "at least 1", "-1"]),
    "samples in words": ({"num_samples": "many"}, ["num_samples", "whole number", "'many'"]),
    "half a sample": ({"num_samples": 2.5}, ["num_samples", "whole number", "2.5"]),
    "samples that are a bool": ({"num_samples": True}, ["num_samples", "whole number", "True"]),
    "negative seed": ({"seed": -1}, ["seed", "at least 0", "-1"]),
    "precision": ({"precision": "float16"}, ["precision", "'float32'", "'bfloat16'", "'float16'"]),
    "batch norm": ({"batch_norm": "train"}, ["batch_norm", "'recalibrate'", "'train'"]),
    "batch size": ({"batch_size": 0}, ["batch_size", "at least 1"]),
    "tile": ({"tile": 0}, ["tile", "at least 1", "0"]),
    "tile in words": ({"tile": "big"}, ["tile", "'big'"]),
    "device": ({"device": "tpu"}, ["device", "'cpu'", "'tpu'"]),
    "device ids": ({"device_ids": [-1]}, ["device_ids", "at least 0"]),
    "name": ({"landscapes": [{"name": "a/b"}]}, ["name", "letters", "'a/b'"]),
    "name of dots": ({"landscapes": [{"name": ".."}]}, ["name", "letters", "'..'"]),
    "name of a file of the store": ({"landscapes": [{"name": "zarr.json"}]}, ["name", "'zarr.json'"]),
    "no name": ({"landscapes": [{}]}, ["landscapes.0.name", "required"]),
    "the same name twice": ({"landscapes": [SPEC, SPEC]}, ["names of their own", "'a'", "2 times"]),
    "landscapes of another type": ({"landscapes": 3}, ["landscapes", "3"]),
    "landscapes by name": (
        {"landscapes": {"a": {"size": 3}}},
        ["landscapes: must be a list, not {'a': {'size': 3}}; begin each landscape with '- name: …'"],
    ),
    "collector size": ({"collect_landscape": {"intervals": [[1, 2, 3]], "landscape_size": 2}}, ["landscape_size", "2"]),
    "collector unit": (
        {"collect_landscape": {"intervals": [[1, 2, 3]], "unit": "hour"}},
        ["unit", "'epoch'", "'hour'"],
    ),
    "collector intervals": ({"collect_landscape": {"intervals": [[1, 2]]}}, ["intervals", "at least 3", "[1, 2]"]),
    "collector flat intervals": ({"collect_landscape": {"intervals": [1, 2, 3]}}, ["intervals", "list", "1"]),
    "collector without intervals": ({"collect_landscape": {"intervals": []}}, ["intervals", "[[1, 2, 3], [7, 8, 9]]"]),
    "batch size huge": ({"batch_size": 10**30}, ["batch_size", "at most 1000000000000"]),
    "samples huge": ({"num_samples": 10**30}, ["num_samples", "at most 1000000000000"]),
    "seed beyond torch's": ({"seed": 2**64}, ["seed", f"at most {2**64 - 1}", str(2**64)]),
    "seed of 100,000 digits": ({"seed": 10**100_000}, ["seed", "at most", "a number of 332193 bits"]),
    "seed and a half": ({"seed": 1.5}, ["seed", "whole number", "1.5"]),
    "seed that is a tensor": ({"seed": torch.tensor(1)}, ["seed", "whole number", "tensor(1)"]),
    "threads": ({"threads": 10**6}, ["threads", "at most 1024"]),
    "no threads": ({"threads": 0}, ["threads", "at least 1"]),
    "workers": ({"workers": 10**9}, ["workers", "at most 100000"]),
    "gpus nan": ({"num_gpus": math.nan}, ["num_gpus", "finite", "nan"]),
    "gpus infinite": ({"num_gpus": math.inf}, ["num_gpus", "finite", "inf"]),
    "gpus negative": ({"num_gpus": -0.5}, ["num_gpus", "share from 0 to 1", "-0.5"]),
    "gpus huge": ({"num_gpus": 10**400}, ["num_gpus", "finite"]),
    "gpus one and a half": ({"num_gpus": 1.5}, ["num_gpus", "share from 0 to 1, or a whole number", "1.5"]),
    "gpus in quotes": ({"num_gpus": "0.5"}, ["num_gpus", "number", "'0.5'", "no quotes"]),
    "gpus bool": ({"num_gpus": True}, ["num_gpus", "number", "True"]),
    "device ids twice": ({"device_ids": [0, 1, 0]}, ["device_ids", "each once", "[0, 1, 0]"]),
    "no device ids": ({"device_ids": []}, ["device_ids", "at least one GPU"]),
    "device ids of bools": ({"device_ids": [True]}, ["device_ids", "whole number", "True"]),
    "device ids alone": ({"device_ids": 0}, ["device_ids", "a list", "0"]),
    "tile of nothing": ({"tile": []}, ["tile", "one number or one per axis", "[]"]),
    "tile of four": ({"tile": [1, 2, 3, 4]}, ["tile", "one number or one per axis", "[1, 2, 3, 4]"]),
    "tile bool": ({"tile": True}, ["tile", "whole number", "True"]),
    "tile huge": ({"tile": 10**30}, ["tile", "at most 65536"]),
    "names that differ in case": (
        {"landscapes": [{"name": "A"}, {"name": "a"}]},
        ["landscapes", "differ in more than case", "A and a"],
    ),
    "name with a slash": ({"landscapes": [{"name": "a/../b"}]}, ["name", "letters", "'a/../b'"]),
    "name with a control character": (
        {"landscapes": [{"name": "a\x1b[2J"}]},
        ["name", "control characters", r"'a\x1b[2J'"],
    ),
    "name of 200 kB": ({"landscapes": [{"name": "a" * 200_000}]}, ["name", "at most 4000 characters"]),
    "name of 101 characters": ({"landscapes": [{"name": "a" * 101}]}, ["name", "at most 100"]),
    "name that is a number": ({"landscapes": [{"name": 3}]}, ["name", "text", "3"]),
    "run with a control character": ({"run": "a\x1b[2J"}, ["run", "control characters", r"'a\x1b[2J'"]),
    "run with a null byte": ({"run": "a\0"}, ["run", "control characters"]),
    "run of two lines": ({"run": "a\nb"}, ["run", "one line"]),
    "run of 5000 characters": ({"run": "x" * 5000}, ["run", "at most 4000 characters", "not 5000: 'xxx"]),
    "run of a long name": ({"run": "a/" + "é" * 200}, ["run", "255 between slashes", "not 202: 'a/éé"]),
    "run of half a URL": ({"run": "http://[::1"}, ["run", "path or a whole URL", "'http://[::1'"]),
    "engine of many points": ({"engine": "vmap:99999999999999999999"}, ["engine", "must be auto"]),
    "engine of a power": ({"engine": "vmap:²"}, ["engine", "must be auto", "'vmap:²'"]),
    "engine of one point": ({"engine": "vmap:1"}, ["engine", "must be auto", "'vmap:1'"]),
    "problem of three parts": ({"problem": "a:b:c"}, ["problem", "'module:function'", "'a:b:c'"]),
    "problem of a dot": ({"problem": ".:x"}, ["problem", "'module:function'", "'.:x'"]),
    "problem of a file": ({"problem": "mine.py:problem"}, ["problem", "'module:function'", "leave out '.py'"]),
    "problem of a path": ({"problem": "../mine:problem"}, ["problem", "'module:function'", "'../mine:problem'"]),
    "problem list": ({"problem": ["m:p"]}, ["problem", "'module:function'", "['m:p']"]),
    "landscape that is a text": ({"landscapes": ["a"]}, ["landscapes.0", "keys and values", "'a'"]),
    "collector that is a list": ({"collect_landscape": []}, ["collect_landscape", "keys and values", "[]"]),
    "collector create": (
        {"collect_landscape": {"intervals": [[1, 2, 3]], "create_landscape": {"train": "maybe"}}},
        ["create_landscape.train", "true or false", "'maybe'"],
    ),
    "collector of all": ({"collect_landscape": {"intervals": ["all"]}}, ["intervals", "'all' serves in a job's"]),
    "engine": ({"engine": "fast"}, ["engine", "auto", "'fast'"]),
    "engine that is a number": ({"engine": 3}, ["engine", "text", "3"]),
    "key of 200 kB": ({"x" * 200_000: 3}, ["unknown key 'xxxx", "known: run"]),
    "key of control characters": ({"\x1b[2J": 3}, [r"\u001b[2J: unknown key"]),
    "value of 200 kB": ({"precision": "x" * 200_000}, ["precision", "'float32'"]),
    "many": ({"num_samples": 0, "seed": -1, "batch_size": 0, "x": 1}, ["num_samples", "seed", "2 more"]),
}
BAD_LANDSCAPES = {
    "unknown key of a landscape": ({"sise": 3}, ["landscapes.0", "sise", "did you mean 'size'"]),
    "a job's key in a landscape": (
        {"tile": 4},
        ["landscapes.0.tile: must be a field of the whole job, not of a part", "move 'tile: 4' beside 'landscapes'"],
    ),
    "a job's text in a landscape": ({"batch_norm": "batch"}, ["move 'batch_norm: batch' beside 'landscapes'"]),
    "a direction's key in a landscape": (
        {"normalise": "layer"},
        ["normalise: belongs to a direction, not to the landscape: directions: [{kind: random, normalise: …}]"],
    ),
    "a landscape's seed is not the job's": ({"seed": 1}, ["landscapes.0.seed: unknown key 'seed'"]),
    "size 2": ({"size": 2}, ["landscapes.0.size", "3 to 65536", "2"]),
    "size -1": ({"size": -1}, ["landscapes.0.size", "3 to 65536", "-1"]),
    "size forty": ({"size": "forty"}, ["landscapes.0.size", "whole number", "'forty'"]),
    "size 65537": ({"size": 65537}, ["landscapes.0.size", "65537"]),
    "three sizes": ({"size": [3, 3, 3]}, ["size", "one per axis (2)", "3"]),
    "no size": ({"size": []}, ["size", "one per axis (2)", "0"]),
    "range reversed": ({"range": [1, -1]}, ["range", "low to high", "[1, -1]", "swap"]),
    "range equal": ({"range": [1, 1]}, ["range", "low to high", "[1, 1]", "widen"]),
    "range infinite": ({"range": [0, math.inf]}, ["range", "finite", "inf"]),
    "range huge": ({"range": [0, 10**400]}, ["range", "finite"]),
    "range in words": ({"range": "wide"}, ["range", "pair", "'wide'"]),
    "range of three": ({"range": [0, 1, 2]}, ["range", "pair", "[0, 1, 2]"]),
    "range mixed": ({"range": [[0, 1], 2]}, ["range", "pair", "2"]),
    "three ranges": ({"range": [[0, 1]] * 3}, ["range", "one per axis (2)", "3"]),
    "two snapshots": ({"trajectory": [1, 2]}, ["trajectory", "at least 3", "[1, 2]"]),
    "the same snapshot": ({"trajectory": [1, 1, 1]}, ["trajectory", "3 different", "[1, 1, 1]"]),
    "negative snapshot": ({"trajectory": [-1, 1, 2]}, ["trajectory", "from 0 on", "-1"]),
    "snapshots in words": ({"trajectory": "every"}, ["trajectory", "'all'", "'every'"]),
    "axes": ({"trajectory": [1, 2, 3], "axes": 4}, ["axes", "1, 2 or 3", "4"]),
    "no axes": ({"trajectory": [1, 2, 3], "axes": 0}, ["axes", "1, 2 or 3", "0"]),
    "axes alone": ({"axes": 1}, ["axes", "trajectory"]),
    "trajectory and directions": (
        {"trajectory": [1, 2, 3], "directions": [{"kind": "random"}]},
        ["trajectory and directions", "exclude"],
    ),
    "trajectory and wrong directions": (
        {"trajectory": [1, 2, 3], "directions": [{"kind": "rand"}, {"x": 1}]},
        ["kind", "'rand'"],
    ),
    "no directions": ({"directions": []}, ["directions", "1, 2 or 3", "0"]),
    "four directions": ({"directions": [{"kind": "random"}] * 4}, ["directions", "1, 2 or 3", "4"]),
    "the same direction twice": (
        {"directions": [{"kind": "random", "seed": 1}] * 2},
        ["1 and 2 are the same", "change"],
    ),
    "size bool": ({"size": True}, ["size", "whole number", "True"]),
    "size of bools": ({"size": [True, 5]}, ["size", "whole number", "True"]),
    "size null": ({"size": None}, ["size", "whole number", "None"]),
    "range nan": ({"range": [math.nan, 1]}, ["range", "finite", "nan"]),
    "range of texts": ({"range": ["-1e-3", "1e-3"]}, ["range", "two numbers", "'-1e-3'", "write -0.001"]),
    "range of bytes": ({"range": b"ab"}, ["range", "pair", "b'ab'"]),
    "range of bools": ({"range": [False, True]}, ["range", "two numbers", "[False, True]"]),
    "range denormal": ({"range": [0, 5e-324]}, ["range", "41 different coordinates", "widen"]),
    "range too narrow": (
        {"range": [1, 1 + 1e-15]},
        ["landscapes.0", "range", "different coordinates in float64", "[1.0, 1.000000000000001]"],
    ),
    "range too narrow for so many": (
        {"range": [1, 1.000000000001], "size": 65536},
        ["range", "65536 different coordinates", "fewer points"],
    ),
    "snapshots of bytes": ({"trajectory": b"abc"}, ["trajectory", "list", "b'abc'"]),
    "snapshots of an array": ({"trajectory": np.arange(5)}, ["trajectory", "list", "array"]),
    "snapshot huge": ({"trajectory": [1, 2, 2**63]}, ["trajectory", "below 2**63"]),
    "axes bool": ({"trajectory": [1, 2, 3], "axes": True}, ["axes", "1, 2 or 3", "True"]),
    "axes in words": ({"trajectory": [1, 2, 3], "axes": "2"}, ["axes", "1, 2 or 3", "'2'"]),
    "axes of an array": ({"trajectory": [1, 2, 3], "axes": np.arange(2)}, ["axes", "1, 2 or 3", "array"]),
    "origin and a half": ({"origin": 1.5}, ["landscapes.0.origin", "snapshot's number", "1.5"]),
    "origin bool": ({"origin": True}, ["landscapes.0.origin", "snapshot's number", "True"]),
    "origin empty": ({"origin": ""}, ["landscapes.0.origin", "snapshot's number", "''"]),
    "origin negative": ({"origin": -1}, ["landscapes.0.origin", "snapshot's number", "-1"]),
    "origin list": ({"origin": [1]}, ["landscapes.0.origin", "snapshot's number", "[1]"]),
    "origin of 5000 characters": ({"origin": "x" * 5000}, ["origin", "at most 4000"]),
    "key that is a number": ({1: 2}, ["landscapes.0", "words"]),
}
BAD_DIRECTIONS = {
    "a direction's seed is not the job's": (
        {"kind": "towards", "target": "first", "seed": 1},
        ["landscapes.0.directions.0.seed: unknown key 'seed'", "known: kind, target"],
    ),
    "unknown key of a direction": (
        {"kind": "random", "sed": 1},
        ["landscapes.0.directions.0", "'sed'", "did you mean 'seed'"],
    ),
    "kind": ({"kind": "rnd"}, ["kind", "random, towards, file, pca", "'rnd'"]),
    "no kind": ({"seed": 1}, ["kind", "random, towards, file, pca"]),
    "normalise": ({"kind": "random", "normalise": "filters"}, ["normalise", "'filters'"]),
    "no target": ({"kind": "towards"}, ["target", "required"]),
    "component": ({"kind": "pca", "trajectory": "all", "component": 0}, ["component", "at least 1", "0"]),
    "seed of a direction beyond torch's": (
        {"kind": "random", "seed": 2**64},
        ["landscapes.0.directions.0.seed", "at most"],
    ),
    "target and a half": (
        {"kind": "towards", "target": 1.5},
        ["landscapes.0.directions.0.target", "snapshot's number", "1.5"],
    ),
    "target bool": ({"kind": "towards", "target": True}, ["landscapes.0.directions.0.target", "True"]),
    "ignore of another": ({"kind": "random", "ignore": ["weight"]}, ["ignore", "'bias'", "'weight'"]),
    "ignore in one word": ({"kind": "random", "ignore": "bias"}, ["ignore", "a list", "'bias'"]),
    "no path": ({"kind": "file", "path": " "}, ["path", "' '"]),
}
REFUSED = (
    BAD_JOBS
    | {case: ({"landscapes": [SPEC | fields]}, words) for case, (fields, words) in BAD_LANDSCAPES.items()}
    | {case: ({"landscapes": [SPEC | {"directions": [one]}]}, words) for case, (one, words) in BAD_DIRECTIONS.items()}
)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_two_lines_that_name_field_rule_and_value(case):
    fields, words = REFUSED[case]
    given_fields = {key: value for key, value in (MINIMAL | fields).items() if value is not ...}
    with pytest.raises(JobError) as caught:
        Job(**given_fields)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert message.count("\n") <= 1, message
    assert all(len(line) <= 300 for line in message.splitlines()), message
    assert printable(message) == message
    for word in words:
        assert word in message, message


def test_numbers_of_numpy_are_numbers():
    spec = {
        "name": "a", "size": np.int64(5), "range": [np.float32(-0.5), Fraction(1, 2)], "origin": np.int32(3),
    }  # fmt: skip
    found = job(seed=np.uint8(7), num_samples=np.int64(3), num_gpus=np.float64(0.5), tile=np.int8(3), landscapes=[spec])
    plain = {"name": "a", "size": 5, "range": [-0.5, 0.5], "origin": 3}
    expected = job(seed=7, num_samples=3, num_gpus=0.5, tile=3, landscapes=[plain])
    assert found == expected
    assert canonical_json(found.model_dump(mode="json")) == canonical_json(expected.model_dump(mode="json"))
    assert type(found.seed) is int


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Landscape(name="a/b"), ["name: must be letters"]),
        (lambda: Landscape(name="a", sise=3), ["sise: unknown key", "did you mean 'size'"]),
        (lambda: CollectLandscape(intervals=3), ["intervals: must be a list of lists"]),
        (lambda: RandomDirection(seed=-1), ["seed: must be at least 0"]),
        (lambda: job().replace(threads=0), ["threads: must be at least 1"]),
    ],
)
def test_values_made_in_python_are_refused_the_same_way(make, words):
    with pytest.raises(JobError) as caught:
        make()
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


BOMB = "a0: &a0 [1, 2]\n" + "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 60))
BAD_FILES = {
    "not yaml": ("run: [1", ["line 1", "is not YAML"]),
    "a key twice": ("run: a\nproblem: m:p\nrun: b\n", ["line 3", "key 'run' stands twice, first in line 1"]),
    "a key twice further in": ("landscapes:\n- name: a\n  size: 3\n  size: 5\n", ["line 4", "key 'size'", "line 3"]),
    "two merges": ("a: &a {x: 1}\nb: {<<: *a, <<: *a}", ["line 2", "key '<<' stands twice"]),
    "a bomb of aliases": (BOMB, ["more than 20000 values"]),
    "an alias of itself": ("run: &a [*a]", ["line 1", "alias stands inside"]),
    "many values": ("run: [" + "1," * 30_000 + "]", ["more than 20000 values"]),
    "deep": ("run: " + "[" * 100_000, ["line 1", "more than 32 deep"]),
    "deep blocks": ("\n".join(" " * k + "a:" for k in range(500)), ["line 32", "more than 32 deep"]),
    "large": ("#" * 10_000_000, ["more than 1048576 bytes"]),
    "a tab": ("run: a\n\tproblem: b", ["line 2", "use spaces"]),
    "a null byte": ("run: a\nproblem: \0", ["line 2", "U+0000"]),
    "an escape": ("run: '\x1b[2J'", ["line 1", "U+001B"]),
    "a tag of python": ("run: !!python/object/apply:os.system [ls]", ["line 1", "'!!python/object/apply:os.system'"]),
    "a tag of its own": ("run: !mine a", ["line 1", "tag '!mine'"]),
    "no number": ("seed: !!int x", ["line 1", "'x' cannot be read as int"]),
    "no bool": ("seed: !!bool x", ["line 1", "'x' cannot be read as bool"]),
    "a number of 5000 digits": ("seed: " + "9" * 5000, ["line 1", "cannot be read as int"]),
    "a number in base 8": ("seed: 010", ["line 1", "'010' is not plain decimal"]),
    "a number in base 60": ("seed: 1:30", ["line 1", "'1:30' is not plain decimal"]),
    "two documents": ("run: a\n---\nrun: b", ["line 2", "a second document begins"]),
    "a key of several words": ("? [a, b]\n: 1", ["line 1", "a key must be one word"]),
    "an unknown alias": ("run: *a", ["line 1", "alias 'a'"]),
    "a merge of no mapping": ("<<: 3", ["line 1", "merg"]),
    "utf-16": ("run: a".encode("utf-16"), ["line 1", "cannot be read as UTF-8"]),
    "a list": ("- run", ["must hold 'key: value' lines", "list"]),
    "empty": ("", ["must hold 'key: value' lines", "nothing"]),
    "key that is no word": ("run: a\nproblem: m:p\n1: 2\n", ["unknown key '1'"]),
    "key that yaml takes for a bool": ("run: a\nproblem: m:p\non: 2\n", ["unknown key 'on'"]),
    "key that python knows": ("run: a\nproblem: m:p\nself: 2\n", ["unknown key 'self'"]),
    "binary": (b"\xff\xfe\x00", ["cannot be read"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_is_no_job_is_refused(tmp_path, case):
    text, words = BAD_FILES[case]
    (tmp_path / "job.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(JobError) as caught:
        read_job(tmp_path / "job.yaml")
    assert str(caught.value).count("\n") <= 1
    for word in words:
        assert word in str(caught.value)


def test_merges_aliases_and_days_are_read_as_they_are_meant(tmp_path):
    text = """
run: 2026-11-21
problem: m:p
landscapes:
- &plane {name: 2026-11-20, size: 5, range: &range [-1, 1]}
- {<<: *plane, name: b, size: 7}
- {name: c, range: *range}
"""
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8-sig")
    found = read_job(tmp_path / "job.yaml")
    assert found.run == "2026-11-21"
    assert [(each.name, each.size, each.range) for each in found.landscapes] == [
        ("2026-11-20", (5, 5), ((-1.0, 1.0),) * 2), ("b", (7, 7), ((-1.0, 1.0),) * 2),
        ("c", (41, 41), ((-1.0, 1.0),) * 2),
    ]  # fmt: skip


def test_an_empty_run_on_the_command_line_is_not_the_working_directory(tmp_path):
    (tmp_path / "job.yaml").write_text("run: a\nproblem: m:p\n")
    with pytest.raises(JobError, match="run: must be a folder or URL, not ''"):
        read_job(tmp_path / "job.yaml", run="")


WORDS = st.sampled_from(
    ["run", "problem", "m:p", "seed", "landscapes", "name", "size", "range", "directions", "kind", "random",
     "trajectory", "collect_landscape", "intervals", "origin", "target", "device_ids", "tile", "all", "a", "1",
     "-1", "1.5", "1e400", ".nan", "true", "null", "~", "2026-11-20", "010", "0x", "!!int", "!!binary aGk=",
     "\u202e", "é", "9" * 5000, "x" * 500, "%", "!!python/name:os.x", "&a", "*a", "<<",
     "'", '"', "[", "]", "{", "}", ": ", "- ", ", ", "\n", "\n  ", "\t", "#", "|", "---", "\x00", "\x1b[2J"]
)  # fmt: skip
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["all", "a"])),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=12,
)


def some_of(*names: str) -> dict[str, st.SearchStrategy]:
    return dict.fromkeys(names, PLAIN)


LIKE_LANDSCAPES = st.fixed_dictionaries(
    {"name": st.just("a")}, optional=some_of("origin", "directions", "trajectory", "axes", "size", "range")
)
LIKE_JOBS = st.fixed_dictionaries(
    {"run": st.one_of(st.just("a"), PLAIN), "problem": st.one_of(st.just("m:p"), PLAIN)},
    optional=some_of("seed", "collect_landscape", "range", "tile", "num_gpus", "engine", "device_ids")
    | {"landscapes": st.one_of(PLAIN, st.lists(LIKE_LANDSCAPES, max_size=3))},
)
TEXTS = st.one_of(st.lists(WORDS).map("".join), LIKE_JOBS.map(lambda job: yaml.safe_dump(job, allow_unicode=True)))


def refusal_of(file: Path) -> str:
    """What is said of a file that is no job; empty where it is one."""
    try:
        read_job(file)
    except JobError as error:
        return str(error) or "nothing is said"
    return ""


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(TEXTS)
def test_any_text_is_a_job_or_refused_in_two_short_lines(text):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "job.yaml")
        file.write_bytes(text.encode(errors="surrogatepass"))
        told = refusal_of(file)
    assert len(told.splitlines()) <= 2
    assert all(len(line) <= 300 for line in told.splitlines()), told
    assert printable(told) == told


def test_a_file_that_is_not_there_is_not_found(tmp_path):
    with pytest.raises(NotFoundError, match=r"job file '.*nowhere.yaml' does not exist; `landscape init`") as caught:
        read_job(tmp_path / "nowhere.yaml")
    assert caught.value.exit_code == 3
    with pytest.raises(JobError, match="cannot be read: it is a folder, such as a run's; name the job file"):
        read_job(tmp_path)
