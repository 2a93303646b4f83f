"""The one processor that sessions are suspended on, x86-64: its calls and registers.

Calls that came with Linux 5.1 or later have one number everywhere and are not here
(``<asm-generic/unistd.h>``).
"""

from __future__ import annotations

import platform
import struct
from types import MappingProxyType
from typing import Final

from jupyterhub_gpu_reclaim.linux.libc import checked, libc

#: Where sessions have been suspended and resumed, as in ``uname -m``.
KNOWN: Final = "x86_64"
#: The numbers of system calls, of <asm/unistd_64.h>.
CALLS: Final = MappingProxyType(
    {
        "close": 3,
        "dup3": 292,
        "epoll_ctl": 233,
        "fcntl": 72,
        "get_robust_list": 274,
        "ioctl": 16,
        "kcmp": 312,
        "listen": 50,
        "madvise": 28,
        "mmap": 9,
        "mprotect": 10,
        "munmap": 11,
        "openat": 257,
        "prctl": 157,
        "set_robust_list": 273,
        "setgroups": 116,
        "setresgid": 119,
        "setresuid": 117,
        "shmat": 30,
        "shmdt": 67,
    }
)
#: ``user_regs_struct``. What follows are places in it.
REGISTERS: Final = struct.Struct("27Q")
RESULT: Final = 10  #: rax: a call's number goes there, too
ARGUMENTS: Final = (14, 13, 12, 7, 9, 8)  #: rdi, rsi, rdx, r10, r8, r9
COUNTER: Final = 16  #: rip
CALL: Final = 15  #: orig_rax: the call to be resumed; -1 for none
#: The instruction that makes a call (``syscall``).
INSTRUCTION: Final = b"\x0f\x05"


def name() -> str:
    """This machine's architecture, as in ``uname -m``."""
    return platform.machine()


def is_known() -> bool:
    return name() == KNOWN


def call(name: str, *arguments: object) -> int:
    """The result of a system call that the C library has no function for.

    Raises:
        OSError: as the call says, or this kind of machine is not known.
    """
    if not is_known():
        raise OSError(0, f"no system calls are known of {platform.machine()}")
    return checked(libc.syscall(CALLS[name], *arguments), name)
