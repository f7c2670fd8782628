"""Landscapes of models in memory: the values of jobs, cells executed again, interruptions, what a run keeps of them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import landscape
from landscape import Job, JobError, Problem, open_run, run
from landscape.core.errors import ComputedOtherwise
from landscape.store.runs import contents_of

QUIET = {"progress": False, "num_samples": 40, "size": 5}


class Tied(nn.Module):
    """Embedding and output share a matrix; a batch norm has buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.out = nn.Embedding(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 6, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.table(x)))


def make_net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def make_data(count: int = 60) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return x, x.argmax(1) % 3


def loss_of(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    with torch.no_grad():
        return nn.functional.cross_entropy(model(data[0]), data[1])


CALLS: list[int] = []


def counted(model: nn.Module, batch: Any) -> Tensor:
    CALLS.append(len(batch[0]))
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


# ----------------------------------------------------------------------------------------------------
# The values.


@pytest.mark.parametrize("function, axes", [("line", 1), ("plane", 2), ("volume", 3)])
def test_the_values_are_those_of_the_same_job(tmp_path, function, axes):
    model, data = make_net(), make_data()
    surface = getattr(landscape, function)(model, data, "cross_entropy", progress=False, num_samples=40, size=3)
    directions = [{"kind": "random", "seed": seed} for seed in range(1, axes + 1)]
    spec = {"name": "same", "origin": "problem", "directions": directions, "size": 3}
    job = Job(run=str(tmp_path), problem=lambda: Problem.supervised(model, data), num_samples=40, landscapes=[spec])
    expected = run(job, progress=False)["same"]
    assert surface.loss.shape == (3,) * axes
    for name in expected.observables:
        np.testing.assert_array_equal(surface[name], expected[name])


def test_a_plane_without_options_has_the_directions_of_a_job_without_options(tmp_path):
    model, data = make_net(), make_data()
    mine = landscape.plane(model, data, **QUIET)
    job = Job(
        run=str(tmp_path), problem=lambda: Problem.supervised(model, data), num_samples=40,
        landscapes=[{"name": "plane", "size": 5, "origin": "problem"}],
    )  # fmt: skip
    assert mine.record.identity.whole == run(job, progress=False)["plane"].record.identity.whole


def loss_of_pair(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    outputs = model(batch[0])
    loss = nn.functional.cross_entropy(outputs, batch[1], reduction="none")
    return {"loss": loss, "margin": outputs.amax(1)}


@pytest.mark.parametrize(
    "loss",
    ["cross_entropy", nn.CrossEntropyLoss(), nn.functional.cross_entropy, counted, loss_of_pair],
    ids=["name", "module", "function", "of model and batch", "dict"],
)
@pytest.mark.parametrize("kind", ["tensors", "arrays", "data set", "loader"])
def test_losses_and_data_of_every_form_give_the_same_values(loss, kind):
    x, y = make_data()
    data = {
        "tensors": (x, y),
        "arrays": (x.numpy(), y.numpy()),
        "data set": TensorDataset(x, y),
        "loader": DataLoader(TensorDataset(x, y), batch_size=16),
    }[kind]
    surface = landscape.line(make_net(), data, loss, progress=False, num_samples=40, size=3)
    expected = landscape.line(make_net(), (x, y), "cross_entropy", progress=False, num_samples=40, size=3)
    np.testing.assert_array_equal(surface.loss, expected.loss)
    assert ("margin" in surface.observables) == (loss is loss_of_pair)


def test_a_regression_and_tokens_by_the_names_of_their_losses():
    x = torch.linspace(-1, 1, 30)[:, None]
    model = nn.Linear(1, 1)
    surface = landscape.line(model, (x, x**2), "mse", progress=False, size=3)
    assert surface.loss[1] == pytest.approx(float(nn.functional.mse_loss(model(x), x**2).detach()), rel=1e-6)
    tokens = torch.randint(0, 6, (20, 5), generator=torch.Generator().manual_seed(0))
    words = landscape.line(
        nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6)), tokens, "causal_lm", progress=False, size=3
    )
    np.testing.assert_allclose(words["perplexity"], np.exp(words.loss))


