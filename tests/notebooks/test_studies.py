"""What the notebooks call: which data are chosen, what numbers say, and how findings reach docs/studies.md."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from safetensors.torch import load_file

from landscape import Axis, JobError, LandscapeError, NotFoundError, Surface
from landscape.surface.record import ProjectedPath
from landscape.surface.surface import SampleLosses
from studies import batch_size, data, findings, fine_tuning, language_models, path_of_training, settings, widths
from studies.quantities import OverSeeds, in_how_many, low_share
from studies.shown import Table
from studies.six_models import LowRank


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


def line_of(losses, alpha, samples):
    """A line whose losses of samples [points, samples] are kept."""
    losses = np.asarray(losses, np.float32)
    over = {"origin_loss_samples": lambda: losses[len(losses) // 2], "sample_weights": lambda: np.ones(samples)}
    kept = SampleLosses("line", losses.shape, losses.shape, lambda index: losses, over)
    return Surface(
        "line", (Axis("alpha", np.asarray(alpha)),), {"loss": losses.mean(1)}, status=np.ones(len(alpha), np.uint8),
        loss_samples=kept, sample_index=np.arange(samples),
    )  # fmt: skip


def test_the_width_is_where_a_bowl_has_risen_by_so_much():
    curvature = np.array([1.0, 1.0, 1.0, 5.0])  # of four samples
    near, far = np.linspace(-0.2, 0.2, 9), np.linspace(-1, 1, 9)
    lines = [[line_of(2 + np.outer(c * at**2, curvature), at, 4) for at in (near, far)] for c in (1.0, 4.0)]
    rises = widths.Rises.of(lines)
    assert rises.mean_loss == 2
    width = rises.width(0.5)
    of_lines = [0.5, 0.25]  # √(0.5 / c·2)
    assert width.value == pytest.approx(np.mean(of_lines), rel=1e-6)
    assert width.half == pytest.approx(12.7062 * 0.125, rel=1e-4)  # Student's t of one degree of freedom
    left = [np.mean(np.sqrt(0.5 / (np.array([1, 4]) * mean))) for mean in (7 / 3, 7 / 3, 7 / 3, 1)]
    assert width.stderr == pytest.approx(np.sqrt(3 / 4 * np.square(left - np.mean(left)).sum()), rel=1e-5)
    steep = widths.Rises.of(lines, ["flat"] * 3 + ["steep"], "steep")
    assert steep.width(0.5).value == pytest.approx(np.mean(of_lines) / np.sqrt(2.5), rel=1e-6)
    assert repr(rises.width(100.0)) == "> 1 on some of 2 lines"


@pytest.fixture
def small_base(monkeypatch, tmp_path):
    """The GPT that takes the place of SmolLM2, without training."""
    monkeypatch.setenv("LANDSCAPE_STUDY", "small")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fine_tuning, "gpt_of", lambda trained: language_models.build())
    return fine_tuning.pretrained(language_models.Trained(4, 0, tmp_path, 5.0))


def test_without_its_packages_the_gpt_takes_the_place_of_smollm2(small_base):
    assert str(small_base).startswith("model: GPT, 4 steps, in place of SmolLM2-135M")
    assert "scikit-learn's descriptions of data sets, 303 sequences" in str(small_base)
    assert len(small_base.texts) == len(small_base.tokens) == 8


def test_merged_adapters_compute_what_the_adapters_do(small_base):
    model = fine_tuning.with_adapters(small_base, 0)
    for layer in model.modules():
        if isinstance(layer, LowRank):
            torch.nn.init.normal_(layer.up)
    whole = small_base.model()
    missing, unexpected = whole.load_state_dict(fine_tuning.merged(model), strict=False)
    assert (missing, unexpected) == (["head.weight"], [])  # it is that of the embedding
    tokens = small_base.tokens
    torch.testing.assert_close(whole(tokens), model(tokens), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(small_base.model()(tokens), model(tokens), atol=1e-2)


def test_fine_tuning_is_kept_and_its_displacements_are_measured(small_base):
    tuned = fine_tuning.tune(small_base, (0,))[0]
    times = {name: tuned.file(name).stat().st_mtime_ns for name in (fine_tuning.BASE, fine_tuning.LORA)}
    assert fine_tuning.tune(small_base, (0,))[0].file(fine_tuning.LORA).stat().st_mtime_ns == times[fine_tuning.LORA]
    base, whole, lora = (
        torch.cat([tensor.flatten() for _, tensor in sorted(load_file(tuned.file(name)).items())]).double()
        for name in (fine_tuning.BASE, fine_tuning.WHOLE, fine_tuning.LORA)
    )
    found = fine_tuning.displacement(tuned)
    assert found.whole == pytest.approx(float((whole - base).norm()), rel=1e-5)
    assert found.lora == pytest.approx(float((lora - base).norm()), rel=1e-5)
    cosine = torch.nn.functional.cosine_similarity(whole - base, lora - base, dim=0)
    assert found.cosine == pytest.approx(float(cosine), rel=1e-4)
    assert found.adapted_cosine * np.sqrt(found.adapted_share) == pytest.approx(found.cosine)
    network = tuned.adapter_problem().model
    moved = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    assert all(name.endswith((".up", ".down")) for name in moved)
    assert len(moved) == 8  # A and B of two layers in two blocks
