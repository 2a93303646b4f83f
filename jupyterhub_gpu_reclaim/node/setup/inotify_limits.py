"""Reads how many inotify watches Linux allows the programs of one user.

The limit holds for all programs of a user id on the machine, in containers and outside
together, so sessions of the same id share it, and CRIU recreates theirs as root.
Nothing is changed; what is in use is not counted, as it changes all the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jupyterhub_gpu_reclaim.common.models import Finding

LIMIT: Final = procfs.PROC / "sys" / "fs" / "inotify" / "max_user_instances"
#: Kernels come with 128, which the few sessions of tests/cluster have used up when they
#: were root's, as runtime and kubelet are.
ENOUGH: Final = 1024


def findings(limit: Path = LIMIT) -> Iterator[Finding]:
    """A note where the limit is low; none where there is no such limit."""
    try:
        number = int(limit.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return
    if number < ENOUGH:
        yield finding(Reason.FEW_WATCHES, fatal=False, limit=number)
