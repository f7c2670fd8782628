"""The layers of the design, read off the imports: one direction only, and each outside library in its own place."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from plain_install import in_plain_installation, installed_modules, modules_of_extras, normalised

ROOT = Path(__file__).resolve().parents[1]

# The rooms of both packages, from the ground up: a room is a folder or a file, and uses rooms of lower layers only.
LAYERS = [
    "landscape: core",
    "landscape: model surface",
    "landscape: job problem views",
    "landscape: evaluation store training",
    "landscape: compute optim page recipes; cluster: runtime",
    "landscape: analysis bench curvature; cluster: driver serving submit",
    "landscape: connectivity; cluster: training",
    "cluster: commands",
]
FACES = ("__init__.py", "__main__.py")  # of the packages: they hand names on, and are no rooms
# The only places that import a module by its name: what it gives is asked for by users of the values here, or is a
# table whose names stand in a help text.
BY_NAME = {
    "cluster/commands/output.py",
    "landscape/evaluation/running_model.py",
    "landscape/__init__.py",
    "landscape/core/late_imports.py",
    "landscape/problem/callback.py",
}

LONGEST_FILE = 600  # lines: one idea that a reader wants to see whole, 150 to 600 of them
SERVING = {"starlette", "uvicorn", "sse_starlette"}
HEAVY = {
    "ray",
    "h5py",
    "grpc",
    "onnx2torch",
    "plotly",
    "matplotlib",
    "zarr",
    "obstore",
    "kaleido",
    "meshio",
    "scipy",
    "sklearn",
    "PIL",
    "cyclopts",
    "rich",
    "xarray",
    *SERVING,
}
ALLOWED = {
    "ray": {
        "cluster/driver/pool.py",
        "cluster/driver/rank_group.py",
        "cluster/serving/deployment.py",
        "cluster/runtime/",
        "cluster/commands/",
        "cluster/submit/",
        "cluster/training/trainer.py",
    },
    "grpc": {"cluster/serving/", "cluster/runtime/address.py"},
    "onnx2torch": {"landscape/problem/callback.py"},
    "plotly": {"landscape/views/draw/", "landscape/views/"},
    "kaleido": {"landscape/views/"},
    "zarr": {"landscape/store/"},
    "obstore": {"landscape/core/", "landscape/store/"},
    "sklearn": {"landscape/recipes/"},
    "PIL": {"landscape/recipes/"},
    "h5py": {"landscape/store/"},
    "scipy": {"landscape/analysis/connect/"},
    "xarray": {"landscape/surface/surface.py"},
    "meshio": {"landscape/views/"},
    "matplotlib": {"landscape/views/"},
    "cyclopts": {"cluster/runtime/options.py", "cluster/commands/", "cluster/submit/"},
    "rich": {"landscape/core/progress.py"},
    **{package: {"landscape/core/http.py", "landscape/page/", "cluster/serving/"} for package in SERVING},
}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def both() -> list[Path]:
    return [*sources("landscape"), *sources("cluster")]


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


class Facts(NamedTuple):
    """What the tests ask of a file: it is parsed and walked once."""

    imported: frozenset[str]
    while_running: frozenset[str]
    public_classes: tuple[str, ...]


@cache
def facts(path: Path) -> Facts:
    imported: set[str] = set()
    while_running: set[str] = set()
    classes: list[str] = []

    def walk(node: ast.AST, running: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                walk(ast.Module(child.body), False)
                walk(ast.Module(child.orelse), running)
                continue
            if isinstance(child, ast.Import | ast.ImportFrom):
                modules = modules_of(child, path)
                imported.update(modules)
                while_running.update(modules if running else ())
            elif isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
                classes.append(child.name)
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):  # expressions hold no statements
                walk(child, running)

    walk(ast.parse(path.read_text()), True)
    return Facts(frozenset(imported), frozenset(while_running), tuple(classes))


def modules_of(node: ast.Import | ast.ImportFrom, path: Path) -> set[str]:
    """`from landscape import x` counts as the submodule x where there is one."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    assert node.level == 0, f"{path}: relative import"
    return {
        f"{node.module}.{alias.name}" if is_module(f"{node.module}.{alias.name}") else str(node.module)
        for alias in node.names
    }


