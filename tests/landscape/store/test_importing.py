"""Surfaces of other software in a run: the same values, taken by every view; and files that hold none."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from object_stores import Raw, new_url, s3_server, use
from small_models import (
    Quadratic,
    conv_problem,
    make_job,
    quadratic_problem,
    quadratic_samples,
    wandering,
    write_trajectory,
)

from cluster.commands.exporting import export_run
from cluster.runtime.status import run_status, validate_run
from landscape import JobError, LandscapeError, NotFoundError, Problem, import_surface, open_run, rename_landscape, run
from landscape.compute.planning import plan_job
from landscape.core.lock import run_lock
from landscape.page.api import BoxQuery, box_job
from landscape.page.description import run_description
from landscape.page.runs import RunReader
from landscape.store.importing import import_surfaces
from landscape.store.status import FoundRun
from landscape.views.figure_spec import FigureSpec
from landscape.views.prepare.words import caption

X, Y = np.linspace(-1, 1, 5), np.array([-2.0, -1.0, 0.0, 4.0])


def bowl(x: float, y: float) -> float:
    return x**2 + 3 * y**2 + x * y


BOWL = np.array([[bowl(x, y) for x in X] for y in Y])  # [beta, alpha]


def write_li(file: Path, missing: int = 0, **more: object) -> None:
    """As `plot_surface.py` of loss-landscape does: arrays of shape [x, y], filled in the order of numpy's meshgrid."""
    xs, ys = np.meshgrid(X, Y)
    places = np.c_[xs.ravel(), ys.ravel()]
    losses, accuracies = -np.ones((len(X), len(Y))), -np.ones((len(X), len(Y)))
    for index in range(losses.size - missing):
        losses.ravel()[index] = bowl(*places[index])
        accuracies.ravel()[index] = 100 - bowl(*places[index])
    with h5py.File(file, "w") as opened:
        opened["dir_file"] = "model_weights.h5"
        opened["xcoordinates"], opened["ycoordinates"] = X, Y
        opened["train_loss"], opened["train_acc"] = losses, accuracies
        for name, value in more.items():
            opened[name] = value


def test_a_surface_of_loss_landscape_has_each_value_at_its_coordinates(tmp_path):
    write_li(tmp_path / "s.h5", missing=3)
    assert import_surface(tmp_path / "s.h5", tmp_path / "run") == "s"
    surface = open_run(tmp_path / "run")["s"]
    assert (surface.alpha.tolist(), surface.beta.tolist()) == (X.tolist(), Y.tolist())
    there = surface.status == 1
    assert (surface.status == 0).sum() == 3
    assert (surface.status[-1, -3:] == 0).all(), "the last three in the order of that software"
    assert (surface.loss[there] == BOWL[there]).all()
    assert np.isnan(surface.loss[~there]).all()
    assert (surface.observables["train_acc"][there] == 100 - BOWL[there]).all()
    [status] = run_status(str(tmp_path / "run"))["landscapes"]
    assert (status["state"], status["done"], status["missing"], status["origin_loss"]) == ("partial", 17, 3, 0.0)
    assert validate_run(str(tmp_path / "run"))["damaged"] == 0


def test_a_line_of_loss_landscape_has_one_axis(tmp_path):
    with h5py.File(tmp_path / "line.h5", "w") as file:
        file["xcoordinates"], file["train_loss"], file["test_loss"] = X, X**2, X**2 + 1
    import_surface(tmp_path / "line.h5", tmp_path / "run")
    surface = open_run(tmp_path / "run")["line"]
    assert surface.dimensions == ("alpha",)
    assert (surface.observables["test_loss"] == X**2 + 1).all()


def test_arrays_are_sorted_by_their_coordinates(tmp_path):
    np.savez(tmp_path / "a.npz", x=X[::-1], y=Y, loss=BOWL[:, ::-1], error=BOWL[:, ::-1] * 2)
    # As Landscaper saves them: its first direction is the first index.
    np.savez(tmp_path / "b.npz", loss=BOWL[:, 1:].T, coordinates=np.stack([X[1:], Y]))
    rows = [(x, y, bowl(x, y)) for x in X for y in Y]
    table = "\n".join(["y, x, loss", *(f"{y!r},{x!r},{loss!r}" for x, y, loss in rows[::-1])])
    (tmp_path / "c.csv").write_text(table.replace("np.float64(", "").replace(")", ""))
    assert import_surfaces([tmp_path / name for name in ("a.npz", "b.npz", "c.csv")], tmp_path / "run") == [
        "a",
        "b",
        "c",
    ]
    opened = open_run(tmp_path / "run")
    assert list(opened) == ["a", "b", "c"]
    assert (opened["a"].loss == BOWL).all()
    assert (opened["a"].observables["error"] == 2 * BOWL).all()
    assert (opened["b"].loss == BOWL[:, 1:]).all()
    assert (opened["c"].loss == BOWL).all()


