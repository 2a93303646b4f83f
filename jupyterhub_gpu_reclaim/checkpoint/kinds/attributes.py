"""What a process has besides memory and files, and CRIU does not give back."""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING, Final

import msgspec

from jupyterhub_gpu_reclaim.checkpoint.kinds import rights
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind, Program
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RestoreFailed
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import landlock, procfs, ptrace
from jupyterhub_gpu_reclaim.linux.processes import named
from jupyterhub_gpu_reclaim.linux.ptrace import TraceFailed, Unsuited

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Return
    from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

_log = logging.getLogger(__name__)

#: The image; CRIU has none of that name.
IMAGE: Final = "attributes.json"
_OOM_SCORE: Final = "oom_score_adj"  # below /proc/PID


class ThreadAttributes(Value, frozen=True, kw_only=True):
    """Of one thread; None: what the session's init has."""

    affinity: list[int] | None = None  #: the processors that it may run on
    #: What CRIU restores: names of /proc/PID/status → values.
    given_back: dict[str, str] = msgspec.field(default_factory=dict)


class Attributes(Value, frozen=True, kw_only=True):
    """Of one process, and of its threads by their number in the session."""

    #: Who is ended first when memory runs out; None: as the init's.
    oom_score: int | None = None
    #: By their number in the session.
    threads: dict[int, ThreadAttributes] = msgspec.field(default_factory=dict)


_PR_GET_MDWE: Final = 66  # <linux/prctl.h>


class ProcessAttributes(Kind):
    """Processors, who is ended first when memory runs out, rights.

    CRIU (4.2) saves rights, limits, signals, timers, the scheduling policy. It makes
    the processes of a tree as its own children, so whatever else there is they would
    inherit from the agent. What a process has in common with its session's init was
    given to it by the place, not chosen: it is None here, and becomes what the init of
    the new place has. So a program that could use all processors of one machine can use
    all of the other. Processors that this machine does not have are left
    out, and logged.
    """

    def __init__(self) -> None:
        self._saved: dict[int, Attributes] = {}  #: by pid in the session

    def before_dump(self, dump: Dump) -> None:
        for one in dump.programs:
            with named(one.process, "could not be looked at"):
                try:
                    self._saved[one.process.ns_pid] = _read(one, dump.tree)
                except OSError:
                    if procfs.stat(one.pid)[:1] not in ([], ["Z"], ["X"]):
                        raise  # it has not ended

    def save(self, dump: Dump) -> None:
        dump.images.replace(IMAGE, codec.encode(self._saved))

    def rewrite(self, back: Return) -> None:
        self._saved = load(back.images)

    def after_restore(self, back: Return) -> None:
        for process in back.tree.alive:
            wanted = self._saved.get(process.ns_pid, Attributes())
            statuses = Program(process).threads
            _apply_outside(process, back.tree.init, wanted, statuses)
            _refuse_other_rights(process, wanted, statuses)


def _read(program: Program, tree: Snapshot) -> Attributes:
    process, statuses = program.process, program.threads
    usual, threads = _affinity(tree.init.pid), {}
    for tid, status in statuses.items():
        affinity = _affinity(tid)
        threads[procfs.inner_id(status)] = ThreadAttributes(
            affinity=None if affinity == usual else affinity,
            given_back={name: status[name] for name in rights.FIELDS if name in status},
        )
    asked = landlock.witnesses(process, statuses, tree.alive)
    _refuse_hidden(process, statuses, asked)
    score = _oom_score(process.pid)
    own = None if score == _oom_score(tree.init.pid) else score
    return Attributes(oom_score=own, threads=threads)


def _oom_score(pid: int) -> int:
    return int(procfs.text(pid, _OOM_SCORE) or "0")


def _affinity(tid: int) -> list[int]:
    return sorted(os.sched_getaffinity(tid))


