"""The size and the shape of the house: what a reader has to hold in mind, counted from files, imports and tokens.

    python tests/measure/house.py                  the tree that this file is in
    python tests/measure/house.py --tree FOLDER    another checkout, such as `git worktree add FOLDER COMMIT` makes
    python tests/measure/house.py --walks          also the files and functions that commands pass, by running them

Imports are counted wherever they stand: at the top, within functions, and by `import_module` of a name in the code.
What only a type checker sees is not counted.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

HERE = Path(__file__).resolve()
T = TypeVar("T")
PACKAGES = ("landscape", "cluster")
LONG_FILE, LONG_FUNCTION = 600, 60
MODEL = """
import torch
from landscape import Problem

def problem():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    return Problem.supervised(model, (torch.randn(64, 4), torch.arange(64) % 3))
"""
JOB = "run: run\nproblem: model_of_the_walk:problem\nnum_samples: 64\nlandscapes: [{name: plane, size: 5}]\n"
# Runs what is given in a process, and prints how many files and functions of the tree were entered; what runs while
# a module is imported is not counted.
TRACE = """
import contextlib, io, sys, threading
root, code = sys.argv[1:]
sys.path[:0] = [root, "."]
product = (f"{root}/landscape/", f"{root}/cluster/")
entered, loading = set(), threading.local()

def enter(frame, event, argument):
    code = frame.f_code
    if event in ("call", "return") and code.co_filename.startswith(product):
        if code.co_name == "<module>":
            loading.depth = getattr(loading, "depth", 0) + (1 if event == "call" else -1)
        elif event == "call" and not getattr(loading, "depth", 0):
            entered.add((code.co_filename, code.co_qualname))

threading.setprofile(enter)
sys.setprofile(enter)
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    exec(code)
sys.setprofile(None)
print(len({file for file, _ in entered}), len(entered))
"""
COMMAND = "from cluster.commands.app import app; app({!r})"
WALKS = {
    "a point": "import landscape; landscape.run(landscape.read_job('job.yaml'))",
    "a check": COMMAND.format(["check", "run", "plane", "--serial"]),
    "a PNG": COMMAND.format(["export", "run", "plane", "--to", "png", "--out", "pictures"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=HERE.parents[2], help="a checkout of this project")
    parser.add_argument("--walks", action="store_true", help="run commands, and count the files that they pass")
    parser.add_argument("--list", metavar="WHAT", help="list the entries of one count: a key of --json")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    arguments = parser.parse_args()
    house = House(arguments.tree.resolve())
    if arguments.list:
        print("\n".join(map(str, house.entries(arguments.list))))
        return
    numbers = house.numbers()
    if arguments.walks:
        numbers |= walks(house.root)
    if arguments.json:
        print(json.dumps(numbers, indent=2))
        return
    width = max(map(len, numbers))
    for name, value in numbers.items():
        print(f"{name:{width}}  {value}")


class House:
    """A checkout: its product's files, what they define, and which of them import which."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
        self.trees = {path: ast.parse(path.read_bytes()) for path in self.files}
        self.modules = {self._module(path): path for path in self.files}
        self.imports = {path: self._imported(path) for path in self.files}

    def numbers(self) -> dict[str, int]:
        """Every count by its name."""
        texts = [path.read_text() for path in self.files]
        tests = list((self.root / "tests").rglob("*.py"))
        return {
            "product files": len(self.files),
            "product lines": sum(text.count("\n") for text in texts),
            "product tokens": sum(map(_tokens, self.files)),
            "test lines": sum(path.read_text().count("\n") for path in tests),
            "first-level entries": len(self.entries("first-level entries")),
            "floors": self._floors(),
            "circles": len(self.entries("circles")),
            "files in circles": sum(len(circle.split()) for circle in self.entries("circles")),
            "class names of several meanings": len(self.entries("class names of several meanings")),
            "files of one importer beside them": len(self.entries("files of one importer beside them")),
            f"functions over {LONG_FUNCTION} lines": len(self.entries("long functions")),
            f"files over {LONG_FILE} lines": len(self.entries("long files")),
        }

    def entries(self, what: str) -> list[str]:
        """What is counted under a name."""
        return {
            "first-level entries": self._rooms,
            "circles": self._circles,
            "class names of several meanings": self._repeated_classes,
            "files of one importer beside them": self._single_importers,
            "long functions": self._long_functions,
            "long files": lambda: [
                f"{self._shown(path)} {lines}"
                for path in self.files
                if (lines := path.read_text().count("\n")) > LONG_FILE
            ],
            "floors": self._floor_lines,
        }[what]()

    def _shown(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _module(self, path: Path) -> str:
        name = ".".join(path.relative_to(self.root).with_suffix("").parts)
        return name.removesuffix(".__init__")

    def _imported(self, path: Path) -> set[Path]:
        """The product's files that a file imports, wherever it does; a package's own face hands names on."""
        if path.name == "__init__.py" and path.parent.parent == self.root:
            return set()
        found: set[Path] = set()
        for module, name in _import_statements(self.trees[path]):
            inner = self.modules.get(f"{module}.{name}") if name else None
            target = inner or self.modules.get(module)
            if target is not None:
                found.add(target)
        return found - {path}

    def _room(self, path: Path) -> str:
        """The first-level entry that a file belongs to; '' for the faces of the packages."""
        parts = path.relative_to(self.root).parts
        if len(parts) == 2 and parts[1] in ("__init__.py", "__main__.py"):
            return ""
        return f"{parts[0]}/{parts[1]}"

    def _rooms(self) -> list[str]:
        return sorted({self._room(path) for path in self.files} - {""})

    def _room_graph(self) -> dict[str, set[str]]:
        graph: dict[str, set[str]] = {room: set() for room in self._rooms()}
        for path, targets in self.imports.items():
            for target in targets:
                here, there = self._room(path), self._room(target)
                if here and there and here != there:
                    graph[here].add(there)
        return graph

    def _floor_of(self) -> dict[str, int]:
        """The floor of every room: one above the highest room that it imports; a circle of rooms shares one."""
        graph = self._room_graph()
        circles = _components(graph)
        of_room = {room: number for number, rooms in enumerate(circles) for room in rooms}
        floors: dict[int, int] = {}
        for number, rooms in enumerate(circles):  # what is imported comes first
            below = {of_room[target] for room in rooms for target in graph[room]} - {number}
            floors[number] = 1 + max((floors[each] for each in below), default=0)
        return {room: floors[of_room[room]] for room in graph}

    def _floors(self) -> int:
        return max(self._floor_of().values())

    def _floor_lines(self) -> list[str]:
        floors = defaultdict(list)
        for room, floor in self._floor_of().items():
            floors[floor].append(room)
        return [f"{floor}: {' '.join(sorted(rooms))}" for floor, rooms in sorted(floors.items())]

    def _circles(self) -> list[str]:
        """The circles of files, each on a line."""
        return [" ".join(sorted(map(self._shown, circle))) for circle in _components(self.imports) if len(circle) > 1]

    def _repeated_classes(self) -> list[str]:
        """Public names of classes that several files define."""
        homes = defaultdict(set)
        for path, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].add(self._shown(path))
        return [f"{name}: {' '.join(sorted(files))}" for name, files in sorted(homes.items()) if len(files) > 1]

    def _single_importers(self) -> list[str]:
        """Files that one other file imports, which lies in the same folder."""
        importers = defaultdict(set)
        for path, targets in self.imports.items():
            for target in targets:
                importers[target].add(path)
        return [
            f"{self._shown(path)} <- {self._shown(next(iter(importers[path])))}"
            for path in self.files
            if len(importers[path]) == 1
            and next(iter(importers[path])).parent == path.parent
            and next(iter(importers[path])).name != "__init__.py"
        ]

    def _long_functions(self) -> list[str]:
        return [
            f"{self._shown(path)}:{node.lineno} {node.name} {length}"
            for path, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > LONG_FUNCTION
        ]


