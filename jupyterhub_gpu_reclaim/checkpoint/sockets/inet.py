"""Finds inet sockets that lead outside of a session, cuts them, and rewrites images.

A connection is the session's own when both of its ends are sockets of its tree: such a
pair is restored with the data in flight (CRIU's ``--tcp-established``), on loopback
where its addresses are not those of the place any more. Everything else leads outside,
on loopback too: in the local placement the Hub, the proxy and another session are all
on 127.0.0.1. Cutting first lets the other side notice at once; rewriting the image is
what makes the restore safe, because a socket may be opened after the cut, or its
program may not have closed it. A connection that was not accepted yet is left out by
CRIU (``--skip-in-flight``), so its other end counts as cut.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.descriptors import borrow_from
from jupyterhub_gpu_reclaim.linux.sock_diag import (
    Address,
    Diag,
    Endpoint,
    InetSocket,
    TcpState,
    address_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from jupyterhub_gpu_reclaim.linux.processes import Process

#: Of what its program has closed, as far as no program has it any more.
ENDING: Final = frozenset(
    {
        TcpState.FIN_WAIT1,
        TcpState.FIN_WAIT2,
        TcpState.CLOSING,
        TcpState.LAST_ACK,
        TcpState.TIME_WAIT,
    }
)
_OPEN: Final = frozenset({TcpState.ESTABLISHED, TcpState.CLOSE_WAIT})
#: States in which both ends hold a connection that CRIU can take up again.
_CONNECTED: Final = _OPEN | ENDING - {TcpState.TIME_WAIT}
_CONNECTING: Final = frozenset(
    {TcpState.SYN_SENT, TcpState.SYN_RECV, TcpState.NEW_SYN_RECV}
)
_LOOK_AGAIN: Final = 0.01  # seconds
_WAITING: Final = _OPEN | {TcpState.SYN_RECV}


class Port(NamedTuple):
    """A port that a saved session needs again; in JSON a list."""

    protocol: str  #: tcp or udp
    port: int
    address: str = "0.0.0.0"  # noqa: S104 - any of the machine's addresses
    only_v6: bool = False  #: IPV6_V6ONLY: not of IPv4 as well
    shared: bool = False  #: datagrams: others may have it, too (SO_REUSEADDR)

    @property
    def family(self) -> socket.AddressFamily:
        is_v4 = ip_address(self.address).version == 4
        return socket.AF_INET if is_v4 else socket.AF_INET6

    @property
    def kind(self) -> socket.SocketKind:
        return socket.SOCK_STREAM if self.protocol == "tcp" else socket.SOCK_DGRAM

    def bind(self, one: socket.socket, *, lenient: bool) -> None:
        """Bind a socket of that kind; sharing with root's, and leniently or not.

        Raises:
            OSError: the port is taken.
        """
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(lenient))
        if one.family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(self.only_v6))
        one.bind((self.address, self.port))


class Link(NamedTuple):
    """A connection, from one end."""

    protocol: int
    local: Endpoint
    remote: Endpoint

    @classmethod
    def of(cls, one: InetSocket) -> Link:
        return cls(one.protocol, one.local, one.remote)

    @property
    def reverse(self) -> Link:
        return Link(self.protocol, self.remote, self.local)


def tree_inodes(pids: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Socket inode → (pid, descriptor) of every socket that those processes hold."""
    found: dict[int, tuple[int, int]] = {}
    for pid in pids:
        for fd, target in procfs.descriptors(pid):
            if target.startswith("socket:["):
                found.setdefault(int(target[8:-1]), (pid, fd))
    return found


def sockets_in(
    tree: Iterable[Process],
) -> Iterator[tuple[Process, int, socket.socket]]:
    """Every socket of those processes, once: a holder, its inode, and a copy of it.

    What has gone meanwhile is left out.
    """
    by_pid = {process.pid: process for process in tree}
    for inode, (pid, fd) in tree_inodes(by_pid).items():
        with contextlib.suppress(OSError), borrow_from(pid, fd) as end:
            # Neither process nor descriptor is another one by now.
            if os.fstat(end.fileno()).st_ino == inode:
                yield by_pid[pid], inode, end


def sockets_of(init_pid: int, inodes: Collection[int]) -> list[InetSocket]:
    """The TCP and UDP sockets with those inodes, in the network namespace of init.

    Raises:
        Refused: the session or the kernel's list is not there.
    """
    with Diag(init_pid) as diag:
        return diag.sockets(inodes)


def links_of(found: Iterable[InetSocket], inodes: Collection[int]) -> frozenset[int]:
    """The TCP connections of those sockets to others of the list.

    Returns:
        The inodes of both ends; a connection whose other end is not there is left out.
    """
    ends = {
        Link.of(one): one.inode
        for one in found
        if one.inode and one.protocol == socket.IPPROTO_TCP and one.state in _CONNECTED
    }
    return frozenset(
        inode
        for link, end in ends.items()
        if end in inodes and (other := ends.get(link.reverse))
        for inode in (end, other)
    )