def test_a_problem_a_callback_and_its_name_stand_in_place_of_a_model(tmp_path, monkeypatch):
    model, data = make_net(), make_data()
    problem = Problem.supervised(model, data)
    expected = landscape.line(model, data, **QUIET).loss
    np.testing.assert_array_equal(landscape.line(problem, **QUIET).loss, expected)
    np.testing.assert_array_equal(landscape.line(lambda: problem, **QUIET).loss, expected)
    with pytest.raises(JobError, match=r"data: goes with a torch\.nn\.Module alone"):
        landscape.line(problem, data)


def test_every_option_of_landscapes_and_jobs_is_an_argument_with_its_text():
    from landscape.job.landscape import Landscape

    given = inspect.signature(landscape.plane).parameters
    of_job = set(Job.model_fields) - {"run", "problem", "landscapes", "collect_landscape"}
    for name in (set(Landscape.model_fields) - {"like"}) | of_job:
        assert name in given, name
        assert name == "name" or f"{name}: " in landscape.plane.__doc__
    surface = landscape.plane(
        make_net(), make_data(), progress=False, size=(3, 4), range=[[-1, 1], [0, 2]], precision="float64",
        keep_samples=True, seed=3, num_samples=20, tile=2, convexity={"steps": 4},
    )  # fmt: skip
    assert surface.loss.shape == (4, 3)
    assert surface.record.precision == "float64"
    assert surface.loss_samples.shape == (4, 3, 20)
    assert surface.beta[-1] == 2.0
    assert surface.record.convexity is not None


# ----------------------------------------------------------------------------------------------------
# Cells that are executed again.


def test_the_same_call_again_evaluates_the_origin_and_one_point():
    first = landscape.plane(make_net(), make_data(), counted, **QUIET)
    CALLS.clear()
    again = landscape.plane(make_net(), make_data(), counted, **QUIET)
    assert (again.run, again.name) == (first.run, first.name)
    np.testing.assert_array_equal(again.loss, first.loss)
    assert len(CALLS) <= 10, "the first look at what observe returns, the origin and one point"


def test_other_weights_data_and_options_are_landscapes_of_their_own_and_are_found_again():
    calls = [
        lambda: landscape.plane(make_net(5), make_data(), counted, **QUIET),
        lambda: landscape.plane(make_net(6), make_data(), counted, **QUIET),
        lambda: landscape.plane(make_net(5), make_data(50), counted, **QUIET),
        lambda: landscape.plane(make_net(5), make_data(), counted, range=[-2, 2], **QUIET),
    ]
    surfaces = [call() for call in calls]
    assert len({surface.name for surface in surfaces}) == 4
    CALLS.clear()
    again = [call() for call in calls]
    assert [surface.name for surface in again] == [surface.name for surface in surfaces]
    assert len(CALLS) <= 4 * 10


def test_a_name_is_kept_and_refuses_another_computation():
    assert landscape.plane(make_net(), make_data(), name="mine", **QUIET).name == "mine"
    assert landscape.plane(make_net(), make_data(), name="mine", **QUIET).name == "mine"
    with pytest.raises(ComputedOtherwise, match=r"changed: .*origin"):
        landscape.plane(make_net(1), make_data(), name="mine", **QUIET)


def halved(model: nn.Module, batch: Any) -> Tensor:
    return counted(model, batch) / 2


