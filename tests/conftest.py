"""Property tests draw the same examples in every run and leave no files behind; slow tests run when asked for.

Every Ray of the tests asks for a token of theirs: on this machine's own address an open one would be refused.
The choices of engines that tests keep, and find, are their own.
"""

import os
import secrets
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

os.environ["RAY_AUTH_MODE"] = "token"
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # the processes of one run share it

settings.register_profile(
    "suite", deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Subprocesses and Ray's workers inherit it."""
    before = os.environ.get("LANDSCAPE_CACHE")
    os.environ["LANDSCAPE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["LANDSCAPE_CACHE"]
    else:
        os.environ["LANDSCAPE_CACHE"] = before


def pytest_collection_modifyitems(config, items):
    if "slow" not in (config.option.markexpr or ""):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow; `make test-slow` runs it"))
