"""A network of its own for every process that runs tests.

Files that run at a time would take each other's ports: most of what they try is a
session that comes back later on the same one. Ports, names of abstract sockets and the
kernel's list of reserved ports all belong to a network namespace. Threads that run
already stay where they are.
"""

import ctypes
import fcntl
import os
import socket
import struct

_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1
_REQUEST = struct.Struct("16sh22x")  #: struct ifreq with its flags


def be_alone() -> bool:
    """Leave the machine's network for an empty one with a loopback; whether we did.

    Only root may. Everybody else has no sessions to bring back either.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.unshare(_CLONE_NEWNET) != 0:
        return False
    with socket.socket() as one:
        asked = fcntl.ioctl(one, _SIOCGIFFLAGS, _REQUEST.pack(b"lo", 0))
        _, flags = _REQUEST.unpack(asked)
        fcntl.ioctl(one, _SIOCSIFFLAGS, _REQUEST.pack(b"lo", flags | _IFF_UP))
    return True
