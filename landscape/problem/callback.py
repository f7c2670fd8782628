"""The problem that a job names: by a callback, an ONNX model with samples, or a packed file.

A callback 'module:function' is imported and called under a fixed seed. A file of ONNX holds operations and numbers but
no code; onnx2torch converts it to modules of torch. The graphs of a packed file replace `observe`.
"""

from __future__ import annotations

import importlib
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, LandscapeError, NotFoundError, nearest, one_line, quoted
from landscape.core.plan import Plan
from landscape.core.random_state import fixed_seeds
from landscape.model.packed_file import REFERENCE, WRITTEN, names_a_file, names_onnx
from landscape.model.packed_model import PortableFile, PortableModel
from landscape.model.parameters import describe_parameters, targets_of
from landscape.problem.language import Padding, Reader
from landscape.problem.mesh import MESH, own_mesh, takes_mesh
from landscape.problem.network import telling_network
from landscape.problem.supervised import Observe, Supervised
from landscape.problem.terms import Problem
from landscape.problem.user_code import calling

# ----------------------------------------------------------------------------------------------------
# Models in ONNX's format.

CRITERIA = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy_with_logits", "binary_cross_entropy", "soft_margin_loss", "kl_div", "poisson_nll_loss",
)  # fmt: skip
UNKNOWN_OPERATION = re.compile(r"operation_type='(\w+)'")


def onnx_problem(reference: str, folder: Path) -> Problem:
    """The problem of a model in ONNX's format.

    Args:
        reference: `MODEL.onnx with SAMPLES.npz and CRITERION`.
        folder: of the two files, if their paths are relative.

    Raises:
        NotFoundError: a file does not exist.
        JobError: the model holds an operation that onnx2torch does not support, or the samples cannot be read.
        LandscapeError: onnx2torch is not installed.
    """
    match = REFERENCE.fullmatch(reference)
    if match is None:
        raise JobError(f"problem: must be written {WRITTEN}, not {quoted(reference)}; a model alone has no loss")
    criterion = match["criterion"]
    if criterion not in CRITERIA:
        raise JobError(f"criterion: unknown criterion {quoted(criterion)}; {nearest(criterion, CRITERIA)}")
    model = _convert(_check_exists(folder / match["onnx"]))
    samples = _samples_of(_check_exists(folder / match["data"]))
    return Problem.supervised(model, samples, getattr(nn.functional, criterion))


def _check_exists(file: Path) -> Path:
    if not file.is_file():
        raise NotFoundError(f"problem: the file {quoted(str(file))} does not exist")
    return file


def _samples_of(file: Path) -> tuple[Tensor, Tensor]:
    """The arrays `inputs` and `targets` of a file of NumPy, which is read without pickles."""
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return torch.from_numpy(arrays["inputs"]), torch.from_numpy(arrays["targets"])
    except Exception as error:  # from zipfile, its decompressor, or NumPy
        raise JobError(
            f"data: {quoted(file.name)} must hold the arrays 'inputs' and 'targets', one row per sample: "
            f"{one_line(error)[:100]}; write it by numpy.savez"
        ) from None


def _convert(file: Path) -> nn.Module:
    with _without_torchvision():
        try:
            import onnx2torch
        except ImportError:
            raise LandscapeError(
                "onnx2torch is not installed, which makes a model of torch of an ONNX file: "
                "pip install 'loss-landscape-cluster[onnx]'"
            ) from None
        try:
            _refuse_newer_operations(file)
            model: nn.Module = onnx2torch.convert(str(file))
        except JobError:
            raise
        except NotImplementedError as error:
            operation = UNKNOWN_OPERATION.search(str(error))
            if operation is None:
                raise JobError(f"problem: {quoted(file.name)} is not carried: {one_line(error)[:160]}") from None
            raise JobError(
                f"problem: {quoted(file.name)} holds the operation {operation[1]}, which onnx2torch does not carry; "
                "export the model without it, or write a callback that builds it in torch"
            ) from None
        except Exception as error:  # from protobuf, the checks of onnx, or a converter
            raise JobError(f"problem: {quoted(file.name)} cannot be read as ONNX: {one_line(error)[:160]}") from None
    return _with_parameters(model).eval()


