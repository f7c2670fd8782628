"""The operations that a graph of a packed file may hold: a list of groups, each with the reason why it is allowed.

No operation outside of `GROUPS` is loaded. The arguments of an operation are checked before its call: sizes, types and
the bounds of memory and work once for every shape of a batch (`landscape.model.packed_bounds`), the values of indices
at every call (below).

Not in the list, and refused by name: operations on files, storages or strides (`from_file`, `set_`, `as_strided`);
those whose number of results no shape bounds (`bincount`), and those that no model needed (`unique`); kernels that
trust indices or sizes, which a file could give wrong (`put_`, `ctc_loss`, `fractional_max_pool2d`,
`max_pool2d_with_indices_backward`, `embedding_dense_backward`); polynomials and other functions whose time is a number
in the file (`special_laguerre_polynomial_l`); sparse and quantised tensors.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

from landscape.core.errors import JobError

# ----------------------------------------------------------------------------------------------------
# Indices that a packed graph computes or holds, compared with their dimension before an operation uses them.
#
# Some kernels of torch trust their arguments: on a CPU, `nll_loss_backward` writes wherever its target points; on a
# GPU, an index outside of a dimension makes the device unusable for the process. If the values can be read, one that
# lies outside is refused. If reading them would stop a GPU, or is impossible, as under `vmap`, they are moved to the
# nearest end of the dimension, which changes no index that lies inside.

Given = Mapping[str, Any]
# The arguments of an operation that are indices, or whole numbers that its kernel trusts, and the bounds of each: from
# … to before …, and one more allowed value.
REFUSED = "model: a packed graph is refused:"
Bounds = Callable[[Given], dict[str, tuple[int, int, int | None]]]


def check_inside(index: Tensor, low: int, high: int, also: int | None, operation: str) -> Tensor:
    """The indices, all of them from `low` to before `high`, or equal to `also`.

    Raises:
        JobError: some are not, if they can be read.
    """
    if index.dtype == torch.bool or not index.numel() or not _has_values(index):
        return index
    if index.dtype.is_floating_point or index.dtype.is_complex:
        raise JobError(f"{REFUSED} {operation}: indices must be whole numbers, not {index.dtype}")
    if high <= low:
        raise JobError(f"{REFUSED} {operation}: an index into a dimension of size 0")
    if not _can_be_read(index):
        moved = index.clamp(low, high - 1)
        return moved if also is None else torch.where(index == also, index, moved)
    least, most = (int(bound) for bound in torch.aminmax(index))
    if least < low or most >= high:
        outside = (index < low) | (index >= high)
        if also is not None:
            outside &= index != also
        if outside.any():
            kind = "number" if operation == "div" else "index"
            wrong = int(index[outside][0])
            raise JobError(f"{REFUSED} {operation}: the {kind} {wrong} is not from {low} to {high - 1}")
    return index


def guard_indices(operation: Any) -> Callable[..., Any]:
    """Wrap an operation so that its indices are checked first; under tracing, it stays one call."""
    arguments = operation._schema.arguments
    names = [argument.name for argument in arguments]
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    packet = operation._schema.name.removeprefix("aten::")
    bounds = INDICES[packet]

    def computed(*args: Any, **kwargs: Any) -> Any:
        proxy = proxy_in((args, *kwargs.values()))
        if proxy is not None:
            return proxy.tracer.create_proxy("call_function", computed, args, kwargs)
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        changed = _check_arguments(packet, given, bounds)
        args = tuple(changed.get(name, value) for name, value in zip(names, args, strict=False))
        return operation(*args, **{name: changed.get(name, value) for name, value in kwargs.items()})

    computed.__name__ = f"{packet}_{operation._overloadname}"
    computed._schema = operation._schema  # type: ignore[attr-defined]  # where graphs look up names of arguments
    computed._checked = operation  # type: ignore[attr-defined]  # the operation itself, for bounds of memory and work
    return computed


def _check_arguments(packet: str, given: Given, bounds: Bounds) -> dict[str, Any]:
    """The arguments that hold indices, checked to be within their bounds, or moved into them."""
    changed: dict[str, Any] = {}
    if packet in BY_DIMENSION:
        indices = given["indices"]
        place, checked = 0, list[Any]()
        for index in indices:
            if index is None or not isinstance(index, Tensor):
                checked.append(index)
                place += 1
                continue
            if index.dtype in (torch.bool, torch.uint8):
                checked.append(index)
                place += index.dim()
                continue
            size = given["self"].shape[place] if place < given["self"].dim() else 0
            checked.append(check_inside(index, -size, size, None, packet))
            place += 1
        return {"indices": checked}
    for name, (low, high, also) in bounds(given).items():
        if isinstance(given.get(name), Tensor):
            changed[name] = check_inside(given[name], low, high, also, packet)
    if packet == "embedding_bag" and changed.get("offsets") is not None:
        changed["offsets"] = _ascending(changed["offsets"])
    return changed


def _ascending(offsets: Tensor) -> Tensor:
    """The beginnings of bags, which must not descend."""
    if not _has_values(offsets) or offsets.numel() < 2:
        return offsets
    if not _can_be_read(offsets):
        return offsets.cummax(0).values
    if (offsets.diff() < 0).any():
        raise JobError(f"{REFUSED} embedding_bag: the offsets of its bags descend")
    return offsets


def _has_values(tensor: Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"


def _can_be_read(tensor: Tensor) -> bool:
    """Whether its values are plain memory of the host."""
    if tensor.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def proxy_in(values: Any) -> Any:
    """A placeholder of tracing among the values; None if there is none."""
    for value in values:
        if isinstance(value, fx.Proxy):
            return value
        if isinstance(value, (list, tuple)) and (inner := proxy_in(value)) is not None:
            return inner
    return None


def _size(tensor: Tensor, dim: int) -> int:
    """The size of a dimension; 1 for a tensor without dimensions."""
    if not tensor.dim():
        return 1
    if not -tensor.dim() <= dim < tensor.dim():
        raise ValueError(f"a dimension {dim} of a tensor of {tensor.dim()} dimensions")
    return tensor.shape[dim]


def _along(low_too: bool = False) -> Bounds:
    """Indices along the dimension `dim`; if `low_too`, negative ones count from its end."""

    def bounds(given: Given) -> dict[str, tuple[int, int, int | None]]:
        size = _size(given["self"], given["dim"])
        return {"index": (-size if low_too else 0, size, None)}

    return bounds


def _taken(given: Given) -> dict[str, tuple[int, int, int | None]]:
    own, dim = given["self"], given.get("dim")
    return {"indices": (0, own.numel() if dim is None else _size(own, dim), None)}


def _rows(given: Given) -> dict[str, tuple[int, int, int | None]]:
    bounds: dict[str, tuple[int, int, int | None]] = {"indices": (0, _size(given["weight"], 0), None)}
    if isinstance(given.get("offsets"), Tensor):
        bounds["offsets"] = (0, given["indices"].numel() + 1, None)
    return bounds


def _classes(given: Given) -> dict[str, tuple[int, int, int | None]]:
    own, target = given["self"], given["target"]
    if target.dtype.is_floating_point:
        return {}  # probabilities
    classes = 0 if not own.dim() else own.shape[0 if own.dim() == 1 else 1]
    return {"target": (0, classes, given["ignore_index"])}


def _of_margins(given: Given) -> dict[str, tuple[int, int, int | None]]:
    own = given["self"]
    return {"target": (0, own.shape[-1] if own.dim() else 1, None)}


def _of_several_margins(given: Given) -> dict[str, tuple[int, int, int | None]]:
    own = given["self"]
    return {"target": (-1, own.shape[-1] if own.dim() else 1, None)}


def _of_one_hot(given: Given) -> dict[str, tuple[int, int, int | None]]:
    return {"self": (0, given["num_classes"], None)}


def _of_pooled(given: Given) -> dict[str, tuple[int, int, int | None]]:
    return {"indices": (0, math.prod(given["output_size"]), None)}


def _dividend(given: Given) -> dict[str, tuple[int, int, int | None]]:
    """The smallest whole number of a type cannot be divided by -1 in that type: this ends the process."""
    own, whole = given["self"], (torch.int8, torch.int16, torch.int32, torch.int64)
    if given.get("rounding_mode") is None or own.dtype not in whole:
        return {}
    least = torch.iinfo(own.dtype).min
    return {"self": (least + 1, -least, None)}


BY_DIMENSION = ("index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put")  # one index per dimension
INDICES: dict[str, Bounds] = {
    **dict.fromkeys(BY_DIMENSION, lambda given: {}),
    **dict.fromkeys(
        ("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_",
         "index_select",
         "index_add", "index_add_", "index_copy", "index_copy_"),
        _along(),
    ),
    **dict.fromkeys(("index_fill", "index_fill_"), _along(low_too=True)),
    "take_along_dim": _taken, "embedding": _rows, "embedding_bag": _rows, "one_hot": _of_one_hot,
    **dict.fromkeys(
        ("cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd", "nll_loss_forward", "nll_loss2d_forward",
         "nll_loss_backward", "nll_loss2d_backward"),
        _classes,
    ),
    "multi_margin_loss": _of_margins, "multilabel_margin_loss": _of_several_margins,
    "div": _dividend, "max_unpool2d": _of_pooled, "max_unpool3d": _of_pooled,
}  # fmt: skip


# For each group, the reason why it is allowed, and its operations: `name.overload`, or `name` for `name.default`.
GROUPS: tuple[tuple[str, str], ...] = (
    (
        "arithmetic and comparisons of every model; element by element, in shapes that torch checks",
        "abs abs_ add.Scalar add.Tensor add_.Scalar add_.Tensor addcdiv addcdiv_ addcmul addcmul_ angle "
        "bitwise_and.Scalar bitwise_and.Tensor bitwise_not bitwise_or.Scalar bitwise_or.Tensor bitwise_xor.Scalar "
        "bitwise_xor.Tensor __and__.Scalar __and__.Tensor __or__.Scalar __or__.Tensor __xor__.Scalar __xor__.Tensor "
        "ceil ceil_ clamp clamp.Tensor clamp_ clamp_.Tensor clamp_max clamp_max.Tensor clamp_max_ clamp_max_.Tensor "
        "clamp_min clamp_min.Tensor clamp_min_ clamp_min_.Tensor clip clip_ complex conj_physical copysign.Scalar "
        "copysign.Tensor div.Scalar div.Scalar_mode div.Tensor div.Tensor_mode div_.Scalar div_.Tensor eq.Scalar "
        "eq.Tensor floor floor_ floor_divide floor_divide.Scalar fmax fmin fmod.Scalar fmod.Tensor frac ge.Scalar "
        "ge.Tensor gt.Scalar gt.Tensor heaviside imag isclose isfinite isinf isnan le.Scalar le.Tensor lerp.Scalar "
        "lerp.Tensor logical_and logical_and_ logical_not logical_not_ logical_or logical_or_ logical_xor lt.Scalar "
        "lt.Tensor masked_fill.Scalar masked_fill.Tensor masked_fill_.Scalar masked_fill_.Tensor max.other maximum "
        "min.other minimum mul.Scalar mul.Tensor mul_.Scalar mul_.Tensor nan_to_num nan_to_num_ ne.Scalar ne.Tensor "
        "neg neg_ polar positive pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor pow_.Scalar pow_.Tensor real "
        "reciprocal reciprocal_ remainder.Scalar remainder.Scalar_Tensor remainder.Tensor round round.decimals "
        "round_ rsub.Scalar rsub.Tensor sgn sign signbit sub.Scalar sub.Tensor sub_.Scalar sub_.Tensor trunc trunc_ "
        "where.Scalar where.ScalarOther where.ScalarSelf where.self zero_ fill_.Scalar fill_.Tensor fill.Scalar "
        "fill.Tensor float_power.Scalar float_power.Tensor_Scalar float_power.Tensor_Tensor",
    ),
    (
        "functions of one or two numbers, of activations, likelihoods and physics; a fixed time per element",
        "acos acosh asin asinh atan atan2 atanh arctan2 cos cos_ cosh digamma erf erf_ erfc erfinv exp exp2 exp_ "
        "expm1 expm1_ hypot i0 ldexp.Tensor lgamma log log10 log1p log1p_ log2 log_ logaddexp logaddexp2 logit "
        "polygamma rsqrt rsqrt_ sin sin_ sinc sinh special_entr special_erfcx special_expit special_expm1 "
        "special_gammaln special_i0 special_i0e special_i1 special_i1e special_log1p special_log_ndtr "
        "special_log_softmax special_logit special_logsumexp special_ndtr special_ndtri special_softmax "
        "special_xlog1py special_xlogy sqrt sqrt_ square square_ tan tanh tanh_ xlogy.Scalar_Other xlogy.Scalar_Self "
        "xlogy.Tensor",
    ),
    (
        "activations, and their derivatives in losses that take derivatives themselves",
        "celu elu elu_ elu_backward gelu gelu_backward glu glu_backward hardshrink hardshrink_backward hardsigmoid "
        "hardsigmoid_ hardsigmoid_backward hardswish hardswish_ hardswish_backward hardtanh hardtanh_ "
        "hardtanh_backward leaky_relu leaky_relu_ leaky_relu_backward log_sigmoid log_sigmoid_backward "
        "log_sigmoid_forward log_softmax.int _log_softmax _log_softmax_backward_data logit_backward mish mish_ "
        "mish_backward prelu relu relu6 relu_ rrelu selu sigmoid sigmoid_ sigmoid_backward silu silu_ silu_backward "
        "softmax.int _softmax _softmax_backward_data softplus softplus_backward softshrink softshrink_backward "
        "tanh_backward threshold threshold_ threshold_backward",
    ),
    (
        "sums, extremes and orders along dimensions; as many values as the shape says",
        "all all.dim all.dims amax amin aminmax any any.dim any.dims argmax argmin argsort argsort.stable "
        "count_nonzero count_nonzero.dim_IntList cummax cummin cumprod cumsum diff kthvalue logcumsumexp logsumexp "
        "max max.dim mean mean.dim median median.dim min min.dim nanmean nansum nanmedian norm.Scalar "
        "norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype prod prod.dim_int sort sort.stable std std.correction std.dim "
        "std_mean std_mean.correction sum sum.dim_IntList sum_to_size topk trapezoid.dx trapezoid.x trapz.dx trapz.x "
        "var var.correction var.dim var_mean var_mean.correction var_mean.dim linalg_vector_norm linalg_norm "
        "linalg_matrix_norm frobenius_norm.dim",
    ),
    (
        "views and copies in another shape; torch checks dimensions and sizes against the shape",
        "adjoint alias atleast_1d atleast_2d atleast_3d cartesian_prod block_diag broadcast_tensors broadcast_to cat "
        "channel_shuffle chunk clone column_stack concat concatenate _conj conj contiguous copy copy_ detach detach_ "
        "diag diag_embed diagonal diagonal_backward diagonal_scatter dstack expand expand_as flatten.using_ints flip "
        "fliplr flipud hstack lift_fresh lift_fresh_copy matrix_H mH mT meshgrid meshgrid.indexing moveaxis.int "
        "moveaxis.intlist movedim.int movedim.intlist narrow numpy_T permute pixel_shuffle pixel_unshuffle ravel "
        "repeat repeat_interleave.self_int reshape reshape_as resolve_conj resolve_neg roll rot90 select.int "
        "select_backward select_scatter slice.Tensor slice_backward slice_scatter split.Tensor split.sizes "
        "split_with_sizes squeeze squeeze.dim squeeze.dims squeeze_ squeeze_.dim stack swapaxes swapdims t "
        "tensor_split.indices tensor_split.sections tile _to_copy to.device to.dtype to.dtype_layout to.other "
        "transpose.int transpose_ tril triu type_as unbind.int unflatten.int unfold unfold_backward unsafe_chunk "
        "unsafe_split.Tensor unsafe_split_with_sizes _unsafe_view unsqueeze unsqueeze_ view view_as view_as_complex "
        "view_as_real vstack hsplit.int hsplit.array",
    ),
    (
        "numbers about a shape, of which other sizes are computed",
        "size.int stride.int sym_numel sym_size.int sym_stride.int numel",
    ),
    (
        "tensors of sizes that the graph says; memory is bounded before they are made. Empty ones begin as zeros",
        "arange arange.start arange.start_step bartlett_window blackman_window empty.memory_format empty_like eye "
        "eye.m full full_like hamming_window hann_window hann_window.periodic linspace logspace new_empty new_full "
        "new_ones new_zeros ones ones_like scalar_tensor tril_indices triu_indices zeros zeros_like",
    ),
    (
        "random numbers of losses that sample, as of variational models; drawn from the job's seed",
        "rand rand_like randn randn_like",
    ),
    (
        "dropout in eval mode, which is its input",
        "alpha_dropout dropout dropout_ feature_alpha_dropout feature_dropout",
    ),
    (
        "products of matrices and attention; work and memory are counted before",
        "addbmm addmm addmv addr baddbmm bilinear bmm chain_matmul cross dot einsum inner kron linalg_matmul "
        "linalg_multi_dot linalg_vecdot linear matmul mm mv outer scaled_dot_product_attention tensordot vdot",
    ),
    (
        "linear algebra of whitening, flows and kernels; the time of a matrix is known from its size",
        "cdist cholesky cholesky_solve cosine_similarity det inverse linalg_cholesky linalg_cholesky_ex linalg_cross "
        "linalg_det linalg_diagonal linalg_eigh linalg_eigvalsh linalg_inv linalg_inv_ex linalg_matrix_exp "
        "linalg_matrix_power linalg_qr linalg_slogdet linalg_solve linalg_solve_triangular linalg_svd linalg_svdvals "
        "linalg_vander logdet matrix_exp matrix_power pairwise_distance pdist slogdet trace",
    ),
    (
        "convolutions, pooling, padding and resampling; windows are bounded, and results, work and memory counted "
        "before",
        "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
        "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d affine_grid_generator avg_pool1d avg_pool2d "
        "avg_pool3d col2im constant_pad_nd conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding "
        "conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution _convolution "
        "convolution_backward grid_sampler grid_sampler_2d grid_sampler_3d im2col max_pool1d max_pool1d_with_indices "
        "max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool2d max_unpool3d pad "
        "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d "
        "upsample_bicubic2d upsample_bicubic2d.vec upsample_bilinear2d upsample_bilinear2d.vec upsample_linear1d "
        "upsample_linear1d.vec upsample_nearest1d upsample_nearest1d.vec upsample_nearest2d upsample_nearest2d.vec "
        "upsample_nearest3d upsample_nearest3d.vec upsample_trilinear3d upsample_trilinear3d.vec "
        "_upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec _upsample_bilinear2d_aa.vec "
        "_upsample_bicubic2d_aa.vec",
    ),
    (
        "normalisation; sizes of weights and statistics are compared with those of the values",
        "batch_norm group_norm instance_norm layer_norm _native_batch_norm_legit_no_training native_group_norm "
        "native_layer_norm renorm rms_norm _weight_norm",
    ),
    (
        "recurrent layers; every state and weight is compared with the shape that it must have",
        "gru.input lstm.input rnn_relu.input rnn_tanh.input",
    ),
    (
        "Fourier transforms, of neural operators; dimensions and types are checked before, as torch trusts the "
        "plain ones",
        "_fft_c2c _fft_c2r _fft_r2c fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_ifft fft_ifft2 "
        "fft_ifftn fft_ifftshift fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn "
        "stft",
    ),
    (
        "reading and writing at indices; every index is compared with its dimension before each call",
        "embedding embedding_bag embedding_bag.padding_idx gather index.Tensor index_add index_add_ index_copy "
        "index_copy_ index_fill.int_Scalar index_fill.int_Tensor index_fill_.int_Scalar index_put index_put_ "
        "index_select one_hot scatter.src scatter.value scatter_.src scatter_.value scatter_add scatter_add_ "
        "scatter_reduce.two scatter_reduce_.two take_along_dim _unsafe_index.Tensor _unsafe_index_put",
    ),
    (
        "values that a mask picks, and where it does: no more than it has places; what follows is looked at when their "
        "number is known, as for `index.Tensor` with a mask",
        "argwhere masked_select nonzero nonzero_numpy where",
    ),
    (
        "places in sorted values, which are indices within them by themselves",
        "bucketize.Scalar bucketize.Tensor isin.Scalar_Tensor isin.Tensor_Scalar isin.Tensor_Tensor "
        "searchsorted.Scalar searchsorted.Tensor",
    ),
    (
        "losses, and their derivatives in losses that take derivatives themselves; targets are compared with the "
        "number of classes",
        "binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits cosine_embedding_loss "
        "cross_entropy_loss hinge_embedding_loss huber_loss huber_loss_backward kl_div l1_loss margin_ranking_loss "
        "mse_loss mse_loss_backward multi_margin_loss multilabel_margin_loss nll_loss nll_loss2d nll_loss2d_backward "
        "nll_loss2d_forward nll_loss_backward nll_loss_forward nll_loss_nd poisson_nll_loss smooth_l1_loss "
        "smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward triplet_margin_loss",
    ),
)  # fmt: skip
ALLOWED = frozenset(name if "." in name else f"{name}.default" for _, names in GROUPS for name in names.split())
# Arithmetic of sizes and numbers outside of tensors. Powers are not allowed: they grow without end.
PYTHON: dict[str, Callable[..., Any]] = {
    "getitem": operator.getitem, "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "floordiv": operator.floordiv, "truediv": operator.truediv, "mod": operator.mod, "neg": operator.neg,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "and": operator.and_, "or": operator.or_, "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc,
    "sym_max": torch.sym_max, "sym_min": torch.sym_min, "sym_int": torch.sym_int, "sym_float": torch.sym_float,
    "sym_not": torch.sym_not, "sym_ite": torch.sym_ite,
}  # fmt: skip
# Rewrites of a graph search for these functions of torch; the kernels are the same.
BY_TORCH_NAME: dict[str, Callable[..., Any]] = {
    "add.Tensor": torch.add, "mul.Tensor": torch.mul, "relu.default": torch.relu, "relu_.default": torch.relu_,
    "max_pool2d.default": torch.max_pool2d,
}  # fmt: skip
AS_ZEROS = {"empty.memory_format": "zeros", "empty_like.default": "zeros_like", "new_empty.default": "new_zeros"}


def operation(name: str) -> Callable[..., Any]:
    """The operation of this name of a file: `conv2d.default` of `aten`, or `python.add`.

    Raises:
        ValueError: the operation is not allowed.
    """
    if name.startswith("python."):
        if name[7:] not in PYTHON:
            raise ValueError(f"the operation {name[:80]!r}, which is not in the list of what a packed graph may hold")
        return PYTHON[name[7:]]
    if name not in ALLOWED:
        raise ValueError(f"the operation {name[:80]!r}, which is not in the list of what a packed graph may hold")
    return _resolve(name)


@functools.cache
def _resolve(name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    target: Any = getattr(getattr(torch.ops.aten, packet), overload)
    if name in BY_TORCH_NAME:
        return BY_TORCH_NAME[name]
    if name in AS_ZEROS:
        return _zeros(target, getattr(torch.ops.aten, AS_ZEROS[name]).default)
    return guard_indices(target) if packet in INDICES else target


def _zeros(empty: Any, zeros: Any) -> Callable[..., Any]:
    """Zeros in place of an empty tensor, which would show the previous content of the memory."""

    def made(*args: Any, **kwargs: Any) -> Tensor:
        kwargs.pop("memory_format", None)
        tensor: Tensor = zeros(*args, **kwargs)
        return tensor

    made.__name__ = empty.__name__.replace(".", "_")
    made._schema = empty._schema  # type: ignore[attr-defined]  # where graphs look up names of arguments
    return made


def refuse_types(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse numbers for a type or a format: torch would use them as indices of its tables."""
    arguments = getattr(getattr(function, "_schema", None), "arguments", ())
    by_name = dict(zip((argument.name for argument in arguments), args, strict=False)) | dict(kwargs)
    for argument in arguments:
        kind = re.sub(r"Optional\[|\]", "", str(argument.real_type))
        value = by_name.get(argument.name)
        if kind in ("ScalarType", "Layout", "MemoryFormat") and isinstance(value, (int, float, str)):
            raise ValueError(f"{str(value)[:40]!r} for a {argument.name}")
