"""Takes rights out of a saved session that its user has lost meanwhile.

CRIU gives each thread the groups back that it had. A user who was taken out of a group
since (of administrators, of those who may read some data) would keep it for as long as
the session is suspended and resumed. So the images are changed before anything is read
from them: files, too, are then opened with what is left (``handover``), and it is what
is left that a return is judged by (``rights``).

Pure. What a program of another user (``sudo``) may do does not depend on the groups
that it is left with, so such a session is not adapted: :attr:`Adapted.others`. An
inheritable capability is no right of such a program: systemd leaves some to whatever
runs below a unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.tree import attributes
from jupyterhub_gpu_reclaim.common import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    """The images of threads that are different now, and what was found in them."""

    images: dict[str, bytes]
    lost: frozenset[int]  #: groups
    sudo: bool  #: whether a thread could gain privileges, and may not any more
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
    sudo = others = False
    for name, core in _cores(read):
        creds = core.thread_core.creds
        others |= _is_other(creds, today.uid)
        taken = _taken(creds, today)
        lost |= taken
        gained = today.no_new_privileges and not creds.no_new_privs
        sudo |= gained
        if taken or gained:
            _reduce(creds, taken, today)
            changed[name] = _written(core)
    if sudo and (image := read(attributes.IMAGE)) is not None:
        changed[attributes.IMAGE] = _without_new_privileges(image)
    return Adapted(changed, frozenset(lost), sudo, others)


def inherited_within(
    read: Callable[[str], bytes | None], most: int
) -> dict[str, bytes]:
    """The images of threads that inherit more than that set, with what is in it.

    The kernel lets CRIU give a thread nothing else (capset(2)).
    """
    changed = {}
    for name, core in _cores(read):
        creds = core.thread_core.creds
        words = [word & most >> 32 * n for n, word in enumerate(creds.cap_inh)]
        if words != list(creds.cap_inh):
            creds.cap_inh[:] = words
            changed[name] = _written(core)
    return changed


def _cores(read: Callable[[str], bytes | None]) -> Iterator[tuple[str, Any]]:
    """The name of each thread's image, and what it holds."""
    for payload in images.split(read("pstree.img") or b"", images.PSTREE_MAGIC):
        entry = images.parse("pstree_entry", payload)
        for number in entry.threads or [entry.pid]:
            name = f"core-{number}.img"
            if (image := read(name)) is None:
                continue
            core = images.parse("core_entry", images.only(image, images.CORE_MAGIC))
            if core.thread_core.HasField("creds"):  # else it had ended
                yield name, core


def _written(core: Any) -> bytes:
    return images.join(images.CORE_MAGIC, [images.serialize(core)])


def _is_other(creds: Any, uid: int) -> bool:
    if uid == 0:
        return False  # root may do everything anyway
    strange = any(getattr(creds, field) != uid for field in _USERS)
    return strange or any(any(getattr(creds, field)) for field in _HELD)


def _taken(creds: Any, today: RightsToday) -> set[int]:
    """Lost groups of a thread that is wholly the user's own.

    Its effective group alone may be that of a set-group-ID program, which anybody runs.
    ``sudo`` itself has the user's real id, and root's groups.
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


def _without_new_privileges(image: bytes) -> bytes:
    saved = attributes.parse(image)
    for one in saved.values():
        for thread in one.threads.values():
            thread.given_back["NoNewPrivs"] = "1"
    return codec.encode(saved)
