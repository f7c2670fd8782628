"""Files of other people: what is damaged, newer or foreign is refused in a line, and nothing of its sender's is run."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from packed_scene import members_of, of_one_operation, small_file, with_json, written

from landscape import JobError, NotFoundError
from landscape.job.reading import read_job
from landscape.model.packed_model import PortableFile, PortableModel
from landscape.problem.callback import load_problem

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
        (lambda manifest: manifest["problem"]["modules"][1]["options"].update(stride=1 << 15), "a layer's stride"),
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


# -- what torch does not check, or not before it computes -----------------------------------------------------------

ROWS = torch.tensor([[0.5, 1.0, 2.0], [0.1, 0.2, 0.3]])


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("_fft_r2c.default", (ROWS, [-1, 9], 0, True), r"its dimensions \[-1, 9\] are not those of a tensor of 2"),
        ("_fft_r2c.default", (ROWS * 1j, [-1], 0, True), "it takes real numbers, not torch.complex64"),
        ("_fft_r2c.default", (ROWS.half(), [0], 0, True), "it takes real numbers, not torch.float16"),
        ("_log_softmax_backward_data.default", (ROWS, torch.ones(1), 1, torch.float32), "differ in shape or type"),
        ("_weight_norm.default", (torch.ones(5, 5), torch.ones(1), 0), "its norms are not one for each row"),
        (
            "_native_batch_norm_legit_no_training.default",
            (torch.ones(2, 1000), None, None, torch.ones(1), torch.ones(1), 0.1, 1e-5),
            "its weights or statistics are not one for each channel",
        ),
        # Of the issue: writes where the targets point to, far beyond the tensor.
        (
            "nll_loss_backward.default",
            (torch.ones(2), ROWS, torch.tensor([0, 1 << 33]), None, 0, -100, torch.ones(())),
            "nll_loss_backward: the index 8589934592 is not from 0 to 2",
        ),
        (
            "nll_loss_backward.default",
            (torch.ones(2), ROWS, torch.tensor([0, -7]), None, 0, -100, torch.ones(())),
            "the index -7 is not from 0 to 2",
        ),
        (
            "nll_loss_backward.default",
            (torch.ones(2), ROWS, torch.zeros(99, dtype=torch.int64), None, 0, -100, torch.ones(())),
            "its gradient, targets or weights have other shapes",
        ),
        (
            "nll_loss2d_backward.default",
            (
                torch.ones(1, 1, 1),
                torch.ones(1, 2, 1, 1),
                torch.full((1, 1, 1), 1 << 33),
                None,
                0,
                -100,
                torch.ones(()),
            ),
            "the index 8589934592 is not from 0 to 1",
        ),
        ("ones.default", ([2 * 10**12],), "it would take .* GB, and .* GB are free|steps of work"),
        ("expand.default", (torch.ones(1, 1), [1 << 40, 1 << 40]), "is refused at 'expand.default'"),
        ("sum.default", (torch.ones(1).expand(1 << 45),), "it would take .* GB"),
        ("unbind.int", (torch.ones(1).expand(1 << 30),), "it would make 1,073,741,824 tensors, more than 100,000"),
        (
            "conv2d.default",
            (torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1), None, [1 << 40, 1]),
            "stride is 1099511627776",
        ),
        (
            "upsample_nearest2d.default",
            (torch.ones(1, 1, 4, 4), [4, 4], 1e-5, 1.0),
            "a scale of 1e-05 does not make 4 of 4",
        ),
        (
            "native_group_norm.default",
            (torch.ones(1, 2, 3), None, None, 1, 2, 3000, 1, 1e-5),
            "its sizes are not those",
        ),
        ("linalg_multi_dot.default", ([torch.ones(2, 2)] * 400,), "it multiplies 400 matrices, more than 300"),
        ("diff.default", (torch.ones(100_001), 100_000), "it takes differences 100000 times, more than 300"),
        ("nonzero.default", (torch.ones(1).expand(1 << 45),), "it would take .* GB|steps of work"),
        (
            "masked_select.default",
            (torch.ones(1).expand(1 << 24, 1), (torch.ones(1) > 0).expand(1 << 24)),
            "it would take .* GB|steps",
        ),
        ("index.Tensor", (torch.ones(1).expand(1 << 45), [(torch.ones(1) > 0).expand(1 << 45)]), "is refused at"),
        ("_unsafe_index.Tensor", (ROWS, [torch.tensor([True, False])]), "it takes no mask"),
        ("one_hot.default", (torch.tensor([1, 2]), -1), "its number of classes must be written"),
        ("one_hot.default", (torch.tensor([1, 7]), 3), "the index 7 is not from 0 to 2"),
        ("gather.default", (ROWS, 1, torch.tensor([[5]])), "gather: the index 5 is not from 0 to 2"),
        ("index_select.default", (ROWS, 0, torch.tensor([-1])), "the index -1 is not from 0 to 1"),
        ("index.Tensor", (ROWS, [None, torch.tensor([-4])]), "the index -4 is not from -3 to 2"),
        ("index_put.default", (ROWS, [torch.tensor([2])], torch.tensor(1.0)), "the index 2 is not from -2 to 1"),
        ("scatter.value", (ROWS, 1, torch.tensor([[3]]), 1.0), "the index 3 is not from 0 to 2"),
        ("embedding.default", (ROWS, torch.tensor([2])), "the index 2 is not from 0 to 1"),
        ("cross_entropy_loss.default", (ROWS, torch.tensor([0, 3])), "the index 3 is not from 0 to 2"),
        (
            "embedding_bag.default",
            (ROWS, torch.tensor([0, 1]), torch.tensor([0, 2, 1])),
            "the offsets of its bags descend",
        ),
    ],
)
def test_what_torch_does_not_check_is_checked_before_it_is_computed(name, arguments, words):
    with pytest.raises(ValueError, match=words):
        of_one_operation(name, *arguments)


def test_what_is_checked_is_computed_where_it_fits():
    torch.manual_seed(0)
    recurrent, values = torch.nn.LSTM(3, 4, 2, bidirectional=True), torch.randn(5, 2, 3)
    states = [torch.zeros(4, 2, 4)] * 2
    weights = list(recurrent.parameters())
    computed = of_one_operation("lstm.input", values, states, weights, True, 2, 0.0, False, True, False)
    assert torch.equal(computed[0], recurrent(values)[0])
    with pytest.raises(ValueError, match="it has other layers than weights"):
        of_one_operation("lstm.input", values[0], states, weights, True, 2, 0.0, False, True, False)
    for short in (0, 5):
        fewer = [each[:-1] if place == short else each for place, each in enumerate(weights)]
        with pytest.raises(ValueError, match="a weight has another shape than its layer asks for"):
            of_one_operation("lstm.input", values, states, fewer, True, 2, 0.0, False, True, False)
    weight, norm = torch.randn(4, 3), torch.rand(4, 1)
    normed = weight * (norm / weight.norm(dim=1, keepdim=True))
    torch.testing.assert_close(of_one_operation("_weight_norm.default", weight, norm, 0), normed)


def test_a_quotient_that_no_whole_number_holds_is_refused_and_others_are_computed():
    """Torch's kernel ends the process by SIGFPE."""
    least, divisors = torch.tensor([-(1 << 63), 7]), torch.tensor([-1, 2])
    with pytest.raises(JobError, match=r"div: the number -9223372036854775808 is not from -9223372036854775807"):
        of_one_operation("div.Tensor_mode", least, divisors, rounding_mode="trunc")
    found = of_one_operation("div.Tensor_mode", torch.tensor([-7, 7]), divisors, rounding_mode="trunc")
    assert found.tolist() == [7, 3]


