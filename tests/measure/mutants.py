"""Whether the tests see small faults: a fixed set of mutants of the product, and which of them are killed.

    python tests/measure/mutants.py choose --before OLD --after NEW     writes mutants.jsonl beside this file
    python tests/measure/mutants.py trace --tree TREE --out REACHED.jsonl   which test reaches which line; once
    python tests/measure/mutants.py run --tree TREE --reached REACHED.jsonl --out FILE.jsonl    goes on where FILE ends

A mutant is one edit of one line: a comparison, a connective, a constant, an operator or a call. It is identified by the
line alone, which stands once in both trees, so that the same mutants are asked of two arrangements of the same code.
Each is put into a copy of the tree, where the tests that reach its line are run, the quickest first, until one fails.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from house import House

LIST = Path(__file__).with_name("mutants.jsonl")
COUNT, SEED = 200, 30
MOST = 60  # tests that a mutant is asked of
LIMIT_S = 600.0
IGNORED = "ignore::pytest.PytestAssertRewriteWarning"  # the plugin is there before pytest
MARKS = "not slow and not page and not serve and not frameworks and not gpu"
COMPARISONS = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "in": "not in",
    "not in": "in",
    "is": "is not",
    "is not": "is",
}
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
    written = [path for path in house.files if not path.stem.endswith(("_pb2", "_pb2_grpc"))]  # not the generated ones
    candidates = [mutant for path in written for mutant in mutants_of(path.read_text()) if mutant.line in once]
    drawn.shuffle(candidates)
    chosen = {mutant.line: mutant for mutant in reversed(candidates)}  # the first of each line
    order = [mutant for mutant in candidates if chosen[mutant.line] is mutant]
    return order[:COUNT]


def mutated_lines(tree: Path) -> dict[str, tuple[Path, int]]:
    """Of the listed mutants that a tree has: by their line of text, the file and the number of the line."""
    homes = lines_once(House(tree))
    listed = [json.loads(line)["line"] for line in LIST.read_text().splitlines()]
    return {
        line: (homes[line], homes[line].read_text().split("\n").index(line) + 1) for line in listed if line in homes
    }


def trace(tree: Path, out: Path, marked: Sequence[Sequence[str]]) -> None:
    """Run the suite once per selection of `marked`.

    It writes to `out` which test reached which mutated line, and how long each test took.

    Child processes are traced too: the name of the test is in their environment. A line that only an import carries
    out counts for no test.
    """
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines.json"
        lines.write_text(json.dumps([[str(path), number] for path, number in mutated_lines(tree).values()]))
        (Path(folder) / "sitecustomize.py").write_text("import reached_lines\nreached_lines.install()\n")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([folder, str(Path(__file__).parent), str(tree)]),
            "MUTATED_LINES": str(lines),
            "REACHED_LINES": str(out),
        }
        for marks in marked:
            command = [tree / ".venv/bin/python", "-m", "pytest", "-q", "-n", "3", "--dist", "loadgroup"]
            command += [
                "--no-loadscope-reorder",
                "-p",
                "reached_lines",
                "-p",
                "no:cacheprovider",
                "-W",
                IGNORED,
                *marks,
            ]
            subprocess.run(command, cwd=tree, env=environment, check=False)


def tests_by_line(tree: Path, reached: Path) -> dict[str, list[str]]:
    """By the text of a mutated line, the tests that reached it, the quickest first."""
    seconds: dict[str, float] = {}
    tests: dict[tuple[str, int], set[str]] = defaultdict(set)
    for text in reached.read_text().splitlines():
        entry = json.loads(text)
        if "seconds" in entry:
            seconds[entry["test"]] = entry["seconds"]
        elif entry["test"]:
            tests[entry["file"], entry["line"]].add(entry["test"])
    quickest = {place: sorted(names, key=lambda name: seconds.get(name, 60.0)) for place, names in tests.items()}
    return {line: quickest.get((str(path), number), []) for line, (path, number) in mutated_lines(tree).items()}


def run(tree: Path, reached: Path, out: Path, earlier: Path | None, most: int) -> None:
    """Ask the tests about each mutant in a copy of the tree; a line of `out` each.

    The test that killed a mutant in an earlier run is asked first.
    """
    lines = [] if earlier is None else earlier.read_text().splitlines()
    killers = {entry["line"]: entry["by"] for entry in map(json.loads, lines)}
    done = {json.loads(line)["line"] for line in out.read_text().splitlines()} if out.exists() else set()
    tests, homes = tests_by_line(tree, reached), mutated_lines(tree)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv*", "build", "runs"))
        for text in LIST.read_text().splitlines():
            mutant = Mutant(**json.loads(text))
            if mutant.line in done or mutant.line not in homes:
                continue
            path = copy / homes[mutant.line][0].relative_to(tree)
            source = path.read_text()
            path.write_text(source.replace(f"{mutant.line}\n", f"{mutant.applied()}\n", 1))
            asked = [tests[mutant.line][:most] or tests_of_room(copy, path)]
            if killers.get(mutant.line):
                asked.insert(0, [killers[mutant.line]])
            outcome, killer = "survived", ""
            for chosen in asked:
                if outcome != "killed":
                    outcome, killer = ask(tree, copy, chosen)
            path.write_text(source)
            with out.open("a") as results:
                results.write(
                    json.dumps(
                        {**asdict(mutant), "file": str(path.relative_to(copy)), "outcome": outcome, "by": killer}
                    )
                    + "\n"
                )
            print(f"{outcome:9}", path.relative_to(copy), mutant.applied().strip(), flush=True)
    print(Counter(json.loads(line)["outcome"] for line in out.read_text().splitlines()))


def tests_of_room(copy: Path, path: Path) -> list[str]:
    """The tests of the folder of a file's room, for a line that no test reaches but by importing it."""
    room = copy / "tests" / Path(*path.relative_to(copy).parts[:2])
    return [str(room.relative_to(copy))] if room.is_dir() else []


