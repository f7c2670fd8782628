"""What the notebooks call: which data are chosen, what numbers say, and how findings reach docs/studies.md."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter

from landscape import Axis, JobError, LandscapeError, NotFoundError, Surface
from landscape.surface.record import ProjectedPath
from studies import batch_size, data, findings, path_of_training, settings
from studies.quantities import OverSeeds, in_how_many, low_share
from studies.shown import Table


def plane(height, side: int = 5) -> Surface:
    """The plane of a function of both coordinates, each from −1 to 1."""
    axes = tuple(Axis(name, np.linspace(-1, 1, side)) for name in ("alpha", "beta"))
    x, y = np.meshgrid(axes[0].coordinates, axes[1].coordinates)
    return Surface("plane", axes, {"loss": height(x, y)}, status=np.ones((side, side), np.uint8))


def write_idx(path: Path, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


@pytest.fixture
def mnist(tmp_path, monkeypatch) -> Path:
    """A folder with MNIST's test images alone, 2,500 of them."""
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", np.zeros((2500, 28, 28)))
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.arange(2500) % 10)
    monkeypatch.setenv("LANDSCAPE_DATA", str(tmp_path))
    return tmp_path


def test_without_a_folder_the_digits_serve_and_outputs_say_so(monkeypatch):
    monkeypatch.delenv("LANDSCAPE_DATA", raising=False)
    grey, coloured = data.handwriting(100), data.photographs(100, halved=True)
    assert str(grey) == (
        "data: scikit-learn's digits, 100 images to train on, 360 held out (LANDSCAPE_DATA is not set)"
    )
    assert grey.inputs()[0].shape == (100, 1, 32, 32)
    assert coloured.inputs()[0].shape == (100, 3, 16, 16)
    assert "reduced to 16 × 16" in str(coloured)


def test_test_images_alone_are_divided_into_training_and_held_out(mnist):
    images = data.handwriting(400)
    assert str(images).startswith("data: MNIST, 400 images to train on, 2,000 held out (of its 10,000 test images")
    assert images.slug == "mnist"


def test_training_images_are_taken_where_they_are(mnist):
    write_idx(mnist / "train-images-idx3-ubyte.gz", np.zeros((30, 28, 28)))
    write_idx(mnist / "train-labels-idx1-ubyte.gz", np.arange(30) % 10)
    assert str(data.handwriting()) == "data: MNIST, 30 images to train on, 2,500 held out"


def test_photographs_are_read_from_npz_files_or_refused(mnist):
    with pytest.raises(NotFoundError, match=r"^data: .* has no data_batch.* or cifar10-train.*; or unset LANDSCAPE_D"):
        data.photographs()
    for split, count in (("train", 12), ("test", 8)):
        images = np.zeros((count, 32, 32, 3), np.uint8)
        np.savez(mnist / f"cifar10-{split}-{count}.npz", images=images, labels=np.arange(count) % 10)
    images = data.photographs(10)
    assert str(images) == "data: CIFAR-10, 10 images to train on, 8 held out"
    assert images.inputs()[0].shape == (10, 3, 32, 32)


def test_a_study_is_full_or_small(monkeypatch):
    monkeypatch.setenv("LANDSCAPE_STUDY", "small")
    assert settings.choose(1, 2) == 2
    assert settings.folder_of("a", "b") == Path("runs/studies/small/a/b")
    monkeypatch.setenv("LANDSCAPE_STUDY", "smal")
    with pytest.raises(JobError, match="LANDSCAPE_STUDY: unknown 'smal'; did you mean 'small'"):
        settings.choose(1, 2)


@pytest.mark.parametrize(
    "values, text",
    [
        ((0.5,), "0.5"),
        ((1.0, 2.0, 3.0), "2.0 ± 1.0"),
        ((100.0, 100.0 + 1e-9), "100 ± 0"),
        ((0.0041, 0.0055), "0.00480 ± 0.00099"),
        ((2.0, 37.0), "20 ± 25"),
    ],
)
def test_a_number_over_seeds_has_the_digits_that_its_deviation_allows(values, text):
    assert str(OverSeeds(values)) == text


def test_seeds_are_compared_one_by_one():
    low, high = OverSeeds((1.0, 2.0)), OverSeeds((1.5, 2.5))
    assert in_how_many(low, high) == "yes"
    assert in_how_many(high, low) == "no"
    assert in_how_many(low, high, larger=False) == "no"


def test_the_low_share_of_a_bowl_is_that_of_its_disc():
    assert low_share(plane(lambda x, y: 2 * (x * x + y * y), 201), 1.0) == pytest.approx(np.pi * 0.5 / 4, rel=0.02)


def test_the_angle_between_path_and_descent_is_that_of_the_slope():
    def angle(x, y):
        points = np.array([x, y], float)
        count = points.shape[1]
        path = ProjectedPath(
            "epoch", np.arange(count), dict(zip(("alpha", "beta"), points, strict=True)), np.zeros(count),
            np.zeros(count), np.zeros(count), np.ones(count, np.uint8),
        )  # fmt: skip
        return path_of_training.angle_to_descent(Surface(
            "p", (bowl := plane(lambda x, y: 3 * x)).axes, bowl.observables, bowl.status, path=path
        ))  # fmt: skip

    assert angle([0.5, 0.1, -0.4], [0, 0, 0]) == pytest.approx(0)
    assert angle([0.1, 0.1], [-0.5, 0.5]) == pytest.approx(90)
    assert angle([0.1, 0.6], [-0.3, 0.2]) == pytest.approx(135)


def test_findings_are_read_from_notebooks_and_written_between_the_marks(tmp_path):
    found = findings.Finding("it is flat", "1.0 ± 0.1 against 2.0 ± 0.2 | nats", 3, "MNIST", "yes")
    shown, _ = DisplayFormatter().format(findings.Findings.of(found))
    cells = [{"outputs": [{"data": shown}, {"text": "words"}]}, {}]
    (tmp_path / "04-batch.ipynb").write_text(json.dumps({"cells": cells}))
    table = findings.findings_table([tmp_path / "04-batch.ipynb"])
    assert table.splitlines()[2:] == ["| it is flat | 1.0 ± 0.1 against 2.0 ± 0.2 \\| nats | 3 | MNIST | yes | 04 |"]
    page = tmp_path / "studies.md"
    page.write_text(f"before\n{findings.BEGIN}\nold\n{findings.END}\nafter\n")
    for _ in range(2):
        findings.write_into(page, table)
    assert page.read_text() == f"before\n{findings.BEGIN}\n\n{table}\n\n{findings.END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(LandscapeError, match="must have the lines"):
        findings.write_into(page, table)


def test_a_table_is_html_and_text():
    table = Table.of(("a", "b"), (1, "x < y"))
    assert repr(table) == "a  b\n1  x < y"
    assert "x &lt; y" in DisplayFormatter().format(table)[0]["text/html"]


def test_a_line_is_followed_outwards_from_both_ends():
    at = np.linspace(-0.5, 1.5, 9)
    loss = np.array([0.0, 0.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.45, 0.6])  # falls on beyond 0, rises behind 1
    line = Surface("line", (Axis("alpha", at),), {"loss": loss}, status=np.ones(9, np.uint8))
    assert batch_size.outwards(line) == (0.5, 0.25)
    assert batch_size.line_barrier(line) == pytest.approx(0)
