"""Files of other people: what is damaged, newer or foreign is refused in a line, and nothing of its sender's is run."""

import io
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from packed_scene import members_of, small_file, with_json, written

from landscape import JobError, NotFoundError
from landscape.portable.manifest import PortableFile
from landscape.portable.operations import operation
from landscape.problem.callback import load_problem
from landscape.spec import read_job

GRAPH = "graphs/0.json"


@pytest.fixture
def place(tmp_path):
    return tmp_path / "other.landscape"


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return (Path.touch, (self.place,))


def taken(file: Path) -> int:
    """The number of samples, which are read then; the model is before."""
    return len(load_problem(str(file)).data.sets)


def refusal(file: Path) -> str:
    with pytest.raises(JobError) as refused:
        taken(file)
    text = str(refused.value)
    assert len(text.splitlines()) == 1
    return text


def test_a_file_that_is_not_there_is_not_found(place):
    with pytest.raises(NotFoundError, match="does not exist; `landscape pack JOB -o FILE` writes such a file"):
        load_problem(str(place))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_refused(place, share):
    whole = small_file().read_bytes()
    place.write_bytes(whole[: int(len(whole) * share)])
    assert "copy the file again, or have it packed anew" in refusal(place)


def test_every_byte_that_is_changed_is_noticed(place):
    whole = bytearray(small_file().read_bytes())
    for at in range(40, len(whole), 997):
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            taken(place)
            read_job(place)
        except (JobError, NotFoundError):
            continue
        # Between members nothing is stored, and what it has beside its members is not read.
        archive = PortableFile(place).archive
        assert {name: bytes(archive.bytes_of(name)) for name in members_of(small_file())} == members_of(small_file())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda manifest: manifest.update(version=2), "version 2 of the format, and this landscape reads 1; install"),
        (lambda manifest: manifest.update(version="x"), "have it packed anew"),
        (lambda manifest: manifest.update(format="zip"), "is no portable problem"),
        (lambda manifest: manifest.pop("problem"), "its manifest says nothing of its problem"),
        (lambda manifest: manifest["problem"].update(kind="pickle"), "its manifest has no 'pickle'"),
        (lambda manifest: manifest["problem"]["graphs"].pop("model"), "it has no graph 'model'"),
        (lambda manifest: manifest["problem"]["modules"][1].update(path="../x"), "a module at '../x'"),
        (lambda manifest: manifest["problem"]["modules"][1].update(layer="Bilinear"), "a layer 'Bilinear'"),
        (lambda manifest: manifest["problem"]["modules"][1]["options"].update(in_channels="x"), "in_channels"),
        (lambda manifest: manifest["problem"]["modules"][1]["options"].update(device="cuda"), "a layer 'Conv2d'"),
        (lambda manifest: manifest["problem"]["modules"][1]["options"].update(in_channels=1 << 60), "in_channels"),
        (
            lambda manifest: manifest["problem"]["parameters"][0].update(shape=["x"]),
            "other parameters than its manifest",
        ),
        (lambda manifest: manifest["problem"]["parameters"][0].update(name="x"), "other parameters than its manifest"),
        (lambda manifest: manifest["problem"]["parameters"][0].update(role="x"), "a parameter of a kind that is none"),
        (lambda manifest: manifest["problem"]["parameters"][0].update(transposed_groups=-1), "of a kind that is none"),
        (lambda manifest: manifest["samples"].update(sequences={"fields": ["x"]}), "its manifest has no 'vocabulary'"),
        (lambda manifest: manifest["samples"].update(seed="x"), "its samples hold"),
        (lambda manifest: manifest["samples"].update(sets=[["", "float"]]), "a batch of a structure that is none"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(place, change, words):
    written(place, with_json(small_file(), "manifest.json", change))
    assert words in refusal(place)


def test_a_key_that_stands_twice_in_a_manifest_is_refused(place):
    members = members_of(written(place, members_of(small_file())))
    text = members["manifest.json"].decode()
    written(place, {**members, "manifest.json": f'{text.rstrip()[:-1]}, "problem": {{}}}}'.encode()}, sealed=False)
    assert "key 'problem' stands twice; keep one" in refusal(place)


# What would run code, read files, or go beyond what computing needs, by whatever a graph can name.
@pytest.mark.parametrize(
    "node",
    [
        ["aten", "from_file.default", ["/etc/passwd"], {}],
        ["aten", "save.default", [{"input": 0}, "stolen"], {}],
        ["aten", "set_.source_Tensor", [{"input": 0}, {"input": 0}], {}],
        ["aten", "resize_.default", [{"input": 0}, [1 << 40]], {}],
        ["aten", "_foobar.default", [{"input": 0}], {}],
        ["aten", "__class__.mro", [], {}],
        ["aten", "relu.__class__", [{"input": 0}], {}],
        ["aten", "relu", [{"input": 0}], {}],
        ["aten", "relu.default(exit())", [{"input": 0}], {}],
        ["mkldnn", "linear_pointwise.default", [{"input": 0}], {}],
        ["python", "eval", ["exit()"], {}],
        ["python", "pow", [10, 10], {}],
        ["python", "__import__", ["os"], {}],
        ["layer", "__class__", [{"input": 0}], {}],
        ["layer", "conv.register_forward_hook", [{"input": 0}], {}],
        ["layer", "conv(exit())", [{"input": 0}], {}],
        ["call_method", "numpy", [{"input": 0}], {}],
        ["aten", "relu.default", [{"node": 10**6}], {}],
        ["aten", "relu.default", [{"tensor": "conv.__class__"}], {}],
        ["aten", "relu.default", [{"constant": 0}], {}],
        ["aten", "relu.default", [{"dtype": "__class__"}], {}],
        ["aten", "relu.default", [{"import": "os"}], {}],
        ["aten", "relu.default", [{"input": 0}], {"self; exit()": 1}],
        ["aten", "relu.default", [[[[[[[[[[1]]]]]]]]]], {}],
        ["aten", "relu.default", ["x" * 201], {}],
        ["aten", "relu.default", {"self": 1}, {}],
        # With arguments that fit what they say these end the process, or write where they should not.
        ["aten", "to.prim_dtype", [{"input": 0}, 100000], {}],
        ["aten", "to.dtype", [{"input": 0}, 100000], {}],
        ["aten", "cumsum.default", [{"input": 0}, 1], {"dtype": -1}],
        ["aten", "floordiv.int", [-(2**63), -1], {}],
        ["aten", "add.out", [{"input": 0}, {"input": 0}], {"out": {"tensor": "conv.weight"}}],
        ["aten", "as_strided_.default", [{"input": 0}, [2, 1], [1 << 62, 7], 100000], {}],
        ["aten", "max_pool2d_with_indices_backward.default", [{"input": 0}], {}],
        ["aten", "reflection_pad1d_backward.default", [{"input": 0}, {"input": 0}, []], {}],
        ["aten", "native_batch_norm.default", [{"input": 0}], {}],
        ["aten", "ctc_loss.IntList", [{"input": 0}], {}],
        ["aten", "range.step", [-1, 7, 0.5], {"dtype": {"dtype": "int64"}}],
        "exit()",
    ],
)
def test_a_graph_that_does_more_than_compute_is_refused(place, node):
    written(place, with_json(small_file(), GRAPH, lambda graph: graph["nodes"].insert(0, node)))
    assert "cannot be taken: its model holds" in refusal(place)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("_fft_r2c.default", (torch.ones(2, 3), [-1, 9], 0, True)),
        ("_log_softmax_backward_data.default", (torch.ones(2, 3), torch.ones(1), 1, torch.float32)),
        ("_weight_norm.default", (torch.ones(5, 5), torch.ones(1), 0)),
        (
            "_native_batch_norm_legit_no_training.default",
            (torch.ones(2, 1000), None, None, torch.ones(1), torch.ones(1), 0.1, 1e-5),
        ),
    ],
)
def test_what_torch_does_not_check_is_checked_before_it_is_computed(name, arguments):
    with pytest.raises(ValueError, match="tensors or axes that do not fit"):
        operation(name)(*arguments)


