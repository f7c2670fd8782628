"""Checks of the shapes, types and numbers of operations that torch does not make itself, from shapes alone.

Each rule takes the arguments of the operation, and returns why it must not be called; empty if it may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

WINDOWS = {
    "kernel_size", "stride", "padding", "dilation", "output_padding", "groups", "pad", "n_fft", "hop_length",
    "win_length",
    "upscale_factor", "downscale_factor", "num_groups",
}  # fmt: skip
ENDS = {"start", "end"}  # slices cut them off at the size of their dimension
LARGEST_WINDOW = 1 << 20  # of a kernel's size, stride, padding, dilation
STEPS = {"stride", "dilation", "output_padding"}
LARGEST_STEP = 1 << 12  # far larger ones let kernels of transposed convolutions write beyond their results
LARGEST_NUMBER = 1 << 48  # among the arguments of an operation
LONGEST_LIST = 100_000
MOST_SECTIONS = 100_000
MOST_FACTORS = 300  # of a product, and differences of differences
REDUCTIONS = (0, 1, 2)


def largest(name: str) -> int:
    """The largest allowed number for an argument of an operation, or an option of a layer, with this name."""
    return LARGEST_STEP if name in STEPS else LARGEST_WINDOW if name in WINDOWS else LARGEST_NUMBER


def refuse_numbers(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse excessive numbers before an operation computes with them."""
    arguments = getattr(getattr(function, "_schema", None), "arguments", ())
    names = [argument.name for argument in arguments]
    named = [*zip([*names, *[""] * len(args)], args, strict=False), *kwargs.items()]
    for name, value in named:
        for number in value if isinstance(value, (list, tuple)) else (value,):
            if type(number) is not int:
                continue
            if name in ENDS:
                continue
            if abs(number) > largest(name):
                raise ValueError(f"{name} is {number}, more than {largest(name)}")
            if name == "reduction" and number not in REDUCTIONS:
                raise ValueError(f"{name} is {number}, not 0, 1 or 2")
            if name in ("sections", "chunks") and number > MOST_SECTIONS:
                raise ValueError(f"{name} is {number}, more than {MOST_SECTIONS}")
        if isinstance(value, (list, tuple)) and len(value) > LONGEST_LIST:
            raise ValueError(f"{name} holds {len(value)} values, more than {LONGEST_LIST}")


def _fourier(tensor: Tensor, axes: Sequence[int], normalised: int, _: Any) -> str:
    if not all(-tensor.dim() <= axis < tensor.dim() for axis in axes):
        return f"its dimensions {list(axes)} are not those of a tensor of {tensor.dim()}"
    if not len(axes) or len({axis % max(1, tensor.dim()) for axis in axes}) < len(axes):
        return "its dimensions are none, or one twice"
    if normalised not in (0, 1, 2) or not tensor.numel():
        return "its normalisation is none, or its tensor empty"
    return ""


