"""A Zarr store in an object store: a put is whole and stays, and a network that fails is no damage."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import obstore
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import ObjectStore

from landscape.core.folders import open_objects
from landscape.core.object_store import ObjectFolder


def open_remote(url: str, *, read_only: bool) -> RemoteStore:
    """The Zarr store at a URL; no request is made yet."""
    return RemoteStore(open_objects(url), read_only=read_only)


class RemoteStore(ObjectStore[Any]):
    """Zarr's own store for obstore, its errors told apart.

    Only an object that is not there may read as absent. A store that does not answer raises `StoreError`, which is
    no `OSError`: whoever looks for damaged chunks must not find one for every answer that did not come.
    """

    def __init__(self, folder: ObjectFolder, *, read_only: bool = False) -> None:
        super().__init__(folder.store, read_only=read_only)
        self._folder = folder

    def with_read_only(self, read_only: bool = False) -> RemoteStore:
        """The same store, open for reading only or for writing too."""
        return type(self)(self._folder, read_only=read_only)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """The bytes of an object, or those of a range of it; None where there is none.

        Raises:
            StoreError: the store does not answer, or refuses.
        """

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
        """Whether there is an object of that key."""
        return await self._folder.ask_async(lambda: super(RemoteStore, self).exists(key))

    async def set(self, key: str, value: Buffer) -> None:
        """Put an object, where this process may write."""
        self._folder.check_guard()
        await self._folder.ask_async(lambda: super(RemoteStore, self).set(key, value))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Put an object unless there is one, where this process may write."""
        self._folder.check_guard()
        await self._folder.ask_async(lambda: super(RemoteStore, self).set_if_not_exists(key, value))

    async def delete(self, key: str) -> None:
        """Delete an object, where this process may write."""
        self._folder.check_guard()
        await self._folder.ask_async(lambda: super(RemoteStore, self).delete(key))

    async def delete_dir(self, prefix: str) -> None:
        """Delete all objects below a prefix, where this process may write."""
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
        """A whole listing: one that broke off in the middle is begun anew."""

        async def collect() -> tuple[str, ...]:
            return tuple([key async for key in listing()])

        return await self._folder.ask_async(collect)
