"""Where a run may lie: a folder of this machine, or a bucket of an S3 in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of an S3."""
    from object_stores import s3_server  # only here, as it takes a second that most tests can do without

    with s3_server() as found:
        yield found


@pytest.fixture(params=["local", "s3"])
def place(request, tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a run may lie; nothing is there yet."""
    from object_stores import new_url, use

    use(monkeypatch, endpoint, LANDSCAPE_STORE_LEASE="1.5")
    return str(tmp_path / "run") if request.param == "local" else new_url()
