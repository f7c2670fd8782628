"""A job read from its YAML file, and the landscape of a record as a job names it."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

from landscape.core.errors import JobError, NotFoundError, flat, message_of, quoted
from landscape.core.folders import locate
from landscape.core.validation import OF_RUN
from landscape.job.job import Job
from landscape.model.packed_file import Archive, names_a_file
from landscape.model.run_files import read_problem
from landscape.surface.record import Record

if TYPE_CHECKING:
    pass


# ----------------------------------------------------------------------------------------------------
# YAML read strictly: one document of plain values, no key twice, bounded size.
#
# An error names the line of anything that YAML reads differently than it looks: a key that silently replaces another, a
# number in base 8 or 60, a tag, an alias that stands for millions of values.

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 20_000  # with each alias written out
TOO_MANY = f"holds more than {MAX_VALUES} values, its aliases written out; keep data in files of their own"

SURPRISING_NUMBER = re.compile(r"[-+]?(0[0-9_]*[0-9]|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
REMEDIES = {
    "found character '\\t' that cannot start any token": "a tab cannot indent; use spaces",
    "but found another document": "a second document begins; keep one",
}


class NotYaml(ValueError):
    """The text breaks YAML's own grammar, not a rule of this project."""


class DocumentError(yaml.MarkedYAMLError):
    """The text breaks a rule of this project, at a place in the document."""

    def __init__(self, problem: str, where: Any) -> None:
        """
        Args:
            problem: the rule, the value and the remedy.
            where: the node or event that breaks the rule.
        """
        super().__init__(problem=problem, problem_mark=where.start_mark)


class _StrictLoader(yaml.SafeLoader):
    """Composes a document with bounded depth, examines it, and only then makes values of it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._composed = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Compose as PyYAML does, to a bounded depth and number of values."""
        self._depth += 1
        self._composed += 1
        if self._depth > MAX_DEPTH:
            raise DocumentError(f"lists and keys are nested more than {MAX_DEPTH} deep", self.next_event())
        if self._composed > MAX_VALUES:
            raise DocumentError(TOO_MANY, self.next_event())
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def next_event(self) -> yaml.Event:
        """The event that the parser reads next, for the line of an error."""
        return self.peek_event()  # type: ignore[no-untyped-call,no-any-return]

    def get_single_data(self) -> Any:
        """The value of the document, which is examined as a whole before any value is made."""
        node = self.get_single_node()
        if node is None:
            return None
        _count_values(node, {})
        return self.construct_document(node)

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """The value of a node; refused where PyYAML's own code fails at it."""
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            kind = node.tag.rpartition(":")[2]
            raise DocumentError(f"{quoted(node.value, 60)} cannot be read as {flat(kind, 60)}", node) from None

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Keys as they are written: `on` and `1` are words here."""
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep) for key, value in node.value}

    def construct_number(self, node: ScalarNode) -> int | float:
        """A number that is written in plain decimal."""
        if SURPRISING_NUMBER.fullmatch(node.value):
            value = quoted(node.value, 60)
            raise DocumentError(
                f"{value} is not plain decimal, and YAML takes it for another number; write it plainly", node
            )
        plain = self.construct_yaml_int if node.tag.endswith(":int") else self.construct_yaml_float
        return plain(node)

    def construct_unknown(self, node: Node) -> Any:
        """Refuse a tag of anything but plain values."""
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise DocumentError(f"the tag {quoted(tag, 60)} is not known; write plain values", node)


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_number)
_StrictLoader.add_constructor("tag:yaml.org,2002:float", _StrictLoader.construct_number)
_StrictLoader.add_constructor(None, _StrictLoader.construct_unknown)
# A run or a landscape may be named after a day.
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _count_values(node: Node, counted: dict[int, int]) -> int:
    """How many values a node stands for, its aliases written out; checks the keys too.

    Args:
        counted: the counts of nodes so far, by the `id` of the node; 0 while a node is being counted.

    Raises:
        DocumentError: there are more than `MAX_VALUES`, or an alias contains itself.
    """
    if counted.get(id(node)) == 0:
        raise DocumentError("an alias stands inside what it stands for; write the value out", node)
    if id(node) not in counted:
        counted[id(node)] = 0
        if isinstance(node, MappingNode):
            _check_keys(node)
        parts = [part for pair in node.value for part in pair] if isinstance(node, MappingNode) else node.value
        inner = sum(_count_values(part, counted) for part in parts) if isinstance(node, CollectionNode) else 0
        counted[id(node)] = 1 + inner
    if counted[id(node)] > MAX_VALUES:
        raise DocumentError(TOO_MANY, node)
    return counted[id(node)]


def _check_keys(node: MappingNode) -> None:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, ScalarNode):
            raise DocumentError("a key must be one word", key)
        if key.value in lines:
            raise DocumentError(
                f"key {quoted(key.value, 60)} stands twice, first in line {lines[key.value]}; keep one", key
            )
        lines[key.value] = key.start_mark.line + 1


def parse_yaml(content: bytes) -> Any:
    """The value of a YAML document.

    Args:
        content: the bytes of the file.

    Raises:
        NotYaml: it is no YAML; one line with the place and the reason.
        ValueError: it holds more than plain values; one line as well.

    >>> parse_yaml(b"size: 41")
    {'size': 41}
    >>> parse_yaml(b"size: 041")
    Traceback (most recent call last):
    ValueError: line 1: '041' is not plain decimal, and YAML takes it for another number; write it plainly
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"has more than {MAX_BYTES} bytes; keep data in files of their own")
    try:
        return _StrictLoader(content.decode("utf-8-sig")).get_single_data()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line}: cannot be read as UTF-8 text") from None
    except yaml.reader.ReaderError as error:
        line = content.decode("utf-8-sig").count("\n", 0, error.position) + 1
        raise ValueError(f"line {line}: holds the control character U+{int(error.character):04X}; delete it") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = str(error.problem or error.context)
        if isinstance(error, DocumentError):
            raise ValueError(f"line {line}: {flat(problem, 170)}") from None
        raise NotYaml(f"line {line}: {flat(f'is not YAML: {REMEDIES.get(problem, problem)}', 170)}") from None