def _refuse_hidden(
    process: Process, tids: Iterable[int], asked: Mapping[int, Process]
) -> None:
    """Refuse what a process tells to nobody else, and what would be lost in silence.

    Raises:
        ReclaimError: a thread confines itself with Landlock: it would come back free;
            or it emulates system calls; or the process may run nothing new.
    """
    unasked = bool(asked)
    try:
        with ptrace.stopped(process.pid) as traced:
            if landlock.is_confined(traced, process, asked):
                raise ReclaimError(Reason.CONFINED, **process.facts)
            unasked = False
            what = ""
            if any(map(traced.emulates, tids)):
                what = "emulates system calls (PR_SET_SYSCALL_USER_DISPATCH)"
            elif _is_protected(traced):
                what = "may run nothing new (PR_SET_MDWE)"
            if what:
                reason = Reason.PROCESS_UNSUPPORTED
                raise ReclaimError(reason, **process.facts, what=what)
    except Unsuited:
        if unasked:
            raise


def _is_protected(traced: ptrace.Traced) -> bool:
    try:
        return traced.call("prctl", _PR_GET_MDWE, 0, 0, 0, 0) != 0
    except TraceFailed as error:
        if error.errno != errno.EINVAL:  # before Linux 6.3
            raise
        return False


def load(source: SavedImages) -> dict[int, Attributes]:
    """The saved attributes, by pid in the session; raises as ``decoded``."""
    return source.decoded(IMAGE, dict[int, Attributes])


def _apply_outside(
    process: Process,
    init: Process,
    wanted: Attributes,
    statuses: Mapping[int, dict[str, str]],
) -> None:
    score = _oom_score(init.pid) if wanted.oom_score is None else wanted.oom_score
    if score != _oom_score(process.pid):
        try:
            (procfs.PROC / str(process.pid) / _OOM_SCORE).write_text(str(score))
        except PermissionError:  # CAP_SYS_RESOURCE, for a lower score
            _log.warning("- process %d has another %s", process.ns_pid, _OOM_SCORE)
    usual = _affinity(init.pid)
    for tid, status in statuses.items():
        thread = wanted.threads.get(procfs.inner_id(status), ThreadAttributes())
        affinity = usual if thread.affinity is None else thread.affinity
        if affinity == _affinity(tid):
            continue
        try:
            os.sched_setaffinity(tid, affinity)
        except PermissionError:  # CAP_SYS_NICE, for another user's process
            _log.warning("- process %d has another affinity", process.ns_pid)
        except OSError as error:
            # Of processors the kernel leaves out those that it has not.
            if error.errno != errno.EINVAL:
                raise
            _log.warning(
                "- process %d (%s) was bound to processors %s, which are not here:"
                " it may use all",
                process.ns_pid,
                process.name,
                affinity,
            )
            os.sched_setaffinity(tid, usual)


def _refuse_other_rights(
    process: Process,
    wanted: Attributes,
    statuses: Mapping[int, dict[str, str]],
) -> None:
    """Judge the rights of a process, which it may have inherited or lost.

    Raises:
        RestoreFailed: they are not as they may be (``restore_failed``).
    """
    for now in statuses.values():
        thread = wanted.threads.get(procfs.inner_id(now))
        if thread is None or not thread.given_back:
            continue
        before = thread.given_back
        for name, _ in rights.differences(before, now):
            why = (
                f"process {process.ns_pid} ({process.name}) would have another"
                f" {name} than before"
            )
            detail = f"{before.get(name)}, now {now.get(name)}"
            raise RestoreFailed(Reason.RESTORE_FAILED, why=why, detail=detail)


def refuse_beyond_agent(saved: Mapping[int, Attributes]) -> list[Finding]:
    """Why we could not give a saved tree its rights back: we lack them ourselves."""
    threads = (one for each in saved.values() for one in each.threads.values())
    had = (one.given_back for one in threads)
    found = (why for one in had for why in rights.refuse_beyond_agent(one))
    return list(dict.fromkeys(found))
