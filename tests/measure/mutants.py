"""Whether the tests see small faults: a fixed set of mutants of the product, and which of them are killed.

    python tests/measure/mutants.py choose --before OLD --after NEW     writes mutants.jsonl beside this file
    python tests/measure/mutants.py run --tree TREE --out FILE.jsonl    goes on where FILE ends; --whole for all tests

A mutant is one edit of one line: a comparison, a connective, a constant, an operator or a call. It is identified by the
line alone, which stands once in both trees, so that the same mutants are asked of two arrangements of the same code.
Each is put into a copy of the tree, where the test files that are nearest to its file in the graph of imports are run,
or the whole suite. It is killed where a test fails, or where nothing ends within the limit.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from house import House

LIST = Path(__file__).with_name("mutants.jsonl")
COUNT, SEED = 200, 30
NEAREST = 12  # test files that a mutant is asked of
LIMIT_S = 400.0
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "in": "not in", "is": "is not"}
OPERATORS = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "/", "%": "*"}


@dataclass(frozen=True)
class Mutant:
    """An edit of a line that stands once in the product: `old` at a column becomes `new`."""

    line: str
    column: int
    old: str
    new: str

    def applied(self) -> str:
        end = self.column + len(self.old)
        assert self.line[self.column : end] == self.old
        return self.line[: self.column] + self.new + self.line[end:]


def mutants_of(source: str) -> Iterator[Mutant]:
    """The edits of one file, each on a line of its own."""
    lines = source.split("\n")

    def edit(row: int, start: int, end: int, table: dict[str, str]) -> Iterator[Mutant]:
        """The token of a table between two columns, in bytes, of a line."""
        line = lines[row - 1]
        if not line.isascii():
            return
        for old in sorted(table, key=len, reverse=True):
            spaced = f" {old} "
            if line[start:end].count(spaced) == 1:
                yield Mutant(line, start + line[start:end].index(spaced) + 1, old, table[old])
                return

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and node.lineno == node.end_lineno and len(node.ops) == 1:
            yield from edit(node.lineno, node.left.end_col_offset or 0, node.comparators[0].col_offset, COMPARISONS)
        elif isinstance(node, ast.BoolOp) and node.lineno == node.end_lineno and len(node.values) == 2:
            swap = {"and": "or", "or": "and"}
            yield from edit(node.lineno, node.values[0].end_col_offset or 0, node.values[1].col_offset, swap)
        elif isinstance(node, ast.BinOp) and node.lineno == node.end_lineno:
            yield from edit(node.lineno, node.left.end_col_offset or 0, node.right.col_offset, OPERATORS)
        elif isinstance(node, ast.Constant) and type(node.value) is int and lines[node.lineno - 1].isascii():
            text = lines[node.lineno - 1][node.col_offset : node.end_col_offset]
            if text.isdigit():
                yield Mutant(lines[node.lineno - 1], node.col_offset, text, str(int(text) + 1))
        elif isinstance(node, ast.Constant) and type(node.value) is bool and lines[node.lineno - 1].isascii():
            yield Mutant(lines[node.lineno - 1], node.col_offset, str(node.value), str(not node.value))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.lineno == node.end_lineno:
            line = lines[node.lineno - 1]
            if line.isascii() and line.strip() == line[node.col_offset : node.end_col_offset]:
                yield Mutant(line, node.col_offset, line.strip(), "pass")


def lines_once(house: House) -> dict[str, Path]:
    """The lines that stand once in a product, and their files."""
    files: dict[str, Path] = {}
    counts: Counter[str] = Counter()
    for path in house.files:
        for line in path.read_text().split("\n"):
            counts[line] += 1
            files[line] = path
    return {line: path for line, path in files.items() if counts[line] == 1}


def choose(before: Path, after: Path) -> list[Mutant]:
    """`COUNT` mutants of lines that stand once in both trees, drawn by the seed; at most one of a line."""
    house = House(after)
    once = set(lines_once(House(before))) & set(lines_once(house))
    drawn = random.Random(SEED)
    candidates = [mutant for path in house.files for mutant in mutants_of(path.read_text()) if mutant.line in once]
    drawn.shuffle(candidates)
    chosen = {mutant.line: mutant for mutant in reversed(candidates)}  # the first of each line
    order = [mutant for mutant in candidates if chosen[mutant.line] is mutant]
    return order[:COUNT]


def nearest_tests(house: House, module: Path) -> list[str]:
    """The test files that are nearest to a file in the graph of imports, those in the folder of its name first."""
    importers = defaultdict(set)
    for path, targets in house.imports.items():
        for target in targets:
            importers[target].add(path)
    distance = {module: 0}
    front = [module]
    while front:
        front = [path for one in front for path in importers[one] if path not in distance]
        for path in front:
            distance.setdefault(path, 1 + max(distance.values()))
    names = {path: name for name, path in house.modules.items()}
    by_name = {names[path]: steps for path, steps in distance.items()}
    near = {}
    for test in sorted((house.root / "tests").rglob("test_*.py")):
        found = [by_name[name] for name in _imported(test) if name in by_name]
        if found:
            same_room = set(test.parent.parts[-2:]) & set(module.parent.parts[-2:])
            near[test] = (min(found), not same_room, str(test))
    return [str(test.relative_to(house.root)) for test in sorted(near, key=near.__getitem__)[:NEAREST]]


def _imported(test: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def run(tree: Path, out: Path, whole: bool) -> None:
    """Ask the tests about each mutant in a copy of the tree; a line of `out` each."""
    done = {json.loads(line)["line"] for line in out.read_text().splitlines()} if out.exists() else set()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv*", "build", "runs"))
        house = House(copy)
        homes = lines_once(house)
        for line in LIST.read_text().splitlines():
            mutant = Mutant(**json.loads(line))
            if mutant.line in done or mutant.line not in homes:
                continue
            path = homes[mutant.line]
            tests = ["tests"] if whole else nearest_tests(house, path)
            source = path.read_text()
            path.write_text(source.replace(f"{mutant.line}\n", f"{mutant.applied()}\n", 1))
            killed = bool(tests) and fails(tree, copy, tests)
            path.write_text(source)
            with out.open("a") as results:
                results.write(
                    json.dumps({**asdict(mutant), "file": str(path.relative_to(copy)), "killed": killed}) + "\n"
                )
            print("killed  " if killed else "SURVIVED", path.relative_to(copy), mutant.applied().strip(), flush=True)
    results = [json.loads(line) for line in out.read_text().splitlines()]
    print(f"{sum(result['killed'] for result in results)} of {len(results)} killed")


def fails(tree: Path, copy: Path, tests: list[str]) -> bool:
    """Whether one of the tests fails in the copy, run by the environment of the tree."""
    command = [
        tree / ".venv/bin/python",
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        *tests,
    ]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in (0, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    choosing = commands.add_parser("choose", help="draw the mutants, and list them beside this file")
    choosing.add_argument("--before", type=Path, required=True)
    choosing.add_argument("--after", type=Path, required=True)
    running = commands.add_parser("run", help="ask the tests of a tree, which has an environment in .venv")
    running.add_argument("--tree", type=Path, required=True)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--whole", action="store_true", help="by the whole suite, not the nearest files")
    given = parser.parse_args()
    if given.command == "choose":
        mutants = choose(given.before.resolve(), given.after.resolve())
        LIST.write_text("".join(json.dumps(asdict(mutant)) + "\n" for mutant in mutants))
        print(f"{len(mutants)} mutants in {LIST}")
    else:
        run(given.tree.resolve(), given.out.resolve(), given.whole)


if __name__ == "__main__":
    main()
