"""The names of landscapes."""

from __future__ import annotations

from landscape.core.errors import shown

LONGEST_LANDSCAPE_NAME = 100


def landscape_name(name: str) -> str:
    """The name itself, where a landscape can have it: it is also that of a folder, on any file system.

    Raises:
        ValueError: it cannot; the message is the rule.
    """
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not (plain.isascii() and plain.isalnum() and name[0].isalnum()) or len(name) > LONGEST_LANDSCAPE_NAME:
        raise ValueError(
            f"must be letters, digits, '.', '-' and '_', at most {LONGEST_LANDSCAPE_NAME}, not {shown(name)}"
        )
    if name == "zarr.json":
        raise ValueError("must not be 'zarr.json', a file of the store; choose another")
    return name
