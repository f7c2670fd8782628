"""The user's callback: imported by its name 'module:function', called under a fixed seed, and its problem checked."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from landscape.core.errors import JobError, nearest, shown
from landscape.core.random_state import fixed_seeds
from landscape.model.packed_file import names_a_file, names_onnx
from landscape.problem.network import knowing
from landscape.problem.onnx_models import onnx_problem
from landscape.problem.portable import portable_problem
from landscape.problem.problem import Problem
from landscape.problem.user_code import calling

# Every process calls the callback under this seed, so that weights it draws without a seed of its own are the same.
CALLBACK_SEED = 0


def load_problem(
    reference: str | Callable[[], Any], folder: Path | None = None, network: Mapping[str, Any] | None = None
) -> Problem:
    """Call the user's callback and check the problem that it returns.

    Args:
        reference: the callback itself, or its name 'module:function', or the file of a portable problem.
        folder: where the module is looked up first, before `sys.path`; a relative file starts there.
        network: what `network_options` tells the callback.

    Raises:
        JobError: the callback cannot be imported, raises, or returns something that is not a usable `Problem`.
    """
    if isinstance(reference, str) and names_a_file(reference):
        return portable_problem(_file_of(reference, folder or Path.cwd()))
    if isinstance(reference, str) and names_onnx(reference):
        return onnx_problem(reference, folder or Path.cwd())
    with fixed_seeds(CALLBACK_SEED):  # also while the module is imported, since it may make its model then
        callback = import_callback(reference, folder) if isinstance(reference, str) else reference
    name = reference if isinstance(reference, str) else getattr(callback, "__qualname__", repr(callback))
    remedy = "it must return a Problem when called alone"
    with calling(f"problem: {name}", remedy), fixed_seeds(CALLBACK_SEED), knowing(network or {}):
        problem = callback()
    if not isinstance(problem, Problem):
        raise JobError(
            f"problem: {name} must return a landscape.Problem, not {type(problem).__name__}; "
            "end it with `return Problem(model, data, observe)`"
        )
    _check_parts(problem, name)
    return problem


def _file_of(reference: str, folder: Path) -> Path:
    """The file of a portable problem; on another machine it lies in the working directory that was shipped."""
    place = folder / reference
    here = Path.cwd() / place.name
    return here if here.is_file() and not place.is_file() else place


def _check_parts(problem: Problem, name: str) -> None:
    """Refuse a problem whose model holds no numbers, or whose `observe` cannot be called."""
    if not isinstance(problem.model, nn.Module):
        raise JobError(f"problem: {name}: model must be a torch.nn.Module, not {type(problem.model).__name__}")
    for tensor_name, tensor in itertools.chain(problem.model.named_parameters(), problem.model.named_buffers()):
        if nn.parameter.is_lazy(tensor) or tensor.is_meta:
            raise JobError(
                f"problem: {name}: model: {shown(tensor_name)} holds no numbers (a lazy layer, or the meta device); "
                "load its weights, and run one batch through lazy layers"
            )
    if not callable(problem.observe):
        raise JobError(f"problem: {name}: observe must be callable, not {type(problem.observe).__name__}")


def import_callback(
    reference: str, folder: Path | None = None, field: str = "problem", where: str = "beside the job file"
) -> Callable[..., Any]:
    """Import 'module:function'; a file beside the job wins over an installed module of the same name.

    Args:
        reference: the callback's name, 'module:function'.
        folder: where the module is looked up first; None looks on `sys.path` alone.
        field: what errors call it.
        where: the folder, for errors.

    Raises:
        JobError: the module cannot be imported, or has no such function.
    """
    module_name, _, function = reference.partition(":")
    if module_name.endswith(".py"):
        meant = f"{module_name.removesuffix('.py').strip('./').replace('/', '.')}:{function}"
        raise JobError(f"{field}: must name a module, not the file {shown(module_name)}; write {meant}")
    if folder is not None:
        _look_first_in(folder, module_name.partition(".")[0])
    first = f" {where} ({folder}) or" if folder else ""
    with calling(f"{field}: module {shown(module_name)} does not import: it", f"it is looked up{first} on sys.path"):
        module = importlib.import_module(module_name)
    callback = getattr(module, function, None)
    if not callable(callback):
        names = [name for name, value in vars(module).items() if _may_be_meant(name, value, module_name)]
        raise JobError(
            f"{field}: module {shown(module_name)} has no function {shown(function)}; {nearest(function, names)}"
        )
    return callback  # type: ignore[no-any-return]


def _may_be_meant(name: str, value: object, module: str) -> bool:
    """Whether a message proposes this name of the module: a class that the module imports, such as Problem, is none."""
    imported = isinstance(value, type) and value.__module__ != module
    return callable(value) and not name.startswith("_") and not imported


def _look_first_in(folder: Path, package: str) -> None:
    """Put `folder` first on `sys.path`, and unload a module or package of that name that came from elsewhere."""
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    files = [folder / f"{package}.py", folder / package / "__init__.py"]
    loaded = getattr(sys.modules.get(package), "__file__", None) or ""
    if any(file.is_file() for file in files) and Path(loaded).resolve() not in {file.resolve() for file in files}:
        for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
            del sys.modules[name]
