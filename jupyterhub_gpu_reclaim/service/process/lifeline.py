"""Ends the service with its Hub, or when it hangs; and keeps its secret.

An orphan of a killed Hub would hold the port of its successor, and the journal.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import select
import signal
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.durable import kept_secret
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.libc import checked, libc

if TYPE_CHECKING:
    from pathlib import Path

#: Variable in our environment with the Hub's pid (``hub/config.py``).
HUB_PID = "GPU_RECLAIM_HUB_PID"
#: Seconds without a turn of the event loop after which the program ends. A short time
#: would take a busy machine for a hung program.
HUNG_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(starter: int = 0) -> bool:
    """Have SIGTERM sent when the parent ends; returns whether it has ended before.

    The kernel does it even while the event loop is stuck. It does not notice a parent
    that ended before this call: another process has taken its place by then, which may
    never end. So the starter's pid, as it has told it, is looked at (0: unknown).
    """
    checked(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0))
    return starter > 0 and starter != os.getppid() and not _exists(starter)


async def end_if_hung() -> None:
    """End the program, with a traceback, if this task does not get its turn in time."""
    try:
        while True:
            faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True)
            await asyncio.sleep(HUNG_SECONDS / 10)
    finally:
        faulthandler.cancel_dump_traceback_later()


def secret_in(folder: Path) -> bytes:
    """The secret that signs cookies, kept in a folder of our own (0700).

    Raises:
        Refused: the folder or the file cannot be used, or holds none.
    """
    try:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        return kept_secret(folder / "cookie_secret").encode()
    except (OSError, ValueError) as error:
        what = f"The state folder {folder} cannot be used: {error}."
        raise Refused(Reason.STATE_UNUSABLE, what=what) from error


def _exists(pid: int) -> bool:
    # A process that waits to be reaped does not count.
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        return not select.select([descriptor], [], [], 0)[0]
    finally:
        os.close(descriptor)
