"""Finds which pod and which container a process belongs to, by its control groups.

A process cannot leave the groups into which the kubelet and the container runtime have
put it, and the kernel reports them; so this, unlike a command line, cannot be forged.
Reads /proc/<pid>/cgroup, of v1 and v2, of the systemd and the cgroupfs driver, of
containerd, CRI-O and cri-dockerd.

::

    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/
        cri-containerd-<id>.scope          (crio-<id>.scope, docker-<id>.scope)
    /kubepods/besteffort/pod<uid>/<id>     (crio-<id>, <id>/container)

Whatever a cluster puts before ``kubepods`` (kind, k3s, a prefix of the administrator's,
the ``..`` of a control group namespace of our own) is skipped. Below its container a
user may be allowed to make groups of any name; so the outermost pod counts.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from jupyterhub_gpu_reclaim.linux import procfs

#: A pod's uid: a UUID, with dashes or (systemd) underscores, or a static pod's hash.
_UID = r"(?P<uid>[0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
_SLICE: Final = re.compile(
    rf"(?:.+-)?kubepods(?:-(?:burstable|besteffort))?-pod{_UID}\.slice"
)
_FOLDER: Final = re.compile(rf"pod{_UID}")
_QUALITY: Final = frozenset({"burstable", "besteffort"})
_SCOPE: Final = re.compile(
    r"(?:(?:cri-containerd|crio|docker)-)?([0-9a-f]{64})(?:\.scope)?"
)


class Container(NamedTuple):
    """Where a process lives."""

    pod: str  #: uid, with dashes where it is a UUID
    id: str  #: of the container, 64 hexadecimal digits; empty for the pod's own group


def container_of(pid: int) -> Container | None:
    """The container of a process; None for one that is in no pod, or has ended."""
    return parse(procfs.text(pid, "cgroup"))


def parse(table: str) -> Container | None:
    """The container named in a /proc/<pid>/cgroup; pure.

    None also where the hierarchies name different pods: then nothing is known.
    """
    paths = [
        line.split(":", 2)[2] for line in table.splitlines() if line.count(":") > 1
    ]
    found = {one for one in map(_parse_path, paths) if one is not None}
    if len({one.pod for one in found}) != 1:
        return None
    named = {one for one in found if one.id}
    if len(named) > 1:
        return None
    return next(iter(named or found))


def _parse_path(path: str) -> Container | None:
    parts = path.split("/")
    for at, part in enumerate(parts):
        match = _SLICE.fullmatch(part)
        if match is None and _is_below_kubepods(parts[:at]):
            match = _FOLDER.fullmatch(part)
        if match is not None:
            scope = _SCOPE.fullmatch(parts[at + 1]) if at + 1 < len(parts) else None
            return Container(
                match["uid"].replace("_", "-"), scope[1] if scope is not None else ""
            )
    return None


def _is_below_kubepods(above: list[str]) -> bool:
    if above and above[-1] in _QUALITY:
        above = above[:-1]
    return bool(above) and above[-1] == "kubepods"
