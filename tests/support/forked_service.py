"""The service of a preloaded Hub is forked as well, not begun from nothing.

It would import for a second what ``preloaded`` has imported. So a Hub makes one process
more before it begins, which waits, and becomes each service that the Hub starts. As by
the Hub's own command a service is a child of the Hub, and in ``/proc`` it has the words
and the environment that it would have.
"""

import ctypes
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
from typing import Any

from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.libc import checked, libc
from jupyterhub_gpu_reclaim.service import app
from tests.support import forked

_COMMAND = [sys.executable, "-P", "-m", "jupyterhub_gpu_reclaim.service"]
_LONGEST = 1 << 18  #: bytes of an order
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)
_CLONE_PARENT = 0x8000
#: linux/prctl.h: eleven addresses, of which the last four are where words and
#: environment begin and end; no auxiliary vector, no other program.
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_MAP = struct.Struct("=11QQIi")
_shown: list[Any] = []


def prepare() -> None:
    """From here on that command is carried out by a process that waits for it."""
    if _SYS_CLONE is None:
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _wait(theirs)
    theirs.close()
    patched: Any = subprocess.Popen
    execute = patched._execute_child

    def begin(popen: Any, args: Any, *more: Any) -> None:
        env: dict[str, str] = more[5]
        if (
            list(args[: len(_COMMAND)]) != _COMMAND
            # with modules of a test's own before all others
            or env.get("PYTHONPATH") != os.environ.get("PYTHONPATH")
        ):
            execute(popen, args, *more)
            return
        ours.send(json.dumps({"words": list(args), "env": env}).encode())
        popen.pid = int(ours.recv(16))
        popen._child_created = True

    patched._execute_child = begin


def _wait(orders: socket.socket) -> None:
    """Make a child of our parent for each order; never returns in this process."""
    while order := orders.recv(_LONGEST):
        pid = libc.syscall(_SYS_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            orders.close()
            _become(**json.loads(order))
        orders.send(b"%d" % checked(pid))
    os._exit(0)


def _become(words: list[str], env: dict[str, str]) -> None:
    random.seed()  # as a fork does
    os.setsid()
    os.environ.clear()
    os.environ.update(env)
    _show(words, [f"{name}={value}" for name, value in env.items()])
    sys.argv = words[len(_COMMAND) - 1 :]
    forked.run(app.main)


def _show(*texts: list[str]) -> None:
    """Have ``/proc`` tell these words and this environment."""
    bounds = []
    for some in texts:
        told = b"".join(os.fsencode(text) + b"\0" for text in some)
        _shown.append(ctypes.create_string_buffer(told, len(told)))
        start = ctypes.addressof(_shown[-1])
        bounds += [start, start + len(told)]
    stat = list(map(int, procfs.stat(os.getpid())[1:]))
    libc.sbrk.restype = ctypes.c_void_p
    its = (*stat[22:24], *stat[41:44], libc.sbrk(0), stat[24])
    made = _MAP.pack(*its, *bounds, 0, 0, -1)
    checked(libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, made, len(made), 0))
