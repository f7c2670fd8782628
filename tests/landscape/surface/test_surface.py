"""Values with named axes."""

from __future__ import annotations

import landscape
from landscape.surface.surface import ProjectedPath


def test_the_projected_path_keeps_its_former_public_name() -> None:
    assert landscape.Path is landscape.ProjectedPath is ProjectedPath
