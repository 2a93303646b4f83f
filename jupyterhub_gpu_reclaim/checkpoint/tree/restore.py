"""Restores a session's tree under an init that holds its place.

There are three steps: :func:`restore` has CRIU make the tree, stopped and without its
large areas of memory; :func:`fill` fills those (``memory.plan``); :func:`proceed` lets
the tree continue, so that more can be done to it before. When one of the first two
fails, nothing is left but the holding init.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import resource
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.criu.process import STOP_PATIENCE, CriuRun
from jupyterhub_gpu_reclaim.checkpoint.criu.stream import RestoreServer
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import PathContext
from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import read_saved
from jupyterhub_gpu_reclaim.checkpoint.kinds import table
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return
from jupyterhub_gpu_reclaim.checkpoint.memory import robust_lists
from jupyterhub_gpu_reclaim.checkpoint.memory.fill import copy_all
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import MemoryPlan, make_plan
from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.tree import freeze, inspection
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError, RestoreFailed
from jupyterhub_gpu_reclaim.common.findings import of_kind
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import continuing, host, processes
from jupyterhub_gpu_reclaim.linux.beneath import root_of
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.libc import libc
from jupyterhub_gpu_reclaim.session_init import session_init

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.criu.binary import Criu
    from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
    from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint
    from jupyterhub_gpu_reclaim.checkpoint.files.reopen import Trial
    from jupyterhub_gpu_reclaim.checkpoint.saved_images import ImageSource
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

_PID_MAX = Path("/proc/sys/kernel/pid_max")
#: CRIU's own processes take some tens of pids; as many are kept free for them.
HELPER_PIDS = 1000
#: Pids below this are not used again once the kernel's counter has wrapped.
LOWEST_PID = 300
KILL_PATIENCE = 30.0
#: Seconds for processes to stop before they are ended; others are not waited for.
LAST_STOP_PATIENCE = 2.0
#: A new init is set up in some 50 ms; seconds.
READY_PATIENCE = 30.0


@dataclass(frozen=True)
class RestoreResult:
    """A tree that came back, stopped."""

    tree: Snapshot
    #: What of its memory is still to be filled.
    missing: MemoryPlan = field(default_factory=MemoryPlan)
    #: The init and whatever else was stopped beside the tree.
    beside: tuple[Process, ...] = ()


def restore(
    criu: Criu,
    session: SessionInit,
    *,
    source: ImageSource,
    folder: Path,
    limit: float,
    opened: Sequence[FileFingerprint] = (),
    cut: Collection[int] = (),
    trial: Trial | None = None,
    prepare: Callable[[int], None] | None = None,
    cancel: Cancel | None = None,
) -> RestoreResult:
    """Restore a tree under a holding init, but for ``missing``; blocks.

    ``folder`` is empty, ours, mode 0700, for CRIU's socket and log; ``opened`` are the
    fingerprints of the tree's files, ``cut`` the inodes of connections that read as
    reset. ``prepare`` is called with the pid of the helper that becomes CRIU, e.g. to
    move it into the new session's control groups; what CRIU restores stays there.

    Raises:
        RestoreFailed: a file may not be opened, has changed, or is not the one that
            came back; CRIU could not; time was up, or it was cancelled.
        Exception: what the source has raised.
    """
    try:
        wait_ready(session.init_pid, session.init_start, timeout=READY_PATIENCE)
        _, beside = freeze.freeze(
            session.init_pid, session.init_start, timeout=STOP_PATIENCE
        )
        with ExitStack() as stack:
            images = SavedImages(source)
            saved = read_saved(images)
            _make_room(len(saved.wishes))
            back = Return(
                session.init_pid,
                images,
                saved,
                {one.path: one for one in opened},
                stack,
                _place(session.init_pid, stack),
                trial=trial,
                cut=cut,
            )
            pids = _ids(images)
            root_pid = back.root_pid
            kinds = table.every()
            for kind in kinds:
                kind.rewrite(back)
            back.write_files()
            # Whether huge pages are given only to processes that ask: on a kernel
            # without them CRIU would fail on the advice.
            plan = make_plan(images, advise=host.huge_pages() == "madvise")
            server = RestoreServer(folder, _serving(plan, back))
            attempt = CriuRun(criu, session, folder, server, limit, cancel)
            attempt.run(
                "restore",
                ["--leave-stopped", "--restore-detached"],
                reason=Reason.RESTORE_FAILED,
                inherit=back.inherit(),
                last_pid=free_pid(pids, int(_PID_MAX.read_text())),
                prepare=prepare,
            )
            back.tree = tree = _tree(session, root_pid, attempt)
            # Before anything else is done to it.
            inspection.refuse_others(back)
            for kind in kinds:
                kind.after_restore(back)
    except BaseException as error:
        _clear(session)
        if isinstance(error, OSError | ReclaimError):
            raise of_kind(error, RestoreFailed, Reason.RESTORE_FAILED) from error
        raise
    return RestoreResult(tree, plan, tuple(beside))


def _make_room(count: int) -> None:
    """Let this process have that many more descriptors, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, max(soft, 4096 + 4 * count))
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _place(init_pid: int, stack: ExitStack) -> PathContext:
    root = stack.enter_context(root_of(init_pid))
    network = os.open(f"/proc/{init_pid}/ns/net", os.O_RDONLY)
    return PathContext(root, stack.enter_context(closing(network)))


