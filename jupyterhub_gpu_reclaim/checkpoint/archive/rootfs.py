"""Finds the file systems that end with a session: its overlay, its temporary ones.

In a container the host has the same file systems mounted, too: the runtime makes
/dev/shm and the root, the kubelet the volumes in memory, both in the host's mount
namespace. So a temporary file system is a pod's own when every place at which the host
has it is one that runtime or kubelet keep for that pod alone. A ``hostPath`` volume
never is: unpacking an archive into it would empty it first.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.archive.writer import open_mount
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import host
from jupyterhub_gpu_reclaim.linux.beneath import open_in_root, open_root
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.mounts import (
    private_tmpfs,
    read_mounts,
    root_overlay,
    visible,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.linux.mounts import Mount

#: Mounts that ``session_init/launcher.py`` makes for a session.
_LAUNCHERS: Final = frozenset({Path("/dev/shm"), Path("/tmp")})  # noqa: S108
_ID: Final = re.compile(r"[0-9a-f]{64}")
#: Folders on a disk that are made for one container or pod, and deleted with it:
#: Docker's anonymous volumes, containerd's for an image's ``VOLUME``, ``emptyDir``.
_ENDING: Final = re.compile(
    r".*/volumes/[0-9a-f]{64}/_data(/.*)?"
    r"|.*/containers/[0-9a-f]{64}/volumes/.+"
    r"|.*/pods/[^/]+/volumes/kubernetes\.io~empty-dir/.+"
)


def private_mounts(init_pid: int, pod: str = "") -> list[Mount]:
    """The mounts whose contents die with the session, the root first, in stable order.

    ``pod`` is the uid of the pod that it lives in; empty: on the host's own file
    systems.
    """
    session = read_mounts(init_pid)
    if pod:
        return pods_own(session, read_mounts(host.PID), pod)
    return sessions_own(session, read_mounts("self"))


def sessions_own(session: list[Mount], ours: list[Mount]) -> list[Mount]:
    """The mounts of a session on the host's file systems that are its alone; pure.

    What the host had mounted when the session began, and has no longer (/run/user/UID
    of a user logged out since), is still mounted in the session where the host's
    mounts do not propagate. So only what the launcher mounts is the session's.
    """
    found = [one for one in private_tmpfs(session, ours) if one.target in _LAUNCHERS]
    overlay = root_overlay(session)
    if overlay is not None and overlay.device not in {m.device for m in ours}:
        found.append(overlay)
    return _in_order(found)


def pods_own(session: list[Mount], outside: list[Mount], pod: str) -> list[Mount]:
    places: dict[str, list[Path]] = {}
    for mount in outside:
        places.setdefault(mount.device, []).append(mount.target)
    shared = {
        device
        for device, targets in places.items()
        if not all(_is_pods(target, pod) for target in targets)
    }
    found = [
        mount
        for mount in private_tmpfs(session, ())
        if mount.root == "/" and mount.device not in shared
    ]
    overlay = root_overlay(session)
    if overlay is not None and "ro" not in overlay.options:
        found.append(overlay)
    return _in_order(found)


def unsavable_root(session: list[Mount]) -> str:
    """Kind of a container's root if it cannot be saved, else empty. Pure.

    Programs may change the root, and the layer with the changes is only known of an
    overlay. (Other snapshotters copy the image, or keep changes where we cannot look.)
    """
    roots = [mount for mount in visible(session) if str(mount.target) == "/"]
    if not roots or roots[0].kind == "overlay" or "ro" in roots[0].options:
        return ""
    return roots[0].kind


def ending_volumes(session: list[Mount]) -> list[Mount]:
    """The volumes on a disk that end with its container and are not archived. Pure."""
    return [
        mount
        for mount in visible(session)
        if mount.kind != "tmpfs"
        and "ro" not in mount.options
        and _ENDING.fullmatch(mount.root)
    ]


def open_contents(init_pid: int, mount: Mount) -> int:
    """Open what is archived of a mount: all of a tmpfs, the upper folder of an overlay.

    Raises:
        Refused: it is not there (``no_tree``).
    """
    if mount.kind != "overlay":
        return open_mount(init_pid, mount)
    upper = mount.option("upperdir") or ""
    # The host's path of it; our own file system may be another.
    try:
        with closing(open_root(host.root())) as root:
            return open_in_root(root, os.fsencode(upper), os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        detail = f"{mount.target}: upper folder: {error}"
        raise Refused(Reason.NO_TREE, detail=detail) from None


def _is_pods(target: Path, pod: str) -> bool:
    """Whether the host has there what belongs to that pod, or to one container.

    ``/var/lib/kubelet/pods/<uid>/volumes/…`` (kubelet);
    ``/run/containerd/io.containerd.grpc.v1.cri/sandboxes/<id>/shm`` (containerd) and
    ``/run/containers/storage/overlay-containers/<id>/userdata/shm`` (CRI-O).
    """
    parts = target.parts
    return pod in parts or (
        parts[-1] == "shm" and any(_ID.fullmatch(part) for part in parts)
    )


def _in_order(found: Iterable[Mount]) -> list[Mount]:
    return sorted(found, key=lambda mount: str(mount.target))