def cut_external(
    init_pid: int, pids: Iterable[int], *, patience: float = 0.5
) -> list[int]:
    """End every connection that leads out of the tree; its peers notice at once.

    Idempotent. What this kernel cannot end is left to :func:`close_external`. A reset
    throws away what the other side has not acknowledged: output that is on its way gets
    ``patience`` seconds.

    Returns:
        The inodes of what was ended; 0 for what no program has.

    Raises:
        Refused: the session or the kernel's list is not there.
    """
    inodes = tree_inodes(pids)
    deadline = time.monotonic() + patience
    with Diag(init_pid) as diag:
        while True:
            found = diag.sockets({*inodes, 0})
            external = _external(found, inodes.keys())
            waiting = any(one.unsent and one.state in _CONNECTED for one in external)
            if not waiting or time.monotonic() >= deadline:
                return _destroy(diag, external)
            time.sleep(_LOOK_AGAIN)  # the kernel has no event for an empty queue


def reset_all(init_pid: int, pids: Iterable[int], *, held: bool = True) -> None:
    """End every TCP and UDP socket of a tree that is about to be killed.

    Connections are reset instead of closed, so that no TIME_WAIT keeps a port busy; nor
    do those that have ended at a listener of the tree before. Only these are ended
    without ``held``.
    """
    inodes = tree_inodes(pids)
    with Diag(init_pid) as diag:
        found = diag.sockets({*inodes, 0})
        mine = [one for one in found if one.inode in inodes]
        others = _at_listeners(found, mine, _WAITING | ENDING)
        _destroy(diag, mine + others if held else others)


def close_external(
    entries: Collection[Any],
    addresses: Collection[Address] = (),
    cut: Collection[int] = (),
) -> frozenset[int]:
    """Change entries of ``files.img`` so that no socket leads out of the tree.

    A listener on an address that the place does not have (loopback is always there)
    becomes one on the wildcard address. ``cut`` are the inodes that
    :func:`cut_external` has ended.

    Returns:
        The TCP connections that do not come back, by their entries.
    """
    judge = _Judge(entries, addresses, cut)
    ended = set()
    for entry in filter(_is_inet, entries):
        if entry.isk.proto == socket.IPPROTO_TCP and judge.is_over(entry.isk):
            ended.add(entry.id)
        judge.close(entry.isk)
    return frozenset(ended)


def ports_of(entries: Iterable[Any]) -> frozenset[Port]:
    """The ports that a restore of those (changed) entries must have for itself.

    A TCP connection is not among them (:func:`connections_of`): CRIU takes it up in
    repair mode, in which others may have sockets on the same port.
    """
    names = {socket.IPPROTO_TCP: "tcp", socket.IPPROTO_UDP: "udp"}
    return frozenset(
        Port(
            names[entry.isk.proto],
            entry.isk.src_port,
            str(_link(entry.isk).local.address),
            bool(entry.isk.v6only),
            entry.isk.proto == socket.IPPROTO_UDP and bool(entry.isk.opts.reuseaddr),
        )
        for entry in entries
        if _is_inet(entry)
        and entry.isk.src_port
        and entry.isk.proto in names
        and not _is_connection(entry.isk)
    )


def connections_of(entries: Iterable[Any]) -> frozenset[Link]:
    return frozenset(
        _link(entry.isk)
        for entry in entries
        if _is_inet(entry) and _is_connection(entry.isk)
    )


def _external(found: list[InetSocket], inodes: Collection[int]) -> list[InetSocket]:
    mine = [one for one in found if one.inode in inodes]
    links = {Link.of(one) for one in mine if one.state in _CONNECTED}
    return [
        one
        for one in mine
        if one.state in _CONNECTING
        or (one.state in _CONNECTED and _leads_out(Link.of(one), links))
    ] + _at_listeners(found, mine, _WAITING)


def _at_listeners(
    found: Iterable[InetSocket],
    mine: Iterable[InetSocket],
    states: Collection[TcpState],
) -> list[InetSocket]:
    """Connections at the tree's listeners that no program has: not yet, or no more."""
    listening = {one.local for one in mine if one.state is TcpState.LISTEN}
    wild = {port for address, port in listening if address in _WILDCARDS}
    return [
        one
        for one in found
        if one.inode == 0
        and one.protocol == socket.IPPROTO_TCP
        and one.state in states
        and (one.local in listening or one.local.port in wild)
    ]


_LOOPBACK: Final[dict[int, Address]] = {
    4: IPv4Address("127.0.0.1"),
    6: IPv6Address("::1"),
}
_MAPPED: Final = bytes(10) + b"\xff\xff"  # before an IPv4 address as one of IPv6
_WILDCARDS: Final = (IPv4Address(0), address_of(bytes(16)))


def _leads_out(link: Link, links: Collection[Link]) -> bool:
    if link.protocol == socket.IPPROTO_TCP:
        return link.reverse not in links
    # A datagram socket needs no peer to be restored, only an address that is there.
    here = link.remote.address
    return not (here.is_loopback or here == link.local.address)


def _destroy(diag: Diag, sockets: Iterable[InetSocket]) -> list[int]:
    return [one.inode for one in sockets if diag.destroy(one)]