@cache
def is_module(name: str) -> bool:
    place = ROOT / name.replace(".", "/")
    return place.is_dir() or place.with_suffix(".py").is_file()


def imports(path: Path) -> frozenset[str]:
    """Every module that a file imports, also inside functions, and what only a type checker sees."""
    return facts(path).imported


@cache
def layers() -> dict[str, int]:
    """The layer of each room, 1 on the ground."""
    numbers: dict[str, int] = {}
    for number, line in enumerate(LAYERS, 1):
        for part in line.split("; "):
            package, _, names = part.partition(": ")
            for name in names.split():
                assert f"{package}/{name}" not in numbers, f"{package}/{name} stands twice in LAYERS"
                numbers[f"{package}/{name}"] = number
    return numbers


def room_of(path: Path) -> str:
    """`landscape/job`, whether that is a folder or a file."""
    return "/".join(shown(path).removesuffix(".py").split("/")[:2])


def room_of_module(module: str) -> str | None:
    """The room that a module of ours lies in; None for outside libraries and for the packages' own faces."""
    parts = module.split(".")
    return "/".join(parts[:2]) if parts[0] in ("landscape", "cluster") and len(parts) > 1 else None


def test_every_room_has_its_layer():
    rooms = {room_of(path) for path in both() if shown(path).split("/")[1] not in FACES}
    assert rooms == set(layers()), "place new rooms in LAYERS"


def test_imports_run_from_upper_layers_to_lower_ones():
    upwards = [
        f"{shown(path)} imports {module}"
        for path in both() if room_of(path) in layers()
        for module in imports(path) if room_of_module(module) not in (None, room_of(path))
        if layers()[room_of_module(module)] >= layers()[room_of(path)]
    ]  # fmt: skip
    assert not upwards


def test_no_file_is_imported_in_a_circle():
    for path in both():
        if shown(path) not in ("landscape/__init__.py", "cluster/__init__.py"):
            assert path not in reached(path), f"{shown(path)} imports itself by way of others"


def reached(start: Path) -> set[Path]:
    """Every file of ours that a file imports, straight or through others, itself included where that is so."""
    waiting, files = [start], set[Path]()
    while waiting:
        found = uses(waiting.pop()) - files
        files |= found
        waiting += found
    return files


@cache
def uses(path: Path) -> set[Path]:
    return {file for module in imports(path) if (file := file_of(module)) is not None}


@cache
def file_of(module: str) -> Path | None:
    if room_of_module(module) is None:
        return None
    place = ROOT / module.replace(".", "/")
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def test_files_stay_short():
    lines = {shown(path): len(path.read_text().splitlines()) for path in both()}
    too_long = {path: count for path, count in lines.items() if count > LONGEST_FILE}
    assert not too_long, "is it one idea? divide it where one ends"


def test_no_two_public_classes_have_one_name():
    homes: dict[str, list[str]] = {}
    for path in both():
        for name in facts(path).public_classes:
            homes.setdefault(name, []).append(shown(path))
    assert not {name: files for name, files in homes.items() if len(files) > 1}, "a name has one meaning"


def test_modules_are_imported_by_their_names_in_few_places():
    naming = {shown(path) for path in both() if re.search(r"import_module\(|__import__\(", path.read_text())}
    assert naming == BY_NAME


def test_landscape_knows_nothing_of_the_cluster():
    packages = {module.split(".")[0] for path in sources("landscape") for module in imports(path)}
    assert not packages & {"cluster", "ray"}


def test_outside_libraries_have_their_places():
    elsewhere = [
        f"{shown(path)} imports {package}"
        for path in both()
        for package in {module.split(".")[0] for module in facts(path).while_running} & set(ALLOWED)
        if not any(lies_in(path, place) for place in ALLOWED[package])
    ]
    assert not elsewhere


def lies_in(path: Path, place: str) -> bool:
    """Whether a file is a place of ALLOWED, or lies in it where that is a folder."""
    return shown(path) == place or (place.endswith("/") and shown(path).startswith(place))


