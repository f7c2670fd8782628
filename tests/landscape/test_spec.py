"""The job: defaults, short forms, round trips, and one or two useful lines for everything that is wrong with it."""

from __future__ import annotations

import json
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from landscape import CollectLandscape, Job, JobError, Landscape, NotFoundError, read_job
from landscape.spec import DEFAULTS, RandomDirection, canonical_json, digest, with_defaults_of

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
        {"kind": "random", "seed": seed, "normalise": "filter", "ignore": ("bias", "norm")} for seed in (1, 2)
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
    """In 0.1.0 the default directions ignored bias and norm, and `{kind: random}` ignored nothing."""
    written = only(directions=[{"kind": "random", "seed": 1}, {"kind": "random", "seed": 2}])
    assert written.directions == only().directions
    assert only(directions=[RandomDirection(seed=1), RandomDirection(seed=2)]).directions == written.directions
    assert written.directions[0].ignore == ("bias", "norm")
    assert only(directions=[{"kind": "random", "ignore": []}]).directions[0].ignore == ()


def test_what_a_job_leaves_out_has_the_meaning_of_the_version_that_began_the_landscape():
    plain, written = only(), only(directions=[{"kind": "random"}, {"kind": "random", "ignore": ["norm"]}], size=7)
    stated = {"kind": "random", "seed": 1, "ignore": ["bias", "norm"]}
    assert all(with_defaults_of(each, DEFAULTS) is each for each in (plain, written))
    assert with_defaults_of(plain, 1).size == (40, 40)
    assert with_defaults_of(plain, 1).directions == plain.directions
    assert with_defaults_of(written, 1).size == (7, 7)
    assert [each.ignore for each in with_defaults_of(written, 1).directions] == [(), ("norm",)]
    assert with_defaults_of(only(directions=[stated], size=41), 1) == only(directions=[stated], size=41)
    copied = Job(**json.loads(job(landscapes=[{"name": "a"}]).model_dump_json(exclude_unset=True)))
    assert with_defaults_of(copied.landscapes[0], 1).size == (40, 40)


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
        optional={"normalise": st.sampled_from(["filter", "layer", "model", "none"]), "ignore": st.just(["norm"])},
    ),
    st.fixed_dictionaries({"kind": st.just("towards"), "target": st.one_of(st.integers(0, 99), st.just("first"))}),
    st.fixed_dictionaries({"kind": st.just("file"), "path": st.sampled_from(["a.pt", "b/c.safetensors"])}),
    st.fixed_dictionaries({"kind": st.just("pca"), "trajectory": st.just([1, 2, 5]), "component": st.integers(1, 3)}),
)
PAIRS = st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).filter(lambda p: p[0] < p[1]).map(list)


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
    "unknown key of a landscape": (
        {"landscapes": [SPEC | {"sise": 3}]},
        ["landscapes.0", "sise", "did you mean 'size'"],
    ),
    "unknown key of a direction": (
        {"landscapes": [SPEC | {"directions": [{"kind": "random", "sed": 1}]}]},
        ["landscapes.0.directions.0", "'sed'", "did you mean 'seed'"],
    ),
    "unknown key of the collector": ({"collect_landscape": {"interval": []}}, ["interval", "did you mean 'intervals'"]),
    "missing run": ({"run": ...}, ["run", "required"]),
    "empty run": ({"run": " "}, ["run", "folder or URL"]),
    "run of another type": ({"run": 3}, ["run", "3"]),
    "problem without function": ({"problem": "mine"}, ["problem", "'module:function'", "'mine'"]),
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
    "size 2": ({"landscapes": [SPEC | {"size": 2}]}, ["landscapes.0.size", "3 to 65536", "2"]),
    "size -1": ({"landscapes": [SPEC | {"size": -1}]}, ["landscapes.0.size", "3 to 65536", "-1"]),
    "size forty": ({"landscapes": [SPEC | {"size": "forty"}]}, ["landscapes.0.size", "whole number", "'forty'"]),
    "size 65537": ({"landscapes": [SPEC | {"size": 65537}]}, ["landscapes.0.size", "65537"]),
    "three sizes": ({"landscapes": [SPEC | {"size": [3, 3, 3]}]}, ["size", "one per axis (2)", "3"]),
    "no size": ({"landscapes": [SPEC | {"size": []}]}, ["size", "one per axis (2)", "0"]),
    "range reversed": ({"landscapes": [SPEC | {"range": [1, -1]}]}, ["range", "low to high", "[1, -1]", "swap"]),
    "range equal": ({"landscapes": [SPEC | {"range": [1, 1]}]}, ["range", "low to high", "[1, 1]", "widen"]),
    "range infinite": ({"landscapes": [SPEC | {"range": [0, math.inf]}]}, ["range", "finite", "inf"]),
    "range huge": ({"landscapes": [SPEC | {"range": [0, 10**400]}]}, ["range", "finite"]),
    "range in words": ({"landscapes": [SPEC | {"range": "wide"}]}, ["range", "pair", "'wide'"]),
    "range of three": ({"landscapes": [SPEC | {"range": [0, 1, 2]}]}, ["range", "pair", "[0, 1, 2]"]),
    "range mixed": ({"landscapes": [SPEC | {"range": [[0, 1], 2]}]}, ["range", "pair", "2"]),
    "three ranges": ({"landscapes": [SPEC | {"range": [[0, 1]] * 3}]}, ["range", "one per axis (2)", "3"]),
    "two snapshots": ({"landscapes": [SPEC | {"trajectory": [1, 2]}]}, ["trajectory", "at least 3", "[1, 2]"]),
    "the same snapshot": (
        {"landscapes": [SPEC | {"trajectory": [1, 1, 1]}]},
        ["trajectory", "3 different", "[1, 1, 1]"],
    ),
    "negative snapshot": ({"landscapes": [SPEC | {"trajectory": [-1, 1, 2]}]}, ["trajectory", "from 0 on", "-1"]),
    "snapshots in words": ({"landscapes": [SPEC | {"trajectory": "every"}]}, ["trajectory", "'all'", "'every'"]),
    "axes": ({"landscapes": [SPEC | {"trajectory": [1, 2, 3], "axes": 4}]}, ["axes", "1, 2 or 3", "4"]),
    "no axes": ({"landscapes": [SPEC | {"trajectory": [1, 2, 3], "axes": 0}]}, ["axes", "1, 2 or 3", "0"]),
    "axes alone": ({"landscapes": [SPEC | {"axes": 1}]}, ["axes", "trajectory"]),
    "trajectory and directions": (
        {"landscapes": [SPEC | {"trajectory": [1, 2, 3], "directions": [{"kind": "random"}]}]},
        ["trajectory and directions", "exclude"],
    ),
    "trajectory and wrong directions": (
        {"landscapes": [SPEC | {"trajectory": [1, 2, 3], "directions": [{"kind": "rand"}, {"x": 1}]}]},
        ["kind", "'rand'"],
    ),
    "no directions": ({"landscapes": [SPEC | {"directions": []}]}, ["directions", "1, 2 or 3", "0"]),
    "four directions": (
        {"landscapes": [SPEC | {"directions": [{"kind": "random"}] * 4}]},
        ["directions", "1, 2 or 3", "4"],
    ),
    "the same direction twice": (
        {"landscapes": [SPEC | {"directions": [{"kind": "random", "seed": 1}] * 2}]},
        ["1 and 2 are the same", "change"],
    ),
    "kind": (
        {"landscapes": [SPEC | {"directions": [{"kind": "rnd"}]}]},
        ["kind", "random, towards, file or pca", "'rnd'"],
    ),
    "no kind": ({"landscapes": [SPEC | {"directions": [{"seed": 1}]}]}, ["kind", "random, towards, file or pca"]),
    "normalise": (
        {"landscapes": [SPEC | {"directions": [{"kind": "random", "normalise": "filters"}]}]},
        ["normalise", "'filters'"],
    ),
    "no target": ({"landscapes": [SPEC | {"directions": [{"kind": "towards"}]}]}, ["target", "required"]),
    "component": (
        {"landscapes": [SPEC | {"directions": [{"kind": "pca", "trajectory": "all", "component": 0}]}]},
        ["component", "at least 1", "0"],
    ),
    "name": ({"landscapes": [{"name": "a/b"}]}, ["name", "letters", "'a/b'"]),
    "name of dots": ({"landscapes": [{"name": ".."}]}, ["name", "letters", "'..'"]),
    "name of a file of the store": ({"landscapes": [{"name": "zarr.json"}]}, ["name", "'zarr.json'"]),
    "no name": ({"landscapes": [{}]}, ["landscapes.0.name", "required"]),
    "the same name twice": ({"landscapes": [SPEC, SPEC]}, ["names of their own", "'a'", "2 times"]),
    "landscapes of another type": ({"landscapes": 3}, ["landscapes", "3"]),
    "collector size": ({"collect_landscape": {"intervals": [[1, 2, 3]], "landscape_size": 2}}, ["landscape_size", "2"]),
    "collector unit": (
        {"collect_landscape": {"intervals": [[1, 2, 3]], "unit": "hour"}},
        ["unit", "'epoch'", "'hour'"],
    ),
    "collector intervals": ({"collect_landscape": {"intervals": [[1, 2]]}}, ["intervals", "at least 3", "[1, 2]"]),
    "collector flat intervals": ({"collect_landscape": {"intervals": [1, 2, 3]}}, ["intervals", "list", "1"]),
    "collector without intervals": ({"collect_landscape": {"intervals": []}}, ["intervals", "[[1, 2, 3], [7, 8, 9]]"]),
    "many": ({"num_samples": 0, "seed": -1, "batch_size": 0, "x": 1}, ["num_samples", "seed", "2 more"]),
}


