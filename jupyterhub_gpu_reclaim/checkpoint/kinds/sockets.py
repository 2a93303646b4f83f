"""What sockets are and hold that can neither be saved nor be left out."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.checkpoint.sockets import datagrams, options
from jupyterhub_gpu_reclaim.checkpoint.sockets.inet import sockets_in, tree_inodes
from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.linux.beneath import found_at, open_root
from jupyterhub_gpu_reclaim.linux.descriptors import (
    borrow_from,
    closing,
    file_of_socket,
    unread_bytes,
)
from jupyterhub_gpu_reclaim.linux.sock_diag import Diag, unix_sockets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Program, Session
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.processes import Process
    from jupyterhub_gpu_reclaim.linux.sock_diag import UnixSocket

#: SO_PASSCRED, SO_PASSSEC, SO_PASSPIDFD: what comes with a message then is not saved.
_PASSES: Final = (16, 34, 76)
_ACCEPTS: Final = 30  # SO_ACCEPTCONN
_UDP_CORK, _TCP_ULP = 1, 31
#: SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, and room for more groups than there are.
_NETLINK, _MEMBERSHIPS, _GROUP_BYTES = 270, 9, 64
_SIOCOUTQ: Final = 0x5411
MULTIPATH_TCP: Final = "multipath TCP"
_FAMILIES: Final = frozenset(
    {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
)
#: IP, ICMP, TCP, UDP, ICMPv6, UDP-Lite (CRIU's ``can_dump_ipproto``).
_PROTOCOLS: Final = frozenset({0, 1, 6, 17, 58, 136})
_PROTOCOL_WORDS: Final = {
    socket.IPPROTO_SCTP: "SCTP",
    socket.IPPROTO_MPTCP: MULTIPATH_TCP,
}


class Sockets(Kind):
    """Sockets of unknown kinds, and what cannot be saved of the others.

    CRIU fails on most of it, in words of its own and when the session is frozen. What
    protects (keys) would come back without. Each socket is looked at
    through a copy of its descriptor; nothing is taken from it.
    """

    def preflight(self, seen: Session) -> Iterator[Finding]:
        groups = options.groups_of(seen.init_pid)
        by_pid = {one.pid: one for one in seen.programs}
        try:
            root = open_root(f"/proc/{seen.init_pid}/root")
        except OSError:
            return  # it has just ended
        with closing(root):
            for process, _, end in sockets_in(seen.tree.alive):
                with contextlib.suppress(OSError):
                    yield from _judge(by_pid[process.pid], end, root, groups)
        yield from _with_keys(seen)
        yield from _unix_outside(seen)


def _judge(
    one: Program, end: socket.socket, root: int, groups: Sequence[tuple[int, bytes]]
) -> Iterator[Finding]:
    sort = options.kind_of(end)
    unknown = _unknown_kind(*sort)
    if unknown == MULTIPATH_TCP:
        yield one.found(Reason.MULTIPATH_TCP)
    elif unknown:
        yield one.holds(f"a {unknown} socket")
    for kind in _unsavable(end, root, *sort):
        yield one.holds(kind)
    if options.is_member(end, groups):
        yield one.holds("a socket that has joined a multicast group")
    for where in _waiting(end, *sort):
        yield one.found(Reason.SOCKET_UNREAD, where=where)


def _unknown_kind(family: int, kind: int, protocol: int) -> str:
    """Kind, in a word, of a socket that CRIU cannot save; empty when it can."""
    if family not in _FAMILIES:
        known = {int(one): one.name for one in socket.AddressFamily}
        return known.get(family, f"family {family}")
    if family not in {socket.AF_INET, socket.AF_INET6}:
        return ""
    if kind == socket.SOCK_RAW:
        return "raw"
    if protocol not in _PROTOCOLS:
        return _PROTOCOL_WORDS.get(protocol, f"protocol {protocol}")
    return ""


def _with_keys(seen: Session) -> Iterator[Finding]:
    """TCP sockets with keys, which would come back without and take any packet."""
    inodes = tree_inodes(one.pid for one in seen.programs)
    by_pid = {one.pid: one for one in seen.programs}
    with Diag(seen.init_pid) as diag:
        found = diag.with_keys(inodes)
    for one in found:
        yield by_pid[inodes[one.inode][0]].holds("a TCP socket with keys (TCP_MD5SIG)")


def _unix_outside(seen: Session) -> Iterator[Finding]:
    """Connections whose other end is no program of the session's.

    A program that has begun since the tree was looked at is not in it: what seems to be
    outside is looked for once more.
    """
    init, alive = seen.tree.init, seen.tree.alive
    found = list(_unix_findings(init.pid, alive))
    if any(peer for (_, peer), _ in found):
        with contextlib.suppress(NotFound):
            alive = [*alive, *processes.snapshot(init.pid, init.start_time).processes]
        again = {ends for ends, _ in _unix_findings(init.pid, alive)}
        found = [(ends, one) for ends, one in found if not ends[1] or ends in again]
    yield from (one for _, one in found)


def _unix_findings(
    init_pid: int, alive: list[Process]
) -> Iterator[tuple[tuple[int, int], Finding]]:
    """Findings, with a connection's ends; for what waits at a listener, it and 0."""
    inodes = tree_inodes(process.pid for process in alive)
    known = {one.inode: one for one in unix_sockets(init_pid)}
    #: Connection not accepted yet → its listener.
    asked = {client: one for one in known.values() for client in one.waiting}
    by_pid = {process.pid: process for process in alive}
    for inode, (pid, _) in sorted(inodes.items()):
        one = known.get(inode)
        if one is not None and one.waiting:
            clients = [inodes[n] for n in one.waiting if n in inodes]
            for where in _waiting_at(one, clients):
                facts = by_pid[pid].facts
                yield (inode, 0), finding(Reason.SOCKET_UNREAD, **facts, where=where)
        peer = (known.get(one.peer) or asked.get(inode)) if one else None
        if one is None or not _leads_out(one, peer, inodes):
            continue
        where = (peer.name if peer else "") or one.name or "another program"
        ends = inode, one.peer or inode
        yield ends, finding(Reason.UNIX_OUTSIDE, **by_pid[pid].facts, where=where)


