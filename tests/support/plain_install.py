"""An installation without extras, as far as Python can tell: what no default dependency brings cannot be imported."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "loss-landscape-cluster"
# Finders answer None for what is not there, as those of an installation without it do.
HIDE = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {absent} else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def normalised(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


@cache
def installed_modules() -> dict[str, list[str]]:
    """The distributions that own each module, without those that Ray brings and adds to the path once imported."""
    code = "import json; from importlib.metadata import packages_distributions as of; print(json.dumps(of()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def plainly_installed() -> set[str]:
    """The distributions that an installation without extras holds, with all that they need in turn."""
    found, waiting = set(), [(PROJECT, "")]
    while waiting:
        asked = waiting.pop()
        if asked in found:
            continue
        found.add(asked)
        with contextlib.suppress(PackageNotFoundError):
            for needed in map(Requirement, requires(asked[0]) or ()):
                if needed.marker is None or needed.marker.evaluate({"extra": asked[1]}):
                    waiting += [(normalised(needed.name), extra) for extra in ("", *needed.extras)]
    return {distribution for distribution, _ in found}


@cache
def modules_of_extras() -> frozenset[str]:
    """The modules that an installation without extras lacks."""
    here = plainly_installed()
    owners = installed_modules().items()
    return frozenset(module for module, names in owners if not here & set(map(normalised, names)))


def in_plain_installation(code: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run code in a process of such an installation, in a folder."""
    whole = HIDE.format(absent=set(modules_of_extras())) + code
    return subprocess.run([sys.executable, "-c", whole], cwd=folder, capture_output=True, text=True, check=False)