def picks_and(*nodes):
    """A model that is given values, picks those above 0, and then does this; node 2 is how many there are."""
    begin = [
        ["aten", "gt.Scalar", [{"input": 0}, 0], {}],
        ["aten", "index.Tensor", [{"input": 0}, [{"node": 0}]], {}],
        ["aten", "sym_size.int", [{"node": 1}, 0], {}],
    ]
    last = len(begin) + len(nodes) - 1
    graph = {"inputs": 1, "nodes": [*begin, *nodes], "outputs": [{"node": last}]}
    return PortableModel([], {}, [], {"model": {"graph": graph, "takes": "tensor", "returns": ["tuple", "tensor"]}})


def test_what_follows_a_mask_is_bounded_by_how_many_values_it_picked():
    """Also where fewer values make a larger tensor; a size that fits is computed whatever it was before."""
    divided = picks_and(
        ["python", "floordiv", [10**12, {"node": 2}], {}], ["aten", "ones.default", [[{"node": 3}]], {}]
    )
    with pytest.raises(JobError, match=r"at 'ones.default', operation 5: it would take"):
        divided(torch.tensor([1.0, -1.0, -1.0]))
    grown = picks_and(["python", "mul", [10**5, {"node": 2}], {}], ["aten", "ones.default", [[{"node": 3}] * 2], {}])
    for _ in range(2):
        assert grown(torch.tensor([-1.0, -1.0]))[0].shape == (0, 0)
        with pytest.raises(JobError, match=r"at 'ones.default', operation 5: it would take"):
            grown(torch.tensor([1.0, 1.0]))
    shaped = picks_and(["aten", "view.default", [{"node": 1}, [-1, 2]], {}], ["aten", "sum.default", [{"node": 3}], {}])
    assert shaped(torch.tensor([1.0, -1.0, 2.0]))[0] == 3.0
    with pytest.raises(JobError, match=r"at 'view.default', operation 4"):
        shaped(torch.ones(3))