@pytest.mark.parametrize("case", BAD_JOBS)
def test_what_cannot_be_is_refused_in_two_lines_that_name_field_rule_and_value(case):
    fields, words = BAD_JOBS[case]
    given_fields = {key: value for key, value in (MINIMAL | fields).items() if value is not ...}
    with pytest.raises(JobError) as caught:
        Job(**given_fields)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert message.count("\n") <= 1, message
    for word in words:
        assert word in message, message


BAD_FILES = {
    "not yaml": ("run: [1", ["is not YAML"]),
    "a list": ("- run", ["must hold 'key: value' lines", "list"]),
    "empty": ("", ["must hold 'key: value' lines", "NoneType"]),
    "key that is no word": ("run: a\nproblem: m:p\n1: 2\n", ["unknown key '1'"]),
    "key that yaml takes for a bool": ("run: a\nproblem: m:p\non: 2\n", ["unknown key 'True'"]),
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


def test_a_file_that_is_not_there_is_not_found(tmp_path):
    with pytest.raises(NotFoundError, match=r"job file '.*nowhere.yaml' does not exist; `landscape init`") as caught:
        read_job(tmp_path / "nowhere.yaml")
    assert caught.value.exit_code == 3
    with pytest.raises(JobError, match="cannot be read"):
        read_job(tmp_path)
