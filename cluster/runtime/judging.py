"""What becomes of a command whose child has ended: an exit code, or a new start."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from cluster.runtime.child import ChildReport
from landscape.core.errors import FAILED, INTERRUPTED, UNREACHABLE

RESTARTS = 3  # of a private Ray, until a session has lasted STEADY_SECONDS


@dataclass(frozen=True)
class Ended:
    """How a child ended, and what it had reported.

    Attributes:
        signal: the number of the signal that killed it; 0 for none.
        stopped: it was asked to end.
        seconds: how long it lived.
    """

    report: ChildReport
    signal: int = 0
    stopped: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Decision:
    """What is done about an end.

    Attributes:
        code: the exit code of the command; None to start the work anew.
        text: what the user is told; '' for nothing.
        here_failed: user code ended the process, so the new one leaves computing to workers.
    """

    code: int | None
    text: str = ""
    here_failed: bool = False


def judge(ended: Ended, restarts: int) -> Decision:
    """What becomes of a command whose child has ended.

    Args:
        restarts: how often a private Ray has been started anew before.
    """
    report = ended.report
    if report.code is not None and report.lost is None and not (ended.stopped and report.code in (FAILED, UNREACHABLE)):
        return Decision(report.code)
    if ended.stopped:
        return Decision(INTERRUPTED, "interrupted; the same command goes on")
    if report.lost is not None or (report.ray and ended.signal != signal.SIGKILL):
        why = report.lost or "it took this process along"
        if restarts < RESTARTS:
            return Decision(
                None, f"the private Ray has failed ({why}); starting it anew ({restarts + 1} of {RESTARTS})"
            )
        return Decision(
            UNREACHABLE,
            f"address: the private Ray has failed {RESTARTS + 1} times ({why}); what is done is kept: the same command "
            "goes on, and with --debug shows what Ray says",
        )
    if report.attached and not ended.signal:
        return Decision(
            UNREACHABLE,
            "address: the cluster answers no more; what is done is kept: the same command goes on once it does",
        )
    how = f"by {signal.Signals(ended.signal).name}" if ended.signal else "from inside (os._exit?)"
    if report.here:
        return Decision(
            None, f"the process that computed here was ended {how}; going on with Ray's workers, which outlive that",
            here_failed=True,
        )  # fmt: skip
    kept = "what is done is kept: the same command goes on"
    if ended.signal == signal.SIGKILL:
        return Decision(FAILED, f"the process was ended {how}; is there memory enough?; {kept}")
    if report.packed:
        return Decision(
            FAILED,
            f"the process was ended {how} while it computed a packed problem, which runs no user code: torch crashed "
            f"at one of its operations; do not run a file again whose sender you do not know, and report it; {kept}",
        )
    return Decision(FAILED, f"the process was ended {how}; user code may have crashed it; {kept}")
