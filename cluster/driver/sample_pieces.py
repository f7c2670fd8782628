"""Samples that are too large for one shared object: sent in pieces, and gathered in files that a node's workers share.

The first worker of a node writes the files, which have no names; the others open them through that process, or through
any other worker that has them open. So no file is left behind, however the workers end.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from torch import Tensor

from landscape.core.errors import JobError
from landscape.problem.batches import Batch, empty_like, filled, tensors_of
from landscape.problem.disk_buffer import TensorFiles, map_rows
from landscape.problem.samples import Rows, Samples

PIECE_BYTES = 256 << 20


@dataclass(frozen=True)
class SamplePieces:
    """The samples as references to pieces.

    Attributes:
        key: names the samples on every node.
        references: the first piece holds no samples, and shows their structure.
    """

    key: str
    references: Sequence[Any]


@dataclass(frozen=True)
class SharedPoints:
    """Sets of points that are shared one by one: each as a list of one reference, or in pieces."""

    sets: Mapping[str, Any]


def pieces_of(samples: Samples, size: int = PIECE_BYTES) -> Iterable[Rows]:
    """No samples, in the structure of all; then all samples in pieces of about `size` bytes."""
    yield Rows(empty_like(samples.rows))
    step = max(1, size * samples.length // max(1, samples.nbytes))
    for start in range(0, samples.length, step):
        yield Rows(samples.batch(start, start + step))


def gather(pieces: SamplePieces, fetch: Callable[[Any], Samples]) -> Rows:
    """The samples, in files that all processes of this node share; one of the processes fetches the pieces.

    Args:
        fetch: gets a piece by its reference.

    Raises:
        JobError: the folder for temporary files belongs to another user.
    """
    like = fetch(pieces.references[0]).rows
    registry = _folder() / "samples.json"
    with FileLock(f"{registry}.lock"):
        holders = _read(registry)
        for holder in holders:
            if holder["key"] == pieces.key and (found := _opened(holder, like)) is not None:
                break
        else:
            found = _collected(like, pieces.references[1:], fetch)
        rows, descriptors, tensors = found
        own = {"key": pieces.key, "pid": os.getpid(), "rows": rows, "files": [[d, *_name(d)] for d in descriptors]}
        temporary = registry.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps([*holders, own]))
        temporary.replace(registry)
    return Rows(filled(like, tensors))


Held = tuple[int, list[int], list[Tensor]]  # rows; descriptors, open as long as this process lives; mapped tensors


def _collected(like: Batch, references: Sequence[Any], fetch: Callable[[Any], Samples]) -> Held:
    columns = TensorFiles(tensors_of(like))
    for reference in references:
        columns.append(tensors_of(fetch(reference).rows))
    descriptors = [os.dup(each) for each in columns.descriptors()]
    return columns.rows, descriptors, columns.mapped()


def _opened(holder: dict[str, Any], like: Batch) -> Held | None:
    """The files that another process holds; None where it has ended, even if its number is in use again."""
    descriptors: list[int] = []
    try:
        for number, *name in holder["files"]:
            descriptors.append(os.open(f"/proc/{holder['pid']}/fd/{number}", os.O_RDWR))
            if _name(descriptors[-1]) != name:
                raise FileNotFoundError(name)
        kinds = [(each.dtype, each.shape[1:]) for each in tensors_of(like)]
        tensors = [map_rows(d, holder["rows"], *kind) for d, kind in zip(descriptors, kinds, strict=True)]
    except (OSError, ValueError):
        for each in descriptors:
            os.close(each)
        return None
    return holder["rows"], descriptors, tensors


def _name(descriptor: int) -> list[int]:
    """What distinguishes a file from every other one that exists at the same time."""
    status = os.fstat(descriptor)
    return [status.st_dev, status.st_ino, status.st_size]


def _folder() -> Path:
    """The folder of the registry, which this user alone may write: it says which files are opened."""
    found = Path(tempfile.gettempdir()) / f"landscape-{os.getuid()}"
    found.mkdir(mode=0o700, exist_ok=True)
    if found.stat().st_uid != os.getuid():
        raise JobError(f"TMPDIR: {found} belongs to another user; point TMPDIR at a folder of your own")
    return found


def _read(registry: Path) -> list[dict[str, Any]]:
    """The entries of the registry whose processes still live."""
    found: list[dict[str, Any]] = []
    with suppress(OSError, ValueError):
        found = [each for each in json.loads(registry.read_text()) if Path(f"/proc/{each['pid']}").exists()]
    return found