def test_what_is_checked_is_computed_where_it_fits():
    torch.manual_seed(0)
    recurrent, values = torch.nn.LSTM(3, 4, 2, bidirectional=True), torch.randn(5, 2, 3)
    states = [torch.zeros(4, 2, 4)] * 2
    weights = list(recurrent.parameters())
    computed = operation("lstm.input")(values, states, weights, True, 2, 0.0, False, True, False)
    assert torch.equal(computed[0], recurrent(values)[0])
    with pytest.raises(ValueError, match="tensors or axes that do not fit"):
        operation("lstm.input")(values[0], states, weights, True, 2, 0.0, False, True, False)
    weight, norm = torch.randn(4, 3), torch.rand(4, 1)
    normed = weight * (norm / weight.norm(dim=1, keepdim=True))
    torch.testing.assert_close(operation("_weight_norm.default")(weight, norm, 0), normed)


def test_a_pickle_in_the_place_of_tensors_is_not_loaded(place, tmp_path):
    """torch's own format keeps inputs, constants and weights as pickles, and loads them with all that they name."""
    mark = tmp_path / "executed"
    buffer = io.BytesIO()
    torch.save({"conv.weight": Bomb(mark)}, buffer)
    for data in (buffer.getvalue(), pickle.dumps(Bomb(mark))):
        for name in ("tensors/weights.safetensors", "tensors/samples.safetensors", GRAPH, "job.yaml", "manifest.json"):
            written(place, {**members_of(small_file()), name: data}, sealed=name != "manifest.json")
            if name == "job.yaml":
                with pytest.raises(JobError):
                    read_job(place)
            else:
                refusal(place)
    assert not mark.exists()


