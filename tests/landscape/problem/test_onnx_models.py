"""Models in ONNX's format, around a conversion that stands in for onnx2torch: weights, samples, refusals in a line.

The conversion itself is compared with ONNX's reference in tests/frameworks/test_framework_onnx.py.
"""

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from landscape import Job, JobError, NotFoundError, run
from landscape.core.errors import LandscapeError
from landscape.model.parameters import describe_parameters
from landscape.problem.callback import load_problem

TEXT = "model.onnx with samples.npz and cross_entropy"
PLANE = {"name": "plane", "size": 3, "directions": [{"kind": "random", "seed": 1}, {"kind": "random", "seed": 2}]}


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((20, 3)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", inputs=inputs, targets=generator.integers(0, 4, 20))
    (tmp_path / "model.onnx").write_bytes(b"")
    return tmp_path


class OnnxMatMul(nn.Module):
    def forward(self, one, other):
        return one @ other


def converted(place):
    """What onnx2torch makes of x·W + b, with a number beside."""
    root = nn.Module()
    root.MatMul, root.initializers = OnnxMatMul(), nn.Module()
    generator = torch.Generator().manual_seed(1)
    for place, shape in enumerate([(3, 4), (4,), ()]):
        root.initializers.register_buffer(f"onnx_initializer_{place}", torch.randn(shape, generator=generator))
    graph = torch.fx.Graph()
    given = graph.placeholder("x")
    matrix, bias = (graph.get_attr(f"initializers.onnx_initializer_{place}") for place in (0, 1))
    product = graph.call_module("MatMul", (given, matrix))
    graph.output(graph.call_function(torch.add, (product, bias)))
    return torch.fx.GraphModule(root, graph)


def with_convert(monkeypatch, convert):
    module = types.ModuleType("onnx2torch")
    module.convert = convert
    monkeypatch.setitem(sys.modules, "onnx2torch", module)


def test_its_arrays_are_weights(folder, monkeypatch):
    with_convert(monkeypatch, converted)
    problem = load_problem(TEXT, folder)
    infos = {info.name.rpartition(".")[2]: info for info in describe_parameters(problem.model)}
    assert [info.role for info in infos.values()] == ["weight", "bias"]
    assert infos["onnx_initializer_0"].transposed_groups == 1  # [in, out]: a filter is a column
    assert all(info.trainable for info in infos.values())


@pytest.mark.parametrize("problem", [TEXT, {"onnx": "model.onnx", "data": "samples.npz", "criterion": "cross_entropy"}])
def test_a_job_names_model_samples_and_criterion(folder, monkeypatch, problem):
    with_convert(monkeypatch, converted)
    job = Job(run=str(folder / "run"), problem=problem, num_samples=20, landscapes=[PLANE]).in_folder(folder)
    surface = run(job)["plane"]
    samples = np.load(folder / "samples.npz")
    model = converted(None)
    outputs = model(torch.from_numpy(samples["inputs"]))
    expected = nn.functional.cross_entropy(outputs, torch.from_numpy(samples["targets"]))
    assert surface.origin_loss == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("model.onnx", "must be written MODEL.onnx with SAMPLES.npz and CRITERION, not 'model.onnx'; a model alone"),
        ("model.onnx with samples.txt and cross_entropy", "must be written MODEL.onnx"),
        ({"onnx": "model.onnx"}, "must be {onnx: MODEL.onnx, data: SAMPLES.npz, criterion: NAME}"),
    ],
)
def test_what_a_job_must_say(problem, words):
    with pytest.raises(JobError) as refused:
        Job(run="run", problem=problem)
    assert words in str(refused.value)


def raising(error):
    def convert(_):
        raise error

    return convert


REFUSED = [
    (NotImplementedError("Converter is not implemented (OperationDescription(operation_type='Loop', version=13))"),
     "holds the operation Loop, which onnx2torch does not carry; export the model without it"),
    (ValueError("Error parsing message"), "cannot be read as ONNX: ValueError: Error parsing message"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "words"), REFUSED)
def test_what_is_not_carried_is_named(folder, monkeypatch, error, words):
    with_convert(monkeypatch, raising(error))
    with pytest.raises(JobError) as refused:
        load_problem(TEXT, folder)
    assert words in str(refused.value)


def test_what_is_missing_is_named(folder, monkeypatch):
    with_convert(monkeypatch, converted)
    with pytest.raises(NotFoundError, match=r"other.onnx' does not exist"):
        load_problem("other.onnx with samples.npz and cross_entropy", folder)
    with pytest.raises(JobError, match="criterion: unknown criterion 'crossentropy'; did you mean 'cross_entropy'"):
        load_problem("model.onnx with samples.npz and crossentropy", folder)
    np.savez(folder / "others.npz", x=np.zeros(3))
    with pytest.raises(JobError, match=r"'others.npz' must hold the arrays 'inputs' and 'targets'"):
        load_problem("model.onnx with others.npz and cross_entropy", folder)
    np.savez(folder / "objects.npz", inputs=np.array([object()]), targets=np.zeros(1))
    with pytest.raises(JobError, match=r"'objects.npz' must hold the arrays"):
        load_problem("model.onnx with objects.npz and cross_entropy", folder)
    monkeypatch.setitem(sys.modules, "onnx2torch", None)
    with pytest.raises(LandscapeError, match=r"pip install 'loss-landscape-cluster\[onnx\]'"):
        load_problem(TEXT, folder)


@pytest.mark.parametrize("content", [b"PK\x03\x04zz", b"", b"\x93NUMPY\x01\x00"])
def test_samples_that_are_no_archive_are_refused(folder, monkeypatch, content):
    with_convert(monkeypatch, converted)
    (folder / "samples.npz").write_bytes(content)
    with pytest.raises(JobError, match=r"data: 'samples.npz' must hold the arrays 'inputs'"):
        load_problem(TEXT, folder)


def test_operations_of_a_newer_version_are_refused(folder, monkeypatch):
    with_convert(monkeypatch, converted)
    onnx, newer = types.ModuleType("onnx"), types.SimpleNamespace(domain="", version=29)
    onnx.defs = types.SimpleNamespace(onnx_opset_version=lambda: 28)
    onnx.load = lambda place, load_external_data: types.SimpleNamespace(opset_import=[newer])
    monkeypatch.setitem(sys.modules, "onnx", onnx)
    with pytest.raises(JobError, match=r"has operations of version 29, .*; export it with an older opset_version"):
        load_problem(TEXT, folder)