def _refuse_newer_operations(file: Path) -> None:
    """Refuse operations of a version that the installed onnx does not know: they may mean something else."""
    try:
        import onnx
    except ImportError:  # onnx2torch needs it, and will say so
        return

    newest = onnx.defs.onnx_opset_version()
    for opset in onnx.load(str(file), load_external_data=False).opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            raise JobError(
                f"problem: {quoted(file.name)} has operations of version {opset.version}, and the installed onnx knows "
                f"those up to {newest}; export it with an older opset_version, or install a newer onnx"
            )


def _with_parameters(model: nn.Module) -> nn.Module:
    """Turn the arrays that are operands into parameters, since ONNX does not say which arrays are trained.

    Single numbers, such as an exponent, stay buffers. The right operand of a matrix product has the shape [in, out].
    """
    rights = _right_operands(model)
    for module in list(model.modules()):
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name.startswith("onnx_initializer") and buffer.is_floating_point() and buffer.numel() > 1:
                delattr(module, name)
                module.register_parameter(name, nn.Parameter(buffer))
    infos = describe_parameters(model)
    described = tuple(replace(info, transposed_groups=1) if info.name in rights else info for info in infos)
    model.described = described  # type: ignore[assignment]
    return model


def _right_operands(model: nn.Module) -> set[str]:
    """The paths of the matrices that are the right operands of products."""
    graph = getattr(model, "graph", None)
    paths: set[str] = set()
    for node in graph.nodes if graph is not None else ():
        if node.op == "call_module" and type(model.get_submodule(str(node.target))).__name__ == "OnnxMatMul":
            right: Any = node.args[1] if len(node.args) > 1 else None
            if getattr(right, "op", "") == "get_attr":
                paths.add(str(right.target))
    return paths


@contextmanager
def _without_torchvision() -> Iterator[None]:
    """Let onnx2torch be imported without torchvision, which it needs for regions of interest and boxes alone."""
    names = ("torchvision", "torchvision.ops")
    if "onnx2torch" in sys.modules or find_spec("torchvision") is not None:
        yield
        return
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    sys.modules["torchvision.ops"].roi_align = _no_torchvision  # type: ignore[attr-defined]
    sys.modules["torchvision"].ops = sys.modules["torchvision.ops"]  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)


def _no_torchvision(*_: Any, **__: Any) -> Any:
    raise LandscapeError("problem: the model takes regions of interest, which needs torchvision; install it")


# ----------------------------------------------------------------------------------------------------
# Packed problems.


def portable_problem(path: str | Path) -> Problem:
    """The problem that `landscape pack` has written to a file. No code of its sender is executed.

    Raises:
        NotFoundError, JobError: there is no such file, or this version cannot read it.
    """
    file = PortableFile(path)
    manifest, model, samples = file.problem, file.model(), file.samples()
    try:
        _refuse_without_graphs(file, manifest)
        if samples.sequences is not None:
            sequences = samples.sequences
            vocabulary = None if sequences["vocabulary"] is None else int(sequences["vocabulary"])
            samples.collate_fn = Padding(Reader(vocabulary, sequences["takes_mask"] is True))
        observe = _observe_of(model, manifest)
        weights = manifest["term_weights"]
        names = None if weights is not None else [name for name in manifest["observables"] if name != "weight"]
        return Problem(
            model, samples, observe, names, term_weights=weights, derived=manifest["derived"],
            expected=manifest["expected"],
        )  # fmt: skip
    except JobError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise file.archive.damaged(f"its manifest has no {str(error)[:60]}") from None


def _refuse_without_graphs(file: PortableFile, manifest: Mapping[str, Any]) -> None:
    """Refuse a file that lacks the graph of an observable in its manifest."""
    weights = manifest["term_weights"]
    needed = {"model"} if manifest["kind"] != "terms" else {f"term_{name}" for name in weights}
    if manifest["kind"] == "supervised":
        needed |= {"loss", *(f"metric_{name}" for name in manifest["observables"] if name != "loss")}
    if missing := needed - set(manifest["graphs"]):
        raise file.archive.damaged(f"it has no graph {min(missing)!r}")


