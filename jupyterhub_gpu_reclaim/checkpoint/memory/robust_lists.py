"""Keeps the end of saved programs out of the locks that they hold in mapped files.

A robust mutex is freed by the kernel when the thread that holds it ends: it sets
FUTEX_OWNER_DIED in a word that may lie in a file that is mapped shared, as LMDB's
``lock.mdb`` during a write transaction (kernel/futex/core.c, exit_robust_list). What
was saved has not died. Its file would differ from what it was when it was saved, so
that it could not come back, or it would come back without the lock that it holds.

So each thread that holds one forgets its list before it is ended. CRIU has saved it,
and gives it back at a return.
"""

from __future__ import annotations

import ctypes
import logging
import struct
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.linux import architecture, procfs, ptrace
from jupyterhub_gpu_reclaim.linux.threads import in_thread

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

_log = logging.getLogger(__name__)

#: ``struct robust_list_head``: the first entry, an offset, an entry under way.
_HEAD: Final = struct.Struct("=QqQ")
#: For the reading of all lists.
_SECONDS: Final = 5.0


def forget(tree: Snapshot) -> None:
    """Have the kernel leave their locks alone when they end; they are ended next.

    Where one cannot be made to, its locks are freed as if it had died.
    """
    try:
        # In a thread: a list may lie in a file that nobody serves any more.
        held = in_thread(lambda: _holders(tree), _SECONDS)
    except OSError as error:
        _log.warning("- locks of programs are freed by their end: %s", error)
        return
    for process, holders in held:
        try:
            _forget(process, holders)
        except OSError as error:
            _log.warning(
                "- locks of process %d (%s) are freed by its end: %s",
                process.pid,
                process.name,
                error,
            )


def _holders(tree: Snapshot) -> list[tuple[Process, list[int]]]:
    found = [
        (each, [tid for tid in ptrace.tasks(each.pid) if _holds_one(tid)])
        for each in tree.alive
    ]
    return [(process, holders) for process, holders in found if holders]


def _holds_one(tid: int) -> bool:
    """Whether a thread has a lock in its list, or is just taking or freeing one."""
    head, length = ctypes.c_void_p(), ctypes.c_size_t()
    try:
        found = ctypes.byref(head), ctypes.byref(length)
        architecture.call("get_robust_list", tid, *found)
        if not head.value:
            return False
        data = procfs.memory(tid, head.value, _HEAD.size)
        first, _, pending = _HEAD.unpack(data)
    except (OSError, struct.error):
        return False  # it has ended, or the kernel cannot read its list, either
    return bool(first != head.value or pending)


def _forget(process: Process, holders: list[int]) -> None:
    with ptrace.stopped(process.pid) as traced:
        for tid in holders:
            with traced.thread(tid) as thread:
                thread.call("set_robust_list", 0, _HEAD.size)
