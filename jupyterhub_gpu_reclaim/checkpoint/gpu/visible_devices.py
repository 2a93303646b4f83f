"""Finds which of the machine's GPUs a container has been given, by its device nodes.

A restored pod has other cards than the pod before it, and the driver must be told which
replaces which. The container runtime makes a device node for each card that the device
plugin gave to the pod, whichever way it was requested, and the device cgroup lets it
open no other. So neither the kubelet's socket nor the environment, which the user
controls, is needed. ``/proc/driver/nvidia/gpus/<bus>/information`` tells UUID and minor
number of each card; ``/dev/nvidia<minor>`` has the major number 195.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.linux import host
from jupyterhub_gpu_reclaim.linux.beneath import found_at, root_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAJOR: Final = 195
_UUID: Final = re.compile(r"^GPU UUID:\s*GPU-([0-9a-fA-F-]{36})\s*$", re.MULTILINE)
_MINOR: Final = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)


def visible_to(pid: int, *, driver: Path | None = None) -> frozenset[str] | None:
    """The cards of the container of a process, by UUID (32 hexadecimal digits).

    Returns:
        None where that is not told: no such driver, no node of a card of its, or an
        agent that may not look at the host's files.
    """
    folder = driver or host.root() / "proc/driver/nvidia"
    try:
        # Pathlib takes a missing folder for empty, not a closed one.
        by_minor = dict(_cards(folder))
        with root_of(pid) as root:
            found = {uuid for minor, uuid in by_minor.items() if _has(root, minor)}
    except OSError:
        return None
    return frozenset(found) or None


def _cards(folder: Path) -> Iterator[tuple[int, str]]:
    for path in folder.glob("gpus/*/information"):
        with contextlib.suppress(OSError):
            text = path.read_text(errors="replace")
            uuid, minor = _UUID.search(text), _MINOR.search(text)
            if uuid is not None and minor is not None:
                yield int(minor[1]), uuid[1].replace("-", "").lower()


def _has(root: int, minor: int) -> bool:
    with contextlib.suppress(OSError), found_at(root, b"/dev/nvidia%d" % minor) as node:
        status = os.fstat(node)
        of_card = status.st_rdev == os.makedev(_MAJOR, minor)
        return of_card and stat.S_ISCHR(status.st_mode)
    return False