def refuse_other_precision(model: nn.Module, precision: str) -> None:
    """Refuse float64 for graphs that name smaller types, and smaller types for graphs that name float64."""
    packed = model.only_in if isinstance(model, PortableModel) else ""
    if packed and (packed == "float64") != (precision == "float64"):
        raise JobError(
            f"precision: must be {packed}, in which the problem was packed and whose types it names, not {precision}; "
            f"pack the job anew by landscape pack JOB --precision {precision}"
        )


def refuse_inlined(model: nn.Module, plan: Plan) -> None:
    """Refuse a plan that changes layers by their type, if the graphs hold such layers as plain operations."""
    inlined: Mapping[str, Sequence[str]] = model.inlined if isinstance(model, PortableModel) else {}
    for kind, concerned, rule in (
        ("norms", not plan.statistics.fixed, f"batch_norm: must be eval, not {plan.batch_norm}"),
        ("rounded", plan.quantise is not None and plan.quantise.activations, "quantise.activations: must be false"),
    ):
        if concerned and inlined.get(kind):
            raise JobError(
                f"{rule}, for a packed problem that holds the layer {quoted(inlined[kind][0])} as plain operations; "
                "make it a layer of torch.nn itself, no class of its own, and pack anew, or run the job from its source"
            )


def _observe_of(model: PortableModel, manifest: Mapping[str, Any]) -> Observe:
    """The `observe` of a packed problem, by the kind that its manifest names."""
    kinds: dict[str, Observe] = {"whole": _observe_all, "terms": _observe_terms}
    if manifest["kind"] != "supervised":
        return kinds[manifest["kind"]]
    names = [name for name in manifest["observables"] if name != "loss"]
    observe = Supervised(_Pairs(model, "loss"), {name: _Pairs(model, f"metric_{name}") for name in names})
    observe.classifies = manifest["classifies"] is True
    return observe


