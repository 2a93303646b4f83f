"""Ways of being a process that CRIU does not know."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind, Program
from jupyterhub_gpu_reclaim.checkpoint.kinds.rights import has_own_users
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs, ptrace, scheduling
from jupyterhub_gpu_reclaim.linux.processes import DEAD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Session
    from jupyterhub_gpu_reclaim.common.models import Finding

#: Resources that processes may share (clone(2)) without CRIU's knowing it.
_SHARED: Final = {
    scheduling.KCMP_VM: "memory (CLONE_VM)",
    scheduling.KCMP_FS: "folders (CLONE_FS)",
}
#: Likewise, and threads may have them of their own (unshare(2)).
_OWN: Final = {"open files": scheduling.KCMP_FILES, "a folder": scheduling.KCMP_FS}
#: How long a child of vfork(2) has to run its program.
_SPAWN_SECONDS: Final = 0.05
#: The soft limit of open files in /proc/<pid>/limits; unlimited has no number.
_LIMIT: Final = re.compile(r"^Max open files +([0-9]+) ", re.MULTILINE)
_OWN_FILES: Final = 3
#: Their default ends no program: signal(7).
_HARMLESS: Final = (
    *(signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH),
    *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
#: The namespaces that must be those of the session's init. (CRIU gives a restored tree
#: a time namespace, so that one must be the same within the tree only.)
_NAMESPACES: Final = ("mnt", "net", "ipc", "uts", "cgroup", "pid", "pid_for_children")


class Programs(Kind):
    """Threads and processes that share, lack or exceed something."""

    def preflight(self, seen: Session) -> Iterator[Finding]:
        for one in seen.programs:
            for what in (*_threads(one), *_room(one)):
                yield one.does(what)
            if one.status.get("TracerPid", "0") != "0":
                yield one.found(Reason.TRACED)
        for process in seen.tree.processes:
            if process.state in DEAD and len(ptrace.tasks(process.pid)) > 1:
                what = "goes on without its main thread"
                yield Program(process).does(what)
        yield from _sharing(seen)
        yield from _left_out(seen)


class EndingSignals(Kind):
    """Signals that wait to end a stopped program.

    One that is stopped (Ctrl-Z) takes no signal: the SIGTERM of a ``kill`` waits until
    it goes on. CRIU (4.2) sends waiting signals again before it stops the program,
    which ends it, and the return with it.
    """

    asked_again = True

    def preflight(self, seen: Session) -> Iterator[Finding]:
        for one in seen.programs:
            if one.process.stopped and any(map(_is_ended, one.threads.values())):
                yield one.does(
                    "is stopped, and ended by a signal as soon as it goes on"
                )


class Namespaces(Kind):
    """Namespaces: a session's programs live in those of its init."""

    def preflight(self, seen: Session) -> Iterator[Finding]:
        init, root = seen.tree.init, seen.tree.root
        assert root is not None
        for one in seen.programs:
            if has_own_users(one.pid):
                yield one.found(Reason.FOREIGN_NAMESPACE, kind="user")
            for kind in (*_NAMESPACES, "time", "time_for_children"):
                proper = root.pid if kind.startswith("time") else init.pid
                plain = kind.removesuffix("_for_children")
                its = procfs.link(one.pid, f"ns/{kind}")
                if its and its != procfs.link(proper, f"ns/{plain}"):
                    words = {"mnt": "mount", "net": "network"}.get(plain, plain)
                    yield one.found(Reason.FOREIGN_NAMESPACE, kind=words)


def _is_ended(status: dict[str, str]) -> bool:
    """Whether a signal waits that is neither blocked, nor ignored, nor handled."""
    waiting = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
    for name in ("SigBlk", "SigIgn", "SigCgt"):
        waiting &= ~int(status[name], 16)
    return bool(waiting & ~sum(1 << number - 1 for number in _HARMLESS))


def _threads(one: Program) -> list[str]:
    found = set()
    for tid in one.threads:
        if int(procfs.text(one.pid, f"task/{tid}/personality") or "0", 16):
            found.add("behaves like another system (setarch, personality(2))")
        with contextlib.suppress(OSError):
            for what, kind in _OWN.items():
                if not scheduling.shares(one.pid, tid, kind):
                    found.add(f"has a thread with {what} of its own (unshare)")
    return sorted(found)


def _room(one: Program) -> Iterator[str]:
    # CRIU's own code, which runs in the process, opens a few files of its own.
    found = _LIMIT.search(procfs.text(one.pid, "limits"))
    if found is None:
        return
    # Those with higher numbers it opened before it lowered the limit.
    count = sum(each.fd < int(found[1]) for each in one.descriptors)
    if int(found[1]) < count + _OWN_FILES:
        yield f"has {count} files open, of {found[1]} at most"


def _sharing(seen: Session) -> Iterator[Finding]:
    """Processes that share what CRIU takes for a process's own.

    A child of vfork(2) does so until it runs its program, which takes no time unless
    something hinders it.
    """
    by_pid = {one.pid: one for one in seen.programs}
    for kind, words in _SHARED.items():
        pairs = scheduling.sharers(by_pid, kind)
        if pairs:
            time.sleep(_SPAWN_SECONDS)
            pairs = scheduling.sharers({pid for pair in pairs for pid in pair}, kind)
        for pair in pairs:
            both = [by_pid[pid] for pid in pair]
            parent, child = sorted(both, key=lambda one: one.process.ns_pid)
            yield child.does(f"shares its {words} with process {parent.process.ns_pid}")


def _left_out(seen: Session) -> Iterator[Finding]:
    """Processes below the init but not below the root, which CRIU does not see."""
    assert seen.tree.root is not None
    saved = {seen.tree.root.pid}
    for process in seen.tree.processes:  # parents before children
        if process.ppid in saved:
            saved.add(process.pid)
    for one in seen.programs:
        if one.pid not in saved:
            yield one.found(Reason.LEFT_OUT)
