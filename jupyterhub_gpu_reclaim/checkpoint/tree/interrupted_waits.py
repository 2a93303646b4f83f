"""Rewrites a saved epoll wait so that it is restarted instead of interrupted.

It is needed for the thread that runs a server's event loop (``jupyter.thaw_order`` in
``node``). Bytes to bytes: it opens nothing and touches no process.

CRIU saves a thread in epoll_wait(2) as one whose wait was interrupted (EINTR). Python,
and so asyncio, then compares the clock with the end of the wait; if that has passed, it
assumes "no events" without another look, and everything that is due runs before
anything that has come in. A restarted wait finds what has come in first.

The restarted wait is as long as the old one was from its beginning. So this is only for
a thread that is certain to be woken.
"""

from __future__ import annotations

import errno
from typing import Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images

#: epoll_wait, epoll_pwait and epoll_pwait2 of x86-64.
_WAITS: Final = frozenset({232, 281, 441})
_INTERRUPTED: Final = (1 << 64) - errno.EINTR
#: Length of the instruction ``syscall``. CRIU itself goes back by as much for the calls
#: that the kernel would take up again.
_SYSCALL_BYTES: Final = 2
#: Registers of a 32-bit program, whose calls have other numbers.
_COMPAT: Final = 2


def wait_again(core_img: bytes) -> bytes:
    """CRIU's image of a thread, with an interrupted wait made one to be begun.

    The image of a thread that did something else, or of another kind of machine, is
    given back as it is.

    Raises:
        RestoreFailed: it is no such image (``checkpoint_damaged``).
    """
    core = images.parse("core_entry", images.only(core_img, images.CORE_MAGIC))
    registers = core.thread_info.gpregs
    waited = registers.orig_ax in _WAITS and registers.ax == _INTERRUPTED
    if not waited or registers.mode == _COMPAT or registers.ip < _SYSCALL_BYTES:
        return core_img
    registers.ax = registers.orig_ax
    registers.ip -= _SYSCALL_BYTES
    return images.join(images.CORE_MAGIC, [images.serialize(core)])
