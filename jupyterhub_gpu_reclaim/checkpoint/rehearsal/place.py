"""An empty place: namespaces of its own in which a tree is restored as a trial.

It sees the files of a session, and no network but a loopback.
Nothing in it is ever continued. It ends behind its block, and with the thread that made
it, if the agent dies: the kernel then kills everything in it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import marshal
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from jupyterhub_gpu_reclaim.checkpoint.criu.namespaces import open_init, open_scratch
from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.linux.descriptors import readable
from jupyterhub_gpu_reclaim.linux.mounts import read_mounts
from jupyterhub_gpu_reclaim.session_init import session_init

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

PROGRAM: Final = Path(__file__).with_name("place_init.py")
#: A place is made in some 40 ms; ended, it is gone in as many.
_SECONDS: Final = 30.0
#: A line of the program's is a few dozen bytes.
_LINE_BYTES: Final = 4096


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
        popen = stack.enter_context(_Started(pidfd))
        init = popen.begin(
            {
                "pidfd": pidfd,
                "name": session_init.NAME.decode(),
                "terminals": _terminals(session),
            }
        )
        yield init


@contextlib.contextmanager
def scratch_folder() -> Iterator[int]:
    """An empty folder in memory for what a restore makes; gone after the block.

    Raises:
        Refused: this kernel or container does not allow it (``criu_unusable``).
    """
    descriptor = open_scratch()
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _Started:
    """The program: started, told what to make, ended."""

    def __init__(self, pidfd: int) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[pidfd],
            cwd="/",
        )
        self._init: SessionInit | None = None

    def __enter__(self) -> Self:
        return self

    def begin(self, spec: dict[str, Any]) -> SessionInit:
        """Have the place made; its init.

        Raises:
            ReclaimError: it could not be made.
        """
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(marshal.dumps(spec))
            self._popen.stdin.flush()
        deadline = time.monotonic() + _SECONDS
        facts: dict[str, Any] = {}
        while not {"pid", "ready"} <= facts.keys():
            facts |= self._read(deadline)
            if "pid" in facts and self._init is None:
                start = processes.start_time(facts["pid"])
                self._init = SessionInit(facts["pid"], start or 0)
            if "error" in facts:
                why = "An empty place could not be made."
                detail = str(facts["error"])
                raise ReclaimError(Reason.LAUNCH_FAILED, why=why, detail=detail)
        assert self._init is not None
        return self._init

    def _read(self, deadline: float) -> dict[str, Any]:
        assert self._popen.stdout is not None
        data = b""
        if readable([self._popen.stdout], deadline - time.monotonic()):
            data = os.read(self._popen.stdout.fileno(), _LINE_BYTES)
        if not data:
            return {"error": "no answer from the place"}
        facts: dict[str, Any] = {}
        for line in data.splitlines():
            facts |= json.loads(line)
        return facts

    def __exit__(self, *_: object) -> None:
        """End it; nobody waits for that, which takes as long as to make it."""
        threading.Thread(target=self._end, name="place", daemon=True).start()

    def _end(self) -> None:
        # The kernel kills everything in the place with its init.
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        if self._init is not None:
            try:
                processes.kill_session(
                    self._init.init_pid, self._init.init_start, timeout=_SECONDS
                )
            except ReclaimError as error:
                _log.warning("- a rehearsal has left something: %s", error)


def _terminals(session: SessionInit) -> str:
    own = "newinstance,ptmxmode=0666,mode=0620"
    for one in read_mounts(session.init_pid):
        if one.kind == "devpts" and str(one.target) == "/dev/pts":
            group = one.option("gid")
            return own if group is None else f"{own},gid={group}"
    return own
