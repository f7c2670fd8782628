"""`cluster.cli:main` is what the script of an installation of version 0.1.0 calls."""

from __future__ import annotations

from cluster.commands.entry import main as main