# -- arrays as functions return them -----------------------------------------------------------------------------------

STEPS = 4


def walked(center: float, scale: float) -> np.ndarray:
    """The bowl as loss-landscapes walks over it: it steps before it evaluates, and turns round after each row."""
    rows, second = [], -center
    for i in range(STEPS):
        row = []
        for _ in range(STEPS):
            second += 1 if i % 2 == 0 else -1
            row.insert(len(row) if i % 2 == 0 else 0, bowl((i - center) * scale, second * scale))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize(
    ("made_by", "options", "center", "scale"),
    [
        ("random_plane", {"distance": 0.5}, STEPS / 2, 2 / STEPS),
        ("random_plane", {}, STEPS / 2, 1 / STEPS),
        ("planar_interpolation", {}, 0, 1 / STEPS),
    ],
)
def test_a_plane_of_loss_landscapes_has_each_value_where_it_was_evaluated(tmp_path, made_by, options, center, scale):
    np.save(tmp_path / "plane.npy", walked(center, scale))
    import_surface(tmp_path / "plane.npy", tmp_path / "run", made_by=made_by, **options)
    surface = open_run(tmp_path / "run")["plane"]
    assert surface.loss.shape == (STEPS + 1, STEPS)
    evaluated = surface.status == 1
    assert evaluated.sum() == STEPS**2
    truth = np.array([[bowl(x, y) for x in surface.alpha] for y in surface.beta])
    assert surface.loss[evaluated] == pytest.approx(truth[evaluated], abs=1e-12)
    assert np.isnan(surface.loss[~evaluated]).all()
    if made_by == "random_plane":
        assert surface.origin_loss == 0


def test_a_value_that_is_not_finite_is_not_one_that_was_not_computed(tmp_path):
    plane = walked(STEPS / 2, 1 / STEPS)
    plane[0, 0] = np.inf
    np.savez(tmp_path / "plane.npz", loss=plane, accuracy=1 - plane)
    import_surface(tmp_path / "plane.npz", tmp_path / "run", made_by="random_plane")
    surface = open_run(tmp_path / "run")["plane"]
    assert surface.status[1, 0] == 2, "row 0 is even, so that its first value lies at the second place"
    assert (surface.status == 0).sum() == STEPS
    there = surface.status == 1
    assert (surface.observables["accuracy"][there] == 1 - surface.loss[there]).all()


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({"made_by": "linear_interpolation"}, [0.25, 0.5, 0.75, 1.0]),
        ({"made_by": "random_line"}, [2.5, 5.0, 7.5, 10.0]),
        ({"made_by": "random_line", "distance": 2}, [0.125, 0.25, 0.375, 0.5]),
        ({"range": [(-1, 2)]}, [-1.0, 0.0, 1.0, 2.0]),
    ],
)
def test_a_line_of_losses_lies_where_it_is_said_to(tmp_path, options, places):
    losses = np.array([4.0, 3.0, 2.0, 5.0])
    np.save(tmp_path / "line.npy", losses)
    import_surface(tmp_path / "line.npy", tmp_path / "run", **options)
    surface = open_run(tmp_path / "run")["line"]
    assert surface.alpha.tolist() == places
    assert (surface.loss == losses).all()


def test_an_array_with_ends_for_each_axis_has_its_last_axis_first(tmp_path):
    np.savez(tmp_path / "bowl.npz", BOWL[:3])
    import_surface(tmp_path / "bowl.npz", tmp_path / "run", range=[(-1, 1), (-2, 0)])
    surface = open_run(tmp_path / "run")["bowl"]
    assert (surface.alpha.tolist(), surface.beta.tolist()) == (X.tolist(), [-2, -1, 0])
    assert (surface.loss == BOWL[:3]).all()