def _leads_out(
    one: UnixSocket, peer: UnixSocket | None, inodes: Collection[int]
) -> bool:
    """Whether its other end is outside, such that CRIU cannot save it.

    A peer that is not known is in a network namespace of its own. A datagram socket
    needs no peer that knows of it, only a name to send to.
    """
    if peer is not None and peer.inode in inodes:
        return False
    if one.kind == socket.SOCK_DGRAM:
        return one.peer != 0 and (peer is None or not peer.name)
    return one.is_connected


def _unsavable(
    end: socket.socket, root: int, family: int, kind: int, protocol: int
) -> Iterator[str]:
    """Say in words what a socket holds that cannot be saved."""
    if family == socket.AF_UNIX and (words := _misnamed(end, kind, root)):
        yield words
    if family == socket.AF_NETLINK:
        groups = end.getsockopt(_NETLINK, _MEMBERSHIPS, _GROUP_BYTES)
        if any(groups[4:]):
            yield "a netlink socket that listens to a group above the 32nd"
        elif any(groups) and not end.getsockname()[0]:
            yield "a netlink socket that listens to a group and is not bound"
    if family in {socket.AF_INET, socket.AF_INET6}:
        is_tcp = kind == socket.SOCK_STREAM and protocol == socket.IPPROTO_TCP
        if is_tcp and _option(end, socket.IPPROTO_TCP, _TCP_ULP):
            yield "a TCP connection that the kernel encrypts"


def _waiting(
    end: socket.socket, family: int, kind: int, protocol: int
) -> Iterator[str]:
    """Say in words what waits in a socket and cannot be saved until it is taken."""
    if protocol == socket.IPPROTO_TCP and _is_ready(end, select.POLLPRI):
        yield "a TCP connection with an urgent byte (MSG_OOB)"
    if family == socket.AF_NETLINK and _is_ready(end, select.POLLIN):
        yield "a netlink socket"
    if protocol == socket.IPPROTO_UDP and _option(end, protocol, _UDP_CORK):
        yield "a UDP socket that holds data back (UDP_CORK)"
    if family != socket.AF_UNIX or end.getsockopt(socket.SOL_SOCKET, _ACCEPTS):
        return
    if not unread_bytes(end.fileno()):
        return
    if any(_option(end, socket.SOL_SOCKET, one) for one in _PASSES):
        yield "a UNIX socket whose messages carry credentials"
    has_path = datagrams.name_of(end)[:1] not in {b"", b"\0"}
    if kind == socket.SOCK_DGRAM and has_path and datagrams.carries_files(end):
        yield "a UNIX socket whose messages carry open files"


def _waiting_at(
    listener: UnixSocket, clients: Iterable[tuple[int, int]]
) -> Iterator[str]:
    """Say in words what UNIX connections hold that were not accepted yet."""
    if 0 in listener.waiting:
        yield f"the UNIX socket {listener.name}, from a program that has ended"
    if any(_has_sent(pid, fd) for pid, fd in clients):
        yield f"the UNIX socket {listener.name}, on a connection to be accepted"


def _has_sent(pid: int, fd: int) -> bool:
    with contextlib.suppress(OSError), borrow_from(pid, fd) as end:
        answer = fcntl.ioctl(end.fileno(), _SIOCOUTQ, bytes(4))
        return any(answer)
    return False


def _misnamed(end: socket.socket, kind: int, root: int) -> str:
    """What is wrong with the name of a UNIX socket, in words; empty for nothing.

    It is made again by the name that it was given first, so its file would be another
    one than that where others look for it. Nothing is wrong where that is deleted.
    """
    name = datagrams.name_of(end)
    if name[:1] in {b"", b"\0"}:
        return ""
    try:
        file = file_of_socket(end.fileno())
    except OSError:
        return ""
    with closing(file):
        links = os.fstat(file).st_nlink
        found = os.readlink(f"/proc/self/fd/{file}".encode())  # noqa: PTH115 - any bytes
        leads = not name.startswith(b"/") or _leads_to(file, name, root)
    shown = os.fsdecode(name)
    # CRIU takes the name off the file's path, to have the folder that it begins at.
    if links and not name.startswith(b"/") and not found.endswith(b"/" + _plain(name)):
        return f"a UNIX socket whose relative name is not the end of its path ({shown})"
    # No program looks for another one by its name.
    is_found = end.getsockopt(socket.SOL_SOCKET, _ACCEPTS) or kind == socket.SOCK_DGRAM
    if links and is_found and (links > 1 or not leads):
        return f"a UNIX socket whose name does not lead to its file alone ({shown})"
    return ""


def _plain(name: bytes) -> bytes:
    while name.startswith(b"./"):
        name = name[2:].lstrip(b"/")
    return name


def _leads_to(file: int, name: bytes, root: int) -> bool:
    """Whether a name leads to that file, as a return will look; or cannot be judged."""
    try:
        with found_at(root, name) as there:
            return os.path.sameopenfile(there, file)
    except OSError as error:
        return error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


def _option(end: socket.socket, level: int, name: int) -> bool:
    with contextlib.suppress(OSError):
        return any(end.getsockopt(level, name, 16))
    return False


def _is_ready(end: socket.socket, event: int) -> bool:
    poll = select.poll()
    poll.register(end, event)
    return any(events & event for _, events in poll.poll(0))
