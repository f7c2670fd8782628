"""`landscape connect` as a user gives it: a curve, its numbers on stdout, its files, and what is refused."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from one_run import render_report
from safetensors.torch import load_file, save_file

from cluster.commands.analysis import text_of_connection
from landscape import open_run
from landscape.analysis.connect import connect
from landscape.analysis.connect.connect import Values1D, way_record
from landscape.core.text import percent_text
from landscape.store import results
from landscape.surface.barriers import barriers_of, path_columns
from landscape.surface.record_entries import ConnectionRecord
from landscape.surface.surface import Surface
from landscape.views.prepare.quantisation import connection_rows
from landscape.views.prepare.tables import landscape_rows

Called = Callable[..., tuple[int, str, str]]

PROBLEM = """
import torch
from landscape import Problem

def model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(2, 12), torch.nn.BatchNorm1d(12), torch.nn.ReLU(), torch.nn.Linear(12, 2)]
    return torch.nn.Sequential(*layers)

def data():
    inputs = torch.randn(96, 2, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()

def problem():
    return Problem.supervised(model(), data(), torch.nn.CrossEntropyLoss(), ("accuracy",))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("connect")
    (place / "two_networks.py").write_text(PROBLEM)
    (place / "job.yaml").write_text("run: run\nproblem: two_networks:problem\nnum_samples: 96\nengine: eager\n")
    names: dict = {}
    exec(dedent(PROBLEM), names)
    inputs, labels = names["data"]()
    for seed, name in enumerate("ab", 1):
        model = names["model"]()
        torch.manual_seed(seed)
        for layer in (model[0], model[3]):
            layer.reset_parameters()
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        for _ in range(60):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        save_file(model.state_dict(), place / f"{name}.safetensors")
    return place


@pytest.fixture
def call(call, folder) -> Called:
    """Give the command, as `call` gives any."""
    return partial(call, "connect", folder / "job.yaml", cwd=folder)


def no_space(run: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


QUICK = ("--serial", "--size", 3, "--epochs", 8, "--points", 11)


def test_a_curve_is_trained_drawn_measured_and_kept(call, folder, monkeypatch):
    code, out, _ = call("a.safetensors", "b.safetensors", *QUICK, "--json")
    assert code == 0
    found = json.loads(out)
    line, curve = found["on_line"], found["on_curve"]
    assert line["t"] == curve["t"] == pytest.approx(np.linspace(0, 1, 11))
    for end in (0, -1):
        assert line["loss"][end] == curve["loss"][end]
    assert found["gone"] == pytest.approx(
        1 - curve["barriers"]["entezari"]["height"] / line["barriers"]["entezari"]["height"]
    )
    assert found["gone"] > 0.5
    assert curve["columns"]["largest"] == max(curve["loss"])
    assert len(found["epochs"]) == 8
    surface = open_run(folder / "run")["curve"]
    assert surface.record.batch_norm == "recalibrate"
    assert surface.axes[0].record.curve == "bezier"
    assert [network.name for network in surface.axes[0].record.networks] == ["a", "b", "curve-bend"]
    bend = load_file(folder / "curve-bend.safetensors")
    assert set(bend) == set(load_file(folder / "a.safetensors"))
    assert not (folder / "curve-bend.training.safetensors").exists()
    # The same command again answers from what is kept, to the same numbers.
    with monkeypatch.context() as patched:
        patched.setattr(connect, "both_ways", None)
        code, out, _ = call("a.safetensors", "b.safetensors", *QUICK, "--json")
        assert (code, json.loads(out)) == (0, found)
    # On a disk that is full it is told all the same, and what was kept before stays.
    with monkeypatch.context() as full:
        full.setattr(results, "run_lock", no_space)
        code, out, err = call("a.safetensors", "b.safetensors", *QUICK[:-1], 5, "--json")
    assert (code, len(json.loads(out)["on_line"]["t"])) == (0, 5)
    assert "are not kept" in err
    assert "cannot be written: No space left on device" in err
    kept = open_run(folder / "run")["curve"].record.connection
    assert kept.gone == found["gone"]
    assert list(kept.epochs) == found["epochs"]
    rows = dict(landscape_rows(surface))
    assert rows["of the line's barrier is gone"] == percent_text(found["gone"])
    page = render_report([surface])
    assert "The line and the curve" in page
    assert page.count("straight line dashed, bezier curve solid") == 1
    code, out, _ = call("a.safetensors", "b.safetensors", *QUICK)
    assert code == 0
    assert [row.split()[0] for row in out.splitlines()[:3]] == ["lowest", "line", "bezier"]
    assert "of the line's barrier (Entezari's) is gone" in out
    code, _, err = call("a.safetensors", "b.safetensors", *QUICK, "--seed", 1)
    assert code == 2
    assert "curve-bend.safetensors' holds other weights than would be made now" in err
    # Nor is a bend that was trained in another precision taken over.
    job = (folder / "job.yaml").read_text()
    (folder / "job.yaml").write_text(f"{job}precision: float64\n")
    code, _, err = call(
        "a.safetensors", "b.safetensors", *QUICK, "--name", "double", "--bend", "curve-bend.safetensors"
    )
    (folder / "job.yaml").write_text(job)
    assert code == 2
    assert "curve-bend.safetensors' holds other weights than would be made now" in err


def test_the_second_network_is_matched_first_where_that_is_asked_for(call, folder):
    weights = load_file(folder / "a.safetensors")
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    moved = {name: each[order] if each.shape[:1] == (12,) else each for name, each in weights.items()}
    moved["3.weight"] = weights["3.weight"][:, order]
    moved["3.bias"] = weights["3.bias"] + torch.tensor([0.05, -0.05])  # the same weights would be no second network
    save_file({name: each.contiguous() for name, each in moved.items()}, folder / "c.safetensors")
    code, out, _ = call(
        "a.safetensors", "c.safetensors", *QUICK, "--name", "matched", "--match", "--json", "--curve", "polyline"
    )
    assert code == 0
    assert json.loads(out)["matched"] == str(folder / "matched-matched.safetensors")
    found = load_file(folder / "matched-matched.safetensors")
    assert all(torch.equal(found[name], each) for name, each in weights.items() if name != "3.bias")
    assert json.loads(out)["on_line"]["barriers"]["entezari"]["height"] < 1e-3
    before, after = json.loads(out)["inner_products"]
    assert after > before
    code, out, _ = call("a.safetensors", "c.safetensors", *QUICK, "--name", "matched", "--match", "--curve", "polyline")
    told = f"matched: the inner product with the first network is {after:.4g}, was {before:.4g}; in "
    assert told + str(folder / "matched-matched.safetensors") in out.splitlines()


def test_a_table_of_ones_own_is_read_from_a_file(call, folder):
    names = {
        "0.weight": ["P", None],
        "2.weight": [None, "P"],
    }  # not what stands between the two: the function would change
    (folder / "short.yaml").write_text(json.dumps(names))
    code, _, err = call("a.safetensors", "b.safetensors", *QUICK, "--match", "--table", folder / "short.yaml")
    assert code == 2
    assert (
        "table: must name the permutation of every axis of a tensor; for '2.weight' the model has no such tensor" in err
    )
    (folder / "short.yaml").unlink()


PAIR = "a.safetensors b.safetensors"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a.safetensors a.safetensors", "connect: must be given two networks, not 'a.safetensors' twice"),
        (f"{PAIR} --curve circle", "curve: must be bezier or polyline, not 'circle'"),
        (f"{PAIR} --epochs 0", "epochs: must be at least 1, not 0"),
        (f"{PAIR} --points 2", "points: must be at least 3, not 2"),
        (f"{PAIR} --learning-rate 1e30 --name far", "learning_rate: the loss on the curve"),
        ("a.safetensors missing.safetensors", "does not exist"),
        ("a.safetensors 3", "3"),
        (f"{PAIR} --bend none/x.safetensors", "bend: the folder of 'none/x.safetensors' must"),
        (f"{PAIR} --table two_networks.py", "table: goes with --match only"),
        (f"{PAIR} --match --table none.yaml", "table: 'none.yaml' cannot be read"),
        (f"{PAIR} --match --table job.yaml", "table: 'job.yaml' must hold lines such as"),
    ],
)
def test_what_cannot_be_connected_is_refused_in_two_lines(call, folder, words, message):
    before = sorted(path.name for path in folder.iterdir())
    code, out, err = call(*words.split(), "--serial")
    assert code in (2, 3)
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) <= 2
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("line", "curve", "words"),
    [
        ([0.0, 2.0, 0.0], [0.0, 0.5, 0.0], "75.0 % of the line's barrier (Entezari's) is gone"),
        ([0.0, 2.0, 0.0], [0.0, 5.0, 0.0], "the curve's barrier (Entezari's) is 2.5 times the line's"),
        ([2.0, 1.0, 2.0], [2.0, 1.0, 2.0], "the line has no barrier"),
        ([0.0, np.nan, 0.0], [0.0, 0.5, 0.0], "the loss on the line is not finite everywhere"),
        ([0.0, 2.0, 0.0], [0.0, np.inf, 0.0], "the loss on the curve is not finite everywhere"),
    ],
)
def test_how_much_of_the_barrier_is_gone_is_said_in_words_that_hold(line, curve, words):
    t = np.linspace(0, 1, 3)
    ways = []
    for losses in map(np.array, (line, curve)):
        barriers = barriers_of(t, {"loss": losses}, losses[0], None)
        ways.append(Values1D(t, {"loss": losses}, path_columns(losses, np.ones(2)), barriers))
    found = connect.Connection("curve", "bezier", *ways, Path("bend"), None, ())
    assert text_of_connection(found).splitlines()[-1].startswith(words)


