"""The list of a job's folder: which files are sent to a cluster, and why the others are not.

Ray's own packing follows links out of the folder and includes keys, so the archive is made here, from this list: what a
person is shown is what is sent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from landscape.core.errors import shown

LARGEST_UPLOAD = 200 << 20  # bytes of all files
DEEPEST = 60  # folders below one another
CACHES = ("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints")

# The reasons for which a file or folder is not sent.
SECRET = "may hold secrets"
LEAVES = "links that leave the folder"
CIRCLE = "links that run in a circle"
BROKEN = "links to nothing"
SPECIAL = "neither files nor folders"
UNREADABLE = "unreadable"
UNNAMED = "names that an archive cannot hold"
DEEP = f"below more than {DEEPEST} folders"
USUAL = "environments, caches and runs, which stay"
THE_RUN = "the run itself"


@dataclass(frozen=True)
class ListedFile:
    """A file that is sent: its name in the folder, its path with links resolved, its size and mode when listed."""

    name: str
    source: Path
    size: int
    mode: int


@dataclass
class Listing:
    """The files of a folder that are sent, and what is not.

    Attributes:
        files: by their names in the folder.
        omitted: name → reason; a name that ends in / is a folder.
        empty: names of empty folders, which are sent too.
    """

    folder: Path
    files: dict[str, ListedFile] = field(default_factory=dict)
    omitted: dict[str, str] = field(default_factory=dict)
    empty: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Bytes of all files that are sent."""
        return sum(file.size for file in self.files.values())

    def only(self, names: Collection[str], why: str) -> Listing:
        """The same listing with only these of its files; the others are omitted, all for the reason `why`."""
        dropped = {name: why for name in self.files if name not in names}
        kept = {name: self.files[name] for name in self.files if name in names}
        return Listing(self.folder, kept, self.omitted | dropped)

    def why_omitted(self, name: str) -> str:
        """The reason why a file is omitted: its own, or that of a folder above it; '' where there is none."""
        parts = name.split("/")
        above = ["/".join(parts[:k]) + "/" for k in range(1, len(parts))]
        return next((self.omitted[place] for place in (name, f"{name}/", *above) if place in self.omitted), "")


def in_singular(reason: str) -> str:
    """A reason as it is said of one file."""
    return {LEAVES: "a link that leaves the job file's folder", CIRCLE: "a link that runs in a circle"}.get(
        reason, reason
    )


def size_text(count: float) -> str:
    """A number of bytes for people: 1.5 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def listing_lines(listing: Listing) -> list[str]:
    """A line for every file that is sent, with its size, then one for everything that is not, with the reason."""
    lines = [f"travels: {file.name}, {file.size} bytes" for _, file in sorted(listing.files.items())]
    lines += [f"travels: {name}, an empty folder" for name in sorted(listing.empty)]
    lines += [f"stays: {shown(name)[1:-1]} ({in_singular(why)})" for name, why in sorted(listing.omitted.items())]
    return [*lines, f"{len(listing.files)} files travel, {size_text(listing.size)}"]


def omitted_line(listing: Listing, most: int = 6) -> str:
    """What is not sent, grouped by reason, in one line; '' where that is only the run and caches.

    Args:
        most: how many names are given for each reason.
    """
    by_reason: dict[str, list[str]] = {}
    for name, why in sorted(listing.omitted.items()):
        if why != THE_RUN and name.rstrip("/").rpartition("/")[2] not in CACHES:
            by_reason.setdefault(why, []).append(shown(name)[1:-1])
    if not by_reason:
        return ""
    parts = []
    for why, names in by_reason.items():
        more = f" and {len(names) - most} more" if len(names) > most else ""
        parts.append(f"{', '.join(names[:most])}{more} ({why})")
    return f"not sent with the job: {'; '.join(parts)}"
