"""The layers of the design, read off the imports: one direction only, and each outside library in its own place."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Each layer may import those above it, and its own members. `recipes` and `views` are whole folders.
LAYERS = [
    {"errors", "processes", "digests", "draws", "grid", "barrier", "progress"},
    {"devices", "memory", "values", "plan", "parameters", "files", "usercode", "checksum", "strict_yaml"},
    {"folders", "lease", "lock"},
    {"spec"},
    {"kept", "questions", "search", "spill", "samples", "sources", "selection", "randomness", "feed", "problem"},
    {"run_files", "history", "replacement", "snapshots", "weight_files", "numbering", "checkpoints", "trajectory"},
    {"directions", "arithmetic"},
    {"module_state", "moving", "pooling", "folding", "reuse", "fusion", "superposition", "traced", "forward", "loaded"},
    {"surface"},
    {"evaluation", "first_look", "circumstances", "trials", "peers", "tuning"},
    {"weights", "store", "tally", "provenance", "results"},
    {"axes", "identity", "recorded", "reproduction", "preparation"},
    {"tasks"},
    {"pipeline"},
    {"views"},
    {"recipes"},
    {"bench"},
]
# Imports inside functions that let a value answer questions for which a lower layer keeps nothing:
# `surface.figure(...)` draws.
LATE = {("surface", "views")}

HEAVY = {"ray", "grpc", "plotly", "zarr", "obstore", "kaleido", "meshio", "sklearn", "cyclopts", "rich", "xarray"}
ALLOWED = {
    "ray": {
        "cluster/crew.py",
        "cluster/session.py",
        "cluster/metrics.py",
        "cluster/attach.py",
        "cluster/doctor_cluster.py",
        "cluster/submit/",
    },
    "grpc": {"cluster/attach.py"},
    "plotly": {"landscape/views/"},
    "kaleido": {"landscape/views/", "cluster/"},
    "zarr": {"landscape/store/"},
    "obstore": {"landscape/folders/", "landscape/store/"},
    "sklearn": {"landscape/recipes/"},
    "xarray": {"landscape/surface.py"},
    "meshio": {"landscape/views/", "cluster/"},
    "cyclopts": {"cluster/"},
    "rich": {"cluster/"},
}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def imports(path: Path) -> frozenset[tuple[str, bool]]:
    """Every module that a file imports, and whether it does so when it is itself imported.

    What only a type checker sees is left out; `from landscape import x` counts as the submodule x where there is one.
    """
    found: set[tuple[str, bool]] = set()

    def walk(node: ast.AST, at_import: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                walk(child, at_import)
            return
        if isinstance(node, ast.Import):
            found.update((alias.name, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                submodule = ROOT / f"{node.module}.{alias.name}".replace(".", "/")
                there = submodule.is_dir() or submodule.with_suffix(".py").is_file()
                found.add((f"{node.module}.{alias.name}" if there else str(node.module), at_import))
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            walk(child, at_import and not inside)

    walk(ast.parse(path.read_text()), True)
    return frozenset(found)


def layer_of(module: str) -> int:
    found = [k for k, layer in enumerate(LAYERS) if module in layer]
    assert found, f"place {module} in LAYERS"
    return found[0]


def members() -> list[Path]:
    return [path for path in sources("landscape") if path != ROOT / "landscape/__init__.py"]


def name_in_landscape(path: Path) -> str:
    """`spec`, or `views` for any file of that folder."""
    return path.relative_to(ROOT / "landscape").parts[0].removesuffix(".py")


def test_every_module_has_its_layer():
    known = {name for layer in LAYERS for name in layer}
    assert {name_in_landscape(path) for path in members()} == known, "place new modules in LAYERS"
    assert sum(map(len, LAYERS)) == len(known)


@pytest.mark.parametrize("path", members(), ids=lambda path: str(path.relative_to(ROOT)))
def test_landscape_imports_run_one_way(path):
    own = name_in_landscape(path)
    for module, at_import in imports(path):
        package, _, rest = module.partition(".")
        if package != "landscape" or not rest:
            continue
        other = rest.split(".")[0]
        if not at_import and (own, other) in LATE:
            continue
        assert layer_of(other) <= layer_of(own), f"{own} must not import {other}"


@pytest.mark.parametrize("path", sources("landscape"), ids=lambda path: str(path.relative_to(ROOT)))
def test_landscape_knows_nothing_of_the_cluster(path):
    packages = {module.split(".")[0] for module, _ in imports(path)}
    assert not packages & {"cluster", "ray"}


@pytest.mark.parametrize(
    "path", [*sources("landscape"), *sources("cluster")], ids=lambda path: str(path.relative_to(ROOT))
)
def test_outside_libraries_have_their_places(path):
    place = path.relative_to(ROOT).as_posix()
    for package in {module.split(".")[0] for module, _ in imports(path)} & set(ALLOWED):
        allowed = ALLOWED[package]
        assert any(place == each or (each.endswith("/") and place.startswith(each)) for each in allowed), package


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_landscape_loads_no_heavy_library():
    assert not loaded_after("import landscape") & (HEAVY | {"torch"})


def test_computing_and_reading_need_neither_ray_nor_plotly():
    names = "Job, Problem, Surface, TrajectoryCollector, open_run, run, read_job"
    assert not loaded_after(f"from landscape import {names}") & {"ray", "plotly", "cluster", "sklearn", "kaleido"}


def test_all_public_names_can_be_imported():
    code = "import landscape\nfor name in landscape.__all__: getattr(landscape, name)"
    assert "landscape" in loaded_after(code)
    with pytest.raises(subprocess.CalledProcessError):
        loaded_after("import landscape; landscape.absent")


def test_no_module_is_imported_in_a_circle():
    for path in members():
        module = "landscape." + ".".join(path.relative_to(ROOT / "landscape").with_suffix("").parts)
        graph, seen = [module.removesuffix(".__init__")], set()
        while graph:
            for other, at_import in imports(file_of(graph.pop())):
                if other.startswith("landscape.") and at_import and other not in seen:
                    assert other != module, f"{module} imports itself through {seen}"
                    seen.add(other)
                    graph.append(other)


def file_of(module: str) -> Path:
    place = ROOT / module.replace(".", "/")
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