def test_losses_over_lams_of_a_script_with_pyhessian_are_a_line(tmp_path):
    np.savez(tmp_path / "top.npz", lams=X.astype(np.float32), loss_list=X**2)
    import_surface(tmp_path / "top.npz", tmp_path / "run")
    surface = open_run(tmp_path / "run")["top"]
    assert (surface.alpha == X).all()
    assert (surface.loss == X**2).all()


def test_landscaper_in_three_dimensions_and_where_it_evaluates(tmp_path):
    reported, visited = np.linspace(-0.5, 0.5, 5), np.arange(-2, 3) * 0.2
    a, b, c = np.meshgrid(visited, visited, visited, indexing="ij")
    np.savez(tmp_path / "cube.npz", loss=a + 10 * b + 100 * c, coordinates=np.stack([reported] * 3))
    import_surface(tmp_path / "cube.npz", tmp_path / "run")
    import_surface(tmp_path / "cube.npz", tmp_path / "run", "there", made_by="landscaper")
    for name, places in (("cube", reported), ("there", visited)):
        surface = open_run(tmp_path / "run")[name]
        assert surface.alpha == pytest.approx(places, abs=1e-15)
        expected = visited + 10 * visited[:, None] + 100 * visited[:, None, None]  # [gamma, beta, alpha]
        assert surface.loss == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("file", "options", "told"),
    [
        ("a.npy", {}, r"has no coordinates; give range, or made_by for what a function of loss-landscapes returned"),
        ("b.npz", {}, r"not only \['loss'\]; give range, or made_by"),
        ("a.npy", {"made_by": "random_plane"}, r"random_plane returns losses of \[steps, steps\], not of \[4, 5\]"),
        ("a.npy", {"made_by": "random_line"}, r"random_line returns losses of \[steps\], not of \[4, 5\]"),
        ("a.npy", {"made_by": "landscaper"}, "made_by=landscaper is for its NPZ files"),
        ("a.npy", {"made_by": "plane"}, "made_by: must name what made the array, not 'plane'; .*known: random_line"),
        ("a.npy", {"made_by": "random_plane", "range": [(0, 1)]}, "range: must be left out with made_by=random_plane"),
        ("a.npy", {"range": [(0, 1)], "distance": 1}, "distance: must be left out but with made_by=random_line"),
        ("a.npy", {"made_by": "random_plane", "distance": 0}, "distance: must be above 0"),
        ("a.npy", {"range": [(0, 1)] * 3}, "range must be LOW,HIGH for all axes, or for each of 2"),
        ("a.npy", {"range": [(1, 0)]}, "range must be LOW,HIGH for all axes, or for each of 2"),
        ("c.npz", {"range": [(0, 1)]}, "holds its coordinates, so that range must be left out"),
        ("d.npz", {"range": [(0, 1)]}, "holds the coordinates of Landscaper, so that range must be left out"),
        ("d.npz", {"made_by": "landscaper"}, "does not hold coordinates of Landscaper's compute"),
        ("e.npz", {}, "the density of a spectrum and no surface; landscape.curvature.Density takes these two arrays"),
        ("f.npz", {"range": [(0, 1)]}, "has no loss; one of its arrays must be called loss"),
        ("g.npy", {"range": [(0, 1)]}, "'loss' must hold numbers, not"),
        ("h.npy", {"range": [(0, 1)]}, "'loss' holds pickled objects, which may run code"),
        ("i.npy", {"range": [(0, 1)]}, "is no NPY file, or is damaged"),
        ("s.h5", {"range": [(0, 1)]}, "holds its coordinates, so that range must be left out"),
    ],
)
def test_what_places_do_not_fit_is_refused_with_the_option_that_says_it(tmp_path, file, options, told):
    np.save(tmp_path / "a.npy", BOWL)
    np.savez(tmp_path / "b.npz", loss=BOWL)
    np.savez(tmp_path / "c.npz", x=X, y=Y, loss=BOWL)
    np.savez(tmp_path / "d.npz", coordinates=np.stack([Y, X[1:]]), loss=BOWL[:, 1:])
    np.savez(tmp_path / "e.npz", density_eigen=np.ones((1, 9)), density_weight=np.ones((1, 9)))
    np.savez(tmp_path / "f.npz", first=BOWL, second=BOWL)
    np.save(tmp_path / "g.npy", np.array(["a"]))
    np.save(tmp_path / "h.npy", np.array([object()]))
    (tmp_path / "i.npy").write_text("hello")
    write_li(tmp_path / "s.h5")
    with pytest.raises(JobError, match=told) as refused:
        import_surface(tmp_path / file, tmp_path / "run", **options)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def computed(tmp_path_factory) -> str:
    """A run of one landscape around a path, to which tests only add."""
    place, problem = tmp_path_factory.mktemp("computed") / "run", conv_problem()
    write_trajectory(place, wandering(problem.model, 3, 0.2))
    run(make_job(place, lambda: problem, [{"name": "t", "trajectory": "all", "size": [4, 3]}], tile=2))
    return str(place)


