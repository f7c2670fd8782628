"""Manifests of Kubernetes as YAML, and the patch that a site merges into them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from landscape.core.errors import JobError, message_of, quoted

# Texts that kubectl takes for numbers or truth values where they stand without quotes, and PyYAML does not.
OTHER_KINDS = re.compile(r"[yYnN]|[-+]?[0-9._]+[eE][-+]?[0-9]+|[-+]?0[oO][0-7_]+")


def yaml_text(documents: Sequence[Any]) -> str:
    """Documents as YAML: texts of several lines as blocks, so that a person can read the files; no anchors."""
    import yaml  # only here: the help of every command would wait for it

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else "'" if OTHER_KINDS.fullmatch(text) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, block)
    return yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=1000)


# What tells the items of a list apart, where a manifest has a list of things with names.
KEYS = ("mountPath", "groupName", "name")  # in this order, as a volume may be mounted several times


def merge(former: Any, patch: Any) -> Any:
    """A part of a manifest with a patch merged into it, as `kubectl patch` merges.

    Maps are merged key by key, and null removes a key. Lists of things that have a mountPath, a groupName or a name are
    merged thing by thing; another list replaces the former one.

    >>> merge({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
    {'b': {'c': 2, 'd': 3}}
    >>> merge([{"name": "A", "value": "1"}], [{"name": "A", "value": "2"}, {"name": "B"}])
    [{'name': 'A', 'value': '2'}, {'name': 'B'}]
    """
    if isinstance(former, dict) and isinstance(patch, dict):
        merged = {name: merge(former.get(name), value) for name, value in patch.items()}
        return {name: value for name, value in (former | merged).items() if patch.get(name, value) is not None}
    if isinstance(former, list) and isinstance(patch, list):
        things = [item if isinstance(item, dict) else {} for item in former + patch]
        key = next((key for key in KEYS if all(isinstance(thing.get(key), str) for thing in things)), None)
        if key is not None:
            items = {item[key]: item for item in former}
            for item in patch:
                items[item[key]] = merge(items.get(item[key]), item)
            return list(items.values())
    return merge({}, patch) if isinstance(patch, dict) else patch


def read_patch(file: Path) -> dict[str, Any]:
    """The patch of a RayJob in a YAML file.

    Raises:
        JobError: the file cannot be read, or holds no part of a RayJob.
    """
    import yaml

    try:
        patch = yaml.safe_load(file.read_text())
        json.dumps(patch, skipkeys=True, default=str)  # a ValueError, where a part holds itself
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise JobError(f"rayjob_patch: {quoted(str(file))} cannot be read: {message_of(error, 150)}") from None
    parts = patch if isinstance(patch, dict) else {}
    if (
        not parts
        or not set(parts) <= {"metadata", "spec"}
        or not all(isinstance(each, dict) for each in parts.values())
    ):
        raise JobError(f"rayjob_patch: must be a file with `metadata:` or `spec:` of a RayJob, not {quoted(str(file))}")
    if {"name", "namespace"} & set(parts.get("metadata", {})):
        raise JobError("rayjob_patch: must leave the names in `metadata:` as they are; --name and --namespace set them")
    return parts
