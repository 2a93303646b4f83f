"""One run of CRIU inside a session, with its stream, its log and its time limit.

To end CRIU, its stream is closed first, so that it fails by itself and cures the
session's processes; only if it does not end then is it killed.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu_module
from jupyterhub_gpu_reclaim.checkpoint.criu.namespaces import (
    open_detached,
    path_of,
    run_inside,
)
from jupyterhub_gpu_reclaim.checkpoint.criu.stream import StreamBroken
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.descriptors import closing, readable
from jupyterhub_gpu_reclaim.linux.far_files import (
    LOOK_SECONDS,
    FarWaits,
    tasks_below,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.criu.binary import Criu
    from jupyterhub_gpu_reclaim.checkpoint.criu.namespaces import Inside
    from jupyterhub_gpu_reclaim.checkpoint.criu.stream import StreamServer

LOG = "criu.log"
#: How long CRIU may take to cure the session after it was cut off, in seconds.
CURE_PATIENCE = 30.0
#: The same where it waits for a file system that does not answer.
_SILENT_PATIENCE = 0.2
#: How long it may take to die of SIGTERM, then of SIGKILL, in seconds.
END_PATIENCE = 5.0
LOG_TAIL = 4000
#: How long processes may take to stop once they were told to, in seconds.
STOP_PATIENCE = 20.0

#: CRIU's status when it has failed by itself.
_FAILED = 1
#: CRIU's messages for errors that may pass. Any other error comes again, for it is
#: the same tree, or the same images.
_PASSING = (
    *map(
        os.strerror,
        (
            *(errno.EADDRINUSE, errno.EAGAIN, errno.EBUSY, errno.EEXIST, errno.EINTR),
            *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EPIPE),
            errno.ETIMEDOUT,
        ),
    ),
    # The connection of a client that has ended before it was accepted.
    "in-flight socket",
)

#: Bytes that CRIU may copy of one deleted file.
GHOST_LIMIT_BYTES = 1 << 30

#: The same for dump and restore (see ``docs/explanation/criu.md``). Not in there:
#: ``--shell-job`` (no terminal comes from outside of the tree).
COMMON = (
    # Neither the session's nor root's own configuration file may change any of this,
    # and plug-ins are not loaded from the session's file system.
    "--no-default-config",
    *("--libdir", "/proc/self/fdinfo"),
    "--stream",
    "--manage-cgroups=ignore",
    "--tcp-established",
    # A connection not accepted yet must not stop a capture (sockets/inet.py).
    "--skip-in-flight",
    # Both ends of every connection that is kept are stopped. Locking would run
    # iptables from the session's file system.
    *("--network-lock", "skip"),
    "--file-locks",
    "--ext-unix-sk",
    *("--ghost-limit", str(GHOST_LIMIT_BYTES)),
    "--force-irmap",
    "-v3",
    *("-o", LOG),
)


def passes(why: str) -> bool:
    """Whether what CRIU complains of may be over at the next attempt."""
    if why.endswith(f"failed with -{errno.EAGAIN}"):  # io_setup(2): machine-wide
        return True
    return any(words in why for words in (criu_module.NO_REASON, *_PASSING))


@dataclass(frozen=True)
class SessionInit:
    """The session's init, whose namespaces CRIU enters, by pid and start time."""

    init_pid: int
    init_start: int


