"""Takes rights out of a saved session that its user has lost meanwhile.

CRIU gives each thread the groups back that it had. A user who was taken out of a group
since (of administrators, of those who may read some data) would keep it for as long as
the session is suspended and resumed. So the images are changed before anything is read
from them: files, too, are then opened with what is left (``handover``).

Pure. What a program of another user (``sudo``) may do does not depend on the groups
that it is left with, so such a session is not adapted: :attr:`Adapted.others`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_GROUPS = ("gid", "egid", "sgid", "fsgid")
_USERS = ("uid", "euid", "suid", "fsuid")
_HELD = ("cap_inh", "cap_prm", "cap_amb")


class RightsToday(NamedTuple):
    """Rights that a fresh start would give the session's programs."""

    uid: int
    gid: int  #: for a program that had made a lost group its own (``newgrp``)
    keeps: Callable[[int], bool]  #: whether the user still has that group
    no_new_privileges: bool = False


class Adapted(NamedTuple):
    """The images of threads that are different now, and what was found in them."""

    images: dict[str, bytes]
    lost: frozenset[int]  #: groups
    others: bool  #: whether a thread is another user's, or has capabilities


def adapt(read: Callable[[str], bytes | None], today: RightsToday) -> Adapted:
    """Leave each thread what its user has today.

    Args:
        read: CRIU's image of that name; None: there is none.
        today: what the user has.

    Raises:
        RestoreFailed: an image is damaged.
    """
    changed: dict[str, bytes] = {}
    lost: set[int] = set()
    others = False
    for name in _cores(read):
        if (image := read(name)) is None:
            continue
        core = images.parse("core_entry", images.only(image, images.CORE_MAGIC))
        if not core.thread_core.HasField("creds"):
            continue  # a process that had ended
        creds = core.thread_core.creds
        others |= _is_other(creds, today.uid)
        taken = _taken(creds, today)
        lost |= taken
        if taken or (today.no_new_privileges and not creds.no_new_privs):
            _reduce(creds, taken, today)
            changed[name] = images.join(images.CORE_MAGIC, [images.serialize(core)])
    return Adapted(changed, frozenset(lost), others)


def _cores(read: Callable[[str], bytes | None]) -> Iterator[str]:
    """The name of each thread's image."""
    for payload in images.split(read("pstree.img") or b"", images.PSTREE_MAGIC):
        entry = images.parse("pstree_entry", payload)
        yield from (f"core-{number}.img" for number in entry.threads or [entry.pid])


def _is_other(creds: Any, uid: int) -> bool:
    if uid == 0:
        return False  # root may do everything anyway
    strange = any(getattr(creds, field) != uid for field in _USERS)
    return strange or any(any(getattr(creds, field)) for field in _HELD)


def _taken(creds: Any, today: RightsToday) -> set[int]:
    """Lost groups of a thread of the user's own.

    Its effective group alone may be that of a set-group-ID program, which anybody runs.
    """
    if creds.uid != today.uid:
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
