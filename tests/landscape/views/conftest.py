"""Synthetic surfaces for all tests of the views, and one browser for all pictures."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import synthetic_surfaces

from landscape.views.exporting import Browser, browser, find_browser


@pytest.fixture(scope="session")
def make() -> ModuleType:
    """The builders of synthetic surfaces: make.quadratic(), make.holed(), make.line(), make.block(), …"""
    return synthetic_surfaces


@pytest.fixture(scope="session")
def drawer() -> Iterator[Browser]:
    if find_browser() is None:
        pytest.skip("no Chromium or Chrome on this machine: pictures are not tested")
    with browser() as running:
        yield running