def _observe_all(model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
    """The observables, which the graph of the model returns itself."""
    observed: Mapping[str, Tensor] = model(batch)
    return observed


def _observe_terms(model: nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Tensor]:
    assert isinstance(model, PortableModel)
    return {name: model.run(f"term_{name}", points) for name, points in batch.items()}


class _Pairs:
    """A graph over outputs and targets, such as a criterion, without the weights of the model."""

    def __init__(self, model: PortableModel, name: str) -> None:
        self._run = partial(model.without_weights().run, name)

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        values: Tensor = self._run((outputs, targets))
        return values


# Every process calls the callback under this seed: weights that it draws without a seed of its own are then the same.
CALLBACK_SEED = 0


def load_problem(
    reference: str | Callable[..., Any], folder: Path | None = None, network: Mapping[str, Any] | None = None,
    mesh: Callable[[], Any] | None = None,
) -> Problem:  # fmt: skip
    """Call the user's callback and check the problem that it returns.

    Args:
        reference: the callback itself, its name 'module:function', the file of a portable problem, or an ONNX model.
        folder: where the module is looked up first, before `sys.path`; relative files start there.
        network: the options that the callback reads by `network_options`.
        mesh: returns the device mesh for a callback that takes one; default: of this process alone, on its CPU.

    Raises:
        JobError: the callback cannot be imported, raises, or returns something that is not a usable `Problem`.
    """
    if isinstance(reference, str) and names_a_file(reference):
        return portable_problem(_file_of(reference, folder or Path.cwd()))
    if isinstance(reference, str) and names_onnx(reference):
        return onnx_problem(reference, folder or Path.cwd())
    with fixed_seeds(CALLBACK_SEED):  # also during the import, since a module may make its model then
        callback = import_callback(reference, folder) if isinstance(reference, str) else reference
    name = reference if isinstance(reference, str) else getattr(callback, "__qualname__", repr(callback))
    remedy = "it must return a Problem when called alone"
    with calling(f"problem: {name}", remedy), fixed_seeds(CALLBACK_SEED), telling_network(network or {}):
        problem = callback(**({MESH: (mesh or _mesh_here)()} if takes_mesh(callback) else {}))
    if not isinstance(problem, Problem):
        raise JobError(
            f"problem: {name} must return a landscape.Problem, not {type(problem).__name__}; "
            "end it with `return Problem(model, data, observe)`"
        )
    _check_parts(problem, name)
    return problem


def asks_for_mesh(reference: str | Callable[..., Any], folder: Path | None = None) -> bool:
    """Whether the callback takes a device mesh, and so may be called in a group of processes."""
    if isinstance(reference, str) and (names_a_file(reference) or names_onnx(reference)):
        return False
    return takes_mesh(import_callback(reference, folder) if isinstance(reference, str) else reference)


def _mesh_here() -> Any:
    return own_mesh(torch.device("cpu"))


def _file_of(reference: str, folder: Path) -> Path:
    """The file of a portable problem; on another machine, it was shipped into the working directory."""
    place = folder / reference
    shipped = Path.cwd() / place.name
    return shipped if shipped.is_file() and not place.is_file() else place


def _check_parts(problem: Problem, name: str) -> None:
    """Refuse a problem whose model holds no numbers, or whose `observe` cannot be called."""
    if not isinstance(problem.model, nn.Module):
        raise JobError(f"problem: {name}: model must be a torch.nn.Module, not {type(problem.model).__name__}")
    refuse_without_numbers(problem.model, f"problem: {name}: model", in_file=problem.weights is not None)
    if not callable(problem.observe):
        raise JobError(f"problem: {name}: observe must be callable, not {type(problem.observe).__name__}")


def refuse_without_numbers(model: nn.Module, subject: str, *, in_file: bool = False) -> None:
    """Refuse a model with a lazy layer, or with tensors on the meta device that no file of weights can hold.

    Args:
        subject: the model's name in the error.
        in_file: whether parameters and persistent buffers are read from a file.
    """
    read = targets_of(model) if in_file else {}
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if nn.parameter.is_lazy(tensor) or (tensor.is_meta and name not in read):
            remedy = "load its weights, and run one batch through lazy layers"
            if in_file:
                remedy = (
                    "nor does a file hold it; make it anew on the CPU, or build the model under `without_weights()`"
                )
            raise JobError(f"{subject}: {quoted(name)} holds no numbers (a lazy layer, or the meta device); {remedy}")


def import_callback(
    reference: str, folder: Path | None = None, field: str = "problem", where: str = "beside the job file"
) -> Callable[..., Any]:
    """Import 'module:function'; a file beside the job wins over an installed module of the same name.

    Args:
        folder: where the module is looked up first; None looks on `sys.path` alone.

    Raises:
        JobError: the module cannot be imported, or has no such function.
    """
    module_name, _, function = reference.partition(":")
    if module_name.endswith(".py"):
        correct = f"{module_name.removesuffix('.py').strip('./').replace('/', '.')}:{function}"
        raise JobError(f"{field}: must name a module, not the file {quoted(module_name)}; write {correct}")
    if folder is not None:
        _look_first_in(folder, module_name.partition(".")[0])
    first = f" {where} ({folder}) or" if folder else ""
    with calling(f"{field}: module {quoted(module_name)} does not import: it", f"it is looked up{first} on sys.path"):
        module = importlib.import_module(module_name)
    callback = getattr(module, function, None)
    if not callable(callback):
        names = [name for name, value in vars(module).items() if _may_be_meant(name, value, module_name)]
        raise JobError(
            f"{field}: module {quoted(module_name)} has no function {quoted(function)}; {nearest(function, names)}"
        )
    return callback  # type: ignore[no-any-return]


def _may_be_meant(name: str, value: object, module: str) -> bool:
    """Whether an error may suggest this name: a public function, or a class that the module itself defines."""
    imported = isinstance(value, type) and value.__module__ != module
    return callable(value) and not name.startswith("_") and not imported


def _look_first_in(folder: Path, package: str) -> None:
    """Put `folder` first on `sys.path`, and unload a module or package of that name from another folder."""
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    files = [folder / f"{package}.py", folder / package / "__init__.py"]
    loaded = getattr(sys.modules.get(package), "__file__", None) or ""
    if any(file.is_file() for file in files) and Path(loaded).resolve() not in {file.resolve() for file in files}:
        for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
            del sys.modules[name]
