"""Rows of tensors that are kept while data are read: in memory up to a limit, on disk above it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable

import torch
from torch import Tensor

from landscape.problem.batches import (
    Batch,
    batch_bytes,
    batch_length,
    concatenate,
    empty_like,
    filled,
    in_order,
    map_tensors,
    tensors_of,
)
from landscape.problem.tensor_files import TensorFiles

PIECE_BYTES = 64 << 20  # of samples that are written to disk at a time

log = logging.getLogger("landscape")


def rows_at(data: Batch, indices: Tensor, limit: int) -> Batch:
    """The samples of `data` at these indices, in memory up to `limit` bytes, else on disk."""
    sample_bytes = -(-batch_bytes(data) // max(1, batch_length(data)))
    if sample_bytes * len(indices) <= limit:
        return _take(data, indices)
    parts = indices.split(max(1, PIECE_BYTES // sample_bytes))  # type: ignore[no-untyped-call]
    return on_disk(_take(data, part) for part in parts)


class Reservoir:
    """The samples that are kept of those seen so far: in memory up to `limit` bytes, from then on on disk.

    A sample that is no longer kept leaves an unused row. In memory such rows are cleared away when they outnumber the
    others; on disk at the end, where about n·ln(N/n) of them are expected if n of N samples are kept.
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
            batch: the new samples.
            best: the positions, ascending, of the samples to keep among those kept so far followed by the batch's.
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
        """The samples that are kept.

        Args:
            order: their places in the order in which they were seen.
        """
        kept = self._kept_rows[order]
        are_all_rows = torch.equal(kept, torch.arange(self._rows))
        if self._files is not None:
            rows = filled(self._like, self._files.mapped())
            return rows if are_all_rows else rows_at(rows, kept, limit=0)
        rows = concatenate(self._pieces)
        return rows if are_all_rows else _take(rows, kept)


def _take(batch: Batch, indices: Tensor) -> Batch:
    return map_tensors(lambda tensor: tensor[indices].contiguous(), batch)


def on_disk(pieces: Iterable[Batch]) -> Batch:
    """These batches, one after the other, as one batch whose tensors are mapped files."""
    like: Batch = None
    for piece in pieces:
        if like is None:
            like, files = empty_like(piece), TensorFiles(tensors_of(piece))
        files.append(tensors_of(in_order(like, piece)))
        del piece  # before the next is read, so that only one is in memory at a time
    samples = filled(like, files.mapped())
    log.info("data: %.1f MB of samples are kept on disk, in %s", batch_bytes(samples) / 1e6, tempfile.gettempdir())
    return samples
