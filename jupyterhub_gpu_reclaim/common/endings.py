"""How a session's programs ended without a stop, as a reason with its words."""

from __future__ import annotations

import signal

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason

#: All that tell of such an end.
REASONS = (
    Reason.SESSION_ENDED,
    Reason.SESSION_KILLED,
    Reason.SESSION_OUT_OF_MEMORY,
    Reason.SESSION_DISRUPTED,
)
_SIGNALS = signal.valid_signals()


def by_itself(how: str) -> Refused:
    return Refused(Reason.SESSION_ENDED, how=how)


def by_status(status: int) -> Refused:
    """An end with an exit status: Popen's (-n for a signal), or a shell's (128 + n)."""
    number = -status if status < 0 else status - 128
    if number in _SIGNALS:
        return Refused(Reason.SESSION_KILLED, signal=signal.Signals(number).name)
    return by_itself(f"exit status {status}")
