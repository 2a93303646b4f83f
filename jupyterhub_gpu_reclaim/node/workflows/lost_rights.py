"""Finds, at a session's return, rights that its user has lost since it was suspended.

On the machine itself the holding init knows whom a fresh start would run as: the Hub
has asked the system's user database. In a container it is what the container gives its
first process; a root there gives its programs what it likes, and is not judged.
"""

from __future__ import annotations

import grp
import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
from jupyterhub_gpu_reclaim.checkpoint.tree.taken_away import RightsToday, adapt
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import CheckpointImages
from jupyterhub_gpu_reclaim.session_init import command_line

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import (
        CheckpointContents,
    )
    from jupyterhub_gpu_reclaim.node.session import Session

_log = logging.getLogger(__name__)


def without_lost(
    session: Session, there: CheckpointContents
) -> tuple[list[Finding], dict[str, bytes]]:
    """Why it must not come back; CRIU's images with its user's rights of today.

    Raises:
        RestoreFailed: an image is damaged.
    """
    today = _today(session, there)
    if today is None:
        return [], {}
    if today.uid != there.world.uid:
        found = finding(Reason.USER_MISMATCH, there=there.world.uid, here=today.uid)
        return [found], {}

    images = SavedImages(CheckpointImages(there.checkpoint))
    adapted = adapt(images, today)
    lost = [f"the group {_group_name(group)}" for group in sorted(adapted.lost)]
    lost += ["sudo"] if adapted.sudo else []
    if lost and adapted.others:
        found = finding(Reason.RIGHTS_CHANGED, lost=" and ".join(lost))
        return [found], {}
    if lost:
        _log.warning("%s comes back without %s", session.key, " and ".join(lost))
    return [], images.written() if lost else {}


def _today(session: Session, there: CheckpointContents) -> RightsToday | None:
    if session.container or session.hint.pod:
        here = given_groups(session)
        taken = set(there.world.given_groups).difference(here)
        uid = procfs.status(session.init_pid).get("Uid", "0").split()[0]
        if uid == "0" or not here or not taken:
            return None
        return RightsToday(int(uid), here[0], lambda group: group not in taken)
    try:
        words = procfs.words(session.init_pid, "cmdline")
    except OSError:
        return None  # it has ended, and nothing comes back there
    parsed = command_line.parse(words)
    user = parsed.system_user if parsed else None
    if user is None:
        return None
    groups = {user.gid, *user.groups}
    return RightsToday(
        user.uid, user.gid, lambda group: group in groups, user.no_new_privileges
    )


def given_groups(session: Session) -> list[int]:
    """The groups of its init, its own first; a container gives them to its programs.

    None, if the init has ended.
    """
    status = procfs.status(session.init_pid)
    if "Gid" not in status:
        return []
    return [int(status["Gid"].split()[0]), *map(int, status["Groups"].split())]


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
