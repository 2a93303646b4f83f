"""Brings a saved session back in an empty place, compares it, and throws it away.

What a drill shows: every byte of the checkpoint is read and authenticated, its images
fit together and to the files of this machine, CRIU makes the same processes of them,
and their memory is filled with what was saved. What it does not show: that the programs
go on. They are never continued, since a second copy of a session that ran would write
into the same files. Nothing is moved back to a GPU.

What it leaves alone: the session's record and lease, the checkpoint, reserved ports,
and the user's files. The place has namespaces of its own, one for the network among
them, in which there is only a loopback: ports are free there, and the Hub is not to be
reached. Files are opened as for a return, with their user's rights, and nothing is
written. Locks on files are left out, so that a real return meanwhile gets them. What a
return has to make in the user's folders (names of sockets, contents of named pipes)
cannot be left out; such a session is read, but not brought back.

If the caller dies, the kernel ends the place with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
from jupyterhub_gpu_reclaim.checkpoint.files.handover import ReplacedImages
from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import read_saved
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import PAGE, Span, overlap
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.tree import restore as engine
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused, RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes, sock_diag
from jupyterhub_gpu_reclaim.linux.libc import checked
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import (
    FILES,
    CheckpointContents,
    CheckpointImages,
    refuse_fatal,
)
from jupyterhub_gpu_reclaim.node.operations.host_memory import HostMemory, Need
from jupyterhub_gpu_reclaim.node.sessions.placements import Session
from jupyterhub_gpu_reclaim.node.workflows import filesystem
from jupyterhub_gpu_reclaim.session_init import session_init

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyterhub_gpu_reclaim.checkpoint.criu.binary import Criu
    from jupyterhub_gpu_reclaim.store.repository import Repository

_LOCKS = "filelocks.img"
_FIFOS = "fifo.img"
#: Of an image without entries: two magic numbers.
_HEAD_BYTES = 8
_READY_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_TMP = "/tmp"  # noqa: S108 - the session's own, where it has one
_MOUNTS = """
mount -t tmpfs -o mode=1777 shm /dev/shm &&
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts /dev/pts &&
{ [ -L /dev/ptmx ] || mount --bind /dev/pts/ptmx /dev/ptmx; } &&
exec "$@"
"""


@dataclass(frozen=True)
class Drill:
    """How a drill has ended.

    Attributes:
        checkpoint: that was tried.
        seconds: that it took.
        bytes: of memory that came back, or that were only read.
        same: of these, how many were read back from the processes and are the same. The
            rest are a few pages of each process, which the kernel itself writes to.
        processes: that came back.
        unproven: why it was only read; empty: it came back.
    """

    checkpoint: str
    seconds: float
    bytes: int
    same: int = 0
    processes: int = 0
    unproven: str = ""


@dataclass
class ReadBack:
    """Bytes of memory that were read back, and how many are what was saved."""

    bytes: int = 0
    same: int = 0


def run(
    criu: Criu, repository: Repository, checkpoint: str, *, limit: float = 3600.0
) -> Drill:
    """Try a checkpoint; blocks, as root.

    Args:
        criu: which CRIU.
        repository: of the store.
        checkpoint: its id.
        limit: seconds that each step may take.

    Raises:
        NotFound: there is no such checkpoint.
        StoreError: it is damaged, or the store does not work.
        Refused: ``not_enough_memory``.
        RestoreFailed: it does not come back here, and a return would fail, too; the
            reason says why.
    """
    begun = time.monotonic()
    there = CheckpointContents(repository.open(checkpoint))
    unproven = _unproven(there)
    if unproven:
        read = _read(there)
        return Drill(checkpoint, time.monotonic() - begun, read, unproven=unproven)
    _refuse_without_memory(there)
    with _place(there) as session, tempfile.TemporaryDirectory() as folder:
        filesystem.restore_archives(session, there.checkpoint, there.world)
        source = CheckpointImages(there.checkpoint)
        made = _restore(criu, session, there, source, folder=Path(folder), limit=limit)
        found = _compare(source, made)
    seconds = time.monotonic() - begun
    count = len(made.tree.processes)
    return Drill(checkpoint, seconds, found.bytes, found.same, count)


def _unproven(there: CheckpointContents) -> str:
    """Why that session can only be read; empty: it can be brought back."""
    if there.world.image:
        return "it lived in a container, whose file system is not here"
    source = CheckpointImages(there.checkpoint)

    def read(name: str) -> bytes | None:
        return None if source.size(name) is None else b"".join(source.stream(name))

    if read_saved(read).sockets:
        return "it has sockets with names among its user's files"
    if (source.size(_FIFOS) or 0) > _HEAD_BYTES:
        return "it has named pipes among its user's files"
    return ""


def _read(there: CheckpointContents) -> int:
    """Read and authenticate all of it."""
    problems = there.checkpoint.verify()
    if problems:
        why = problems[0].why
        raise RestoreFailed(Reason.CHECKPOINT_DAMAGED, why=why)
    return there.checkpoint.verified_bytes


def _refuse_without_memory(there: CheckpointContents) -> None:
    """Leave as much memory free as the drill takes.

    Raises:
        Refused: there is less than twice what the session held.
    """
    need = Need(2 * there.world.memory, os.getpid())
    refuse_fatal(HostMemory().findings(need), Refused)


# --- the place ------------------------------------------------------------------------


@contextlib.contextmanager
def _place(there: CheckpointContents) -> Iterator[Session]:
    """A holding init in namespaces of its own, and nothing of it afterwards."""
    incarnation = uuid.uuid4().hex
    popen = subprocess.Popen(
        _words(incarnation, private_tmp=_TMP in there.world.archives),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        preexec_fn=_alone,  # noqa: PLW1509 - no thread of ours runs yet
    )
    try:
        pid, start = _init(popen)
        engine.wait_ready(pid, start, timeout=_READY_SECONDS)
        yield Session(incarnation, there.checkpoint.info.key, pid, start, holding=True)
    finally:
        popen.kill()  # the kernel kills the init with it
        popen.wait()
        with contextlib.suppress(NotFound, UnboundLocalError):
            processes.kill_session(pid, start, timeout=_READY_SECONDS)


def _words(incarnation: str, *, private_tmp: bool) -> list[str]:
    """The command line: ``unshare``, a shell that mounts, and the init."""
    mounts = f"mount -t tmpfs -o mode=1777 tmp {_TMP} && {_MOUNTS}"
    init = [sys.executable, "-I", "-S", str(Path(session_init.__file__).resolve())]
    return [
        *("unshare", "--fork", "--pid", "--mount", "--ipc", "--uts"),
        *("--mount-proc", "--kill-child", "sh", "-c"),
        *(mounts if private_tmp else _MOUNTS, "sh"),
        *(*init, "hold", "--incarnation", incarnation, "--user=drill", "--server="),
        # Of no agent's realm, so that none takes it for a session.
        *(f"--realm=drill-{incarnation}", "--relay"),
    ]


def _alone() -> None:
    """In the child: end with the drill, and see no network but a loopback."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    checked(libc.unshare(_CLONE_NEWNET), "a network of its own")
    with socket.socket() as one:
        fcntl.ioctl(one, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def _init(popen: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Pid and start of the init, once it has been executed.

    Raises:
        Refused: the place could not be made.
    """
    children = Path(f"/proc/{popen.pid}/task/{popen.pid}/children")
    until = time.monotonic() + _READY_SECONDS
    name = Path(session_init.__file__).name.encode()
    while popen.poll() is None and time.monotonic() < until:
        for child in children.read_text().split():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                start = processes.start_time(int(child))
                if start is not None and any(w.endswith(name) for w in words[:5]):
                    return int(child), start
        time.sleep(0.01)
    raise Refused(Reason.LAUNCH_FAILED, why="An empty place could not be made.")


# --- there and back -------------------------------------------------------------------


def _restore(
    criu: Criu,
    session: Session,
    there: CheckpointContents,
    source: CheckpointImages,
    *,
    folder: Path,
    limit: float,
) -> engine.RestoreResult:
    """The tree, whole and stopped; what was to be filled is still named in it."""
    world = there.world
    init = SessionInit(session.init_pid, session.init_start)
    image = b"".join(source.stream(FILES))
    here = sock_diag.own_addresses(session.init_pid)
    files = {FILES: inet.close_external(image, here, world.cut)}
    if source.size(_LOCKS) is not None:
        files[_LOCKS] = b"".join(source.stream(_LOCKS))[:_HEAD_BYTES]
    replaced = ReplacedImages(source, files)
    made = engine.restore(
        criu,
        init,
        source=replaced,
        folder=folder,
        limit=limit,
        root_pid=world.root,
        pids=world.pids,
        pipes=world.pipes,
        opened=world.files,
        ended=inet.ended_connections(image, here, world.cut),
    )
    whole = engine.fill(init, made, source=replaced, limit=limit)
    return replace(whole, missing=made.missing)


def _compare(source: CheckpointImages, made: engine.RestoreResult) -> ReadBack:
    """Read all private memory back and compare it, page by page.

    Raises:
        RestoreFailed: memory that was filled past CRIU is not what was saved.
    """
    found = ReadBack()
    for process in made.tree.processes:
        pagemap = f"pagemap-{process.ns_pid}.img"
        if source.size(pagemap) is None:
            continue
        number, areas = images.read_pagemap(b"".join(source.stream(pagemap)))
        name = f"pages-{number}.img"
        filled = [
            Span(piece.address, piece.address + piece.length)
            for piece in made.missing.pieces.get(name, ())
        ]
        with Path(f"/proc/{process.pid}/mem").open("rb", buffering=0) as memory:
            for address, saved in _pages(source.stream(name), areas):
                now = os.pread(memory.fileno(), PAGE, address)
                found.bytes += PAGE
                found.same += PAGE if now == saved else 0
                here = Span(address, address + PAGE)
                if now != saved and any(overlap(here, filled)):
                    why = f"memory of process {process.ns_pid} is not what was saved"
                    raise RestoreFailed(Reason.RESTORE_FAILED, why=why)
    return found


def _pages(
    buffers: Iterable[bytes | memoryview], areas: Iterable[images.Area]
) -> Iterator[tuple[int, memoryview]]:
    """Address and contents of every page of a pages image."""
    addresses = (
        address
        for area in areas
        if area.flags & images.PRESENT
        for address in range(area.address, area.address + area.pages * PAGE, PAGE)
    )
    for buffer in buffers:
        view = memoryview(buffer)
        for at in range(0, len(view), PAGE):
            yield next(addresses), view[at : at + PAGE]
