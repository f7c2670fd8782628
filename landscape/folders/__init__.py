"""Where a run lies: a folder on this machine or in an object store, read and written by the same few operations."""

from landscape.folders.base import Folder, Log, Place
from landscape.folders.opening import known_schemes, open_folder, split_path
from landscape.folders.probe import probe

__all__ = ["Folder", "Log", "Place", "known_schemes", "open_folder", "probe", "split_path"]
