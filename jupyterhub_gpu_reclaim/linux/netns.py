"""Makes a socket in the network namespace of another process.

A session in a container answers on the loopback address of its own namespace, and the
kernel's list of its sockets has to be requested there. A socket belongs for ever to the
namespace in which it was made; so only its making needs a visit.
"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.threads import in_namespace

_CLONE_NEWNET = 0x40000000


def make_socket(
    pid: int, family: int, kind: int, protocol: int = 0, *, start: int | None = None
) -> socket.socket:
    """A new socket in the network namespace of that process.

    With its start time (clock ticks since boot) the pid is not another process's by
    now.

    Raises:
        OSError: there is no such process, or its namespace may not be entered.
    """
    path = f"/proc/{pid}/ns/net"
    with closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as namespace:
        if start is not None and processes.start_time(pid) != start:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), path)
        here = Path("/proc/thread-self/ns/net").stat()
        if os.path.samestat(here, os.fstat(namespace)):
            return socket.socket(family, kind, protocol)
        return in_namespace(
            namespace, _CLONE_NEWNET, lambda: socket.socket(family, kind, protocol)
        )


def connect(pid: int, port: int, *, start: int, seconds: float) -> socket.socket:
    """A TCP connection to a port on the loopback address of that namespace.

    The seconds are its time limit afterwards, too.

    Raises:
        OSError: there is no listener, or as :func:`make_socket`.
    """
    made = make_socket(pid, socket.AF_INET, socket.SOCK_STREAM, start=start)
    try:
        made.settimeout(seconds)
        made.connect(("127.0.0.1", port))
    except BaseException:
        made.close()
        raise
    return made
