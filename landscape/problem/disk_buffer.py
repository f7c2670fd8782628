"""Samples that are collected while data are read: in memory up to a limit, on disk above it."""

from __future__ import annotations

import logging
import mmap
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from typing import IO

import torch
from torch import Tensor

from landscape.core.errors import JobError, one_line
from landscape.problem.batches import (
    Batch,
    batch_bytes,
    batch_length,
    concatenate,
    empty_like,
    fill_structure,
    in_order,
    map_tensors,
    tensors_of,
)

log = logging.getLogger("landscape")

# ----------------------------------------------------------------------------------------------------
# The files lie in the folder for temporary files ($TMPDIR). They have no name, so they vanish when the last process
# that uses them ends, however it ends.


class TensorFiles:
    """One file per tensor of a batch; all of them have the same number of rows, the samples.

    Args:
        like: tensors [rows, …]; appended tensors must have their types and row shapes.
    """

    def __init__(self, like: Sequence[Tensor]) -> None:
        self._like = [(tensor.dtype, tensor.shape[1:]) for tensor in like]
        self._files: list[IO[bytes]] = [tempfile.TemporaryFile() for _ in like]  # noqa: SIM115 - closed by _close
        self._closing = weakref.finalize(self, _close, self._files)
        self.rows = 0

    def append(self, tensors: Sequence[Tensor]) -> None:
        """Add rows to every file.

        Args:
            tensors: one tensor [rows, …] per file, all with the same number of rows.

        Raises:
            JobError: a tensor has another type or row shape than the earlier ones, or the disk is full.
        """
        for tensor, (dtype, shape), file in zip(tensors, self._like, self._files, strict=True):
            if (tensor.dtype, tensor.shape[1:]) != (dtype, shape):
                raise JobError(
                    "data: samples that are kept on disk must have one type and shape, not "
                    f"{dtype} {tuple(shape)} and {tensor.dtype} {tuple(tensor.shape[1:])}; "
                    "pad them to one length in the data set"
                )
            try:
                # Write to the file, not through a map of it, whose pages would count as memory of this process.
                file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
                file.flush()
            except OSError as error:
                raise JobError(
                    f"data: the samples do not fit the folder {tempfile.gettempdir()} ({one_line(error)}); point "
                    "TMPDIR at a larger disk, or ask for fewer num_samples"
                ) from error
        self.rows += len(tensors[0])

    def descriptors(self) -> list[int]:
        """The files' descriptors; `mapped` closes them."""
        return [file.fileno() for file in self._files]

    def mapped(self) -> list[Tensor]:
        """The rows as tensors whose memory is the file, which lives as long as they do; ends appending."""
        files = zip(self.descriptors(), self._like, strict=True)
        tensors = [map_rows(descriptor, self.rows, dtype, shape) for descriptor, (dtype, shape) in files]
        self._closing()
        return tensors


def _close(files: Sequence[IO[bytes]]) -> None:
    for file in files:
        file.close()


def map_rows(descriptor: int, rows: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Map the file behind a descriptor as a tensor [rows, *shape]; the descriptor may be closed afterwards."""
    count = rows * torch.Size(shape).numel()
    if count == 0:  # mmap refuses an empty file
        return torch.empty((rows, *shape), dtype=dtype)
    whole = mmap.mmap(descriptor, count * dtype.itemsize)
    return torch.frombuffer(whole, dtype=dtype, count=count).view(rows, *shape)


PIECE_BYTES = 64 << 20  # of samples written to disk at a time


def rows_at(data: Batch, indices: Tensor, limit: int) -> Batch:
    """The samples of `data` at these indices, in memory up to `limit` bytes, else on disk."""
    sample_bytes = -(-batch_bytes(data) // max(1, batch_length(data)))
    if sample_bytes * len(indices) <= limit:
        return _take(data, indices)
    parts = indices.split(max(1, PIECE_BYTES // sample_bytes))  # type: ignore[no-untyped-call]
    return on_disk(_take(data, part) for part in parts)


class Reservoir:
    """The kept ones of the samples seen so far: in memory up to `limit` bytes, above that on disk.

    A sample that is dropped leaves an unused row. In memory, such rows are removed when they outnumber the others; on
    disk at the end: about n·ln(N/n) unused rows are expected if n of N samples are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._like: Batch = None
        self._pieces: list[Batch] = []  # the rows in memory
        self._bytes = 0  # of the pieces
        self._files: TensorFiles | None = None  # the rows on disk
        self._rows = 0
        self._kept_rows = torch.empty(0, dtype=torch.int64)  # ascending

    def keep(self, batch: Batch, best: Tensor) -> None:
        """Keep some of the samples kept so far and some of a new batch.

        Args:
            best: the positions of the samples to keep, ascending, among the samples kept so far and then the batch's.
        """
        self._like = empty_like(batch) if self._like is None else self._like
        batch, old = in_order(self._like, batch), len(self._kept_rows)
        new = best[best >= old] - old
        if len(new):
            self._append(batch if len(new) == batch_length(batch) else _take(batch, new))
        added = torch.arange(self._rows, self._rows + len(new))
        self._kept_rows = torch.cat([self._kept_rows[best[best < old]], added])
        self._rows += len(new)
        if self._files is None:
            self._drop_unused_rows()
            self._move_to_disk_above_limit()

    def _append(self, rows: Batch) -> None:
        if self._files is None:
            self._pieces.append(rows)
            self._bytes += batch_bytes(rows)
        else:
            self._files.append(tensors_of(rows))

    def _drop_unused_rows(self) -> None:
        if self._rows > 2 * len(self._kept_rows):
            self._pieces = [_take(concatenate(self._pieces), self._kept_rows)]
            self._bytes = batch_bytes(self._pieces[0])
            self._rows = len(self._kept_rows)
            self._kept_rows = torch.arange(self._rows)

    def _move_to_disk_above_limit(self) -> None:
        if self._bytes * len(self._kept_rows) > self._limit * self._rows:
            self._files = TensorFiles(tensors_of(self._like))
            for piece in self._pieces:
                self._append(piece)
            self._pieces = []

    def samples(self, order: Tensor) -> Batch:
        """The kept samples.

        Args:
            order: their places in the order in which they were seen.
        """
        indices = self._kept_rows[order]
        are_all_rows = torch.equal(indices, torch.arange(self._rows))
        if self._files is not None:
            rows = fill_structure(self._like, self._files.mapped())
            return rows if are_all_rows else rows_at(rows, indices, limit=0)
        rows = concatenate(self._pieces)
        return rows if are_all_rows else _take(rows, indices)


def _take(batch: Batch, indices: Tensor) -> Batch:
    return map_tensors(lambda tensor: tensor[indices].contiguous(), batch)


def on_disk(pieces: Iterable[Batch]) -> Batch:
    """These batches, one after the other, as one batch whose tensors are mapped files."""
    like: Batch = None
    for piece in pieces:
        if like is None:
            like, files = empty_like(piece), TensorFiles(tensors_of(piece))
        files.append(tensors_of(in_order(like, piece)))
        del piece  # before the next one is read, so that only one is in memory
    samples = fill_structure(like, files.mapped())
    log.info("data: %.1f MB of samples are kept on disk, in %s", batch_bytes(samples) / 1e6, tempfile.gettempdir())
    return samples
