"""A local Zarr store whose writes survive a power cut."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

from landscape.core.files import fsync, whole_file

METADATA = "zarr.json"
SYNCS = 16  # at once


class DurableStore(LocalStore):
    """A local store that can make what it wrote survive a power cut: Zarr renames files, but never syncs them."""

    def __init__(self, root: Path | str, *, read_only: bool = False) -> None:
        super().__init__(root, read_only=read_only)
        self._unsynced: set[Path] = set()
        self._synced_folders: set[Path] = set()
        self._ours: set[Path] = set()  # folders seen to be no links

    async def _set(self, key: str, value: Buffer, exclusive: bool = False) -> None:
        place = self.root / key
        self.refuse_elsewhere(key)
        if place.name == METADATA and not exclusive:
            # Attributes are rewritten while a job runs: were the new name on the disk before the bytes, a power cut
            # would leave an empty file in place of the old one, and with it no landscape.
            self._check_writable()
            await asyncio.to_thread(_write_whole, place, value.to_bytes())
        else:
            await super()._set(key, value, exclusive)
        self._unsynced.add(place)

    def refuse_elsewhere(self, key: str) -> None:
        """Refuse to write where a link leads away from the run, and to make anew what was taken away meanwhile."""
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
        """Refuse to write below a folder that is not there any more, which Zarr would make anew.

        Raises:
            FileNotFoundError: it is gone.
        """
        if not (self.root / path).is_dir():
            raise FileNotFoundError(errno.ENOENT, "was taken away meanwhile", str(self.root / path))

    async def flush(self) -> None:
        """Sync every file written since the last call, the folders that name them, and new folders above."""
        files, self._unsynced = self._unsynced, set()
        await asyncio.to_thread(self._sync_all, files)

    def _sync_all(self, files: set[Path]) -> None:
        folders = {file.parent for file in files}
        for folder in tuple(folders):
            above = folder
            while above != self.root.parent and above not in self._synced_folders:
                folders.add(above.parent)
                above = above.parent
        # Side by side: the file system's journal takes many at once for the price of one.
        with ThreadPoolExecutor(min(SYNCS, len(files) + len(folders) or 1)) as threads:
            list(threads.map(fsync, (*files, *folders)))
        self._synced_folders |= folders


def _write_whole(place: Path, data: bytes) -> None:
    with whole_file(place) as temporary:
        temporary.write_bytes(data)
