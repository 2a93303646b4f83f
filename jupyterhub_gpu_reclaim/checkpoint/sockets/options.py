"""Options of sockets that CRIU does not save: read at a capture, set after a restore.

CRIU knows some thirty of the options that Linux has. Here are those that programs set,
some of CRIU's among them, so that they do not depend on its version. What is the same
as a fresh socket has is not kept; what a restored socket has already is not set.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.libc import libc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_log = logging.getLogger(__name__)


def _numbers(table: str) -> dict[str, int]:
    return {
        name: int(number)
        for name, _, number in (word.partition("=") for word in table.split())
    }


_NETLINK: Final = 270
#: By level. Not here: sizes of buffers and filters (CRIU's), what can only be read or
#: only be set, and what the kernel changes by itself.
KNOWN: Final = {
    # <linux/tcp.h>
    socket.IPPROTO_TCP: _numbers(
        """
        TCP_NODELAY=1 TCP_CORK=3 TCP_KEEPIDLE=4 TCP_KEEPINTVL=5 TCP_KEEPCNT=6
        TCP_SYNCNT=7 TCP_LINGER2=8 TCP_DEFER_ACCEPT=9 TCP_CONGESTION=13
        TCP_USER_TIMEOUT=18 TCP_FASTOPEN=23 TCP_NOTSENT_LOWAT=25 TCP_INQ=36
        """
    ),
    # <linux/udp.h>
    socket.IPPROTO_UDP: _numbers("UDP_SEGMENT=103 UDP_GRO=104"),
    # <linux/in.h>
    socket.IPPROTO_IP: _numbers(
        """
        IP_TOS=1 IP_TTL=2 IP_PKTINFO=8 IP_MTU_DISCOVER=10 IP_RECVERR=11 IP_RECVTTL=12
        IP_RECVTOS=13 IP_FREEBIND=15 IP_BIND_ADDRESS_NO_PORT=24 IP_MULTICAST_IF=32
        IP_MULTICAST_TTL=33 IP_MULTICAST_LOOP=34 IP_LOCAL_PORT_RANGE=51
        """
    ),
    # <linux/in6.h>
    socket.IPPROTO_IPV6: _numbers(
        """
        IPV6_UNICAST_HOPS=16 IPV6_MULTICAST_IF=17 IPV6_MULTICAST_HOPS=18
        IPV6_MULTICAST_LOOP=19 IPV6_MTU_DISCOVER=23 IPV6_RECVERR=25 IPV6_V6ONLY=26
        IPV6_RECVPKTINFO=49 IPV6_RECVHOPLIMIT=51 IPV6_DONTFRAG=62 IPV6_RECVTCLASS=66
        IPV6_TCLASS=67
        """
    ),
    # <linux/netlink.h>
    _NETLINK: _numbers(
        """
        NETLINK_PKTINFO=3 NETLINK_BROADCAST_ERROR=4 NETLINK_NO_ENOBUFS=5
        NETLINK_CAP_ACK=10 NETLINK_EXT_ACK=11 NETLINK_GET_STRICT_CHK=12
        """
    ),
    # <asm-generic/socket.h>
    socket.SOL_SOCKET: _numbers(
        """
        SO_REUSEADDR=2 SO_BROADCAST=6 SO_KEEPALIVE=9 SO_PRIORITY=12 SO_LINGER=13
        SO_REUSEPORT=15 SO_PASSCRED=16 SO_RCVLOWAT=18 SO_RCVTIMEO=20 SO_SNDTIMEO=21
        SO_TIMESTAMP=29 SO_TIMESTAMPNS=35 SO_TIMESTAMPING=37 SO_RXQ_OVFL=40
        SO_PEEK_OFF=42 SO_BUSY_POLL=46 SO_MAX_PACING_RATE=47 SO_ZEROCOPY=60
        SO_TIMESTAMP_NEW=63 SO_TIMESTAMPNS_NEW=64 SO_TIMESTAMPING_NEW=65
        SO_PASSPIDFD=76 SO_LOCK_FILTER=44
        """
    ),
}
#: Options of datagrams alone: in a connection the kernel notes there where its first
#: packet came in, and how many hops it was good for.
_NOT_OF_STREAMS: Final = {
    (level, KNOWN[level][name])
    for level, name in [
        (socket.IPPROTO_IP, "IP_MULTICAST_TTL"),
        (socket.IPPROTO_IPV6, "IPV6_MULTICAST_IF"),
        (socket.IPPROTO_IPV6, "IPV6_MULTICAST_HOPS"),
    ]
}
_MOST_BYTES: Final = 256


class Option(NamedTuple):
    level: int
    name: int
    value: bytes


def read(end: socket.socket) -> list[Option]:
    """The options of a socket that a fresh one of its kind has not."""
    usual = _usual(*kind_of(end))
    found = []
    for level, name in _known(end):
        value = _get(end, level, name)
        if value is not None and usual.get((level, name)) != value:
            found.append(Option(level, name, value))
    return found


def write(end: socket.socket, options: Iterable[Option]) -> None:
    """Set those that the socket has not, as far as the kernel takes them."""
    for level, name, value in options:
        if _get(end, level, name) == value:
            continue
        try:
            end.setsockopt(level, name, value)
        except OSError as error:
            _log.info("- option %d of level %d is not set: %s", name, level, error)


def kind_of(end: socket.socket) -> tuple[int, int, int]:
    level = socket.SOL_SOCKET
    return (
        end.getsockopt(level, socket.SO_DOMAIN),
        end.getsockopt(level, socket.SO_TYPE),
        end.getsockopt(level, socket.SO_PROTOCOL),
    )


def _known(end: socket.socket) -> Iterator[tuple[int, int]]:
    family, kind, protocol = kind_of(end)
    levels = []
    if family in {socket.AF_INET, socket.AF_INET6}:
        levels += [protocol, socket.IPPROTO_IP]
    if family == socket.AF_INET6:
        levels.append(socket.IPPROTO_IPV6)
    if family == socket.AF_NETLINK:
        levels.append(_NETLINK)
    for level in (*levels, socket.SOL_SOCKET):  # with the lock of the filter, last
        for number in KNOWN.get(level, {}).values():
            if kind != socket.SOCK_STREAM or (level, number) not in _NOT_OF_STREAMS:
                yield level, number


@functools.cache
def _usual(family: int, kind: int, protocol: int) -> dict[tuple[int, int], bytes]:
    try:
        fresh = socket.socket(family, kind, protocol)
    except OSError:
        return {}
    with fresh:
        return {
            (level, name): value
            for level, name in _known(fresh)
            if (value := _get(fresh, level, name)) is not None
        }


def _get(end: socket.socket, level: int, name: int) -> bytes | None:
    try:
        return end.getsockopt(level, name, _MOST_BYTES)
    except OSError:
        return None  # not one of this kernel, or of this kind of socket


_FILTER: Final = 48  # MCAST_MSFILTER
_STORAGE: Final = 128  # sockaddr_storage
_MOST_SOURCES: Final = 64
#: Lengths of the addresses that a socket of that family can hear.
_WIDTHS: Final[dict[int, tuple[int, ...]]] = {
    socket.AF_INET: (4,),
    socket.AF_INET6: (4, 16),
}
_LEVELS: Final = {4: socket.IPPROTO_IP, 16: socket.IPPROTO_IPV6}


def groups_of(pid: int) -> list[tuple[int, bytes]]:
    """All multicast groups that are joined there: (interface's number, group)."""
    found = []
    interface = 0
    for line in procfs.text(pid, "net/igmp").splitlines()[1:]:
        word = line.split()[0]
        if not line.startswith("\t"):
            interface = int(word)
        else:
            found.append((interface, struct.pack("=I", int(word, 16))))
    for line in procfs.text(pid, "net/igmp6").splitlines():
        number, _, group = line.split()[:3]
        found.append((int(number), bytes.fromhex(group)))
    return found


def is_member(end: socket.socket, groups: Iterable[tuple[int, bytes]]) -> bool:
    """Whether a socket has joined one of those groups."""
    family, kind, _ = kind_of(end)
    widths = _WIDTHS.get(family, ())
    if kind == socket.SOCK_STREAM:
        return False
    return any(_has_joined(end, *one) for one in groups if len(one[1]) in widths)


# Linux does not list which groups a socket has joined. But it tells its filter for one
# group on one interface (<linux/in.h>, struct group_filter), and an error where the
# socket is no member.
def _has_joined(end: socket.socket, number: int, group: bytes) -> bool:
    if len(group) == 4:
        address = struct.pack("=HH4s", socket.AF_INET, 0, group)
    else:
        address = struct.pack("=HHI16s", socket.AF_INET6, 0, 0, group)
    asked = struct.pack("=I4x", number) + address.ljust(_STORAGE, b"\0")
    asked += struct.pack("=II", 0, _MOST_SOURCES)
    buffer = ctypes.create_string_buffer(asked, len(asked) + _MOST_SOURCES * _STORAGE)
    size = ctypes.c_uint32(len(buffer))
    level = _LEVELS[len(group)]
    told = ctypes.byref(size)
    return bool(libc.getsockopt(end.fileno(), level, _FILTER, buffer, told) == 0)
