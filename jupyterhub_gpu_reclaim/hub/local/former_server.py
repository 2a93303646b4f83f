"""Servers that LocalProcessSpawner itself started, before ours took its place.

All that it leaves is a pid. Whether that is still the server is decided by facts that
no other user's process can have: it runs as the server's system user, leads a session,
and began when the Hub started the server. Nothing is read that its user could block.
"""

from __future__ import annotations

import os
import time
from datetime import UTC
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.hub.spawner.state import Location
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.session_init import launcher

if TYPE_CHECKING:
    from datetime import datetime

#: Seconds by which the Hub's note of a start and the process may differ: a slow start
#: hook lies between, or a clock that was set.
_BETWEEN = 900.0


def find(pid: int, uid: int, started: datetime | None) -> Location:
    """A former server's process; the empty location if it has ended.

    Args:
        pid: as LocalProcessSpawner has noted it.
        uid: of the server's system user.
        started: when the Hub started it, in UTC without a zone; None if unknown.
    """
    start = launcher.start_time(pid) if pid else 0
    if not start or not _is_server(pid, uid, start, started):
        return Location()
    return Location(pid=pid, start=start, boot=launcher.boot_id())


def _is_server(pid: int, uid: int, start: int, started: datetime | None) -> bool:
    status = procfs.status(pid)
    try:
        owner, names = int(status["Uid"].split()[0]), status["NSpid"].split()
        leads = os.getsid(pid) == pid
    except (OSError, KeyError):
        return False  # it has just ended
    if owner != uid or not leads or len(names) > 1:  # in a namespace: a session of ours
        return False
    if started is None:
        return True
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - start / os.sysconf("SC_CLK_TCK")
    noted = started.replace(tzinfo=started.tzinfo or UTC).timestamp()
    return abs(time.time() - age - noted) < _BETWEEN
