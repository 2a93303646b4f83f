"""Takes rights out of a saved session that its user has lost meanwhile.

CRIU gives each thread the groups back that it had. A user who was taken out of a group
since (of administrators, of those who may read some data) would keep it for as long as
the session is suspended and resumed. So the images are changed before anything is read
from them: files, too, are then opened with what is left (``kinds.named_files``), and it
is what is left that a return is judged by (``kinds.rights``).

What a program of another user (``sudo``) may do does not depend on the groups that it
is left with, so such a session is not adapted: :attr:`Adapted.others`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.kinds import attributes
from jupyterhub_gpu_reclaim.common import codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages

_GROUPS = ("gid", "egid", "sgid", "fsgid")
_USERS = ("uid", "euid", "suid", "fsuid")
_HELD = ("cap_prm", "cap_amb")


class RightsToday(NamedTuple):
    """Rights that a fresh start would give the session's programs."""

    uid: int
    gid: int  #: for a program that had made a lost group its own (``newgrp``)
    keeps: Callable[[int], bool]  #: whether the user still has that group
    no_new_privileges: bool = False


class Adapted(NamedTuple):
    lost: frozenset[int]  #: groups
    sudo: bool  #: whether a thread could gain privileges, and may not any more
    others: bool  #: whether a thread is another user's, or has capabilities


def adapt(saved: SavedImages, today: RightsToday) -> Adapted:
    """Leave each thread what its user has today, and say what was taken.

    Raises:
        RestoreFailed: an image is damaged.
    """
    lost: set[int] = set()
    sudo = others = False
    for _, cores in saved.cores():
        for core in cores:
            creds = core.thread_core.creds
            if not core.thread_core.HasField("creds"):
                continue  # it had ended
            others |= _is_other(creds, today.uid)
            taken = _taken(creds, today)
            lost |= taken
            gained = today.no_new_privileges and not creds.no_new_privs
            sudo |= gained
            if taken or gained:
                _reduce(creds, taken, today)
    if sudo and saved.size(attributes.IMAGE) is not None:
        had = attributes.load(saved)
        for one in had.values():
            for thread in one.threads.values():
                thread.given_back["NoNewPrivs"] = "1"
        saved.replace(attributes.IMAGE, codec.encode(had))
    return Adapted(frozenset(lost), sudo, others)


def _is_other(creds: Any, uid: int) -> bool:
    if uid == 0:
        return False  # root may do everything anyway
    strange = any(getattr(creds, field) != uid for field in _USERS)
    return strange or any(any(getattr(creds, field)) for field in _HELD)


def _taken(creds: Any, today: RightsToday) -> set[int]:
    """Lost groups of a thread that is wholly the user's own.

    Its effective group alone may be that of a set-group-ID program, which any user may
    run. ``sudo`` itself has the user's real id, and root's groups.
    """
    if any(getattr(creds, field) != today.uid for field in _USERS):
        return set()
    return {group for group in (creds.gid, *creds.groups) if not today.keeps(group)}


def _reduce(creds: Any, taken: set[int], today: RightsToday) -> None:
    kept = [group for group in creds.groups if group not in taken]
    del creds.groups[:]
    creds.groups.extend(kept)
    for field in _GROUPS:
        if getattr(creds, field) in taken:
            setattr(creds, field, today.gid)
    if today.no_new_privileges:
        creds.no_new_privs = 1
