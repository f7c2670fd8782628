"""Which layer of a network goes wrong at a point of a landscape, and how: statistics of each layer, and rules.

layers          what every layer gives at one set of weights, over all samples
question        the same as a question that any process answers
inspecting      a point of a landscape inspected, and compared with the origin
telling         what was found, in lines and as plain values
points          layers at the points of a tile: a map of where which layer breaks
"""

from landscape.inspection.inspecting import Inspection, inspect_point
from landscape.inspection.telling import inspection_text, plain_inspection

__all__ = ["Inspection", "inspect_point", "inspection_text", "plain_inspection"]
