"""Where a run may lie: a folder of this machine, or a bucket of an S3 in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from object_stores import new_url, s3_server, use


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of an S3."""
    with s3_server() as found:
        yield found


@pytest.fixture(params=["local", "s3"])
def place(request, tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a run may lie; nothing is there yet."""
    use(monkeypatch, endpoint, LANDSCAPE_STORE_LEASE="1.5")
    return str(tmp_path / "run") if request.param == "local" else new_url()
