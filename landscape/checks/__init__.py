"""Whether the picture of a landscape can be trusted: fifteen checks, each with its number and its remedy."""

from landscape.checks.checking import check_landscape, keep_checks
from landscape.checks.telling import checks_text

__all__ = ["check_landscape", "checks_text", "keep_checks"]
