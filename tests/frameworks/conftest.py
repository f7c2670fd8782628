"""These tests import what only `make test-frameworks` installs: other runs do not look at them."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where they are asked for, a framework that is missing is an error and not a skip."""
    asked = "frameworks" in (config.option.markexpr or "")
    return None if asked or collection_path.suffix != ".py" else True