def test_figures_are_drawn_from_prepared_values():
    naming = {path.name for path in sources("landscape/views/draw") if "import Surface" in path.read_text()}
    assert naming == {"figure.py"}, "prepare in views/prepare what a drawing shows"
    used = {module for path in sources("landscape/views/draw") for module in imports(path)}
    rooms = {room_of_module(module) for module in used} - {None}
    assert rooms == {"landscape/views", "landscape/core", "landscape/surface"}


def declared() -> Iterator[str]:
    """The distributions that pyproject.toml names, for users and as extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for line in [*project["dependencies"], *(line for name in extras if name != "dev" for line in extras[name])]:
        yield normalised(re.split(r"[\[<>=!~; ]", line)[0])


def test_what_is_imported_is_declared():
    owners, known = installed_modules(), set(declared())
    outside = {module.split(".")[0] for path in both() for module in imports(path)}
    outside -= {"landscape", "cluster"} | sys.stdlib_module_names
    undeclared = {
        package for package in outside if not known & {normalised(owner) for owner in owners.get(package, [package])}
    }
    assert not undeclared, "name them in pyproject.toml"


def loaded_after(statement: str) -> set[str]:
    code = f"import gc, sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})\ngc.freeze()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_landscape_loads_no_heavy_library():
    assert not loaded_after("import landscape") & (HEAVY | {"torch"})


def test_the_help_of_commands_waits_for_neither_arrays_nor_networks():
    loaded = loaded_after("import cluster.commands.app")
    assert not loaded & {"torch", "ray", "numpy", "plotly", "zarr", "yaml", "asyncio", "pydantic"}


def test_preparing_values_loads_no_plotly():
    modules = [path.stem for path in sources("landscape/views/prepare") if path.name not in FACES]
    names = "prepare_figure, FigureData"
    code = f"from landscape.views import {names}\nfrom landscape.views.prepare import {', '.join(modules)}"
    assert not loaded_after(code) & HEAVY


def test_reading_and_showing_landscapes_loads_no_torch():
    # Torch would take two thirds of the memory of a server that only reads, and a second of its start.
    loaded = loaded_after("import landscape.page.server, cluster.runtime.status, cluster.commands.exporting")
    assert {"zarr", *SERVING} <= loaded
    assert not loaded & {"torch", "ray", "matplotlib"}


# The only places that a plain installation, without extras, may be unable to import.
OF_EXTRAS = (
    "cluster/driver/pool.py", "cluster/driver/rank_group.py", "cluster/serving/", "cluster/training/trainer.py",
    "landscape/core/http.py", "landscape/core/object_store.py", "landscape/page/",
)  # fmt: skip
IMPORT_ALL = """
import importlib

for module in {modules}:
    try:
        importlib.import_module(module)
    except ImportError:
        print(module)
"""


@pytest.mark.long
def test_without_extras_everything_else_can_be_imported():
    assert modules_of_extras() >= {"obstore", "starlette", "uvicorn", "ray", "grpc", "meshio"}
    places = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in both()
        if path.name != "__main__.py"
    }
    done = in_plain_installation(IMPORT_ALL.format(modules=list(places)))
    assert done.returncode == 0, done.stderr
    missing = {shown(places[module]) for module in done.stdout.split()}
    assert {place for place in missing if not place.startswith(OF_EXTRAS)} == set()
    assert all(any(place.startswith(of_extras) for place in missing) for of_extras in OF_EXTRAS), "shorten the list"


EVERY_NAME = "import {0} as package\nfor name in package.__all__: getattr(package, name)"


@pytest.mark.long
def test_all_that_computes_reads_and_measures_can_be_imported_without_ray_and_plotly():
    loaded = loaded_after(f"{EVERY_NAME.format('landscape')}\nimport landscape.bench.__main__")
    assert "torch" in loaded
    assert not loaded & {"ray", "plotly", "cluster", "sklearn", "kaleido", *SERVING}


@pytest.mark.long
def test_all_public_names_of_the_views_can_be_imported():
    assert "plotly" in loaded_after(EVERY_NAME.format("landscape.views"))


@pytest.mark.parametrize("package", ["landscape", "landscape.views"])
def test_a_name_that_is_not_public_is_none_of_the_package(package):
    with pytest.raises(subprocess.CalledProcessError):
        loaded_after(f"import {package} as package; package.absent")