@pytest.mark.parametrize("form", ["csv", "npz"])
def test_what_is_exported_is_imported_as_the_same_surface(computed, tmp_path, form):
    expected = open_run(computed)["t"]
    file, *_ = export_run(computed, ["t"], [form], tmp_path)
    import_surface(file, computed, form)
    found = open_run(computed)[form]
    for axis, other in zip(found.axes, expected.axes, strict=True):
        assert axis.coordinates.tobytes() == other.coordinates.tobytes()
    assert set(found.observables) == set(expected.observables)
    for name, values in expected.observables.items():
        assert found.observables[name].tobytes() == values.tobytes(), name
    assert found.status.tobytes() == expected.status.tobytes()
    if form == "npz":
        assert [axis.label for axis in found.axes] == [axis.label for axis in expected.axes]
        assert found.path.loss.tobytes() == expected.path.loss.tobytes()
        assert found.path.coordinates["beta"].tobytes() == expected.path.coordinates["beta"].tobytes()
        assert found.record.num_samples == expected.record.num_samples


def terms_problem() -> Problem:
    terms = {name: (quadratic_samples(count), Quadratic.forward) for name, count in (("inside", 20), ("edge", 6))}
    return replace(Problem.terms(Quadratic(), terms), derived={"size": "sqrt(loss)"})


def test_what_the_values_are_means_of_is_exported_and_imported(tmp_path):
    run(make_job(tmp_path / "run", terms_problem, [{"name": "t", "size": 3}], num_samples=20, tile=3))
    file, *_ = export_run(str(tmp_path / "run"), ["t"], ["npz"], tmp_path)
    import_surface(file, tmp_path / "run", "again")
    expected, found = (open_run(tmp_path / "run")[name] for name in ("t", "again"))
    told = {
        "loss": "Loss: weighted sum of 2 means, over 20 and 6 points",
        "edge": "Mean edge of 6 points",
        "size": "Size = sqrt(loss) with the weighted sum of 2 means, over 20 and 6 points",
    }
    for observable, words in told.items():
        assert caption(expected, observable)[0].startswith(words)
        assert caption(found, observable)[0] == words
    assert found["size"].tobytes() == expected["size"].tobytes()


@pytest.fixture
def imported(tmp_path: Path) -> str:
    write_li(tmp_path / "s.h5")
    import_surface(tmp_path / "s.h5", tmp_path / "run")
    return str(tmp_path / "run")


def test_exports_the_page_and_other_names_take_it(imported, tmp_path):
    formats, spec = ["html", "csv", "npz", "vtk", "report"], FigureSpec(observable="train_acc")
    paths = list(export_run(imported, [], formats, tmp_path / "out", spec))
    assert all(path.stat().st_size for path in paths)
    reader = RunReader(FoundRun("1", "run", imported))
    [described] = run_description(reader)["landscapes"]
    assert described["name"] == "s"
    told = caption(open_run(imported)["s"], "loss")
    assert {"Imported from s.h5", "Loss at the origin: 0"} <= set(told)
    assert told[0] == "Loss", "nothing is known of what the values are means of"
    assert caption(open_run(imported)["s"], "train_acc")[0] == "Train acc"
    with pytest.raises(LandscapeError, match="'s' does not record the job that began it"):
        box_job(reader, BoxQuery("1", "s", ((0.0, 1.0), (0.0, 1.0)), ()))
    rename_landscape(imported, "s", "li")
    assert (open_run(imported)["li"].loss == BOWL).all()
    assert validate_run(imported)["damaged"] == 0


