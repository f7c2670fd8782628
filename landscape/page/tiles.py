"""New tiles as the events carry them: arrays in plotly's typed form, which a script puts into its figure."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.page.content import Block
from landscape.views.draw.layout import pointer_columns
from landscape.views.draw.style import typed
from landscape.views.prepare.scale import drawn_values, point_states


def tile_facts(block: Block, log: bool) -> dict[str, Any]:
    """One tile: where it lies among the drawn points, what is drawn of it, and what the pointer shows.

    Args:
        log: draw log10 of the values.
    """
    states = point_states(block.values, block.states, log)
    columns = pointer_columns(block.values, block.error, block.rise, block.rise_error)
    return {
        "start": list(block.start),
        "shape": list(states.shape),
        "drawn": encoded(typed(drawn_values(block.values, states, log))),
        "customdata": encoded(typed(columns)),
        "states": encoded(states),
    }


def encoded(array: NDArray[Any]) -> dict[str, str]:
    """An array as plotly's JSON has it: its type, its bytes in base64, and its shape where it has several dimensions.

    >>> encoded(np.zeros((1, 2), np.uint8))
    {'dtype': 'u1', 'bdata': 'AAA=', 'shape': '1, 2'}
    """
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    text = {"dtype": plain.dtype.str[1:], "bdata": base64.b64encode(plain.tobytes()).decode()}
    return text if plain.ndim == 1 else text | {"shape": ", ".join(map(str, plain.shape))}
