"""Tensors that are too large for memory: written row by row to files without a name, and mapped back as tensors.

The files lie in the folder for temporary files ($TMPDIR). As they have no name, they are gone when the last process
that uses them ends, however it ends.
"""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Sequence
from typing import IO

import torch
from torch import Tensor

from landscape.core.errors import JobError, one_line


class TensorFiles:
    """One file per tensor of a batch; all of them have the same number of rows, the samples.

    Args:
        like: tensors [rows, …]; what is appended must have their types and row shapes.
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
            JobError: a tensor has another type or row shape than those before, or the disk is full.
        """
        for tensor, (dtype, shape), file in zip(tensors, self._like, self._files, strict=True):
            if (tensor.dtype, tensor.shape[1:]) != (dtype, shape):
                raise JobError(
                    "data: samples that are kept on disk must have one type and shape, not "
                    f"{dtype} {tuple(shape)} and {tensor.dtype} {tuple(tensor.shape[1:])}; "
                    "pad them to one length in the data set"
                )
            try:
                # Written to the file, not through a map of it: a map's pages count as memory of this process.
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
        """The rows as tensors whose memory is the file; it goes when they do. Nothing can be appended afterwards."""
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
