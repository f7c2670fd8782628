"""A run whose files are damaged: every command says so, nothing is lost, and running the job again mends what can be."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from cases import Case, Step
from scene import USERS, Scene

READ = (
    Step(("status", "run")),
    Step(("status", "run", "--json")),
    Step(("validate", "run")),
    Step(("export", "run", "--to", "csv", "--out", "tables")),
    Step(("plan", "job.yaml")),
)
AGAIN = Step(("run", "job.yaml", "--serial"), same=True, keeps=False)


def damage(chance: random.Random, scene: Scene) -> Case:
    """One to three files or folders of the run, each damaged in one way."""
    done = []
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        files = [each for each in sorted(scene.run.rglob("*")) if _is_ours(each, scene)]
        if not files:
            break
        # Metadata are few among chunks, and most is decided there.
        named = [each for each in files if each.suffix in (".json", ".jsonl", ".safetensors")]
        target = chance.choice(named if named and chance.random() < 0.6 else files)
        how = chance.choice(sorted(WAYS))
        done.append(f"{how} {target.relative_to(scene.run)}")
        WAYS[how](target, chance)
    read = chance.sample(READ, 2)
    return Case("; ".join(done), [*read, AGAIN])


def _is_ours(path: Path, scene: Scene) -> bool:
    return str(path.relative_to(scene.folder)) not in USERS and (path.is_file() or chance_folder(path))


def chance_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and path.name not in ("run", "export")


def _data(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _rewrite(change: Callable[[bytes, random.Random], bytes]) -> Callable[[Path, random.Random], None]:
    def apply(path: Path, chance: random.Random) -> None:
        if path.is_dir():
            path = next((each for each in sorted(path.rglob("*")) if each.is_file()), path)
        if path.is_file():
            path.write_bytes(change(path.read_bytes(), chance))

    return apply


def _flip(data: bytes, chance: random.Random) -> bytes:
    if not data:
        return b"\x01"
    found = bytearray(data)
    for _ in range(chance.choice([1, 1, 3, 20])):
        found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    return bytes(found)


def _delete(path: Path, chance: random.Random) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _as_folder(path: Path, chance: random.Random) -> None:
    _delete(path, chance)
    path.mkdir()


def _as_link(path: Path, chance: random.Random) -> None:
    _delete(path, chance)
    path.symlink_to(chance.choice(["/etc/hostname", "nowhere", path.name, "..", "/dev/zero", "/proc/self/environ"]))


def _as_pipe(path: Path, chance: random.Random) -> None:
    _delete(path, chance)
    os.mkfifo(path)


def _swap(path: Path, chance: random.Random) -> None:
    """By another file; chunks are left alone, since one sound chunk in the place of another has its checksum."""
    if "c" in path.parts[-4:-1]:
        return
    others = [each for each in sorted(path.parent.rglob("*")) if each.is_file() and each != path]
    if others and path.is_file():
        path.write_bytes(chance.choice(others).read_bytes())


WAYS: dict[str, Callable[[Path, random.Random], None]] = {
    "empty": _rewrite(lambda data, chance: b""),
    "cut": _rewrite(lambda data, chance: data[: chance.randrange(len(data) + 1)]),
    "flip": _rewrite(_flip),
    "zero": _rewrite(lambda data, chance: bytes(len(data))),
    "garbage": _rewrite(lambda data, chance: chance.randbytes(chance.choice([1, 50, 5000]))),
    "append": _rewrite(lambda data, chance: data + chance.choice([b"\n", b"{}", b"\x00", data, b"x" * 100_000])),
    "deep": _rewrite(lambda data, chance: b'{"a":' * 100_000),
    "null": _rewrite(lambda data, chance: chance.choice([b"null", b"[]", b"{}", b"7", b'""', b"NaN"])),
    "delete": _delete,
    "folder": _as_folder,
    "link": _as_link,
    "pipe": _as_pipe,
    "swap": _swap,
}
KINDS = {"damage": (damage, 1)}