def _is_inet(entry: Any) -> bool:
    return bool(entry.type == images.TYPE_INETSK and entry.HasField("isk"))


def _is_connection(isk: Any) -> bool:
    tcp = isk.proto == socket.IPPROTO_TCP
    return bool(tcp and isk.state in _CONNECTED and isk.dst_port)


def _width(isk: Any) -> int:
    return 1 if isk.family == socket.AF_INET else 4


def _address(words: Any, width: int) -> Address:
    # CRIU copies the address' bytes into u32s of the machine's own order.
    words = (list(words) + [0] * width)[:width]
    return address_of(struct.pack(f"={width}I", *words))


def _link(isk: Any) -> Link:
    width = _width(isk)
    return Link(
        isk.proto,
        Endpoint(_address(isk.src_addr, width), isk.src_port),
        Endpoint(_address(isk.dst_addr, width), isk.dst_port),
    )


class _Judge:
    def __init__(
        self,
        entries: Iterable[Any],
        addresses: Collection[Address],
        cut: Collection[int],
    ) -> None:
        self._addresses = addresses
        self._cut = cut
        links = dict.fromkeys(
            _link(entry.isk)
            for entry in entries
            if _is_inet(entry)
            and entry.isk.state in _CONNECTED
            and entry.isk.ino not in cut
        )
        self._links = {link for link in links if self._stays(link)}
        self._moved = self._move(links)

    def _stays(self, link: Link) -> bool:
        """Whether it can be restored as it was, as far as this end goes."""
        bound = link.local.address
        everywhere = bound.is_loopback or bound.is_unspecified or bound.is_multicast
        return everywhere or bound in self._addresses

    def _move(self, links: Collection[Link]) -> dict[Link, Link]:
        """Map the session's own TCP connections whose addresses are not here to others.

        Both ends are ours, so both can get another address: that of loopback, which
        stays the same wherever the session is restored from now on. Two connections
        that would be the same one then are left out.
        """
        moved: dict[Link, Link] = {}
        taken = set(self._links)
        for link in links:
            pair = (link, link.reverse)
            if (
                link.protocol != socket.IPPROTO_TCP
                or link.reverse not in links
                or link in moved
                or all(self._stays(end) for end in pair)
            ):
                continue
            there = _LOOPBACK[link.local.address.version]
            if there.version == 6 and there not in self._addresses:
                continue  # IPv6 is switched off here
            goes = Link(
                link.protocol,
                Endpoint(there, link.local.port),
                Endpoint(there, link.remote.port),
            )
            if goes in taken or goes.reverse in taken:
                continue
            taken |= {goes, goes.reverse}
            moved |= {link: goes, link.reverse: goes.reverse}
        return moved

    def is_over(self, isk: Any) -> bool:
        link = _link(isk)
        connected = isk.state in _CONNECTED and isk.dst_port != 0
        stays = link in self._moved or (
            self._stays(link) and not _leads_out(link, self._links)
        )
        return bool(
            isk.ino in self._cut
            or isk.state in _CONNECTING
            or isk.state == TcpState.TIME_WAIT
            or (connected and not stays)
        )

    def close(self, isk: Any) -> None:
        link = _link(isk)
        if self.is_over(isk):
            # Without its shutdown, which the reset has set: with that, reading would
            # say that the other side had sent everything.
            isk.ClearField("shutdown")
            _unbind(isk)
        elif _has_ended(isk):
            _unbind(isk)
        elif _is_connection(isk) and link in self._moved:
            goes = self._moved[link]
            _write(isk, "src_addr", goes.local.address)
            _write(isk, "dst_addr", goes.remote.address)
            isk.ClearField("ifname")
        elif not self._stays(link):
            if isk.proto == socket.IPPROTO_TCP and isk.state != TcpState.LISTEN:
                _unbind(isk)  # it was bound to an address that is not there
            else:
                _zero(isk, "src_addr")
                isk.ClearField("ifname")


def _has_ended(isk: Any) -> bool:
    """Whether it was connected once: the port is its own no more, the kernel shows it.

    Its shutdown says so, and stays: what there was to read has been read.
    """
    tcp = isk.proto == socket.IPPROTO_TCP and isk.state == TcpState.CLOSE
    return bool(tcp and isk.src_port and isk.HasField("shutdown"))


def _unbind(isk: Any) -> None:
    isk.state = int(TcpState.CLOSE)
    isk.src_port = isk.dst_port = 0
    _zero(isk, "src_addr")
    _zero(isk, "dst_addr")
    isk.ClearField("ifname")


def _write(isk: Any, field: str, address: Address) -> None:
    """An address; an IPv4 one mapped, where the socket is of IPv6."""
    packed = address.packed
    if isk.family == socket.AF_INET6 and len(packed) == 4:
        packed = _MAPPED + packed
    isk.ClearField(field)
    getattr(isk, field).extend(struct.unpack(f"={_width(isk)}I", packed))


def _zero(isk: Any, field: str) -> None:
    isk.ClearField(field)
    getattr(isk, field).extend([0] * _width(isk))
