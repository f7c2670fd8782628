"""The change of names that is under way in a run: one file, which every reader obeys until the change is done.

A landscape that is removed or gets another name changes for all readers at the moment at which this file appears,
whole. What follows, the deleting and moving of files, may be broken off at any moment, and is finished by whoever
writes the run next.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from landscape.core.files import Folder
from landscape.store.documents import FOLDER, Documents

JOURNAL = f"{FOLDER}/.moving"


@dataclass(frozen=True)
class Move:
    """A landscape that is removed, or gets another name.

    Attributes:
        source: its name before; no landscape has that name any more.
        target: its name from now on, in place of the landscape that had it before; None where it is removed.
        position: the position in its job that it has from now on; None for the one that it had.
    """

    source: str
    target: str | None = None
    position: int | None = None


def read_move(folder: Folder) -> Move | None:
    """The change that is under way in a run; None where there is none, or the file says something else."""
    try:
        entries = json.loads(folder.read(JOURNAL) or b"null")
        source, target, position = (entries[name] for name in ("source", "target", "position"))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    whole = _is_name(source) and (target is None or (_is_name(target) and target != source))
    return Move(source, target, position if type(position) is int else None) if whole else None


def _is_name(name: object) -> bool:
    """Whether a name leads to a folder right below that of the landscapes."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def write_move(folder: Folder, move: Move) -> None:
    """Begin a change: when this returns it holds for every reader, also after a power cut."""
    folder.write(JOURNAL, json.dumps(asdict(move)).encode())


def end_move(folder: Folder) -> None:
    """Delete the file of a change that is done."""
    folder.delete(JOURNAL)
    folder.sync_names(FOLDER)


def place_of(documents: Documents, move: Move | None, name: str) -> str | None:
    """The folder in the store in which the landscape of a name lies while a change is under way; None for nowhere."""
    if move is None or name not in (move.source, move.target):
        return name
    if name == move.source:
        return None
    # Its own document is moved last.
    return move.source if documents.exists(move.source) else name


def names_after(names: list[str], move: Move | None) -> list[str]:
    """The names of the landscapes, given those of the folders; hidden ones are being made, and are left out."""
    shown = {name for name in names if not name.startswith(".")}
    if move is not None:
        shown = (shown | {move.target or move.source}) - {move.source}
    return sorted(shown)