def walks(root: Path) -> dict[str, int]:
    """How many files and functions each command enters in a process of its own, the serial run first."""
    counts = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model_of_the_walk.py").write_text(MODEL)
        (Path(folder) / "job.yaml").write_text(JOB)
        for name, code in WALKS.items():
            command = [sys.executable, "-W", "ignore", "-c", TRACE, str(root), code]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
            files, functions = done.stdout.split()[-2:]
            counts |= {f"files passed by {name}": int(files), f"functions entered by {name}": int(functions)}
    return counts


def _import_statements(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of every import that runs; the name is '' where a module is imported as a whole.

    A package that imports its names on use (PEP 562) has them written for the type checker, so there they count.
    """
    lazy = any(isinstance(node, ast.Call) and ast.unparse(node.func) == "import_on_use" for node in ast.walk(tree))
    skipped = {
        inner
        for node in ast.walk(tree)
        if not lazy and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value, ""


def _components(graph: dict[T, set[T]]) -> list[list[T]]:
    """The strongly connected components of a graph, each after those that it leads to (Tarjan 1972)."""
    index: dict[T, int] = {}
    lowest: dict[T, int] = {}
    open_nodes: list[T] = []
    components: list[list[T]] = []

    def visit(node: T) -> None:
        index[node] = lowest[node] = len(index)
        open_nodes.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
            if target in open_nodes:
                lowest[node] = min(lowest[node], lowest[target])
        if lowest[node] == index[node]:
            at = open_nodes.index(node)
            components.append(open_nodes[at:])
            del open_nodes[at:]

    sys.setrecursionlimit(10_000)
    for node in graph:
        if node not in index:
            visit(node)
    return components


def _tokens(path: Path) -> int:
    """The tokens of a file without comments, docstrings and blanks."""
    source = path.read_bytes()
    docstrings = {
        node.body[0].lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
        and isinstance(node.body[0].value.value, str)
    }
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
    return sum(
        token.type not in blank and not (token.type == tokenize.STRING and token.start[0] in docstrings)
        for token in tokenize.tokenize(io.BytesIO(source).readline)
    )


if __name__ == "__main__":
    main()
