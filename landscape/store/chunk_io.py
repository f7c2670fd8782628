"""The chunks of arrays, read and written many at once, and the Zarr stores that they lie in, local or remote."""

from __future__ import annotations

import asyncio
import errno
import os
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, ObjectStore

from landscape.core.files import PARTIAL, fsync, open_plain, whole_file
from landscape.core.folders import open_objects
from landscape.core.grid import Index, tile_at, tile_counts
from landscape.store.format import Damaged, NewArray, StoredArray, decode, encode, longest

if TYPE_CHECKING:
    from landscape.core.object_store import ObjectFolder

BATCH = 512  # chunks in memory at once
BATCH_BYTES = 1 << 28  # of the chunks in memory at once
CONCURRENT = 32


class ChunkReader:
    """Reads the chunks of one array of a landscape."""

    def __init__(self, store: Store, array: StoredArray) -> None:
        self._store, self._array = store, array
        self.shape, self.chunks = array.shape, array.chunks
        self.counts = tile_counts(self.shape, self.chunks)
        self.empty = np.array(array.fill_value, array.dtype)

    def present(self) -> NDArray[np.bool_]:
        """A mask over the grid of chunks: which of them exist, sound or damaged."""
        present = np.zeros(self.counts, np.bool_)
        prefix = f"{self._array.path}/c"
        if isinstance(self._store, LocalStore):
            indices = _files_below(self._store.root / prefix, self.counts)
        else:
            indices = iter(sync(_list_indices(self._store, f"{prefix}/", self.counts)))
        for index in indices:
            present[index] = True
        return present

    def read(self, indices: Iterable[Index]) -> Iterator[tuple[Index, NDArray[Any] | None, bool]]:
        """Each chunk's index, its values (None if it is absent or damaged), and whether it is damaged."""
        remaining, at_once = iter(indices), max(1, min(BATCH, BATCH_BYTES // max(1, self._array.chunk_bytes)))
        while batch := list(islice(remaining, at_once)):
            for index, data in zip(batch, self._fetch(batch), strict=True):
                if data is None:
                    yield index, None, False
                    continue
                try:
                    yield index, decode(self._array, index, data), False
                except Damaged:
                    yield index, None, True

    def whole(self) -> tuple[NDArray[Any], list[Index], NDArray[np.bool_]]:
        """Read the whole array.

        Returns:
            The values, with the fill value for absent and damaged chunks; the indices of damaged chunks; a mask of the
            chunks that exist, over the grid of chunks.
        """
        values = np.full(self.shape, self._array.fill_value, self._array.dtype)
        present, damaged = self.present(), []
        for index, chunk, _ in self.read(map(tuple, np.argwhere(present).tolist())):
            if chunk is None:  # also a broken link, which exists and has no bytes
                damaged.append(index)
            else:
                values[tile_at(index, self.shape, self.chunks).windows] = chunk
        return values, damaged, present

    def find_unsound(self, expected: Iterable[Index]) -> Iterator[Index]:
        """Those of the expected chunks that are absent or damaged; one batch is in memory at a time."""
        return (index for index, values, _ in self.read(expected) if values is None)

    def _fetch(self, indices: Sequence[Index]) -> Iterable[bytes | None]:
        keys = [self._array.key(index) for index in indices]
        if isinstance(self._store, LocalStore):
            # Local files are read directly: passing them to the event loop takes longer.
            most, root = longest(self._array), self._store.root
            return (chunk_bytes(root / key, most) for key in keys)
        return sync(_get_all(self._store, keys))


def chunk_bytes(file: Path, most: int) -> bytes | None:
    """The bytes of a chunk's file; None if there is no file.

    Args:
        most: bytes that a sound chunk may have. At most one more is read, which shows that a file is too long.
    """
    try:
        with open_plain(file) as opened:
            return opened.read(most + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EIO, errno.ELOOP, errno.ENXIO):
            return b""  # a pipe, a bad sector or a link in a circle counts as a damaged chunk
        raise


def _files_below(folder: Path, counts: Index) -> Iterator[Index]:
    """The indices of the chunks with files below a folder. Links are not followed, as they may form a circle."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                number = chunk_number(entry.name, counts[0])
                if number is None:
                    continue  # leftovers of an interrupted write have other names
                if len(counts) == 1:
                    if not entry.is_dir(follow_symlinks=False):
                        yield (number,)
                elif entry.is_dir(follow_symlinks=False):
                    yield from ((number, *rest) for rest in _files_below(Path(entry.path), counts[1:]))
    except (FileNotFoundError, NotADirectoryError):
        return


def chunk_number(text: str, count: int) -> int | None:
    """The number in a part of a chunk's path; None if it is no number, or not below `count`."""
    if len(text) > 9 or not (text.isascii() and text.isdecimal()) or str(int(text)) != text:
        return None
    return int(text) if int(text) < count else None


async def _get_all(store: Store, keys: Sequence[str]) -> list[bytes | None]:
    gate, prototype = asyncio.Semaphore(CONCURRENT), default_buffer_prototype()

    async def get(key: str) -> bytes | None:
        async with gate:
            data = await store.get(key, prototype)
        return None if data is None else data.to_bytes()

    return await asyncio.gather(*map(get, keys))


async def _list_indices(store: Store, prefix: str, counts: Index) -> list[Index]:
    indices: list[Index] = []
    async for key in store.list_prefix(prefix):
        parts = key[len(prefix) :].split("/")
        if len(parts) == len(counts):
            numbers = [chunk_number(part, count) for part, count in zip(parts, counts, strict=True)]
            if None not in numbers:
                indices.append(tuple(number for number in numbers if number is not None))
    return indices


# ----------------------------------------------------------------------------------------------------
# A local Zarr store whose writes survive a power cut.

METADATA = "zarr.json"
AT_ONCE = 16  # files that are written or synced


class DurableStore(LocalStore):
    """A local store whose writes survive a power cut once flushed: Zarr renames files, but never syncs them."""

    def __init__(self, root: Path | str, *, read_only: bool = False) -> None:
        super().__init__(root, read_only=read_only)
        self._unsynced: set[Path] = set()
        self._synced_folders: set[Path] = set()
        self._ours: set[Path] = set()  # folders known to be no links

    async def _set(self, key: str, value: Buffer, exclusive: bool = False) -> None:
        await asyncio.to_thread(self.put, key, value.to_bytes(), exclusive)

    def put(self, key: str, data: bytes, exclusive: bool = False) -> None:
        """Write one object whole; it survives a power cut after the next `flush`.

        Raises:
            FileExistsError: there is one already, and `exclusive` was asked for.
        """
        self._check_writable()
        place = self.root / key
        self.refuse_elsewhere(key)
        if place.name == METADATA and not exclusive:
            # Attributes are rewritten while a job runs. If the new name reached the disk before the bytes, a power cut
            # would leave an empty file in place of the old one, and the landscape would be lost.
            with whole_file(place) as temporary:
                temporary.write_bytes(data)
        else:
            _write_unsynced(place, data, exclusive)
        self._unsynced.add(place)

    def refuse_elsewhere(self, key: str) -> None:
        """Refuse to write through a link that leads out of the run, or into an array that was deleted meanwhile."""
        array, chunk, _ = key.partition("/c/")
        if chunk:
            self.refuse_taken_away(array)
        above = (self.root / key).parent
        while above not in self._ours:
            if above.is_symlink():
                raise OSError(errno.ELOOP, "leads out of the run by a link, which is not followed", str(above))
            self._ours.add(above)
            if above == self.root:
                break
            above = above.parent

    def refuse_taken_away(self, path: str) -> None:
        """Refuse to write below a folder that does not exist any more: Zarr would make it again.

        Raises:
            FileNotFoundError: the folder was deleted or moved.
        """
        if not (self.root / path).is_dir():
            raise FileNotFoundError(errno.ENOENT, "was taken away meanwhile", str(self.root / path))

    def flush(self) -> None:
        """Sync every file written since the last call, their folders, and new folders above."""
        files, self._unsynced = self._unsynced, set()
        folders = {file.parent for file in files}
        for folder in tuple(folders):
            above = folder
            while above != self.root.parent and above not in self._synced_folders:
                folders.add(above.parent)
                above = above.parent
        # Many at once: one write of the file system's journal covers them all.
        list(_threads().map(fsync, (*files, *folders)))
        self._synced_folders |= folders


@cache
def _threads() -> ThreadPoolExecutor:
    """The threads that write and sync files: starting new ones takes longer than most commits."""
    return ThreadPoolExecutor(AT_ONCE, "landscape-files")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a fork has none of them, and would wait for ever


def _write_unsynced(place: Path, data: bytes, exclusive: bool) -> None:
    """Write a file whole, without a sync; `exclusive`: only if there is none of this name."""
    temporary = place.with_name(f"{place.name}.{uuid.uuid4().hex}{PARTIAL}")
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.write_bytes(data)
        if exclusive:
            os.link(temporary, place)
            temporary.unlink()
        else:
            temporary.replace(place)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


# ----------------------------------------------------------------------------------------------------
# A Zarr store in an object store: a put is whole and durable, and a network failure is no damage.


def open_remote(url: str, *, read_only: bool) -> RemoteStore:
    """The Zarr store at a URL; no request is made yet."""
    return RemoteStore(open_objects(url), read_only=read_only)


class RemoteStore(ObjectStore[Any]):
    """Zarr's own store for obstore, with distinct errors.

    Only an object that does not exist may read as absent. A store that does not answer raises `StoreError`, which is no
    `OSError`: a missing answer must not count as a damaged chunk.
    """

    def __init__(self, folder: ObjectFolder, *, read_only: bool = False) -> None:
        super().__init__(folder.store, read_only=read_only)
        self._folder = folder

    def with_read_only(self, read_only: bool = False) -> RemoteStore:
        """The same store, open for reading only or for writing too."""
        return type(self)(self._folder, read_only=read_only)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """The bytes of an object, or of a range of it; None if there is no object.

        Raises:
            StoreError: the store does not answer, or refuses.
        """
        import obstore

        async def whole() -> Buffer:
            answer = await obstore.get_async(self.store, key)
            return prototype.buffer.from_bytes(bytes(await answer.bytes_async()))

        if byte_range is not None:
            return await self._folder.ask_async(lambda: super(RemoteStore, self).get(key, prototype, byte_range))
        try:
            return await self._folder.ask_async(whole, may_be_absent=True)
        except FileNotFoundError:
            return None

    async def exists(self, key: str) -> bool:
        """Whether there is an object with this key."""
        return await self._folder.ask_async(lambda: super(RemoteStore, self).exists(key))

    async def set(self, key: str, value: Buffer) -> None:
        """Put an object, if this process may write."""
        self._folder.check_guard()
        await self._folder.ask_async(lambda: super(RemoteStore, self).set(key, value))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Put an object unless there is one, if this process may write."""
        self._folder.check_guard()
        await self._folder.ask_async(lambda: super(RemoteStore, self).set_if_not_exists(key, value))

    async def delete(self, key: str) -> None:
        """Delete an object, if this process may write."""
        self._folder.check_guard()
        await self._folder.ask_async(lambda: super(RemoteStore, self).delete(key))

    async def delete_dir(self, prefix: str) -> None:
        """Delete all objects below a prefix, if this process may write."""
        self._folder.check_guard()
        await self._folder.ask_async(lambda: super(RemoteStore, self).delete_dir(prefix))

    async def list(self) -> AsyncGenerator[str, None]:
        """The keys of all objects."""
        for key in await self._all(super().list):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncGenerator[str, None]:
        """The keys of the objects below a prefix."""
        for key in await self._all(lambda: super(RemoteStore, self).list_prefix(prefix)):
            yield key

    async def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
        """The names right below a prefix, of objects and of folders."""
        for key in await self._all(lambda: super(RemoteStore, self).list_dir(prefix)):
            yield key

    async def _all(self, listing: Callable[[], AsyncGenerator[str, None]]) -> tuple[str, ...]:
        """A whole listing; one that breaks off is repeated from the beginning."""

        async def collect() -> tuple[str, ...]:
            return tuple([key async for key in listing()])

        return await self._folder.ask_async(collect)


# ----------------------------------------------------------------------------------------------------
# Whole chunks of a landscape's arrays, written many at once.


def write_chunks(store: Store, chunks: Sequence[tuple[StoredArray, Index, NDArray[Any]]]) -> None:
    """Write chunks, each of an array at an index; when this returns, the store has all of them."""
    _write_all(store, [(array.key(index), partial(encode, array, values)) for array, index, values in chunks])


def create_arrays(store: Store, arrays: Iterable[NewArray]) -> None:
    """Write the documents of new arrays, all at once, then the chunks that they begin with."""
    made = list(arrays)
    documents = [(f"{array.stored.path}/{METADATA}", partial(bytes, array.document)) for array in made]
    _write_all(store, documents, exclusive=True)
    for array in made:
        for index, values in array.chunks:  # which may be large, and are made one after the other
            write_chunks(store, [(array.stored, index, values)])


def write_document(store: Store, key: str, data: bytes) -> None:
    """Write one metadata document whole."""
    _write_all(store, [(key, partial(bytes, data))])


def _write_all(store: Store, objects: Sequence[tuple[str, Callable[[], bytes]]], *, exclusive: bool = False) -> None:
    """Write objects by their keys, many at once; each is made when its turn comes.

    Args:
        exclusive: whether none of them may exist yet; an object store is not asked.
    """
    if isinstance(store, DurableStore):
        # Without Zarr's event loop, which takes longer than the file system.
        writes = [_threads().submit(_put_local, store, *entry, exclusive) for entry in objects]
        errors = [write.exception() for write in writes]
    else:
        errors = sync(_put_remote(store, objects))
    # All writes have ended before the first error is raised.
    for error in errors:
        if error is not None:
            raise error


def _put_local(store: DurableStore, key: str, make: Callable[[], bytes], exclusive: bool) -> None:
    store.put(key, make(), exclusive)


async def _put_remote(
    store: Store, objects: Sequence[tuple[str, Callable[[], bytes]]]
) -> list[BaseException | None]:  # fmt: skip
    gate, buffer = asyncio.Semaphore(CONCURRENT), default_buffer_prototype().buffer

    async def put(key: str, make: Callable[[], bytes]) -> None:
        async with gate:
            await store.set(key, buffer.from_bytes(make()))

    return await asyncio.gather(*(put(*entry) for entry in objects), return_exceptions=True)
