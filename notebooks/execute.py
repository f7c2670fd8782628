"""Execute the notebooks of this folder: each percent source is paired with an .ipynb, which keeps what a kernel shows.

python notebooks/execute.py          all of them, from the root of the repository
python notebooks/execute.py 02 05    two of them
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from studies.findings import findings_table, write_into

FOLDER = Path(__file__).resolve().parent
FORMATS = "ipynb,py:percent"
HOMES = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")  # what a kernel writes goes there


def sources() -> list[Path]:
    """The percent sources, in their order."""
    return sorted(FOLDER.glob("[0-9]*.py"))


def executed() -> list[Path]:
    """The notebooks that were executed, in their order."""
    return sorted(FOLDER.glob("[0-9]*.ipynb"))


def read_source(path: Path) -> Any:
    """The notebook that a percent source describes, without outputs; its cells are numbered."""
    notebook = jupytext.read(path, fmt="py:percent")
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number:02}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata = nbformat.from_dict(
        {"jupytext": {"formats": FORMATS}, "kernelspec": kernel, "language_info": {"name": "python"}}
    )
    return notebook


@contextmanager
def kernel(folder: Path) -> Iterator[KernelManager]:
    """A kernel of this Python that works in `folder`; it is not installed, and leaves nothing in the user's home.

    It imports `studies` from here, and so do the drivers and the workers that it starts.
    """
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as own, _environment({**dict.fromkeys(HOMES, own), "PYTHONPATH": path}):
        # Without folders to look in, the specification is that of this Python's own kernel.
        # Its sockets are files in a folder of this user's, which nobody else on the machine reaches.
        manager = KernelManager(
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]), transport="ipc", ip=f"{own}/kernel",
            connection_file=f"{own}/kernel.json",
        )  # fmt: skip
        manager.start_kernel(cwd=str(folder), extra_arguments=["--HistoryManager.enabled=False"])
        try:
            yield manager
        finally:
            manager.shutdown_kernel(now=True)
            manager.cleanup_resources()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def execute(notebook: Any, manager: KernelManager) -> None:
    """Execute a notebook in a kernel, and keep its outputs in it.

    Raises:
        CellExecutionError: a cell failed.
    """
    metadata = deepcopy(notebook.metadata)
    client = NotebookClient(notebook, km=manager, timeout=None, record_timing=False)
    try:
        client.execute(cleanup_kc=False)
    finally:
        if client.kc is not None:
            client.kc.stop_channels()
    notebook.metadata = metadata  # the version of the Python that executed it is not kept


def write_executed(source: Path, folder: Path) -> None:
    """Execute a source in full and write the notebook beside it; a failed one is not written."""
    notebook = read_source(source)
    with kernel(folder) as manager:
        execute(notebook, manager)
    nbformat.write(notebook, source.with_suffix(".ipynb"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Execute all notebooks or some, and write the findings of all into docs/studies.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="the numbers of notebooks, such as 02; default: all")
    options = parser.parse_args(arguments)
    chosen = [path for path in sources() if not options.names or path.name[:2] in options.names]
    for source in chosen:
        print(f"executing {source.name}", file=sys.stderr)
        try:
            write_executed(source, Path.cwd())
        except CellExecutionError as error:
            print(f"error: {source.name} failed:\n{error}", file=sys.stderr)
            raise SystemExit(1) from None
    write_into(FOLDER.parent / "docs/studies.md", findings_table(executed()))


if __name__ == "__main__":
    main()
