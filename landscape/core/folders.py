"""From how a run is named to the folder that holds it; object stores are set up by the environment alone."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from landscape.core.base import Folder, Place
from landscape.core.errors import JobError, nearest, shown
from landscape.core.local import LocalFolder
from landscape.core.places import locate

if TYPE_CHECKING:
    from landscape.core.object_store import ObjectFolder

SCHEMES = {
    "s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_", "az": "AZURE_", "azure": "AZURE_", "abfs": "AZURE_",
    "abfss": "AZURE_",
}  # fmt: skip
TUNING = "LANDSCAPE_STORE_"


def known_schemes() -> list[str]:
    """The schemes of URLs that a run may have: `file`, and those of the object stores."""
    return ["file", *SCHEMES]


def open_folder(run: Place) -> Folder:
    """The folder of a run, which need not exist yet.

    Raises:
        JobError: an empty name; a URL of a kind that is not known, with credentials in it, or without the package that
            it needs.
    """
    if isinstance(run, Folder):
        return run
    # An empty name, often that of an unset variable, would be the current directory; Path("") and Path(".") are equal.
    if not str(run).strip() or run == Path():
        raise JobError(f"run: must name a folder or URL, not {str(run)!r}; for the current directory give '.' as text")
    place = locate(str(run), Path.cwd())
    return open_objects(place) if "://" in place else LocalFolder(Path(place))


def split_path(path: str) -> tuple[Folder, str]:
    """The folder that holds a file, and the file's name in it."""
    above, _, name = path.rpartition("/")
    return open_folder(above or "/"), name


def open_objects(url: str) -> ObjectFolder:
    """The folder at a URL; the same one, with its open connections, as long as the environment stays the same."""
    scheme = checked_url(url)
    settings = tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith((SCHEMES[scheme], TUNING))))
    return _open(scheme + url[len(scheme) :].rstrip("/"), settings)


@lru_cache(maxsize=32)
def _open(url: str, settings: tuple[tuple[str, str], ...]) -> ObjectFolder:
    try:
        from landscape.core.object_store import ObjectFolder
        from landscape.core.settings import time_limits
    except ImportError:
        raise JobError(
            f"run: {shown(url)} needs the package obstore; `pip install 'loss-landscape-cluster[object-store]'`"
        ) from None
    return ObjectFolder(url, dict(settings), *time_limits(dict(settings)))


def checked_url(url: str) -> str:
    """The scheme of a URL that can be a run.

    Raises:
        JobError: it cannot; what may be a secret is not repeated.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise JobError(
            f"run: unknown kind of URL {shown(parts.scheme + '://')}; {nearest(parts.scheme, known_schemes())}"
        )
    if "@" in parts.netloc and not parts.scheme.startswith("abfs"):
        raise JobError(
            f"run: must not hold credentials ({parts.scheme}://…@{parts.netloc.rpartition('@')[2]}); "
            "give them to the driver in its environment"
        )
    if parts.query or parts.fragment:
        raise JobError(f"run: must be {parts.scheme}://bucket/prefix, without '?' and '#'; leave out what follows")
    if not parts.netloc:
        raise JobError(f"run: must name a bucket, {parts.scheme}://bucket/prefix, not {shown(url)}")
    return parts.scheme
