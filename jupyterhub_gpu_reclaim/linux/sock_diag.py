"""The kernel's own list of inet sockets, and its way to end one (netlink sock_diag).

``/proc/<pid>/net/tcp`` would list the same, but only sock_diag can end a socket
(``SOCK_DESTROY``, Linux 4.5, CONFIG_INET_DIAG_DESTROY), and one source is safer than
two; ``ss -K`` is the same call, but the machine may lack it. Layouts:
``linux/inet_diag.h``, ``linux/netlink.h``, ``linux/rtnetlink.h``.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import struct
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import netns

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

Address = IPv4Address | IPv6Address

TIMEOUT_SECONDS: Final = 10.0
#: The option of a TCP socket that CRIU sets, and a dump leaves set (``linux/tcp.h``).
TCP_REPAIR: Final = 19

_SOCK_DIAG = 4
_ROUTE = 0
_BY_FAMILY, _DESTROY = 20, 21
_GETADDR, _NEWADDR = 22, 20
_ERROR, _DONE = 2, 3
_REQUEST, _ACK, _DUMP = 1, 4, 0x300
_ALL_STATES = 0xFFFFFFFF
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_SHOW_NAME, _SHOW_PEER, _SHOW_WAITING = 1, 4, 8
_UNIX_NAME, _UNIX_PEER, _UNIX_WAITING, _UNIX_SHUTDOWN = 0, 2, 3, 6

#: The attribute with the keys of a socket, which only CAP_NET_ADMIN is told. It comes
#: with that extension alone.
_MD5_KEYS: Final = 18
#: The extension with ``struct tcp_info``, its attribute, and in it the counts of bytes.
_WITH_INFO, _INFO, _CARRIED = 1 << 1, 2, struct.Struct("=120xQQ")

_HEADER = struct.Struct("=IHHII")
_REQUEST_V2 = struct.Struct("=BBBBI48s")
_MESSAGE = struct.Struct("=BBBB48sIIIII")
_INODE, _INODE_AT = struct.Struct("=I"), _MESSAGE.size - 4
_UNIX_REQUEST = struct.Struct("=BBxxIII8x")
_SOCKID = struct.Struct("!HH16s16s")


class TcpState(IntEnum):
    """TCP's states, which UDP borrows (``net/tcp_states.h``)."""

    ESTABLISHED = 1
    SYN_SENT = 2
    SYN_RECV = 3
    FIN_WAIT1 = 4
    FIN_WAIT2 = 5
    TIME_WAIT = 6
    CLOSE = 7
    CLOSE_WAIT = 8
    LAST_ACK = 9
    LISTEN = 10
    CLOSING = 11
    NEW_SYN_RECV = 12
    BOUND_INACTIVE = 13


class Endpoint(NamedTuple):
    """An address and a port; both are zero if nothing is bound."""

    address: Address
    port: int

    def __str__(self) -> str:
        v6 = isinstance(self.address, IPv6Address)
        return f"[{self.address}]:{self.port}" if v6 else f"{self.address}:{self.port}"


class InetSocket(NamedTuple):
    """One TCP or UDP socket, as the kernel lists it."""

    family: int
    protocol: int
    state: TcpState
    local: Endpoint
    remote: Endpoint
    inode: int  #: 0 when no descriptor refers to it (accept queue, TIME_WAIT)
    key: bytes = b""  #: the kernel's own name for it, to destroy it by
    unsent: int = 0  #: bytes that the other side has not acknowledged
    unread: int = 0  #: bytes that its program has not read; a listener's open requests
    # The rest is told where it is asked for.
    has_keys: bool = False  #: packets must be signed (TCP_MD5SIG)
    sent: int = 0  #: bytes that the other end has acknowledged so far
    received: int = 0  #: bytes that have come so far


@functools.lru_cache(maxsize=4096)
def address_of(packed: bytes) -> Address:
    """An address from its bytes; IPv4 mapped into IPv6 counts as IPv4."""
    address = ip_address(packed)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


