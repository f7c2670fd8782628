"""Sphinx configuration of the documentation: `make docs` takes every warning for an error and needs no network."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import landscape

project = "loss-landscape-cluster"
author = "the loss-landscape-cluster authors"
copyright = author
version = release = landscape.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated"]
exclude_patterns = ["_ext"]
source_suffix = {".md": "markdown"}
nitpicky = True
# There is no intersphinx: the inventories of other projects would have to be fetched.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|nn|np|numpy|collections|contextlib|pydantic|plotly|go|xarray|ray|typing|pathlib|datetime)\b.*"),
    (r"py:.*", r"(Any|Callable|Iterator|Mapping|Sequence|Tensor|NDArray|Literal|optional|FilePath)\b.*"),
    # What signatures name of the inside; the part of it that users meet is documented, and linked.
    (r"py:class", r"(landscape|cluster)\.[a-z_]+\..*"),
    (r"py:exc", r"\w+"),
]
default_role = "code"  # docstrings write `name` for code

myst_enable_extensions = ["colon_fence", "attrs_block"]
myst_heading_anchors = 3

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autoclass_content = "class"
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"{project} {release}"
html_show_sphinx = False
