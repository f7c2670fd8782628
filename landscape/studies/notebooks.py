"""Executes notebooks: percent sources are paired with .ipynb files, which keep what a kernel of this Python shows.

python -m landscape.studies.notebooks notebooks/
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

from landscape.studies.findings import findings_table, write_into

FORMATS = "ipynb,py:percent"
PATTERN = "[0-9]*.py"
HOMES = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")  # what a kernel writes goes there


def sources(folder: Path) -> list[Path]:
    """The percent sources of a folder, in their order."""
    return sorted(folder.glob(PATTERN))


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
    """A kernel of this Python that works in `folder`; it is not installed, and leaves nothing in the user's home."""
    with tempfile.TemporaryDirectory() as own, _environment(dict.fromkeys(HOMES, own)):
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
    """Execute the notebooks of a folder, or some of them, and write their findings into docs/studies.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="the numbers of notebooks, such as 02; default: all")
    options = parser.parse_args(arguments)
    chosen = [path for path in sources(options.folder) if not options.names or path.name[:2] in options.names]
    for source in chosen:
        print(f"executing {source.name}", file=sys.stderr)
        try:
            write_executed(source, Path.cwd())
        except CellExecutionError as error:
            print(f"error: {source.name} failed:\n{error}", file=sys.stderr)
            raise SystemExit(1) from None
    executed = sorted(options.folder.glob("[0-9]*.ipynb"))
    write_into(options.folder.parent / "docs/studies.md", findings_table(executed))


if __name__ == "__main__":
    main()