class Scaled(nn.Module):
    """Its scale is in no state dict."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.net, self.scale = make_net(), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.net(x)


@pytest.mark.parametrize("keep", [False, True], ids=["session", "kept run"])
def test_another_loss_or_architecture_of_the_same_weights_is_another_landscape(tmp_path, keep):
    place = {"keep": tmp_path / "run", "packed_copy": False} if keep else {}
    data = make_data()
    relu = nn.Sequential(*make_net()[:1], nn.ReLU(), *make_net()[2:])
    calls = {
        "loss": (make_net(), counted),
        "other loss": (make_net(), halved),
        "named loss": (make_net(), "cross_entropy"),
        "smoothed": (make_net(), nn.CrossEntropyLoss(label_smoothing=0.5)),
        "other layer": (relu, counted),
        "scaled": (Scaled(1.0), counted),
        "scaled otherwise": (Scaled(2.0), counted),
    }
    for _ in range(2):
        found = {words: landscape.line(model, data, loss, **QUIET, **place) for words, (model, loss) in calls.items()}
        assert len({surface.name for surface in found.values()}) == len(calls)
        for words, (model, loss) in calls.items():
            if callable(loss) and not isinstance(loss, nn.Module):
                with torch.no_grad():
                    expected = float(loss(model, data).mean())
                surface = landscape.line(model, data, loss, num_samples=60, size=5, progress=False, **place)
                assert surface.loss[2] == pytest.approx(expected, rel=1e-5), words
    np.testing.assert_allclose(found["other loss"].loss, found["loss"].loss / 2, rtol=1e-6)
    if keep:
        with pytest.raises(JobError, match="go back to those, or give it another name"):
            landscape.line(make_net(), data, halved, name=found["loss"].name, **QUIET, **place)


def test_the_model_may_be_trained_on_and_is_never_changed():
    model = make_net().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    surface = landscape.plane(model, make_data(), **QUIET)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    at_origin = surface.weights(0.0, 0.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in at_origin.items())
    wider = landscape.extend(surface, num_samples=60, progress=False)[surface.name]
    assert wider.record.num_samples == 60


def test_ctrl_c_returns_what_there_is_and_the_same_call_goes_on(caplog):
    whole = landscape.plane(make_net(7), make_data(), "cross_entropy", tile=1, **QUIET)
    left = [60]

    def interrupting(model: nn.Module, batch: Any) -> Tensor:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return counted(model, batch)

    part = landscape.plane(make_net(7), make_data(), interrupting, tile=1, batch_size=20, engine="eager", **QUIET)
    there = np.isfinite(part.loss)
    assert 0 < there.sum() < 25
    assert f"interrupted: {there.sum()} of 25 points of {part.name!r} are there" in caplog.text
    rest = landscape.plane(make_net(7), make_data(), interrupting, tile=1, batch_size=20, engine="eager", **QUIET)
    assert rest.name == part.name
    np.testing.assert_array_equal(rest.loss[there], part.loss[there])
    np.testing.assert_allclose(rest.loss, whole.loss, rtol=1e-6)


def test_ctrl_c_before_the_first_landscape_ends_the_call():
    def interrupting(model: nn.Module, batch: Any) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        landscape.plane(make_net(8), make_data(), interrupting, **QUIET)


# ----------------------------------------------------------------------------------------------------
# Two networks, and the path of a training.


def test_between_two_networks_the_ends_are_theirs():
    first, second, data = make_net(0), make_net(1), make_data()
    surface = landscape.between(first, second, data, progress=False, num_samples=60, size=15)
    assert surface.alpha[[0, -1]].tolist() == [-0.2, 1.2]
    for place, model in ((0.0, first), (1.0, second)):
        expected = float(loss_of(model, data))
        assert surface.loss[surface.alpha.tolist().index(place)] == pytest.approx(expected, rel=1e-6)
    for name, tensor in surface.weights(1.0).items():
        torch.testing.assert_close(tensor, second.state_dict()[name])
    by_state = landscape.between(first, second.state_dict(), data, progress=False, num_samples=60, size=15)
    np.testing.assert_array_equal(by_state.loss, surface.loss)


def test_a_plane_through_three_networks_in_memory():
    nets = [make_net(seed) for seed in range(3)]
    named = {"start": nets[0], "epoch 3": nets[1].state_dict(), "after": nets[2]}
    surface = landscape.plane(nets[0], make_data(), plane=named, progress=False, size=5)
    assert "epoch-3" in surface.caption()
    listed = landscape.plane(nets[0], make_data(), plane=nets, progress=False, size=5)
    np.testing.assert_array_equal(listed.loss, surface.loss)
    expected = [float(loss_of(net, make_data())) for net in nets]
    np.testing.assert_allclose(surface.networks.loss, expected, rtol=1e-5)


def checkpoints() -> list[nn.Module]:
    return [make_net(seed) for seed in (3, 4, 5, 6)]


@pytest.mark.parametrize("form", ["modules", "state dicts", "files", "numbered", "run"])
def test_a_path_of_checkpoints_of_every_form(tmp_path, form):
    nets, data = checkpoints(), make_data()
    files = [tmp_path / f"epoch-{number}.pt" for number in range(1, 5)]
    for net, file in zip(nets, files, strict=True):
        torch.save(net.state_dict(), file)
    if form == "run":
        landscape.import_checkpoints(files, tmp_path / "run")
    given: Any = {
        "modules": nets,
        "state dicts": [net.state_dict() for net in nets],
        "files": files,
        "numbered": dict(zip((10, 20, 30, 40), nets, strict=True)),
        "run": tmp_path / "run",
    }[form]
    surface = landscape.path(nets[-1], given, data, progress=False, num_samples=60, size=5)
    expected = [float(loss_of(net, data)) for net in nets]
    np.testing.assert_allclose(surface.path.loss, expected, rtol=1e-5)
    assert surface.path.step.tolist() == ([10, 20, 30, 40] if form == "numbered" else [1, 2, 3, 4])
    again = landscape.path(nets[-1], given, data, progress=False, num_samples=60, size=5)
    assert (again.run, again.name) == (surface.run, surface.name)


def test_a_generator_of_checkpoints_loses_none():
    surface = landscape.path(make_net(), (net for net in checkpoints()), make_data(), **QUIET)
    assert surface.path.step.tolist() == [1, 2, 3, 4]


def test_a_path_of_a_kept_run_of_itself_and_checkpoints_that_are_none(tmp_path):
    nets = checkpoints()
    kept = landscape.path(nets[0], nets, make_data(), keep=tmp_path / "run", packed_copy=False, **QUIET)
    again = landscape.path(nets[0], tmp_path / "run", make_data(), keep=tmp_path / "run", packed_copy=False, **QUIET)
    assert (again.name, kept.name) == ("path", "path")
    for wrong in ([], nets[0], [tmp_path / "run", nets[0]]):
        with pytest.raises(JobError, match="checkpoints: must"):
            landscape.path(nets[0], wrong, make_data())


# ----------------------------------------------------------------------------------------------------
# The weights at a point, the job file, and runs that are kept.


def test_weights_of_a_point_have_its_loss_with_tied_tensors_and_buffers():
    torch.manual_seed(0)
    model, x = Tied(), torch.arange(60) % 6
    surface = landscape.plane(model, (x, (x + 1) % 6), progress=False, num_samples=60, size=5)
    other = Tied()
    missing = other.load_state_dict(surface.weights(0.5, -0.5))
    assert not missing.missing_keys
    assert other.out.weight.data_ptr() == other.table.weight.data_ptr()
    loss = float(loss_of(other.eval(), (x, (x + 1) % 6)))
    assert loss == pytest.approx(surface.loss[1, 3], rel=1e-6)
    with pytest.raises(JobError, match="a coordinate for each of alpha, beta, not 1"):
        surface.weights(0.5)
    for wrong in ("a", float("nan")):
        with pytest.raises(JobError, match="weights: must be given finite numbers"):
            surface.weights(wrong, 0)


def test_weights_of_a_quantised_landscape_are_rounded():
    surface = landscape.line(make_net(), make_data(), quantise={"bits": 2}, **QUIET)
    assert len(surface.weights(0.0)["0.weight"][0].unique()) <= 4


def test_the_job_of_data_with_fewer_samples_than_the_default_takes_all_of_them(tmp_path):
    surface = landscape.line(make_net(), make_data(), progress=False, size=3, precision="float64")
    job = landscape.read_job(surface.job(tmp_path / "job.yaml"))
    np.testing.assert_allclose(run(job, progress=False)[surface.name].loss, surface.loss, rtol=1e-12)


@pytest.mark.parametrize("call", ["plane", "between"])
def test_the_written_job_computes_the_same_landscape(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    nets, data = [make_net(0), make_net(1)], make_data()
    if call == "plane":
        surface = landscape.plane(nets[0], data, range=[-0.5, 0.5], precision="float64", **QUIET)
    else:
        surface = landscape.between(*nets, data, precision="float64", **QUIET)
    file = surface.job("night/job.yaml") if (tmp_path / "night").mkdir() is None else None
    assert file == tmp_path / "night" / "job.yaml"
    job = landscape.read_job(file)
    again = run(job, progress=False)[surface.name]
    assert job.run_path == str(tmp_path / "night" / "runs" / "job")
    np.testing.assert_allclose(again.loss, surface.loss, rtol=1e-12)
    text = file.read_text()
    assert "engine" not in text
    assert "batch_size" not in text
    assert str(Path(surface.run).parent) not in text, "nothing of it lies in the folder that this process deletes"


def test_a_job_file_replaces_only_what_surfaces_wrote(tmp_path):
    surface = landscape.line(make_net(), make_data(), **QUIET)
    assert surface.job(tmp_path / "mine.yaml") == surface.job(tmp_path / "mine.yaml")
    (tmp_path / "own.yaml").write_text("run: runs/mine\n")
    (tmp_path / "packed.landscape").write_text("of another job")
    for name in ("own.yaml", "packed.yaml", "packed.landscape", ""):
        with pytest.raises(JobError, match="path: "):
            surface.job(tmp_path / name)
    assert (tmp_path / "own.yaml").read_text() == "run: runs/mine\n"
    assert (tmp_path / "packed.landscape").read_text() == "of another job"


def test_the_job_of_networks_with_similar_names_has_a_file_of_each(tmp_path):
    nets = dict(zip(("a b", "a-b", "a/b"), map(make_net, range(3)), strict=True))
    surface = landscape.plane(make_net(), make_data(), plane=nets, **QUIET)
    job = landscape.read_job(surface.job(tmp_path / "job.yaml"))
    assert len(set(job.landscapes[0].plane)) == 3
    assert all((tmp_path / file).is_file() for file in job.landscapes[0].plane)


def test_the_job_of_checkpoints_in_a_temporary_run_is_refused():
    with pytest.raises(JobError, match='compute it with keep="runs/x"'):
        landscape.path(make_net(), checkpoints(), make_data(), **QUIET).job("job.yaml")


def test_a_surface_that_was_made_by_hand_has_no_run():
    axis = landscape.Axis("alpha", np.linspace(-1, 1, 3))
    surface = landscape.Surface("made", (axis,), {"loss": np.zeros(3)}, status=np.ones(3, np.uint8))
    for ask in (lambda: surface.weights(0.0), lambda: surface.job(), lambda: landscape.check(surface)):
        with pytest.raises(JobError, match="surface: 'made' must be of a run"):
            ask()


USE = """
import sys, landscape
run = sys.argv[1]
print(landscape.check(run, "plane")["plane"].not_judged)
print(landscape.refine(run, "plane", progress=False)["plane"].merged().loss.shape)
print(landscape.inspect(run, "plane", at=(0, 0)).loss == float(sys.argv[2]))
print(sorted(landscape.open_run(run)["plane"].weights(0, 0)))
"""


def in_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.long
def test_a_kept_run_serves_another_process_by_its_packed_copy(tmp_path):
    model, data = make_net(), make_data()
    surface = landscape.plane(model, data, keep=tmp_path / "run", **QUIET)
    assert contents_of(str(tmp_path / "run")).foreign == ()
    origin = landscape.line(model, data, num_samples=40, size=3, progress=False).loss[1]
    done = in_python(USE, str(tmp_path / "run"), repr(float(origin)))
    assert done.stdout.split("\n")[:3] == ["False", "(9, 9)", "True"], done.stderr
    assert done.stdout.split("\n")[3] == str(sorted(model.state_dict()))
    assert landscape.plane(model, data, keep=tmp_path / "run", **QUIET).name == "plane"
    assert landscape.plane(make_net(1), data, keep=tmp_path / "run", **QUIET).name == "plane-2"
    assert surface.run == str(tmp_path / "run")


def test_without_a_packed_copy_another_process_says_what_it_lacks(tmp_path):
    landscape.plane(make_net(), make_data(), keep=tmp_path / "run", packed_copy=False, **QUIET)
    code = """
