"""A short chaos run; `make chaos` is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parent / "chaos.py"


@pytest.mark.slow  # a minute of faults at random; each kind of fault has a test of its own in tests/cluster
def test_a_few_faults_leave_the_result_as_it_was_to_the_bit():
    command = [sys.executable, "-W", "ignore", str(CHAOS), "--faults", "4", "--size", "24", "--nodes", "2"]
    command += ["--pause", "0.5", "1.5"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert found.returncode == 0, found.stderr[-3000:] + found.stdout
    assert "faults survived: 4" in found.stdout
    assert "differ from the undisturbed one: 0" in found.stdout