# ----------------------------------------------------------------------------------------------------

YAML_TYPES = {
    type(None): "nothing",
    list: "a list",
    str: "one text",
    int: "a number",
    float: "a number",
    bool: "a bool",
}


def read_job(path: str | Path, **overrides: Any) -> Job:
    """Read a YAML job file, or the job of a portable problem; `overrides` that are not None replace its fields.

    A job that names no problem gets the one that the training of its run recorded.

    Raises:
        NotFoundError: there is no such file.
        JobError: it is not YAML, or not a job.
    """
    if names_a_file(str(path)):
        return _packed_job(Path(path), overrides)
    file, name = Path(path), f"job file {quoted(str(path), 100)}"
    try:
        with open(file, "rb") as opened:
            data = parse_yaml(opened.read(MAX_BYTES + 1))
    except FileNotFoundError:
        raise NotFoundError(f"{name} does not exist; `landscape init` writes one to start from") from None
    except IsADirectoryError:
        raise JobError(f"{name} cannot be read: it is a folder, such as a run's; name the job file") from None
    except OSError as error:
        raise JobError(f"{name} cannot be read: {error.strerror or message_of(error)}") from None
    except ValueError as error:
        raise JobError(f"{name}: {error}") from None
    if not isinstance(data, dict):
        raise JobError(f"{name} must hold 'key: value' lines, not {YAML_TYPES.get(type(data), 'a value')}")
    run = overrides.get("run")
    if isinstance(run, str) and run.strip():
        overrides["run"] = locate(run, Path.cwd())
    data.update({key: value for key, value in overrides.items() if value is not None})
    folder = file.absolute().parent
    if (
        "problem" not in data
        and isinstance(data.get("run"), str)
        and (recorded := read_problem(locate(data["run"], folder)))
    ):
        data["problem"] = recorded
    job = Job(**data)
    job._folder = folder
    return job


def _packed_job(file: Path, overrides: dict[str, Any]) -> Job:
    """The job of a portable problem; its run is named after the file, unless `overrides` name another."""
    from landscape.model.packed_model import PortableFile  # needs torch; other jobs are read without it

    packed = PortableFile(file)
    try:
        data = parse_yaml(packed.job_text())
    except ValueError as error:
        raise packed.archive.damaged(f"its job: {error}") from None
    if not isinstance(data, dict) or {"run", "problem"} & set(data):
        raise packed.archive.damaged("its job is none, or names a run or a problem of its own")
    run = overrides.pop("run", None) or f"runs/{file.stem}"
    data |= {key: value for key, value in overrides.items() if value is not None}
    job = Job(**data, run=locate(run, Path.cwd()), problem=str(file.absolute()))
    job._folder = file.absolute()  # it contains the files and runs that the job names
    refuse_other_places(job, packed.archive)
    return job


