"""Starts the Hub and the agent from a process that has imported them already.

Half of the processor time that such a program takes in a test is the import of its
modules. Each process that runs tests starts one server here, when it is first needed;
the server imports them once, and forks for each program that it is asked for. What is
forked has the arguments, environment, folder, log and exit status that it would have as
a command of its own; only its line in ``ps``, and its environment there, are the
server's. So is the service of such a Hub (``forked_service.py``). ``make demo-check``
starts the commands themselves.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from jupyterhub_gpu_reclaim.linux.descriptors import readable
from tests.support import forked

#: The functions that the commands call.
HUB = "jupyterhub.app:main"
AGENT = "jupyterhub_gpu_reclaim.node.app:main"
_SERVICE = "tests.support.forked_service:prepare"
_LOADED_BY_THE_HUB = (
    "jupyterhub.authenticators",
    "jupyterhub.proxies",
    "jupyterhub.spawners",
)
#: Reads its environment when it is imported.
_READS_ENVIRONMENT = "kubernetes_asyncio.config.kube_config"
_ROOT = Path(__file__).parents[2]
_LONGEST = 1 << 18  #: bytes of a request
_LONG_SECONDS = 3600
_asking = threading.Lock()


class Started:
    """A program that was started, with the methods of ``subprocess.Popen``."""

    def __init__(self, pid: int, words: list[str], status: socket.socket) -> None:
        self.pid = pid
        self.args = words
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()

    def wait(self, timeout: float = _LONG_SECONDS) -> int:
        until = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return status

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and readable([self._status], 0):
                said = self._status.recv(16)
                # Without a word the server has ended, and nobody knows.
                self.returncode = int(said) if said else -signal.SIGKILL
                self._status.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def start(
    program: str, words: list[str], *, log: int, env: dict[str, str], cwd: Path
) -> Started:
    ours, theirs = socket.socketpair()
    with theirs:
        request = {"program": program, "words": words, "env": env, "cwd": str(cwd)}
        with _asking:
            pid = _server().ask(json.dumps(request).encode(), [log, theirs.fileno()])
    return Started(pid, words, ours)


@functools.cache
def _server() -> _Server:
    return _Server()


class _Server:
    """The server of this process; it ends when this process does."""

    def __init__(self) -> None:
        kind = socket.SOCK_SEQPACKET
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, kind)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _LONGEST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait(60)

    def ask(self, request: bytes, descriptors: list[int]) -> int:
        socket.send_fds(self._socket, [request], descriptors)
        self._socket.settimeout(60)
        answer = self._socket.recv(16)
        assert answer, "the server of programs has ended"
        return int(answer)


def serve(asked: socket.socket) -> None:
    """Start what is asked for, and tell of each end, until the tests have ended."""
    gc.disable()  # what is imported stays
    for program in (HUB, AGENT, _SERVICE):
        _load(program)
    for group in _LOADED_BY_THE_HUB:  # all that are installed, at its start
        for one in entry_points(group=group):
            with contextlib.suppress(ImportError):
                one.load()
    _use_a_database()
    gc.enable()
    gc.freeze()  # a collection in what is forked writes to no page that all share
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}  # pid → where its end is told
    while True:
        ready = readable([asked, woken], _LONG_SECONDS)
        if woken in ready:
            woken.recv(4096)
            _tell_ends(running)
        if asked in ready:
            request, descriptors, _, _ = socket.recv_fds(asked, _LONGEST, 2)
            if not request:
                return
            log, status = descriptors
            pid = os.fork()
            if pid == 0:
                inherited = [asked, woken, wake, *map(_socket, running.values())]
                for one in (*inherited, _socket(status)):
                    one.close()
                _become(log, **json.loads(request))
            os.close(log)
            running[pid] = status
            asked.send(b"%d" % pid)


def _use_a_database() -> None:
    """Have SQLAlchemy make of JupyterHub's tables what each Hub would make of them."""
    # Here, not where the tests would import it.
    from jupyterhub import orm
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    engine = create_engine("sqlite://")
    orm.Base.metadata.create_all(engine)
    with Session(engine) as session:
        for mapper in orm.Base.registry.mappers:
            session.query(mapper.class_).first()
    engine.dispose()


def _socket(descriptor: int) -> socket.socket:
    return socket.socket(fileno=descriptor)


def _load(program: str) -> Any:
    module, _, name = program.partition(":")
    return getattr(importlib.import_module(module), name)


def _tell_ends(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with _socket(running.pop(pid)) as told:
            told.send(b"%d" % os.waitstatus_to_exitcode(status))


def _become(
    log: int, program: str, words: list[str], env: dict[str, str], cwd: str
) -> None:
    """Be that program; never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(cwd)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if program == HUB:
        _load(_SERVICE)()
    os.environ.clear()
    os.environ.update(env)
    if _READS_ENVIRONMENT in sys.modules:
        importlib.reload(sys.modules[_READS_ENVIRONMENT])
    main = _load(program)
    sys.path.remove(str(_ROOT))
    sys.argv = words
    forked.run(main)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
