"""A script handed to sbatch."""

from __future__ import annotations

import shutil
import subprocess

from cluster.submit.submission import first_line, tool_missing
from landscape.core.errors import ClusterUnreachableError, LandscapeError


def send(script: str) -> str:
    """Hand the script to sbatch; the job's number.

    Raises:
        LandscapeError: there is no sbatch here, or it refuses.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise tool_missing("sbatch", "slurm")
    found = subprocess.run([sbatch, "--parsable"], input=script, capture_output=True, text=True, check=False)
    if found.returncode:
        text = first_line(found.stderr)
        kind = ClusterUnreachableError if "contact slurm controller" in found.stderr.lower() else LandscapeError
        raise kind(f"slurm: sbatch refuses: {text}")
    return found.stdout.strip().partition(";")[0]
