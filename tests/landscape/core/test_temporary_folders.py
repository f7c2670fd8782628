"""Temporary folders: deleted after their block, and after a kill by the next process that makes one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from landscape.core.files import FRESH_SECONDS, temporary_folder

HOLDER = """
import time
from landscape.core.files import temporary_folder

with temporary_folder() as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folders(tmp_path, monkeypatch) -> Path:
    """The place for temporary files, of this test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def grow_old(folder: Path) -> None:
    before = time.time() - 2 * FRESH_SECONDS
    os.utime(folder, (before, before))


def test_a_temporary_folder_goes_with_its_block_and_outlives_a_kill_only_until_the_next(folders):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    held = Path(holder.stdout.readline().strip())
    (held / "file").touch()
    grow_old(held)
    with temporary_folder() as own:
        assert own.parent == held.parent == folders
        assert held.exists(), "its process lives"
    assert not own.exists()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with temporary_folder():
        assert not held.exists()


def test_what_is_no_left_folder_stays(folders):
    fresh, file, link = (folders / f"landscape-tmp-{name}" for name in ("fresh", "file", "link"))
    fresh.mkdir()  # made by a process that has not locked it yet
    file.touch()
    other = folders / "other"
    other.mkdir()
    link.symlink_to(other)
    for place in (file, other):
        grow_old(place)
    with temporary_folder():
        assert all(place.exists() for place in (fresh, file, link, other))