def test_no_job_goes_on_with_it_and_one_of_another_name_does_not_mind(imported):
    job = make_job(imported, quadratic_problem, [{"name": "s", "size": 3}], tile=3)
    for attempt in (lambda: run(job), lambda: plan_job(job)):
        with pytest.raises(
            JobError, match=r"landscape 's' was imported from 's.h5': no job computed it, so none goes on"
        ):
            attempt()
    other = make_job(imported, quadratic_problem, [{"name": "mine", "size": 3}], tile=3)
    assert set(run(other)) == {"s", "mine"}
    borrowing = other.replace(run=f"{imported}-2", engine=imported)
    assert list(run(borrowing)) == ["mine"]


# -- files that hold no surface --------------------------------------------------------------------------------------


def npz(**arrays: object) -> Callable[[Path], None]:
    return lambda file: np.savez(file, **arrays)  # type: ignore[arg-type]


def li(**more: object) -> Callable[[Path], None]:
    return lambda file: write_li(file, **more)  # type: ignore[arg-type]


def text(content: str) -> Callable[[Path], None]:
    return lambda file: file.write_text(content)  # type: ignore[return-value]


def truncated(write: Callable[[Path], None]) -> Callable[[Path], None]:
    def cut(file: Path) -> None:
        write(file)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return cut


