"""The rounds of a landscape that is computed to an accuracy: which points were evaluated on which blocks of samples.

A round is a table of *items*, each a point and a block: its place, the moments of the block there, and the rise of
every sample in it. A round is planned whole before its first value, and its chunks are committed like tiles: a status
of 1 means that the values of the chunk are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store

from landscape.core.files import Folder
from landscape.core.grid import Floats, Index
from landscape.store.chunk_io import ChunkReader, create_arrays, write_chunks, write_document
from landscape.store.commit import flush
from landscape.store.documents import FOLDER, METADATA, ROUNDS, Documents
from landscape.store.format import BadMetadataError, StoredArray, lay_out_round, parse_array, parse_metadata
from landscape.surface.surface import MOMENT_PARTS, NOT_COMPUTED, QUARANTINED

PLAN, VALUES, RISES, WEIGHTS, STATUS = "plan", "moments", "rises", "weights", "status"
MOST_ROUNDS = 10_000


@dataclass(frozen=True)
class RoundPlan:
    """The items of a round.

    Attributes:
        places: int64 [items, dimensions], indices of the finest grid.
        blocks: int64 [items], the number of the block.
        chunk: how many items a task has.
    """

    places: NDArray[np.int64]
    blocks: NDArray[np.int64]
    chunk: int

    def __len__(self) -> int:
        return len(self.blocks)

    def rows(self, chunk: int) -> slice:
        """The items of a chunk."""
        return slice(chunk * self.chunk, min((chunk + 1) * self.chunk, len(self)))

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return -(-len(self) // self.chunk)


@dataclass
class Round:
    """A round with its values as far as they are known; NaN elsewhere.

    Attributes:
        status: uint8 [items], as of points.
        moments: float64 [items, rows, 6].
        rises: float32 [items, terms, samples], padded with NaN.
        weights: float64 [items, terms, samples] of weighted samples, else None.
    """

    plan: RoundPlan
    status: NDArray[np.uint8]
    moments: Floats
    rises: NDArray[np.float32]
    weights: Floats | None = None
    damaged: tuple[int, ...] = field(default=())

    @property
    def missing(self) -> int:
        """How many chunks are not committed, or given up."""
        return sum(bool((self.status[self.plan.rows(chunk)] != 1).any()) for chunk in range(self.plan.chunks))


@dataclass(frozen=True)
class ItemValues:
    """The values of some items, see `Round`."""

    moments: Floats
    rises: NDArray[np.float32]
    weights: Floats | None = None


@dataclass(frozen=True)
class RoundShape:
    """What the tables of all rounds of a landscape have in common.

    Attributes:
        rows: of the moments.
        terms: of the loss; 1 if it is no sum.
        width: samples of the largest block.
    """

    rows: int
    terms: int
    width: int
    weighted: bool = False


class Rounds:
    """The rounds of one landscape on disk.

    Args:
        path: of the landscape in the store.
    """

    def __init__(self, folder: Folder, store: Store, path: str, shape: RoundShape) -> None:
        self._folder, self._store, self._path, self._shape = folder, store, path, shape
        self._arrays: dict[int, dict[str, StoredArray]] = {}

    def read(self) -> list[Round]:
        """All rounds, up to the first whose documents or plan are damaged or missing."""
        rounds = []
        for number in range(MOST_ROUNDS):
            found = self._read(number)
            if found is None:
                break
            rounds.append(found)
        return rounds

    def begin(self, number: int, plan: RoundPlan) -> Round:
        """Write the plan of a round, with nothing computed; without its whole plan it counts as not begun."""
        documents, above = Documents(self._folder), f"{self._path}/{ROUNDS}"
        if not documents.exists(above):
            write_document(self._store, f"{above}/{METADATA}", documents.group({}))
        path = f"{above}/{number}"
        self._folder.delete_below(f"{FOLDER}/{path}")  # a half-made round of a killed driver
        write_document(self._store, f"{path}/{METADATA}", documents.group({}))
        shape = self._shape
        arrays = lay_out_round(
            path, np.column_stack([plan.places, plan.blocks]), plan.chunk, MOMENT_PARTS * shape.rows,
            shape.terms * shape.width, weighted=shape.weighted,
        )  # fmt: skip
        create_arrays(self._store, arrays)
        flush(self._store)
        return self._empty(plan)

    def write(self, number: int, round_: Round, values: Sequence[tuple[int, ItemValues]]) -> None:
        """Commit whole chunks of a round, all with two syncs, and note their values in it."""
        chunks: list[tuple[StoredArray, Index, NDArray[Any]]] = []
        states = []
        arrays = self._of(number)
        for chunk, items in values:
            rows = round_.plan.rows(chunk)
            count = rows.stop - rows.start
            round_.moments[rows], round_.rises[rows] = items.moments, items.rises
            if round_.weights is not None and items.weights is not None:
                round_.weights[rows] = items.weights
                chunks.append((arrays[WEIGHTS], (chunk, 0), items.weights.reshape(count, -1)))
            chunks.append((arrays[VALUES], (chunk, 0), items.moments.reshape(count, -1)))
            chunks.append((arrays[RISES], (chunk, 0), items.rises.reshape(count, -1)))
            states.append((arrays[STATUS], (chunk,), np.ones(count, np.uint8)))
            round_.status[rows] = 1
        write_chunks(self._store, chunks)
        flush(self._store)
        write_chunks(self._store, states)
        flush(self._store)

    def quarantine(self, number: int, round_: Round, chunk: int) -> None:
        """Mark a chunk of a round as given up; the next run of the job tries it again."""
        rows = round_.plan.rows(chunk)
        round_.status[rows] = QUARANTINED
        write_chunks(self._store, [(self._of(number)[STATUS], (chunk,), round_.status[rows])])
        flush(self._store)

    def _read(self, number: int) -> Round | None:
        try:
            arrays = self._of(number)
        except BadMetadataError:
            return None
        table, damaged, present = ChunkReader(self._store, arrays[PLAN]).whole()
        if damaged or not present.all():
            return None
        plan = RoundPlan(table[:, :-1], table[:, -1], arrays[STATUS].chunks[0])
        whole = self._empty(plan)
        bad: set[int] = set()
        whole.status, wrong, _ = ChunkReader(self._store, arrays[STATUS]).whole()
        bad.update(index[0] for index in wrong)
        committed = {int(chunk) for chunk in np.unique(np.flatnonzero(whole.status == 1) // plan.chunk)}
        names = [VALUES, RISES, *([WEIGHTS] if self._shape.weighted else [])]
        for name in names:
            values, wrong, present = ChunkReader(self._store, arrays[name]).whole()
            bad.update(index[0] for index in wrong)
            bad.update(chunk for chunk in committed if not present[chunk, 0])
            setattr(whole, name, values.reshape(getattr(whole, name).shape))
        for chunk in bad:
            whole.status[plan.rows(chunk)] = NOT_COMPUTED
        return replace(whole, damaged=tuple(sorted(bad)))

    def _empty(self, plan: RoundPlan) -> Round:
        shape, count = self._shape, len(plan)
        wide = (count, shape.terms, shape.width)
        return Round(
            plan, np.zeros(count, np.uint8), np.full((count, shape.rows, MOMENT_PARTS), np.nan),
            np.full(wide, np.nan, np.float32), np.full(wide, np.nan) if shape.weighted else None,
        )  # fmt: skip

    def _of(self, number: int) -> Mapping[str, StoredArray]:
        """The arrays of a round.

        Raises:
            BadMetadataError: a document is missing, damaged or of another shape.
        """
        if number not in self._arrays:
            path = f"{self._path}/{ROUNDS}/{number}"
            document = self._folder.read(f"{FOLDER}/{path}/{METADATA}")
            if document is None:
                raise BadMetadataError("is missing")
            parse_metadata(document)
            self._arrays[number] = dict(self._described(path))
        return self._arrays[number]

    def _described(self, path: str) -> Iterator[tuple[str, StoredArray]]:
        shape, items = self._shape, None
        wide = {VALUES: MOMENT_PARTS * shape.rows, RISES: shape.terms * shape.width, WEIGHTS: shape.terms * shape.width}
        for name in (STATUS, PLAN, VALUES, RISES, *([WEIGHTS] if shape.weighted else [])):
            document = self._folder.read(f"{FOLDER}/{path}/{name}/{METADATA}")
            if document is None:
                raise BadMetadataError("is missing")
            array = parse_array(parse_metadata(document), f"{path}/{name}")
            items = array.shape[0] if items is None else items
            if array.shape[0] != items or (name in wide and array.shape[1:] != (wide[name],)):
                raise BadMetadataError(f"{name}: has another shape than its round")
            yield name, array