class Diag:
    """The sockets of one network namespace; a context manager."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._sequence = 0

    def __enter__(self) -> Self:
        self._netlink = _in_namespace_of(self._pid, _SOCK_DIAG)
        return self

    def __exit__(self, *args: object) -> None:
        self._netlink.close()

    def sockets(self, inodes: Container[int] | None = None) -> list[InetSocket]:
        """TCP and UDP sockets of the namespace with those inodes, of any owner.

        0 is for all that no program has; None: every one. Others may have a million
        sockets in the same namespace.

        Raises:
            Refused: the kernel does not answer (``internal``).
        """
        return [
            one
            for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP)
            for one in self._list(protocol, inodes)
        ]

    def connections(self, inodes: Container[int]) -> list[InetSocket]:
        """Established TCP connections with those inodes, and all that is told of them.

        Raises:
            Refused: the kernel does not answer (``internal``).
        """
        states = 1 << TcpState.ESTABLISHED
        return self._list(socket.IPPROTO_TCP, inodes, _WITH_INFO, states)

    def with_keys(self, inodes: Container[int]) -> list[InetSocket]:
        """The TCP sockets with those inodes whose packets must be signed."""
        found = self._list(socket.IPPROTO_TCP, inodes, _WITH_INFO)
        return [one for one in found if one.has_keys]

    def _list(
        self,
        protocol: int,
        inodes: Container[int] | None,
        shown: int = 0,
        states: int = _ALL_STATES,
    ) -> list[InetSocket]:
        return [
            _socket_of(payload, protocol)
            for family in (socket.AF_INET, socket.AF_INET6)
            for kind, payload in self._ask(
                _BY_FAMILY,
                _REQUEST | _DUMP,
                _REQUEST_V2.pack(family, protocol, shown, 0, states, bytes(48)),
            )
            if _is_among(inodes, kind, payload)
        ]

    def destroy(self, one: InetSocket) -> bool:
        """End a socket at once; a TCP peer gets a reset. Idempotent.

        False when this kernel cannot do that (CONFIG_INET_DIAG_DESTROY) or refuses.
        """
        request = _REQUEST_V2.pack(
            one.family, one.protocol, 0, 0, 1 << one.state, one.key
        )
        try:
            for _ in self._ask(_DESTROY, _REQUEST | _ACK, request):
                pass
        except OSError as error:
            return error.errno in {errno.ENOENT, errno.ENOTCONN}
        return True

    def _ask(self, kind: int, flags: int, body: bytes) -> Iterator[tuple[int, bytes]]:
        self._sequence += 1
        yield from _converse(self._netlink, self._sequence, kind, flags, body)


class UnixSocket(NamedTuple):
    inode: int
    kind: int  #: ``SOCK_STREAM``, …
    state: TcpState
    peer: int  #: 0 for none, and for one that has ended or was not accepted yet
    name: str  #: where it is bound; for most clients only their peer has a name
    waiting: tuple[int, ...] = ()  #: a listener's clients that were not accepted yet
    is_over: bool = False  #: nothing more comes nor goes: most often its peer has ended

    @property
    def is_connected(self) -> bool:
        """Whether it is a stream, or of packets, with a peer."""
        stream = self.kind != socket.SOCK_DGRAM and self.state is TcpState.ESTABLISHED
        return stream and (self.peer != 0 or not self.is_over)


def _is_among(inodes: Container[int] | None, kind: int, payload: bytes) -> bool:
    """Whether a message is about one of those sockets; quicker than reading it all."""
    if kind != _BY_FAMILY or len(payload) < _MESSAGE.size:
        return False
    return inodes is None or _INODE.unpack_from(payload, _INODE_AT)[0] in inodes


def unix_sockets(pid: int) -> list[UnixSocket]:
    found = []
    with _in_namespace_of(pid, _SOCK_DIAG) as netlink:
        shown = _SHOW_NAME | _SHOW_PEER | _SHOW_WAITING
        body = _UNIX_REQUEST.pack(socket.AF_UNIX, 0, _ALL_STATES, 0, shown)
        answers = _converse(netlink, 1, _BY_FAMILY, _REQUEST | _DUMP, body)
        for kind, payload in answers:
            if kind != _BY_FAMILY or len(payload) < 16:
                continue
            its_kind, state, inode = struct.unpack_from("=xBBxI", payload)
            values = dict(_attributes(payload[16:]))
            name = values.get(_UNIX_NAME, b"").replace(b"\0", b"@", 1)
            waiting = values.get(_UNIX_WAITING, b"")
            found.append(
                UnixSocket(
                    inode,
                    its_kind,
                    TcpState(state),
                    int.from_bytes(values.get(_UNIX_PEER, b"")[:4], "little"),
                    os.fsdecode(name),
                    struct.unpack(f"={len(waiting) // 4}I", waiting),
                    values.get(_UNIX_SHUTDOWN, b"")[:1] == b"\3",
                )
            )
    return found


def own_addresses(pid: int) -> frozenset[Address]:
    found: set[Address] = set()
    with _in_namespace_of(pid, _ROUTE) as netlink:
        body = struct.pack("=BBBBI", socket.AF_UNSPEC, 0, 0, 0, 0)
        for kind, payload in _converse(netlink, 1, _GETADDR, _REQUEST | _DUMP, body):
            if kind == _NEWADDR:
                found.update(
                    address_of(value)
                    for name, value in _attributes(payload[8:])
                    if name in {_IFA_ADDRESS, _IFA_LOCAL} and len(value) in {4, 16}
                )
    return frozenset(found)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            return
        yield kind, data[at + 4 : at + length]
        at += (length + 3) & ~3


def _socket_of(payload: bytes, protocol: int) -> InetSocket:
    family, state, _, _, key, _, unread, unsent, _, inode = _MESSAGE.unpack_from(
        payload
    )
    source_port, peer_port, source, peer = _SOCKID.unpack_from(key)
    width = 4 if family == socket.AF_INET else 16
    more = dict(_attributes(payload[_MESSAGE.size :]))
    info = more.get(_INFO, b"")
    carried = _CARRIED.unpack_from(info) if len(info) >= _CARRIED.size else (0, 0)
    return InetSocket(
        family,
        protocol,
        TcpState(state),
        Endpoint(address_of(source[:width]), source_port),
        Endpoint(address_of(peer[:width]), peer_port),
        inode,
        key,
        unsent,
        unread,
        _MD5_KEYS in more,
        *carried,
    )


def _converse(
    netlink: socket.socket, sequence: int, kind: int, flags: int, body: bytes
) -> Iterator[tuple[int, bytes]]:
    """Send one request; yield its answers until the kernel says that is all."""
    netlink.send(
        _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body
    )
    while True:
        try:
            data = netlink.recv(1 << 18)
        except TimeoutError:
            raise Refused(Reason.INTERNAL, detail="netlink does not answer") from None
        at = 0
        while at + _HEADER.size <= len(data):
            length, answer, _, its_sequence, _ = _HEADER.unpack_from(data, at)
            payload = data[at + _HEADER.size : at + length]
            at += max((length + 3) & ~3, _HEADER.size)
            if its_sequence != sequence:
                continue  # the rest of an earlier answer that was given up
            if answer == _DONE:
                return
            if answer == _ERROR:
                code = -int.from_bytes(payload[:4], "little", signed=True)
                if code:
                    raise OSError(code, os.strerror(code))
                return
            yield answer, payload


def _in_namespace_of(pid: int, protocol: int) -> socket.socket:
    try:
        made = netns.make_socket(pid, socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    except OSError as error:
        detail = f"network of process {pid}: {error}"
        raise Refused(Reason.NO_TREE, detail=detail) from None
    made.settimeout(TIMEOUT_SECONDS)
    return made
