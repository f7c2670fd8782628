"""The archive that a cluster is sent: the listed files as a zip."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from cluster.runtime.listing import LARGEST_UPLOAD, ListedFile, Listing
from landscape.core.errors import JobError, shown


def read_file(listed: ListedFile, root: Path) -> bytes:
    """The content of a file that was listed.

    Args:
        root: the job's folder, with links resolved; a file that no longer lies in it is refused.

    Raises:
        JobError: the file cannot be read, was replaced since it was listed, or is being written.
    """
    for _ in range(2):
        content = _read_once(listed, root)
        if content is not None:
            return content
    raise JobError(
        f"job: {shown(listed.name)} changes while it is packed; send the job when it is written, or move it elsewhere"
    )


def _read_once(listed: ListedFile, root: Path) -> bytes | None:
    """The content; None where the file changed while it was read."""
    refused = f"job: {shown(listed.name)} cannot be packed: "
    # Links were resolved when it was listed: a link that is here now may lead out of the folder.
    if listed.source.resolve() != listed.source or not listed.source.is_relative_to(root):
        raise JobError(f"{refused}it has become a link; give the command again")
    try:
        handle = os.open(listed.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise JobError(f"{refused}{error.strerror}; mend its rights or move it elsewhere") from None
    with open(handle, "rb") as file:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode):
            raise JobError(f"{refused}it is no file any more; give the command again")
        if before.st_size > LARGEST_UPLOAD:
            raise JobError(f"{refused}it has grown to more than {LARGEST_UPLOAD >> 20} MiB; move it elsewhere")
        content = file.read(before.st_size + 1)
        after = os.fstat(handle)
    same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    return content if same and len(content) == before.st_size else None


def archive(listing: Listing) -> bytes:
    """The listed files as a zip; the same files give the same bytes, so that a cluster keeps one copy of them."""
    root, held = listing.folder.resolve(), io.BytesIO()
    with zipfile.ZipFile(held, "w") as packed:
        for name in sorted(listing.empty):
            packed.writestr(_entry(name, 0o755), b"")
        for name, listed in sorted(listing.files.items()):
            packed.writestr(_entry(name, listed.mode), read_file(listed, root))
    return held.getvalue()


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = mode << 16
    return entry


@contextlib.contextmanager
def archived(listing: Listing) -> Iterator[Path]:
    """The archive as a file that exists while the block runs; only its owner may read it.

    Raises:
        JobError: a listed file cannot be packed.
    """
    with tempfile.TemporaryDirectory(prefix="landscape-") as folder:
        path = Path(folder) / "job.zip"
        path.write_bytes(archive(listing))
        yield path
