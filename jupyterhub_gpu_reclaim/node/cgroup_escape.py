"""Moves CRIU into a cgroup outside the agent's container, so that it outlives it.

A runtime that ends a container kills every process in its cgroup, and a CRIU that is
killed in the middle leaves damage in the session. In a cgroup of its own, inside the
agent's pod but outside any container, CRIU only loses its stream: it fails and cures
the session's processes, and the next agent waits for it. The cgroup goes with the pod.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.linux import cgroups
from jupyterhub_gpu_reclaim.linux.cgroups import container_of

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.linux.cgroups import Group

NAME: Final = "gpu-reclaim-criu"
#: Files that are empty in a new group of v1's cpuset, which takes no process then.
_CPUS: Final = ("cpuset.cpus", "cpuset.mems")

_log = logging.getLogger(__name__)


def move(pid: int) -> None:
    """Move a process, and its children, from its container's cgroups to its pod's."""
    # Where the node forbids that it stays: captures work all the same, as long as the
    # agent's container is not killed.
    container = container_of(pid)
    if container is None or not container.id:
        return
    groups = cgroups.groups_of(pid, at_host=True)
    parents = [_pods(group, container.id) for group in groups]
    try:
        for group in cgroups.create([one for one in parents if one], NAME):
            for name in _CPUS if "cpuset" in group.controllers else ():
                if group.version == 1:
                    value = (group.folder.parent / name).read_text(encoding="ascii")
                    (group.folder / name).write_text(value, encoding="ascii")
            cgroups.take(group, pid)
    except (Refused, OSError) as error:
        detail = error.detail if isinstance(error, Refused) else error
        _log.warning(
            "- CRIU stays in the agent's container and ends with it: %s", detail
        )


def _pods(group: Group, container: str) -> Group | None:
    """The group of the pod; None if this hierarchy has none of the container's."""
    for folder in (group.folder, *group.folder.parents):
        if container in folder.name:  # with a runtime's prefix, or as a scope
            return group._replace(folder=folder.parent)
    return None
