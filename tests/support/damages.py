"""Damages of a run's files, each a small function that is named: what disks, people and interrupted copies do to them.

`kinds_of(run)` finds one file of every kind that a run has; `DAMAGES` are what may happen to it.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Change = Callable[[Path, random.Random], object]


@dataclass(frozen=True)
class Damage:
    """Something that happens to one file."""

    name: str
    apply: Change


def _truncate(file: Path, chance: random.Random) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: chance.randrange(len(data)) if data else 0])


def _garbage(file: Path, chance: random.Random) -> None:
    file.write_bytes(chance.randbytes(max(1, file.stat().st_size)))


def _flip(file: Path, chance: random.Random) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


def _folder(file: Path, chance: random.Random) -> None:
    file.unlink()
    file.mkdir()
    (file / "mine.txt").write_text("mine")


def _dangling(file: Path, chance: random.Random) -> None:
    file.unlink()
    file.symlink_to("/nonexistent/elsewhere")


def _device(file: Path, chance: random.Random) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def _pipe(file: Path, chance: random.Random) -> None:
    file.unlink()
    os.mkfifo(file)


def _circle(file: Path, chance: random.Random) -> None:
    file.unlink()
    file.symlink_to(file.name)


def _deep(file: Path, chance: random.Random) -> None:
    file.write_bytes(b'{"a":' * 50_000 + b"1" + b"}" * 50_000)


def _renamed_key(file: Path, chance: random.Random) -> None:
    data = file.read_text()
    keys = re.findall(r'"(\w+)":', data)
    file.write_text(data.replace(f'"{chance.choice(keys)}":', '"another":', 1) if keys else data)


def _other_type(file: Path, chance: random.Random) -> None:
    """One value of the document becomes another one, of whatever type."""
    document = json.loads(file.read_text())
    place, key = chance.choice(list(_places(document)))
    place[key] = chance.choice([None, True, -1, 1e308, 10**400, float("nan"), "\x1b[31mtext", [], {}, [[]], "0", 0])
    file.write_text(json.dumps(document))


def _places(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, (dict, list)):
        for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from _places(each)


ANY = (
    Damage("deleted", lambda file, chance: file.unlink()),
    Damage("empty", lambda file, chance: file.write_bytes(b"")),
    Damage("truncated", _truncate),
    Damage("zeros", lambda file, chance: file.write_bytes(bytes(file.stat().st_size))),
    Damage("garbage", _garbage),
    Damage("a bit flipped", _flip),
    Damage("longer", lambda file, chance: file.write_bytes(file.read_bytes() + b"\x00garbage")),
    Damage("a folder", _folder),
    Damage("a dangling link", _dangling),
    Damage("a link to a device", _device),
    Damage("a link to itself", _circle),
    Damage("a pipe", _pipe),
)
JSON = (
    Damage("another list", lambda file, chance: file.write_text("[1, 2]")),
    Damage("null", lambda file, chance: file.write_text("null")),
    Damage("an empty object", lambda file, chance: file.write_text("{}")),
    Damage("deep", _deep),
    Damage("not text", lambda file, chance: file.write_bytes(b"\xff\xfe\x00{")),
    Damage("a key renamed", _renamed_key),
    Damage("another value", _other_type),
)


def damages_of(path: str) -> tuple[Damage, ...]:
    """Those that make sense for a file of a run."""
    name = path.rpartition("/")[2]
    return (*ANY, *(JSON if name in ("zarr.json", "run.json") else ()))


def kinds_of(run: Path) -> dict[str, str]:
    """One file of every kind in a run: its path, by what it is."""
    found: dict[str, str] = {}
    for file in sorted(each for each in run.rglob("*") if each.is_file()):
        path = file.relative_to(run).as_posix()
        kind = re.sub(r"/c/[0-9/]+$", " chunk", path)
        kind = re.sub(r"(epoch|step)-\d+\.", "snapshot.", kind)
        found.setdefault(kind, path)
    return found


def damaged_copy(run: Path, target: Path, path: str, damage: Damage, seed: int = 0) -> Path:
    """The run copied and one of its files damaged."""
    copied = Path(shutil.copytree(run, target))
    damage.apply(copied / path, random.Random(seed))
    return copied