def ask(tree: Path, copy: Path, tests: list[str]) -> tuple[str, str]:
    """Whether one of the tests fails in the copy, by the environment of the tree, and which: killed, survived, timeout.

    A mutant that keeps pytest from starting is killed.
    """
    files = [test for test in tests if (copy / test.partition("::")[0]).exists()]
    if not files:
        return "survived", ""
    command = [
        tree / ".venv/bin/python",
        "-m",
        "pytest",
        "-x",
        "-q",
        "--tb=no",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "-m",
        MARKS,
    ]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    with subprocess.Popen(
        [*command, *files], cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True, text=True,
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "timeout", ""
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", said, re.MULTILINE)
    if process.returncode == pytest.ExitCode.USAGE_ERROR and any("::" in test for test in files):
        # A test of that name is not there any more: ask its file.
        return ask(tree, copy, sorted({test.partition("::")[0] for test in files}))
    survived = process.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return ("survived", "") if survived else ("killed", failed[0] if failed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    choosing = commands.add_parser("choose", help="draw the mutants, and list them beside this file")
    choosing.add_argument("--before", type=Path, required=True)
    choosing.add_argument("--after", type=Path, required=True)
    tracing = commands.add_parser("trace", help="run the suite of a tree, and note which tests reach the mutated lines")
    running = commands.add_parser("run", help="ask the tests of a tree, which has an environment in .venv")
    for command in (tracing, running):
        command.add_argument("--tree", type=Path, required=True)
        command.add_argument("--out", type=Path, required=True)
    running.add_argument("--reached", type=Path, required=True, help="what `trace` wrote of the tree")
    running.add_argument("--earlier", type=Path, help="what a run wrote before, of this tree or another")
    tracing.add_argument(
        "--marks", action="append", help="a selection of tests; default: those of test, and of test-faults"
    )
    running.add_argument("--most", type=int, default=MOST, help=f"tests per mutant, at most (default {MOST})")
    given = parser.parse_args()
    if given.command == "choose":
        mutants = choose(given.before.resolve(), given.after.resolve())
        LIST.write_text("".join(json.dumps(asdict(mutant)) + "\n" for mutant in mutants))
        print(f"{len(mutants)} mutants in {LIST}")
    elif given.command == "trace":
        marked = [["-m", marks] for marks in given.marks] if given.marks else [[], ["-m", "faults"]]
        trace(given.tree.resolve(), given.out.resolve(), marked)
    else:
        run(given.tree.resolve(), given.reached.resolve(), given.out.resolve(), given.earlier, given.most)


if __name__ == "__main__":
    main()
