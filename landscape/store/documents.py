"""The metadata documents of a run's landscapes: read, checked, replaced by the root's copy if damaged, and written.

The root's `zarr.json` holds a copy of the documents of every landscape and array, which xarray reads at once. If a
document is damaged, its copy is read instead, until a driver writes the document again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from landscape.core.errors import JobError, LandscapeError, flat, quoted
from landscape.core.files import Folder
from landscape.core.grid import AXIS_NAMES, Index
from landscape.core.text import digest
from landscape.core.validation import MAX_SIZE
from landscape.store.format import (
    LARGEST_DOCUMENT,
    LAYOUT,
    SCHEMA_VERSION,
    STORED,
    BadMetadataError,
    StoredArray,
    expected_array,
    parse_array,
    parse_group,
    parse_metadata,
)
from landscape.surface.record import Record, parse, parse_axis, plain

# ----------------------------------------------------------------------------------------------------
# The entries of a landscape's document. A malformed entry is refused if it decides the meaning of the values, with the
# rule that it breaks; any other is left out, and the driver writes it again.

Essential = Literal["identity", "digest", "plan", "job"]
ESSENTIAL: tuple[Essential, ...] = get_args(Essential)  # a landscape without one of these can be read, not resumed
RULES: dict[str, str] = {
    **dict.fromkeys(ESSENTIAL, "must be a JSON object"), "digest": "must be text",
    "moment_rows": "must be a list of text", "level": "must say which blocks it holds",
    "keep_samples": "must be true or false",
}  # fmt: skip
OPTIONAL = (
    "progress", "precision_error", "provenance", "name", "precision", "batch_norm", "origin", "origin_step",
    "num_samples", "sample_set", "defaults", "position", "origin_loss", "origin_loss_stderr", "cosine", "failures",
    "checks", "connection", "compared", "snapshots", "guessing", "went_on_to", "own_model", "packed",
)  # fmt: skip


def parse_record(attributes: Mapping[str, Any]) -> tuple[Record, tuple[str, ...]]:
    """The record in the attributes of a landscape, and the names of the malformed entries that were left out.

    Raises:
        BadMetadataError: an entry that decides the meaning of the values is malformed.
    """
    record, malformed = parse(attributes)
    _check_observables(attributes.get("observables"), record)
    for name, rule in RULES.items():
        if name in malformed:
            raise BadMetadataError(f"{name}: {rule}")
    if record.identity is not None and record.digest is not None and _digest(record.identity.whole) != record.digest:
        raise BadMetadataError("digest: does not match the recorded identity")
    omitted = tuple(name for name in OPTIONAL if name in malformed)
    entries = {name: value for name, value in attributes.items() if name not in omitted}
    if record.states("failures"):  # without the malformed ones
        entries["failures"] = plain(record.failures)
    return replace(record, attributes=entries), omitted


def missing_essentials(record: Record) -> list[Essential]:
    """The essential entries that the document of a landscape lacks."""
    return [name for name in ESSENTIAL if not record.states(name)]


def axis_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an axis, without those that are malformed."""
    malformed = parse_axis(attributes)[1]
    return {name: value for name, value in attributes.items() if name not in malformed}


def check_layout(attributes: Mapping[str, Any], axes: int, size: int) -> None:
    """Refuse stored directions whose parameters do not fill their rows exactly.

    Raises:
        BadMetadataError: names the field.
    """
    stored, places, end = attributes.get(STORED), attributes.get(LAYOUT), 0
    if not isinstance(stored, list) or len(stored) != axes or not all(isinstance(written, bool) for written in stored):
        raise BadMetadataError(f"stored: must be {axes} times true or false")
    if not isinstance(places, list):
        raise BadMetadataError("layout: must be a list of places")
    for place in places:
        shape = place.get("shape") if isinstance(place, dict) else None
        if not isinstance(shape, list) or not all(type(length) is int and 0 <= length < 1 << 48 for length in shape):
            raise BadMetadataError("layout: every place must have a shape of whole numbers")
        if not isinstance(place.get("name"), str) or place.get("offset") != end:
            raise BadMetadataError("layout: every place must have a name, and begin where the one before ends")
        end += math.prod(shape)
    if end != size:
        raise BadMetadataError(f"layout: must fill {size} numbers, not {end}")