@dataclass
class CriuRun:
    _criu: Criu
    _session: SessionInit
    _folder: Path
    _server: StreamServer
    _limit: float
    _cancel: Cancel | None

    def run(
        self,
        step: str,
        arguments: list[str],
        *,
        reason: Reason,
        inherit: Mapping[str, int] | None = None,
        last_pid: int = 0,
        own_ipc: bool = False,
        prepare: Callable[[int], None] | None = None,
    ) -> None:
        """Run ``criu <step> <arguments>`` to its end.

        Raises:
            ReclaimError: CRIU failed, time was up, or it was cancelled.
            Exception: what the stream's other side has raised. In any case CRIU has
                ended.
        """
        deadline = time.monotonic() + self._limit
        try:
            self._server.start()
            with closing(open_detached(self._folder, read_only=False)) as images:
                line = [step, "-D", path_of(images), *COMMON, *arguments]
                for name, descriptor in (inherit or {}).items():
                    line += ["--inherit-fd", f"fd[{descriptor}]:{name}"]
                inside = run_inside(
                    self._criu,
                    line,
                    [images, *(inherit or {}).values()],
                    init_pid=self._session.init_pid,
                    init_start=self._session.init_start,
                    last_pid=last_pid,
                    own_ipc=own_ipc,
                    prepare=prepare,
                )
            try:
                status = self._await(inside, step, deadline)
            finally:
                inside.close()
            if status != 0:
                self._crashed(reason, status)
        finally:
            self._server.finish(lambda: self._look(step, deadline))
        if self._server.failure is not None:
            raise self._server.failure

    def _crashed(self, reason: Reason, status: int) -> None:
        """Cut the stream of a CRIU that ended badly.

        Its children may hold the other end, and there is nothing to wait for. What our
        side has raised is why it ended; but not that its stream broke off.
        """
        error = self.failure(reason, status)
        if isinstance(broken := self._server.failure, StreamBroken):
            error.detail = f"{broken.detail}; {error.detail}"
            self._server.failure = None
        self._server.fail(error)

    def _log(self) -> str:
        try:
            # No link: the folder has been open to a process inside the session.
            log = os.open(self._folder / LOG, os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(log, errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def failure(self, reason: Reason, status: int) -> ReclaimError:
        log = self._log()
        why = criu_module.first_error(log)
        if status < 0:
            why = f"CRIU was ended by {signal.Signals(-status).name}"
        detail = f"criu ended with {status}; {log[-LOG_TAIL:]}"
        lasts = status == _FAILED and not passes(why)
        return ReclaimError(
            reason, why=why, detail=detail, retryable=False if lasts else None
        )

    def _await(self, inside: Inside, step: str, deadline: float) -> int:
        watched: list[Inside | StreamServer | Cancel] = [inside, self._server]
        if self._cancel is not None:
            watched.append(self._cancel)
        waits = FarWaits(self._session.init_pid, self._session.init_start)
        while (status := inside.poll()) is None:
            left = deadline - time.monotonic()
            ready = readable(watched, min(left, LOOK_SECONDS))
            if self._server in ready:
                return self._end(inside, waits=waits.any)
            if self._cancel is not None and self._cancel in ready:
                self._server.fail(ReclaimError(Reason.CANCELLED))
            elif not ready and time.monotonic() >= deadline:
                self._late(step)
            elif facts := waits.silent(tasks_below(inside.pid)):
                self._server.fail(ReclaimError(Reason.FILES_SILENT, **facts))
        return status

    def _look(self, step: str, deadline: float) -> None:
        """CRIU has ended; what it has sent may be on its way to a store that hangs."""
        if self._cancel is not None and self._cancel.is_set:
            self._server.fail(ReclaimError(Reason.CANCELLED))
        elif time.monotonic() > deadline:
            self._late(step)

    def _late(self, step: str) -> None:
        late = ReclaimError(Reason.TIMED_OUT, step=step, seconds=self._limit)
        self._server.fail(late)

    def _end(self, inside: Inside, *, waits: bool) -> int:
        """With its stream cut, let CRIU cure the session, else end it.

        Not for long where it waits for files: what is left of it there ends with that.
        """
        cure, end = CURE_PATIENCE, END_PATIENCE
        if waits:
            cure = end = _SILENT_PATIENCE
        steps = ((0, cure), (signal.SIGTERM, end), (signal.SIGKILL, end))
        for number, patience in steps:
            inside.signal(number)
            status = inside.wait(time.monotonic() + patience)
            if status is not None:
                return status
        return 255
