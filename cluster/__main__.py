"""`python -m cluster` is the `landscape` command."""

from __future__ import annotations

from cluster.commands.entry import main

main()
