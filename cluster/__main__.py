"""`python -m cluster` is the `landscape` command."""

from __future__ import annotations

from cluster.entry import main

main()
