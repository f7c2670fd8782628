"""Property tests draw the same examples in every run and leave no files behind; slow tests run when asked for.

Every Ray of the tests asks for a token of theirs: on this machine's own address an open one would be refused.
The choices of engines and the sent jobs that tests keep, and find, are their own. Every test begins with the same
state of torch's generator, so that a model that it builds has the same weights in every run and order.
"""

import gc
import json
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# More processes compute here than there are cores. One whose BLAS waits for a second thread, spinning, takes twenty
# times as long for the eigenvalues of a small matrix; numpy reads this once, when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings
from warm_workers import WarmWorkers

from cluster.runtime.logs import TASKS, WORKERS
from landscape.core.devices import free_host_bytes

os.environ["RAY_AUTH_MODE"] = "token"
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # the processes of one run share it
# A callback that a test writes anew within a second, as long as before, must not be taken from what was compiled then.
# The tests themselves are compiled while they are collected, and kept.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = False
gc.disable()  # until the tests are collected: walking a million objects that stay takes a fifth of that
# A thread of torch that waits for the others sleeps: more processes compute here than there are cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The suite waits for the disk a tenth of its time, as stores write durably. It leaves about a gigabyte at the end.
SHARED_MEMORY, FREE_MEMORY = Path("/dev/shm"), 8 << 30
if (
    "TMPDIR" not in os.environ
    and os.access(SHARED_MEMORY, os.W_OK)
    and min(shutil.disk_usage(SHARED_MEMORY).free, free_host_bytes()) >= FREE_MEMORY
):
    folder = SHARED_MEMORY / f"tests-{os.getuid()}"  # short, as the paths of Ray's sockets may have 107 characters
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; set TMPDIR to a folder of yours")
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)

settings.register_profile(
    "suite", deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the processes of one run share it
        server = WarmWorkers()
        server.start()
        config.add_cleanup(server.stop)


def pytest_runtest_setup(item: pytest.Item) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # a computation takes as many as its plan says


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Subprocesses and Ray's workers inherit them."""
    names = {"LANDSCAPE_CACHE": "cache", "XDG_STATE_HOME": "state"}
    before = {name: os.environ.get(name) for name in names}
    for name, folder in names.items():
        os.environ[name] = str(tmp_path_factory.mktemp(folder))
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """A test may configure logging: its handlers, levels and captured warnings are put back."""
    root, names = logging.getLogger(), ("landscape", WORKERS, TASKS)
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, each in levels.items():
        logging.getLogger(name).setLevel(each)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Torch, Ray and the tests are a million objects that live to the end: no collection walks them again."""
    told = getattr(session.config, "workerinput", {})
    if "scopes" in told and told["workerid"] == "gw0":
        from scopes import scopes_of

        Path(told["scopes"]).write_text(json.dumps(scopes_of(session.items)))
    sys.dont_write_bytecode = True
    gc.freeze()
    gc.enable()


# -- how tests are shared out among the processes of a run --------------------------------------------------------


def _scopes_file() -> Path:
    """Where the first process tells this one, which shares out, what stays together."""
    return Path(tempfile.gettempdir()) / f"scopes-{os.getpid()}.json"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    if node.config.option.dist == "loadgroup":
        node.workerinput["scopes"] = str(_scopes_file())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Any:
    if config.option.dist != "loadgroup":
        return None
    from scopes import Scopes

    return Scopes(config, log, _scopes_file())


# What these give starts processes: a Ray, an S3, a browser, commands.
PROCESSES = {"local_ray", "ray_folder", "endpoint", "drawer", "shell"}
ALONE = ("local_ray", "drawer")  # one process of a run starts them; the tests of faults have more of them, and share
LONG_FOLDERS = {"bench", "chaos", "docs", "fuzz", "peers", "scale"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """The long tests come first, before them those with a Ray of their own, and first those that share one per process.

    What is slow, looks at the page at length or needs frameworks is skipped unless asked for; what starts processes is
    long.
    """
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        group = next((name for name in ALONE if name in item.fixturenames), "")
        if group and not marks & {"faults", "slow", "page"}:
            item.add_marker(pytest.mark.xdist_group(group))
        if PROCESSES & set(item.fixturenames) or LONG_FOLDERS & set(item.path.relative_to(config.rootpath).parts):
            item.add_marker(pytest.mark.long)
    items.sort(
        key=lambda item: (
            "local_ray" not in item.fixturenames, "ray_folder" not in item.fixturenames,
            item.get_closest_marker("long") is None,
        )
    )  # fmt: skip
    asked = config.option.markexpr or ""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        needed = [mark for mark in ("slow", "page", "frameworks", "mindspore", "pgf", "serve") if mark in marks] or [
            "faults"
        ]
        for mark in needed:
            if mark in marks and mark not in asked:
                item.add_marker(pytest.mark.skip(reason=f"{mark}; `make test-{mark}` runs it"))
