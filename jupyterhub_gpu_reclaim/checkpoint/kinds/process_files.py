"""Open files of ``/proc/PID``."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import process_of
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.mounts import has_proc

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import SavedFiles
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return

#: Of these it counts what rights their opener had.
_BY_OPENER: Final = frozenset({"pagemap", "stack"})
_MEMORY: Final = "mem"
_SEES_ALL: Final = 1 << 21  #: CAP_SYS_ADMIN
_STRANGE: Final = "it is not the kernel's"


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
        is_proc = has_proc(back.init_pid)
        held: list[tuple[int, int | None]] = [
            (number, pid) for (pid, _), (_, number) in saved.descriptors.items()
        ]
        held += [(use.id, use.pid) for use in saved.uses]
        held += [(number, None) for number in left - {number for number, _ in held}]
        for number, pid in held:
            if number in left:
                reg = saved.entries[number].reg
                why = refusal(reg, pid, saved) if is_proc else _STRANGE
                if why:
                    raise refused(Reason.FILE_DENIED, reg.name, why)


def refusal(reg: Any, holder: int | None, saved: SavedFiles) -> str:
    """Why a file of ``/proc/PID`` (``reg_file_entry``) cannot come back; empty: it can.

    ``holder`` is the process that has it; None: that is not known.
    """
    if stat.S_IFMT(reg.mode) not in {stat.S_IFREG, stat.S_IFDIR}:
        return _STRANGE
    name, owner = _name(reg.name), process_of(reg.name)
    every = {*saved.credentials.values()}
    its = saved.credentials.get(owner or 0)
    if its is None:
        return "it is of the session's init, or of a program that has ended"
    reads = reg.flags & os.O_ACCMODE == os.O_RDONLY or bool(reg.flags & os.O_PATH)
    if reads and name != _MEMORY:
        holders = every if holder is None else {saved.credentials.get(holder)}
        if holders != {its}:
            return "it is of a program with other rights"
        more = name in _BY_OPENER and not its.effective & _SEES_ALL
        return "root would see more in it" if more else ""
    if holder != owner:
        return "it is of another program"
    if name == _MEMORY:
        alike = len(every) == 1 and owner not in saved.hidden
        return "" if alike else "programs of the session have different rights"
    return "the kernel makes it new"


def _name(path: bytes) -> str:
    """First name in a path below the folder of a process or of one of its threads."""
    parts = path.split(b"/")[3:]
    if parts[:1] == [b"task"] and len(parts) > 2:
        parts = parts[2:]
    return parts[0].decode("ascii", "replace") if parts else ""
