"""The rights of saved tasks: work done with them, and compared with the kernel's word.

Linux keeps the credentials of each thread apart. So :func:`run_as` makes a thread for
the work, which takes the task's user, groups and capabilities (raw system calls: libc's
wrappers would change the whole process), and ends with it. Files that it opens carry
those credentials, which matters wherever the kernel checks later which user opened a
file. The real and the saved user stay root's, so that the task's user cannot signal or
trace the agent, and the thread's umask and root folder are its own.

CRIU (4.2: ``parasite_dump_creds``) does not ask the kernel for a task's users, groups
and capabilities. It has the task itself ask, by code that it puts into the task's
memory, and believes the answer: as root, it later makes a task with just these rights.
A user with write access to that memory, such as by a login beside the session, could so
have the session come back as root. So :class:`CheckedCores` compares the images with
what the kernel reports, while all processes are stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.architecture import call
from jupyterhub_gpu_reclaim.linux.libc import checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jupyterhub_gpu_reclaim.checkpoint.criu.stream import Sink
    from jupyterhub_gpu_reclaim.linux.processes import Snapshot

T = TypeVar("T")

_CLONE_FS: Final = 0x200
_CLONE_NEWNET: Final = 0x40000000
_KEEP: Final = -1
_CAPABILITY_VERSION: Final = 0x20080522
#: CAP_DACOVERRIDE and CAP_DAC_READ_SEARCH.
OVERRIDE: Final = 1 << 1 | 1 << 2

_libc = ctypes.CDLL(None, use_errno=True)


class Credentials(NamedTuple):
    """Ids and capabilities that decide whether a task may open a file."""

    uid: int  #: for file systems (``fsuid``)
    gid: int
    groups: tuple[int, ...] = ()
    effective: int = 0  #: capabilities, as bits

    @property
    def rank(self) -> tuple[bool, int]:
        """Orders from the least to the most powerful."""
        return self.uid == 0, self.effective.bit_count()


def credentials_of(core_img: bytes) -> Credentials:
    """Credentials that a ``core-PID.img`` holds.

    Raises:
        RestoreFailed: it holds none (``checkpoint_damaged``).
    """
    core = images.parse("core_entry", images.only(core_img, images.CORE_MAGIC))
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
    if "Uid" not in fields:
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

    Args:
        who: whose rights.
        work: what is done.
        place: the root folder and the network namespace for it; by default ours.

    Raises:
        OSError: those rights cannot be taken.
    """
    answer: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            _become(who, place)
            answer.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            failure.append(error)

    thread = threading.Thread(target=run, name="as-task", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return answer[0]


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
    checked(_libc.unshare(_CLONE_FS), "unshare")
    os.umask(0)
    if place is not None:
        checked(_libc.setns(place.network, _CLONE_NEWNET), "setns")
        os.fchdir(place.root)
        os.chroot(".")
    groups = (ctypes.c_uint32 * len(who.groups))(*who.groups)
    checked(_libc.syscall(call("setgroups"), len(who.groups), groups), "setgroups")
    checked(_libc.syscall(call("setresgid"), _KEEP, who.gid, _KEEP), "setresgid")
    checked(_libc.syscall(call("setresuid"), _KEEP, who.uid, _KEEP), "setresuid")
    _set_effective(who.effective)


def _capabilities() -> tuple[int, int, int]:
    """This thread's effective, permitted and inheritable capabilities."""
    head = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    data = ctypes.create_string_buffer(24)
    checked(_libc.capget(head, data), "capget")
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
    checked(_libc.capset(head, struct.pack("=6I", *words)), "capset")


_CORE_PREFIX, _CORE_SUFFIX = "core-", ".img"
#: Bits of prctl(2)'s securebits that would let a program without capabilities keep what
#: it gets by a set-user-ID program: KEEP_CAPS, NO_SETUID_FIXUP and their locks. The
#: kernel tells a task's bits only to the task itself.
_KEEPING: Final = 0x3C
_CAPABILITIES: Final = {
    "CapInh": "cap_inh",
    "CapPrm": "cap_prm",
    "CapEff": "cap_eff",
    "CapBnd": "cap_bnd",
    "CapAmb": "cap_amb",
}


class ThreadRights(NamedTuple):
    """Everything of a thread that the kernel asks for when it is to allow something."""

    uids: tuple[int, ...]  #: real, effective, saved, for file systems
    gids: tuple[int, ...]
    groups: tuple[int, ...]
    capabilities: tuple[int, ...]
    no_new_privileges: bool
    keeps: bool  #: whether bits are set that no thread without capabilities has


class CheckedCores:
    """Passes CRIU's images on, and keeps a copy of those that hold rights."""

    def __init__(self, sinks: Callable[[str], Sink]) -> None:
        self._sinks = sinks
        self._cores: dict[int, bytearray] = {}

    def __call__(self, name: str) -> Sink:
        """See ``CaptureServer``."""
        sink = self._sinks(name)
        number = name.removeprefix(_CORE_PREFIX).removesuffix(_CORE_SUFFIX)
        if name != f"{_CORE_PREFIX}{number}{_CORE_SUFFIX}" or not number.isdecimal():
            return sink
        return _Tee(sink, self._cores.setdefault(int(number), bytearray()))

    def refuse_others(self, tree: Snapshot) -> None:
        """Compare what was saved with what the stopped tree has.

        Raises:
            ReclaimError: a thread would come back with other rights
                (``capture_failed``).
        """
        known = dict(_threads(tree))
        for number, core in sorted(self._cores.items()):
            saved = _rights_in(bytes(core))
            now = _rights_now(known.get(number, {}))
            if saved is not None and saved != now:
                why = f"process {number} would come back with other rights than it has"
                detail = f"saved {saved}, has {now}"
                raise ReclaimError(Reason.CAPTURE_FAILED, why=why, detail=detail)


class _Tee:
    def __init__(self, sink: Sink, copy: bytearray) -> None:
        self._sink = sink
        self._copy = copy

    def write(self, data: memoryview, /) -> None:
        self._copy += data
        self._sink.write(data)

    def close(self) -> None:
        self._sink.close()


def _threads(tree: Snapshot) -> Iterator[tuple[int, dict[str, str]]]:
    """Each thread's number in the session, and what the kernel reports of it."""
    for process in tree.processes:
        folder = procfs.PROC / str(process.pid) / "task"
        with contextlib.suppress(OSError):
            for task in folder.iterdir():
                fields = procfs.status(process.pid, int(task.name))
                if fields:
                    yield int(fields["NSpid"].split()[-1]), fields


def _rights_in(core: bytes) -> ThreadRights | None:
    """Rights that a core image records; None for a process that had ended."""
    try:
        entry = images.parse("core_entry", images.only(core, images.CORE_MAGIC))
    except RestoreFailed as error:
        why = "CRIU has written an image that is off"
        raise ReclaimError(Reason.CAPTURE_FAILED, why=why, detail=str(error)) from error
    if not entry.thread_core.HasField("creds"):
        return None
    one: Any = entry.thread_core.creds
    capabilities = tuple(_bits(getattr(one, name)) for name in _CAPABILITIES.values())
    return ThreadRights(
        (one.uid, one.euid, one.suid, one.fsuid),
        (one.gid, one.egid, one.sgid, one.fsgid),
        tuple(sorted(one.groups)),
        capabilities,
        bool(one.no_new_privs),
        bool(one.secbits & _KEEPING) and not _bits(one.cap_prm),
    )


def _rights_now(fields: dict[str, str]) -> ThreadRights | None:
    if "Uid" not in fields:
        return None
    return ThreadRights(
        tuple(map(int, fields["Uid"].split())),
        tuple(map(int, fields["Gid"].split())),
        tuple(sorted(map(int, fields["Groups"].split()))),
        tuple(int(fields[name], 16) for name in _CAPABILITIES),
        fields["NoNewPrivs"] == "1",
        keeps=False,
    )


def _bits(words: list[int]) -> int:
    return sum(word << 32 * number for number, word in enumerate(words))
