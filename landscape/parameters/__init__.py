"""The parameters of a model: what each is, their values as named tensors, and the arithmetic on these.

A *state* maps names to tensors: every parameter once (tied weights under their first name) and the persistent buffers.
"""

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
from landscape.parameters.description import ParameterInfo, describe_parameters, in_first_version, is_norm_layer
from landscape.parameters.filters import EPSILON, filter_unview, filter_view, scale_to_filters
from landscape.parameters.states import (
    State,
    immobile,
    match_state,
    persistent_buffers,
    refuse_mismatch,
    refuse_not_finite,
    state_of,
)

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
    "unflatten",
]
