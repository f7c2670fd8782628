"""Every tool of the benchmark gives the losses that a plain float64 loop gives, at the points it says it visits.

The packages are in the environment of `make bench-peers` alone; elsewhere only this project's own adapter is tested.
"""

from __future__ import annotations

import copy
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from adapters import Contender, Prepared, contenders
from bench_peers import main
from report import agreements, table
from rounds import ratios, run_rounds
from subjects import Lattice, MissingData, Subject, make_axis, reference, resnet20
from torch import nn

LIBRARIES = {"loss-landscapes": "loss_landscapes", "Landscaper": "landscaper", "loss-landscape-3d": "loss_landscape_3d"}
NAMES = [each.name for each in contenders(None) if each.kind != "reference"]


@pytest.fixture
def subject():
    torch.manual_seed(3)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 5)]
    model = nn.Sequential(*layers)
    model(torch.randn(64, 1, 6, 6))  # running statistics that are not 0 and 1
    return Subject("small", model.eval(), torch.randn(50, 1, 6, 6), torch.randint(5, (50,)), "made up")


def contender_named(name, folder):
    return next(each for each in contenders(folder) if each.name == name)


def need(name):
    library = next((module for key, module in LIBRARIES.items() if name.startswith(key)), None)
    if library and find_spec(library) is None:
        pytest.skip(f"{library} is not installed; `make bench-peers` has an environment with it")


@pytest.mark.filterwarnings("ignore")  # the peers' own
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", [3, 4])
@pytest.mark.parametrize("batch_size", [None, 16])  # 50 samples: the last batch is smaller
def test_values_are_the_reference_s_at_the_visited_points(name, side, batch_size, subject, tmp_path):
    need(name)
    contender = contender_named(name, tmp_path)
    surface = contender.adapter(subject, Lattice(side, 0.2), batch_size).compute()
    exact = reference(subject, surface.points)
    gaps = np.abs(np.array(surface.losses) - exact)
    if contender.noisy_maximum:
        gaps[int(np.argmax(exact))] = 0
    assert len(set(surface.points)) == side**2
    assert np.ptp(exact) > 0.01
    assert gaps.max() < (0.02 if "bfloat16" in name else 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_subject_s_model_stays_where_it_is(name, subject, tmp_path):
    need(name)
    before = copy.deepcopy(subject.model.state_dict())
    contender_named(name, tmp_path).adapter(subject, Lattice(3), None).compute()
    assert all(torch.equal(value, before[key]) for key, value in subject.model.state_dict().items())


def test_loss_landscape_3d_moves_its_centre_when_called_as_its_readme_does(subject):
    need("loss-landscape-3d")
    from loss_landscape_3d import LossLandscapeCalculator

    model, coordinates = copy.deepcopy(subject.model), np.array(Lattice(3, 0.2).coordinates)
    calculator = LossLandscapeCalculator(model, subject.batches(50), nn.CrossEntropyLoss())
    grid = calculator.calculate(coordinates, coordinates, *subject.axes, center_state=model.state_dict())
    gaps = np.abs(grid.reshape(-1) - reference(subject, Lattice(3, 0.2).points))
    assert gaps[0] < 1e-5
    assert gaps[1:].max() > 1e-3


def test_axes_have_the_length_of_the_weights_and_one_size_per_element(subject):
    axis = make_axis(subject.model, torch.Generator().manual_seed(1))
    weights = torch.cat([each.detach().reshape(-1) for each in subject.model.parameters()])
    assert torch.cat([each.reshape(-1) for each in axis.values()]).norm().item() == pytest.approx(weights.norm().item())
    sizes = [(each.norm() / each.numel() ** 0.5).item() for each in axis.values()]
    assert sizes == pytest.approx([sizes[0]] * len(sizes))


@pytest.mark.parametrize(("side", "indices"), [(3, [-1, 0, 1]), (4, [-2, -1, 0, 1]), (1, [0])])
def test_a_lattice_holds_the_origin(side, indices):
    assert Lattice(side, 0.5).coordinates == [0.5 * index for index in indices]


def broken(subject, lattice, batch_size):
    raise ImportError("no module named\n'topology'")


def counting(calls):
    def adapter(subject, lattice, batch_size):
        return Prepared(lambda: calls.append(batch_size))

    return adapter


@pytest.mark.long
@pytest.mark.faults
def test_contenders_take_turns_and_one_that_cannot_run_says_why(subject, tmp_path):
    calls = []
    few = [
        Contender("broken", broken, "peer"),
        Contender("quick", counting(calls), "peer"),
        contender_named("this, float32", tmp_path),
    ]
    rows = run_rounds(few, subject, Lattice(2), 3, [16, 999], lambda line: None)
    assert rows[0].reason == "ImportError: no module named 'topology'"
    assert [len(row.seconds) for row in rows] == [0, 3, 3]
    assert set(rows[1].trials) == {16, 50}
    assert calls[-4:] == [rows[1].batch_size] * 4
    assert ratios(rows[2], rows[2]) == [1, 1, 1]
    agreed = agreements(subject, rows)
    assert agreed["this, float32"].from_float64 < 1e-5
    text = table(subject, Lattice(2), rows, agreed)
    assert "no module named 'topology'" in text
    assert "fastest peer, quick, ÷ this, float32" in text


def test_a_subject_without_its_files_is_left_out_with_the_reason(tmp_path, capsys):
    with pytest.raises(MissingData, match="resnet20-cifar10"):
        resnet20(tmp_path, tmp_path, 8)
    main(["--model", "resnet20", "--data", str(tmp_path), "--json", str(tmp_path / "found.json")])
    assert "left out" in capsys.readouterr().out
    assert "is not there" in (tmp_path / "found.json").read_text()