import sys, landscape
try:
    landscape.open_run(sys.argv[1])["plane"].weights(0, 0)
except landscape.JobError as error:
    print(error)
"""
    said = in_python(code, str(tmp_path / "run")).stdout
    assert "was computed with a model in the memory of a process that has ended" in said
    assert "give --problem FILE:function" in said


def test_networks_in_memory_are_kept_in_the_run_and_removed_with_it(tmp_path):
    surface = landscape.between(
        make_net(), make_net(1), make_data(), keep=tmp_path / "run", packed_copy=False, progress=False, size=3
    )
    (file,) = (tmp_path / "run" / "networks").rglob("*.safetensors")
    assert file.name == "second.safetensors"
    assert contents_of(surface.run).foreign == ()
    landscape.remove_run(surface.run)
    assert not (tmp_path / "run").exists()


def test_the_folder_of_runs_that_are_not_kept_goes_with_its_process():
    code = """
import torch, landscape
data = torch.ones(8, 2), torch.zeros(8).long()
print(landscape.line(torch.nn.Linear(2, 2), data, size=3, progress=False).run)
"""
    place = in_python(code).stdout.strip()
    assert place
    assert not Path(place).exists()


def test_a_fork_that_ends_leaves_the_folder_and_has_its_own():
    code = """