def fill(
    session: SessionInit,
    restored: RestoreResult,
    *,
    source: ImageSource,
    limit: float,
    cancel: Cancel | None = None,
) -> RestoreResult:
    """Fill the memory that :func:`restore` has left out; blocks. It is whole then.

    Raises:
        RestoreFailed: a process has ended or was continued by its user, time was up, or
            it was cancelled.
        Exception: what the source has raised.
    """
    try:
        copy_all(restored.missing, restored.tree, source, limit=limit, cancel=cancel)
        _refuse_if_it_went_on(session, restored.tree)
    except BaseException as error:
        _clear(session)
        if isinstance(error, OSError | ReclaimError):
            raise of_kind(error, RestoreFailed, Reason.RESTORE_FAILED) from error
        raise
    return replace(restored, missing=MemoryPlan())


def proceed(restored: RestoreResult, keep_stopped: Collection[int] = ()) -> None:
    """Thaw a restored tree; from here on the init ends when the tree's root does.

    Raises:
        NotFound: the init has ended meanwhile.
        ReclaimError: some of its memory is missing still.
    """
    tree = restored.tree
    assert tree.root is not None
    if restored.missing.pieces:
        raise ReclaimError(Reason.INTERNAL, detail="its memory is not filled")
    with processes.held(tree.init) as pidfd:
        if pidfd is None or not _name_root(tree.init.pid, tree.root.ns_pid):
            raise NotFound(
                Reason.UNKNOWN_SESSION, session=f"under process {tree.init.pid}"
            )
    freeze.continue_bystanders(restored.beside)
    continuing.resume(tree.processes, keep_stopped)


def wait_ready(init_pid: int, start: int, *, timeout: float) -> None:
    """Wait until the init has set itself up (its name says so, session_init.py).

    Raises:
        NotFound: it has ended.
        ReclaimError: it was not ready when the time (seconds) was up.
    """
    name = session_init.NAME.decode()
    deadline = time.monotonic() + timeout
    while processes.snapshot_init(init_pid, start).name != name:
        if time.monotonic() > deadline:
            raise ReclaimError(Reason.TIMED_OUT, step="place", seconds=timeout)
        # Nothing tells when a name changes, and Python's start takes 20 ms.
        time.sleep(0.005)


def free_pid(pids: Sequence[int], pid_max: int) -> int:
    """Value for the pid counter at which CRIU's own processes take no saved pid.

    Nor one that CRIU (4.2, ``get_free_pid``) has chosen for a process that stands in
    for the parent of orphans: those are the lowest unused ones, fewer than the saved.

    Returns:
        A number with ``HELPER_PIDS`` unused ones behind it, or in the widest gap.
    """
    taken = sorted({*pids, LOWEST_PID - 1, pid_max})
    gaps = [(high - low, low) for low, high in itertools.pairwise(taken)]
    wanted = HELPER_PIDS + len(pids)
    gap, last = gaps[-1] if gaps[-1][0] > wanted else max(gaps)
    return last + min(len(pids), max(gap - HELPER_PIDS - 1, 0))


def _serving(
    plan: MemoryPlan, back: Return
) -> Callable[[str], Iterable[bytes | memoryview] | None]:
    def serve(name: str) -> Iterable[bytes | memoryview] | None:
        if name in back.when_asked:
            back.when_asked[name]()
        return plan.serve(back.images, name)

    return serve


def _tree(session: SessionInit, root_pid: int, attempt: CriuRun) -> Snapshot:
    """The tree that has come back, stopped.

    Raises:
        ReclaimError: the root is not below the init, or a process is not stopped.
    """
    tree = processes.wait_stopped(
        session.init_pid, session.init_start, timeout=STOP_PATIENCE
    )
    if tree.root is None or tree.root.ns_pid != root_pid:
        raise attempt.failure(Reason.RESTORE_FAILED, 0)
    return tree


def _refuse_if_it_went_on(session: SessionInit, tree: Snapshot) -> None:
    """Check that no process ran before its memory was there: it worked on zeros.

    Raises:
        ReclaimError: its user, from outside, has let a process of it go on.
    """
    now = processes.snapshot(session.init_pid, session.init_start)
    who = freeze.continued(now, [process.ns_pid for process in tree.processes])
    if who:
        why = f"{who} was let go on before its memory was there"
        raise ReclaimError(Reason.RESTORE_FAILED, why=why)


def _ids(images: SavedImages) -> list[int]:
    found = [task.pid for task in images.tasks()]
    for task in images.tasks():
        if images.memory(task.pid) is not None:  # of another, CRIU writes no threads
            found += set(task.threads) - {task.pid}
    return found


def _name_root(init_pid: int, root_pid: int) -> bool:
    value = ctypes.c_void_p(root_pid)
    return bool(libc.sigqueue(init_pid, session_init.ROOT_NAMED, value) == 0)


def clear(session: SessionInit, *, timeout: float) -> None:
    """Leave nothing under the init, on its ports neither.

    Raises:
        NotFound: the init has ended.
        ReclaimError: a process was still there when the time (seconds) was up.
    """
    with contextlib.suppress(ReclaimError):
        # Stopped, so that no program sees its connections break. Closed instead, they
        # would keep the ports for a minute (TIME_WAIT).
        tree = freeze.stop(
            session.init_pid, session.init_start, timeout=LAST_STOP_PATIENCE
        )
        robust_lists.forget(tree)
        inet.reset_all(session.init_pid, [process.pid for process in tree.processes])
    processes.kill_tree(session.init_pid, session.init_start, timeout=timeout)


def _clear(session: SessionInit) -> None:
    """Clear the session; an init that has ended has cleared it itself."""
    with contextlib.suppress(NotFound):
        clear(session, timeout=KILL_PATIENCE)