def bomb(file: Path) -> None:
    """A member whose header promises a gigabyte of numbers, as a few bytes of zeros."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 27,)})
        archive.writestr("loss.npy", header.getvalue() + bytes(1 << 20))


def hdf_bomb(file: Path) -> None:
    with h5py.File(file, "w") as opened:
        opened["xcoordinates"] = X
        opened.create_dataset("train_loss", shape=(1 << 40,), dtype="f8", chunks=(1 << 16,))


def external(file: Path) -> None:
    with h5py.File(file.with_name("other.h5"), "w") as other:
        other["x"] = X
    with h5py.File(file, "w") as opened:
        opened["xcoordinates"], opened["train_loss"] = h5py.ExternalLink("other.h5", "x"), X


def long_header(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("loss.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31))


GRID = "x,y,loss\n0,0,1\n1,0,2\n0,1,3\n1,1,4\n"
BAD = {
    "no-hdf.h5": (text("hello"), "is no HDF5 file, or is damaged"),
    "cut.h5": (truncated(li()), "is no HDF5 file, or is damaged"),
    "other.h5": (lambda file: h5py.File(file, "w").close(), "has no array xcoordinates"),
    "shape.h5": (li(test_loss=np.ones(3)), r"'test_loss' has shape \[3\], its coordinates make \[5, 4\]"),
    "bomb.h5": (hdf_bomb, "'train_loss' must be at most 16777216 numbers"),
    "external.h5": (external, "has no array xcoordinates"),
    "nothing.h5": (li(missing=20), "has no point that was computed"),
    "no-zip.npz": (text("hello"), "is no NPZ file, or is damaged"),
    "cut.npz": (truncated(npz(x=X, y=Y, loss=BOWL)), "is no NPZ file, or is damaged"),
    "pickle.npz": (npz(x=X, y=Y, loss=np.array([object()])), "'loss' holds pickled objects, which may run code"),
    "bomb.npz": (bomb, "'loss' must be at most 16777216 numbers, not 134217728"),
    "header.npz": (long_header, "is no NPZ file, or is damaged"),
    "axes.npz": (npz(loss=BOWL), "has no coordinates; its arrays must include alpha and beta, or x and y"),
    "loss.npz": (npz(x=X, y=Y, error=BOWL), "has no loss; one of its arrays must be called loss, train_loss"),
    "turned.npz": (npz(x=X, y=Y, loss=BOWL.T), r"'loss' has shape \[5, 4\], its coordinates \[4, 5\]"),
    "twice.npz": (npz(x=[0.0, 1, 1], loss=np.ones(3)), r"the coordinates of alpha must differ; 1.0 stands 2 times"),
    "nan.npz": (npz(x=[0.0, np.nan], loss=np.ones(2)), "the coordinates of alpha must be finite numbers"),
    "text.npz": (npz(x=X, loss=np.array(["a"] * 5)), "'loss' must hold numbers, not"),
    "complex.npz": (npz(x=X, loss=np.ones(5) * 1j), "'loss' must hold numbers, not 'complex128'"),
    "name.npz": (npz(x=X, loss=X, gamma=X), "'gamma' must not be the name of an observable"),
    "dimension.npz": (npz(x=X, loss=X, parameter=X), "'parameter' must not be the name of an observable"),
    "losses.npz": (npz(x=X, loss=X, loss_samples=X), "'loss_samples' must not be the name of an observable"),
    "empty.csv": (text(""), "is empty"),
    "rows.csv": (text("x,y,loss\n"), "has no rows below its first line"),
    "columns.csv": (text("a,b,loss\n1,2,3\n"), r"has no columns alpha and beta, or x and y"),
    "word.csv": (text(GRID.replace("3", "three")), "line 4 must hold numbers"),
    "short.csv": (text(GRID[:-3]), "line 5 has 2 values, the first line names 3 columns"),
    "part.csv": (text(GRID[:-6]), "is no whole grid: 3 rows, but 2 × 2 different coordinates make 4 points"),
    "double.csv": (text(GRID + "1,1,5\n"), "must have one row per point of a grid, not several rows for one point"),
    "nan.csv": (text(GRID.replace("1,1,4", "1,nan,4")), "column y must hold finite numbers"),
    "binary.csv": (lambda file: file.write_bytes(b"\xff\xfe\x00\x01"), "is no table of text"),
    "unknown.txt": (
        text(GRID),
        r"its ending must say its format, not '\.txt'; .*known: .*\.npz, \.npy, \.csv",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_holds_no_surface_is_refused_and_nothing_written(tmp_path, name):
    write, told = BAD[name]
    write(tmp_path / name)
    write_li(tmp_path / "good.h5")
    with pytest.raises(JobError, match=rf"file '.*{name}': .*{told}") as refused:
        import_surfaces([tmp_path / "good.h5", tmp_path / name], tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_names_that_are_taken_or_missing_are_refused(imported, tmp_path):
    file = tmp_path / "s.h5"
    with pytest.raises(JobError, match="name: 's' is in the run already"):
        import_surface(file, imported)
    with pytest.raises(JobError, match="name: must be letters"):
        import_surface(file, imported, "a/b")
    with pytest.raises(JobError, match="name: must not be given for 2 files"):
        import_surfaces([file, file], imported, "a")
    with pytest.raises(JobError, match="name: several files would make landscapes called 's'"):
        import_surfaces([file, file], tmp_path / "new")
    with pytest.raises(NotFoundError, match="does not exist"):
        import_surface(tmp_path / "absent.h5", imported, "b")
    with run_lock(imported), pytest.raises(LandscapeError, match="is being written by process"):
        import_surface(file, imported, "b")
    assert list(open_run(imported)) == ["s"]


def test_without_h5py_the_remedy_is_said(tmp_path, monkeypatch):
    write_li(tmp_path / "s.h5")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(JobError, match=r"need the package h5py; `pip install 'loss-landscape-cluster\[h5\]'`"):
        import_surface(tmp_path / "s.h5", tmp_path / "run")


def test_an_import_that_was_killed_leaves_nothing_to_be_seen_and_is_done_again(tmp_path, monkeypatch):
    write_li(tmp_path / "s.h5")

    def die(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("landscape.store.importing.write_synced", die)
        with pytest.raises(KeyboardInterrupt):
            import_surface(tmp_path / "s.h5", tmp_path / "run")
    assert list(open_run(tmp_path / "run")) == []
    import_surface(tmp_path / "s.h5", tmp_path / "run")
    assert (open_run(tmp_path / "run")["s"].loss == BOWL).all()
    assert sorted(path.name for path in (tmp_path / "run" / "landscapes.zarr").iterdir()) == ["s", "zarr.json"]


@pytest.mark.long
def test_a_bucket_takes_surfaces_too(tmp_path, monkeypatch):
    write_li(tmp_path / "s.h5")
    with s3_server() as endpoint:
        use(monkeypatch, endpoint, LANDSCAPE_STORE_LEASE="1.5")
        place = new_url()
        import_surface(tmp_path / "s.h5", place)
        assert (open_run(place)["s"].loss == BOWL).all()
        assert validate_run(place)["damaged"] == 0
        assert {key.split("/")[1] for key in Raw(place, endpoint).keys()} == {"s", "zarr.json"}  # noqa: SIM118
