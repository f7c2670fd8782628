"""The output filters of a parameter: its tensor as one row per filter, and filter normalisation."""

from __future__ import annotations

import math

from torch import Tensor

from landscape.model.description import ParameterInfo

EPSILON = 1e-10  # Li et al. 2018, as in their published code


def filter_view(tensor: Tensor, info: ParameterInfo) -> Tensor:
    """The tensor as [filters, elements], one row per output filter.

    Dimension 0 is the output of linear and convolution weights, of embeddings (one row per token) and of
    vectors (one element per unit). A transposed convolution holds [in, out/groups, …]: its output filter
    (g, j) is made of the input channels of group g, so [in, o, …] → [groups, in/groups, o, …] → [groups·o, …].
    Fused experts have a filter per expert and output: [e, out, in] → [e·out, in], and [e, in, out] likewise.
    """
    if tensor.dim() == 0:
        return tensor.reshape(1, 1)
    if info.experts:
        ordered = tensor.transpose(1, 2) if info.experts == "input first" and tensor.dim() == 3 else tensor
        return ordered.reshape(ordered.shape[0] * ordered.shape[1], math.prod(ordered.shape[2:]))
    if not info.transposed_groups:
        return tensor.reshape(tensor.shape[0], math.prod(tensor.shape[1:]))
    groups = info.transposed_groups
    grouped = tensor.reshape(groups, tensor.shape[0] // groups, *tensor.shape[1:]).transpose(1, 2)
    return grouped.reshape(groups * tensor.shape[1], math.prod(grouped.shape[2:]))


def filter_unview(rows: Tensor, info: ParameterInfo) -> Tensor:
    """The inverse of `filter_view`: rows, one per output filter, as the tensor that they were taken from."""
    if info.experts == "input first" and len(info.shape) == 3:
        count, inputs, outputs = info.shape
        return rows.reshape(count, outputs, inputs).transpose(1, 2).contiguous()
    if not info.transposed_groups:
        return rows.reshape(info.shape)
    groups = info.transposed_groups
    grouped = rows.reshape(groups, info.shape[1], info.shape[0] // groups, *info.shape[2:]).transpose(1, 2)
    return grouped.reshape(info.shape).contiguous()


def scale_to_filters(direction: Tensor, weight: Tensor, info: ParameterInfo) -> Tensor:
    """Filter normalisation: d_f ← d_f · ‖w_f‖ / (‖d_f‖ + 1e-10) for every output filter f (Li et al. 2018, §4)."""
    rows, weights = filter_view(direction.double(), info), filter_view(weight.double(), info)
    scale = weights.norm(dim=1, keepdim=True) / (rows.norm(dim=1, keepdim=True) + EPSILON)
    return filter_unview(rows * scale, info)
