"""Holds the service's address while its Hub lives, so that no other program gets it.

The proxy sends people's requests, with their logins, to the program that listens there.
So the Hub's own process holds the listening socket, and each service takes a copy of it
(``pidfd_getfd``). While there is no service, callers wait for the next one. A copy
takes rights that a Hub has as root, but not in every container; without them, the
service opens the address itself.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.linux.descriptors import copied_from

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Variable of the service's environment: the Hub's pid and the socket's number there.
HELD = "GPU_RECLAIM_HELD_ADDRESS"
#: Seconds between two attempts at an address that is taken.
AGAIN = 0.5
_BACKLOG = 256
_CAP_SYS_PTRACE = 19  # linux/capability.h

#: Sockets that this process holds, by address.
_held: dict[tuple[str, int], socket.socket] = {}


def listening(host: str, port: int) -> socket.socket:
    """Make a socket that listens there, on all addresses of that name's first kind."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, *_, address = found[0]
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    made = socket.create_server(
        address, family=family, backlog=_BACKLOG, dualstack_ipv6=both
    )
    made.setblocking(False)
    return made


async def hold(host: str, port: int, seconds: float) -> str:
    """Hold that address from now on, in the Hub's process; the value for :data:`HELD`.

    Empty if it cannot be held: a predecessor has not left it in so many seconds.
    """
    if not _can_be_copied():
        return ""
    until = time.monotonic() + seconds
    while (host, port) not in _held:
        try:
            _held[host, port] = listening(host, port)
        except OSError:
            if time.monotonic() >= until:
                return ""
            await asyncio.sleep(AGAIN)
    return f"{os.getpid()},{_held[host, port].fileno()}"


def taken(environment: Mapping[str, str], port: int) -> socket.socket | None:
    """Copy the socket that the Hub holds; None if it holds none for us."""
    pid, _, number = environment.get(HELD, "").partition(",")
    if not (pid.isdecimal() and number.isdecimal()):
        return None
    with suppress(OSError):
        made = socket.socket(fileno=copied_from(int(pid), int(number)))
        if made.getsockname()[1] == port:
            return made
        made.close()
    return None


def _can_be_copied() -> bool:
    """Whether a child of ours, with our rights, may copy our descriptors."""
    status = Path("/proc/self/status").read_text()
    rights = int(status.partition("CapEff:")[2].split(None, 1)[0], 16)
    if not rights >> _CAP_SYS_PTRACE & 1:
        return False
    try:  # an old kernel has no such call, and a container may forbid it
        with Path("/proc/self/status").open("rb") as file:
            os.close(copied_from(os.getpid(), file.fileno()))
    except OSError:
        return False
    return True