def test_no_share_is_told_of_a_barrier_within_its_error():
    t, lengths = np.linspace(0, 1, 3), np.ones(2)
    ways = []
    for height in (0.0012, 0.0):
        values = {"loss": np.array([0.5, 0.5 + height, 0.5]), "loss_stderr": np.full(3, 0.018)}
        barriers = barriers_of(t, values | {"loss_rise_stderr": np.array([0.0, 0.018, 0.018])}, 0.5, None)
        ways.append(Values1D(t, values, path_columns(values["loss"], lengths), barriers))
    told = text_of_connection(connect.Connection("curve", "bezier", *ways, Path("bend"), None, ())).splitlines()[-1]
    assert told.startswith("the line's barrier (Entezari's), 0.0012, is within its error of 0.0")
    line, curve = map(way_record, ways)
    known = ConnectionRecord(
        when="", version="", curve="bezier", t=tuple(t.tolist()), on_line=line, on_curve=curve, epochs=(),
        evaluations=5, settings={},
    )  # fmt: skip
    surface = cast("Surface", SimpleNamespace(record=SimpleNamespace(connection=known)))
    assert connection_rows(surface)[-1] == ("of the line's barrier is gone", "it is within its error")


HOOKED = """
import torch
from landscape import Problem

def problem():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 12), torch.nn.Tanh(), torch.nn.Linear(12, 2))
    first = model[0]
    model[2].register_forward_hook(lambda module, given, made: made * first.weight.square().mean())
    inputs = torch.randn(96, 2, generator=torch.Generator().manual_seed(0))
    return Problem.supervised(model, (inputs, (inputs[:, 0] > 0).long()), torch.nn.CrossEntropyLoss())
"""


def test_the_option_that_the_refusal_of_another_model_names_is_there(tmp_path, call):
    (tmp_path / "hooked_network.py").write_text(HOOKED)
    (tmp_path / "job.yaml").write_text("run: run\nproblem: hooked_network:problem\nnum_samples: 96\n")
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(2, 12), torch.nn.Tanh(), torch.nn.Linear(12, 2))
        save_file(model.state_dict(), tmp_path / f"{name}.safetensors")
    give = partial(call.func, "connect", "job.yaml", "a.safetensors", "b.safetensors", *QUICK, cwd=tmp_path)
    code, _, err = give()
    assert code != 0
    assert "--accept-origin" in err
    assert give("--accept-origin").code == 0
    assert open_run(tmp_path / "run")["curve"].record.own_model.state == "accepted"
