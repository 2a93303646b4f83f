"""An empty place: namespaces of its own in which a tree is restored as a trial.

It sees the files of a session, and no network but a loopback.
Nothing in it is ever continued. It ends behind its block, and with the thread that made
it, if the agent dies: the kernel then kills everything in it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.criu.namespaces import (
    Helper,
    open_init,
)
from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.linux.mounts import read_mounts
from jupyterhub_gpu_reclaim.session_init import session_init

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

#: A place is made in some 40 ms; ended, it is gone in as many.
_SECONDS: Final = 30.0


@contextlib.contextmanager
def empty_place(session: SessionInit) -> Iterator[SessionInit]:
    """A holding init in namespaces of its own, and nothing of it soon afterwards.

    Raises:
        ReclaimError: the place could not be made (``launch_failed``).
        NotFound: the session has ended.
    """
    with contextlib.ExitStack() as stack:
        pidfd = open_init(session.init_pid, session.init_start)
        stack.callback(os.close, pidfd)
        name = session_init.NAME.decode()
        spec = {"pidfd": pidfd, "name": name, "terminals": _terminals(session)}
        helper = Helper(spec, [pidfd])
        stack.callback(_end_soon, helper)
        helper.tell()
        deadline = time.monotonic() + _SECONDS
        try:
            helper.wait_for("pid", deadline=deadline)
            init = helper.facts["pid"]
            start = helper.facts["start"] = processes.start_time(init) or 0
            helper.wait_for("ready", deadline=deadline)
        except ReclaimError as error:
            why = "An empty place could not be made."
            raise ReclaimError(
                Reason.LAUNCH_FAILED, why=why, detail=error.detail
            ) from error
        yield SessionInit(init, start)


def _end_soon(helper: Helper) -> None:
    """End a place; nobody waits for that, which takes as long as to make it."""

    def end() -> None:
        # The kernel kills everything in the place with its init.
        helper.popen.kill()
        helper.popen.wait()
        helper.close_input()
        helper.close()
        if "start" in helper.facts:
            init, start = helper.facts["pid"], helper.facts["start"]
            try:
                processes.kill_session(init, start, timeout=_SECONDS)
            except ReclaimError as error:
                _log.warning("- a rehearsal has left something: %s", error)

    threading.Thread(target=end, name="place", daemon=True).start()


def _terminals(session: SessionInit) -> str:
    own = "newinstance,ptmxmode=0666,mode=0620"
    for one in read_mounts(session.init_pid):
        if one.kind == "devpts" and str(one.target) == "/dev/pts":
            group = one.option("gid")
            return own if group is None else f"{own},gid={group}"
    return own
