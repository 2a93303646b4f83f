"""Connections that are not restored: they report a reset, as programs expect."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import struct
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.linux.descriptors import borrow_from, unread_bytes
from jupyterhub_gpu_reclaim.linux.libc import checked, libc
from jupyterhub_gpu_reclaim.linux.sock_diag import TCP_REPAIR, TcpState, own_addresses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return
    from jupyterhub_gpu_reclaim.linux.processes import Process

#: Out of repair mode without a probe to the peer, which is not there.
_REPAIR_OFF: Final = -1
#: No packet goes there; the port of the discard service, which is unused.
_PORT: Final = 9
_PEERS: Final = {
    socket.AF_INET: (("127.0.0.1", _PORT),),
    # The second where IPv6 is switched off; not for an IPV6_V6ONLY socket.
    socket.AF_INET6: (("::1", _PORT), ("::ffff:127.0.0.1", _PORT)),
}
_UNSPECIFIED: Final = struct.pack("=H14x", socket.AF_UNSPEC)
_BIND_ADDRESS_NO_PORT: Final = 24  # <linux/in.h>

_log = logging.getLogger(__name__)


class CutConnections(Kind):
    """Connections that led outside, or had ended with something unread.

    CRIU makes a new socket in place of one, which says that it was never connected
    (ENOTCONN). Libraries know a connection that breaks by ECONNRESET, and POLLERR in
    poll and epoll; so each of these sockets is given that, once; then it is ENOTCONN or
    EPIPE, never a clean end.

    In repair mode (TCP_REPAIR) connect(2) makes a connection to the loopback address
    without a packet; connect(2) to AF_UNSPEC then is the ABORT of RFC 793, with which
    the kernel notes ECONNRESET (``tcp_disconnect``). So no listener, no port and no
    filter of the session can change the outcome, and nothing waits.
    """

    def __init__(self) -> None:
        self._ended: frozenset[int] = frozenset()  #: by entries

    def rewrite(self, back: Return) -> None:
        entries = back.saved.entries.values()
        addresses = own_addresses(back.init_pid)
        self._ended = inet.close_external(entries, addresses, back.cut)
        if back.trial is not None:
            for entry in entries:  # its place has a loopback only
                if entry.HasField("isk"):
                    entry.isk.ClearField("ifname")

    def after_restore(self, back: Return) -> None:
        left = set(self._ended)
        for number, pid, fd in back.holders(left):
            with contextlib.suppress(OSError), borrow_from(pid, fd) as end:
                if _is_closed(end) and _abort(end):
                    left.discard(number)
        if left:  # in a message under way, or without a loopback address
            _log.info("- %d cut connections read as unconnected, not reset", len(left))


def unread_ends(tree: Iterable[Process]) -> frozenset[int]:
    """The TCP connections that have ended with unread data or errors; inodes.

    The rest is lost with the kernel's buffers, and the end alone would look like a
    whole answer, so these are reset as well. Nothing is taken from them. For a stopped
    tree; what has gone is left out.
    """
    found: set[int] = set()
    for _, inode, end in inet.sockets_in(tree):
        with contextlib.suppress(OSError):
            if _is_closed(end) and _is_unread(end):
                found.add(inode)
    return frozenset(found)


def _is_closed(end: socket.socket) -> bool:
    if end.family not in _PEERS or end.type != socket.SOCK_STREAM:
        return False
    if end.proto != socket.IPPROTO_TCP:
        return False
    state = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return state[0] == TcpState.CLOSE


def _is_unread(end: socket.socket) -> bool:
    """Whether data or an error waits; by poll, since to ask for the error takes it."""
    poll = select.poll()
    poll.register(end, 0)
    if any(events & select.POLLERR for _, events in poll.poll(0)):
        return True
    return unread_bytes(end.fileno()) > 0


def _abort(end: socket.socket) -> bool:
    # Repair mode overwrites this one.
    reuse = end.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    end.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    try:
        connected = any(_connect(end, peer) for peer in _PEERS[end.family])
    finally:
        end.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, _REPAIR_OFF)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    if connected:
        ended = libc.connect(end.fileno(), _UNSPECIFIED, len(_UNSPECIFIED))
        checked(ended, "connect to AF_UNSPEC")
        _forget_port(end)
    return connected


def _connect(end: socket.socket, peer: tuple[str, int]) -> bool:
    try:
        end.connect(peer)
    except OSError:
        return False
    return True


def _forget_port(end: socket.socket) -> None:
    """Take the port of that connection from it: the next capture would ask for it."""
    before = end.getsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT)
    end.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
    end.bind(("", 0))
    end.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, before)