import os, sys, torch, landscape
data = torch.ones(8, 2), torch.zeros(8).long()
call = lambda: landscape.line(torch.nn.Linear(2, 2), data, size=3, progress=False)
surface = call()
child = os.fork()
if child == 0:
    sys.exit(call().run == surface.run)
print(os.waitpid(child, 0)[1], len(surface.weights(0)))
"""
    done = in_python(code)
    assert done.stdout.split() == ["0", "2"], done.stderr


def test_threads_wait_for_each_other_in_a_run(tmp_path):
    def call(net: nn.Module) -> landscape.Surface:
        return landscape.line(net, make_data(), keep=tmp_path / "run", packed_copy=False, **QUIET)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(call, map(make_net, (0, 1, 2, 0))))
    assert len({surface.name for surface in found}) == 3
    assert found[0].name == found[3].name


class Pair(NamedTuple):
    inputs: Any
    targets: Any


def test_arrays_backwards_of_another_byte_order_and_in_named_tuples_are_data():
    x, y = (tensor.numpy() for tensor in make_data())
    expected = landscape.line(make_net(), (x.copy(), y.copy()), progress=False, num_samples=60, size=3).loss
    for data in ((x[::-1], y[::-1]), (x.astype(">f4"), y.astype(">i8")), Pair(x, y)):
        found = landscape.line(make_net(), data, progress=False, num_samples=60, size=3)
        np.testing.assert_allclose(found.loss, expected, rtol=1e-6)


def test_a_run_of_the_same_name_is_opened_as_any_other(tmp_path):
    surface = landscape.plane(make_net(), make_data(), keep=tmp_path / "run", packed_copy=False, **QUIET)
    np.testing.assert_array_equal(open_run(tmp_path / "run")["plane"].loss, surface.loss)
