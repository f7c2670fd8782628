"""Metadata that read well and say something impossible: values of every JSON file of a run replaced, added, taken away."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from cases import Case, Step
from fuzz_damage import AGAIN, READ
from nasty import at, json_value, places
from scene import Scene

# What a person may have changed on purpose and no check can tell: other numbers in place of those that were.
FREE = ("provenance", "host", "created", "updated", "label", "seconds", "rate", "worker", "cause", "traceback")


def attribute(chance: random.Random, scene: Scene) -> Case:
    """One to three values in the metadata of a run."""
    done = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        file = chance.choice(_files(scene))
        if file.suffix == ".jsonl":
            done.append(_line(file, chance))
            continue
        tree = json.loads(file.read_text())
        spots = places(tree)
        if not isinstance(tree, dict) or not spots:
            continue
        # The consolidated copy in the root's metadata is long: what the landscapes themselves say counts.
        spots = [each for each in spots if "consolidated_metadata" not in each] or spots
        place = chance.choice(spots)
        owner, how = at(tree, place[:-1]), chance.random()
        if how < 0.75:
            owner[place[-1]] = json_value(chance)
        elif how < 0.9 or isinstance(owner, list):
            del owner[place[-1]]
        else:
            owner["\x1b[31m" if how > 0.97 else "extra"] = json_value(chance)
        file.write_text(json.dumps(tree))
        done.append(f"{file.relative_to(scene.run)}: {'.'.join(map(str, place))} {_short(owner, place[-1])}")
    steps = chance.sample(READ, 2)
    # Values may be other ones by right where what decides them was changed.
    return Case("; ".join(done), [*steps, Step(AGAIN.words, keeps=False)])


def _files(scene: Scene) -> list[Path]:
    found = [each for each in sorted(scene.run.rglob("*.json")) if each.is_file()]
    groups = [each for each in found if each.parent.parent.name == "landscapes.zarr"]
    return [*found, *groups * 4, *(each for each in [scene.run / "history.jsonl"] if each.is_file())]


def _line(file: Path, chance: random.Random) -> str:
    lines = file.read_text().splitlines() or ["{}"]
    k = chance.randrange(len(lines))
    tree: Any = json.loads(lines[k]) if lines[k].startswith("{") else {}
    tree = tree if isinstance(tree, dict) else {}
    key = chance.choice([*tree, "extra"])
    tree[key] = json_value(chance)
    lines[k] = json.dumps(tree) if chance.random() < 0.7 else json.dumps(json_value(chance))
    file.write_text("\n".join(lines) + "\n")
    return f"history line {k + 1}: {key}"


def _short(owner: Any, key: Any) -> str:
    try:
        return f"= {str(owner[key])[:50]!r}"
    except (KeyError, IndexError):
        return "taken away"


KINDS = {"attribute": (attribute, 1)}
