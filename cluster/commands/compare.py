"""`landscape compare`: whether two sets of weights, or two ways of training, differ in their measures."""

from __future__ import annotations

from cluster.commands.output import Json, show
from cluster.process.streams import diverted


def compare(first: str, second: str, *, json: Json = False) -> None:
    """Compare what `landscape measure` has kept: differences with intervals, paired over the same samples and lines.

    What is not comparable is refused with the list why: other samples, precision, batch-norm mode, lines. Measures that
    one side alone has are named, with the command that gives them; those of single layers are not compared.

    Parameters
    ----------
    first
        RUN or RUN:ORIGIN, such as runs/a:epoch-3; default: the last snapshot that was measured. Of at least three runs,
        separated by commas, the spread over runs counts.
    second
        What it is compared with, as many runs or more.
    """
    from landscape.measures.comparing import compare as compare_targets
    from landscape.measures.targets import targets_of
    from landscape.views.prepared.measures import comparison_lines

    with diverted():
        found = compare_targets(targets_of(first), targets_of(second)).document()
    show(found, json, "\n".join(comparison_lines(found)))
