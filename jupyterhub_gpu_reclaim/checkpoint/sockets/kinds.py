"""Tells whether CRIU can save the kind of a socket that another process holds.

It looks through a copy of the descriptor (``pidfd_getfd``, Linux 5.6), reads options
that never change, and closes it.
"""

from __future__ import annotations

import ctypes
import os
import socket
from typing import Final

_PIDFD_GETFD: Final = 438  # the same number on every architecture
_SO_PROTOCOL: Final = 38
_SO_DOMAIN: Final = 39
_MPTCP: Final = 262
MULTIPATH_TCP: Final = "multipath TCP"

_FAMILIES: Final = frozenset(
    {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
)
_FAMILY_WORDS: Final = {
    int(socket.AF_PACKET): "packet",
    int(socket.AF_VSOCK): "vsock",
    int(socket.AF_ALG): "kernel crypto",
    int(socket.AF_CAN): "CAN bus",
    44: "XDP",
}
#: IP, ICMP, TCP, UDP, ICMPv6, UDP-Lite (CRIU's ``can_dump_ipproto``).
_PROTOCOLS: Final = frozenset({0, 1, 6, 17, 58, 136})
_PROTOCOL_WORDS: Final = {
    132: "SCTP",
    _MPTCP: MULTIPATH_TCP,
}

_libc = ctypes.CDLL(None, use_errno=True)


def unsupported_kind(pid: int, fd: int) -> str:
    """What a socket is that CRIU cannot save, in a word; empty when it can.

    Also empty when the process or the descriptor has gone.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return ""
    try:
        copy = _libc.syscall(_PIDFD_GETFD, process, fd, 0)
    finally:
        os.close(process)
    if copy < 0:
        return ""
    try:
        one = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return ""
    with one:
        return _kind(one)


def _kind(one: socket.socket) -> str:
    try:
        family = one.getsockopt(socket.SOL_SOCKET, _SO_DOMAIN)
        protocol = one.getsockopt(socket.SOL_SOCKET, _SO_PROTOCOL)
        kind = one.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
    except OSError:
        return ""
    if family not in _FAMILIES:
        return _FAMILY_WORDS.get(family, f"family {family}")
    if family not in {socket.AF_INET, socket.AF_INET6}:
        return ""
    if kind == socket.SOCK_RAW:
        return "raw"
    if protocol not in _PROTOCOLS:
        return _PROTOCOL_WORDS.get(protocol, f"protocol {protocol}")
    return ""
