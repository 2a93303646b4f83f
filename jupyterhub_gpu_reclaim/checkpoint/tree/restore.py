"""Restores a session's tree under an init that holds its place.

There are three steps: :func:`restore` has CRIU make the tree, stopped and without its
large areas of memory; :func:`fill` fills those (``memory.plan``); :func:`proceed` lets
the tree continue, so that more can be done to it before. When one of the first two
fails, nothing is left but the holding init.

A session's orphans stay below its root (:class:`OrphanAdoption`). A program whose
parent has ended (``!train &`` in a notebook) is a child of the session's root, which is
a "child subreaper", and still belongs to the session (setsid) of the kernel or the
shell that it came from. CRIU (4.1, 4.2: ``prepare_pstree_ids``) makes such a process as
the child of a helper below that leader, so that it inherits the session, and has the
helper end. But it makes the root a subreaper only at its very end, so these children
would go to the init, where no later dump finds them, and they cannot be moved back. So
the root is made one earlier, by a system call forced upon it while it waits for an
image of its own from us: it exists then, and no helper has ended yet.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.process import STOP_PATIENCE, CriuRun
from jupyterhub_gpu_reclaim.checkpoint.criu.stream import RestoreServer
from jupyterhub_gpu_reclaim.checkpoint.files import handover, locks, terminals, timers
from jupyterhub_gpu_reclaim.checkpoint.files.held_images import FILES
from jupyterhub_gpu_reclaim.checkpoint.memory import (
    robust_lists,
    system_v_images,
    undumpable,
)
from jupyterhub_gpu_reclaim.checkpoint.memory.fill import copy_all
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import MemoryPlan, make_plan, whole
from jupyterhub_gpu_reclaim.checkpoint.sockets import (
    inet,
    peer_credentials,
    peer_order,
    resets,
    state,
    unsent,
)
from jupyterhub_gpu_reclaim.checkpoint.tree import (
    attributes,
    ending_signals,
    freeze,
    inspection,
    stdio,
)
from jupyterhub_gpu_reclaim.checkpoint.tree.taken_away import inherited_within
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError, RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import (
    capabilities,
    continuing,
    huge_pages,
    processes,
    ptrace,
)
from jupyterhub_gpu_reclaim.session_init import session_init

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.criu.binary import Criu
    from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
    from jupyterhub_gpu_reclaim.checkpoint.files.handover import Handover
    from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint
    from jupyterhub_gpu_reclaim.checkpoint.files.trial import Trial
    from jupyterhub_gpu_reclaim.checkpoint.memory.plan import ImageSource
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

#: Seconds in which CRIU's process must stand still, and do its call.
_ADOPTION_SECONDS: Final = 10.0
_PR_SET_CHILD_SUBREAPER: Final = 36


class OrphanAdoption:
    """Makes the root a subreaper in time, where it is needed."""

    def __init__(
        self, session: SessionInit, source: ImageSource, root_pid: int
    ) -> None:
        self._session = session
        self._root_pid = root_pid
        self._needed = _has_orphans(source, root_pid)

    def before(self, name: str) -> None:
        """CRIU waits for that image.

        Raises:
            RestoreFailed: the root cannot be made to do it.
        """
        if not self._needed or name != f"pagemap-{self._root_pid}.img":
            return
        init = processes.snapshot_init(self._session.init_pid, self._session.init_start)
        inside = processes.inhabitants(init)
        pids = [one.pid for one in inside if one.ns_pid == self._root_pid]
        try:
            with ptrace.stopped(pids[0], seconds=_ADOPTION_SECONDS) as traced:
                traced.call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        except (IndexError, OSError) as error:
            why = "programs without a parent would be lost to the next suspend"
            raise RestoreFailed(
                Reason.RESTORE_FAILED, why=why, detail=str(error)
            ) from error


def _has_orphans(source: ImageSource, root_pid: int) -> bool:
    """Whether a child of the root belongs to a session that neither of them leads."""
    if source.size("pstree.img") is None:
        return False
    tree = b"".join(source.stream("pstree.img"))
    entries: list[Any] = [
        images.parse("pstree_entry", payload)
        for payload in images.split(tree, images.PSTREE_MAGIC)
    ]
    own = {entry.sid for entry in entries if entry.pid == root_pid}
    return any(
        entry.ppid == root_pid and entry.sid not in {*own, entry.pid}
        for entry in entries
    )


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
    """A tree that came back, stopped.

    Attributes:
        tree: its processes.
        seconds: how long it took.
        missing: what of its memory is still to be filled.
        beside: the init and whatever else was stopped beside the tree.
    """

    tree: Snapshot
    seconds: float
    missing: MemoryPlan = field(default_factory=MemoryPlan)
    beside: tuple[Process, ...] = ()


def restore(
    criu: Criu,
    session: SessionInit,
    *,
    source: ImageSource,
    folder: Path,
    limit: float,
    root_pid: int,
    pids: Sequence[int],
    pipes: Sequence[str] = (),
    opened: Sequence[FileFingerprint] = (),
    ended: Collection[int] = (),
    trial: Trial | None = None,
    prepare: Callable[[int], None] | None = None,
    cancel: Cancel | None = None,
    renewed: bool = False,
) -> RestoreResult:
    """Restore a tree under a holding init, but for ``missing``; blocks.

    Args:
        criu: which CRIU.
        session: the holding init.
        source: where CRIU's images come from.
        folder: an empty folder of ours for CRIU's socket and log, mode 0700.
        limit: seconds that it may take.
        root_pid: as in ``DumpResult``; likewise the next two.
        pids: every id that must be free.
        pipes: to be replaced by the new init's output.
        opened: the fingerprints of its files.
        ended: entries of ``files.img`` whose connections do not come back; they read
            as reset.
        trial: see ``handover.open_all``.
        prepare: called with the pid of the helper that becomes CRIU, e.g. to move it
            into the new session's control groups; what CRIU restores stays there.
        cancel: cancels it.
        renewed: the limit begins anew with each image that CRIU asks for.

    Raises:
        RestoreFailed: a file may not be opened, has changed, or is not the one that
            came back; CRIU could not; time was up, or it was cancelled.
        Exception: what the source has raised.
    """
    begun = time.monotonic()
    try:
        wait_ready(session.init_pid, session.init_start, timeout=READY_PATIENCE)
        beside = freeze.freeze(
            session.init_pid, session.init_start, timeout=STOP_PATIENCE
        )
        with ExitStack() as stack:
            beyond = _BeyondCriu(session, source, limit, prepare, stack)
            given = beyond.open_files(opened, trial)
            images = handover.ReplacedImages(beyond.source, given.files)
            plan = make_plan(images, advise=_advice_counts())
            adoption = OrphanAdoption(session, source, root_pid)
            server = RestoreServer(folder, _serving(plan, images, adoption))
            attempt = CriuRun(
                criu,
                session,
                folder,
                server,
                limit=limit,
                cancel=cancel,
                renewed=renewed,
            )
            ends = stdio.open_ends(session.init_pid, tuple(pipes))
            for descriptor in ends.values():
                stack.callback(os.close, descriptor)
            attempt.run(
                "restore",
                ["--leave-stopped", "--restore-detached"],
                reason=Reason.RESTORE_FAILED,
                inherit={**ends, **given.inherit()},
                last_pid=free_pid(pids, _pid_max()),
                prepare=prepare,
            )
            tree = _tree(session, root_pid, attempt)
            inspection.refuse_others(given, tree)
            beyond.give_back(tree, ended)
    except BaseException as error:
        _clear(session)
        if isinstance(error, OSError | ReclaimError):
            raise _failed(error) from error
        raise
    seconds = time.monotonic() - begun
    return RestoreResult(tree, seconds, plan, tuple(beside))


class _BeyondCriu:
    """State that CRIU does not make: taken out of its images, given back afterwards.

    System V objects are there inside the stack's block, and stay when it ends well.
    """

    def __init__(
        self,
        session: SessionInit,
        source: ImageSource,
        limit: float,
        prepare: Callable[[int], None] | None,
        stack: ExitStack,
    ) -> None:
        self._init_pid = session.init_pid
        self._stack = stack
        self._objects = system_v_images.SavedObjects(source)
        self._lend = stack.enter_context(
            system_v_images.made(
                session.init_pid, self._objects, limit=limit, prepare=prepare
            )
        )
        self._attributes = attributes.load(source)
        inherited = inherited_within(partial(whole, source), capabilities.own())
        replaced = handover.ReplacedImages(
            source, {**self._objects.images, **inherited}
        )
        cores, self._ending = ending_signals.take_out(partial(whole, replaced))
        foregrounds = terminals.with_foregrounds(partial(whole, source))
        self.source = handover.ReplacedImages(replaced, {**cores, **foregrounds})

    def open_files(
        self, opened: Sequence[FileFingerprint], trial: Trial | None
    ) -> Handover:
        """Open the files; what sockets held and had set is left out for CRIU."""
        given = handover.open_all(
            self.source, self._init_pid, opened, self._stack, trial=trial
        )
        self._saved = given.saved
        self._locks = locks.posix(whole(self.source, locks.IMAGE))
        self._descriptors = given.saved.descriptors
        given.files[FILES] = peer_order.peers_first(given.files[FILES])
        given.files[FILES] = timers.keep(given.files[FILES])
        self._unsent = unsent.take_out(given.files, self.source, self._descriptors)
        self._sockets = state.take_out(given.files, self.source, self._descriptors)
        return given

    def give_back(self, tree: Snapshot, ended: Collection[int]) -> None:
        """Give a tree that CRIU has made the rest of what it had; it is stopped."""
        attributes.apply(tree, self._attributes)
        resets.reset(tree.processes, self._descriptors, ended)
        self._objects.attach(tree, self._lend)
        unsent.send(tree.processes, self._descriptors, self._unsent)
        self._sockets.give_back(tree)
        peer_credentials.listen_again(tree, self._descriptors, self._saved.entries)
        locks.give_back(tree, self._locks, self._saved)
        undumpable.open_again(tree, self._saved.closed)
        ending_signals.give_back(tree, self._ending)


def fill(
    session: SessionInit,
    restored: RestoreResult,
    *,
    source: ImageSource,
    limit: float,
    cancel: Cancel | None = None,
) -> RestoreResult:
    """Fill the memory that :func:`restore` has left out; blocks.

    Args:
        session: the holding init.
        restored: what :func:`restore` returned.
        source: as there; it writes into the tree's processes.
        limit: seconds that it may take.
        cancel: cancels it.

    Returns:
        The tree, whole and still stopped.

    Raises:
        RestoreFailed: a process has ended or was continued by its user, time was up,
            or it was cancelled.
        Exception: what the source has raised.
    """
    begun = time.monotonic()
    try:
        copy_all(restored.missing, restored.tree, source, limit=limit, cancel=cancel)
        _refuse_if_it_went_on(session, restored.tree)
    except BaseException as error:
        _clear(session)
        if isinstance(error, OSError | ReclaimError):
            raise _failed(error) from error
        raise
    seconds = restored.seconds + time.monotonic() - begun
    return replace(restored, seconds=seconds, missing=MemoryPlan())


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
    plan: MemoryPlan, images: ImageSource, adoption: OrphanAdoption
) -> Callable[[str], Iterable[bytes | memoryview] | None]:
    """How CRIU is given its images, with orphans adopted before it makes them."""

    def serve(name: str) -> Iterable[bytes | memoryview] | None:
        adoption.before(name)
        return plan.serve(images, name)

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


def _advice_counts() -> bool:
    """Whether this kernel gives huge pages only to processes that ask.

    On a kernel without them CRIU would fail on the advice.
    """
    return huge_pages.setting() == "madvise"


def _pid_max() -> int:
    return int(Path("/proc/sys/kernel/pid_max").read_text())


def _name_root(init_pid: int, root_pid: int) -> bool:
    """Tell the holding init which child is the session's root (session_init.py)."""
    libc = ctypes.CDLL(None)
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


def _failed(error: OSError | ReclaimError) -> Exception:
    if isinstance(error, OSError):
        why = error.strerror or "a system call failed"
        return RestoreFailed(Reason.RESTORE_FAILED, why=why, detail=str(error))
    if type(error) is not ReclaimError:
        return error
    return RestoreFailed(
        error.reason, detail=error.detail, retryable=error.retryable, **error.facts
    )
