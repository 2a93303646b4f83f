"""Open files of ``/proc/PID``."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import process_of
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.mounts import has_proc

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return

#: Of these it counts what rights their opener had.
_BY_OPENER: Final = frozenset({"pagemap", "stack"})
_MEMORY: Final = "mem"
_SEES_ALL: Final = 1 << 21  #: CAP_SYS_ADMIN


class TreeRights(NamedTuple):
    """Rights that decide whether files come back, by the processes' session pids."""

    credentials: Mapping[int, Credentials]
    hidden: Collection[int]  #: whose memory is closed to their own user (prctl(2))
    is_proc: bool  #: whether the kernel's files are at ``/proc``


class HeldFile(NamedTuple):
    path: bytes
    flags: int
    mode: int
    holder: int | None  #: the process that has it; None: not known


class ProcessFiles(Kind):
    """Open files of ``/proc/PID``.

    CRIU opens these files by their names, as root, once the processes are there. The
    path is the kernel's alone as long as ``/proc`` is. So a file comes back if root's
    opening it gives its holder nothing that the holder did not have:

    * what shows a process to those that have the same rights, to be read by them (top
      and psutil have some open for a moment);
    * its own memory, where all processes have the same rights: a program that was
      started with others (``su``) may have the descriptor from the one that started it.

    Some files, such as ``pagemap``, tell more the more rights their opener had. They
    come back where the holder may see all of it. Of a program that has ended nothing
    comes back: CRIU would make one of that number for a moment, which is often over too
    soon.
    """

    def rewrite(self, back: Return) -> None:
        saved, left = back.saved, set(back.saved.left)
        if not left:
            return
        rights = TreeRights(saved.credentials, saved.hidden, has_proc(back.init_pid))
        held: list[tuple[int, int | None]] = [
            (number, pid) for (pid, _), (_, number) in saved.descriptors.items()
        ]
        held += [(use.id, use.pid) for use in saved.uses]
        held += [(number, None) for number in left - {number for number, _ in held}]
        for number, pid in held:
            if number in left:
                reg = saved.entries[number].reg
                why = refusal(HeldFile(reg.name, reg.flags, reg.mode, pid), rights)
                if why:
                    raise refused(Reason.FILE_DENIED, reg.name, why)


def refusal(file: HeldFile, tree: TreeRights) -> str:
    """Why a file of ``/proc/PID`` cannot come back; empty when it can."""
    if not tree.is_proc or stat.S_IFMT(file.mode) not in {stat.S_IFREG, stat.S_IFDIR}:
        return "it is not the kernel's"
    name, owner = _name(file.path), process_of(file.path)
    its = tree.credentials.get(owner or 0)
    reads = file.flags & os.O_ACCMODE == os.O_RDONLY or bool(file.flags & os.O_PATH)
    if its is None:
        return "it is of the session's init, or of a program that has ended"
    if reads and name != _MEMORY:
        return _refusal_to_read(name, its, _holders(file, tree))
    if file.holder != owner:
        return "it is of another program"
    if name == _MEMORY:
        alike = len({*tree.credentials.values()}) == 1 and owner not in tree.hidden
        return "" if alike else "programs of the session have different rights"
    return "the kernel makes it new"


def _holders(file: HeldFile, tree: TreeRights) -> set[Credentials | None]:
    if file.holder is None:
        return {*tree.credentials.values()}
    return {tree.credentials.get(file.holder)}


def _refusal_to_read(
    name: str, its: Credentials, holders: set[Credentials | None]
) -> str:
    if holders != {its}:
        return "it is of a program with other rights"
    if name in _BY_OPENER and not its.effective & _SEES_ALL:
        return "root would see more in it"
    return ""


def _name(path: bytes) -> str:
    """First name in a path below the folder of a process or of one of its threads."""
    parts = path.split(b"/")[3:]
    if parts[:1] == [b"task"] and len(parts) > 2:
        parts = parts[2:]
    return parts[0].decode("ascii", "replace") if parts else ""
