"""The table of docs/howto/large-models.md is what the model of memory and time gives now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_is_what_the_model_gives():
    command = [sys.executable, str(ROOT / "tests" / "measure" / "large_table.py")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert printed in (ROOT / "docs" / "howto" / "large-models.md").read_text()
