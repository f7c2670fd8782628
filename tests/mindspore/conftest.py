"""These tests run MindSpore, which only `make test-mindspore` installs: other runs do not look at them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from mindspore_planes import MINDSPORE, write_test_images

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where they are asked for, a MindSpore that is missing is an error and not a skip."""
    asked = "mindspore" in (config.option.markexpr or "")
    return None if asked or collection_path.suffix != ".py" else True


@pytest.fixture(scope="session")
def mnist_folder(tmp_path_factory) -> Path:
    """MNIST's test files; where they are not there, scikit-learn's digits."""
    folder = tmp_path_factory.mktemp("mnist")
    write_test_images(folder)
    return folder


@pytest.fixture(scope="session")
def summary(mnist_folder, tmp_path_factory) -> tuple[Path, dict[str, np.ndarray]]:
    """The summary folder that MindSpore has written, and what MindSpore itself reads of it."""
    folder = tmp_path_factory.mktemp("mindspore")
    record = folder / "record.npz"
    command = [MINDSPORE, HERE / "make_summary.py", mnist_folder, folder / "summary", record]
    finished = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True)
    assert finished.returncode == 0, f"MindSpore failed:\n{finished.stdout[-2000:]}\n{finished.stderr[-4000:]}"
    with np.load(record) as read:
        return folder / "summary", dict(read)
