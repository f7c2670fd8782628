"""Lanczos steps kept in the run's folder, so that a computation that was killed goes on with its last step.

Those of the axes of a landscape, and of what is measured, lie apart.

`<run>/curvature/<landscape>/<key>/step-00007` holds α, β and the next basis vector as float64, and their CRC32;
`method` beside them how products are computed, where it is not by second derivatives; `loss` the loss at the origin, by
which a problem that was changed meanwhile is known.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from landscape.compute.algebra import Floats
from landscape.compute.eigen_stores import BASES, remove_bases
from landscape.compute.hessian import HessianOperator
from landscape.compute.lanczos import Krylov, Product, Step, lanczos
from landscape.core.files import Folder
from landscape.core.folders import open_folder
from landscape.job.directions.file import STEPS
from landscape.store.runs import write_error

SAME_LOSS = 1e-4  # what machines may differ by in float32, and no change of a problem that matters

log = logging.getLogger("landscape")


@dataclass(frozen=True)
class KeptSteps:
    """The steps of one computation.

    Args:
        run: where the run lies.
        landscape: for whose axes; all that is kept for it goes once these are in the store.
        key: a digest of all that decides the bits of the steps.
        size: P.
    """

    run: str
    landscape: str
    key: str
    size: int

    def known(self) -> list[Step]:
        """The steps from the first to the last that is whole."""
        folder, steps = self._folder(), list[Step]()
        while (step := self._read(folder, len(steps))) is not None:
            steps.append(step)
        return steps

    @property
    def is_begun(self) -> bool:
        """Whether a step is kept."""
        return self._read(self._folder(), 0) is not None

    def keep(self, number: int, step: Step) -> None:
        """Keep one step; it is whole on disk when this returns.

        Raises:
            LandscapeError: the disk takes nothing.
        """
        data = np.concatenate([[step.alpha, step.beta], step.following]).astype("<f8").tobytes()
        self._write(f"step-{number:05d}", data + zlib.crc32(data).to_bytes(4, "little"))

    def keep_refusal(self, refusal: str) -> None:
        """Keep why the model has no second derivative, from which on differences of gradients are taken."""
        self._write("method", refusal.encode())

    def refusal(self) -> str:
        """Why differences are taken; empty where they are not."""
        return (self._folder().read(self._path("method")) or b"").decode()

    def keep_loss(self, loss: float) -> None:
        """Keep the loss at the origin."""
        self._write("loss", np.float64(loss).tobytes())

    def forget_of_another_loss(self, loss: float) -> None:
        """Forget these steps where the loss at the origin is another one now: so is the problem."""
        data = self._folder().read(self._path("loss"))
        if data is None or len(data) != 8:
            return
        kept = float(np.frombuffer(data, np.float64)[0])
        if not math.isclose(kept, loss, rel_tol=SAME_LOSS, abs_tol=SAME_LOSS):
            log.warning(
                "the loss at the origin is %.6g, and was %.6g when steps towards eigenvectors were kept: they begin "
                "anew", loss, kept,
            )  # fmt: skip
            self._folder().delete_below(self._path("").rstrip("/"))

    @property
    def place(self) -> str:
        """The folder of all that is kept for the landscape."""
        return f"{self.run}/{BASES}/{self.landscape}"

    def remove(self) -> None:
        """Forget all that is kept for the landscape."""
        remove_bases(self.run, self.landscape)

    def _read(self, folder: Folder, number: int) -> Step | None:
        data = folder.read(self._path(f"step-{number:05d}"))
        if data is None or len(data) != 8 * (self.size + 2) + 4:
            return None
        if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            return None
        numbers: Floats = np.frombuffer(data[:-4], "<f8").astype(np.float64)
        return Step(float(numbers[0]), float(numbers[1]), numbers[2:])

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._folder().write(self._path(name), data)
        except OSError as error:  # such as of a disk that is full
            raise write_error(self.run, error) from error

    def _folder(self) -> Folder:
        return open_folder(self.run)

    def _path(self, name: str) -> str:
        return f"{BASES}/{self.landscape}/{self.key[:16]}/{name}"


def kept_lanczos(
    operator: HessianOperator,
    kept: KeptSteps,
    ranks: Sequence[int],
    loss: float,
    *,
    seed: int = 0,
    steps: int = STEPS,
    product: Product | None = None,
    on_step: Callable[[int], None] = lambda done: None,
    is_open: Callable[[Krylov], bool] = lambda krylov: False,
    most: int = 0,
) -> Krylov:
    """The Krylov space of an operator, gone on with from the steps that an earlier call has kept, to the same bits.

    Args:
        loss: at the origin, by which a problem is known again: the steps of another one are not gone on from.
        product: H·v; default: the operator itself.
        on_step: is told how many steps are done after each new one.
        is_open, most: as for `lanczos`.
    """
    kept.forget_of_another_loss(loss)
    if refusal := kept.refusal():
        operator.method, operator.refusal = "differences", refusal

    def keep(number: int, step: Step) -> None:
        if number == 0:
            kept.keep_loss(loss)
        if operator.refusal and not kept.refusal():
            kept.keep_refusal(operator.refusal)
        kept.keep(number, step)
        on_step(number + 1)

    return lanczos(
        product or operator, operator.size, ranks, seed=seed, steps=steps, noise=lambda: operator.noise,
        known=kept.known(), keep=keep, is_open=is_open, most=most,
    )  # fmt: skip
