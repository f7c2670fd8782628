"""Every engine but CUDA graphs on a GPU that is not there: nothing is copied to the host in the loop over points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCENE = Path(__file__).parents[2] / "support/pretended_gpu.py"
RUN = {
    "lenet:float32:eval": ("eager", "eager+channels_last", "eager+superposed", "vmap:4", "compile"),
    "lenet:bfloat16:eval": ("eager", "compile"),
    "resnet20:float32:eval": ("eager", "eager+channels_last+folded", "eager+folded+superposed", "vmap:4", "compile"),
    "resnet20:bfloat16:eval": ("eager+channels_last+folded",),
    "resnet20:float32:recalibrate": ("eager",),
    "resnet20:float32:batch": ("eager", "vmap:4"),
    "unet:tf32:eval": ("eager+channels_last",),
    "unet:float64:eval": ("eager",),
    "transformer:float32:eval": ("eager", "compile"),
    "transformer:bfloat16:eval": ("vmap:4",),
    "language:float32:eval": ("eager", "vmap:4", "compile"),
    "language-bfloat16:bfloat16:eval": ("eager", "vmap:4", "compile"),
    "frozen:float32:eval": ("eager", "eager+channels_last"),
}
REFUSED = {
    "control-flow:float32:eval:eager": "a number is read on the host",
    "reads-item:float32:eval:eager": "a number is read on the host",
    "reads-truth:float32:eval:vmap:4": "a number is read on the host",
    "reads-copy:float32:eval:eager": "aten._to_copy.default copies to the host",
    "reads-copy:float32:eval:compile": "aten._to_copy.default copies to the host",
}


@pytest.mark.faults
@pytest.mark.long
def test_nothing_is_copied_to_the_host_in_the_loop_over_points() -> None:
    runs = [f"{case}:{engine}" for case, engines in RUN.items() for engine in engines]
    called = [sys.executable, "-W", "ignore", str(SCENE), *runs, *REFUSED]
    child = subprocess.run(called, capture_output=True, text=True, timeout=280)
    refusals = [f"{case} HostCopyError: {message}" for case, message in REFUSED.items()]
    assert child.stdout.splitlines() == [*(f"{case} OK" for case in runs), *refusals], child.stderr[-2000:]
