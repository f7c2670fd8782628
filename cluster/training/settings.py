"""What Ray Train is told through the environment, before Ray is imported."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

# Ray Train's own settings, which it reads from the environment of the driver and hands on to its actors.
SETTINGS = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # a lost rank is noticed so soon; by default after 2 s
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths of the user's function hold as they do without Ray
    # Ranks have logs of their own, into which they print.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
}
ALONE = {
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # Else each rank is told that `find_unused_parameters` costs time, which `Training.prepare` asks for with a reason.
    # What warns below Python cannot be filtered otherwise; PyTorch still logs its errors.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}  # a private Ray, whose workers have the environment of this process


@contextlib.contextmanager
def ray_train_settings(attached: bool) -> Iterator[None]:
    """Within the block the environment holds what Ray Train is to do; the user's own settings win."""
    added = {name: value for name, value in (SETTINGS | ({} if attached else ALONE)).items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
