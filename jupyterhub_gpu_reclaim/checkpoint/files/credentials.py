"""The rights of saved tasks: work done with them.

Linux keeps the credentials of each thread apart. So :func:`run_as` makes a thread for
the work, which takes the task's user, groups and capabilities (raw system calls: libc's
wrappers would change the whole process), and ends with it. Files that it opens carry
those credentials, which matters wherever the kernel checks later which user opened a
file. The real and the saved user stay root's, so that the task's user cannot signal or
trace the agent, and the thread's umask and root folder are its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.architecture import call
from jupyterhub_gpu_reclaim.linux.libc import checked, libc
from jupyterhub_gpu_reclaim.linux.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_CLONE_FS: Final = 0x200
_CLONE_NEWNET: Final = 0x40000000
_KEEP: Final = -1
_CAPABILITY_VERSION: Final = 0x20080522
#: CAP_DACOVERRIDE and CAP_DAC_READ_SEARCH.
OVERRIDE: Final = 1 << 1 | 1 << 2


class Credentials(NamedTuple):
    """Ids and capabilities that decide whether a task may open a file."""

    uid: int  #: for file systems (``fsuid``)
    gid: int
    groups: tuple[int, ...] = ()
    effective: int = 0  #: capabilities, as bits

    @property
    def rank(self) -> tuple[bool, int]:
        return self.uid == 0, self.effective.bit_count()


def credentials_of(core: Any) -> Credentials:
    """Credentials that a ``core_entry`` holds.

    Raises:
        RestoreFailed: it holds none (``checkpoint_damaged``).
    """
    if not core.thread_core.HasField("creds"):
        raise images.damaged("a process has no user")
    creds = core.thread_core.creds
    effective = sum(word << 32 * number for number, word in enumerate(creds.cap_eff))
    return Credentials(creds.fsuid, creds.fsgid, tuple(creds.groups), effective)


def credentials_now(pid: int) -> Credentials:
    """Credentials that the kernel reports of a process.

    Raises:
        ProcessLookupError: it is gone.
    """
    fields = procfs.status(pid)
    if not fields:
        raise ProcessLookupError
    groups = tuple(map(int, fields["Groups"].split()))
    uid, gid = (int(fields[name].split()[3]) for name in ("Uid", "Gid"))
    return Credentials(uid, gid, groups, int(fields["CapEff"], 16))


class PathContext(NamedTuple):
    """Root folder and network namespace for looking up names, as descriptors."""

    root: int
    network: int


def run_as(
    who: Credentials, work: Callable[[], T], place: PathContext | None = None
) -> T:
    """Call ``work`` with a task's rights and return or raise what it does; blocks.

    Raises:
        OSError: those rights cannot be taken.
    """

    def run() -> T:
        _become(who, place)
        return work()

    return in_thread(run)


def again(descriptor: int) -> str:
    """The path by which this thread opens what one of its descriptors leads to."""
    return f"/proc/thread-self/fd/{descriptor}"


@contextlib.contextmanager
def overriding() -> Iterator[None]:
    """Inside of :func:`run_as`: file permissions do not count within the block."""
    had = _capabilities()[0]
    _set_effective(had | OVERRIDE)
    try:
        yield
    finally:
        _set_effective(had)


def _become(who: Credentials, place: PathContext | None) -> None:
    checked(libc.unshare(_CLONE_FS), "unshare")
    os.umask(0)
    if place is not None:
        checked(libc.setns(place.network, _CLONE_NEWNET), "setns")
        os.fchdir(place.root)
        os.chroot(".")
    groups = (ctypes.c_uint32 * len(who.groups))(*who.groups)
    call("setgroups", len(who.groups), groups)
    call("setresgid", _KEEP, who.gid, _KEEP)
    call("setresuid", _KEEP, who.uid, _KEEP)
    _set_effective(who.effective)


def _capabilities() -> tuple[int, int, int]:
    head = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    data = ctypes.create_string_buffer(24)
    checked(libc.capget(head, data), "capget")
    words = struct.unpack("=6I", data.raw)
    low, high = words[:3], words[3:]
    effective, permitted, inheritable = (
        one | other << 32 for one, other in zip(low, high, strict=True)
    )
    return effective, permitted, inheritable


def _set_effective(bits: int) -> None:
    _, permitted, inheritable = _capabilities()
    sets = (bits & permitted, permitted, inheritable)
    words = [one & 0xFFFFFFFF for one in sets] + [one >> 32 for one in sets]
    head = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    checked(libc.capset(head, struct.pack("=6I", *words)), "capset")
