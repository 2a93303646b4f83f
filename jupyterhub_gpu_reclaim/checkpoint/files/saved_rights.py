"""Compares the rights in CRIU's images with those that the kernel reports.

CRIU (4.2: ``parasite_dump_creds``) does not ask the kernel for a task's users, groups
and capabilities. It has the task itself ask, by code that it puts into the task's
memory, and believes the answer: as root, it later makes a task with just these rights.
A user with write access to that memory, such as by a login beside the session, could so
have the session come back as root. So the comparison is made while all processes are
stopped.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jupyterhub_gpu_reclaim.checkpoint.criu.stream import Sink
    from jupyterhub_gpu_reclaim.linux.processes import Snapshot

_PREFIX, _SUFFIX = "core-", ".img"
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


class Rights(NamedTuple):
    """Everything of a thread that the kernel asks for when it is to allow something."""

    uids: tuple[int, ...]  #: real, effective, saved, for file systems
    gids: tuple[int, ...]
    groups: tuple[int, ...]
    capabilities: tuple[int, ...]
    no_new_privileges: bool
    keeps: bool  #: whether bits are set that no thread without capabilities has


class KeptCores:
    """Passes CRIU's images on, and keeps a copy of those that hold rights.

    Args:
        sinks: where they go.
    """

    def __init__(self, sinks: Callable[[str], Sink]) -> None:
        self._sinks = sinks
        self._cores: dict[int, bytearray] = {}

    def __call__(self, name: str) -> Sink:
        """See ``CaptureServer``."""
        sink = self._sinks(name)
        number = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        if name != f"{_PREFIX}{number}{_SUFFIX}" or not number.isdecimal():
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
            saved = _saved(bytes(core))
            now = _now(known.get(number, {}))
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


def _saved(core: bytes) -> Rights | None:
    """What an image says; None for a process that had ended."""
    try:
        entry = images.parse("core_entry", images.only(core, images.CORE_MAGIC))
    except RestoreFailed as error:
        why = "CRIU has written an image that is off"
        raise ReclaimError(Reason.CAPTURE_FAILED, why=why, detail=str(error)) from error
    if not entry.thread_core.HasField("creds"):
        return None
    one: Any = entry.thread_core.creds
    capabilities = tuple(_bits(getattr(one, name)) for name in _CAPABILITIES.values())
    return Rights(
        (one.uid, one.euid, one.suid, one.fsuid),
        (one.gid, one.egid, one.sgid, one.fsgid),
        tuple(sorted(one.groups)),
        capabilities,
        bool(one.no_new_privs),
        bool(one.secbits & _KEEPING) and not _bits(one.cap_prm),
    )


def _now(fields: dict[str, str]) -> Rights | None:
    if "Uid" not in fields:
        return None
    return Rights(
        tuple(map(int, fields["Uid"].split())),
        tuple(map(int, fields["Gid"].split())),
        tuple(sorted(map(int, fields["Groups"].split()))),
        tuple(int(fields[name], 16) for name in _CAPABILITIES),
        fields["NoNewPrivs"] == "1",
        keeps=False,
    )


def _bits(words: list[int]) -> int:
    return sum(word << 32 * number for number, word in enumerate(words))
