"""How much a folder takes, on this machine or in an object store."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from landscape.core.base import Place
from landscape.core.folders import open_folder


def bytes_of(run: Place) -> int:
    """Bytes of all files below a folder. Links are not followed, and what goes meanwhile is left out.

    Raises:
        StoreError: the object store does not answer.
    """
    folder: Any = open_folder(run)
    if "://" in folder.name:
        import obstore

        return int(folder.ask(lambda: sum(entry["size"] for batch in obstore.list(folder.store) for entry in batch)))
    total = 0
    for above, _, names in os.walk(folder.name):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(above, name)).st_size
    return total