def _fft_r2c(tensor: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> str:
    if tensor.dtype not in (torch.float32, torch.float64):
        return f"it takes real numbers, not {tensor.dtype}"
    return _fourier(tensor, dim, normalization, onesided)


def _fft_c2c(tensor: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> str:
    if tensor.dtype not in (torch.complex64, torch.complex128):
        return f"it takes complex numbers, not {tensor.dtype}"
    return _fourier(tensor, dim, normalization, forward)


def _fft_c2r(tensor: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> str:
    if why := _fft_c2c(tensor, dim, normalization, True):
        return why
    size = tensor.shape[dim[-1]]
    return (
        "" if last_dim_size >= 1 and last_dim_size // 2 + 1 == size else f"{size} of its values make no {last_dim_size}"
    )


def _softmax_backward(grad: Tensor, output: Tensor, *rest: Any, **named: Any) -> str:
    fits = grad.shape == output.shape and grad.numel() > 0 and grad.dtype == output.dtype
    return "" if fits else "its two tensors differ in shape or type, or are empty"


def _elementwise_backward(grad: Tensor, own: Tensor, *rest: Any, **named: Any) -> str:
    shapes = {tensor.shape for tensor in (grad, own, *rest) if isinstance(tensor, Tensor) and tensor.numel()}
    try:
        torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return "its tensors differ in shape"
    return ""


def _weight_norm(weight: Tensor, norm: Tensor, dim: int = 0) -> str:
    expected = [size if place == dim else 1 for place, size in enumerate(weight.shape)]
    fits = weight.numel() > 0 and list(norm.shape) == expected and weight.dtype == norm.dtype
    return "" if fits else "its norms are not one for each row of its weights"


def _batch_norm(values: Tensor, *rest: Any, **named: Any) -> str:
    tensors = [*rest[:4], *(named.get(name) for name in ("weight", "bias", "running_mean", "running_var"))]
    fits = values.dim() > 1 and all(
        tensor is None or (tensor.shape == values.shape[1:2] and tensor.dtype.is_floating_point)
        for tensor in tensors
        if tensor is None or isinstance(tensor, Tensor)
    )
    return "" if fits else "its weights or statistics are not one for each channel"


def _group_norm(
    values: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, area: int, group: int, eps: float
) -> str:
    fits = values.dim() > 1 and values.shape[:2] == (n, c) and math.prod(values.shape[2:]) == area
    fits = fits and group > 0 and c % group == 0
    fits = fits and all(tensor is None or tensor.shape == (c,) for tensor in (weight, bias))
    return "" if fits and values.numel() else "its sizes are not those of its values"


def _recurrent(gates: int) -> Callable[..., str]:
    """Every state and weight must have the shape that layers and directions require."""

    def rule(
        values: Tensor, state: Any, weights: Any, biases: bool, layers: int, dropout: float, train: bool,
        bidirectional: bool, first: bool,
    ) -> str:  # fmt: skip
        states = [state] if isinstance(state, Tensor) else list(state)
        ways, projected = 1 + bidirectional, False
        per = 4 if biases else 2
        if gates == 4 and layers > 0 and len(weights) == layers * ways * (per + 1):
            projected, per = True, per + 1
        if values.dim() != 3 or not values.numel() or not 0 < layers < 1000 or len(weights) != layers * ways * per:
            return "it has other layers than weights"
        count, hidden, out = values.shape[0 if first else 1], states[-1].shape[-1], states[0].shape[-1]
        for tensor, size in zip(states, (out, hidden), strict=False):
            if tuple(tensor.shape) != (layers * ways, count, size) or tensor.dtype != values.dtype:
                return "a state has another shape than its layers ask for"
        if len(states) != (2 if gates == 4 else 1) or (not projected and hidden != out):
            return "its states are not those of its kind"
        for place, tensor in enumerate(weights):
            inputs = values.shape[2] if place < per * ways else out * ways
            expected: list[tuple[int, ...]] = [(gates * hidden, inputs), (gates * hidden, out)]
            expected += [(gates * hidden,)] * 2 if biases else []
            expected += [(out, hidden)] if projected else []
            if tuple(tensor.shape) != expected[place % per] or tensor.dtype != values.dtype:
                return "a weight has another shape than its layer asks for"
        return ""

    return rule


def _classes_backward(
    grad: Tensor, own: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore: int, total: Tensor
) -> str:
    """The rule of `nll_loss_backward`, which writes wherever its target points."""
    several = own.dim() in (2, 4)
    classes = own.shape[1 if several else 0] if own.dim() in (1, 2, 4) else -1
    targets = (own.shape[0], *own.shape[2:]) if several else ()
    fits = (
        classes > 0
        and target.dtype == torch.int64
        and (target.shape == targets or (not several and target.numel() == 1))
    )
    fits = fits and (grad.shape == target.shape if reduction == 0 and several else grad.numel() == 1)
    fits = fits and (weight is None or (weight.shape == (classes,) and weight.dtype == own.dtype))
    fits = fits and total.numel() == 1 and {grad.dtype, total.dtype} == {own.dtype} and own.dtype.is_floating_point
    return "" if fits else "its gradient, targets or weights have other shapes than its values ask for"


def _classes_backward_2d(*args: Any) -> str:
    return _classes_backward(*args) if args[1].dim() == 4 else "it takes values of four dimensions"


def _convolution_backward(
    grad: Tensor, values: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, mask: Sequence[bool],
) -> str:  # fmt: skip
    result = torch.ops.aten.convolution.default(
        values, weight, None, stride, padding, dilation, transposed, output_padding, groups
    )
    channels = [result.shape[1]]
    if (
        result.shape != grad.shape
        or grad.dtype != values.dtype
        or (bias is not None and list(bias) not in ([0], channels))
    ):
        return "its gradient has another shape than the convolution's result"
    return "" if len(mask) == 3 else "its mask is not of three"


def _unfold_backward(grad: Tensor, sizes: Sequence[int], dim: int, size: int, step: int) -> str:
    windows = torch.empty(list(sizes), device="meta").unfold(dim, size, step)
    return "" if windows.shape == grad.shape else "its gradient has another shape than the windows"


def _resampled(values: Tensor, sizes: Any, *rest: Any, **named: Any) -> str:
    """Sizes and scales must agree: kernels compute the places to read from scales alone."""
    scales = [scale for scale in (*rest, *named.values()) if type(scale) in (int, float)]
    scales += [scale for value in rest if isinstance(value, (list, tuple)) for scale in value]
    if not values.numel() or any(not math.isfinite(scale) or not 1e-6 < scale < 1e6 for scale in scales):
        return "its scales are no sizes of a picture, or its picture is empty"
    if sizes is None:
        return ""
    for place, (size, scale) in enumerate(zip(list(sizes)[-len(scales) :], scales, strict=False) if scales else ()):
        size_before = values.shape[place - len(scales)]
        if abs(size_before * scale - size) > 1:
            return f"a scale of {scale} does not make {size} of {size_before}"
    return "" if all(size > 0 for size in sizes) else "its sizes are not above zero"


def _complex(values: Tensor) -> str:
    return "" if values.is_complex() else f"it takes complex numbers, not {values.dtype}"


def _one_hot(values: Tensor, num_classes: int = -1) -> str:
    return "" if num_classes > 0 else "its number of classes must be written, as it depends on the values"


def _by_some(values: Tensor, indices: Sequence[Any], *rest: Any, **named: Any) -> str:
    return "" if any(isinstance(index, Tensor) for index in indices) else "it is given no index"


def _by_some_but_masks(values: Tensor, indices: Sequence[Any]) -> str:
    masks = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)
    return "it takes no mask" if masks else _by_some(values, indices)


def _without_sorter(*args: Any, **named: Any) -> str:
    return "a sorter is none that it takes" if named.get("sorter") is not None else ""


def _bags(weight: Tensor, indices: Tensor, offsets: Tensor, *rest: Any, **named: Any) -> str:
    fits = weight.dim() == 2 and indices.dim() == 1 and offsets.dim() == 1 and indices.dtype == offsets.dtype
    own = rest[3] if len(rest) > 3 else named.get("per_sample_weights")
    fits = fits and (own is None or (own.shape == indices.shape and own.dtype == weight.dtype))
    mode = rest[1] if len(rest) > 1 else named.get("mode", 0)
    last = rest[4] if len(rest) > 4 else named.get("include_last_offset", False)
    return "" if fits and mode in (0, 1, 2) and offsets.numel() > (1 if last else 0) else "its bags are no list of rows"


def _product(matrices: Sequence[Tensor]) -> str:
    """The rule of products of matrices: finding their best order takes the third power of their number."""
    return "" if len(matrices) <= MOST_FACTORS else f"it multiplies {len(matrices)} matrices, more than {MOST_FACTORS}"


def _differences(values: Tensor, n: int = 1, *rest: Any, **named: Any) -> str:
    return "" if n <= MOST_FACTORS else f"it takes differences {n} times, more than {MOST_FACTORS}"


_BACKWARD = ("tanh", "sigmoid", "silu", "gelu", "elu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid",
    "threshold",
    "softplus", "softshrink", "hardshrink", "mish", "log_sigmoid", "logit", "mse_loss", "smooth_l1_loss", "huber_loss",
    "soft_margin_loss", "binary_cross_entropy")  # fmt: skip
RULES: dict[str, Callable[..., str]] = {
    "_fft_r2c": _fft_r2c, "_fft_c2c": _fft_c2c, "_fft_c2r": _fft_c2r,
    "_softmax_backward_data": _softmax_backward, "_log_softmax_backward_data": _softmax_backward,
    **{f"{name}_backward": _elementwise_backward for name in _BACKWARD},
    "_weight_norm": _weight_norm, "_native_batch_norm_legit_no_training": _batch_norm, "native_group_norm": _group_norm,
    "batch_norm": _batch_norm, "lstm": _recurrent(4), "gru": _recurrent(3), "rnn_tanh": _recurrent(1),
    "rnn_relu": _recurrent(1), "nll_loss_backward": _classes_backward, "nll_loss2d_backward": _classes_backward_2d,
    "convolution_backward": _convolution_backward, "unfold_backward": _unfold_backward,
    **dict.fromkeys(
        ("upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d", "upsample_nearest2d",
         "upsample_nearest3d", "upsample_trilinear3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
         "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        _resampled,
    ),
    "_conj": _complex, "one_hot": _one_hot, "index": _by_some, "_unsafe_index": _by_some_but_masks,
    "index_put": _by_some, "index_put_": _by_some, "_unsafe_index_put": _by_some, "searchsorted": _without_sorter,
    "embedding_bag": _bags, "linalg_multi_dot": _product, "chain_matmul": _product, "diff": _differences,
}  # fmt: skip
