"""Models in ONNX's format, carried by onnx2torch, beside ONNX's own reference evaluator: values, training, packing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from landscape import Job, open_run, run
from landscape.compute.pack import pack
from landscape.core.errors import JobError
from landscape.job.reading import read_job
from landscape.model.parameters import describe_parameters
from landscape.problem.callback import load_problem

pytestmark = pytest.mark.frameworks
CLASSES, SAMPLES = 4, 24
PLANE = {"name": "plane", "size": [5, 3], "directions": [{"kind": "random", "seed": 1}, {"kind": "random", "seed": 2}]}
TEXT = "model.onnx with samples.npz and cross_entropy"

# name -> (nodes as (operation, inputs, outputs, attributes), shapes of the arrays, shape of a sample)
MODELS = {
    "mlp": (
        [
            ("MatMul", ["x", "w"], ["m"], {}),
            ("Add", ["m", "b"], ["a"], {}),
            ("Tanh", ["a"], ["t"], {}),
            ("Gemm", ["t", "gw", "gb"], ["y"], {"transB": 1}),
        ],
        {"w": (3, 8), "b": (8,), "gw": (CLASSES, 8), "gb": (CLASSES,)},
        (3,),
    ),
    "convolutions": (
        [
            ("Conv", ["x", "cw", "cb"], ["c"], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
            ("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"], {}),
            ("Relu", ["n"], ["r"], {}),
            ("MaxPool", ["r"], ["p"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
            ("ConvTranspose", ["p", "tw"], ["u"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
            ("Add", ["u", "x2"], ["s"], {}),
            ("GlobalAveragePool", ["s"], ["g"], {}),
            ("Flatten", ["g"], ["f"], {"axis": 1}),
            ("Gemm", ["f", "gw", "gb"], ["y"], {"transB": 1}),
        ],
        {
            "cw": (5, 2, 3, 3), "cb": (5,), "scale": (5,), "shift": (5,), "mean": (5,), "var": (5,),
            "tw": (5, 6, 2, 2), "x2": (1, 6, 1, 1), "gw": (CLASSES, 6), "gb": (CLASSES,),
        },
        (2, 8, 8),
    ),
}  # fmt: skip


def written(folder, kind):
    """The model and its samples in a folder; returns what ONNX's reference makes of the samples."""
    nodes, shapes, sample = MODELS[kind]
    generator = np.random.default_rng(0)
    arrays = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    if "var" in arrays:
        arrays["var"] = np.abs(arrays["var"]) + 0.5
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(name, given, made, **attributes) for name, given, made, attributes in nodes],
        "g",
        [value("x", onnx.TensorProto.FLOAT, ["N", *sample])],
        [value("y", onnx.TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, folder / "model.onnx")
    inputs = generator.standard_normal((SAMPLES, *sample)).astype(np.float32)
    np.savez(folder / "samples.npz", inputs=inputs, targets=generator.integers(0, CLASSES, SAMPLES))
    return ReferenceEvaluator(model).run(None, {"x": inputs})[0]


@pytest.mark.parametrize("kind", MODELS)
def test_outputs_are_those_of_the_reference(tmp_path, kind):
    expected = written(tmp_path, kind)
    problem = load_problem(TEXT, tmp_path)
    inputs = torch.from_numpy(np.load(tmp_path / "samples.npz")["inputs"])
    np.testing.assert_allclose(problem.model(inputs).detach().numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_what_a_graph_holds_is_trained_and_statistics_are_not(tmp_path, kind):
    written(tmp_path, kind)
    infos = describe_parameters(load_problem(TEXT, tmp_path).model)
    trained = {tuple(info.shape) for info in infos if info.trainable}
    statistics = {"mean", "var"}
    assert len([info for info in infos if info.trainable]) == len(MODELS[kind][1].keys() - statistics)
    assert trained == {shape for name, shape in MODELS[kind][1].items() if name not in statistics}
    assert {info.shape for info in infos if info.role == "norm"} == ({(5,)} if kind == "convolutions" else set())


@pytest.mark.parametrize("kind", MODELS)
def test_a_packed_one_has_the_values_of_the_file(tmp_path, kind):
    """Which needs neither ONNX nor onnx2torch any more."""
    written(tmp_path, kind)
    job = Job(run=str(tmp_path / "run"), problem=TEXT, num_samples=SAMPLES, landscapes=[PLANE]).in_folder(tmp_path)
    run(job)
    pack(job, tmp_path / "packed.landscape")
    run(read_job(tmp_path / "packed.landscape", run=str(tmp_path / "away")))
    mine, packed = (open_run(str(tmp_path / name))["plane"].loss for name in ("run", "away"))
    assert np.isfinite(mine).all()
    np.testing.assert_allclose(packed, mine, rtol=1e-6)


def test_an_operation_that_is_not_carried_is_named(tmp_path):
    written(tmp_path, "mlp")
    model = onnx.load(tmp_path / "model.onnx")
    model.graph.node[2].op_type = "Det"
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(JobError, match=r"holds the operation Det, which onnx2torch does not carry"):
        load_problem(TEXT, tmp_path)
