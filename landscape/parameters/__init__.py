"""The parameters of a model: what each is, their values as named tensors, and the arithmetic on these.

A *state* maps names to tensors: every parameter once (tied weights under their first name) and the persistent buffers.

Names are imported when they are first used: what reads a landscape needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from landscape.core.lazy_names import import_on_use

if TYPE_CHECKING:
    from landscape.parameters.arithmetic import (
        combine,
        difference,
        direction_digest,
        dot,
        flatten,
        layout,
        norm,
        state_digest,
        unflatten,
    )
    from landscape.parameters.description import (
        ParameterInfo,
        describe_parameters,
        in_first_version,
        is_norm_layer,
        trainable_matrices,
    )
    from landscape.parameters.filters import EPSILON, filter_unview, filter_view, scale_to_filters
    from landscape.parameters.states import (
        State,
        holds_bfloat16,
        immobile,
        match_state,
        persistent_buffers,
        refuse_mismatch,
        refuse_not_finite,
        state_of,
    )

_HOMES = {
    "arithmetic": (
        "combine",
        "difference",
        "direction_digest",
        "dot",
        "flatten",
        "layout",
        "norm",
        "state_digest",
        "unflatten",
    ),
    "description": ("ParameterInfo", "describe_parameters", "in_first_version", "is_norm_layer", "trainable_matrices"),
    "filters": ("EPSILON", "filter_unview", "filter_view", "scale_to_filters"),
    "states": (
        "State",
        "holds_bfloat16",
        "immobile",
        "match_state",
        "persistent_buffers",
        "refuse_mismatch",
        "refuse_not_finite",
        "state_of",
    ),
}

__all__ = [
    "EPSILON",
    "ParameterInfo",
    "State",
    "combine",
    "describe_parameters",
    "difference",
    "direction_digest",
    "dot",
    "filter_unview",
    "filter_view",
    "flatten",
    "holds_bfloat16",
    "immobile",
    "in_first_version",
    "is_norm_layer",
    "layout",
    "match_state",
    "norm",
    "persistent_buffers",
    "refuse_mismatch",
    "refuse_not_finite",
    "scale_to_filters",
    "state_digest",
    "state_of",
    "trainable_matrices",
    "unflatten",
]

__getattr__ = import_on_use(__name__, _HOMES)