def refuse_other_places(job: Job, archive: Archive) -> None:
    """Refuse a job of a packed file that names weights or runs outside it: they would be read from this machine.

    Raises:
        JobError: names the first one.
    """
    for landscape in job.landscapes:
        for name in (*landscape.named_files(), *landscape.named_runs()):
            if not any(member == name or member.startswith(f"{name}/") for member in archive.names):
                raise archive.damaged(f"its job names {quoted(name)}, which it does not hold")


# ----------------------------------------------------------------------------------------------------
# The landscape of a record, with its snapshots named by numbers, since its runs may have trained on.


def spec_as_computed(record: Record) -> dict[str, Any]:
    """The fields of the landscape in its job; `all`, `last` and `first` are replaced by the recorded numbers."""
    assert record.job is not None
    spec, identity = dict(record.job.landscapes[0]), {} if record.identity is None else record.identity.whole
    if isinstance(spec.get("directions"), list):
        spec["directions"] = _directions(spec["directions"], identity.get("directions"))
    if spec.get("trajectory") == "all":
        axes = (axis for axis in spec.get("directions", ()) if isinstance(axis, Mapping))
        spec["trajectory"] = next((axis.get("trajectory") for axis in axes), "all")
    if isinstance(spec.get("paths"), list):
        spec["paths"] = _paths(spec["paths"], identity.get("paths"))
    numbers = {name: _by_number(name, number) for name, number in record.snapshots.items()}
    if record.origin_step is not None:
        numbers |= {name: record.origin_step for name in ("first", "last") if spec.get("origin") == name}
        spec["origin"] = record.origin_step
    return {key: _replaced(key, value, numbers) for key, value in spec.items()}


def _directions(axes: Sequence[Any], recorded: Any) -> list[Any]:
    """The directions; principal components of `all` snapshots list their numbers."""
    return [
        {**axis, "trajectory": _numbers(part.get("snapshots")) or "all"}
        if isinstance(axis, Mapping) and axis.get("trajectory") == "all" and isinstance(part, Mapping)
        else axis
        for axis, part in _beside(axes, recorded)
    ]


def _paths(paths: Sequence[Any], recorded: Any) -> list[Any]:
    """The paths, each with the numbers of its snapshots."""
    return [
        {**path, "snapshots": _numbers(part) or path.get("snapshots", "all")} if isinstance(path, Mapping) else path
        for path, part in _beside(paths, recorded)
    ]


def _beside(listed: Sequence[Any], recorded: Any) -> list[tuple[Any, Any]]:
    """Each element of a list with its part of an identity; with None where the lengths differ."""
    parts = recorded if isinstance(recorded, list) and len(recorded) == len(listed) else [None] * len(listed)
    return list(zip(listed, parts, strict=True))


def _numbers(digests: Any) -> list[int]:
    """The numbers of the snapshots in an identity; none where it is malformed."""
    if not isinstance(digests, Mapping) or not all(isinstance(key, str) and key.isdecimal() for key in digests):
        return []
    return sorted(map(int, digests))


def _by_number(name: str, number: int) -> int | str:
    """The reference by number of what `last` or RUN@last stood for.

    >>> _by_number("last", 12), _by_number("runs/sgd@last", 12)
    (12, 'runs/sgd@12')
    """
    match = OF_RUN.fullmatch(name)
    return number if match is None else f"{match[1]}@{number}"


def _replaced(key: str, value: Any, numbers: Mapping[str, int | str]) -> Any:
    """A field of a landscape or of a direction, with its references replaced by numbers."""
    if key in ("origin", "target"):
        return numbers.get(value, value) if isinstance(value, str) else value
    if key in ("plane", "models") and isinstance(value, (list, tuple)):
        return [numbers.get(model, model) if isinstance(model, str) else model for model in value]
    if key == "directions" and isinstance(value, (list, tuple)):
        return [
            {name: _replaced(name, part, numbers) for name, part in axis.items()} if isinstance(axis, Mapping) else axis
            for axis in value
        ]
    return value