def test_derivatives_of_losses_have_the_values_of_autograd_also_where_a_target_is_left_out():
    values, targets = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 2, -100, 1, 1])
    torch.nn.functional.nll_loss(values, targets, reduction="none").sum().backward()
    found = of_one_operation(
        "nll_loss_backward.default", torch.ones(5), values.detach(), targets, None, 0, -100, torch.ones(())
    )
    assert torch.equal(found, values.grad)


def test_indices_that_cannot_be_read_are_moved_into_their_dimension():
    """Under `vmap`, where a kernel would use them as they are; those that lie inside stay."""
    rows = torch.arange(6.0).reshape(3, 2)
    chosen = torch.tensor([[0, 1], [2, 99], [-5, 1]])
    found = torch.func.vmap(lambda index: of_one_operation("index_select.default", rows, 0, index))(chosen)
    assert torch.equal(found, rows[torch.tensor([[0, 1], [2, 2], [0, 1]])])


def test_an_empty_tensor_of_a_graph_does_not_show_what_the_memory_held():
    assert torch.equal(of_one_operation("empty.memory_format", [1000]), torch.zeros(1000))


def test_a_graph_whose_numbers_grow_without_end_is_refused(place):
    def grow(graph):
        squares = [["python", "mul", [{"node": max(0, k - 1)}] * 2 if k else [9, 9], {}] for k in range(60)]
        graph["nodes"] = squares + [moved_on(node, 60) for node in graph["nodes"]]
        graph["outputs"] = moved_on(graph["outputs"], 60)

    written(place, with_json(small_file(), GRAPH, grow))
    with pytest.raises(JobError, match=r"its result is a number of \d+ bits"):
        load_problem(str(place)).model(torch.zeros(2, 1, 4, 4))


def moved_on(values, count):
    """The graph's values, whose nodes have others before them."""
    if isinstance(values, dict):
        return {key: each + count if key == "node" else each for key, each in values.items()}
    return [moved_on(each, count) for each in values] if isinstance(values, list) else values


def test_a_truth_value_that_is_neither_0_nor_1_is_refused(place):
    members = members_of(small_file())
    whole = members["tensors/weights.safetensors"]
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    header["head.bias"] |= {"dtype": "BOOL", "shape": [16]}
    text = json.dumps(header, separators=(",", ":")).encode()
    members["tensors/weights.safetensors"] = len(text).to_bytes(8, "little") + text + whole[8 + length :]
    written(place, members)
    assert "truth values of 'head.bias' that are neither 0 nor 1" in refusal(place)


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