def _check_observables(names: Any, record: Record) -> None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadMetadataError("observables: must be a list of names")
    usable = all(name and "/" not in name and "\\" not in name and not name.startswith(".") for name in names)
    if "loss" not in names or len(set(names)) != len(names) or len(names) > 1000 or not usable:
        raise BadMetadataError("observables: must be different names, `loss` among them")
    if record.identity is not None and record.identity.whole.get("observables", names) != names:
        raise BadMetadataError("observables: do not match the recorded identity")


def _digest(identity: Any) -> str:
    try:
        return digest(identity)
    except (ValueError, TypeError):
        return ""


def is_same(first: Any, second: Any) -> bool:
    """Whether two documents are of the same landscape in the same tiles, whatever their progress."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return False
    equal = all(first.get(name) == second.get(name) for name in (*ESSENTIAL, "imported", "computed_tile"))
    return equal and _created(first) == _created(second)


def _created(attributes: Mapping[str, Any]) -> Any:
    provenance = attributes.get("provenance")
    return provenance.get("created") if isinstance(provenance, dict) else None


# ----------------------------------------------------------------------------------------------------
# The content of the documents of a landscape and of its arrays.


@dataclass(frozen=True)
class LandscapeSummary:
    """The content of a landscape's document.

    Attributes:
        problems: the faults of its own file, a sentence each.
        mend: whether a driver must write the file again.
        path: its folder in the store, if that is not its name because it is being renamed.
    """

    record: Record
    problems: tuple[str, ...] = ()
    mend: bool = False
    path: str = ""


@dataclass(frozen=True)
class Expected:
    """The shape and the chunks that an array must have: those of another array of the landscape."""

    shape: Index
    chunks: Index


@dataclass(frozen=True)
class DescribedArray:
    """An array as its document describes it.

    Attributes:
        problem: the fault of its own file, if the root's copy was read instead; else empty.
    """

    array: StoredArray
    document: dict[str, Any]
    problem: str = ""


def parse_landscape(document: Mapping[str, Any], name: str) -> tuple[Record, tuple[str, ...]]:
    """The checked record of a landscape, and the names of omitted entries.

    Raises:
        BadMetadataError: this software did not write the document, or it is damaged.
        JobError: a newer version of this software wrote it.
    """
    attributes = parse_group(document)
    version = attributes.get("schema_version")
    if type(version) is not int or version < 1:
        raise BadMetadataError("schema_version: must be a whole number; this is no landscape of this software")
    if version > SCHEMA_VERSION:
        raise JobError(
            f"landscape {quoted(name)} has schema version {quoted(version)}, this software reads up to "
            f"{SCHEMA_VERSION}; update it, or use another run"
        )
    return parse_record(attributes)


def check_array(array: StoredArray, name: str, like: Expected | None, axes: tuple[str, ...] | None) -> StoredArray:
    """The array, if it has the type, the dimensions and the shape that its name requires.

    Raises:
        BadMetadataError: it has not; the message names the field.
    """
    if axes is None:
        axes = tuple(reversed(array.dimension_names))
        if axes != AXIS_NAMES[: len(axes)]:
            raise BadMetadataError(f"dimension_names: must be axes of a landscape, not {quoted(array.dimension_names)}")
        if not all(1 <= n <= MAX_SIZE for n in array.shape):
            raise BadMetadataError(f"shape: must be 1 to {MAX_SIZE} points per axis, not {quoted(array.shape)}")
    dtype, dimensions = expected_array(name, axes)
    if array.dtype.name != dtype:
        raise BadMetadataError(f"data_type: must be {dtype}, not {array.dtype.name}")
    if array.dimension_names != dimensions or len(array.shape) != len(dimensions):
        raise BadMetadataError(f"dimension_names: must be {quoted(dimensions)}, not {quoted(array.dimension_names)}")
    if like is not None and (array.shape, array.chunks) != (like.shape, like.chunks):
        raise BadMetadataError(
            f"shape: must be {quoted(like.shape)} in chunks of {quoted(like.chunks)}, as the other arrays have, not "
            f"{quoted(array.shape)} in {quoted(array.chunks)}"
        )
    if name == "directions":
        if array.shape[0] != len(axes) or array.chunks[0] != 1:
            raise BadMetadataError(f"shape: must be one row for each of {len(axes)} axes, not {quoted(array.shape)}")
        check_layout(array.attributes, len(axes), array.shape[1])
    return array


# ----------------------------------------------------------------------------------------------------

FOLDER = "landscapes.zarr"
METADATA = "zarr.json"
LEVELS = "levels"  # the folder of a landscape with its refinement, a folder per level
ROUNDS = "rounds"  # the folder of a landscape with the values that its accuracy asked for, a folder per round
ABSENT = "is not there"
INLINE = {"kind": "inline", "must_understand": False}


class Documents:
    """The documents of one run's landscapes."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    @cached_property
    def copy(self) -> dict[str, Any]:
        """The root's copies of all other documents, unchecked, by their paths; empty if the root cannot be read."""
        try:
            copies = self._read("")["consolidated_metadata"]["metadata"]
        except (BadMetadataError, KeyError, TypeError):
            return {}
        return dict(copies) if isinstance(copies, dict) else {}

    def is_copied(self, path: str, arrays: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether the root's copies of a landscape and of its arrays say what their documents say.

        Args:
            arrays: the documents of the arrays by their names.
        """
        copy = self.copy.get(path)
        if not isinstance(copy, dict) or copy.get("attributes") != self._read(path).get("attributes"):
            return False
        return all(self.copy.get(f"{path}/{name}") == document for name, document in arrays.items())

    def forget_copy(self) -> None:
        """Read the copies anew when they are asked for: they are large, and change with every landscape."""
        self.__dict__.pop("copy", None)

    def own(self, name: str) -> tuple[Record, tuple[str, ...]]:
        """The checked record in a landscape's own file, and the names of omitted entries.

        Raises:
            BadMetadataError: the file describes no landscape.
            JobError: a newer version of this software wrote it.
        """
        return parse_landscape(self._read(name), name)

    def is_whole(self, name: str) -> bool:
        """Whether a landscape's own file describes one.

        Raises:
            JobError: a newer version of this software wrote it.
        """
        try:
            self.own(name)
        except BadMetadataError:
            return False
        return True

    def root_problems(self) -> list[str]:
        """The faults of the root's document, a sentence each.

        A document without copies is sound: a driver may be killed before it adds them.
        """
        try:
            root = self._read("")
            parse_group(root)
            copy = root.get("consolidated_metadata", {"metadata": {}})
            whole = isinstance(copy, dict) and isinstance(copy.get("metadata"), dict)
            problem = "" if whole else "consolidated_metadata: is malformed"
        except BadMetadataError as error:
            problem = str(error)
        return [f"{self._place('')}: {problem}; running the job again writes it anew"] if problem else []

    def landscape(self, name: str) -> LandscapeSummary:
        """The content of the landscape's own document; if that is damaged, of the root's copy.

        Raises:
            JobError: a newer version of this software wrote it.
            LandscapeError: both are unreadable, or describe no landscape; with the reason.
        """
        try:
            record, omitted = self.own(name)
        except BadMetadataError as error:
            problem = f"{self._place(name)}: {error}"
            summary = self._read_copy(name, problem)
            if summary is None:
                raise self._unreadable(name, problem) from None
            return summary
        problems = [f"{self._place(name)}: {entry}: is malformed and left out" for entry in omitted]
        missing = missing_essentials(record)
        if missing and not record.is_imported:
            summary = self._read_copy(name, f"{self._place(name)}: {missing[0]}: is missing")
            if summary is not None:
                return summary
        return LandscapeSummary(record, tuple(problems), bool(omitted))

    def _read_copy(self, name: str, problem: str) -> LandscapeSummary | None:
        """The content of the root's copy; None if it lacks an entry, or is malformed."""
        try:
            record, _ = parse_landscape(self.copy.get(name, {}), name)
        except (BadMetadataError, JobError):
            return None
        if missing_essentials(record) and not record.is_imported:
            return None
        return LandscapeSummary(record, (f"{problem}; its copy in the root stands in for it",), True)

    def array(self, name: str, array: str, like: Expected | None, axes: tuple[str, ...] | None) -> DescribedArray:
        """An array of a landscape as its own document describes it; if that is damaged, as the root's copy does.

        Args:
            like: the shape and chunks that it must have; None if no other array determines them.
            axes: the names of the landscape's axes; None for `status`, which determines them.

        Raises:
            LandscapeError: neither can be read, or the array is not what its name requires.
        """
        path = f"{name}/{array}"

        def check(document: dict[str, Any]) -> DescribedArray:
            return DescribedArray(check_array(parse_array(document, path), array, like, axes), document)

        try:
            return check(self._read(path))
        except BadMetadataError as error:
            problem = f"{self._place(path)}: {error}"
        try:
            copy = check(self.copy.get(path, {}))
        except BadMetadataError:
            raise self._unreadable(name, problem) from None
        return replace(copy, problem=f"{problem}; its copy in the root stands in for it")

    def exists(self, path: str) -> bool:
        """Whether a document exists at the path, readable or not."""
        try:
            self._read(path)
        except BadMetadataError as error:
            return str(error) != ABSENT
        return True

    def has(self, name: str, array: str) -> bool:
        """Whether the array exists, or existed when the root's copy was made."""
        path = f"{name}/{array}"
        return self.exists(path) or (self._root_names(path) and path in self.copy)

    def _root_names(self, path: str) -> bool:
        """Whether the root's text holds this path: a run of many landscapes has a root that takes long to parse."""
        try:
            text = self._bytes("")
        except BadMetadataError:
            return False
        return any(json.dumps(path, ensure_ascii=escaped).encode() in text for escaped in (True, False))

    def levels(self, path: str) -> list[int]:
        """The numbers of a landscape's levels of refinement, including those that are half made."""
        folders = self._folder.folders(f"{FOLDER}/{path}/{LEVELS}")
        return sorted(int(name) for name in folders if name.isascii() and name.isdecimal() and 0 < int(name) <= 16)

    # -- writing ----------------------------------------------------------------------------------------------

    def text(self, document: Mapping[str, Any]) -> bytes:
        """A document as Zarr writes it."""
        return json.dumps(document, indent=2).encode()

    def group(self, attributes: Mapping[str, Any]) -> bytes:
        """The document of a group."""
        return self.text({"attributes": dict(attributes), "zarr_format": 3, "node_type": "group"})

    def root(self, names: list[str], changed: str | None = None) -> bytes:
        """The bytes of the root's document, with copies of the documents of these landscapes.

        If a document cannot be read, the root keeps its previous copy of it.

        Args:
            changed: the landscape whose documents may differ from their copies; default: all. Reading those of the
                others too would make a job of many short landscapes take longer than their points.
        """
        self.forget_copy()
        copies: dict[str, Any] = {}
        for name in names:
            if changed is not None and name != changed and name in self.copy:
                copies |= self._previous_copies(name)
                continue
            copies |= self._copies_of(name) or self._previous_copies(name)
            for number in self.levels(name):
                level = f"{name}/{LEVELS}/{number}"
                copies |= {f"{name}/{LEVELS}": _plain_group({})}
                copies |= self._copies_of(level) or self._previous_copies(level)
        # In the order of Zarr's own listing.
        copies = dict(sorted(copies.items(), key=lambda entry: (entry[0].count("/") > 0, entry[0])))
        self.forget_copy()
        inline = {**INLINE, "metadata": copies}
        root = {"attributes": {}, "zarr_format": 3, "consolidated_metadata": inline, "node_type": "group"}
        # The document grows with every landscape and is rewritten with each: indented JSON takes 20 times as long.
        return json.dumps(root, separators=(",", ":")).encode()

    def _previous_copies(self, name: str) -> dict[str, Any]:
        """The root's copies of the documents of a landscape and below it, by their paths."""
        return {path: copy for path, copy in self.copy.items() if f"{path}/".startswith(f"{name}/")}

    def _copies_of(self, name: str) -> dict[str, Any]:
        """The documents of a landscape and its arrays by their paths; empty if that of the landscape is unreadable.

        For an array whose document is unreadable, the root's copy is taken.
        """
        try:
            group = self._read(name)
            parse_landscape(group, name)
        except (BadMetadataError, LandscapeError):
            return {}
        copies: dict[str, Any] = {name: _plain_group(group["attributes"])}
        below = [f"{name}/{array}" for array in self._folder.folders(f"{FOLDER}/{name}")]
        for path, document in zip(below, self._folder.map(self._array_or_none, below), strict=True):
            document = document or self.copy.get(path)
            if document is not None:
                copies[path] = document
        return copies

    def _array_or_none(self, path: str) -> dict[str, Any] | None:
        try:
            document = self._read(path)
            parse_array(document, path)
        except BadMetadataError:
            return None
        return document

    # -- reading ----------------------------------------------------------------------------------------------

    def _read(self, path: str) -> dict[str, Any]:
        """The document at a path of the store, as one JSON object.

        Raises:
            BadMetadataError: there is none, or it is no JSON object.
        """
        return parse_metadata(self._bytes(path))

    def _bytes(self, path: str) -> bytes:
        file = f"{FOLDER}/{path}/{METADATA}" if path else f"{FOLDER}/{METADATA}"
        try:
            return self._folder.read_range(file, 0, LARGEST_DOCUMENT + 1)
        except (FileNotFoundError, NotADirectoryError):
            raise BadMetadataError(ABSENT) from None
        except OSError as error:
            raise BadMetadataError(f"cannot be read: {flat(error.strerror or str(error))}") from None

    def _unreadable(self, name: str, problem: str) -> LandscapeError:
        return LandscapeError(unreadable_message(name, problem, self._folder.place(f"{FOLDER}/{name}")))

    def _place(self, path: str) -> str:
        return quoted(self._folder.place(f"{FOLDER}/{path}/{METADATA}".replace("//", "/")), 300)


def _plain_group(attributes: Any) -> dict[str, Any]:
    """The copy of a group's document."""
    nothing = {**INLINE, "metadata": {}}
    return {"attributes": attributes, "zarr_format": 3, "consolidated_metadata": nothing, "node_type": "group"}


def unreadable_message(name: str, problem: str, folder: str) -> str:
    """The message about a landscape that cannot be read, with its remedy.

    Args:
        problem: the file and its fault.
        folder: the place of the landscape.
    """
    return (
        f"landscape {quoted(name)} cannot be read: {problem}; restore that file, or move the folder "
        f"{quoted(folder, 300)} away to compute it anew"
    )


def resume_refusal(name: str, record: Record, missing: str, folder: str) -> str:
    """Why no job can continue a landscape whose document lacks an entry, and the remedy.

    Args:
        folder: the place of the landscape.
    """
    document = quoted(f"{folder}/{METADATA}", 300)
    damaged = unreadable_message(name, f"{document}: {missing}: is missing", folder)
    return import_refusal(name, record) if record.is_imported else damaged


def import_refusal(name: str, record: Record) -> str:
    """Why no job can continue a landscape that was imported, and the remedy."""
    file = (record.imported and record.imported.file) or "a file"
    return (
        f"landscape {quoted(name)} was imported from {quoted(file)}: no job computed it, so none goes on "
        "with it; give the job's landscape another name or run"
    )
