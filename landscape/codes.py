"""The exit codes of the commands."""

from __future__ import annotations

DONE, FAILED, BAD_USAGE, NOT_FOUND, PARTIAL, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
