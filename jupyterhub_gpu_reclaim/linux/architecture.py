"""Differences of Linux between processors: numbers of system calls, registers.

Calls that came with Linux 5.1 or later have one number everywhere and are not here
(``<asm-generic/unistd.h>``).
"""

from __future__ import annotations

import platform
import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.linux.libc import checked, libc

if TYPE_CHECKING:
    from collections.abc import Mapping


class Architecture(NamedTuple):
    """How a call is made by ptrace(2), and its number."""

    calls: Mapping[str, int]  #: numbers of system calls by their name
    #: How many registers ``user_regs_struct`` has, of 8 bytes each; the others are
    #: places in it.
    words: int
    number: int  #: where the call's number goes
    arguments: tuple[int, ...]  #: where its arguments go, in their order
    result: int  #: where its result is found
    counter: int  #: the address of the next instruction
    #: Where -1 says that no earlier call is to be resumed; None where a changed
    #: ``counter`` says so.
    no_restart: int | None
    #: The processor's flags, and which of them are cleared before a call.
    flags: tuple[int, int] | None
    instruction: bytes  #: that makes a call; it begins at a multiple of ``alignment``
    alignment: int  #: of instructions, in bytes

    @property
    def registers(self) -> struct.Struct:
        return struct.Struct(f"{self.words}Q")


#: The numbers of system calls: of <asm/unistd_64.h>, and of <asm-generic/unistd.h>.
_CALLS: Final = {
    "close": (3, 57),
    "dup3": (292, 24),
    "epoll_ctl": (233, 21),
    "fcntl": (72, 25),
    "get_robust_list": (274, 100),
    "ioctl": (16, 29),
    "ioprio_get": (252, 31),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "listen": (50, 201),
    "madvise": (28, 233),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "openat": (257, 56),
    "prctl": (157, 167),
    "set_robust_list": (273, 99),
    "setgroups": (116, 159),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "shmat": (30, 196),
    "shmdt": (67, 197),
}
_X86_64: Final = Architecture(
    calls=MappingProxyType({name: both[0] for name, both in _CALLS.items()}),
    words=27,
    number=10,  # rax
    arguments=(14, 13, 12, 7, 9, 8),  # rdi, rsi, rdx, r10, r8, r9
    result=10,
    counter=16,  # rip
    no_restart=15,  # orig_rax
    flags=None,
    instruction=b"\x0f\x05",  # syscall
    alignment=1,
)
_AARCH64: Final = Architecture(
    calls=MappingProxyType({name: both[1] for name, both in _CALLS.items()}),
    words=34,  # x0 to x30, sp, pc, pstate
    number=8,
    arguments=(0, 1, 2, 3, 4, 5),
    result=0,
    counter=32,
    no_restart=None,
    # PSR_BTYPE_MASK: set after an indirect branch, it wants a landing pad next.
    flags=(33, 0xC00),
    instruction=b"\x01\x00\x00\xd4",  # svc #0
    alignment=4,
)
KNOWN: Final = MappingProxyType({"x86_64": _X86_64, "aarch64": _AARCH64})
#: Where sessions have been suspended and resumed on the processor itself.
TRIED: Final = frozenset({"x86_64"})


def name() -> str:
    """This machine's architecture, as in ``uname -m``."""
    return platform.machine()


def here() -> Architecture | None:
    return KNOWN.get(name())


def call(name: str, *arguments: object) -> int:
    """The result of a system call that the C library has no function for.

    Raises:
        OSError: as the call says, or this kind of machine is unknown.
    """
    known = here()
    if known is None:
        raise OSError(0, f"no system calls are known of {platform.machine()}")
    return checked(libc.syscall(known.calls[name], *arguments), name)