def test_a_program_of_torch_is_no_portable_problem(place, tmp_path):
    """Its sample inputs are a pickle, and its expressions are evaluated."""
    mark = tmp_path / "executed"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("model/data/sample_inputs/model.pt", pickle.dumps(Bomb(mark)))
        archive.writestr("model/models/model.json", '{"range_constraints": {"exit()": {}}}')
    assert "is no whole portable problem" in refusal(place)
    assert not mark.exists()


def test_the_job_of_a_file_names_no_code(place):
    members = members_of(small_file())

    for text in (b"!!python/object/apply:os.system ['exit']", b'{"problem": "os:system", "run": "elsewhere"}'):
        written(place, {**members, "job.yaml": text})
        with pytest.raises(JobError):
            read_job(place)


def renamed(name: str) -> dict[str, bytes]:
    return {name if each == GRAPH else each: data for each, data in members_of(small_file()).items()}


@pytest.mark.parametrize("name", ["../graph.json", "/etc/passwd", "graphs/../../x.json", "C:\\x.json", "a b.json"])
def test_a_member_of_another_name_is_refused(place, name):
    written(place, renamed(name))
    assert "is no whole portable problem: a member is called" in refusal(place)


def test_a_member_that_is_compressed_is_refused(place):
    """A few bytes would otherwise become as many as the memory holds."""
    written(place, members_of(small_file()), compressed=True)
    assert "is compressed or encrypted" in refusal(place)


def test_a_member_that_is_missing_or_more_is_refused(place):
    members = members_of(small_file())
    written(place, {**members, "graphs/extra.json": b"{}"}, sealed=False)
    assert "its members are not those that its manifest lists" in refusal(place)
    without = {name: data for name, data in members.items() if name != "tensors/weights.safetensors"}
    written(place, without)
    assert "it has no 'tensors/weights.safetensors'" in refusal(place)


def test_tensors_beyond_their_member_are_refused(place):
    members = members_of(small_file())
    weights = members["tensors/weights.safetensors"]
    members["tensors/weights.safetensors"] = weights.replace(b'"shape":[4,12]', b'"shape":[9,99]')
    written(place, members)
    assert "does not have the bytes of its shape" in refusal(place)


@pytest.mark.parametrize("limit", ["1", "1000000"])
def test_what_is_written_to_tensors_of_a_file_leaves_it_as_it_is(monkeypatch, limit):
    monkeypatch.setenv("LANDSCAPE_HOST_BYTES", limit)
    samples = PortableFile(small_file()).samples()
    first = samples.sets[""][0]
    before = small_file().read_bytes()
    first.zero_()
    assert small_file().read_bytes() == before
